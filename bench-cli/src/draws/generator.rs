//! The random numbers that everything is drawn with.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};

/// The seeded generator: `ChaCha8`, 64 bits at a time.
#[derive(Debug)]
pub(crate) struct Draws(ChaCha8Rng);

impl Draws {
    /// The generator of `seed` in `domain`, at the start of stream `stream`.
    pub(crate) fn new(seed: u64, domain: &[u8; 24], stream: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_be_bytes());
        key[8..].copy_from_slice(domain);
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(stream);
        Self(generator)
    }

    /// 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `0..bound`: bits at or above the largest multiple of `bound` are drawn again,
    /// the rest is taken modulo `bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing to draw from");
        // 2^64 mod bound, without a 128-bit division.
        let excess = (u64::MAX % bound + 1) % bound;
        loop {
            let bits = self.bits();
            if bits <= u64::MAX - excess {
                return bits % bound;
            }
        }
    }

    /// Uniform in [0, 1): the top 53 bits over 2^53.
    pub(crate) fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let numerator = (self.bits() >> 11) as f64;
        numerator / 9_007_199_254_740_992.0
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn rejection_leaves_each_residue_equally_likely() {
        // The accepted range is a multiple of the bound, and the largest one.
        for bound in [1u64, 2, 3, 7, 1 << 20, 25_001, u64::MAX, (1 << 63) + 1] {
            let excess = (u64::MAX % bound + 1) % bound;
            let accepted = u128::from(u64::MAX - excess) + 1;
            assert_eq!(accepted % u128::from(bound), 0, "{bound}");
            assert!((1u128 << 64) - accepted < u128::from(bound), "{bound}");
        }
    }
}
