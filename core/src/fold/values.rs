//! Values and their hashes, and nodes that are combined level by level.

use alloc::vec::Vec;

use super::{FoldValue, HashId};
use crate::hasher::Hasher;
use crate::node::{Combination, Node, ValueHash, combine_kind, tag_internal, value_hash};
use crate::tree::index32;

/// Values and their hashes. Values of one block, and those of two (an account's mostly has some seventy or a hundred
/// bytes), are queued and hashed together.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) hasher: Hasher,
    hashes: Vec<ValueHash>,
    of_one: HashQueue<64>,
    of_two: HashQueue<128>,
    out: Vec<[u8; 32]>,
    /// Hash calls made so far.
    pub(super) hashed: u64,
}

/// Values of equally many blocks that are not hashed yet.
#[derive(Debug, Default)]
struct HashQueue<const BYTES: usize> {
    messages: Vec<[u8; BYTES]>,
    lens: Vec<u8>,
    dest: Vec<HashId>,
}

impl<const BYTES: usize> HashQueue<BYTES> {
    #[inline]
    fn add(&mut self, bytes: &[u8], dest: HashId) {
        let message = self.messages.len();
        self.messages.push([0; BYTES]);
        let to = &mut self.messages[message];
        match <[u8; 8]>::try_from(bytes) {
            // The length of a balance: a store, and no call.
            Ok(word) => to[..8].copy_from_slice(&word),
            Err(_) => to[..bytes.len()].copy_from_slice(bytes),
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most `BYTES`, fewer than 256")]
        self.lens.push(bytes.len() as u8);
        self.dest.push(dest);
    }

    /// Hashes all queued values; `out` is spare memory.
    fn run(&mut self, hasher: Hasher, out: &mut Vec<[u8; 32]>, hashes: &mut [ValueHash]) -> u64 {
        let count = self.messages.len();
        if count == 0 {
            return 0;
        }
        out.resize(count.max(out.len()), [0; 32]);
        hasher.hash_short_many(self.messages.as_flattened(), BYTES, &self.lens, &mut out[..count]);
        for (dest, hash) in self.dest.iter().zip(&*out) {
            hashes[*dest as usize] = ValueHash::new(*hash);
        }
        self.clear();
        count as u64
    }

    fn shrink_to(&mut self, keys: usize) {
        self.messages.shrink_to(keys);
        self.lens.shrink_to(keys);
        self.dest.shrink_to(keys);
    }

    fn clear(&mut self) {
        self.messages.clear();
        self.lens.clear();
        self.dest.clear();
    }
}

impl Values {
    pub(super) fn new(hasher: Hasher) -> Self {
        let (of_one, of_two) = (HashQueue::default(), HashQueue::default());
        Self { hasher, hashes: Vec::new(), of_one, of_two, out: Vec::new(), hashed: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.hashes.clear();
        self.of_one.clear();
        self.of_two.clear();
    }

    pub(super) fn shrink_to(&mut self, keys: usize) {
        self.hashes.shrink_to(keys);
        self.of_one.shrink_to(keys);
        self.of_two.shrink_to(keys);
    }

    /// Adds a value.
    #[inline]
    pub(super) fn add(&mut self, value: FoldValue<'_>) -> HashId {
        let id = index32(self.hashes.len());
        self.hashes.push(match value {
            FoldValue::Hash(hash) => hash,
            FoldValue::Bytes(bytes) if bytes.len() > 128 => {
                self.hashed += 1;
                value_hash(self.hasher, bytes)
            }
            FoldValue::Bytes(bytes) => {
                if bytes.len() <= 64 {
                    self.of_one.add(bytes, id);
                } else {
                    self.of_two.add(bytes, id);
                }
                ValueHash::new([0; 32])
            }
        });
        id
    }

    /// Replaces a hash.
    pub(super) fn set(&mut self, id: HashId, hash: ValueHash) {
        self.hashes[id as usize] = hash;
    }

    /// Hashes all queued values.
    pub(super) fn run(&mut self) {
        let Self { hasher, hashes, of_one, of_two, out, hashed } = self;
        *hashed += of_one.run(*hasher, out, hashes) + of_two.run(*hasher, out, hashes);
    }

    /// A hash; of a queued value only after [`Self::run`].
    #[inline]
    pub(super) fn hash(&self, id: HashId) -> &ValueHash {
        &self.hashes[id as usize]
    }
}

/// Combines each chunk of `width` neighbouring nodes of one depth into the node above them all;
/// `nodes` shrinks to one node for each chunk.
///
/// # Panics
/// When `width` is not a power of two or does not divide the number of nodes.
pub fn combine_chunks(hasher: Hasher, nodes: &mut Vec<Node>, width: usize) {
    assert!(width.is_power_of_two() && nodes.len().is_multiple_of(width), "whole chunks");
    let mut out = Vec::new();
    for _ in 0..width.trailing_zeros() {
        let blocks = Node::bytes_of(nodes).as_chunks().0;
        out.resize(blocks.len(), [0; 32]);
        hasher.hash64_many(blocks, &mut out);
        for (at, hash) in out.iter().enumerate() {
            nodes[at] = match combine_kind(&nodes[2 * at], &nodes[2 * at + 1]) {
                Combination::Known(node) => node,
                Combination::Hash => tag_internal(*hash),
            };
        }
        nodes.truncate(out.len());
    }
}
