use nomt::Nomt;
use nomt::hasher::Blake3Hasher;

use crate::common::{Database, finish, folder, get, open, options, put, refused};

fn commit(db: &Database, value: u8) -> [u8; 32] {
    put(db, &[], 1, &[value]).commit(db).expect("committed");
    db.root().into_inner()
}

#[test]
fn what_was_rolled_back_is_not_counted_again() {
    let folder = folder();
    let mut db = open(folder.path());
    let roots: Vec<_> = (0..8).map(|value| commit(&db, value)).collect();
    let root = |db: &Database| db.root().into_inner();
    db.rollback(0).expect("nothing to do");
    db.rollback(1).expect("rolled back");
    assert_eq!(root(&db), roots[6]);
    db.rollback(2).expect("rolled back");
    assert_eq!(root(&db), roots[4]);
    // Across a restart that nobody announced.
    drop(db);
    db = open(folder.path());
    db.rollback(1).expect("rolled back");
    assert_eq!(root(&db), roots[3]);
    let again = commit(&db, 100);
    commit(&db, 101);
    db.rollback(1).expect("rolled back");
    assert_eq!(root(&db), again);
    db.rollback(3).expect("rolled back");
    assert_eq!(root(&db), roots[1]);
    refused(db.rollback(3), "cannot go back 3 commits");
    assert_eq!(root(&db), roots[1], "nothing is done");
    db.rollback(2).expect("rolled back");
    assert!(db.is_empty());
    refused(db.rollback(1), "cannot go back 1 commits");
}

#[test]
fn empty_commits_are_commits() {
    let folder = folder();
    let db = open(folder.path());
    let first = commit(&db, 1);
    for _ in 0..2 {
        finish(&db, &[], vec![]).commit(&db).expect("committed");
    }
    commit(&db, 2);
    db.rollback(3).expect("rolled back");
    assert_eq!(db.root().into_inner(), first);
    db.rollback(1).expect("rolled back");
    assert!(db.is_empty());
}

#[test]
fn overlays_are_commits_of_their_own() {
    let folder = folder();
    let db = open(folder.path());
    let a = put(&db, &[], 1, b"a").into_overlay();
    let b = put(&db, &[&a], 1, b"b").into_overlay();
    a.commit(&db).expect("committed");
    b.commit(&db).expect("committed");
    db.rollback(1).expect("rolled back");
    assert_eq!(get(&db, 1), Some(b"a".to_vec()));
}

#[test]
fn as_many_as_the_options_say_can_be_rolled_back() {
    let folder = folder();
    let db = open(folder.path());
    let roots: Vec<_> = (0..60).map(|value| commit(&db, value)).collect();
    for _ in 0..5 {
        commit(&db, 200);
        db.rollback(1).expect("rolled back");
    }
    db.rollback(20).expect("rolled back");
    assert_eq!(db.root().into_inner(), roots[39]);
    refused(db.rollback(40), "max_rollback_log_len");
    let newest = db.engine().get(&[9; 32]).expect("read").map(|value| value.to_vec());
    assert_eq!(db.read([9; 32]).expect("read"), newest);
}

/// What the crate `nomt` does after an open: its log is cut one commit late.
#[test]
fn after_an_open_one_more_commit_can_be_rolled_back() {
    let folder = folder();
    let reopened = || {
        let mut options = options(folder.path());
        options.max_rollback_log_len(1);
        Database::open(options).expect("opened")
    };
    let db = reopened();
    let roots: Vec<_> = (0..9).map(|value| commit(&db, value)).collect();
    drop(db);
    let db = reopened();
    for root in [roots[7], roots[6]] {
        db.rollback(1).expect("rolled back");
        assert_eq!(db.root().into_inner(), root);
    }
    // The engine names options that are not here.
    let error = format!("{:#}", db.rollback(5).expect_err("too far"));
    assert!(error.contains("max_rollback_log_len") && !error.contains("history"), "{error}");
}

/// Values of many pages come back: the crate `nomt` panics there.
#[test]
fn long_values_come_back() {
    let folder = folder();
    let db = open(folder.path());
    for value in [1, 2] {
        put(&db, &[], 1, &vec![value; 300_000]).commit(&db).expect("committed");
    }
    db.rollback(1).expect("rolled back");
    assert_eq!(get(&db, 1), Some(vec![1; 300_000]));
}

#[test]
fn without_the_option_there_is_no_rollback() {
    let folder = folder();
    let mut options = options(folder.path());
    options.rollback(false);
    let db = Nomt::<Blake3Hasher>::open(options).expect("opened");
    commit(&db, 1);
    db.rollback(0).expect("nothing to do");
    refused(db.rollback(1), "set `Options::rollback`");
}
