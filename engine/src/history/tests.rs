//! Runs beside a plain list of all versions.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use pleach_beatree::Stored;
use pleach_core::{Key, Node, Prefix};

use super::*;

/// All versions: namespace, key, the commit that replaced it, what it was.
type Naive = Vec<(u8, Key, u64, Stored)>;

/// A key of one of 31, whose leads are spread, or all the same.
fn key(number: u64, spread: bool) -> Key {
    let mut key = [7; 32];
    let at = if spread { 0 } else { 24 };
    let hash = (number % 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[at..at + 8].copy_from_slice(&hash.to_be_bytes());
    key
}

fn stored(number: u64) -> Stored {
    match number % 4 {
        0 => Stored::Absent,
        1 => Stored::Inline(number.to_be_bytes().as_slice().into()),
        2 => Stored::Inline(vec![7; 40].into()),
        _ => Stored::Overflow(number.to_be_bytes().as_slice().into()),
    }
}

const NAMESPACES: [u8; 3] = [0, 7, 255];

/// What commit `number` replaces in each namespace: many keys of the first, few of the others.
fn replaced(number: u64, spread: bool) -> Naive {
    let mut all = Naive::new();
    for (namespace, keys) in
        NAMESPACES.into_iter().zip([20, number % 3, u64::from(number % 50 == 9)])
    {
        let mut batch: Vec<Key> = (0..keys).map(|at| key(at * number, spread)).collect();
        batch.sort_unstable();
        batch.dedup();
        all.extend((number..).zip(batch).map(|(at, key)| (namespace, key, number, stored(at))));
    }
    all
}

/// Runs with their merges.
#[derive(Default)]
struct Made {
    runs: Runs,
    merges: Merges,
}

impl Made {
    fn push(&mut self, number: u64, replaced: &Naive) -> u64 {
        let mut run = self.runs.commit_run(number, replaced.len());
        for own in replaced.chunk_by(|a, b| a.0 == b.0) {
            let (pages, regions) = own.split_at(own.len() / 2);
            run.begin(own[0].0, &nodes(pages, number), &nodes(regions, number));
            for (_, key, _, prior) in own {
                run.put(key, prior);
            }
        }
        self.merges.push(&mut self.runs, run)
    }

    /// A commit of keys that look drawn.
    fn push_drawn(&mut self, number: u64, keys: u64) {
        let drawn = (0..keys).map(|at| {
            let mut key = [0; 32];
            let hash = (at * 3001 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            key[..8].copy_from_slice(&hash.to_be_bytes());
            (0, key, number, Stored::Absent)
        });
        let mut all: Naive = drawn.collect();
        all.sort_by_key(|one| one.1);
        self.push(number, &all);
    }

    fn drop_through(&mut self, floor: u64) {
        self.merges.drop_through(floor);
        self.runs.drop_through(floor);
    }
}

/// A prefix of each key: of different lengths, some within others.
fn prefix(key: &Key) -> Prefix {
    Prefix::new(key, u16::from(key[31] ^ key[7]) % 240 + 16)
}

/// The nodes that a commit replaces with some keys, in order.
fn nodes(own: &[(u8, Key, u64, Stored)], number: u64) -> Vec<(Prefix, Node)> {
    let prefixes: BTreeSet<Prefix> = own.iter().map(|one| prefix(&one.1)).collect();
    prefixes.into_iter().map(|prefix| (prefix, node(number))).collect()
}

fn node(number: u64) -> Node {
    let mut bytes = [1; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Node::new(bytes)
}

/// The nodes of all commits, as `push` gives them: namespace, commit, those of pages, those of regions.
fn nodes_of(all: &Naive, of: NodesOf) -> Vec<(u8, u64, Prefix)> {
    let own = all.chunk_by(|a, b| (a.0, a.2) == (b.0, b.2)).flat_map(|own| {
        let (pages, regions) = own.split_at(own.len() / 2);
        let half = match of {
            NodesOf::Pages => pages,
            NodesOf::Regions => regions,
        };
        half.iter().map(|one| (one.0, one.2, prefix(&one.1)))
    });
    own.collect()
}

/// Nodes in and around prefixes as of a commit: of each prefix the oldest.
fn check_nodes(runs: &Runs, all: &Naive, base: u64, spread: bool) {
    for of in [NodesOf::Pages, NodesOf::Regions] {
        let nodes = nodes_of(all, of);
        for at in (0..31).step_by(5) {
            for around in [prefix(&key(at, spread)), Prefix::new(&key(at, spread), 12)] {
                let found = runs.nodes_around(of, NAMESPACES[0], &around, base);
                let mut found: Vec<ReplacedNode> = found.flatten().collect();
                found.sort_by_key(|one| (one.prefix, one.number));
                found.dedup_by_key(|one| one.prefix);
                let mut expected: Vec<_> = nodes
                    .iter()
                    .filter(|(namespace, number, one)| {
                        let meets = one.contains(&around) || around.contains(one);
                        *namespace == NAMESPACES[0] && *number > base && meets
                    })
                    .map(|(_, number, prefix)| (*prefix, *number, node(*number)))
                    .collect();
                expected.sort_by_key(|one| (one.0, one.1));
                expected.dedup_by_key(|one| one.0);
                let found: Vec<_> =
                    found.iter().map(|one| (one.prefix, one.number, one.node)).collect();
                assert_eq!(found, expected, "{around:?} as of {base}");
            }
        }
    }
}

/// All lookups as of a commit.
fn check(runs: &Runs, all: &Naive, base: u64, spread: bool) {
    for namespace in NAMESPACES {
        let then = |key: &Key| {
            let later =
                all.iter().filter(|one| one.0 == namespace && one.1 == *key && one.2 > base);
            later.min_by_key(|one| one.2).map(|one| (one.2, one.3.clone()))
        };
        let mut keys: Vec<Key> = (0..31).map(|number| key(number, spread)).collect();
        keys.sort_unstable();
        for key in &keys {
            assert_eq!(runs.get(namespace, key, base), then(key), "{namespace} as of {base}");
        }
        let within = |ranges: &[RangeInclusive<Key>]| {
            let found = runs.within(namespace, ranges, base);
            let is_in = |key: &&Key| ranges.iter().any(|range| range.contains(*key));
            let expected: Vec<_> =
                keys.iter().filter(is_in).filter_map(|key| Some((*key, then(key)?.1))).collect();
            assert_eq!(found, expected, "{namespace} as of {base}");
        };
        within(&[[0; 32]..=[255; 32]]);
        within(&[keys[3]..=keys[4], keys[6]..=keys[6], keys[9]..=keys[25], [255; 32]..=[255; 32]]);
        within(&[]);
    }
}

#[test]
fn runs_are_a_plain_list_whatever_is_dropped() {
    for spread in [true, false] {
        let (mut made, mut all, mut floor) = (Made::default(), Naive::new(), 0);
        for number in 1..=300_u64 {
            let own = replaced(number, spread);
            made.push(number, &own);
            all.extend(own);
            if number % 7 == 0 && number > 130 {
                floor = number - 100;
                all.retain(|one| one.2 > floor);
                made.drop_through(floor);
            }
            let step = if number % 29 == 0 { 1 } else { 37 };
            for base in (floor..=number).step_by(step) {
                check(&made.runs, &all, base, spread);
                check_nodes(&made.runs, &all, base, spread);
            }
            let ends: Vec<u64> = made.runs.sizes().map(|(end, _)| end).collect();
            assert!(ends.is_sorted() && ends.last() == Some(&number) && ends[0] > floor);
        }
        made.drop_through(300);
        assert_eq!((made.runs.sizes().count(), made.merges.memory()), (0, 0));
        made.push(301, &replaced(301, spread));
        check(&made.runs, &replaced(301, spread), 0, spread);
    }
}

#[test]
fn runs_stay_few_and_none_has_more_than_a_quarter_of_the_commits() {
    let mut made = Made::default();
    for number in 1..=3000_u64 {
        made.push_drawn(number, if number % 100 == 0 { 5000 } else { 10 });
        made.drop_through(number.saturating_sub(1024));
        let runs = &made.runs.runs;
        assert!(runs.len() <= 40, "{} runs", runs.len());
        for (_, run) in runs {
            let commits = run.through - run.after;
            assert!(commits == 1 || commits * PART <= number.min(1024 + 256), "{commits} commits");
        }
        assert!(runs.is_sorted_by(|(_, a), (_, b)| a.through <= b.after));
    }
}

/// Nobody waits for a merge but the thread that has made a commit: it has a part of it to do, whatever the commits before
/// have changed.
#[test]
fn a_merge_takes_even_steps() {
    let mut made = Made::default();
    for number in 1..=4 {
        made.push_drawn(number, 1000);
    }
    let all: Vec<_> = made.runs.runs.iter().map(|(_, run)| Arc::clone(run)).collect();
    let mut merge = Merge::of(all, 8).expect("they fit");
    let (mut steps, mut before) = (1, merge.memory());
    while !merge.step(made.runs.secret) {
        let now = merge.memory();
        assert!(now - before <= 1000 * 100, "{} bytes in a step", now - before);
        (steps, before) = (steps + 1, now);
    }
    assert!((8..=9).contains(&steps), "{steps} steps");
}
