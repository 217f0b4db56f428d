//! Two overlays may have the same state and not be the same, and a commit may ask for its very parent: of two empty overlays on
//! one parent the second was committed, too.

use pleach::{Access, Block, CommitOptions, Db, Error, Options, Overlay, SessionOptions, Value};

use crate::common::commit;

fn open(folder: &std::path::Path) -> Db {
    Db::open(Options::new(folder).create(true).small().threads(2).history(10)).expect("opened")
}

fn put(key: u8) -> Access {
    Access::write([key; 32], Some(Value::from(&[key])))
}

fn block(db: &Db, over: Option<&Overlay>, accesses: Vec<Access>) -> Block {
    let options = SessionOptions::new();
    let options = over.map_or(options.clone(), |parent| options.over(parent));
    db.session(options).expect("a session").finish(accesses).expect("finished")
}

fn overlay(db: &Db, over: Option<&Overlay>, accesses: Vec<Access>) -> Overlay {
    block(db, over, accesses).into_overlay()
}

const EXACT: fn() -> CommitOptions = || CommitOptions::new().exact(true);

#[test]
fn a_parent_is_known_for_as_long_as_somebody_has_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let parent = overlay(&db, None, vec![put(1)]);
    let [one, two] = [(); 2].map(|()| overlay(&db, Some(&parent), Vec::new()));
    assert!(one.is(&one.clone()) && !one.is(&two), "equal states are not the same overlay");
    assert!(parent.parent().is_none());
    assert_eq!(one.commit().expect("committed"), 1);
    assert!(one.parent().expect("it lives").is(&parent));
    drop((parent, two));
    assert!(one.parent().is_none(), "it keeps nothing below alive");
}

#[test]
fn an_exact_commit_follows_its_parent() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let parent = overlay(&db, None, vec![put(1)]);
    let [one, two] = [(); 2].map(|()| overlay(&db, Some(&parent), Vec::new()));
    let above = block(&db, Some(&parent), vec![put(2)]);
    assert!(matches!(one.commit_with(EXACT()), Err(Error::ParentNotCommitted)));
    let above = above.commit_with(EXACT()).expect_err("its parent is not committed").into_block();
    assert_eq!(parent.commit_with(EXACT()).expect("committed"), 1);
    assert_eq!(one.commit_with(EXACT()).expect("committed"), 2);
    let stale = two.commit_with(EXACT()).expect_err("the newest commit is its sibling");
    assert!(matches!(stale, Error::StaleParent { base: 1, tip: 2 }), "{stale}");
    let above = above.commit_with(EXACT()).expect_err("the newest is another").into_block();
    // The state is the same, which is enough without it.
    assert_eq!(two.commit().expect("committed"), 3);
    assert_eq!(above.commit().expect("committed"), 4);
}

#[test]
fn after_a_rollback_the_parent_is_not_the_newest() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    commit(&db, vec![put(1)]);
    let [one, two] = [2, 3].map(|key| block(&db, None, vec![put(key)]));
    commit(&db, vec![put(9)]);
    assert_eq!(db.rollback(1).expect("rolled back"), 3);
    let stale = one.commit_with(EXACT()).expect_err("commit 3 is not commit 1");
    assert!(matches!(stale.error(), Error::StaleParent { base: 1, tip: 3 }), "{stale}");
    assert_eq!(two.commit().expect("the state is the same"), 4);
}
