//! Checks that what a crash has left is the state of a commit that may be there, whole, and fit for work.

use pleach::{Access, Hasher, SessionOptions};
use pleach_core::proof::witness;
use pleach_io::sim::SimDisk;

use super::workload::{batch, commit_one};
use super::{History, Promise, Setup, SimDb};
use crate::common::{Model, Rng, ops};

/// Opens the database on `disk`, which a crash has left, and checks everything that a user can
/// see; then commits three times more, closes and looks again. Gives the commit that was found.
///
/// # Panics
/// With `what` in the message, when a promise is broken.
pub fn check(
    setup: &Setup,
    disk: &SimDisk,
    history: &History,
    promise: Promise,
    what: &dyn std::fmt::Display,
) -> u64 {
    let (db, runtime) =
        setup.open(disk, 1).unwrap_or_else(|error| panic!("{what}: does not open: {error}"));
    let found = state_of(&db, history, promise, what);
    let mut rng = Rng::new(setup.seed ^ found);
    reads(setup, &db, history.model(found), what);
    past(setup, &db, history, found, what);
    fresh_witness(setup, &db, history.model(found), &mut rng, what);
    let mut history = history.clone();
    history.truncate(found + 1);
    for _ in 0..3 {
        commit_one(setup, disk, &db, &runtime, &mut rng, &mut history)
            .unwrap_or_else(|error| panic!("{what}: a commit after the crash: {error}"));
    }
    if rng.below(2) == 0 {
        db.close().unwrap_or_else(|error| panic!("{what}: closing: {error}"));
    } else {
        drop(db);
    }
    let (db, _) =
        setup.open(disk, 2).unwrap_or_else(|error| panic!("{what}: does not open again: {error}"));
    let all = Promise { least: found + 3, most: found + 3 };
    state_of(&db, &history, all, what);
    reads(setup, &db, history.model(found + 3), what);
    found
}

/// The commit that an open database is at.
pub fn state_of(
    db: &SimDb,
    history: &History,
    promise: Promise,
    what: &dyn std::fmt::Display,
) -> u64 {
    let found = db.commit_number();
    assert!(
        (promise.least..=promise.most).contains(&found),
        "{what}: commit {found} was found, {promise:?}"
    );
    assert_eq!(db.root(), history.root(found), "{what}: root of commit {found}");
    found
}

/// The commits before the one that was found are those of the history, no fewer, each with its values and
/// proofs.
pub fn past(
    setup: &Setup,
    db: &SimDb,
    history: &History,
    found: u64,
    what: &dyn std::fmt::Display,
) {
    let from = found.saturating_sub(setup.history);
    assert_eq!(db.history(), from..=found, "{what}: the history");
    for commit in from..found {
        let session = db.at(commit).unwrap_or_else(|error| panic!("{what}: {commit}: {error}"));
        assert_eq!(session.root(), history.root(commit), "{what}: root of commit {commit}");
        let model = history.model(commit);
        for id in 0..setup.ids {
            let key = setup.key(id);
            let value = session
                .read(&key)
                .unwrap_or_else(|error| panic!("{what}: {id} as of {commit}: {error}"));
            assert!(value.as_ref() == model.values.get(&key), "{what}: {id} as of {commit}");
        }
        // Each of these asks the index in another way whether a region is newer than the commit.
        let pairs = session.iter(..).map(|pair| {
            pair.unwrap_or_else(|error| panic!("{what}: going through commit {commit}: {error}"))
        });
        let all = model.values.iter().map(|(key, value)| (*key, value.clone()));
        assert!(pairs.eq(all), "{what}: all pairs as of {commit}");
        let keys: Vec<_> = (0..setup.ids).map(|id| setup.key(id)).collect();
        let proof = session.prove_many(&keys);
        let proof = proof.unwrap_or_else(|error| panic!("{what}: proving {commit}: {error}"));
        let expected =
            model.naive(Hasher::BLAKE3).multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3);
        assert!(
            proof == expected.expect("encodes").into(),
            "{what}: the multiproof as of {commit}"
        );
        let reads = vec![Access::read(setup.key(commit % setup.ids))];
        let expected = model
            .naive(Hasher::BLAKE3)
            .witness(Hasher::BLAKE3, &ops(Hasher::BLAKE3, &reads))
            .encode(Hasher::BLAKE3);
        let mut block =
            session.finish(reads).unwrap_or_else(|error| panic!("{what}: {commit}: {error}"));
        let proof = block.take_witness().expect("asked for");
        assert!(*proof == *expected.expect("encodes"), "{what}: the proof as of {commit}");
    }
}

/// Every key that the workload knows has the model's value.
pub fn reads(setup: &Setup, db: &SimDb, model: &Model, what: &dyn std::fmt::Display) {
    let session = db
        .session(SessionOptions::new())
        .unwrap_or_else(|error| panic!("{what}: a session: {error}"));
    for id in 0..setup.ids {
        let key = setup.key(id);
        let value =
            session.read(&key).unwrap_or_else(|error| panic!("{what}: reading {id}: {error}"));
        assert!(value.as_ref() == model.values.get(&key), "{what}: key {id} has another value");
    }
}

/// A witness over the recovered trie is the oracle's, byte by byte.
fn fresh_witness(
    setup: &Setup,
    db: &SimDb,
    model: &Model,
    rng: &mut Rng,
    what: &dyn std::fmt::Display,
) {
    let accesses = batch(rng, setup, model);
    let before = model.naive(Hasher::BLAKE3);
    let expected = before
        .witness(Hasher::BLAKE3, &ops(Hasher::BLAKE3, &accesses))
        .encode(Hasher::BLAKE3)
        .expect("encodes");
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut block =
        session.finish(accesses).unwrap_or_else(|error| panic!("{what}: a finish: {error}"));
    let found = block.take_witness().expect("asked for");
    assert!(*found == *expected, "{what}: another witness");
    let verified = witness::verify(Hasher::BLAKE3, &found, &db.root());
    assert!(
        verified.is_ok_and(|verified| *verified.new_root() == block.root()),
        "{what}: the witness's root"
    );
}
