//! The blocks of export streams and change streams: header, checksums, limits, and what can be wrong with one.

use core::hash::Hasher as _;
use twox_hash::XxHash3_64;

/// First bytes of a block.
pub(crate) const MAGIC: [u8; 4] = *b"PLXB";
/// The version of export streams.
pub const VERSION: u16 = 2;
/// The version of change streams.
pub const CHANGES_VERSION: u16 = 2;
/// In place of a value's length: the key is deleted.
pub(crate) const DELETED: u32 = u32::MAX;
/// Bytes of a block's header.
pub(crate) const HEADER: usize = 24;
/// Bytes of the header that the checksum covers.
pub(crate) const SUMMED: usize = 16;
/// Bytes of a block of several pairs, at most.
pub(crate) const FULL: usize = 256 << 10;
/// Longest value.
pub(crate) const MAX_VALUE: usize = 64 << 20;
/// Longest payload: a block with one pair of the longest value, or a head with the longest blob.
pub(crate) const MAX_PAYLOAD: usize = MAX_VALUE + 1024;
/// Bytes of a payload of pairs or changes before the first one.
pub(crate) const PAIRS_HEAD: usize = 8;
/// Bytes of a payload that ends a namespace.
pub(crate) const END_OF_NAMESPACE: usize = 16;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockKind {
    Head = 1,
    Pairs = 2,
    EndOfNamespace = 3,
    End = 4,
    ChangesHead = 5,
    Changes = 6,
}

impl BlockKind {
    pub(crate) fn of_byte(byte: u8) -> Option<Self> {
        let pairs = [Self::Head, Self::Pairs, Self::EndOfNamespace, Self::End];
        let changes = [Self::ChangesHead, Self::Changes];
        pairs.into_iter().chain(changes).find(|kind| *kind as u8 == byte)
    }
}

/// The checksum of a block after the one with the checksum `before`.
pub(crate) fn checksum(before: u64, header: &[u8; SUMMED], payload: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::with_seed(before);
    hasher.write(header);
    hasher.write(payload);
    hasher.finish()
}
