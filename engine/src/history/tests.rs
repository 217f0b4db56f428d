//! Runs beside a plain list of all versions.

use std::ops::RangeInclusive;

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

fn push(runs: &Runs, number: u64, replaced: &Naive) -> usize {
    let mut run = runs.commit_run(number, replaced.len());
    for own in replaced.chunk_by(|a, b| a.0 == b.0) {
        run.begin(own[0].0);
        own.iter().for_each(|(_, key, _, prior)| run.put(key, prior));
    }
    runs.push(run)
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
        let (runs, mut all, mut floor) = (Runs::default(), Naive::new(), 0);
        for number in 1..=300_u64 {
            let own = replaced(number, spread);
            push(&runs, number, &own);
            all.extend(own);
            if number % 7 == 0 && number > 130 {
                floor = number - 100;
                all.retain(|one| one.2 > floor);
                runs.drop_through(floor);
            }
            let step = if number % 29 == 0 { 1 } else { 37 };
            for base in (floor..=number).step_by(step) {
                check(&runs, &all, base, spread);
            }
            let ends = runs.ends();
            assert!(ends.is_sorted() && ends.last() == Some(&number) && ends[0] > floor);
        }
        runs.drop_through(300);
        assert_eq!((runs.bytes(), runs.ends().len()), (0, 0));
        push(&runs, 301, &replaced(301, spread));
        check(&runs, &replaced(301, spread), 0, spread);
    }
}

/// Puts in a commit of keys that look drawn.
fn push_drawn(runs: &Runs, number: u64, keys: u64) {
    let drawn = (0..keys).map(|at| {
        let mut key = [0; 32];
        let hash = (at * 3001 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        key[..8].copy_from_slice(&hash.to_be_bytes());
        (0, key, number, Stored::Absent)
    });
    let mut all: Naive = drawn.collect();
    all.sort_by_key(|one| one.1);
    push(runs, number, &all);
}

#[test]
fn runs_stay_few_and_none_has_more_than_a_quarter_of_the_commits() {
    let runs = Runs::default();
    for number in 1..=3000_u64 {
        push_drawn(&runs, number, if number % 100 == 0 { 5000 } else { 10 });
        runs.drop_through(number.saturating_sub(1024));
        let list = runs.list.load();
        assert!(list.runs.len() <= 40, "{} runs", list.runs.len());
        for (_, run) in &list.runs {
            let commits = run.through - run.after;
            assert!(commits == 1 || commits * PART <= number.min(1024 + 256), "{commits} commits");
        }
        assert!(list.runs.is_sorted_by(|(_, a), (_, b)| a.through <= b.after));
    }
}

/// A merge of many versions was one step, which nobody waits for, but the thread that has made a commit.
#[test]
fn a_merge_takes_even_steps() {
    let runs = Runs::default();
    for number in 1..=4 {
        push_drawn(&runs, number, 1000);
    }
    let all: Vec<_> = runs.list.load().runs.iter().map(|(_, run)| Arc::clone(run)).collect();
    let mut merge = Merge::of(&all, 8).expect("they fit");
    for step in 1..=8 {
        let done = merge.step(&runs.secret);
        assert_eq!((merge.merged_versions(), done), (step * 500, false));
    }
    assert!(merge.step(&runs.secret));
}
