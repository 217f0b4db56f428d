//! A block is valid when its parent's root is the newest commit's, whatever the numbers: after an empty commit,
//! or a commit and its reversal, a sibling is committed. It was `StaleParent` once, by its number.

use pleach::{Access, Error, Geometry, Options, Pleach, SessionOptions, Value};

use crate::common::{commit, uniform};

fn open(folder: &std::path::Path) -> Pleach {
    let options = Options::new(folder)
        .create(true)
        .cache_mib(16)
        .threads(2)
        .flush_at(1)
        .geometry(Geometry::small());
    Pleach::open(options).expect("opened")
}

fn put(id: u64, value: &[u8]) -> Access {
    Access::write(uniform(id), Some(Value::from(value)))
}

fn finish(db: &Pleach, accesses: Vec<Access>) -> pleach::Block {
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(accesses).expect("finished")
}

#[test]
fn after_an_empty_commit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    commit(&db, vec![put(1, b"a")]);
    let (one, two) = (finish(&db, vec![put(1, b"b")]), finish(&db, vec![put(2, b"c")]));
    let overlay = finish(&db, vec![put(1, b"d")]).into_overlay();
    let mut empty = finish(&db, Vec::new());
    empty.set_blob(b"height 2".to_vec()).expect("a blob");
    assert_eq!(empty.commit().expect("committed"), 2);
    assert_eq!(one.commit().expect("its parent's state is the newest"), 3);
    assert_eq!(db.blob(), b"height 2", "the blob of the commit before");
    let stale = two.commit().expect_err("the state is another").into_error();
    assert!(matches!(stale, Error::StaleParent { base: 1, tip: 3 }), "{stale}");
    assert!(matches!(overlay.commit(), Err(Error::StaleParent { base: 1, tip: 3 })));
    commit(&db, vec![put(1, b"a")]);
    assert_eq!(overlay.commit().expect("the state is back"), 5);
    assert_eq!(overlay.commit_number(), Some(5));
    let root = db.root();
    drop((overlay, db));
    let db = open(folder.path());
    assert_eq!((db.root(), db.commit_number()), (root, 5));
}

/// A block's prior values are as of its own commit. Once that state came back under another number, the runs
/// of its long values are others; those that the block knew are free when nobody reads the old commit any
/// more, and a reader of the commit in between would have found another value there.
#[test]
fn after_a_reversal_old_readers_find_their_long_values() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let long = |byte: u8| vec![byte; 150_000];
    commit(&db, vec![put(1, &long(1)), put(2, b"x")]);
    db.drain(0).expect("drained");
    let block = finish(&db, vec![put(1, &long(9)), put(3, b"y")]);
    let child = {
        let parent = finish(&db, vec![put(1, &long(8))]).into_overlay();
        let session = db.session(SessionOptions::new().over(&parent)).expect("a session");
        session.finish(vec![put(3, b"z")]).expect("finished")
    };
    commit(&db, vec![put(1, &long(2))]);
    commit(&db, vec![put(1, &long(1))]);
    db.drain(0).expect("drained");
    let between = db.session(SessionOptions::new()).expect("a session");
    assert_eq!(block.commit().expect("the state is back"), 4);
    let refused = child.commit().expect_err("merged with its parent it stands on commit 1");
    assert!(matches!(refused.error(), Error::StaleParent { .. }));
    drop(refused);
    // Nobody reads commit 1 now. Runs that are free are written again.
    for byte in 20..30 {
        commit(&db, vec![put(u64::from(byte), &long(byte))]);
        db.drain(0).expect("drained");
    }
    assert_eq!(between.read(&uniform(1)).expect("reads").as_deref(), Some(&long(1)[..]));
    let now = db.session(SessionOptions::new()).expect("a session");
    assert_eq!(now.read(&uniform(1)).expect("reads").as_deref(), Some(&long(9)[..]));
}

/// A chain whose lowest overlay stands on a state that came back is committed merged, and one by one.
#[test]
fn chains_stand_on_a_state_that_came_back() {
    for merged in [false, true] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let db = open(folder.path());
        commit(&db, (0..500).map(|id| put(id, b"a")).collect());
        let one = finish(&db, (100..300).map(|id| put(id, b"b")).collect()).into_overlay();
        let session = db.session(SessionOptions::new().over(&one)).expect("a session");
        let two = session.finish((200..400).map(|id| put(id, b"c")).collect()).expect("finished");
        let two = two.into_overlay();
        commit(&db, (0..500).map(|id| put(id, b"q")).collect());
        db.drain(0).expect("drained");
        assert!(matches!(two.commit(), Err(Error::StaleParent { base: 1, tip: 2 })));
        commit(&db, (0..500).map(|id| put(id, b"a")).collect());
        if merged {
            assert_eq!(two.commit().expect("committed"), 4);
        } else {
            assert_eq!(one.commit().expect("committed"), 4);
            assert_eq!(two.commit().expect("committed"), 5);
        }
        assert_eq!(db.root(), two.root());
        drop((one, two, db));
        let db = open(folder.path());
        let session = db.session(SessionOptions::new()).expect("a session");
        for (id, value) in [(0, b"a"), (150, b"b"), (250, b"c"), (350, b"c"), (450, b"a")] {
            assert_eq!(session.read(&uniform(id)).expect("reads").as_deref(), Some(&value[..]));
        }
    }
}
