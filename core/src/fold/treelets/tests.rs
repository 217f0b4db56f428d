//! What keys that part far down cost. That the results are right is compared elsewhere, with the general fold.

use super::*;
use crate::hasher::Hasher;
use crate::node::{leaf, value_hash};

/// Shares `bits` bits with the key of zeros.
fn beside(bits: usize) -> Key {
    let mut key = [0; 32];
    key[bits / 8] = 0x80 >> (bits % 8);
    key
}

const RIGHT: Node = {
    let mut node = [9; 32];
    node[0] |= 0x80;
    Node::new(node)
};

/// A treelet whose prefix has the keys of a bucket on the left, and something known on the right.
fn begin(folder: &mut TreeletFolder) -> u8 {
    folder.begin((0, None), way(0), 1, |_| [TERMINATOR, RIGHT]);
    folder.bucket_of(0)
}

/// A leaf beside a key that is absent or goes needs no hash on its way up.
#[test]
fn a_leaf_that_is_left_alone_costs_no_hash_a_bit() {
    let old = Some(FoldValue::Bytes(b"1"));
    for bits in [8, 60, 250] {
        for (accessed, what) in
            [(false, Change::Keep), (true, Change::Keep), (true, Change::Delete)]
        {
            let mut folder = TreeletFolder::new(Hasher::BLAKE3);
            folder.clear();
            let at = begin(&mut folder);
            if accessed {
                folder.accessed(&[0; 32], old, Change::Keep);
            } else {
                folder.unaccessed(&[0; 32], FoldValue::Bytes(b"1"));
            }
            let goes = matches!(what, Change::Delete);
            folder.accessed(&beside(bits), old.filter(|_| goes), what);
            folder.bucket(at, true);
            let treelet = folder.end();
            folder.run();
            let hash = value_hash(Hasher::BLAKE3, b"1");
            let expected = crate::node::combine(
                Hasher::BLAKE3,
                &leaf(Hasher::BLAKE3, &[0; 32], &hash),
                &RIGHT,
            );
            assert_eq!(*folder.node(treelet), expected, "{bits}");
            assert!(folder.hashed() <= 4, "{bits} bits: {} hashes", folder.hashed());
        }
    }
}

/// Two keys that part far down take as many hashes as there are bits, and memory for two keys.
#[test]
fn a_long_way_up_takes_the_memory_of_a_step() {
    let mut folder = TreeletFolder::new(Hasher::BLAKE3);
    folder.clear();
    for _ in 0..512 {
        let at = begin(&mut folder);
        folder.accessed(&[0; 32], None, Change::Put(FoldValue::Bytes(b"1")));
        folder.unaccessed(&beside(240), FoldValue::Bytes(b"2"));
        folder.bucket(at, true);
        folder.end();
    }
    let blocks: usize = folder.stages.iter().map(|stage| stage.pairs.len()).sum();
    assert!(blocks <= 512 * 8, "{blocks} blocks");
    folder.run();
    let node = *folder.node(0);
    assert!((1..512).all(|treelet| *folder.node(treelet) == node));
    // Values, leaves, a block each from 240 up to 0.
    assert_eq!(folder.hashed(), 512 * (4 + 241));
    assert!(folder.stages.len() <= ROUNDS + 8, "{} stages", folder.stages.len());
    let right = leaf(Hasher::BLAKE3, &beside(240), &value_hash(Hasher::BLAKE3, b"2"));
    let left = leaf(Hasher::BLAKE3, &[0; 32], &value_hash(Hasher::BLAKE3, b"1"));
    let mut expected = crate::node::combine(Hasher::BLAKE3, &left, &right);
    for _ in 1..240 {
        expected = crate::node::combine(Hasher::BLAKE3, &expected, &TERMINATOR);
    }
    assert_eq!(node, crate::node::combine(Hasher::BLAKE3, &expected, &RIGHT));
}
