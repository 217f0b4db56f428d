//! Overlays: sessions over chains see what the chain says, roots and witnesses are the oracle's,
//! chains commit merged, what stands above stays valid, siblings become stale, and old bases are
//! read as of their commit.

use crate::common::{Keys, Model, commit, key, ops};
use pleach::{Access, Db, Error, Hasher, Options, SessionOptions, Value};

fn open(path: &std::path::Path) -> Db {
    let options = Options::new(path)
        .create(true)
        .cache_mib(16)
        .threads(2)
        .in_flight(16)
        .tune(|tuning| tuning.flush_at = 1)
        .small()
        .log_limit_bytes(256 << 10);
    Db::open(options).expect("opened")
}

fn put(id: u64, value: u64) -> Access {
    Access::read_write(key(Keys::Uniform, id), Some(Value::from(&value.to_be_bytes()[..])))
}

/// A commit of an overlay let its ancestors go, and with them what they had changed, also for sessions
/// that had been opened over it: such a session read the state without its ancestors' changes.
#[test]
fn a_session_over_a_chain_reads_all_of_it_when_the_chain_is_committed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    commit(&db, (0..3).map(|id| put(id, 1)).collect());
    let mut chain: Vec<pleach::Overlay> = Vec::new();
    for id in 0..3 {
        let over = chain
            .last()
            .map_or_else(SessionOptions::new, |overlay| SessionOptions::new().over(overlay));
        let session = db.session(over).expect("a session");
        chain.push(session.finish(vec![put(id, 2)]).expect("finished").into_overlay());
    }
    let newest = chain.pop().expect("three overlays");
    let session = db.session(SessionOptions::new().over(&newest)).expect("a session");
    drop(chain);
    newest.commit().expect("committed");
    commit(&db, (0..3).map(|id| put(id, 3)).collect());
    for id in 0..3 {
        let value = session.read(&key(Keys::Uniform, id)).expect("read");
        assert_eq!(value, Some(Value::from(&2u64.to_be_bytes())), "key {id}");
    }
}

#[test]
fn an_overlay_older_than_ten_flushes_is_read_as_of_its_base() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let first: Vec<Access> = (0..2000).map(|id| put(id, 1)).collect();
    commit(&db, first);
    let old = db.session(SessionOptions::new()).unwrap();
    let overlay = db
        .session(SessionOptions::new())
        .unwrap()
        .finish(vec![put(7, 100)])
        .unwrap()
        .into_overlay();
    let root_then = db.root();
    for round in 0..14 {
        let accesses = (0..1500).map(|id| put(id * 3 + round, 2 + round)).collect();
        commit(&db, accesses);
        db.drain(0).unwrap();
    }
    assert!(db.metrics().pages_written > 0, "flushes took place");
    let over = db.session(SessionOptions::new().over(&overlay)).unwrap();
    for id in 0..2000 {
        let value = |value: u64| Some(Value::from(&value.to_be_bytes()[..]));
        assert_eq!(old.read(&key(Keys::Uniform, id)).unwrap(), value(1));
        assert_eq!(
            over.read(&key(Keys::Uniform, id)).unwrap(),
            value(if id == 7 { 100 } else { 1 })
        );
    }
    // Roots over the old state, too: pages have moved and split since.
    let mut model = Model::default();
    model.apply(&(0..2000).map(|id| put(id, 1)).collect::<Vec<_>>());
    assert_eq!(model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3), root_then);
    model.apply(&[put(7, 100)]);
    let before = model.naive(Hasher::BLAKE3);
    let accesses: Vec<Access> = (1990..2010).map(|id| put(id, 9)).collect();
    let mut block = over.finish(accesses.clone()).unwrap();
    let expected = before
        .witness(Hasher::BLAKE3, &ops(Hasher::BLAKE3, &accesses))
        .encode(Hasher::BLAKE3)
        .unwrap();
    assert_eq!(block.take_witness().as_deref(), Some(&expected[..]));
    model.apply(&accesses);
    assert_eq!(block.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    assert!(
        matches!(
            block.commit().map_err(pleach::CommitError::into_error),
            Err(Error::StaleParent { .. })
        ),
        "its base is not the newest commit"
    );
}

#[test]
fn siblings_become_stale() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let one =
        db.session(SessionOptions::new()).unwrap().finish(vec![put(1, 1)]).unwrap().into_overlay();
    let two =
        db.session(SessionOptions::new()).unwrap().finish(vec![put(2, 2)]).unwrap().into_overlay();
    let above = db
        .session(SessionOptions::new().over(&one))
        .unwrap()
        .finish(vec![put(3, 3)])
        .unwrap()
        .into_overlay();
    one.commit().unwrap();
    assert!(matches!(two.commit(), Err(Error::StaleParent { .. })));
    above.commit().unwrap();
    assert_eq!(db.commit_number(), 2);
    assert_eq!(above.commit_number(), Some(2));
    assert_eq!(above.commit().unwrap(), 2, "committing again changes nothing");
}

#[test]
fn a_split_between_finish_and_commit_is_refolded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let mut model = Model::default();
    db.pause_background();
    let first: Vec<Access> = (0..3000).map(|id| put(id, 1)).collect();
    model.apply(&first);
    commit(&db, first);
    // Folded while everything is one prefix; committed when flushes have cut it.
    let second: Vec<Access> = (2500..3500).map(|id| put(id, 2)).collect();
    let block = db.session(SessionOptions::new()).unwrap().finish(second.clone()).unwrap();
    db.resume_background();
    db.drain(0).unwrap();
    model.apply(&second);
    block.commit().unwrap();
    assert!(db.metrics().refolds > 0, "layouts had changed");
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    // Deleting nearly everything merges pages between finish and commit.
    let deletes: Vec<Access> =
        (0..3400).map(|id| Access::write(key(Keys::Uniform, id), None)).collect();
    model.apply(&deletes);
    commit(&db, deletes);
    let third: Vec<Access> = (3400..3450).map(|id| put(id, 3)).collect();
    let block = db.session(SessionOptions::new()).unwrap().finish(third.clone()).unwrap();
    db.drain(0).unwrap();
    model.apply(&third);
    block.commit().unwrap();
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    drop(db);
    assert_eq!(open(folder.path()).root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
}

/// A merged commit has the newest overlay's state. Its ancestors were once taken for that commit,
/// too: sessions over them read the wrong state, and what they committed could not be replayed.
#[test]
fn ancestors_of_a_merged_commit_keep_their_own_state() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let finish = |over: Option<&pleach::Overlay>, accesses| {
        let options =
            over.map_or_else(SessionOptions::new, |over| SessionOptions::new().over(over));
        db.session(options).unwrap().finish(accesses).unwrap()
    };
    let one = finish(None, vec![put(1, 1)]).into_overlay();
    let early = finish(Some(&one), vec![put(1, 3), put(2, 3)]);
    let two = finish(Some(&one), vec![put(1, 2), put(2, 2)]).into_overlay();
    two.commit().unwrap();
    let old = db.session(SessionOptions::new().over(&one)).unwrap();
    assert_eq!(old.root(), one.root());
    let value = |value: u64| Some(Value::from(&value.to_be_bytes()[..]));
    assert_eq!(old.read(&key(Keys::Uniform, 1)).unwrap(), value(1));
    assert_eq!(old.read(&key(Keys::Uniform, 2)).unwrap(), None);
    assert!(matches!(
        early.commit().map_err(pleach::CommitError::into_error),
        Err(Error::StaleParent { .. })
    ));
    let late = finish(Some(&one), vec![put(1, 4), put(2, 4)]);
    assert!(matches!(
        late.commit().map_err(pleach::CommitError::into_error),
        Err(Error::StaleParent { .. })
    ));
    assert_eq!((one.commit_number(), one.is_committed()), (Some(1), true), "with the other");
    assert_eq!(one.commit().unwrap(), 1, "committing again changes nothing");
    let root = db.root();
    assert_eq!(root, two.root());
    drop((one, two, old, db));
    assert_eq!(open(folder.path()).root(), root);
}

/// An overlay outlived its database and went on committing into a log that another open owned.
#[test]
fn nothing_is_committed_once_the_database_is_closed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let overlay =
        db.session(SessionOptions::new()).unwrap().finish(vec![put(1, 1)]).unwrap().into_overlay();
    drop(db);
    assert!(matches!(overlay.commit(), Err(Error::Closed)));
    drop(overlay);
    assert_eq!(open(folder.path()).commit_number(), 0);
}
