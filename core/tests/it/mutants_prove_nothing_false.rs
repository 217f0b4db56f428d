//! Changed encodings are refused, or say something true about the same root; the fast and the
//! second verifier always agree on which.
use crate::common::{SPREADS, below, cases, mutate::mutate, rng, second, set, some_keys, some_ops};
use pleach_core::{
    Hasher, Node,
    naive::NaiveTrie,
    proof::{Lookup, Terminal, change, multi, path, range, witness},
};
use rand_core::RngCore;

const BLAKE3: Hasher = Hasher::BLAKE3;

/// All that a terminal says is so.
fn true_of(set: &NaiveTrie, root: &Node, terminal: &Terminal) {
    let position = terminal.prefix();
    let below: Vec<_> =
        set.pairs().iter().filter(|(key, _)| position.covers(key)).map(|(k, v)| (*k, *v)).collect();
    match terminal {
        Terminal::Leaf { key, value_hash, .. } => {
            assert_eq!(below, [(*key, *value_hash)], "about {root:02x?}");
        }
        Terminal::Terminator { .. } => assert_eq!(below, [], "about {root:02x?}"),
    }
}

fn path_and_multi(hasher: Hasher, seed: u64, mutants: usize) {
    for spread in SPREADS {
        let mut rng = rng(seed);
        let count = 1 + below(&mut rng, 60);
        let set = set(spread, &mut rng, count);
        let root = set.root(hasher);
        let count = 1 + below(&mut rng, 10);
        let mut keys = some_keys(&set, spread, &mut rng, count);
        keys.truncate(10);
        let valid_path = set.path(hasher, &keys[0]).encode(hasher).unwrap();
        let valid_multi = set.multi(hasher, &keys).encode(hasher).unwrap();
        for _ in 0..mutants {
            let mut bytes = valid_path.clone();
            mutate(&mut rng, &mut bytes);
            if bytes != valid_path {
                assert!(path::verify(hasher, &bytes, &root).is_err(), "{spread:?}");
            }
            let mut bytes = valid_multi.clone();
            for _ in 0..=rng.next_u32() % 2 {
                mutate(&mut rng, &mut bytes);
            }
            let verdict = multi::verify(hasher, &bytes, &root);
            assert_eq!(verdict.is_ok(), second::verify(hasher, &bytes, false, &root).is_some());
            assert!(bytes == valid_multi || verdict.is_err(), "{spread:?}");
        }
        let other = NaiveTrie::from_iter([([1; 32], [2; 32].into())]).root(hasher);
        assert!(path::verify(hasher, &valid_path, &other).is_err());
        assert!(multi::verify(hasher, &valid_multi, &other).is_err());
    }
}

fn witnesses(hasher: Hasher, seed: u64, mutants: usize) {
    for spread in SPREADS {
        let mut rng = rng(seed);
        let count = below(&mut rng, 40);
        let set = set(spread, &mut rng, count);
        let root = set.root(hasher);
        let count = below(&mut rng, 10);
        let ops = some_ops(&set, spread, &mut rng, count);
        let valid = set.witness(hasher, &ops).encode(hasher).unwrap();
        for _ in 0..mutants {
            let mut bytes = valid.clone();
            for _ in 0..=rng.next_u32() % 2 {
                mutate(&mut rng, &mut bytes);
            }
            let verdict = witness::verify(hasher, &bytes, &root);
            let second = second::verify(hasher, &bytes, true, &root);
            assert_eq!(verdict.as_ref().ok().map(|v| *v.new_root()), second, "{spread:?}");
            let Ok(verified) = verdict else { continue };
            // The operations are the caller's input: other operations are another batch, and
            // the claim about it has to hold.
            verified.terminals().for_each(|terminal| true_of(&set, &root, &terminal));
            let mut after = set.clone();
            for op in verified.ops() {
                assert_eq!(op.before.as_ref(), set.get(&op.key));
                after.apply(&[pleach_core::proof::Op { key: op.key, access: op.access }]);
            }
            assert_eq!(*verified.new_root(), after.root(hasher));
        }
    }
}

fn ranges_and_changes(hasher: Hasher, seed: u64, mutants: usize) {
    for spread in SPREADS {
        let mut rng = rng(seed);
        let count = below(&mut rng, 40);
        let from = set(spread, &mut rng, count);
        let mut to = from.clone();
        let count = below(&mut rng, 10);
        to.apply(&some_ops(&from, spread, &mut rng, count));
        let (from_root, to_root) = (from.root(hasher), to.root(hasher));
        let keys = some_keys(&to, spread, &mut rng, 2);
        let (first, last) = match below(&mut rng, 4) {
            0 => ([0; 32], [0xff; 32]),
            1 => (keys[0], keys[0]),
            _ => (keys[0], keys[keys.len() - 1]),
        };
        let valid_range = from.range(hasher, &first, &last);
        let valid_change = from.change(hasher, &to, &first, &last);
        for _ in 0..mutants {
            let twice = rng.next_u32() % 2;
            let mut bytes = valid_range.clone();
            (0..=twice).for_each(|_| mutate(&mut rng, &mut bytes));
            let verdict = range::verify(hasher, &bytes, &from_root, &first, &last).is_ok();
            assert_eq!(verdict, second::range(hasher, &bytes, &from_root, &first, &last));
            assert_eq!(verdict, bytes == valid_range, "{spread:?} {seed}");
            let mut bytes = valid_change.clone();
            (0..=twice).for_each(|_| mutate(&mut rng, &mut bytes));
            let verdict =
                change::verify(hasher, &bytes, &from_root, &to_root, &first, &last).is_ok();
            let second = second::change(hasher, &bytes, &from_root, &to_root, &first, &last);
            assert_eq!(verdict, second, "{spread:?} {seed}");
            assert_eq!(verdict, bytes == valid_change, "{spread:?} {seed}");
        }
    }
}

#[test]
fn no_mutant_of_a_range_or_change_proof_is_accepted() {
    for seed in 0..cases(12) {
        ranges_and_changes(BLAKE3, seed, 150);
        ranges_and_changes(Hasher::SHA2_256, seed, 20);
    }
}

#[test]
fn no_mutant_of_a_path_or_multiproof_is_accepted() {
    for seed in 0..cases(12) {
        path_and_multi(BLAKE3, seed, 150);
        path_and_multi(Hasher::SHA2_256, seed, 20);
    }
}

#[test]
fn no_mutant_of_a_witness_claims_anything_false() {
    for seed in 0..cases(12) {
        witnesses(BLAKE3, seed, 150);
        witnesses(Hasher::SHA2_256, seed, 20);
    }
}

#[test]
fn every_single_bit_of_a_proof_counts() {
    let mut rng = rng(99);
    let set = set(crate::common::Spread::Shared60, &mut rng, 20);
    let root = set.root(BLAKE3);
    let keys = some_keys(&set, crate::common::Spread::Shared60, &mut rng, 4);
    let path = set.path(BLAKE3, &keys[0]).encode(BLAKE3).unwrap();
    let multi = set.multi(BLAKE3, &keys).encode(BLAKE3).unwrap();
    for bit in 0..path.len() * 8 {
        let mut bytes = path.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(path::verify(BLAKE3, &bytes, &root).is_err(), "bit {bit} of a path");
    }
    for bit in 0..multi.len() * 8 {
        let mut bytes = multi.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(multi::verify(BLAKE3, &bytes, &root).is_err(), "bit {bit} of a multiproof");
    }
    let (first, last) = (keys[0], keys[keys.len() - 1]);
    let mut other = set.clone();
    for key in &keys {
        other.set(*key, Some([3; 32].into()));
    }
    let other_root = other.root(BLAKE3);
    let range = set.range(BLAKE3, &first, &last);
    let change = set.change(BLAKE3, &other, &first, &last);
    for bit in 0..range.len() * 8 {
        let mut bytes = range.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let verdict = range::verify(BLAKE3, &bytes, &root, &first, &last);
        assert!(verdict.is_err(), "bit {bit} of a range");
    }
    for bit in 0..change.len() * 8 {
        let mut bytes = change.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let verdict = change::verify(BLAKE3, &bytes, &root, &other_root, &first, &last);
        assert!(verdict.is_err(), "bit {bit} of a change");
    }
    for len in 0..path.len() {
        assert!(path::verify(BLAKE3, &path[..len], &root).is_err());
    }
}

#[test]
fn a_proof_says_nothing_about_keys_it_does_not_open() {
    let mut rng = rng(5);
    let set = set(crate::common::Spread::Uniform, &mut rng, 200);
    let root = set.root(BLAKE3);
    let keys = some_keys(&set, crate::common::Spread::Uniform, &mut rng, 20);
    let bytes = set.multi(BLAKE3, &keys).encode(BLAKE3).unwrap();
    let verified = multi::verify(BLAKE3, &bytes, &root).unwrap();
    for _ in 0..500 {
        let key = crate::common::key(crate::common::Spread::Uniform, &mut rng);
        let covered = verified.terminals().any(|terminal| terminal.prefix().covers(&key));
        assert_eq!(verified.get(&key) != Lookup::OutOfScope, covered);
    }
}
