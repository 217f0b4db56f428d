//! Nodes between a region and its pages are kept from commit to commit: what is not touched is not
//! hashed again, and what was deleted to a single key or to none leaves nothing stale behind.

use crate::common::{Keys, Model, Rng, bytes, key, open, ops};
use std::ops::Range;

use pleach::load::LoadOptions;
use pleach::proof::witness::verify;
use pleach::{Access, Db, Options, SessionOptions, Value};
use pleach_core::{Hasher, Key};

fn load(db: &Db, keys: &[Key], len: usize) {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let items = sorted.into_iter().map(|key| (key, Value::from(vec![7; len])));
    db.bulk_load(items, &LoadOptions::new()).expect("loaded");
}

#[test]
fn a_change_hashes_its_own_path_and_not_its_region() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), 16);
    let keys: Vec<Key> = (0..6000).map(|id| key(Keys::Uniform, id)).collect();
    load(&db, &keys, 8);
    let hashed = |value: u8| {
        let before = db.metrics().hashes;
        let session = db.session(SessionOptions::new().witness(false)).expect("a session");
        let change = Access::read_write(keys[0], Some(Value::from(&[value; 8])));
        let block = session.finish(vec![change]).expect("finished");
        block.commit().expect("committed");
        db.metrics().hashes - before
    };
    // The first two commits compute what the page does not store.
    hashed(1);
    assert!(db.metrics().leaf_pages >= 64, "enough pages for the difference to show");
    hashed(2);
    let known = hashed(3);
    assert!(known < 40, "{known} hashes");
}

#[test]
fn what_shrinks_to_a_leaf_and_grows_again_is_never_stale() {
    for seed in 0..crate::common::cases(6) {
        let mut rng = Rng::new(seed);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let db = open(folder.path(), 16);
        let mut model = Model::default();
        let mut accesses: Vec<Access> = (0..1200)
            .map(|id| Access::read_write(key(Keys::Uniform, id), Some(bytes(&mut rng, 150))))
            .collect();
        for round in 0..30 {
            let before = model.naive(Hasher::BLAKE3);
            let session = db.session(SessionOptions::new()).expect("a session");
            let mut block = session.finish(accesses.clone()).expect("finished");
            let expected = before.witness(Hasher::BLAKE3, &ops(Hasher::BLAKE3, &accesses));
            let expected = expected.encode(Hasher::BLAKE3).expect("encodes");
            assert_eq!(
                block.take_witness().as_deref(),
                Some(&expected[..]),
                "seed {seed} round {round}"
            );
            model.apply(&accesses);
            let root = model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3);
            assert_eq!(block.root(), root, "seed {seed} round {round}");
            block.commit().expect("committed");
            accesses = next(&mut rng, &model);
        }
    }
}

/// Pages merge, commits change the merged page, and it is split again: the inner nodes that the region knew before the
/// merge are stale by then. Commit 16 used to have a wrong root and a witness that does not verify, and the database did
/// not open again. Flushes in the background merge and split in the same way; `drain` only makes it happen at once.
#[test]
fn inner_nodes_of_before_a_merge_are_not_used_after_a_split() {
    for threads in [1, 2] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = Options::new(folder.path()).create(true).small().threads(threads);
        let db = Db::open(options.clone()).expect("opened");
        let mut model = Model::default();
        let mut write = |ids: Range<u64>, value: Option<[u8; 40]>| {
            let put = |id| Access::write(key(Keys::Uniform, id), value.as_ref().map(Value::from));
            let accesses: Vec<Access> = ids.map(put).collect();
            let before = model.naive(Hasher::BLAKE3);
            model.apply(&accesses);
            let session = db.session(SessionOptions::new()).expect("a session");
            let mut block = session.finish(accesses).expect("finished");
            let (root, witness) = (block.root(), block.take_witness().expect("a witness"));
            let number = block.commit().expect("committed");
            assert_eq!(root, model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3), "commit {number}");
            let verified =
                verify(Hasher::BLAKE3, &witness, &before.root(Hasher::BLAKE3)).expect("verifies");
            assert_eq!(*verified.new_root(), root, "commit {number}");
        };
        write(0..69, Some([1; 40]));
        db.drain(0).expect("drained");
        write(0..69, None);
        for step in 0..12 {
            write(1000 + 2 * step..1002 + 2 * step, Some([2; 40]));
        }
        write(2000..2306, Some([3; 40]));
        db.drain(0).expect("drained");
        write(5000..5001, Some([4; 40]));
        db.close().expect("closed");
        drop(db);
        let db = Db::open(options).expect("opened again");
        assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    }
}

/// Deletes what lies below a prefix of a few bits but for one key or none, fills such a prefix
/// again, or changes a key here and there.
fn next(rng: &mut Rng, model: &Model) -> Vec<Access> {
    let bits = 1 + rng.below(5);
    let group = rng.below(1 << bits);
    let below = |key: &Key| u64::from(key[0]) >> (8 - bits) == group;
    let fresh = |rng: &mut Rng| key(Keys::Uniform, 10_000 + rng.below(1 << 20));
    match rng.below(3) {
        0 => {
            let keep = usize::try_from(rng.below(2)).expect("0 or 1");
            let gone = model.values.keys().filter(|key| below(key)).skip(keep);
            gone.map(|key| Access::read_write(*key, None)).collect()
        }
        1 => {
            let keys: std::collections::BTreeSet<Key> =
                (0..400).map(|_| fresh(rng)).filter(|key| below(key)).collect();
            let mut put = |key| Access::read_write(key, Some(bytes(rng, 150)));
            keys.into_iter().map(&mut put).collect()
        }
        _ => {
            let count = model.values.len().max(1);
            let some: std::collections::BTreeSet<Key> =
                (0..3).filter_map(|_| model.values.keys().nth(rng.index(count)).copied()).collect();
            let mut put = |key| Access::read_write(key, Some(bytes(rng, 150)));
            some.into_iter().map(&mut put).collect()
        }
    }
}
