//! Prefixes: bit strings of 0 to 256 bits, in 34 bytes. A prefix says where in the trie a node is,
//! and at which keys a page begins and ends.
//!
//! Invariant: the bits from `len` on are zero, so that equality, order and hashing are those of the bytes. Prefixes are
//! ordered by the first key below them; of two with the same first key, the shorter comes first.
//!
//! ```
//! use pleach_core::Prefix;
//!
//! let right = Prefix::ROOT.child(true);
//! assert!(right.covers(&[0x80; 32]) && !right.covers(&[0x7f; 32]));
//! assert_eq!(right.sibling(), Some(Prefix::ROOT.child(false)));
//! assert_eq!(right.child(false).parent(), Some(right));
//! ```

use crate::{hexadecimal::hex, node::Key};

/// The place of a node in the trie, or of a page among pages: the first `len` bits of every key below it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    bits: Key,
    len: u16,
}

impl Prefix {
    /// The prefix of the root: no bits.
    pub const ROOT: Self = Self { bits: [0; 32], len: 0 };

    /// The first `len` bits of `key`.
    ///
    /// # Panics
    /// When `len` is more than 256.
    #[inline]
    pub fn new(key: &Key, len: u16) -> Self {
        assert!(len <= 256, "a prefix has at most 256 bits");
        let mut bits = *key;
        clear_from(&mut bits, len);
        Self { bits, len }
    }

    /// The same from bytes that claim to be a prefix: `None` when `len` is more than 256 or a bit beyond it is set.
    #[inline]
    pub fn from_raw(bits: Key, len: u16) -> Option<Self> {
        if len > 256 {
            return None;
        }
        let prefix = Self::new(&bits, len);
        (halves(&prefix.bits) == halves(&bits)).then_some(prefix)
    }

    /// Number of bits, 0 to 256.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "the root's prefix is not an empty container")]
    pub const fn len(&self) -> u16 {
        self.len
    }

    /// The first key below this prefix: its bits, then zeros.
    #[inline]
    pub const fn first_key(&self) -> &Key {
        &self.bits
    }

    /// The last key below this prefix: its bits, then ones.
    pub fn last_key(&self) -> Key {
        let mut key = self.bits;
        let whole = usize::from(self.len / 8);
        let rest = self.len % 8;
        for (index, byte) in key.iter_mut().enumerate().skip(whole) {
            *byte |= if index == whole { 0xff >> rest } else { 0xff };
        }
        key
    }

    /// True when `key` is below this prefix.
    #[inline]
    pub fn covers(&self, key: &Key) -> bool {
        common_len(&self.bits, key) >= self.len
    }

    /// True when `other` is this prefix, or below it.
    #[inline]
    pub fn contains(&self, other: &Self) -> bool {
        other.len >= self.len && self.covers(&other.bits)
    }

    /// The prefix one bit longer.
    ///
    /// # Panics
    /// When this prefix is 256 bits long.
    #[must_use]
    pub fn child(&self, right: bool) -> Self {
        assert!(self.len < 256, "no prefix is longer than 256 bits");
        let mut child = *self;
        if right {
            child.bits[usize::from(self.len / 8)] |= 0x80 >> (self.len % 8);
        }
        child.len += 1;
        child
    }

    /// The prefix `levels` bits longer, whose last bits are `bits`.
    ///
    /// # Panics
    /// When it would be longer than 256 bits, or for more than 8 levels.
    #[must_use]
    pub fn descendant(&self, levels: u8, bits: u8) -> Self {
        assert!(levels <= 8 && self.len + u16::from(levels) <= 256, "no such prefix");
        debug_assert!(levels == 8 || bits >> levels == 0, "as many bits as levels");
        let mut below = *self;
        if levels > 0 {
            let (byte, rest) = (usize::from(self.len / 8), self.len % 8);
            let window = u16::from(bits) << (16 - levels) >> rest;
            let [high, low] = window.to_be_bytes();
            below.bits[byte] |= high;
            if let Some(next) = below.bits.get_mut(byte + 1) {
                *next |= low;
            }
        }
        below.len += u16::from(levels);
        below
    }

    /// The prefix one bit shorter; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        (self.len > 0).then(|| Self::new(&self.bits, self.len - 1))
    }

    /// The other child of this prefix's parent; `None` for the root.
    pub fn sibling(&self) -> Option<Self> {
        let last = self.len.checked_sub(1)?;
        let mut other = *self;
        other.bits[usize::from(last / 8)] ^= 0x80 >> (last % 8);
        Some(other)
    }

    /// True when the last bit is 1; false for the root.
    pub fn is_right(&self) -> bool {
        self.len > 0 && bit(&self.bits, self.len - 1)
    }

    /// The next prefix of the same length, in key order; `None` after the last.
    #[inline]
    pub fn next(&self) -> Option<Self> {
        let ([high, low], last) = (halves(&self.bits), 1 << (self.len.wrapping_neg() % 128));
        let (add, (low, carry)) = match self.len {
            0 => return None,
            1..=128 => (last, (low, false)),
            _ => (0, low.overflowing_add(last)),
        };
        let high = high.checked_add(add | u128::from(carry))?;
        Some(Self { bits: of_halves([high, low]), len: self.len })
    }
}

impl core::fmt::Debug for Prefix {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{}", self.len, hex(&self.bits[..usize::from(self.len.div_ceil(8))]))
    }
}

/// Bit `index` (0 to 255) of a key.
#[inline]
pub fn bit(key: &Key, index: u16) -> bool {
    key[usize::from(index / 8)] & (0x80 >> (index % 8)) != 0
}

/// Number of leading bits that two keys share, 0 to 256.
#[inline]
pub fn common_len(a: &Key, b: &Key) -> u16 {
    let mut bits = 0u16;
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        let differing = u64::from_be_bytes(*a) ^ u64::from_be_bytes(*b);
        if differing != 0 {
            #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
            return bits + differing.leading_zeros() as u16;
        }
        bits += 64;
    }
    bits
}

/// The 32 bits of `key` from bit `from` on, zeros after bit 255.
#[inline]
pub fn bits_after(key: &Key, from: u16) -> u32 {
    let byte = usize::from(from / 8);
    let window = if let Some(window) = key.get(byte..).and_then(<[u8]>::first_chunk) {
        *window
    } else {
        let mut window = [0u8; 8];
        let have = (32 - byte.min(32)).min(8);
        window[..have].copy_from_slice(&key[byte..byte + have]);
        window
    };
    ((u64::from_be_bytes(window) << (from % 8)) >> 32) as u32
}

/// A key as two numbers.
#[inline]
fn halves(key: &Key) -> [u128; 2] {
    let halves = key.as_chunks().0;
    [u128::from_be_bytes(halves[0]), u128::from_be_bytes(halves[1])]
}

#[inline]
fn of_halves([high, low]: [u128; 2]) -> Key {
    let mut key = [0; 32];
    key[..16].copy_from_slice(&high.to_be_bytes());
    key[16..].copy_from_slice(&low.to_be_bytes());
    key
}

#[inline]
fn clear_from(bits: &mut Key, len: u16) {
    let [high, low] = halves(bits);
    let kept = |len: u16| u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
    *bits = of_halves([high & kept(len), low & kept(len.saturating_sub(128))]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_children_of_children() {
        for (len, levels) in (0..=256u16).flat_map(|len| (0..=8u8).map(move |l| (len, l))) {
            if len + u16::from(levels) > 256 {
                continue;
            }
            let at = Prefix::new(&[0xa6; 32], len);
            let mask = 0xff_u8.checked_shl(levels.into()).map_or(0xff, |above| !above);
            for bits in [0, 1, 0x5a, 0xff].map(|bits| bits & mask) {
                let slow = (0..levels).rev().fold(at, |at, level| at.child(bits >> level & 1 == 1));
                assert_eq!(at.descendant(levels, bits), slow, "{len} {levels} {bits:b}");
            }
        }
    }

    #[test]
    fn children_tile_their_parent_in_order() {
        let key = [0b1010_0110; 32];
        for len in [0u16, 1, 7, 8, 9, 63, 64, 254, 255] {
            let parent = Prefix::new(&key, len);
            let (left, right) = (parent.child(false), parent.child(true));
            assert_eq!(left.sibling(), Some(right));
            assert_eq!(left.parent(), Some(parent));
            assert!(left < right && parent < left);
            assert_eq!((parent.descendant(1, 0), parent.descendant(1, 1)), (left, right));
            assert_eq!(left.first_key(), parent.first_key());
            assert_eq!(right.last_key(), parent.last_key());
            assert_eq!(left.next(), Some(right));
            assert!(parent.covers(&left.last_key()) && !left.covers(right.first_key()));
        }
    }

    #[test]
    fn raw_bits_behind_the_length_are_refused() {
        assert!(Prefix::from_raw([0xff; 32], 256).is_some());
        assert!(Prefix::from_raw([0xff; 32], 255).is_none());
        assert!(Prefix::from_raw([0; 32], 257).is_none());
        let mut bits = [0; 32];
        bits[1] = 0x40;
        assert!(Prefix::from_raw(bits, 10).is_some());
        assert!(Prefix::from_raw(bits, 9).is_none());
    }

    #[test]
    fn common_length_counts_bits() {
        let a = [0u8; 32];
        for index in 0..256u16 {
            let mut b = a;
            b[usize::from(index / 8)] |= 0x80 >> (index % 8);
            assert_eq!(common_len(&a, &b), index);
        }
        assert_eq!(common_len(&a, &a), 256);
    }
}
