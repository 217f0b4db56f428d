//! The simulator's only source of chance: `SplitMix64`, a counter through a 64-bit mixer.
//!
//! Small, equally good for any seed, and easy to fork: independent streams start from outputs of
//! a parent stream. Nothing in the simulator draws from anywhere else.

use super::content::to_index;

/// A seeded stream of numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// The mixer: a bijection on 64 bits whose outputs look independent for consecutive inputs.
pub(super) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Rng {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The stream of `seed` for the purpose `label`, independent of other labels.
    pub const fn labelled(seed: u64, label: u64) -> Self {
        Self(mix(seed ^ mix(label.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias (below 2^-40 for bounds that occur)
    /// is of no interest here.
    pub const fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// An index below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        to_index(self.below(bound as u64))
    }

    /// True `of` times in `out_of`.
    pub const fn chance(&mut self, of: u64, out_of: u64) -> bool {
        self.below(out_of) < of
    }

    /// 8 bits.
    pub const fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for part in out.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.index(end + 1));
        }
    }
}
