//! What was encoded is what a verifier says, and pieces put together give the same bytes.
use crate::common::second;
use pleach_core::{
    Hasher, Key, ValueHash,
    naive::{NaiveTrie, reads},
    node::value_hash as hash_of,
    proof::{
        Access, DecodeError, Lookup, Op,
        multi::{self, MultiProof},
        path::{self, PathProof},
        range,
        witness::{self, DecodedWitness},
    },
};
use proptest::prelude::*;

const BLAKE3: Hasher = Hasher::BLAKE3;

/// Keys that coincide often: few distinct bytes, at few indexes.
fn keys() -> impl Strategy<Value = Key> {
    prop_oneof![
        any::<Key>(),
        (0u8..8, 0usize..32).prop_map(|(value, at)| {
            let mut key = [0; 32];
            key[at] = value;
            key
        }),
    ]
}

fn value_hash() -> impl Strategy<Value = ValueHash> {
    any::<[u8; 32]>().prop_map(ValueHash::new)
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![
        Just(Access::Read),
        prop::option::of(value_hash()).prop_map(Access::Write),
        prop::option::of(value_hash()).prop_map(Access::ReadWrite),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        u32::try_from(crate::common::cases(200)).unwrap_or(u32::MAX)
    ))]

    #[test]
    fn a_witness_says_what_was_put_in(
        set in prop::collection::btree_map(keys(), value_hash(), 0..40),
        batch in prop::collection::btree_map(keys(), access(), 0..30),
    ) {
        let naive = NaiveTrie::from_iter(set.clone());
        let root = naive.root(BLAKE3);
        let ops: Vec<Op> = batch.iter().map(|(key, access)| Op { key: *key, access: *access }).collect();
        let made = naive.witness(BLAKE3, &ops);
        let bytes = made.encode(BLAKE3).unwrap();
        let verified = witness::verify(BLAKE3, &bytes, &root).unwrap();
        prop_assert_eq!(verified.terminals().collect::<Vec<_>>(), made.proof.terminals.clone());
        for op in verified.ops() {
            prop_assert_eq!(batch.get(&op.key), Some(&op.access));
            prop_assert_eq!(set.get(&op.key), op.before.as_ref());
            let wanted = set.get(&op.key).map_or(Lookup::Absent, |hash| Lookup::Present(*hash));
            prop_assert_eq!(verified.get(&op.key), wanted);
        }
        let mut after = naive.clone();
        after.apply(&ops);
        prop_assert_eq!(*verified.new_root(), after.root(BLAKE3));
    }

    #[test]
    fn a_multiproof_is_a_witness_of_reads(
        set in prop::collection::btree_map(keys(), value_hash(), 0..40),
        asked in prop::collection::btree_set(keys(), 1..20),
    ) {
        let naive = NaiveTrie::from_iter(set.clone());
        let root = naive.root(BLAKE3);
        let asked: Vec<Key> = asked.into_iter().collect();
        let bytes = naive.multi(BLAKE3, &asked).encode(BLAKE3).unwrap();
        let verified = multi::verify(BLAKE3, &bytes, &root).unwrap();
        for key in &asked {
            let wanted = set.get(key).map_or(Lookup::Absent, |hash| Lookup::Present(*hash));
            prop_assert_eq!(verified.get(key), wanted);
        }
        let bytes = naive.witness(BLAKE3, &reads(&asked)).encode(BLAKE3).unwrap();
        let verified = witness::verify(BLAKE3, &bytes, &root).unwrap();
        prop_assert_eq!(verified.new_root(), &root);
        prop_assert_eq!(second::verify(BLAKE3, &bytes, true, &root), Some(root));
    }
}

fn decoded(hasher: Hasher, trie: &NaiveTrie, keys: &[Key], ops: &[Op]) {
    let made = trie.path(hasher, &keys[0]);
    let bytes = made.encode(hasher).unwrap();
    assert_eq!(PathProof::decode(hasher, &bytes), Ok(made));
    let made = trie.multi(hasher, keys);
    let bytes = made.encode(hasher).unwrap();
    assert_eq!(multi::decode(hasher, &bytes).unwrap().siblings(), made.siblings);
    assert_eq!(MultiProof::decode(hasher, &bytes), Ok(made));
    let wrong = DecodeError::Kind { expected: 1, found: 2 };
    assert_eq!(path::decode(hasher, &bytes).map(|_| ()), Err(wrong));
    let made = trie.witness(hasher, ops);
    let bytes = made.encode(hasher).unwrap();
    let unverified = witness::decode(hasher, &bytes).unwrap();
    assert_eq!(unverified.op_count(), ops.len());
    assert_eq!(unverified.terminal_count(), made.proof.terminals.len());
    for (op, terminal) in unverified.ops() {
        assert!(terminal.covers(&op.key) && made.proof.terminals.contains(&terminal));
    }
    assert_eq!(DecodedWitness::decode(hasher, &bytes), Ok(made));
}

#[test]
fn what_was_encoded_is_decoded_without_a_root() {
    for seed in 0..crate::common::cases(20) {
        for spread in crate::common::SPREADS {
            let mut rng = crate::common::rng(seed);
            let count = crate::common::below(&mut rng, 50);
            let trie = crate::common::set(spread, &mut rng, count);
            let keys = crate::common::some_keys(&trie, spread, &mut rng, 10);
            let ops = crate::common::some_ops(&trie, spread, &mut rng, 10);
            decoded(BLAKE3, &trie, &keys, &ops);
            decoded(Hasher::SHA2_256, &trie, &keys, &ops);
        }
    }
    // Nothing has been hashed: a proof of anything is decoded.
    let bytes = NaiveTrie::new().multi(BLAKE3, &[[1; 32]]).encode(BLAKE3).unwrap();
    assert!(multi::verify(BLAKE3, &bytes, &[9; 32].into()).is_err());
    assert_eq!(multi::decode(BLAKE3, &bytes).unwrap().terminal_count(), 1);
    assert!(matches!(multi::decode(Hasher::SHA2_256, &bytes), Err(DecodeError::HasherId { .. })));
}

fn values(hasher: Hasher) {
    let value = |key: &Key| vec![key[0]; usize::from(key[0])];
    let keys = [[0; 32], [1; 32], [2; 32], [0x90; 32], [0xff; 32]];
    let trie: NaiveTrie = keys.iter().map(|key| (*key, hash_of(hasher, &value(key)))).collect();
    let root = trie.root(hasher);
    let absent = [3; 32];
    let bytes = trie.path(hasher, &keys[1]).encode(hasher).unwrap();
    let path = path::verify(hasher, &bytes, &root).unwrap();
    let bytes = trie.multi(hasher, &[keys[1], absent]).encode(hasher).unwrap();
    let multi = multi::verify(hasher, &bytes, &root).unwrap();
    let ops = [keys[1], absent]
        .map(|key| Op { key, access: Access::Write(Some(hash_of(hasher, b"another"))) });
    let bytes = trie.witness(hasher, &ops).encode(hasher).unwrap();
    let witness = witness::verify(hasher, &bytes, &root).unwrap();
    let bytes = trie.range(hasher, &keys[1], &absent);
    let range = range::verify(hasher, &bytes, &root, &keys[1], &absent).unwrap();
    let answers = |key: &Key, value: Option<&[u8]>| {
        [multi.proves(key, value), witness.proves(key, value), range.proves(key, value)]
    };
    let own = value(&keys[1]);
    assert_eq!(path.proves(&keys[1], Some(&own)), Some(true));
    assert_eq!(path.proves(&keys[1], Some(b"another")), Some(false));
    assert_eq!(path.proves(&keys[1], None), Some(false));
    assert_eq!(path.proves(&keys[4], None), None);
    assert_eq!(answers(&keys[1], Some(&own)), [Some(true); 3]);
    assert_eq!(answers(&keys[1], Some(b"another")), [Some(false); 3]);
    assert_eq!(answers(&keys[1], None), [Some(false); 3]);
    assert_eq!(answers(&absent, None), [Some(true); 3]);
    assert_eq!(answers(&absent, Some(&[])), [Some(false); 3]);
    assert_eq!(answers(&keys[4], Some(&value(&keys[4]))), [None; 3]);
    assert_eq!(answers(&keys[4], None), [None; 3]);
    // An empty value is present, and not absent.
    let bytes = trie.path(hasher, &keys[0]).encode(hasher).unwrap();
    let path = path::verify(hasher, &bytes, &root).unwrap();
    assert_eq!(
        [path.proves(&keys[0], Some(&[])), path.proves(&keys[0], None)],
        [Some(true), Some(false)]
    );
}

#[test]
fn a_value_is_hashed_by_the_proofs_own_function() {
    values(BLAKE3);
    values(Hasher::SHA2_256);
}
