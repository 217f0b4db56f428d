//! Reclaiming a dropped namespace while others work.

use std::time::Duration;

use pleach_core::{Hasher, Key};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use crate::load::LoadOptions;
use crate::{Access, Db, Options, SessionOptions, Value};
use pleach_ops::{CheckOptions, check_on};

type SimDb = Db;

fn id(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn put(db: &SimDb, namespace: u8, ids: std::ops::Range<u64>, len: usize) {
    let put = |at| Access::write(id(at), Some(Value::from(vec![7; len]))).in_namespace(namespace);
    let session = db.session(SessionOptions::new()).expect("a session");
    session
        .finish(ids.map(put).collect::<Vec<_>>())
        .expect("finished")
        .commit()
        .expect("committed");
}

fn open(disk: &SimDisk) -> (SimDb, SimRuntime) {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options = Options::new("sim").create(true).cache_mib(8).threads(1).small();
    (Db::open_on(disk.clone(), runtime.clone(), options).expect("opened"), runtime)
}

/// A database with a namespace of some pages, which name runs of the overflow file; none of them is cached.
fn with_long_values() -> (SimDb, SimDisk, SimRuntime) {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let (db, _runtime) = open(&disk);
    db.add_namespace(7).expect("added");
    put(&db, 7, 0..200, 3000);
    put(&db, 0, 0..10, 50);
    db.drain(0).expect("flushed");
    db.close().expect("closed");
    drop(db);
    let (db, runtime) = open(&disk);
    (db, disk, runtime)
}

fn settle(runtime: &SimRuntime) {
    for _ in 0..40 {
        runtime.step_some(2000);
        runtime.clock().advance(Duration::from_millis(150));
    }
}

fn is_whole(disk: &SimDisk) {
    let report = check_on(disk, CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.overflow_pages, 0);
}

/// The flush is awaited while commits are in flight: otherwise children that overtake their parents' publication would
/// keep it waiting for ever. Afterwards nobody is awaited any more.
#[test]
fn giving_up_awaits_the_commits_in_flight() {
    let (db, disk, runtime) = with_long_values();
    let state = db.state();
    db.drop_namespace(7).expect("dropped");
    state.commits.sequencer.lock().in_flight += 1;
    let page = || {
        let trie = state.other_trie(7).expect("it was given up beside a commit");
        state.store.peek(trie.tree.page_of(&id(3)).expect("flushed"))
    };
    settle(&runtime);
    assert!(page().is_none(), "a page was read for nothing");
    assert!(state.commits.sequencer.lock().is_awaited());
    state.commits.sequencer.lock().in_flight -= 1;
    settle(&runtime);
    assert!(state.tries.get(7).is_none(), "nothing holds it");
    assert!(!state.commits.sequencer.lock().is_awaited());
    drop(state);
    db.close().expect("closed");
    is_whole(&disk);
}

/// A dropped namespace that has to wait holds up no commit and no round of another namespace.
#[test]
fn what_cannot_be_given_up_yet_holds_nobody() {
    let (db, disk, runtime) = with_long_values();
    let making = db.state().images.try_begin_image();
    db.drop_namespace(7).expect("dropped");
    settle(&runtime);
    assert!(db.state().tries.get(7).is_some(), "it left while an image was in the making");
    assert_eq!(db.state().space.overflow_stats().live, 0, "its parts were given up");
    let written = db.metrics().pages_written;
    for _ in 0..4 {
        put(&db, 0, 0..10, 60);
        settle(&runtime);
    }
    db.drain(0).expect("flushed");
    assert!(db.metrics().pages_written > written);
    drop(making);
    settle(&runtime);
    assert!(db.state().tries.get(7).is_none(), "nothing holds it");
    db.close().expect("closed");
    is_whole(&disk);
}

/// The node of a region that was given up stayed that of its pairs: a writer that opened such an image after a clean
/// close took it for damaged, made no checkpoint, and failed to close.
#[test]
fn an_image_of_regions_that_were_given_up_is_read() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let (db, runtime) = open(&disk);
    db.add_namespace(7).expect("added");
    put(&db, 7, 0..20_000, 100);
    db.drain(0).expect("flushed");
    let making = db.state().images.try_begin_image().expect("none is in the making");
    db.drop_namespace(7).expect("dropped");
    settle(&runtime);
    let tree = db.state().tries.get(7).expect("an image is in the making").tree.load();
    assert!(tree.is_bare() && tree.regions().len() > 1, "{} regions", tree.regions().len());
    drop((making, tree));
    db.close().expect("closed");
    drop(db);
    let (db, _runtime) = open(&disk);
    assert!(db.opened().closed && db.state().tries.get(7).is_some());
    db.state().load_regions().expect("they are read");
    db.close().expect("closed");
    is_whole(&disk);
}

/// The flush waits for a page that another task has claimed, for announced keys, and no longer than a device takes.
#[test]
fn a_page_that_another_task_reads_is_given_up() {
    let (db, disk, runtime) = with_long_values();
    let state = db.state();
    let page = state.other_trie(7).expect("it exists").tree.page_of(&id(3)).expect("flushed").page;
    let claim = state.store.in_flight.claim(page).expect("nobody reads it");
    db.drop_namespace(7).expect("dropped");
    settle(&runtime);
    assert!(state.tries.get(7).is_none(), "the page was given up with all others");
    assert_eq!(state.space.overflow_stats().live, 0, "and the runs that it names");
    drop((claim, state));
    db.close().expect("closed");
    is_whole(&disk);
}

/// A block outlives its state and the dropped trie. When the same state is the newest again, with another trie of that
/// number, the block is committed into that trie.
#[test]
fn a_block_that_outlives_a_dropped_trie_goes_into_its_successor() {
    for filled in [false, true] {
        let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = Options::new("sim").create(true).cache_mib(8).threads(1).undo_memory_bytes(1);
        let db = SimDb::open_on(disk.clone(), runtime.clone(), options.small()).expect("opened");
        put(&db, 0, 0..3, 50);
        let fill = || {
            db.add_namespace(7).expect("its number is free");
            if filled {
                put(&db, 7, 0..3, 50);
                db.drain(0).expect("flushed");
            }
        };
        fill();
        let write = Access::write(id(1), Some(Value::from(&[9; 9]))).in_namespace(7);
        let session = db.session(SessionOptions::new()).expect("a session");
        let block = session.finish(vec![write]).expect("finished");
        db.drop_namespace(7).expect("dropped");
        // More undo than the limit allows.
        for _ in 0..4 {
            put(&db, 0, 0..3, 50);
        }
        assert!(!db.pins()[0].readable);
        settle(&runtime);
        fill();
        assert_eq!(db.roots(), *block.prev_roots(), "the same state again");
        let roots = block.roots().clone();
        block.commit().expect("committed");
        assert_eq!(db.roots(), roots);
        let session = db.snapshot().expect("a snapshot");
        let read = session.namespace(7).expect("it exists").read(&id(1)).expect("read");
        assert_eq!(read, Some(Value::from(&[9; 9])), "filled: {filled}");
        drop(session);
        db.close().expect("closed");
        is_whole(&disk);
    }
}

/// Pages that were there before were counted before.
#[test]
fn a_load_counts_its_own_pages() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let (db, _runtime) = open(&disk);
    db.add_namespace(7).expect("added");
    put(&db, 0, 0..900, 100);
    db.drain(0).expect("flushed");
    let before = db.metrics().leaf_pages;
    let pairs = (0..500).map(|at| (id(at), Value::from(vec![1; 100])));
    let options = LoadOptions::new().memory_mib(1).namespace(7);
    let loaded = db.bulk_load(pairs, &options).expect("loaded").pages;
    assert!(before > 0 && loaded > 0);
    assert_eq!(db.metrics().leaf_pages, before + loaded);
}

/// What a load has published is in no image and no record until its checkpoint, so no page of any trie moves.
#[test]
fn no_pages_are_moved_beside_a_load() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let (db, runtime) = open(&disk);
    put(&db, 0, 0..9000, 100);
    db.drain(0).expect("flushed");
    // So few keys are left that the file is far too long, and pages have to move to its front.
    let gone: Vec<_> = (20..9000).map(|at| Access::write(id(at), None)).collect();
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(gone).expect("finished").commit().expect("committed");
    db.drain(0).expect("flushed");
    let state = db.state();
    state.commits.sequencer.lock().loading = true;
    let written = db.metrics().pages_written;
    settle(&runtime);
    assert_eq!(db.metrics().pages_written, written, "pages were moved beside a load");
    state.commits.sequencer.lock().loading = false;
    state.pace.wake();
    settle(&runtime);
    assert!(db.metrics().pages_written > written, "there was something to be moved");
    drop(state);
    db.close().expect("closed");
    is_whole(&disk);
}
