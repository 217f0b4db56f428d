//! Positions below a floor, by number, and sets of them as masks of 64 bits.

use crate::node::Key;

/// Most levels below its floor that a fold captures.
pub const MAX_CAPTURE: u8 = 5;

/// Positions of the lowest of these levels: the buckets of a treelet.
const BUCKETS: usize = 1 << MAX_CAPTURE;

/// The positions on the way to each bucket, and its own.
const WAYS: [u64; BUCKETS] = {
    let mut ways = [0; BUCKETS];
    let mut bucket = 0;
    while bucket < BUCKETS {
        let mut level = 0;
        while level <= MAX_CAPTURE {
            #[expect(clippy::cast_possible_truncation, reason = "32 buckets")]
            let bits = bucket as u8 >> (MAX_CAPTURE - level);
            ways[bucket] |= 1 << heap_index(level, bits);
            level += 1;
        }
        bucket += 1;
    }
    ways
};

/// Number of the prefix `level` bits below a floor whose last bits are `bits`: 0 is the floor
/// itself, 1 and 2 are its children, and so on by level and key.
#[inline]
pub const fn heap_index(level: u8, bits: u8) -> u8 {
    (1 << level) - 1 + bits
}

/// Level and bits of the prefix with this [`heap_index`].
#[inline]
pub const fn heap_position(index: u8) -> (u8, u8) {
    // One more than the index is its level's first bit, then the bits of the path.
    let level = (index + 1).ilog2();
    #[expect(clippy::cast_possible_truncation, reason = "at most 7")]
    (level as u8, index + 1 - (1 << level))
}

/// The positions on the way to a bucket, [`MAX_CAPTURE`] levels below the floor, and its own, as a mask by
/// [`heap_index`].
#[inline]
pub fn way(bucket: u8) -> u64 {
    WAYS[usize::from(bucket)]
}

/// The positions above one that is at most [`MAX_CAPTURE`] levels below the floor.
#[inline]
pub fn above(at: u8) -> u64 {
    let (level, bits) = heap_position(at);
    way(bits << (MAX_CAPTURE - level)) & !(u64::MAX << at)
}

/// The children of positions that are fewer than [`MAX_CAPTURE`] levels below the floor.
#[inline]
pub(super) fn children(positions: u64) -> u64 {
    let (mut left, mut children) = (positions, 0);
    while left != 0 {
        children |= 0b11 << (2 * left.trailing_zeros() + 1);
        left &= left - 1;
    }
    children
}

/// [`heap_index`] of the prefix at `depth` on the way to `key`, less than five levels below the floor.
#[inline]
pub(super) fn index_below(key: &Key, floor: u16, depth: u16) -> u8 {
    let byte = usize::from(floor / 8);
    // At most seven bits before them and five of them.
    let window = u16::from_be_bytes([key[byte], key.get(byte + 1).copied().unwrap_or(0)]);
    let levels = depth - floor;
    let bits = u32::from(window << (floor % 8)) >> (16 - levels);
    #[expect(clippy::cast_possible_truncation, reason = "less than LEVELS bits")]
    heap_index(levels as u8, bits as u8)
}

/// Goes through the positions of a mask.
#[inline]
pub fn each_position(mut positions: u64, mut each: impl FnMut(u8)) {
    while positions != 0 {
        #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
        let at = positions.trailing_zeros() as u8;
        positions &= positions - 1;
        each(at);
    }
}
