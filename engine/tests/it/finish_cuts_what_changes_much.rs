//! Thousands of changes below one child: roots and witnesses are those of the naive trie, and
//! what a block does not access is not hashed again.

use pleach::load::LoadOptions;
use pleach::{Access, Hasher, Options, SessionOptions, Value};
use pleach_core::{Key, proof::witness};
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::{Keys, Model, Rng, batch, cases, commit, key, ops};
use crate::crash::{SimDb, unrecorded};

/// A database whose flush waits for more commits than come.
fn open(seed: u64) -> SimDb {
    let disk = SimDisk::new(seed, unrecorded());
    let runtime = SimRuntime::with_clock(seed, disk.clock(), 3);
    let options =
        Options::new("sim").create(true).cache_mib(64).tune(|tuning| tuning.flush_at = 255).small();
    SimDb::open_on(disk, runtime, options).expect("opened")
}

fn run(seed: u64, kind: Keys) {
    let mut rng = Rng::new(seed);
    let db = open(seed);
    let (mut model, mut before_all) = (Model::default(), None);
    // In every second run the child has a page to begin with.
    if seed % 2 == 1 {
        let put = |id: u64| (key(kind, id * 500), Value::from(&[2; 8]));
        let mut items: Vec<_> = (0..30).map(put).collect();
        items.sort_by_key(|item| item.0);
        let all: Vec<_> =
            items.iter().map(|item| Access::write(item.0, Some(item.1.clone()))).collect();
        model.apply(&all);
        db.bulk_load(items, &LoadOptions::new()).expect("loaded");
    }
    for round in 0..6 {
        let size = [9_000, 40, 3_000, 1, 500, 9_000][round];
        let accesses = batch(&mut rng, kind, 15_000, size);
        let session = db.session(SessionOptions::new()).expect("a session");
        let before = model.naive(Hasher::BLAKE3);
        let mut block = session.finish(accesses.clone()).expect("finished");
        let expected = before
            .witness(Hasher::BLAKE3, &ops(Hasher::BLAKE3, &accesses))
            .encode(Hasher::BLAKE3)
            .expect("encodes");
        let witness = block.take_witness().expect("asked for");
        model.apply(&accesses);
        let root = model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3);
        assert_eq!(block.root(), root, "seed {seed} round {round}: root");
        assert_eq!(*witness, *expected, "seed {seed} round {round}: witness");
        let verified = witness::verify(Hasher::BLAKE3, &witness, &before.root(Hasher::BLAKE3));
        assert_eq!(*verified.expect("verifies").new_root(), root);
        // An overlay on the block, and a block on the state two rounds ago.
        let overlay = block.into_overlay();
        let more = batch(&mut rng, kind, 15_000, 600);
        let over = db.session(SessionOptions::new().over(&overlay)).expect("a session");
        let mut ahead = model.clone();
        ahead.apply(&more);
        let block = over.finish(more).expect("finished");
        assert_eq!(
            block.root(),
            ahead.naive(Hasher::BLAKE3).root(Hasher::BLAKE3),
            "seed {seed}: overlay"
        );
        overlay.commit().expect("committed");
        if let Some((session, mut then)) = before_all
            .replace((db.session(SessionOptions::new()).expect("a session"), model.clone()))
        {
            let more = batch(&mut rng, kind, 15_000, 600);
            then.apply(&more);
            let block = session.finish(more).expect("finished");
            assert_eq!(
                block.root(),
                then.naive(Hasher::BLAKE3).root(Hasher::BLAKE3),
                "seed {seed}: then"
            );
        }
    }
}

#[test]
fn uniform_keys() {
    (0..cases(4)).for_each(|seed| run(seed, Keys::Uniform));
}

#[test]
fn ascending_keys() {
    (0..cases(4)).for_each(|seed| run(seed, Keys::Sequential));
}

#[test]
fn keys_that_share_60_bits() {
    (0..cases(4)).for_each(|seed| run(seed, Keys::SharedPrefix));
}

/// 100 keys more at the end of 20,000 that are buffered: values, leaves and nodes of a part or two at the end, and the
/// nodes above the parts.
#[test]
fn the_end_of_a_list_costs_what_is_at_the_end() {
    let db = open(1);
    let put = |id: u64| Access::write(key(Keys::Sequential, id), Some(Value::from(&[1; 24])));
    // A page from the start, below which it all comes.
    let first = (key(Keys::Sequential, 0), Value::from(&[1; 24]));
    db.bulk_load([first], &LoadOptions::new()).expect("loaded");
    commit(&db, (1..20_000).map(put).collect());
    for round in 0..5 {
        let before = db.metrics().hashes;
        let from = 20_000 + round * 100;
        commit(&db, (from..from + 100).map(put).collect());
        let hashed = db.metrics().hashes - before;
        assert!((300..2_500).contains(&hashed), "round {round}: {hashed} hashes");
    }
}

/// 400 changes of 60 keys and others are buffered for a page whose treelet is known, few of them in a bucket.
#[test]
fn a_treelet_that_tells_enough_apart_is_used() {
    let db = open(3);
    let put =
        |id: u64, value: u8| Access::write(key(Keys::Uniform, id), Some(Value::from(&[value; 8])));
    let pairs = (0..60).map(|id| (key(Keys::Uniform, id), Value::from(&[0; 8])));
    let mut pairs: Vec<(Key, Value)> = pairs.collect();
    pairs.sort_unstable_by_key(|pair| pair.0);
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    for round in 0..6 {
        commit(&db, (round * 60..round * 60 + 60).map(|id| put(id, 1)).collect());
    }
    for round in 0..3 {
        let before = db.metrics().hashes;
        commit(&db, vec![put(round, 2)]);
        let hashed = db.metrics().hashes - before;
        assert!(hashed < 100, "round {round}: {hashed} hashes");
    }
}

/// A state of many parts, one of which has all its keys deleted, then one key less than all.
#[test]
fn parts_become_empty() {
    let db = open(2);
    let mut model = Model::default();
    let keys: Vec<Key> = (0..4_000).map(|id| key(Keys::Uniform, id)).collect();
    let mut step = |accesses: Vec<Access>| {
        model.apply(&accesses);
        commit(&db, accesses);
        assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    };
    step(keys.iter().map(|key| Access::write(*key, Some(Value::from(&key[..8])))).collect());
    let quarter = |key: &&Key| key[0] < 0x40;
    step(keys.iter().filter(quarter).map(|key| Access::write(*key, None)).collect());
    step(vec![Access::write(Hasher::BLAKE3.hash(b"another"), Some(Value::from(b"one")))]);
    step(keys[1..].iter().map(|key| Access::write(*key, None)).collect());
    step(vec![Access::write(keys[7], Some(Value::from(b"again")))]);
}
