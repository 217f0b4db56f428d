//! The root that a `RootFolder` gives is that of the naive trie and of `nomt-core`, whatever the keys and however
//! many; keys that do not ascend are refused.
use std::collections::BTreeMap;

use crate::common::{
    Blake3Hasher, Oracle, SPREADS, Sha2Hasher, below, cases, key, oracle_root, rng,
};
use pleach_core::{
    Hasher, Key, TERMINATOR,
    fold::{FoldValue, NotAscending, RootFolder},
    naive::NaiveTrie,
    node::value_hash,
};
use rand_core::RngCore;

/// The root by the folder; of some values only the hash is given.
fn check<H: Oracle>(pairs: &BTreeMap<Key, Vec<u8>>, what: &str) {
    let mut folder = RootFolder::new(H::HASHER);
    for (at, (key, value)) in pairs.iter().enumerate() {
        let value = match at % 7 {
            0 => FoldValue::Hash(value_hash(H::HASHER, value)),
            _ => FoldValue::Bytes(value),
        };
        folder.pair(key, value).expect("in order");
        if at % 1000 == 3 {
            assert_eq!(folder.pair(key, value), Err(NotAscending), "{what}: the same key");
            assert_eq!(folder.pair(&[0; 32], value), Err(NotAscending), "{what}: an earlier key");
        }
    }
    let trie: NaiveTrie =
        pairs.iter().map(|(key, value)| (*key, value_hash(H::HASHER, value))).collect();
    let root = folder.root();
    assert_eq!(root, trie.root(H::HASHER), "{what}: the naive trie");
    assert_eq!(root, oracle_root::<H>(&trie), "{what}: nomt-core");
}

#[test]
fn a_root_is_that_of_the_naive_trie_and_of_nomt_core() {
    for case in 0..cases(30) {
        let mut rng = rng(case);
        let spread = SPREADS[below(&mut rng, SPREADS.len())];
        let most = [3, 40, 4097, 9000, 20_000][below(&mut rng, 5)];
        let count = 1 + below(&mut rng, most);
        let mut value = || {
            let len = [0, 8, 70, 128, 129, 1000][below(&mut rng, 6)];
            let mut value = vec![0; len];
            rng.fill_bytes(&mut value);
            (key(spread, &mut rng), value)
        };
        let pairs: BTreeMap<Key, Vec<u8>> = (0..count).map(|_| value()).collect();
        let what = format!("case {case}, {spread:?}, {count} pairs");
        if case % 2 == 0 {
            check::<Blake3Hasher>(&pairs, &what);
        } else {
            check::<Sha2Hasher>(&pairs, &what);
        }
    }
    assert_eq!(RootFolder::new(Hasher::BLAKE3).root(), TERMINATOR);
}

/// Of keys that begin alike, those on both sides of each cut meet far below the root, or right at it.
#[test]
fn keys_that_begin_alike_are_cut_anywhere() {
    // The bytes that a group's keys share, and how many keys it has: the cuts fall on its ends or within.
    for (case, (shared, size)) in
        [(30, 100_000), (29, 4096), (16, 4095), (3, 1000), (30, 2)].into_iter().enumerate()
    {
        for count in [3 * 4096 + 1, 4 * 4096] {
            let pairs: BTreeMap<Key, Vec<u8>> = (0..count)
                .map(|at| {
                    let (group, within) = (at / size, at % size);
                    let mut key = [0x5a; 32];
                    key[..2].copy_from_slice(&u16::try_from(group).unwrap().to_be_bytes());
                    let within = u16::try_from(within).unwrap().to_be_bytes();
                    key[shared..shared + 2].copy_from_slice(&within);
                    (key, vec![within[1]; usize::from(within[0])])
                })
                .collect();
            assert_eq!(pairs.len(), count);
            let what = format!("{shared} bytes alike, {count} pairs");
            if case % 2 == 0 {
                check::<Blake3Hasher>(&pairs, &what);
            } else {
                check::<Sha2Hasher>(&pairs, &what);
            }
        }
    }
}

/// What stays is most where each bit of the last key has a subtrie beside it, and runs that end there are met.
#[test]
fn a_path_with_a_subtrie_beside_each_bit_stays_small_and_right() {
    let mut rng = rng(7);
    for (case, around) in [4095_usize, 4096, 4097, 8200].into_iter().enumerate() {
        let mut pairs = BTreeMap::new();
        let mut spine = [0; 32];
        rng.fill_bytes(&mut spine);
        // All ones: what lies beside the path comes before it, and all of it stays.
        let ones = case % 2 == 0;
        if ones {
            spine = [0xff; 32];
        }
        for bit in 0..256_usize {
            for _ in 0..=(around / 256) {
                let mut key = spine;
                key[bit / 8] ^= 0x80 >> (bit % 8);
                for after in bit + 1..256 {
                    if below(&mut rng, 2) == 0 {
                        key[after / 8] ^= 0x80 >> (after % 8);
                    }
                }
                pairs.insert(key, vec![1; bit % 9]);
            }
        }
        pairs.insert(spine, b"last".to_vec());
        check::<Blake3Hasher>(&pairs, &format!("around {around}, ones {ones}"));
    }
}
