//! A hash of keys that nobody can foresee, for tables in memory.

use std::hash::{BuildHasher, RandomState};

use pleach_core::Key;

/// A hash of keys under words that nobody outside knows: sums of products of half words (NH), of which two keys
/// chosen without these words have the same sum with a chance of one in 2^32; the slot is of its bits.
pub(super) struct KeyedHash {
    halves: [u64; 4],
    last: u64,
}

impl Default for KeyedHash {
    fn default() -> Self {
        let secret = RandomState::new();
        Self::new([0, 1, 2, 3, 4].map(|at: u64| secret.hash_one(at)))
    }
}

impl KeyedHash {
    fn new([first, second, third, fourth, last]: [u64; 5]) -> Self {
        Self { halves: [first, second, third, fourth], last: last | 1 }
    }

    /// The hash of a key.
    #[inline]
    pub(super) fn of(&self, key: &Key) -> u32 {
        let (words, _) = key.as_chunks::<8>();
        let product = |(word, secret): (&[u8; 8], &u64)| {
            let ([low, high], [first, second]) = (halves(*word), halves(secret.to_le_bytes()));
            u64::from(low.wrapping_add(first)) * u64::from(high.wrapping_add(second))
        };
        let sum = words.iter().zip(&self.halves).map(product).fold(0, u64::wrapping_add);
        // The upper half depends on all bits once the halves are put over each other.
        halves((sum ^ sum >> 32).wrapping_mul(self.last).to_le_bytes())[1]
    }
}

/// The lower and the upper half of a word.
fn halves([a, b, c, d, e, f, g, h]: [u8; 8]) -> [u32; 2] {
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_in_one_bit_or_count_up_fall_apart() {
        let words = [3, 5, 7, 11, 13_u64].map(|odd| odd.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let hash = KeyedHash::new(words);
        let near = (0..256_usize).map(|bit| {
            let mut key = [0; 32];
            key[bit / 8] = 1 << (bit % 8);
            key
        });
        let counted = (0..4096_u16).map(|number| {
            let mut key = [7; 32];
            key[30..].copy_from_slice(&number.to_be_bytes());
            key
        });
        let mut places: Vec<u32> = near.chain(counted).map(|key| hash.of(&key) % 8192).collect();
        places.sort_unstable();
        let most = places.chunk_by(|a, b| a == b).map(<[u32]>::len).max();
        // About half as many keys as places: a table of these is searched in a few steps.
        assert!(most < Some(12), "{most:?} keys meet");
        let others = [KeyedHash::default(), KeyedHash::default()];
        let keys = [[1; 32], [2; 32], [3; 32], [4; 32]];
        let [one, other] = others.map(|hash| keys.map(|key| hash.of(&key)));
        assert_ne!(one, other, "each map has words of its own");
    }
}
