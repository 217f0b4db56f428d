//! From a hash function as a type to one as a value, recorded by name.

use anyhow::ensure;
use nomt_core::hasher::{NodeHasher, ValueHasher, set_msb, unset_msb};
use nomt_core::trie::{InternalData, LeafData, NodeKind};
use pleach::Hasher;
use pleach_core::hexadecimal::hex;

/// A hash function of nodes and values. Every type that has both traits is one.
///
/// [`Nomt::open`](crate::Nomt::open) takes those that hash the 64 bytes of a node as a value and label the result in
/// its highest bit, as [`BinaryHasher`](crate::hasher::BinaryHasher) does, and refuses others.
pub trait HashAlgorithm: ValueHasher + NodeHasher {}

impl<T: ValueHasher + NodeHasher> HashAlgorithm for T {}

/// The engine's hasher with the output of `T`.
pub(crate) fn hasher_of<T: HashAlgorithm>() -> anyhow::Result<Hasher> {
    let (left, right) = ([0xa5; 32], [0x5a; 32]);
    let sample = [left, right].concat();
    let [mut leaf, mut internal] = [T::hash_value(&sample); 2];
    set_msb(&mut leaf);
    unset_msb(&mut internal);
    let labels = T::hash_leaf(&LeafData { key_path: left, value_hash: right }) == leaf
        && T::hash_internal(&InternalData { left, right }) == internal
        && T::node_kind(&leaf) == NodeKind::Leaf
        && T::node_kind(&internal) == NodeKind::Internal;
    ensure!(labels, "the hasher does not label nodes in their highest bit, as `BinaryHasher` does");
    let known = [Hasher::BLAKE3, Hasher::SHA2_256];
    if let Some(own) = known.into_iter().find(|own| own.hash(&sample) == T::hash_value(&sample)) {
        return Ok(own);
    }
    // Named by output, so that a database is not opened with another one. The few bytes stay allocated: a program opens
    // few databases.
    let name = format!("nomt-{}", hex(&T::hash_value(&sample)[..8]));
    Ok(Hasher::new(name.leak(), T::hash_value))
}
