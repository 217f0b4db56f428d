//! Whatever a batch does, root, witness bytes and values are those of the naive trie, and the
//! witness verifies from root to root; across flushes, checkpoints and reopening.

#![allow(clippy::cast_possible_truncation, reason = "small draws of a seeded generator")]

use crate::common::{Keys, Model, Rng, batch, cases, ops};
use pleach::{Blake3, Db, Options, SessionOptions, Sha2};
use pleach_core::{Hasher, witness};

fn options(path: &std::path::Path, seed: u64) -> Options {
    Options::new(path)
        .create(true)
        .cache_mib(16)
        .threads(2)
        .in_flight(16)
        .flush_at(1 + (seed % 3) as u8)
        .small()
        // Every other run lets no node stay in memory.
        .trie_cache_kib((seed % 2 == 1).then_some(0))
        .log_limit_bytes(256 << 10)
}

fn run<H: Hasher>(seed: u64, kind: Keys) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut rng = Rng::new(seed);
    let ids = [3, 40, 1000, 20_000][(seed % 4) as usize];
    let mut model = Model::default();
    let mut db = Db::<H>::open(options(folder.path(), seed)).expect("created");
    for round in 0..12 {
        let size = [1, 5, 300, 2000][rng.below(4) as usize];
        let accesses = batch(&mut rng, kind, ids, size);
        let session = db.session(SessionOptions::new()).expect("a session");
        for access in accesses.iter().take(50) {
            assert_eq!(
                session.read(&access.key).expect("read"),
                model.values.get(&access.key).cloned()
            );
        }
        let before = model.naive::<H>();
        let mut block = session.finish(accesses.clone()).expect("finished");
        let expected = before.witness::<H>(&ops::<H>(&accesses)).encode::<H>().expect("encodes");
        let witness = block.take_witness().expect("asked for");
        model.apply(&accesses);
        let root = model.naive::<H>().root::<H>();
        assert_eq!(block.prev_root(), before.root::<H>());
        assert_eq!(block.root(), root, "seed {seed} round {round}: root");
        assert_eq!(*witness, *expected, "seed {seed} round {round}: witness");
        let verified = witness::verify::<H>(&witness, &before.root::<H>()).expect("verifies");
        assert_eq!(*verified.new_root(), root);
        block.commit().expect("committed");
        assert_eq!(db.root(), root);
        if rng.below(5) == 0 {
            if rng.below(2) == 0 {
                db.close().expect("closed");
            } else {
                drop(db);
            }
            db = Db::<H>::open(options(folder.path(), seed)).expect("reopened");
            assert_eq!(db.root(), root, "seed {seed} round {round}: reopened");
        }
    }
    let session = db.session(SessionOptions::new()).expect("a session");
    let keys: Vec<_> = model.values.keys().copied().collect();
    let values = session.read_many(&keys).expect("read");
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(value.as_ref(), model.values.get(key));
    }
}

#[test]
fn uniform_keys() {
    for seed in 0..cases(12) {
        run::<Blake3>(seed, Keys::Uniform);
    }
}

#[test]
fn sequential_keys() {
    for seed in 0..cases(8) {
        run::<Blake3>(seed, Keys::Sequential);
    }
}

#[test]
fn keys_that_share_60_bits() {
    for seed in 0..cases(8) {
        run::<Blake3>(seed, Keys::SharedPrefix);
    }
}

#[test]
fn sha256() {
    for seed in 0..cases(8) {
        run::<Sha2>(seed, Keys::Uniform);
    }
}
