//! Positions below a prefix, by number, and sets of them as masks of 64 bits.

use crate::node::Key;

/// Levels of a treelet: the nodes that a fold keeps are at most so many levels below the prefix.
pub const TREELET_LEVELS: u8 = 5;

/// Number of the prefix `level` bits below another whose last bits are `bits`: 0 is the other prefix itself, 1 and 2
/// are its children, and so on by level and key.
#[inline]
pub const fn heap_index(level: u8, bits: u8) -> u8 {
    (1 << level) - 1 + bits
}

/// The positions above a position, as a mask by [`heap_index`].
#[inline]
pub const fn above(mut at: u8) -> u64 {
    let mut above = 0;
    while at > 0 {
        at = (at - 1) / 2;
        above |= 1 << at;
    }
    above
}

/// [`heap_index`] of the prefix at `depth` on the path of `key`, less than five levels below the floor.
#[inline]
pub(super) fn index_below(key: &Key, floor: u16, depth: u16) -> u8 {
    let byte = usize::from(floor / 8);
    // At most seven bits before the five, and the five.
    let window = u16::from_be_bytes([key[byte], key.get(byte + 1).copied().unwrap_or(0)]);
    let levels = depth - floor;
    let bits = u32::from(window << (floor % 8)) >> (16 - levels);
    #[expect(clippy::cast_possible_truncation, reason = "less than LEVELS bits")]
    heap_index(levels as u8, bits as u8)
}
