//! An iterator gives the pairs of one state, in order and each once, from both ends: on the tip, over overlays,
//! on old commits, while commits, flushes, splits and checkpoints go on between its steps. It reads no page
//! twice and leaves the cache to others.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use pleach::load::LoadOptions;
use pleach::{Access, Db, Error, Geometry, Key, Options, SessionOptions, Value};
use pleach_io::sim::{Fault, FaultRepeats, FaultRule, SimDisk, SimOptions, SimRuntime, code};
use pleach_io::{IoError, Operation};

use crate::common::{Rng, commit, uniform};
use crate::crash::SimDb;

type Pairs = Vec<(Key, Value)>;

const LOADED: u64 = 30_000;

/// A cold database of some 500 pages.
fn loaded(cache_kib: u64) -> (SimDb, SimDisk, SimRuntime) {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let open = || {
        let geometry = Geometry { segment_pages: 16, log_segment: 16 << 10, size_factor: 150 };
        let options = Options::new("sim").create(true).cache_kib(cache_kib).in_flight(16);
        let runtime = SimRuntime::with_clock(1, disk.clock(), 2);
        let options = options.geometry(geometry);
        let db = SimDb::open_on(disk.clone(), runtime.clone(), options).expect("opened");
        (db, runtime)
    };
    let (db, _) = open();
    let pairs = (0..LOADED).map(|id| (uniform(id), Value::from(&id.to_le_bytes())));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    db.close().expect("closed");
    let (db, runtime) = open();
    (db, disk, runtime)
}

#[test]
fn cold_each_page_is_read_once_and_the_cache_stays_as_it_is() {
    for backwards in [false, true] {
        let (db, _, _) = loaded(4 << 10);
        let session = db.session(SessionOptions::new()).expect("a session");
        let pages = db.metrics().leaf_pages;
        assert!(pages > 400);
        // Pages that are used: twice, so that they prove themselves.
        let hot: Vec<Key> = (0..40).map(uniform).collect();
        for _ in 0..3 {
            session.read_many(&hot).expect("read");
        }
        let before = db.metrics();
        let pairs = session.iter(..);
        let count = if backwards { pairs.rev().count() } else { pairs.count() };
        assert_eq!(count as u64, LOADED);
        let after = db.metrics();
        let read = |metrics: &pleach::Metrics| metrics.cache_misses + metrics.pages_scanned;
        let hits = after.cache_hits - before.cache_hits;
        assert!((30..=40).contains(&hits), "{hits} pages were cached");
        assert_eq!(read(&after) - read(&before), pages - hits, "each page once");
        assert!(after.cache_misses - before.cache_misses <= 1, "all but the first ahead");
        session.read_many(&hot).expect("read");
        assert_eq!(db.metrics().cache_misses, after.cache_misses, "hot pages are still there");
        // All others but a few are as cold as before.
        let cold: Vec<Key> = (0..LOADED).map(uniform).collect();
        session.read_many(&cold).expect("read");
        let read = db.metrics().cache_misses - after.cache_misses;
        assert!(read >= pages - hits - 32, "{read} of {pages} pages were cold");
    }
}

/// Undo of a region is kept from step to step, and taken anew where the region has changed since.
#[test]
fn what_is_committed_between_two_steps_is_undone() {
    let (db, _, _) = loaded(32 << 10);
    let put = |id, value: &[u8]| Access::write(uniform(id), Some(Value::from(value)));
    let mut expected: Pairs =
        (0..LOADED).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect();
    expected.sort_unstable_by_key(|pair| pair.0);
    let session = db.session(SessionOptions::new()).expect("a session");
    commit(&db, (0..LOADED).step_by(40).map(|id| put(id, b"first")).collect());
    let mut got = Pairs::new();
    for pair in session.iter(..) {
        got.push(pair.expect("read"));
        // In the middle of a region, with some of its pages behind the iterator and some before it.
        if got.len() % 3000 == 1500 {
            let id = got.len() as u64 / 3000;
            commit(&db, (id..LOADED).step_by(40).map(|id| put(id, b"later")).collect());
        }
    }
    assert!(got == expected, "another state");
}

/// Neighbours in the file are read at once, from either end; the pages of a load all are.
#[test]
fn pages_of_a_load_are_read_in_runs() {
    for backwards in [false, true] {
        // Memory for 64 pages ahead.
        let (db, disk, _) = loaded(32 << 10);
        let session = db.session(SessionOptions::new()).expect("a session");
        let (pages, before) = (db.metrics().leaf_pages, disk.operations());
        let pairs = session.iter(..);
        let count = if backwards { pairs.rev().count() } else { pairs.count() };
        assert_eq!(count as u64, LOADED);
        let metrics = db.metrics();
        assert_eq!(metrics.pages_scanned + metrics.cache_misses, pages, "each page once");
        let reads = disk.operations() - before;
        assert!(reads * 8 < pages, "{reads} reads of {pages} pages");
        assert_eq!(metrics.pages_read_over, 0, "there are no gaps");
    }
}

/// Changes move pages, which are neighbours of others then: still each is read once, and those that lie close
/// together are read at once.
#[test]
fn pages_that_moved_are_read_with_their_new_neighbours() {
    let (db, disk, _) = loaded(32 << 10);
    let mut model: BTreeMap<Key, Value> =
        (0..LOADED).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect();
    for id in (0..LOADED).step_by(400) {
        let value = Value::from(b"moved");
        model.insert(uniform(id), value.clone());
        commit(&db, vec![Access::write(uniform(id), Some(value))]);
    }
    db.drain(0).expect("written");
    let written = db.metrics().pages_written;
    db.close().expect("closed");
    let options = Options::new("sim").cache_kib(32 << 10).in_flight(16);
    let runtime = SimRuntime::with_clock(1, disk.clock(), 2);
    let db = SimDb::open_on(disk.clone(), runtime.clone(), options).expect("opened");
    // The regions come from the image first.
    for _ in 0..4 {
        runtime.step_some(50);
        runtime.clock().advance(std::time::Duration::from_millis(60));
    }
    let session = db.session(SessionOptions::new()).expect("a session");
    let (pages, before) = (db.metrics().leaf_pages, disk.operations());
    assert!(session.iter(..).map(|pair| pair.expect("read")).eq(model));
    let metrics = db.metrics();
    assert_eq!(metrics.pages_scanned + metrics.cache_misses, pages, "each page once");
    let (reads, over) = (disk.operations() - before, metrics.pages_read_over);
    assert!(written > pages / 10 && reads * 6 < pages, "{reads} reads of {pages} pages");
    assert!(0 < over && over * 3 < pages, "{over} pages read over, {pages} read");
}

#[test]
fn of_a_small_range_reads_its_pages_once_and_no_more() {
    let (db, _, _) = loaded(4 << 10);
    let session = db.session(SessionOptions::new()).expect("a session");
    let all: Vec<Key> = session.iter(..).map(|pair| pair.expect("read").0).collect();
    drop((session, db));
    let (db, _, _) = loaded(4 << 10);
    let session = db.session(SessionOptions::new()).expect("a session");
    let read = || db.metrics().cache_misses + db.metrics().pages_scanned;
    // One pair: one page. Nothing is read ahead before the second.
    assert_eq!(session.iter(all[5000]..).next().expect("a pair").expect("read").0, all[5000]);
    assert_eq!(read(), 1);
    let before = read();
    let range = || session.iter(all[10_000]..all[10_300]);
    assert_eq!(range().count(), 300);
    let cold = read() - before;
    assert!((4..12).contains(&cold), "{cold} pages for 300 pairs");
    // Its pages are cached: who comes back reads none.
    assert_eq!((range().count(), range().rev().count()), (300, 300));
    assert_eq!(read(), before + cold);
    // Who stops early has read no more than a window beyond.
    let before = read();
    assert_eq!(session.iter(all[20_000]..).take(200).count(), 200);
    assert!(read() - before < 20, "{} pages for 200 pairs", read() - before);
}

#[test]
fn ends_with_an_error_and_another_goes_on_behind_what_was_given() {
    for backwards in [false, true] {
        let (db, disk, _) = loaded(4 << 10);
        let session = db.session(SessionOptions::new()).expect("a session");
        // Twice: it is read ahead, and again by who comes to it.
        let fault = Fault::Errno(code::EIO);
        disk.inject(FaultRule::nth(Operation::Read, "leaf", 100, FaultRepeats::Forever, fault));
        let mut pairs = session.iter(..);
        let mut step = || if backwards { pairs.next_back() } else { pairs.next() };
        let mut given = Pairs::new();
        let error = loop {
            match step().expect("an error comes first") {
                Ok(pair) => given.push(pair),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Io(IoError::Os { .. })), "{error:?}");
        assert!(step().is_none() && pairs.next().is_none() && pairs.next_back().is_none());
        assert!(given.len() > 1000 && (given.len() as u64) < LOADED);
        disk.heal();
        let last = given.last().expect("many").0;
        if backwards {
            given.extend(session.iter(..last).rev().map(|pair| pair.expect("read")));
            given.reverse();
        } else {
            let behind = (Bound::Excluded(last), Bound::Unbounded);
            given.extend(session.iter(behind).map(|pair| pair.expect("read")));
        }
        let all: BTreeMap<Key, Value> =
            (0..LOADED).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect();
        assert!(given.into_iter().eq(all));
    }
}

#[test]
fn more_than_read_ahead_at_a_time_leave_the_cache_alone_too() {
    let (db, disk, _) = loaded(4 << 10);
    let session = db.session(SessionOptions::new()).expect("a session");
    let pages = db.metrics().leaf_pages;
    let all: BTreeMap<Key, Value> =
        (0..LOADED).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect();
    let mut iterators: Vec<_> = (0..12).map(|_| session.iter(..)).collect();
    for (key, value) in &all {
        for iterator in &mut iterators {
            let pair = iterator.next().expect("as many").expect("read");
            assert_eq!((&pair.0, &pair.1), (key, value));
        }
    }
    assert!(iterators.iter_mut().all(|iterator| iterator.next().is_none()));
    drop(iterators);
    let metrics = db.metrics();
    assert!(metrics.cache_misses <= 32 && metrics.pages_scanned > 8 * (pages - 32));
    // All rings were given back: this thread's serve again, and no other can be made.
    let fault = Fault::Errno(code::EIO);
    disk.inject(FaultRule::nth(Operation::SetUpRing, "", 1, FaultRepeats::Forever, fault));
    for _ in 0..3 {
        assert!(session.iter(..).map(|pair| pair.expect("read")).eq(all.clone()));
    }
    assert_eq!(db.metrics().cache_misses, metrics.cache_misses, "none was read one by one");
    // They serve other threads, too.
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| session.iter(..).all(|pair| pair.is_ok()));
        assert!(elsewhere.join().expect("no panic"));
    });
    // Where there is none, the iterator says so, and what failed does not count as in use.
    let mut held: Vec<_> = (0..4).map(|_| session.iter(..)).collect();
    for iterator in &mut held {
        assert!(iterator.take(20_000).all(|pair| pair.is_ok()));
    }
    for _ in 0..20 {
        let error = session.iter(..).find_map(Result::err);
        let refused =
            matches!(error, Some(Error::Io(IoError::Os { operation: Operation::SetUpRing, .. })));
        assert!(refused, "{error:?}");
    }
    drop(held);
    assert!(session.iter(..).map(|pair| pair.expect("read")).eq(all));
}

/// Rings were once bound to the thread that made them, so that an iterator could not leave it.
#[test]
fn goes_from_thread_to_thread_with_reads_in_flight() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = || Options::new(folder.path()).create(true).cache_mib(16).threads(1).small();
    let model: BTreeMap<Key, Value> =
        (0..60_000).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect();
    let db = Db::open(options()).expect("created");
    db.bulk_load(model.clone(), &LoadOptions::new()).expect("loaded");
    db.close().expect("closed");
    let db = Db::open(options()).expect("opened");
    let mut iterator = db.session(SessionOptions::new()).expect("a session").iter(..);
    let mut given: Pairs = Vec::new();
    while given.len() < model.len() {
        // Each step has left reads in flight when its thread ends.
        let step = std::thread::spawn(move || {
            let pairs: Result<Pairs, Error> = iterator.by_ref().take(3_000).collect();
            (iterator, pairs)
        });
        let (moved, pairs) = step.join().expect("no panic");
        iterator = moved;
        given.extend(pairs.expect("read"));
    }
    assert!(iterator.next().is_none() && given.into_iter().eq(model));
    let metrics = db.metrics();
    assert!(metrics.pages_scanned > 8 * metrics.cache_misses, "they were read ahead");
}

#[test]
fn outlives_its_session_and_is_reported_by_a_close() {
    let (db, _, _) = loaded(4 << 10);
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut iterator = session.iter(..);
    let first = iterator.next().expect("many").expect("read");
    let deletes: Vec<_> = (0..500).map(|id| Access::write(uniform(id), None)).collect();
    session.finish(deletes).expect("finished").commit().expect("committed");
    let newest = db.session(SessionOptions::new()).expect("a session");
    assert_eq!(newest.iter(..).count() as u64, LOADED - 500);
    drop(newest);
    assert_eq!(db.open_handles().iterators, 1);
    let rest: Result<Pairs, Error> = iterator.by_ref().collect();
    let all: BTreeMap<Key, Value> =
        (0..LOADED).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect();
    assert!(std::iter::once(first).chain(rest.expect("read")).eq(all));
    drop(iterator);
    assert!(db.open_handles().is_empty());
}

#[test]
fn seeks_as_a_new_one() {
    let (db, _, _) = loaded(4 << 10);
    let session = db.session(SessionOptions::new()).expect("a session");
    let all: BTreeMap<Key, Value> =
        (0..LOADED).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect();
    let mut iterator = session.iter(..);
    let mut rng = Rng::new(7);
    for round in 0..400 {
        // Beside keys that are there and some that are not.
        let mut key = uniform(rng.below(LOADED + 50));
        key[31] ^= u8::try_from(rng.below(2)).expect("a bit");
        let steps = [1, 3, 40, 2000][rng.index(4)];
        if rng.below(2) == 0 {
            iterator.seek(key..);
            let expected = all.range(key..).take(steps).map(|(key, value)| (*key, value.clone()));
            let found: Result<Pairs, Error> = iterator.by_ref().take(steps).collect();
            assert!(found.expect("read").into_iter().eq(expected), "round {round}");
        } else {
            iterator.seek(..key);
            let expected = all.range(..key).rev().take(steps);
            let expected = expected.map(|(key, value)| (*key, value.clone()));
            let found: Result<Pairs, Error> = iterator.by_ref().rev().take(steps).collect();
            assert!(found.expect("read").into_iter().eq(expected), "round {round}");
        }
    }
    iterator.seek([9; 32]..[9; 32]);
    assert!(iterator.next().is_none() && iterator.next_back().is_none());
}

/// Buffered changes, and those that are undone for an older state, lie over cells, between them, and at the ends of
/// ranges.
#[test]
fn merges_what_pends_from_both_ends() {
    let (db, _, _) = loaded(64 << 10);
    let before: BTreeMap<Key, Value> =
        (0..LOADED).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect();
    let (mut after, mut changed, mut rng) = (before.clone(), Vec::new(), Rng::new(8));
    for id in (0..LOADED).step_by(5) {
        let mut key = uniform(id);
        let value = [None, Some(Value::from(&[7; 40])), Some(Value::from(&[8; 3000]))];
        let value = value[rng.index(3)].clone();
        key[31] ^= u8::try_from(rng.below(2)).expect("a bit");
        match &value {
            Some(value) => after.insert(key, value.clone()),
            None => after.remove(&key),
        };
        changed.push((key, value));
    }
    let old = db.session(SessionOptions::new()).expect("a session");
    commit(&db, changed.iter().map(|(key, value)| Access::write(*key, value.clone())).collect());
    let new = db.session(SessionOptions::new()).expect("a session");
    for round in 0..400 {
        let (session, model) = if rng.below(2) == 0 { (&old, &before) } else { (&new, &after) };
        let first = changed[rng.index(changed.len())].0;
        let last =
            *after.range(first..).take(1 + rng.index(300)).last().map_or(&first, |last| last.0);
        let mut left: VecDeque<_> = model.range(first..=last).collect();
        let mut pairs = session.iter(first..=last);
        let backwards = [0, 1, 4, 8][rng.index(4)];
        loop {
            if rng.below(8) == 0 {
                let (asked, mut seen) = (1 + rng.index(40), Pairs::new());
                let some = pairs.for_each_pair(|key, value| {
                    seen.push((*key, Value::from(value)));
                    seen.len() < asked
                });
                some.expect("read");
                assert!(seen.len() == asked || seen.len() == left.len(), "round {round}");
                let expected = left.drain(..seen.len());
                assert!(seen.iter().map(|pair| (&pair.0, &pair.1)).eq(expected), "round {round}");
            }
            let (found, expected) = if rng.below(8) < backwards {
                (pairs.next_back(), left.pop_back())
            } else {
                (pairs.next(), left.pop_front())
            };
            let expected = expected.map(|(key, value)| (*key, value.clone()));
            assert_eq!(found.transpose().expect("read"), expected, "round {round}");
            if expected.is_none() {
                break;
            }
        }
    }
}

/// What is read ahead may fail, as long as who comes to it can read it.
#[test]
fn survives_what_only_reading_ahead_meets() {
    let (db, disk, _) = loaded(4 << 10);
    let session = db.session(SessionOptions::new()).expect("a session");
    let fault = Fault::Errno(code::EIO);
    for nth in [20, 60, 61, 200] {
        disk.inject(FaultRule::nth(Operation::Read, "leaf", nth, FaultRepeats::Once, fault));
    }
    let all: Result<Pairs, Error> = session.iter(..).collect();
    assert_eq!(all.expect("read").len() as u64, LOADED);
    assert_eq!(disk.ledger().len(), 4, "all of them struck");
}

/// Threads iterate over what others change. Pages move, regions split, numbers are used again.
#[test]
fn on_threads_beside_commits_and_flushes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).cache_mib(8).threads(2).in_flight(16);
    let options = options
        .tune(|tuning| tuning.flush_at = 1)
        .geometry(Geometry::small())
        .log_limit_bytes(256 << 10);
    let options = options.undo_memory_bytes(64 << 20);
    let db = Db::open(options).expect("created");
    let mut model: BTreeMap<Key, Value> =
        (0..60_000).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect();
    let pairs = model.iter().map(|(key, value)| (*key, value.clone()));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    let ended = AtomicBool::new(false);
    let scans = std::thread::scope(|scope| {
        let mut scanners = Vec::new();
        for round in 0..30_u64 {
            if round % 10 == 0 {
                let session = db.session(SessionOptions::new()).expect("a session");
                let (model, ended) = (model.clone(), &ended);
                scanners.push(scope.spawn(move || {
                    let mut count = 0;
                    while count < 1 || !ended.load(Ordering::Relaxed) {
                        let pairs = session.iter(..).map(|pair| pair.expect("read"));
                        let all = model.iter().map(|(key, value)| (*key, value.clone()));
                        assert!(pairs.eq(all), "session of round {round}, scan {count}");
                        count += 1;
                    }
                    count
                }));
            }
            let mut rng = Rng::new(round);
            let ids: std::collections::BTreeSet<u64> =
                (0..2000).map(|_| rng.below(80_000)).collect();
            let one =
                |id: u64| (!id.is_multiple_of(5)).then(|| Value::from(&(id + round).to_le_bytes()));
            for id in &ids {
                match one(*id) {
                    Some(value) => model.insert(uniform(*id), value),
                    None => model.remove(&uniform(*id)),
                };
            }
            commit(&db, ids.iter().map(|id| Access::write(uniform(*id), one(*id))).collect());
        }
        ended.store(true, Ordering::Relaxed);
        scanners.into_iter().map(|scanner| scanner.join().expect("no panic")).sum::<u32>()
    });
    assert!(scans >= 3);
    assert!(db.metrics().pages_written > 1000, "pages moved meanwhile");
}
