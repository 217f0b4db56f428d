use nomt::{InvalidAncestors, Overlay, SessionParams};

use crate::common::{finish, folder, get, key, open, put, refused};

fn params<'a>(
    over: impl IntoIterator<Item = &'a Overlay>,
) -> Result<SessionParams, InvalidAncestors> {
    SessionParams::default().overlay(over)
}

#[test]
fn a_chain_reads_its_newest_values_and_is_committed_from_below() {
    let folder = folder();
    let db = open(folder.path());
    let a = put(&db, &[], 1, b"a").into_overlay();
    let b = put(&db, &[&a], 2, b"b").into_overlay();
    let c = put(&db, &[&b, &a], 1, b"c").into_overlay();
    let session = db.begin_session(params([&c, &b, &a]).expect("a chain"));
    assert_eq!(session.read(key(1)).expect("read"), Some(b"c".to_vec()));
    assert_eq!(session.read(key(2)).expect("read"), Some(b"b".to_vec()));
    assert_eq!(session.prev_root(), c.root());
    drop(session);
    assert_eq!(get(&db, 1), None, "nothing is committed yet");
    a.commit(&db).expect("committed");
    // Those that are committed are not named any more.
    let d = put(&db, &[&c, &b], 3, b"d").into_overlay();
    b.commit(&db).expect("committed");
    c.commit(&db).expect("committed");
    let root = d.root();
    d.commit(&db).expect("committed");
    assert_eq!((db.root(), get(&db, 1), get(&db, 3)), (root, Some(b"c".into()), Some(b"d".into())));
}

#[test]
fn what_is_no_chain_is_refused() {
    let folder = folder();
    let db = open(folder.path());
    let a = put(&db, &[], 1, b"a").into_overlay();
    let b = put(&db, &[&a], 2, b"b").into_overlay();
    let c = put(&db, &[&b, &a], 3, b"c").into_overlay();
    let fork = put(&db, &[&a], 2, b"fork").into_overlay();
    let error = |over: &[&Overlay]| params(over.iter().copied()).err().expect("refused");
    assert_eq!(error(&[&c]), InvalidAncestors::Incomplete);
    assert_eq!(error(&[&c, &b]), InvalidAncestors::Incomplete);
    assert_eq!(error(&[&c, &a]), InvalidAncestors::NotAncestor);
    assert_eq!(error(&[&c, &fork, &a]), InvalidAncestors::NotAncestor);
    assert_eq!(error(&[&a, &b]), InvalidAncestors::NotAncestor);
    assert!(params([&c, &b, &a]).is_ok() && params([]).is_ok());
    drop(b);
    assert_eq!(error(&[&c]), InvalidAncestors::Incomplete);
    drop(a);
    assert_eq!(error(&[&fork]), InvalidAncestors::Incomplete, "its parent never is committed");
}

#[test]
fn a_parent_comes_first() {
    let folder = folder();
    let db = open(folder.path());
    let a = put(&db, &[], 1, b"a").into_overlay();
    let b = put(&db, &[&a], 2, b"b").into_overlay();
    let finished = put(&db, &[&a], 3, b"finished");
    refused(
        b.commit(&db),
        "overlay below is not committed: commit it first, or begin again if it is gone",
    );
    refused(finished.commit(&db), "overlay below is not committed");
    assert!(db.is_empty());
    a.commit(&db).expect("committed");
}

#[test]
fn siblings_are_stale() {
    let folder = folder();
    let db = open(folder.path());
    let a = put(&db, &[], 1, b"a").into_overlay();
    let [b, fork] = [b"b", b"f"].map(|value| put(&db, &[&a], 2, value).into_overlay());
    let other = put(&db, &[], 1, b"other").into_overlay();
    a.commit(&db).expect("committed");
    refused(other.commit(&db), "make it again on the newest");
    b.commit(&db).expect("committed");
    refused(fork.commit(&db), "make it again on the newest");
    assert_eq!(get(&db, 2), Some(b"b".to_vec()));
}

/// An overlay follows its parent's commit itself, not one with the same state.
#[test]
fn a_second_empty_overlay_is_stale() {
    let folder = folder();
    let db = open(folder.path());
    let a = put(&db, &[], 1, b"a").into_overlay();
    let [one, two] = [(); 2].map(|()| finish(&db, &[&a], vec![]).into_overlay());
    let finished = put(&db, &[&a], 2, b"b");
    a.commit(&db).expect("committed");
    one.commit(&db).expect("committed");
    refused(two.commit(&db), "make it again on the newest");
    finished.commit(&db).expect("to a finished session an equal root is enough");
}

#[test]
fn after_a_rollback_what_stands_on_the_commit_is_stale() {
    let folder = folder();
    let db = open(folder.path());
    let a = put(&db, &[], 1, b"a").into_overlay();
    let b = put(&db, &[&a], 2, b"b").into_overlay();
    a.commit(&db).expect("committed");
    put(&db, &[], 9, b"more").commit(&db).expect("committed");
    db.rollback(1).expect("rolled back");
    refused(b.commit(&db), "make it again on the newest");
}

#[test]
fn an_overlay_stays_with_its_database() {
    let (first, second) = (folder(), folder());
    let [one, two] = [&first, &second].map(|folder| open(folder.path()));
    let overlay = put(&one, &[], 1, b"a").into_overlay();
    refused(put(&one, &[], 1, b"a").commit(&two), "another open database");
    let params = params([&overlay]).expect("a chain");
    let begun = std::panic::AssertUnwindSafe(|| two.begin_session(params));
    assert!(std::panic::catch_unwind(begun).is_err());
    refused(overlay.commit(&two), "another open database");
}
