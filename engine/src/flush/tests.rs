//! What other threads see of a flush while it publishes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::page::leaf::LeafView;
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::Operation;
use pleach_io::sim::{
    CrashMode, Fault, FaultRepeats, FaultRule, Quota, SimDisk, SimOptions, SimRuntime, code,
};

use super::choose::fullest_pages;
use super::rounds::{LEAST_PAGES, split};
use crate::checkpoint::checkpoint;
use crate::state::order::images::ImageGuard;
use crate::{Access, Db, Durability, Error, Geometry, Options, SessionOptions, Value};
use pleach_ops::{CheckOptions, check_on};

/// Places where keys are appended: some regions are always about to split, many are flushed with them.
const FRONTS: u64 = 48;
/// Keys that a batch appends at each place.
const MORE: u64 = 60;

/// Walks through the regions like a checkpoint, again and again, on a thread of its own.
fn walk(db: &Db, stop: &AtomicBool) -> (u64, usize) {
    let (mut rounds, mut largest) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let mut key: Option<Key> = Some([0; 32]);
        while let Some(at) = key {
            key = db.state().tree.with_region(&at, |region, state| {
                largest = largest.max(state.children().len());
                region.prefix().next().map(|next| *next.first_key())
            });
        }
        rounds += 1;
    }
    (rounds, largest)
}

#[test]
fn nobody_sees_a_region_that_is_too_large_for_its_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path())
        .create(true)
        .cache_mib(64)
        .threads(2)
        .tune(|tuning| tuning.flush_at = 1)
        .geometry(Geometry { segment_pages: 64, log_segment: 1 << 20, size_factor: 150 });
    let db = Arc::new(Db::open(options).expect("created"));
    let stop = Arc::new(AtomicBool::new(false));
    let walker = std::thread::spawn({
        let (db, stop) = (Arc::clone(&db), Arc::clone(&stop));
        move || walk(&db, &stop)
    });
    for batch in 0..60u64 {
        let accesses = (0..FRONTS * MORE).map(|at| {
            let (front, next) = (at / MORE, batch * MORE + at % MORE);
            let mut key = [0; 32];
            key[..8].copy_from_slice(&((front << 58) + (next << 44)).to_be_bytes());
            Access::write(key, Some(Value::from(&next.to_le_bytes().repeat(12)[..])))
        });
        let session = db.session(SessionOptions::new().witness(false)).expect("a session");
        let block = session.finish(accesses).expect("finished");
        block.commit().expect("committed");
    }
    stop.store(true, Ordering::Relaxed);
    let (rounds, largest) = walker.join().expect("no panic");
    let regions = db.state().tree.load().regions().len();
    assert!(regions > 100 && rounds > 100, "{regions} regions, {rounds} looks at all of them");
    assert!(largest <= MAX_ENTRIES, "a region of {largest} children was seen");
}

/// The first commit of a state may have all of it. It counted as three changes of its one page, which was never due: each
/// finish folded all of the state, until eight more commits had changed it.
#[test]
fn a_commit_of_more_than_a_page_has_is_flushed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(Options::new(folder.path()).create(true).cache_mib(64).threads(1));
    let db = db.expect("created");
    put(&db, 0..100, 1);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(db.metrics().pages_written, 0, "a page waits for more changes");
    put(&db, 100..10_000, 1);
    for _ in 0..1000 {
        if db.metrics().pending_entries == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let metrics = db.metrics();
    assert_eq!(metrics.pending_entries, 0);
    assert!(metrics.leaf_pages > 100, "{} pages", metrics.leaf_pages);
}

type SimDb = Db;

fn sim() -> (SimDb, SimDisk, SimRuntime) {
    sim_at(200)
}

fn sim_at(flush_at: u8) -> (SimDb, SimDisk, SimRuntime) {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options = Options::new("sim")
        .create(true)
        .cache_mib(8)
        .threads(1)
        .tune(|tuning| tuning.flush_at = flush_at)
        .small();
    let db = Db::open_on(disk.clone(), runtime.clone(), options).expect("created");
    (db, disk, runtime)
}

fn id(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn put(db: &SimDb, ids: std::ops::Range<u64>, byte: u8) {
    let value = Value::from(vec![byte; 100]);
    let put: Vec<_> = ids.map(|at| Access::write(id(at), Some(value.clone()))).collect();
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(put).expect("finished").commit().expect("committed");
}

/// Checks that the device has what was committed.
fn is_whole(disk: &SimDisk) {
    let report = check_on(disk, CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Wrong nodes in memory never reach a page: it is hashed from its cells.
///
/// In release builds a flush trusted them.
#[test]
fn a_wrong_treelet_is_not_written() {
    let (db, disk, _runtime) = sim();
    put(&db, 0..200, 1);
    db.drain(0).expect("flushed");
    put(&db, 0..200, 2);
    let mut spoiled = 0;
    for at in 0..200 {
        db.state().tree.with_region(&id(at), |_, state| {
            let child = state.children().find(&id(at));
            let (number, as_of) =
                (state.children().page(child).expect("flushed"), state.version(child));
            let Some(page) = db.state().store.cache.get(number, state.children().tag(child)) else {
                return;
            };
            let own = *state.node(child);
            // The page's own node is internal, and not that of the subtries below it.
            let wrong = || (1..31).map(|index| (index, own));
            if !page.advance_treelet((as_of, as_of), None, &own, wrong()) {
                db.state().store.cache.attach_treelet(number, &page, true, |treelet| {
                    treelet.clear();
                    treelet.advance((0, as_of), None, &own, wrong());
                });
            }
            let known = page.treelet(as_of, |known| {
                known.is_some_and(|known| known.nodes_at_level::<16>(4).1 == 0xffff)
            });
            spoiled += u32::from(known);
        });
    }
    assert!(spoiled > 100, "{spoiled} treelets are wrong");
    db.drain(0).expect("hashed from the cells");
    assert!(db.quarantined().is_empty());
    put(&db, 0..50, 3);
    db.drain(0).expect("flushed");
    db.close().expect("closed");
    is_whole(&disk);
}

/// A page whose pairs do not fold to the index's node is damage: it is quarantined, and nothing else is harmed.
#[test]
fn a_page_that_contradicts_the_index_is_set_aside() {
    let (db, disk, runtime) = sim();
    put(&db, 0..200, 1);
    db.drain(0).expect("flushed");
    put(&db, 7..8, 2);
    spoil(&db);
    for trial in 1..4 {
        let drained = db.drain(0);
        assert!(matches!(drained, Err(Error::Quarantined { pages: 1, .. })), "{drained:?}");
        let [aside] = &db.quarantined()[..] else { panic!("one page") };
        assert!(
            matches!(aside.error, pleach_beatree::Error::Fold { .. }) && aside.trials == trial,
            "{aside:?}"
        );
        assert!(aside.prefix.covers(&id(7)));
        // A good read does not release it: sessions get the error, and nothing is folded on it.
        let session = db.session(SessionOptions::new()).expect("a session");
        let others: Vec<u64> =
            (0..200).filter(|at| *at != 7 && aside.prefix.covers(&id(*at))).collect();
        assert!(!others.is_empty());
        for at in others {
            let read = session.read(&id(at));
            assert!(matches!(read, Err(Error::Corrupt(_))), "key {at}: {read:?}");
        }
        let finished = session.finish(vec![Access::write(id(7), None)]).map(|_| ());
        let finished = finished.map_err(crate::FinishError::into_error);
        assert!(matches!(finished, Err(Error::Corrupt(_))), "{finished:?}");
        runtime.clock().advance(Duration::from_secs(61));
    }
    spoil(&db);
    db.drain(0).expect("right again");
    assert!(db.quarantined().is_empty());
    let session = db.session(SessionOptions::new()).expect("a session");
    for at in 0..200 {
        assert!(session.read(&id(at)).expect("read").is_some());
    }
    drop(session);
    put(&db, 0..200, 3);
    db.close().expect("closed");
    is_whole(&disk);
}

/// Makes the node in memory of the page of key 7 wrong; a second call makes it right.
fn spoil(db: &SimDb) {
    let region = db.state().tree.with_region(&id(7), |region, _| Arc::clone(region));
    let mut state = region.write();
    let child = state.children().find(&id(7));
    let nodes = (0..state.children().len()).map(|child| *state.node(child));
    let mut nodes: Vec<Node> = nodes.collect();
    let mut node: [u8; 32] = nodes[child].into();
    node[31] ^= 1;
    nodes[child] = node.into();
    state.replace_nodes(nodes);
}

/// Without a drain, the flush tries the page, which is never cached, again and releases it.
#[test]
fn a_page_that_contradicts_the_index_is_tried_again() {
    let (db, disk, runtime) = sim_at(1);
    put(&db, 0..200, 1);
    db.drain(0).expect("flushed");
    db.pause_background();
    put(&db, 7..8, 2);
    spoil(&db);
    db.resume_background();
    let step = || {
        for _ in 0..50 {
            db.state().pace.wake();
            runtime.step_some(50);
        }
        db.quarantined().first().map(|aside| aside.trials)
    };
    for trial in 1..4 {
        assert_eq!(step(), Some(trial));
        runtime.clock().advance(Duration::from_secs(61));
    }
    spoil(&db);
    assert_eq!(step(), None, "right again");
    assert_eq!(db.metrics().pending_entries, 0);
    db.close().expect("closed");
    is_whole(&disk);
}

/// Rule `log-before-pages`: commits that nobody has synced would be in pages of the device and in no log.
#[test]
fn no_page_has_a_commit_that_a_power_cut_takes() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let open = |disk: &SimDisk| {
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = Options::new("sim").create(true).cache_mib(8).threads(1).small();
        Db::open_on(disk.clone(), runtime, options.durability(Durability::None)).expect("opened")
    };
    let db: SimDb = open(&disk);
    disk.record();
    for byte in 1..5 {
        put(&db, 0..100, byte);
        db.drain(0).expect("flushed");
    }
    let mut newest = 0;
    for point in disk.trace().crash_points() {
        let cut = point.outcome(CrashMode::Dropped);
        let leaf = cut.image().file("leaf").expect("it is there");
        let pages = (0..leaf.pages()).map(|page| leaf.page(page));
        let written = pages.filter(|page| page.iter().any(|byte| *byte != 0));
        let last_commit = written.map(|page| LeafView::from_trusted(page).applied_through()).max();
        newest = newest.max(last_commit.unwrap_or(0));
        let found = open(&cut.disk()).commit_number();
        assert!(last_commit <= Some(found), "a page has commit {last_commit:?}, the log {found}");
    }
    assert_eq!(newest, db.commit_number(), "each was flushed");
}

/// Commits and images between any two steps of a flush, and then a kill: pages, buffered changes, nodes and the runs of
/// long values are those of the newest commit.
#[test]
fn what_comes_between_the_steps_of_a_flush_is_there_after_a_kill() {
    let value = |byte| Value::from(vec![byte; 5000]);
    let write = |db: &SimDb, ids: std::ops::Range<u64>, byte| {
        let put: Vec<_> = ids.map(|at| Access::write(id(at), Some(value(byte)))).collect();
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(put).expect("finished").commit().expect("committed");
    };
    let base = || Options::new("sim").cache_mib(8).threads(1).tune(|tuning| tuning.flush_at = 1);
    let mut between = 0;
    for steps in 0..24 {
        for (makes_image, is_split) in [(false, false), (false, true), (true, true)] {
            let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
            let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
            let options = base().create(true).small().log_limit_bytes(16 << 20);
            let db: SimDb = Db::open_on(disk.clone(), runtime.clone(), options).expect("created");
            let longer = vec![Access::write(id(100), Some(Value::from(vec![1; 100_000])))];
            let session = db.session(SessionOptions::new()).expect("a session");
            session.finish(longer).expect("finished").commit().expect("committed");
            write(&db, 0..30, 1);
            if is_split {
                // More than a page has.
                put(&db, 200..400, 1);
            }
            for _ in 0..steps {
                runtime.step_some(1);
                runtime.clock().advance(Duration::from_millis(5));
            }
            let is_written = |stage| stage == "writing pages" || stage == "syncing pages";
            between += u32::from(db.tasks().iter().any(|task| is_written(task.stage)));
            write(&db, 0..10, 2);
            if is_split {
                put(&db, 200..210, 2);
            }
            if makes_image {
                checkpoint(&db.state(), false).expect("an image");
            }
            db.drain(0).expect("flushed");
            write(&db, 10..11, 2);
            let killed = SimDisk::from_image(&disk.image(), 2);
            let runtime = SimRuntime::with_clock(2, killed.clock(), 1);
            let db: SimDb = Db::open_on(killed.clone(), runtime, base()).expect("opened");
            let opened = db.opened();
            let is_newest = opened.fell_back.is_none();
            let is_right = !opened.notes.iter().any(|note| note.file == "image");
            assert!(is_newest && is_right, "{steps}: {opened:?}");
            // Long values that come now are written over none of these.
            write(&db, 30..60, 3);
            db.drain(0).expect("flushed");
            let session = db.session(SessionOptions::new()).expect("a session");
            for at in 0..60 {
                let byte = [2, 1, 3][usize::from(at > 10) + usize::from(at >= 30)];
                let read = session.read(&id(at)).expect("read");
                assert!(read == Some(value(byte)), "{steps}, {makes_image}: key {at}");
            }
            drop(session);
            db.close().expect("closed");
            is_whole(&killed);
        }
    }
    assert!(between > 3, "{between} times pages were written and not yet published");
}

/// Somebody waits for the flush: several rounds are written at once, and published one after the other, with commits in
/// between. A power cut at any time leaves a committed state, and pages that agree with it.
#[test]
fn rounds_beside_each_other_leave_what_was_committed() {
    let base = || Options::new("sim").cache_mib(16).threads(2).tune(|tuning| tuning.flush_at = 200);
    let open = |disk: &SimDisk, options: Options| {
        let runtime = SimRuntime::with_clock(1, disk.clock(), 2);
        (Db::open_on(disk.clone(), runtime.clone(), options).expect("opened"), runtime)
    };
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let (db, runtime) = open(&disk, base().create(true).small());
    put(&db, 0..40_000, 1);
    db.drain(0).expect("flushed");
    disk.record();
    let mut roots = vec![db.root()];
    let mut change = |ids: std::ops::Range<u64>, byte| {
        put(&db, ids, byte);
        roots.push(db.root());
    };
    change(0..8000, 2);
    let pages = db.metrics().pages_written;
    let (prefixes, limit) = (fullest_pages(&db.state(), 1000), db.state().budget.round_pages());
    let mut prefixes: Vec<_> = prefixes.into_iter().map(|(_, prefix)| prefix).collect();
    prefixes.sort_unstable();
    let pieces = split(&db.state(), &prefixes, 2);
    assert_eq!(pieces.concat(), prefixes);
    assert!(pieces.len() == 2 && limit >= 2 * LEAST_PAGES, "{limit} pages a round");
    let region = |at: &Prefix| db.state().tree.with_region(at.first_key(), |own, _| *own.prefix());
    assert_ne!(region(&pieces[0][pieces[0].len() - 1]), region(&pieces[1][0]));
    let state = db.state();
    let drain = state.pace.begin_drain();
    for step in 0..200 {
        runtime.step_some(1);
        runtime.clock().advance(Duration::from_millis(1));
        change(step..step + 1, 3);
    }
    drop(drain);
    drop(state);
    assert!(db.metrics().pages_written - pages > prefixes.len() as u64);
    let trace = disk.trace();
    let points: Vec<_> = trace.crash_points().collect();
    for point in points.iter().step_by(points.len() / 40) {
        let cut = point.outcome(CrashMode::Dropped).disk();
        let (after, _) = open(&cut, base());
        assert!(roots.contains(&after.root()), "a committed state");
        after.close().expect("closed");
        is_whole(&cut);
    }
    db.close().expect("closed");
    let (db, _) = open(&disk, base());
    let pairs = db.snapshot().expect("a session").iter(..).map(|pair| pair.expect("read"));
    let changed = pairs.filter(|(_, value)| value[0] > 1).count();
    assert_eq!(changed, 8000);
    db.close().expect("closed");
    is_whole(&disk);
}

/// Rules `values-before-record` and `pages-before-location`: what a record in the log names is on the device.
#[test]
fn what_a_record_names_survives_a_power_cut() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let open = |disk: &SimDisk| {
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = Options::new("sim").create(true).cache_mib(8).threads(1);
        Db::open_on(disk.clone(), runtime, options.small()).expect("opened")
    };
    let db: SimDb = open(&disk);
    disk.record();
    let values = [40, 5000, 100_000].map(|len| Value::from(vec![7; len]));
    let put: Vec<_> =
        (0..).zip(&values).map(|(at, value)| Access::write(id(at), Some(value.clone()))).collect();
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(put).expect("finished").commit().expect("committed");
    let survives = || {
        let point = disk.trace().crash_points().last().expect("a point");
        let cut = point.outcome(CrashMode::Dropped).disk();
        let session = open(&cut).session(SessionOptions::new()).expect("a session");
        for (at, value) in (0..).zip(&values) {
            assert!(session.read(&id(at)).expect("read").as_ref() == Some(value), "key {at}");
        }
    };
    survives();
    db.drain(0).expect("flushed");
    // The next commit's sync is that of the location record.
    self::put(&db, 100..101, 1);
    survives();
}

/// Rule `free-after-durable`: a commit of two namespaces is flushed in two rounds, and nobody syncs the record of the first
/// one. A power cut takes it, and the pages that it replaces are as they were.
#[test]
fn pages_are_not_written_over_before_their_record_is_durable() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let open = |disk: &SimDisk| {
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = Options::new("sim").create(true).cache_mib(8).threads(1).small();
        (Db::open_on(disk.clone(), runtime.clone(), options).expect("opened"), runtime)
    };
    let (db, runtime): (SimDb, _) = open(&disk);
    db.add_namespace(1).expect("added");
    let rewrite = |byte| {
        let value = Value::from(vec![byte; 100]);
        let all = (0..2).flat_map(|namespace| (0..500).map(move |at| (namespace, at)));
        let put = all.map(|(namespace, at)| {
            Access::write(id(at), Some(value.clone())).in_namespace(namespace)
        });
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(put.collect::<Vec<_>>()).expect("finished").commit().expect("committed");
        db.drain(0).expect("flushed");
    };
    rewrite(1);
    settle(&runtime);
    disk.record();
    let before = db.metrics().pages_written;
    rewrite(2);
    assert!(db.metrics().pages_written > before + 30, "each page was written anew");
    for point in disk.trace().crash_points() {
        let cut = point.outcome(CrashMode::Dropped).disk();
        let (found, _) = open(&cut);
        found.close().expect("closed");
        is_whole(&cut);
    }
}

/// On a device that is nearly full a file with free pages does not grow: the reserve is for deletes and checkpoints.
#[test]
fn a_file_does_not_grow_into_the_reserve_while_it_has_free_pages() {
    for room in [None, Some(256 << 10)] {
        let (db, disk, _) = sim();
        let space = &db.state().space;
        let len = || disk.image().file("leaf").expect("it is there").len();
        let pages = space.allocate_leaves(64).expect("there is room");
        space.free_unnamed_leaves(pages[..32].iter().copied());
        let before = len();
        let quota = room.map(|room| Quota { bytes: disk.used() + room, code: code::ENOSPC });
        disk.set_quota(quota);
        space.allocate_leaves(32).expect("as many are free");
        assert_eq!(len() > before, room.is_none(), "{room:?}: {before}, {}", len());
    }
}

/// Rule `free-after-readers`: a reader that has looked a page up may sleep before it reads it. Meanwhile the page is
/// replaced, its record is durable, and the flush writes many others.
#[test]
fn a_page_that_a_reader_has_looked_up_is_not_written_over() {
    let (db, ..) = sim();
    let rewrite = |byte| {
        put(&db, 0..200, byte);
        db.drain(0).expect("flushed");
    };
    rewrite(1);
    let state = db.state();
    let reader = state.store.grace.enter();
    let at = state.tree.page_of(&id(7)).expect("it is in a page");
    (2..20).for_each(rewrite);
    assert!(state.tree.page_of(&id(7)).expect("it is in a page").page != at.page);
    state.store.read_uncached(at).expect("the page is as it was");
    drop(reader);
    (20..40).for_each(rewrite);
    let read = state.store.read_uncached(at).map(|_| ());
    assert!(
        matches!(read, Err(pleach_beatree::Error::StalePage { .. })),
        "its number is used again: {read:?}"
    );
}

/// A write without room, though it was reserved, is no failure of the device.
#[test]
fn a_write_without_room_is_undone_and_poisons_nothing() {
    for file in ["leaf", "overflow", "image"] {
        let (db, disk, runtime) = sim();
        put(&db, 0..200, 1);
        db.drain(0).expect("flushed");
        let fault = Fault::Errno(code::ENOSPC);
        disk.inject(FaultRule::nth(Operation::Write, file, 1, FaultRepeats::Once, fault));
        put(&db, 0..200, 2);
        let long = vec![Access::write(id(0), Some(Value::from(vec![9; 100_000])))];
        let commit = |accesses: Vec<Access>| {
            let session = db.session(SessionOptions::new()).expect("a session");
            session.finish(accesses).expect("finished").commit()
        };
        let (drained, committed) = (db.drain(0), commit(long.clone()));
        match file {
            // Undone, and tried again with fewer pages.
            "leaf" => assert!(drained.is_ok(), "{drained:?}"),
            "overflow" => {
                assert!(matches!(&committed, Err(it) if it.error().is_full()), "{committed:?}");
            }
            _ => assert!(drained.is_ok() && committed.is_ok()),
        }
        // The error holds the block.
        drop(committed);
        runtime.clock().advance(Duration::from_secs(1));
        db.drain(0).unwrap_or_else(|error| panic!("{file}: {error}"));
        commit(long).unwrap_or_else(|error| panic!("{file}: {error}"));
        let closed = db.close();
        assert!(closed.is_ok() || (file == "image" && matches!(closed, Err(Error::Full(_)))));
        if closed.is_err() {
            db.close().expect("there is room the second time");
        }
        is_whole(&disk);
    }
}

/// A periodic log is synced in its period, even when the flush finds no room.
#[test]
fn a_full_flush_keeps_the_period_of_the_log() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let period = Duration::from_millis(20);
    let options = Options::new("sim")
        .create(true)
        .cache_mib(8)
        .threads(1)
        .tune(|tuning| tuning.flush_at = 1)
        .durability(Durability::Periodic(period))
        .small();
    let db: SimDb = Db::open_on(disk.clone(), runtime.clone(), options).expect("created");
    disk.inject(FaultRule::nth(
        Operation::Write,
        "leaf",
        1,
        FaultRepeats::Forever,
        Fault::Errno(code::ENOSPC),
    ));
    for round in 0..20 {
        put(&db, round..round + 1, 1);
        let end = db.state().commits.sequencer.lock().log_end();
        // Until the flush has found no room, and then for a period and the time of its steps.
        runtime.step_some(50);
        runtime.clock().advance(period + Duration::from_millis(5));
        runtime.step_some(50);
        let (durable, after) =
            (db.state().commits.sequencer.durable(), db.state().commits.sequencer.lock().log_end());
        assert!(durable + 4096 > end.min(after), "round {round}: {durable} of {end}");
    }
    assert!(db.state().pace.is_flush_full.get(), "there was no room");
    disk.heal();
    db.drain(0).expect("with room");
    db.close().expect("closed");
}

/// A database of several regions with few keys, none of which has been joined, since an image counts as in the making.
fn to_be_joined() -> (SimDb, SimDisk, SimRuntime, ImageGuard) {
    let disk = SimDisk::new(2, SimOptions { record: false, ..SimOptions::default() });
    let runtime = SimRuntime::with_clock(2, disk.clock(), 1);
    let options = Options::new("sim").create(true).cache_mib(64).threads(1).small();
    let options = options.log_limit_bytes(16 << 20);
    let db: SimDb = Db::open_on(disk.clone(), runtime.clone(), options).expect("created");
    put(&db, 0..9000, 1);
    db.drain(0).expect("flushed");
    let making = db.state().images.try_begin_image().expect("no other is in the making");
    let gone: Vec<_> = (20..9000).map(|at| Access::write(id(at), None)).collect();
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(gone).expect("finished").commit().expect("committed");
    db.drain(0).expect("flushed");
    settle(&runtime);
    (db, disk, runtime, making)
}

/// Runs all background work, waits included.
fn settle(runtime: &SimRuntime) {
    for _ in 0..40 {
        runtime.step_some(2000);
        runtime.clock().advance(Duration::from_millis(150));
    }
}

fn regions(db: &SimDb) -> (u64, u64) {
    let metrics = db.metrics();
    (metrics.regions, metrics.regions_joined)
}

/// Rule `join-outside-image`: an image during a join had a region twice, or not at all.
#[test]
fn no_regions_are_joined_while_an_image_is_in_the_making() {
    let (db, disk, runtime, making) = to_be_joined();
    let (before, joined) = regions(&db);
    assert!(before > 3 && joined == 0, "{before} regions, {joined} joined");
    drop(making);
    settle(&runtime);
    assert_eq!(regions(&db), (1, before - 1));
    db.close().expect("closed");
    is_whole(&disk);
}

/// Rule `join-without-batch`.
#[test]
fn no_regions_are_joined_while_a_batch_is_under_way() {
    let (db, _disk, runtime, making) = to_be_joined();
    let before = regions(&db);
    let state = db.state();
    let batch = state.tries.hold_regions();
    drop(making);
    settle(&runtime);
    assert_eq!(regions(&db), before);
    drop(batch);
    settle(&runtime);
    assert_eq!(regions(&db).0, 1);
}

/// A block has a result for each region that it was folded over. When those are joined before it is committed, each
/// result would set the node of the whole from a part.
#[test]
fn a_block_that_was_folded_before_a_join_commits_after_it() {
    let (db, disk, runtime, making) = to_be_joined();
    let accesses = || {
        let put = |at| Access::write(id(at), Some(Value::from(vec![3; 300])));
        (0..1500).map(put).chain([Access::write(id(5000), Some(Value::from(vec![4; 100_000])))])
    };
    let session = db.session(SessionOptions::new()).expect("a session");
    let block = session.finish(accesses().collect::<Vec<_>>()).expect("finished");
    drop(making);
    settle(&runtime);
    assert_eq!(regions(&db).0, 1);
    let root = block.root();
    block.commit().expect("committed");
    assert_eq!(db.metrics().refolds, 1, "all of it was folded again, once");
    let (twin, ..) = sim();
    put(&twin, 0..20, 1);
    let session = twin.session(SessionOptions::new()).expect("a session");
    session.finish(accesses().collect::<Vec<_>>()).expect("finished").commit().expect("committed");
    assert_eq!((db.root(), twin.root()), (root, root));
    put(&db, 0..3000, 5);
    put(&twin, 0..3000, 5);
    assert_eq!(db.root(), twin.root());
    drop(twin);
    // The same after a replay of the log.
    drop(db);
    is_whole(&disk);
}

/// A commit that makes pages due removes duplicates. A round that waited for as many as there were never ended.
#[test]
fn pages_that_are_due_twice_go_while_a_round_is_chosen() {
    let page = |index: u64| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&index.reverse_bits().to_be_bytes());
        Prefix::new(&key, 64)
    };
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options = Options::new("sim").create(true).geometry(Geometry::least());
    let db = Db::open_on(disk, runtime, options).expect("created");
    let index = &db.state().tree;
    for _ in 0..4 {
        index.make_due((0..1000).map(page));
    }
    let others: Vec<Prefix> = (1000..1100).map(page).collect();
    let mut calls = 0;
    let take = |count: usize| {
        calls += 1;
        assert!(calls < 100, "it does not end");
        if calls == 1 {
            index.make_due(others.iter().copied());
        }
        index.take_due(count)
    };
    let kept = super::due::take_filtered(index.due_count(), 1024, take, |taken, kept| {
        kept.extend(taken.iter().filter(|prefix| others.contains(prefix)));
    });
    assert_eq!((kept, index.has_due()), (others.clone(), false));
}
