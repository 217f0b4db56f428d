//! What was encoded is what a verifier says, and pieces put together give the same bytes.
#![cfg(feature = "naive")]

mod common;

use std::collections::BTreeMap;

use common::second;
use pleach_core::{
    Blake3, Key, Lookup, ValueHash,
    naive::{Naive, reads},
    proof::{Access, Op, WitnessWriter, multi, witness},
};
use proptest::prelude::*;

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
        u32::try_from(common::cases(200)).unwrap_or(u32::MAX)
    ))]

    #[test]
    fn a_witness_says_what_was_put_in(
        set in prop::collection::btree_map(keys(), value_hash(), 0..40),
        batch in prop::collection::btree_map(keys(), access(), 0..30),
        cuts in prop::collection::vec(0usize..30, 0..4),
    ) {
        let naive = Naive::from_iter(set.clone());
        let root = naive.root::<Blake3>();
        let ops: Vec<Op> = batch.iter().map(|(key, access)| Op { key: *key, access: *access }).collect();
        let made = naive.witness::<Blake3>(&ops);
        let bytes = made.encode::<Blake3>().unwrap();
        let verified = witness::verify::<Blake3>(&bytes, &root).unwrap();
        prop_assert_eq!(verified.terminals().collect::<Vec<_>>(), made.proof.terminals.clone());
        for op in verified.ops() {
            prop_assert_eq!(batch.get(&op.key), Some(&op.access));
            prop_assert_eq!(set.get(&op.key), op.before.as_ref());
            let wanted = set.get(&op.key).map_or(Lookup::Absent, |hash| Lookup::Present(*hash));
            prop_assert_eq!(verified.get(&op.key), wanted);
        }
        let mut after = naive.clone();
        after.apply(&ops);
        prop_assert_eq!(*verified.new_root(), after.root::<Blake3>());

        // The same from pieces, cut between any two terminals.
        let mut pieces: BTreeMap<usize, WitnessWriter> = BTreeMap::new();
        for (index, terminal) in made.proof.terminals.iter().enumerate() {
            let piece = cuts.iter().filter(|cut| **cut <= index).count();
            let writer = pieces.entry(piece).or_default();
            writer.terminal(terminal);
            for op in ops.iter().filter(|op| terminal.covers(&op.key)) {
                writer.op(op, terminal);
            }
        }
        let mut whole = WitnessWriter::new();
        for piece in pieces.values() {
            whole.append(piece);
        }
        whole.siblings(&made.proof.siblings);
        prop_assert_eq!(whole.finish::<Blake3>().unwrap(), bytes.clone());
        let with_terminals = || ops.iter().map(|op| {
            (op, made.proof.terminals.iter().find(|t| t.covers(&op.key)).unwrap())
        });
        let sizes = witness::sizes(made.proof.terminals.iter(), with_terminals(), made.proof.siblings.len());
        prop_assert_eq!(sizes.unwrap(), whole.sizes().unwrap());
        prop_assert_eq!(sizes.unwrap().total(), Some(bytes.len()));
    }

    #[test]
    fn a_multiproof_is_a_witness_of_reads(
        set in prop::collection::btree_map(keys(), value_hash(), 0..40),
        asked in prop::collection::btree_set(keys(), 1..20),
    ) {
        let naive = Naive::from_iter(set.clone());
        let root = naive.root::<Blake3>();
        let asked: Vec<Key> = asked.into_iter().collect();
        let bytes = naive.multi::<Blake3>(&asked).encode::<Blake3>().unwrap();
        let verified = multi::verify::<Blake3>(&bytes, &root).unwrap();
        for key in &asked {
            let wanted = set.get(key).map_or(Lookup::Absent, |hash| Lookup::Present(*hash));
            prop_assert_eq!(verified.get(key), wanted);
        }
        let bytes = naive.witness::<Blake3>(&reads(&asked)).encode::<Blake3>().unwrap();
        let verified = witness::verify::<Blake3>(&bytes, &root).unwrap();
        prop_assert_eq!(verified.new_root(), &root);
        prop_assert_eq!(second::verify::<Blake3>(&bytes, true, &root), Some(root));
    }
}
