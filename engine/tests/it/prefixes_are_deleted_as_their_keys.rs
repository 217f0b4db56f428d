//! A delete of a prefix gives the roots and the witness of the deletes of its keys.

use std::collections::BTreeSet;

use pleach::{Access, AccessKind, Db, Error, Hasher, Key, SessionOptions, Value, witness};

use crate::common::{Model, Rng, commit, open, ops};

/// Keys of 40 accounts, whose storage shares their first two bytes.
fn slot(rng: &mut Rng) -> Key {
    let account = u8::try_from(rng.below(40)).expect("small");
    let mut key = [0; 32];
    (key[0], key[1]) = (account % 3, account);
    key[24..].copy_from_slice(&rng.below(500).to_be_bytes());
    key
}

fn put(key: Key, value: u64) -> Access {
    Access::write(key, Some(Value::from(value.to_le_bytes())))
}

/// What a batch means: deletes of the keys there are, and the accesses that have their own.
fn meant(model: &Model, batch: &[Access], prefixes: &[Vec<u8>]) -> Vec<Access> {
    let own: BTreeSet<Key> = batch.iter().map(|access| access.key).collect();
    let below = |key: &&Key| prefixes.iter().any(|prefix| key.starts_with(prefix));
    let deleted = model.values.keys().filter(below).filter(|key| !own.contains(*key));
    let deletes = deleted.map(|key| Access::write(*key, None));
    batch.iter().cloned().chain(deletes).collect()
}

fn step(db: &Db, model: &mut Model, rng: &mut Rng) {
    let keys: BTreeSet<Key> = (0..60).map(|_| slot(rng)).collect();
    let batch: Vec<Access> = keys.into_iter().map(|key| put(key, rng.next())).collect();
    // Some of accounts, some that have others in them, some that are keys, and some without keys.
    let prefixes: Vec<Vec<u8>> = (0..rng.below(4))
        .map(|_| slot(rng)[..[1, 2, 2, 2, 31, 32][rng.index(6)]].to_vec())
        .collect();
    let expected = meant(model, &batch, &prefixes);
    let before = model.naive(Hasher::BLAKE3);
    let proven = before.witness(Hasher::BLAKE3, &ops(Hasher::BLAKE3, &expected));
    let mut accesses = batch;
    accesses.extend(prefixes.iter().map(|prefix| Access::delete_prefix(prefix)));
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut block = session.finish(accesses).expect("finished");
    let witness = block.take_witness().expect("asked for");
    assert_eq!(*witness, *proven.encode(Hasher::BLAKE3).expect("encodes"));
    let root = before.root(Hasher::BLAKE3);
    witness::verify(Hasher::BLAKE3, &witness, &root).expect("verifies");
    model.apply(&expected);
    assert_eq!(block.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    block.commit().expect("committed");
}

#[test]
fn with_other_accesses_and_prefixes_within_prefixes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (db, mut model, mut rng) = (open(folder.path(), 16), Model::default(), Rng::new(3));
    for _ in 0..60 {
        step(&db, &mut model, &mut rng);
    }
    assert!(model.values.len() > 20);
    commit(&db, vec![Access::delete_prefix(&[])]);
    assert_eq!(db.root(), pleach_core::TERMINATOR);
}

/// An access has public fields: what is behind the prefix in the key says nothing, nor do more bytes than there are.
#[test]
fn however_the_access_was_made() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), 16);
    commit(&db, vec![put([7; 32], 1), put([8; 32], 2)]);
    let made =
        |key, bytes| Access { kind: AccessKind::DeletePrefix(bytes), ..Access::write(key, None) };
    commit(&db, vec![made([8; 32], 200)]);
    assert!(db.get(&[8; 32]).expect("read").is_none());
    let mut key = [0xff; 32];
    key[0] = 7;
    commit(&db, vec![made(key, 1)]);
    assert_eq!(db.root(), pleach_core::TERMINATOR);
}

#[test]
fn in_a_namespace_that_is_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), 16);
    db.add_plain_namespace(4).expect("added");
    commit(&db, vec![put([7; 32], 1), put([7; 32], 2).in_namespace(4)]);
    commit(&db, vec![Access::delete_prefix(&[7]).in_namespace(4)]);
    assert!(db.get(&[7; 32]).expect("read").is_some());
    let session = db.session(SessionOptions::new()).expect("a session");
    assert_eq!(session.namespace(4).expect("there").read(&[7; 32]).expect("read"), None);
    let refused = session.finish(vec![Access::delete_prefix(&[7]).in_namespace(9)]);
    let (_, accesses, error) = refused.expect_err("no such namespace").into_parts();
    assert!(matches!(error, Error::Namespace(9)) && accesses.len() == 1);
}
