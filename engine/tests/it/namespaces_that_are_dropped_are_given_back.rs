//! A dropped namespace gives its number and its pages back once nobody can read it, and not before.

use pleach::{Access, AccessKind, Error, SessionOptions, Value};
use pleach_io::Operation;
use pleach_io::sim::{Fault, FaultRepeats, FaultRule, SimDisk, code};

use crate::crash::{Setup, unrecorded};

/// What holds a dropped namespace back is named by an error; once nothing does, its number and its pages are
/// free again.
#[test]
fn a_dropped_namespace_gives_its_number_and_its_pages_back() {
    let mut setup = Setup::draw(5);
    (setup.ids, setup.history, setup.flush_at) = (100, 2, 1);
    let disk = SimDisk::new(5, unrecorded());
    let (db, runtime) = setup.open(&disk, 5).expect("created");
    let put = |namespace: u8, id: u64| {
        let value = Value::from([7; 900].as_slice());
        Access::write(crate::common::uniform(id), Some(value)).in_namespace(namespace)
    };
    let commit = |accesses: Vec<Access>| crate::common::commit(&db, accesses);
    db.add_namespace(9).expect("added");
    for id in 0..400 {
        commit(vec![put(9, id), put(0, id % 10)]);
    }
    db.drain(0).expect("drained");
    let full = db.metrics().leaf_pages;
    assert!(full > 60, "{full} pages");
    let old = db.snapshot().expect("a snapshot");
    db.drop_namespace(9).expect("dropped");
    for id in 0..10 {
        commit(vec![put(0, id)]);
        runtime.step_some(100);
    }
    let in_use = db.add_namespace(9);
    assert!(matches!(in_use, Err(Error::NamespaceInUse { .. })), "{in_use:?}");
    let values = old.namespace(9).expect("as of then").iter(..).count();
    assert_eq!(values, 400, "its session's state never changes");
    drop(old);
    let mut added = Err(Error::Closed);
    for id in 0..60 {
        commit(vec![put(0, id % 10)]);
        runtime.step_some(200);
        added = db.add_namespace(9);
        if added.is_ok() {
            break;
        }
    }
    added.expect("nobody holds it any more");
    assert!(db.metrics().leaf_pages < full / 4, "{} of {full} pages", db.metrics().leaf_pages);
    let session = db.snapshot().expect("a snapshot");
    assert_eq!(session.namespace(9).expect("it exists").iter(..).count(), 0);
    drop(session);
    // The pages are used again: as much once more takes hardly more room.
    let before = db.metrics().leaf_pages;
    for id in 0..400 {
        commit(vec![put(9, id)]);
    }
    db.drain(0).expect("drained");
    assert!(db.metrics().leaf_pages > before);
    db.close().expect("closed");
    let options = pleach_ops::CheckOptions::default();
    let report = pleach_ops::check_on(&disk, options).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// A read in a batch proves a key of its namespace, and the same key in two of them is no repetition.
#[test]
fn the_same_key_in_two_namespaces_is_two_keys() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = crate::common::open(folder.path(), 16);
    db.add_namespace(1).expect("added");
    let put = |namespace, byte: u8| {
        Access::write([5; 32], Some(Value::from([byte].as_slice()))).in_namespace(namespace)
    };
    let session = db.session(SessionOptions::new()).expect("a session");
    let block = session.finish(vec![put(1, 11), put(0, 10)]).expect("two keys");
    block.commit().expect("committed");
    let session = db.snapshot().expect("a snapshot");
    assert_eq!(session.read(&[5; 32]).expect("read").as_deref(), Some([10].as_slice()));
    let other = session.namespace(1).expect("it exists");
    assert_eq!(other.read(&[5; 32]).expect("read").as_deref(), Some([11].as_slice()));
    let session = db.session(SessionOptions::new()).expect("a session");
    let twice = session.finish(vec![put(1, 1), put(0, 1), put(1, 2)]).expect_err("twice");
    assert!(matches!(twice.into_error(), Error::RepeatedKey(key) if key == [5; 32]));
    let kind = AccessKind::Read;
    let missing = Access { namespace: 77, key: [5; 32], kind };
    let session = db.session(SessionOptions::new()).expect("a session");
    let refused = session.finish(vec![missing]).expect_err("no such namespace");
    assert!(matches!(refused.into_error(), Error::Namespace(77)));
}

/// A session may be the last that holds a dropped namespace, and nothing follows that would wake the flush.
#[test]
fn a_dropped_namespace_goes_from_an_idle_database() {
    for held in [false, true] {
        let setup = Setup::draw(8);
        let disk = SimDisk::new(8, unrecorded());
        let (db, runtime) = setup.open(&disk, 8).expect("created");
        db.add_namespace(9).expect("added");
        let put = |id| Access::write(setup.key(id), Some(Value::from([3; 50].as_slice())));
        crate::common::commit(&db, (0..3).map(|id| put(id).in_namespace(9)).collect());
        db.drain(0).expect("drained");
        let old = held.then(|| db.snapshot().expect("a snapshot"));
        db.drop_namespace(9).expect("dropped");
        let settle = || {
            runtime.step_some(1000);
            runtime.clock().advance(std::time::Duration::from_secs(1));
            runtime.step_some(1000);
        };
        settle();
        drop(old);
        settle();
        settle();
        assert_eq!(db.metrics().leaf_pages, 0, "its pages are given up");
        db.add_namespace(9).expect("its number is free");
    }
}

/// What cannot be read of a dropped namespace keeps it: it went with its pages, and its number was free, so that a
/// crash left a log that could not be replayed.
#[test]
fn a_dropped_namespace_that_cannot_be_read_waits() {
    let mut setup = Setup::draw(9);
    (setup.durability, setup.history, setup.cache_kib) = (pleach::Durability::Commit, 0, 4096);
    let disk = SimDisk::new(9, unrecorded());
    let (db, _) = setup.open(&disk, 9).expect("created");
    db.add_namespace(9).expect("added");
    let put = |id: u64, len: usize| {
        let value = Value::from(vec![u8::try_from(id).expect("few"); len]);
        Access::write(setup.key(id), Some(value))
    };
    // Long values, whose runs only the pages name.
    crate::common::commit(&db, (0..3).map(|id| put(id, 3000).in_namespace(9)).collect());
    crate::common::commit(&db, vec![put(0, 3000)]);
    db.drain(0).expect("drained");
    db.close().expect("closed");
    let (db, runtime) = setup.open(&disk, 10).expect("opened, and nothing is cached");
    disk.inject(FaultRule::nth(
        Operation::Read,
        "leaf",
        1,
        FaultRepeats::Forever,
        Fault::Errno(code::EIO),
    ));
    db.drop_namespace(9).expect("dropped");
    for _ in 0..20 {
        runtime.step_some(300);
        runtime.clock().advance(std::time::Duration::from_secs(1));
    }
    let in_use = db.add_namespace(9);
    assert!(matches!(in_use, Err(Error::NamespaceInUse { .. })), "{in_use:?}");
    disk.heal();
    let mut added = Err(Error::Closed);
    for _ in 0..200 {
        runtime.step_some(300);
        runtime.clock().advance(std::time::Duration::from_secs(1));
        added = db.add_namespace(9);
        if added.is_ok() {
            break;
        }
    }
    added.expect("it could be read, and went");
    crate::common::commit(&db, vec![put(1, 9).in_namespace(9)]);
    drop(db);
    let (db, _) = setup.open(&disk, 11).expect("opened after a kill");
    let session = db.snapshot().expect("a snapshot");
    assert_eq!(session.namespace(9).expect("it exists").iter(..).count(), 1);
}

/// A dropped namespace that nobody can read any more is reclaimed by the background, and an add waits for that. It was
/// `NamespaceInUse`, with nothing to close.
#[test]
fn a_namespace_is_added_again_right_after_its_drop() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = pleach::Options::new(folder.path()).create(true).cache_mib(16).threads(2).small();
    let db = pleach::Db::open(options).expect("created");
    for round in 0..10 {
        if round % 2 == 0 { db.add_namespace(5) } else { db.add_plain_namespace(5) }
            .expect("added");
        let value = Value::from([7; 900].as_slice());
        let put =
            |id| Access::write(crate::common::uniform(id), Some(value.clone())).in_namespace(5);
        crate::common::commit(&db, (0..50).map(put).collect());
        db.drop_namespace(5).expect("dropped");
    }
    let held = db.snapshot().expect("a snapshot");
    db.add_namespace(5).expect("the snapshot is of a state after the drop");
    drop(held);
    let held = db.snapshot().expect("a snapshot");
    db.drop_namespace(5).expect("dropped");
    assert!(matches!(db.add_namespace(5), Err(Error::NamespaceInUse { .. })), "it is read");
    drop(held);
    db.add_namespace(5).expect("added");
}
