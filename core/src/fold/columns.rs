//! The bits of a key at which a treelet divides the keys below a prefix.

use super::TREELET_LEVELS;
use super::heap_index;
use crate::node::Key;
use crate::prefix::{Prefix, bit, common_len};

/// Levels of a treelet.
const LEVELS: usize = TREELET_LEVELS as usize;
/// Bits of the levels right behind a prefix.
const BEHIND: u32 = TREELET_LEVELS as u32;
/// With fewer bits than this in which keys differ, other bits divide them better.
const ENOUGH: u32 = 4;

/// The bits of a key that determine its bucket in a treelet, where these are not the five behind the prefix: the first
/// five in which the keys of a page differ. In all other bits before the last of the five all keys are the same, so
/// nodes in between have a terminator on one side, and the treelet has a position only above each of the five.
///
/// A position of level `n` is the prefix that ends with the `n`th of these bits.
///
/// ```
/// use pleach_core::fold::{Columns, DifferingBits};
///
/// // Keys that differ in the low four bits of a byte, and in the byte behind.
/// let mut differing = DifferingBits::from(&[0x30; 32]);
/// for digit in 0x31..0x3a {
///     let mut key = [0x30; 32];
///     (key[0], key[1]) = (digit, digit);
///     differing.add(&key);
/// }
/// let columns = differing.columns(0).expect("the first four bits part nothing");
/// assert_eq!([1, 2, 3, 4, 5].map(|level| columns.level_end(level)), [5, 6, 7, 8, 13]);
/// let mut key = [0x30; 32];
/// key[0] = 0x39;
/// assert_eq!((columns.bucket(&key), columns.is_same_elsewhere(&[0x30; 32], &key)), (0b1001_0, true));
/// key[1] = 0xff;
/// assert!(!columns.is_same_elsewhere(&[0x30; 32], &key));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns([u8; LEVELS]);

impl Columns {
    /// The bucket of a key.
    #[inline]
    pub fn bucket(self, key: &Key) -> u8 {
        self.bits(key, TREELET_LEVELS)
    }

    /// The first of these bits of a key, one a level.
    #[inline]
    pub fn bits(self, key: &Key, level: u8) -> u8 {
        let depths = &self.0[..usize::from(level)];
        depths.iter().fold(0, |bits, depth| bits << 1 | u8::from(bit(key, (*depth).into())))
    }

    /// True when two keys are the same in all other bits before the last of these.
    #[inline]
    pub fn is_same_elsewhere(self, one: &Key, other: &Key) -> bool {
        let mut probe = *other;
        for depth in self.0 {
            let (byte, mask) = (usize::from(depth / 8), 0x80 >> (depth % 8));
            probe[byte] = probe[byte] & !mask | one[byte] & mask;
        }
        common_len(one, &probe) > self.0[LEVELS - 1].into()
    }

    /// The prefix of a position, `like` being a key of the page; not for the position of the treelet's own prefix.
    pub fn position(self, like: &Key, level: u8, bits: u8) -> Prefix {
        let mut key = *like;
        for (at, depth) in self.0.iter().take(level.into()).rev().enumerate() {
            let (byte, mask) = (usize::from(depth / 8), 0x80 >> (depth % 8));
            key[byte] = if bits >> at & 1 == 1 { key[byte] | mask } else { key[byte] & !mask };
        }
        Prefix::new(&key, self.level_end(level))
    }

    /// The depth at which the positions of a level end; `level` is not 0.
    #[inline]
    pub fn level_end(self, level: u8) -> u16 {
        u16::from(self.0[usize::from(level) - 1]) + 1
    }

    /// The [`heap_index`] of the position on the path of a key whose keys divide at `depth`, if there is one.
    #[inline]
    pub(super) fn position_at(self, key: &Key, depth: u16) -> Option<u8> {
        let level = self.0.iter().position(|own| u16::from(*own) == depth)?;
        #[expect(clippy::cast_possible_truncation, reason = "at most five levels")]
        let level = level as u8;
        Some(heap_index(level, self.bits(key, level)))
    }
}

/// The bits in which keys differ; keys are added one by one.
#[derive(Clone, Debug)]
pub struct DifferingBits {
    first: Key,
    bits: Key,
}

impl From<&Key> for DifferingBits {
    fn from(first: &Key) -> Self {
        Self { first: *first, bits: [0; 32] }
    }
}

impl DifferingBits {
    /// Adds a key.
    #[inline]
    pub fn add(&mut self, key: &Key) {
        for ((bits, own), first) in self.bits.iter_mut().zip(key).zip(&self.first) {
            *bits |= own ^ first;
        }
    }

    /// True when the five bits behind a prefix of `floor` bits divide the keys well, whatever keys follow.
    #[inline]
    pub fn is_spread_at(&self, floor: u16) -> bool {
        let byte = usize::from(floor / 8);
        // At most seven bits before them and five of them.
        let window =
            u16::from_be_bytes([self.bits[byte], self.bits.get(byte + 1).copied().unwrap_or(0)]);
        (window << (floor % 8) >> (16 - BEHIND)).count_ones() >= ENOUGH
    }

    /// The columns of a treelet below a prefix of `floor` bits, if other bits than the five behind it divide the keys
    /// better.
    ///
    /// # Panics
    /// When the prefix is longer than 251 bits.
    pub fn columns(&self, floor: u16) -> Option<Columns> {
        if self.is_spread_at(floor) {
            return None;
        }
        let mut depths = [0; LEVELS];
        let mut differing = (floor..256).filter(|depth| bit(&self.bits, *depth));
        for depth in &mut depths {
            *depth = u8::try_from(differing.next()?).expect("less than 256");
        }
        Some(Columns(depths))
    }
}
