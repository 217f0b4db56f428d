//! The bytes that undo reports are those that it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pleach_beatree::Stored;
use pleach_core::page::overflow::OverflowExtent;
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::sim::{SimDisk, SimOptions};
use pleach_io::{Disk, OpenMode};
use pleach_journal::format::names::OVERFLOW_FILE;
use pleach_journal::format::trie_kind::TrieKind;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::Undo;
use super::changes::{Changes, KeyUpdate};
use super::replaced::{NamespaceUndo, ReplacedNodes};

use crate::options::HistoryLimits;
use crate::roots::{Roots, TrieRoot};
use crate::state::history::PriorCommit;
use pleach_history::{AsOf, CommitOrder, CommitSearch, RunFile, Tier};

const PAGES: u64 = 128;

/// A key of a page: for six commits of seven the same.
fn key(page: u64, commit: u64) -> Key {
    let mut key = [0; 32];
    key[0] = u8::try_from(page).expect("few") << 1;
    key[1] = u8::try_from(commit % 7 / 6 * (commit % 251)).expect("less than 256");
    key
}

/// A commit that changes a key in every second page, with the nodes of these.
fn commit(undo: &Undo, number: u64) {
    let pages = || (0..PAGES).filter(|page| (page + number).is_multiple_of(2));
    let value = |number: u64| Stored::Inline(number.to_le_bytes().as_slice().into());
    let changed =
        |page| KeyUpdate { key: key(page, number), new: value(number), prior: value(number - 1) };
    let list: Vec<KeyUpdate> = pages().map(changed).collect();
    let mut nodes = ReplacedNodes::default();
    for page in pages() {
        let node: Node = [1; 32].into();
        nodes.pages.push((Prefix::new(&key(page, 0), 7), node));
    }
    let changes = Changes::new(vec![list.into()]);
    let before = PriorCommit {
        start: (number * 100).into(),
        roots: Roots::new([(0, TrieRoot { kind: TrieKind::Merkle, node: [1; 32].into() })]),
        blob: Arc::default(),
        back_to: None,
        time: None,
    };
    undo.push(number, vec![NamespaceUndo { namespace: 0, changes, nodes }], Some(before));
}

/// Looks at undo after each of many commits, and at how many events there were.
fn run(bytes: u64, disk_bytes: u64, mut look: impl FnMut(&Undo, u64)) {
    let limits = HistoryLimits { disk_bytes, ..HistoryLimits::of_disk(256, bytes) };
    let device: Disk =
        SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() }).into();
    let file = device.open(OVERFLOW_FILE, OpenMode::CreateNew).expect("made");
    device.allocate(&file, 0, 1 << 30).expect("room");
    let runs = RunFile::new(Hasher::BLAKE3, device, 7, 64);
    runs.write_to(file);
    let undo = Undo::new(limits, 0, Some(Arc::new(runs)), Vec::new());
    let mut next = 0;
    let events = Events::default();
    // In each test: an event that is first met by a thread without a subscriber may stay switched off for all.
    tracing::subscriber::with_default(events.clone(), || {
        for number in 1..6000 {
            if undo.needs_writing(2) || number % 64 == 0 {
                let allocate = &mut |pages| {
                    let run =
                        OverflowExtent { start: next, pages: u32::try_from(pages).expect("few") };
                    next += pages as u64;
                    Ok(vec![run])
                };
                undo.write_run(|| Ok(number), allocate).expect("written");
            }
            commit(&undo, number);
            undo.settle();
            look(&undo, events.0.load(Ordering::Relaxed));
        }
    });
    assert!(undo.oldest_commit() < 5999, "there is a history");
}

/// Lists have spare capacity: bytes counted when each commit came would be fewer and fewer of those in use.
#[test]
fn what_is_counted_is_there() {
    let mut worst: f64 = 0.0;
    run(u64::MAX, u64::MAX, |undo, _| {
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let times = undo.resident_bytes() as f64 / undo.bytes() as f64;
        worst = worst.max(times);
    });
    assert!(worst < 1.25, "{worst} times what is counted");
}

#[test]
fn a_limit_is_of_what_is_there() {
    const LIMIT: u64 = 1 << 20;
    run(LIMIT, u64::MAX, |undo, _| {
        let there = undo.resident_bytes();
        assert!(there < LIMIT * 5 / 4, "{there} bytes");
    });
}

/// Counts events.
#[derive(Clone, Default)]
struct Events(Arc<AtomicU64>);

impl Subscriber for Events {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The log reports a history that its limits make shorter.
#[test]
fn a_history_that_falls_short_says_so_once() {
    let mut fell = false;
    run(u64::MAX, 10_000, |undo, events| {
        let (kept, wanted) = undo.kept_and_wanted();
        assert_eq!(wanted, 256.min(undo.newest()));
        assert_eq!(kept, undo.newest() - undo.oldest_commit());
        fell |= kept < wanted;
        assert_eq!(events, u64::from(fell));
    });
    assert!(fell, "the limit is not met");
    run(1 << 20, u64::MAX, |undo, events| {
        let (kept, wanted) = undo.kept_and_wanted();
        assert_eq!((kept, events), (wanted, 0));
    });
}

/// A history of so many commits on a device with room for its runs.
fn on_device(commits: u64) -> Undo {
    let options = SimOptions { record: false, ..SimOptions::default() };
    let device: Disk = SimDisk::new(1, options).into();
    let file = device.open(OVERFLOW_FILE, OpenMode::CreateNew).expect("made");
    device.allocate(&file, 0, 1 << 30).expect("room");
    let runs = RunFile::new(Hasher::BLAKE3, device, 7, 64);
    runs.write_to(file);
    Undo::new(HistoryLimits::of_disk(commits, 1 << 20), 0, Some(Arc::new(runs)), Vec::new())
}

/// A load may begin while the checkpoint task writes a run, and ends the history before its commit.
#[test]
fn a_run_that_was_begun_before_a_load_is_not_listed_after_it() {
    let undo = on_device(256);
    (1..10).for_each(|number| commit(&undo, number));
    let allocate = &mut |pages| {
        undo.set_barrier(10);
        Ok(vec![OverflowExtent { start: 0, pages: u32::try_from(pages).expect("few") }])
    };
    undo.write_run(|| Ok(1), allocate).expect("written");
    assert_eq!(undo.disk_runs(), (0, 0));
}

/// Commits may move the history on beyond a run while the checkpoint task writes it. Until the run was removed again, states
/// in the gap behind it counted as kept: their reader, who had been told that they were too old, was given later values.
#[test]
fn a_state_that_is_too_old_stays_so_while_runs_are_written() {
    let undo = on_device(3);
    let is_done = AtomicBool::new(false);
    let more = |commits| {
        for _ in 0..commits {
            commit(&undo, undo.newest() + 1);
            undo.settle();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut refused = 0;
            while !is_done.load(Ordering::Relaxed) {
                while undo.load_since(refused + 1).is_err() {
                    refused += 1;
                }
                let came_back = refused > 0 && undo.load_since(refused).is_ok();
                assert!(!came_back, "commit {refused} can be read again");
            }
        });
        let mut next = 0;
        for number in 1..2000 {
            more(2);
            let mut is_first = true;
            let allocate = &mut |pages| {
                more(if std::mem::take(&mut is_first) { 6 } else { 0 });
                let run = OverflowExtent { start: next, pages: u32::try_from(pages).expect("few") };
                next += pages as u64;
                Ok(vec![run])
            };
            undo.write_run(|| Ok(number), allocate).expect("written");
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// Commits may move the history on into a run while the checkpoint task writes it. The states before were refused, and
/// their long values may be free: they could be read again once the run was listed, which begins before them.
#[test]
fn a_state_that_is_too_old_stays_so_where_a_run_reaches_further_back() {
    let undo = on_device(3);
    let next = || {
        commit(&undo, undo.newest() + 1);
        undo.settle();
    };
    (0..5).for_each(|_| next());
    let allocate = &mut |pages| {
        next();
        assert!(
            undo.load_since(2).is_err() && undo.load_since(3).is_ok(),
            "three before the sixth"
        );
        Ok(vec![OverflowExtent { start: 0, pages: u32::try_from(pages).expect("few") }])
    };
    undo.write_run(|| Ok(1), allocate).expect("written");
    assert_eq!((undo.disk_runs().0, undo.disk_commits()), (1, 3), "commits 3 to 5");
    assert!(undo.load_since(2).is_err(), "it was refused");
    undo.load_since(3).expect("in the history");
}

/// A state's values are in the undo of recent commits after it, not in that of its own commit.
#[test]
fn a_state_is_what_the_commits_behind_it_have_replaced() {
    let undo = Undo::new(HistoryLimits::of_disk(256, u64::MAX), 0, None, Vec::new());
    let value = |number: u64| Stored::Inline(number.to_le_bytes().as_slice().into());
    let check = |undo: &Undo, newest: u64| {
        for base in 1..newest {
            // The page's key changes in each second commit: the next one after the state has its value in its undo.
            let next = base + 1 + base % 2;
            let past = undo.load_since(base).expect("it is kept");
            let found = past
                .after(base)
                .version(AsOf { namespace: 0, base }, &key(1, 0))
                .expect("in memory");
            let expected = (next <= newest).then(|| (next, value(next - 1)));
            assert_eq!(found, expected, "state {base} of {newest}");
        }
    };
    for number in 1..=5 {
        commit(&undo, number);
        check(&undo, number);
    }
    undo.settle();
    check(&undo, 5);
}

/// Undo that a session alone holds is not the history's: its commits cannot be asked for by number.
#[test]
fn without_a_history_the_window_begins_with_the_newest_commit_whatever_is_held() {
    let undo = Undo::new(HistoryLimits::of_disk(0, u64::MAX), 0, None, Vec::new());
    let look = |newest: u64, held: u64| {
        for number in held..=newest {
            undo.load_since(number).expect("a session on it can be read");
            assert_eq!(undo.check_in_window(number).is_ok(), number == newest, "{number}");
        }
        if let Some(before) = held.checked_sub(1) {
            assert!(undo.load_since(before).is_err(), "{before} of {newest}");
        }
        let key = &key(1, 0);
        let search = CommitSearch { last: newest, order: CommitOrder::Ascending, most: 256 };
        let listed = |first| undo.changing_commits(0, key, first, search);
        assert_eq!(listed(None).expect("an empty window"), []);
        assert!(newest == 0 || listed(Some(newest)).is_err(), "the value before is not kept");
        // As many as are held: the others take no memory.
        assert_eq!(undo.resident_bytes() > 0, held < newest);
    };
    let next = |newest: u64| {
        commit(&undo, newest);
        undo.settle();
    };
    look(0, 0);
    for number in 1..50 {
        // As a batch does: its session holds the commit before until after its own.
        let pin = undo.pin(number - 1, Duration::ZERO);
        next(number);
        look(number, number - 1);
        undo.unpin(pin);
        look(number, number);
    }
    let pin = undo.pin(49, Duration::ZERO);
    for number in 50..60 {
        let short = undo.pin(number - 1, Duration::ZERO);
        next(number);
        undo.unpin(short);
        look(number, 49);
    }
    undo.unpin(pin);
    look(59, 59);
}
