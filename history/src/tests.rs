//! Runs compared with a plain list of all versions.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use pleach_beatree::files::OVERFLOW_FILE;
use pleach_beatree::{Error, Stored};
use pleach_core::page::overflow::{OverflowCell, OverflowExtent};
use pleach_core::{Hasher, Key, Node, Prefix};

use pleach_io::sim::{SimDisk, SimOptions};
use pleach_io::{Disk, OpenMode, PageBuf};

use super::*;
use crate::merge::Merge;
use crate::neighbours::PART;

/// All versions: namespace, key, the commit that replaced the value, and the value.
type Naive = Vec<(u8, Key, u64, Stored)>;

/// One of 31 keys, whose leads are spread, or all the same.
fn key(number: u64, spread: bool) -> Key {
    let mut key = [7; 32];
    let at = if spread { 0 } else { 24 };
    let hash = (number % 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[at..at + 8].copy_from_slice(&hash.to_be_bytes());
    key
}

fn stored(number: u64) -> Stored {
    match number % 9 {
        0 | 4 => Stored::Absent,
        1 | 5 => Stored::Inline(number.to_be_bytes().as_slice().into()),
        2 | 6 => Stored::Inline(vec![7; 40].into()),
        8 => Stored::from_value(Hasher::BLAKE3, long_bytes(number).into()),
        _ => {
            let (run, mut cell) = (OverflowExtent { start: number, pages: 2 }, Vec::new());
            OverflowCell::encode(5000, &[7; 32].into(), &[run], &mut cell).expect("a cell");
            Stored::Overflow(cell.into())
        }
    }
}

fn long_bytes(number: u64) -> Vec<u8> {
    vec![8; usize::try_from(1025 + number % 9000).expect("small")]
}

const NAMESPACES: [u8; 3] = [0, 7, 255];

/// The values that commit `number` replaces in each namespace: many keys of the first, few of the others.
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

    /// A commit of keys that look random.
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
        self.merges.cancel_through(floor);
        self.runs.remove_through(floor);
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

/// The nodes of all commits, as `push` gives them: namespace, commit, prefix; of pages or of regions.
fn nodes_of(all: &Naive, of: NodeScope) -> Vec<(u8, u64, Prefix)> {
    let own = all.chunk_by(|a, b| (a.0, a.2) == (b.0, b.2)).flat_map(|own| {
        let (pages, regions) = own.split_at(own.len() / 2);
        let half = match of {
            NodeScope::Pages => pages,
            NodeScope::Regions => regions,
        };
        half.iter().map(|one| (one.0, one.2, prefix(&one.1)))
    });
    own.collect()
}

fn tiers(
    disk: &[Arc<DiskRun>],
    base: u64,
) -> Tiers<impl DoubleEndedIterator<Item = &dyn Tier> + Clone> {
    let later = &disk[disk.partition_point(|run| run.descriptor.last_commit <= base)..];
    Tiers(later.iter().map(|run| &**run as &dyn Tier))
}

/// Checks nodes in and around prefixes as of a commit: of each prefix the oldest.
fn check_nodes(runs: &impl Tier, all: &Naive, base: u64, spread: bool) {
    for of in [NodeScope::Pages, NodeScope::Regions] {
        let nodes = nodes_of(all, of);
        for at in (0..31).step_by(5) {
            for around in [prefix(&key(at, spread)), Prefix::new(&key(at, spread), 12)] {
                let (mut found, mut from) = (Vec::new(), base);
                while let Some(own) = runs
                    .nodes(AsOf { namespace: NAMESPACES[0], base: from }, of, &around)
                    .expect("read")
                {
                    assert!(own.last_commit > from && !own.nodes.is_empty());
                    found.extend(own.nodes);
                    from = own.last_commit;
                }
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

/// Checks the commits of a range that changed a key, in both orders.
fn check_changes(
    runs: &impl Tier,
    all: &Naive,
    (namespace, key): (u8, &Key),
    commits: RangeInclusive<u64>,
) {
    let own = all.iter().filter(|one| (one.0, &one.1) == (namespace, key));
    let expected: Vec<u64> =
        own.map(|one| one.2).filter(|number| commits.contains(number)).collect();
    let changes = || {
        ChangingCommits::new(Some(*commits.start()), *commits.end(), |first, search| {
            let at = AsOf { namespace, base: first.expect("given") - 1 };
            let found = runs.commits(at, key, search).expect("read");
            assert!(found.len() <= search.most, "{} of {}", found.len(), search.most);
            Ok::<_, Error>(found)
        })
        .map(|commit| commit.expect("read"))
    };
    assert_eq!(changes().collect::<Vec<_>>(), expected, "{namespace} in {commits:?}");
    // Some from the end, then the rest.
    let mut left = changes();
    let back: Vec<u64> = std::iter::from_fn(|| left.next_back()).take(expected.len() / 2).collect();
    assert!(left.chain(back.into_iter().rev()).eq(expected), "{namespace} in {commits:?}");
}

/// Checks all lookups as of a commit.
fn check(runs: &impl Tier, all: &Naive, base: u64, spread: bool) {
    for namespace in NAMESPACES {
        let then = |key: &Key| {
            let later =
                all.iter().filter(|one| one.0 == namespace && one.1 == *key && one.2 > base);
            later.min_by_key(|one| one.2).map(|one| (one.2, one.3.clone()))
        };
        let mut keys: Vec<Key> = (0..31).map(|number| key(number, spread)).collect();
        keys.sort_unstable();
        for key in &keys {
            let found = runs.version(AsOf { namespace, base }, key).expect("read");
            assert_eq!(found, then(key), "{namespace} as of {base}");
        }
        for key in &keys[..2] {
            check_changes(runs, all, (namespace, key), base + 1..=base + 60);
        }
        check_changes(runs, all, (namespace, &keys[2]), base + 1..=1000);
        let within = |ranges: &[RangeInclusive<Key>]| {
            let found = runs.values(AsOf { namespace, base }, ranges).expect("read");
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
            let ends: Vec<u64> = made.runs.sizes().map(|size| size.last_commit).collect();
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
            let commits = run.last_commit - run.after;
            assert!(commits == 1 || commits * PART <= number.min(1024 + 256), "{commits} commits");
        }
        assert!(runs.is_sorted_by(|(_, a), (_, b)| a.last_commit <= b.after));
    }
}

/// A merge delays only the thread that has made a commit: that has a part of the merge to do, whatever the commits
/// before have changed.
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

/// A file of runs on a simulated device, whose free pages are scattered.
struct Files {
    disk: SimDisk,
    file: Arc<RunFile>,
    next: u64,
    number: u64,
}

impl Files {
    fn new() -> Self {
        let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
        let device: Disk = disk.clone().into();
        let file = device.open(OVERFLOW_FILE, OpenMode::CreateNew).expect("made");
        device.allocate(&file, 0, 1 << 28).expect("room");
        let runs = RunFile::new(Hasher::BLAKE3, device, 7, 64);
        runs.write_to(file);
        let file = Arc::new(runs);
        Self { disk, file, next: 0, number: 0 }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as callers want it")]
    fn allocate(next: &mut u64, pages: usize) -> Result<Vec<OverflowExtent>, Error> {
        let pages = u32::try_from(pages).expect("few");
        let first = OverflowExtent { start: *next, pages: pages / 3 };
        let second = OverflowExtent { start: *next + u64::from(pages), pages: pages - pages / 3 };
        *next = second.start + u64::from(second.pages) + 1;
        Ok(vec![first, second])
    }

    /// Writes the values that commits after one replaced.
    fn write(&mut self, runs: &Runs, after: u64) -> Arc<DiskRun> {
        self.number += 1;
        let (number, next) = (self.number, &mut self.next);
        let commits =
            |last_commit| (after + 1..=last_commit).map(|commit| (commit, said(commit))).collect();
        let allocate = &mut |pages| Self::allocate(next, pages);
        let run = runs.write_after(after, &self.file, || Ok(number), commits, allocate);
        Arc::new(run.expect("written").expect("there is something"))
    }

    /// Makes all merges that are due.
    fn merge(&mut self, runs: &mut Vec<Arc<DiskRun>>) {
        loop {
            self.number += 1;
            let merge =
                DiskMerge::of(runs, &self.file, || Ok::<_, Error>(self.number)).expect("read");
            let Some(mut merge) = merge else { return };
            let allocate = &mut |pages| Self::allocate(&mut self.next, pages);
            while !merge.step(100, allocate).expect("merged") {}
            let merged = merge.runs.clone();
            let at = runs.iter().position(|run| Arc::ptr_eq(run, &merged[0])).expect("it is there");
            let names = merge.finish(allocate).expect("merged");
            let mut bytes = Vec::new();
            names.encode(&mut bytes);
            let again = RunDescriptor::decode(&bytes).expect("as it was encoded");
            assert_eq!(again, (names.clone(), &[][..]));
            runs.splice(at..at + merged.len(), [Arc::new(DiskRun::new(names, &self.file))]);
        }
    }
}

/// The record of a commit: for some longer than an entry can hold.
fn said(commit: u64) -> Vec<u8> {
    let len = usize::try_from(commit % 70 * 100).expect("small");
    vec![commit.to_le_bytes()[0]; len]
}

#[test]
fn runs_on_the_device_are_a_plain_list() {
    for spread in [true, false] {
        let (mut files, mut made, mut all) = (Files::new(), Made::default(), Naive::new());
        let (mut disk, mut written) = (Vec::new(), 0);
        for number in 1..=270_u64 {
            let own = replaced(number, spread);
            made.push(number, &own);
            all.extend(own);
            if number % 9 == 0 {
                disk.push(files.write(&made.runs, written));
                written = number;
                files.merge(&mut disk);
                made.drop_through(number.saturating_sub(30));
                for base in (0..number).step_by(if number % 99 == 0 { 1 } else { 41 }) {
                    check(&tiers(&disk, base), &all, base, spread);
                    check_nodes(&tiers(&disk, base), &all, base, spread);
                }
            }
        }
        assert!(disk.len() < 15, "{} runs", disk.len());
        for run in &disk {
            run.check().expect("whole");
            for commit in run.descriptor.after + 1..=run.descriptor.last_commit {
                assert_eq!(&run.commit(commit).expect("read")[..], said(commit));
            }
            let mut long = Vec::new();
            run.for_each_long_value(|commit, stored| long.push((commit, stored))).expect("read");
            let is_long = |one: &&(u8, Key, u64, Stored)| {
                let own = run.descriptor.after < one.2 && one.2 <= run.descriptor.last_commit;
                own && matches!(one.3, Stored::Overflow(_))
            };
            let mut expected: Vec<_> =
                all.iter().filter(is_long).map(|one| (one.2, one.3.clone())).collect();
            expected.sort_by_key(|one| one.0);
            assert_eq!(long.len(), expected.len());
            assert!(long.is_sorted_by_key(|one| one.0));
            let bytes: u64 = long.iter().map(|(_, stored)| stored.overflow_bytes()).sum();
            assert_eq!(bytes, run.descriptor.value_bytes);
        }
        // Merged pages, and pages that were allocated in vain, are unused; no page is both unused and a run's.
        let unused = files.file.take_unused();
        let pages = |runs: &[OverflowExtent]| -> Vec<u64> {
            runs.iter().flat_map(|run| run.start..run.start + u64::from(run.pages)).collect()
        };
        let mut taken = pages(&unused);
        taken.extend(disk.iter().flat_map(|run| pages(&run.descriptor.pages)));
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), count);
    }
}

/// An overwritten or rotten page is an error of the lookup that needs it, and of a check.
#[test]
fn damage_of_a_run_is_noticed() {
    let (mut files, mut made) = (Files::new(), Made::default());
    for number in 1..=40 {
        made.push(number, &replaced(number, true));
    }
    let run = files.write(&made.runs, 0);
    let pages: Vec<u64> = run
        .descriptor
        .pages
        .iter()
        .flat_map(|run| run.start..run.start + u64::from(run.pages))
        .collect();
    for page in pages {
        let device: Disk = files.disk.clone().into();
        let file = device.open(OVERFLOW_FILE, OpenMode::Write).expect("opened");
        let mut before = PageBuf::zeroed(1);
        device.read_at(&file, &mut before, page * 4096).expect("read");
        let mut rotten = PageBuf::zeroed(1);
        rotten.page_mut(0).copy_from_slice(before.page(0));
        rotten.page_mut(0)[100] ^= 1;
        let again = Arc::new(DiskRun::new(run.descriptor.clone(), &fresh(&files)));
        device.write_at(&file, &rotten, 1, page * 4096).expect("written");
        assert!(again.check().is_err(), "page {page} is rotten");
        device.write_at(&file, &before, 1, page * 4096).expect("written");
        Arc::new(DiskRun::new(run.descriptor.clone(), &fresh(&files))).check().expect("whole");
    }
    // Another run is written there.
    let names = run.descriptor.clone();
    files.next = 0;
    let other = files.write(&made.runs, 20);
    let first = Arc::new(DiskRun::new(names, &fresh(&files)));
    let error = first.check().expect_err("its pages are another run's");
    assert!(matches!(error, Error::Contents { .. }), "{error}");
    other.check().expect("whole");
    // Or one that has the same at the same places: it is told by its number alone.
    files.next = 0;
    files.write(&made.runs, 0).check().expect("whole");
    let first = Arc::new(DiskRun::new(run.descriptor.clone(), &fresh(&files)));
    let error = first.values(AsOf { namespace: 0, base: 0 }, &[[0; 32]..=[255; 32]]);
    assert!(matches!(error, Err(Error::Contents { .. })), "{error:?}");
}

/// The file without pages in memory.
fn fresh(files: &Files) -> Arc<RunFile> {
    Arc::new(RunFile::new(Hasher::BLAKE3, files.disk.clone().into(), 7, 64))
}
