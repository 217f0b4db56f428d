//! The published crate `nomt-core` computes the same roots and accepts our proofs.
#![cfg(feature = "naive")]

use crate::common::{
    Blake3Hasher, Oracle, SPREADS, Sha2Hasher, Spread, below, cases, oracle_root, rng, set,
    some_keys, some_ops,
};
use bitvec::prelude::{BitSlice, Msb0};
use nomt_core::{
    proof::{self as theirs, MultiPathProof, MultiProof as TheirMulti, PathProofTerminal},
    trie::{KeyPath, LeafData},
    trie_pos::TriePosition,
};
use pleach_core::{
    Hasher, Key, Node, Prefix,
    naive::NaiveTrie,
    proof::{
        Access, Lookup, Op, Terminal,
        multi::{self, MultiProof},
        path::{self, PathProof},
        witness::{self, DecodedWitness},
    },
};

/// The conversions of the drop-in, which core does not need.
#[expect(unreachable_pub, reason = "public there")]
#[path = "../../../bindings/nomt/src/proofs.rs"]
mod nomt;
use nomt::ConvertError;

const BLAKE3: Hasher = Hasher::BLAKE3;

fn bits(key: &Key) -> &BitSlice<u8, Msb0> {
    BitSlice::from_slice(key)
}

fn check_paths<H: Oracle>(set: &NaiveTrie, keys: &[Key]) {
    let root = set.root(H::HASHER);
    for key in keys {
        let ours = set.path(H::HASHER, key);
        let foreign = nomt::path_to(&ours).expect("has a counterpart");
        let accepted = foreign.verify::<H>(bits(key), root.into()).expect("accepted");
        assert_eq!(nomt::path_from(&foreign), Ok(ours.clone()));
        let bytes = ours.encode(H::HASHER).unwrap();
        let verified = path::verify(H::HASHER, &bytes, &root).expect("our own");
        match (verified.get(key), set.get(key)) {
            (Lookup::Present(found), Some(wanted)) => {
                assert_eq!(found, *wanted);
                let leaf = LeafData { key_path: *key, value_hash: found.into() };
                assert!(accepted.confirm_value(&leaf).unwrap());
            }
            (Lookup::Absent, None) => assert!(accepted.confirm_nonexistence(key).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

fn check_multi<H: Oracle>(set: &NaiveTrie, keys: &[Key]) {
    let root = set.root(H::HASHER);
    let ours = set.multi(H::HASHER, keys);
    let bytes = ours.encode(H::HASHER).unwrap();
    let verified = multi::verify(H::HASHER, &bytes, &root).expect("our own");
    assert_eq!(verified.terminals().collect::<Vec<_>>(), ours.terminals);
    if keys.is_empty() {
        assert_eq!(nomt::multi_to(&ours), Err(ConvertError::Empty));
        return;
    }
    let foreign = nomt::multi_to(&ours).expect("has a counterpart");
    assert_eq!(nomt::multi_from(&foreign), Ok(ours.clone()));
    let accepted = theirs::verify_multi_proof::<H>(&foreign, root.into()).expect("accepted");
    let mut paths: Vec<_> =
        keys.iter().map(|key| nomt::path_to(&set.path(H::HASHER, key)).unwrap()).collect();
    paths.dedup_by(|a, b| a.terminal == b.terminal);
    assert_eq!(TheirMulti::from_path_proofs(paths), foreign, "built from separate paths");
    for key in keys {
        match (verified.get(key), set.get(key)) {
            (Lookup::Present(found), Some(wanted)) => {
                assert_eq!(found, *wanted);
                let leaf = LeafData { key_path: *key, value_hash: found.into() };
                assert!(accepted.confirm_value(&leaf).unwrap());
            }
            (Lookup::Absent, None) => assert!(accepted.confirm_nonexistence(key).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

fn check_update<H: Oracle>(set: &mut NaiveTrie, ops: &[Op]) {
    let prev = set.root(H::HASHER);
    let ours = set.witness(H::HASHER, ops);
    let bytes = ours.encode(H::HASHER).unwrap();
    let verified = witness::verify(H::HASHER, &bytes, &prev).expect("our own");
    let before = set.clone();
    set.apply(ops);
    let next = oracle_root::<H>(set);
    assert_eq!(*verified.new_root(), next);
    assert_eq!(verified.op_count(), ops.len());
    let seen: Vec<_> = verified.ops().map(|op| (op.key, op.access, op.before)).collect();
    let wanted: Vec<_> =
        ops.iter().map(|op| (op.key, op.access, before.get(&op.key).copied())).collect();
    assert_eq!(seen, wanted);
    if ops.is_empty() {
        assert_eq!(*verified.new_root(), prev);
        let foreign = nomt::witness_to(H::HASHER, &ours).unwrap();
        assert!(foreign.path_proofs.is_empty() && foreign.operations.writes.is_empty());
        assert_eq!(nomt::witness_from(&foreign), Ok(ours));
        return;
    }
    let writes: Vec<(KeyPath, Option<[u8; 32]>)> = ops
        .iter()
        .filter_map(|op| {
            op.access.written().map(|value| (op.key, value.map(|hash| hash.to_bytes())))
        })
        .collect();
    let foreign = nomt::multi_to(&ours.proof).expect("has a counterpart");
    let accepted = theirs::verify_multi_proof::<H>(&foreign, prev.into()).expect("accepted");
    let updated = theirs::verify_multi_proof_update::<H>(&accepted, writes.clone());
    assert_eq!(updated.expect("updates"), next.to_bytes());
    check_path_update::<H>(&before, &writes, next);
    check_witness::<H>(&ours, prev, next);
}

/// The witness as the other crate has it, and checked as its users do: each path, then the reads, then the writes.
fn check_witness<H: Oracle>(ours: &DecodedWitness, prev: Node, next: Node) {
    let mut foreign = nomt::witness_to(H::HASHER, ours).expect("has a counterpart");
    let mut updates = Vec::new();
    for (index, path) in foreign.path_proofs.iter().enumerate() {
        let inner = path.inner.verify::<H>(path.path.path(), prev.into());
        let inner = inner.expect("accepted");
        for read in foreign.operations.reads.iter().filter(|read| read.path_index == index) {
            let confirmed = match read.value {
                Some(value_hash) => {
                    inner.confirm_value(&LeafData { key_path: read.key, value_hash })
                }
                None => inner.confirm_nonexistence(&read.key),
            };
            assert!(confirmed.expect("in scope"));
        }
        let writes = foreign.operations.writes.iter().filter(|write| write.path_index == index);
        let ops: Vec<_> = writes.map(|write| (write.key, write.value)).collect();
        if !ops.is_empty() {
            updates.push(theirs::PathUpdate { inner, ops });
        }
    }
    let updated = theirs::verify_update::<H>(prev.into(), &updates);
    assert_eq!(updated.expect("updates"), next.to_bytes());
    assert_eq!(nomt::witness_from(&foreign), Ok(ours.clone()));
    // Their paths and operations are in no order.
    let last = foreign.path_proofs.len() - 1;
    foreign.path_proofs.reverse();
    foreign.operations.reads.reverse();
    foreign.operations.writes.reverse();
    foreign.operations.reads.iter_mut().for_each(|read| read.path_index = last - read.path_index);
    let writes = foreign.operations.writes.iter_mut();
    writes.for_each(|write| write.path_index = last - write.path_index);
    assert_eq!(nomt::witness_from(&foreign), Ok(ours.clone()));
}

/// The other crate's update from separate paths.
fn check_path_update<H: Oracle>(
    before: &NaiveTrie,
    writes: &[(KeyPath, Option<[u8; 32]>)],
    next: Node,
) {
    let prev = before.root(H::HASHER);
    let mut updates: Vec<theirs::PathUpdate> = Vec::new();
    for (key, value) in writes {
        let inner = nomt::path_to(&before.path(H::HASHER, key))
            .unwrap()
            .verify::<H>(bits(key), prev.into());
        let inner = inner.expect("accepted");
        match updates.last_mut() {
            Some(last) if last.inner.path() == inner.path() => last.ops.push((*key, *value)),
            _ => updates.push(theirs::PathUpdate { inner, ops: vec![(*key, *value)] }),
        }
    }
    assert_eq!(
        theirs::verify_update::<H>(prev.into(), &updates).expect("updates"),
        next.to_bytes()
    );
}

fn random_sets<H: Oracle>(seed: u64) {
    for case in 0..cases(30) {
        for spread in SPREADS {
            let mut rng = rng(seed ^ case);
            let size = [0, 1, 2, 3, 9, 40, 150][below(&mut rng, 7)];
            let set = set(spread, &mut rng, size);
            assert_eq!(
                set.root(H::HASHER),
                oracle_root::<H>(&set),
                "{spread:?} {size} seed {case}"
            );
            let count = below(&mut rng, 12);
            let keys = some_keys(&set, spread, &mut rng, count);
            check_paths::<H>(&set, &keys);
            check_multi::<H>(&set, &keys);
        }
    }
}

fn random_batches<H: Oracle>(seed: u64) {
    for case in 0..cases(6) {
        for spread in SPREADS {
            let mut rng = rng(seed ^ (case << 8));
            let size = below(&mut rng, 60);
            let mut set = set(spread, &mut rng, size);
            for _ in 0..8 {
                let count = below(&mut rng, 40);
                let ops = some_ops(&set, spread, &mut rng, count);
                check_update::<H>(&mut set, &ops);
            }
            let rest: Vec<_> = set
                .pairs()
                .keys()
                .map(|key| Op { key: *key, access: Access::Write(None) })
                .collect();
            check_update::<H>(&mut set, &rest);
            assert_eq!(set.root(H::HASHER), pleach_core::TERMINATOR);
        }
    }
}

#[test]
fn roots_and_proofs_of_random_sets_agree_under_blake3() {
    random_sets::<Blake3Hasher>(1);
}

#[test]
fn roots_and_proofs_of_random_sets_agree_under_sha256() {
    random_sets::<Sha2Hasher>(2);
}

#[test]
fn new_roots_of_random_batches_agree_under_blake3() {
    random_batches::<Blake3Hasher>(3);
}

#[test]
fn new_roots_of_random_batches_agree_under_sha256() {
    random_batches::<Sha2Hasher>(4);
}

#[test]
fn roots_of_thousands_of_small_sets_agree() {
    for case in 0..cases(500) {
        for spread in SPREADS {
            let mut rng = rng(0x5e75 ^ case);
            let size = below(&mut rng, 24);
            let set = set(spread, &mut rng, size);
            assert_eq!(set.root(BLAKE3), oracle_root::<Blake3Hasher>(&set), "{spread:?} {case}");
        }
    }
}

#[test]
fn a_node_at_a_position_is_what_the_root_is_made_of() {
    let set = set(Spread::Uniform, &mut rng(7), 300);
    let root = pleach_core::Prefix::ROOT;
    let node = |p: &pleach_core::Prefix| set.node(BLAKE3, p);
    let halves = [node(&root.child(false)), node(&root.child(true))];
    assert_eq!(pleach_core::node::combine(BLAKE3, &halves[0], &halves[1]), set.root(BLAKE3));
    assert_eq!(BLAKE3.hash64(&[7; 64]), BLAKE3.hash(&[7; 64]));
}

#[test]
fn what_the_other_crate_cannot_express_is_an_error() {
    let set = set(Spread::Uniform, &mut rng(4), 40);
    let keys: Vec<Key> = set.pairs().keys().copied().step_by(7).collect();
    let leaf = |depth| Terminal::Leaf { depth, key: [1; 32], value_hash: [2; 32].into() };
    let path = |depth, siblings| PathProof {
        terminal: leaf(depth),
        siblings: vec![[3; 32].into(); siblings],
    };
    assert!(nomt::path_to(&path(256, 256)).is_ok());
    let deep = ConvertError::TooDeep { depth: 300 };
    assert_eq!(nomt::path_to(&path(300, 300)).err(), Some(deep));
    let count = ConvertError::SiblingCount { expected: 3, found: 4 };
    assert_eq!(nomt::path_to(&path(3, 4)).err(), Some(count));
    let mut theirs = nomt::path_to(&path(256, 256)).unwrap();
    theirs.siblings.resize(300, [3; 32]);
    assert_eq!(nomt::path_from(&theirs), Err(deep));
    theirs.siblings.truncate(4);
    theirs.terminal =
        PathProofTerminal::Terminator(TriePosition::from_path_and_depth([0xff; 32], 5));
    assert_eq!(nomt::path_from(&theirs), Err(ConvertError::Position { expected: 4, found: 5 }));
    theirs.siblings.push([3; 32]);
    let terminal = nomt::path_from(&theirs).unwrap().terminal;
    assert_eq!(terminal, Terminal::Terminator { prefix: Prefix::new(&[0xff; 32], 5) });

    let mut ours = set.multi(BLAKE3, &keys);
    let empty = TheirMulti { paths: vec![], siblings: vec![] };
    assert_eq!(nomt::multi_from(&empty), Err(ConvertError::Empty));
    ours.terminals.swap(0, 1);
    assert_eq!(nomt::multi_to(&ours), Err(ConvertError::TerminalOrder));
    ours.terminals.swap(0, 1);
    let found = ours.siblings.len();
    ours.siblings.pop();
    let count = ConvertError::SiblingCount { expected: found, found: found - 1 };
    assert_eq!(nomt::multi_to(&ours), Err(count));
    let deep = MultiProof { terminals: vec![leaf(300)], siblings: vec![] };
    assert_eq!(nomt::multi_to(&deep), Err(ConvertError::TooDeep { depth: 300 }));
    let mut theirs = nomt::multi_to(&set.multi(BLAKE3, &keys)).unwrap();
    let MultiPathProof { depth, .. } = &mut theirs.paths[0];
    *depth = 1000;
    assert_eq!(nomt::multi_from(&theirs), Err(ConvertError::TooDeep { depth: 1000 }));
}

#[test]
fn a_foreign_witness_that_contradicts_itself_is_an_error() {
    let set = set(Spread::Uniform, &mut rng(5), 40);
    let access = [Access::Read, Access::Write(None), Access::ReadWrite(Some([1; 32].into()))];
    let keys = set.pairs().keys().step_by(9);
    let ops: Vec<Op> = keys
        .zip(access.iter().cycle())
        .map(|(key, access)| Op { key: *key, access: *access })
        .collect();
    let ours = set.witness(BLAKE3, &ops);
    let good = || nomt::witness_to(BLAKE3, &ours).unwrap();
    assert_eq!(nomt::witness_from(&good()), Ok(ours.clone()));
    let refused = |change: &dyn Fn(&mut nomt_core::witness::Witness), error| {
        let mut bad = good();
        change(&mut bad);
        assert_eq!(nomt::witness_from(&bad), Err(error));
    };
    refused(&|bad| bad.operations.reads[0].value = None, ConvertError::ReadValue);
    refused(&|bad| bad.operations.reads[0].path_index = 1, ConvertError::OpOutOfScope);
    refused(&|bad| bad.operations.writes[0].path_index = 100, ConvertError::OpOutOfScope);
    refused(&|bad| bad.operations.writes[0].key[0] ^= 0x80, ConvertError::OpOutOfScope);
    refused(&|bad| bad.operations.reads.truncate(1), ConvertError::UnusedPath);
    refused(&|bad| bad.path_proofs[0].inner.siblings[0][5] ^= 1, ConvertError::Inconsistent);
    refused(
        &|bad| {
            let again = &bad.operations.writes[0];
            let (key, value, path_index) = (again.key, again.value, again.path_index);
            let twice = nomt_core::witness::WitnessedWrite { key, value, path_index };
            bad.operations.writes.push(twice);
        },
        ConvertError::RepeatedKey,
    );
    refused(
        &|bad| {
            let again = &bad.path_proofs[0];
            let (inner, path) = (again.inner.clone(), again.path.clone());
            bad.path_proofs.push(nomt_core::witness::WitnessedPath { inner, path });
        },
        ConvertError::TerminalOrder,
    );
    let expected = usize::from(ours.proof.terminals[0].depth());
    refused(
        &|bad| bad.path_proofs[0].path = TriePosition::new(),
        ConvertError::Position { expected, found: 0 },
    );
    let mut bad = ours.clone();
    bad.ops.remove(0);
    let unused = nomt::witness_to(BLAKE3, &bad).err();
    assert_eq!(unused, Some(ConvertError::UnusedPath));
    let mut bad = ours.clone();
    bad.ops.swap(0, 1);
    assert!(nomt::witness_to(BLAKE3, &bad).is_err());
}
