//! Close said Ok while sessions, blocks or overlays kept the folder locked; the next open said that
//! the database was in use by a process, which was its own, and later commits that a write had
//! failed. Now each says what is the case: close by what it gives, and not by an error, since it took place.

use std::path::Path;

use pleach::errors::{IoError, LockHolder};
use pleach::status::OpenHandles;
use pleach::{Access, Db, Error, Geometry, Options, Overlay, SessionOptions, Value};

fn put(key: u8, value: u8) -> Access {
    Access::write([key; 32], Some(Value::from(&[value])))
}

fn options(folder: &Path) -> Options {
    let geometry = Geometry { segment_pages: 64, log_segment: 1 << 20, ..Geometry::default() };
    Options::new(folder).create(true).threads(2).cache_mib(8).geometry(geometry)
}

fn open(folder: &Path) -> Db {
    Db::open(options(folder)).expect("opened")
}

fn overlay(db: &Db, over: Option<&Overlay>, accesses: Vec<Access>) -> Overlay {
    let options = over.map_or_else(SessionOptions::new, |over| SessionOptions::new().over(over));
    db.session(options).expect("a session").finish(accesses).expect("finished").into_overlay()
}

#[test]
fn close_counts_what_lives_and_each_kind_says_closed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    assert!(db.open_handles().is_empty());
    let first = db.session(SessionOptions::new()).expect("a session");
    first.finish(vec![put(1, 1)]).expect("finished").commit().expect("committed");
    assert!(db.open_handles().is_empty(), "a committed block is gone");
    assert!(!db.is_poisoned());

    let readers = [(); 2].map(|()| db.session(SessionOptions::new()).expect("a session"));
    let block = db.session(SessionOptions::new()).expect("a session");
    let block = block.finish(vec![put(2, 2)]).expect("finished");
    // The child holds its parent; clones are the same overlay.
    let child = overlay(&db, Some(&overlay(&db, None, vec![put(3, 3)])), vec![put(4, 4)]);
    let clone = child.clone();
    let expected = db.open_handles();
    assert_eq!((expected.sessions, expected.blocks, expected.overlays), (2, 1, 2));

    let open_at_close = db.close().expect("closed");
    assert_eq!(open_at_close, expected);
    let told = open_at_close.to_string();
    assert!(told.contains("2 sessions, 1 block and 2 overlays"), "{told}");

    // The folder is locked, by us, and that is what is said.
    let locked = Db::open(options(folder.path())).expect_err("handles are alive");
    // It named no folder: a node has several.
    assert!(locked.to_string().contains(&folder.path().display().to_string()), "{locked}");
    assert!(matches!(locked, Error::Io(IoError::Locked { holder: LockHolder::ThisProcess, .. })));
    assert!(locked.to_string().contains("by this process"), "{locked}");
    assert!(locked.to_string().contains("overlay of an earlier open"), "{locked}");

    // Reads go on, a finish too; commits say what is the case.
    assert_eq!(readers[0].read(&[1; 32]).expect("reads"), Some(Value::from(&[1])));
    assert_eq!(readers[1].read_many(&[[9; 32]]).expect("reads"), [None]);
    let [reader, other] = readers;
    drop(other);
    let late = reader.finish(vec![put(1, 9)]).expect("finished");
    for error in [late, block].map(|block| block.commit().expect_err("closed").into_error()) {
        assert!(matches!(error, Error::Closed), "{error}");
        assert!(!error.is_poisoned() && !error.is_full());
        assert!(error.to_string().contains("was closed"), "{error}");
    }
    assert!(matches!(child.commit(), Err(Error::Closed)));
    drop(child);
    assert!(Db::open(options(folder.path())).is_err(), "its clone lives");
    drop(clone);

    let db = open(folder.path());
    assert_eq!(db.commit_number(), 1);
    assert_eq!(db.open_handles(), OpenHandles::default());
    assert!(db.close().expect("closed").is_empty());
}

/// What stood behind a commit and its clean end is there although close had something to report.
#[test]
fn close_writes_its_checkpoint_under_open_sessions() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(vec![put(1, 1)]).expect("finished").commit().expect("committed");
    let reader = db.session(SessionOptions::new()).expect("a session");
    assert_eq!(db.close().expect("closed").sessions, 1);
    drop(reader);
    let stat = pleach_ops::stat(folder.path()).expect("looked into");
    assert_eq!(stat.log_replay_bytes, 0, "the checkpoint has all of it");
}
