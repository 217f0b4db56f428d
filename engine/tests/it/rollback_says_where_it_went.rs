//! Who counts commits back over rollbacks has to know where these went: their numbers do not tell, and equal roots do not, either,
//! since commits may be empty or come back to a state.

use pleach::{Access, Db, Error, Options, SessionOptions, Value};

use crate::common::commit;

fn put(value: u8) -> Vec<Access> {
    vec![Access::write([1; 32], Some(Value::from(&[value])))]
}

fn targets(db: &Db) -> Vec<Option<u64>> {
    let history = db.history();
    (history.start() + 1..=*history.end())
        .map(|commit| db.rolled_back_to(commit).expect("in the history"))
        .collect()
}

#[test]
fn across_restarts_and_until_the_history_forgets_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = || Options::new(folder.path()).create(true).small().threads(2);
    let db = Db::open(options().history(10)).expect("opened");
    assert_eq!(db.rolled_back_to(0).expect("the creation"), None);
    commit(&db, put(1));
    commit(&db, Vec::new());
    commit(&db, put(3));
    assert_eq!(db.rollback(2).expect("rolled back"), 4);
    commit(&db, put(1));
    assert_eq!(db.rollback_to(0).expect("rolled back"), 6);
    let expected = [None, None, None, Some(1), None, Some(0)];
    assert_eq!(targets(&db), expected);
    assert!(matches!(db.rolled_back_to(7), Err(Error::NoSuchCommit { commit: 7, tip: 6 })));
    drop(db);
    // Killed: the log is replayed. Closed: the records are read when somebody asks.
    for close in [false, true, false] {
        if close {
            db_of(&options).close().expect("closed");
        }
        drop(db_of(&options));
        let reader = options().create(false).read_only(true);
        assert_eq!(targets(&Db::open(reader).expect("opened")), expected);
    }
    let db = db_of(&options);
    for value in 0..8 {
        commit(&db, put(value));
    }
    assert_eq!(db.history(), 4..=14);
    let forgotten = db.rolled_back_to(4).expect_err("its record is gone");
    assert!(matches!(forgotten, Error::SnapshotTooOld { commit: 3, oldest: 4 }), "{forgotten}");
    assert_eq!(targets(&db)[..2], [None, Some(0)]);
}

/// The database, as it was killed or closed, opened again.
fn db_of(options: &dyn Fn() -> Options) -> Db {
    Db::open(options()).expect("opened")
}

/// The blob is part of a state, also of one with the same pairs.
#[test]
fn and_brings_the_blob_of_then_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || {
        let options = Options::new(folder.path()).create(true).small().threads(2);
        Db::open(options.history(10)).expect("opened")
    };
    let db = open();
    for blob in [&b"one"[..], b"two", b"three"] {
        let session = db.session(SessionOptions::new()).expect("a session");
        let mut block = session.finish(put(1)).expect("finished");
        block.set_blob(blob.to_vec()).expect("a blob");
        block.commit().expect("committed");
    }
    for blob in [&b"two"[..], b"three", b"one", b""] {
        let then = (1..=3).find(|commit| db.commit_at(*commit).expect("kept").blob[..] == *blob);
        db.rollback_to(then.unwrap_or(0)).expect("rolled back");
        assert_eq!(db.blob(), blob);
    }
    db.rollback_to(2).expect("rolled back");
    drop(db);
    assert_eq!(open().blob(), b"two");
}

#[test]
fn without_a_history_nobody_knows() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(Options::new(folder.path()).create(true).small()).expect("opened");
    commit(&db, put(1));
    assert!(matches!(db.rolled_back_to(1), Err(Error::SnapshotTooOld { commit: 0, .. })));
}
