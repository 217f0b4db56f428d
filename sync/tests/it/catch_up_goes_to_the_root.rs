//! A database that was fetched is brought to the newest root by a stranger's changes, or left as it is.

use pleach::{Db, Durability, Hasher};
use pleach_ops::export::export_changes;
use pleach_sync::internals::catch_up_within;
use pleach_sync::{Ask, Error, Fetch, Refusal, Server, Target, catch_up};

use crate::common::{
    LIMITS, Peer, commit, key, options, over_all, pairs, put, run, server, state, target,
};

/// A server whose database has gone on, and a database that was fetched before.
fn two(folder: &std::path::Path) -> (Db, Server, Db) {
    let db = state(&folder.join("state"), 300);
    let server = server(&db);
    let mut fetch = Fetch::open(&folder.join("new.sync"), target(&db), LIMITS).expect("opened");
    run(&mut fetch, &mut [Peer::honest(&server)], 1, usize::MAX);
    let new = fetch.load(&folder.join("new"), pleach::Options::small).expect("loaded");
    db.add_namespace(5).expect("added");
    commit(
        &db,
        vec![put(5, key(1), vec![8; 2_000]), put(0, key(2), vec![]), put(11, key(3), vec![1])],
    );
    commit(&db, (0..40).map(|id| put(0, key(1_000 + id), vec![4; 9])).collect());
    db.drop_namespace(9).expect("dropped");
    server.refresh().expect("refreshed");
    (db, server, new)
}

#[test]
fn a_fetched_database_catches_up_with_the_newest_root() {
    let folder = tempfile::tempdir().expect("a folder");
    let (db, server, new) = two(folder.path());
    let ask = Ask::Changes { from: over_all(&new), to: over_all(&db) };
    let mut stream = Vec::new();
    server.answer(&ask, &mut stream).expect("written");
    let reached = catch_up(&new, &target(&db), &*stream).expect("applied");
    assert_eq!((reached, over_all(&new)), (new.commit_number(), over_all(&db)));
    let [there, here] = [&db, &new].map(|db| pairs(&db.snapshot().expect("a snapshot")));
    assert!(there == here);
    assert_eq!(catch_up(&new, &target(&db), &*stream).expect("nothing to do"), reached);
    // There is no way back.
    let back = Ask::Changes { from: over_all(&db), to: target_before(&ask) };
    assert_eq!(server.answer(&back, &mut stream), Err(Refusal::Unknown));
    // A further stream does not fit any more.
    commit(&new, vec![put(0, key(7), vec![1; 5])]);
    server.answer(&ask, &mut stream).expect("written");
    let refused = catch_up(&new, &target(&db), &*stream).expect_err("another state");
    assert!(matches!(refused, Error::Stream(_)), "{refused}");
}

fn target_before(ask: &Ask) -> pleach::Node {
    let Ask::Changes { from, .. } = ask else { panic!("changes") };
    *from
}

#[test]
fn a_stream_that_lies_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (db, server, new) = two(folder.path());
    let (before, commit_before) = (over_all(&new), new.commit_number());
    let mut stream = Vec::new();
    server.changes(&before, &over_all(&db), &mut stream).expect("written");
    let refuse = |stream: &[u8], to: &Target, what: &str| {
        let refused = catch_up(&new, to, stream).expect_err("a lie");
        assert!(matches!(refused, Error::Lie(_)), "{what}: {refused}");
        assert_eq!((over_all(&new), new.roots().get(9).is_some()), (before, true), "{what}");
    };
    let to = target(&db);
    for at in (0..stream.len()).step_by(37) {
        let mut changed = stream.clone();
        changed[at] ^= 0x10;
        refuse(&changed, &to, "a changed byte");
        refuse(&stream[..at], &to, "a stream that is cut off");
    }
    // All of it true, and to another state than the one that is wanted.
    refuse(&stream, &Target::over_all(before, Hasher::BLAKE3), "another root");
    // Of a trusted sender it would have blob and plain namespace.
    let mut whole = Vec::new();
    let from = db.commit_of_root(&before).expect("read").expect("in the history");
    export_changes(&db.at(from).expect("there"), &db.snapshot().expect("there"), &mut whole)
        .expect("written");
    refuse(&whole, &to, "a plain namespace");
    assert_eq!(new.commit_number(), commit_before, "nothing was committed");
    catch_up(&new, &to, &*stream).expect("the right one");
}

/// Once that was a lie.
#[test]
fn a_stream_that_is_too_long_is_no_lie_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (db, server, new) = two(folder.path());
    let before = over_all(&new);
    let mut stream = Vec::new();
    server.changes(&before, &over_all(&db), &mut stream).expect("written");
    let within = |bytes: usize| catch_up_within(&new, &target(&db), &*stream, bytes as u64);
    for bytes in [0, 1, 200, stream.len() - 1] {
        let refused = within(bytes).expect_err("too long");
        assert!(matches!(refused, Error::TooManyChanges), "{refused}");
        assert_eq!(over_all(&new), before);
    }
    // What is wrong before the limit is a lie, whatever follows.
    stream[100] ^= 1;
    let refused = catch_up_within(&new, &target(&db), &*stream, 1_000).expect_err("a lie");
    assert!(matches!(refused, Error::Lie(_)), "{refused}");
    stream[100] ^= 1;
    catch_up_within(&new, &target(&db), &*stream, stream.len() as u64)
        .expect("as long as it may be");
    assert_eq!(over_all(&new), over_all(&db));
}

/// A server has no stream of more changes than one commit takes, and says so before it begins; by roots between they come.
#[test]
fn many_changes_come_by_roots_between() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |name: &str| {
        let options = options(&folder.path().join(name)).durability(Durability::None);
        Db::open(options.cache_mib(256)).expect("opened")
    };
    let (db, new) = (open("state"), open("new"));
    for keys in [0..250_000, 250_000..500_000] {
        commit(&db, keys.map(|id| put(0, key(id), vec![1])).collect());
    }
    let server = server(&db);
    let root_of = |commit| db.at(commit).expect("there").roots().over_all(Hasher::BLAKE3);
    let roots = [0, 1, 2].map(root_of);
    let mut stream = Vec::new();
    let refused = server.changes(&roots[0], &roots[2], &mut stream);
    assert_eq!((refused, stream.len()), (Err(Refusal::Unknown), 0));
    for pair in roots.windows(2) {
        stream.clear();
        server.changes(&pair[0], &pair[1], &mut stream).expect("written");
        catch_up(&new, &Target::over_all(pair[1], Hasher::BLAKE3), &*stream).expect("applied");
    }
    assert_eq!(over_all(&new), roots[2]);
}

#[test]
fn one_namespace_catches_up_with_its_root() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, other] = ["one", "other"].map(|name| {
        let db = Db::open(crate::common::options(&folder.path().join(name))).expect("opened");
        db.add_namespace(2).expect("added");
        commit(&db, vec![put(2, key(1), vec![1])]);
        db
    });
    let from = over_all(&one);
    commit(&one, vec![put(2, key(2), vec![2])]);
    let mut stream = Vec::new();
    server(&one).changes(&from, &over_all(&one), &mut stream).expect("written");
    let root = one.roots().get(2).expect("there");
    catch_up(&other, &Target::namespace(2, root, Hasher::BLAKE3), &*stream).expect("applied");
    assert_eq!(other.roots().get(2), Some(root));
}
