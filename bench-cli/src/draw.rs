//! Everything drawn: the seeded generator, the distributions, and the accounts of the transfer workloads.
//! `docs/workloads.md` lists the draws in order; a change that changes a golden root is a new version of a workload.
//!
//! Logarithms and powers come from the `libm` crate, in software, so that each machine draws the same.

use core::fmt;
use core::str::FromStr;

use pleach_core::{Hasher, Key};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};

use crate::error::{Error, Result};
use crate::measure::float;

/// The balance that each account of a transfer workload is loaded with.
pub const BALANCE: u64 = 1000;

/// Key of an account: BLAKE3 of its id, 8 bytes big-endian.
pub fn account_key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// A number of 8 bytes, little-endian, as most workloads store it.
pub fn number(value: &[u8]) -> Result<u64> {
    match value.try_into() {
        Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
        Err(_) => Err(Error::Wrong(format!("a value of 8 bytes has {}", value.len()))),
    }
}

/// The seeded generator: `ChaCha8`, 64 bits at a time.
#[derive(Debug)]
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// The generator of `seed` in `domain`, at the start of stream `stream`.
    pub fn new(seed: u64, domain: &[u8; 24], stream: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_be_bytes());
        key[8..].copy_from_slice(domain);
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(stream);
        Self(generator)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `0..bound`: bits at or above the largest multiple of `bound` are drawn again,
    /// the rest is taken modulo `bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
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
    pub fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let numerator = (self.bits() >> 11) as f64;
        numerator / 9_007_199_254_740_992.0
    }
}

impl Draws {
    /// A number below `bound` as an index.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            let other = self.index(at + 1);
            list.swap(at, other);
        }
    }
}

/// A distribution as the user names it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Every account equally likely.
    Uniform,
    /// Account `i` with weight `(i + 1)^-S`.
    Zipf(f64),
    /// A fifth of the accounts gets four fifths of the draws, and the same again within that fifth.
    Pareto,
}

impl FromStr for Distribution {
    type Err = String;
    fn from_str(text: &str) -> core::result::Result<Self, String> {
        let wrong = || "say uniform, pareto or zipf:S with S from 0.01 to 10".to_owned();
        match text.split_once(':') {
            None if text == "uniform" => Ok(Self::Uniform),
            None if text == "pareto" => Ok(Self::Pareto),
            Some(("zipf", exponent)) => match exponent.parse::<f64>() {
                Ok(exponent) if (0.01..=10.0).contains(&exponent) => Ok(Self::Zipf(exponent)),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(exponent) => write!(f, "zipf:{exponent}"),
            Self::Pareto => f.write_str("pareto"),
        }
    }
}

impl serde::Serialize for Distribution {
    fn serialize<S: serde::Serializer>(&self, to: S) -> core::result::Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Distribution {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> core::result::Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A distribution over `0..n`.
#[derive(Debug)]
pub enum Sampler {
    /// One bounded draw.
    Uniform(u64),
    /// Rejection-inversion; one unit draw per attempt.
    Zipf(Zipf),
    /// One unit draw.
    Pareto(u64),
}

impl Sampler {
    /// A sampler of `0..n`.
    pub fn new(distribution: Distribution, n: u64) -> Self {
        match distribution {
            Distribution::Uniform => Self::Uniform(n),
            Distribution::Zipf(exponent) => Self::Zipf(Zipf::new(exponent, n)),
            Distribution::Pareto => Self::Pareto(n),
        }
    }

    /// The next account.
    pub fn draw(&self, draws: &mut Draws) -> u64 {
        match self {
            Self::Uniform(n) => draws.below(*n),
            Self::Zipf(zipf) => zipf.draw(draws),
            Self::Pareto(n) => {
                // ln 0.2 / ln 0.8
                let exponent = libm::log(0.2) / libm::log(0.8);
                index(float(*n) * libm::pow(draws.unit(), exponent), *n)
            }
        }
    }
}

/// Zipf by rejection-inversion (W. Hörmann, G. Derflinger, 1996): the density's integral is inverted, and the few
/// points that rounding moved too far are drawn again. It needs no table, so any number of accounts will do.
#[derive(Debug)]
pub struct Zipf {
    n: u64,
    exponent: f64,
    integral_first: f64,
    integral_last: f64,
    shortcut: f64,
}

impl Zipf {
    fn new(exponent: f64, n: u64) -> Self {
        let mut zipf = Self { n, exponent, integral_first: 0.0, integral_last: 0.0, shortcut: 0.0 };
        zipf.integral_first = zipf.integral(1.5) - 1.0;
        zipf.integral_last = zipf.integral(float(n) + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn draw(&self, draws: &mut Draws) -> u64 {
        loop {
            let u = self.integral_last + draws.unit() * (self.integral_first - self.integral_last);
            let x = self.inverse(u);
            let rank = libm::floor(x + 0.5).clamp(1.0, float(self.n));
            if rank - x <= self.shortcut || u >= self.integral(rank + 0.5) - self.weight(rank) {
                return index(rank - 1.0, self.n);
            }
        }
    }

    /// `x^-s`.
    fn weight(&self, x: f64) -> f64 {
        libm::exp(-self.exponent * libm::log(x))
    }

    /// The integral of `x^-s` from 1 to `x`, also where `s` is 1.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let t = (1.0 - self.exponent) * log;
        if libm::fabs(t) > 1e-8 { libm::expm1(t) / t * log } else { log * (1.0 + t / 2.0) }
    }

    /// The inverse of [`Zipf::integral`].
    fn inverse(&self, y: f64) -> f64 {
        // Rounding can push the argument below the pole of the logarithm.
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        let log = if libm::fabs(t) > 1e-8 { libm::log1p(t) / t * y } else { y * (1.0 - t / 2.0) };
        libm::exp(log)
    }
}

fn index(x: f64, n: u64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative; the fraction is to go; casts saturate"
    )]
    let index = x as u64;
    index.min(n - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &[u8; 24] = b"pleach-bench test     v1";

    fn histogram(name: &str, n: u64, count: u32) -> Vec<f64> {
        let sampler = Sampler::new(name.parse().unwrap(), n);
        let mut draws = Draws::new(3, DOMAIN, 0);
        let mut seen = vec![0.0; usize::try_from(n).unwrap()];
        for _ in 0..count {
            seen[usize::try_from(sampler.draw(&mut draws)).unwrap()] += 1.0 / f64::from(count);
        }
        seen
    }

    #[test]
    fn zipf_follows_its_weights() {
        for exponent in [0.5, 0.99, 1.0, 1.5, 3.0] {
            let n = 50;
            let seen = histogram(&format!("zipf:{exponent}"), n, 200_000);
            let weights: Vec<f64> = (1..=n).map(|rank| float(rank).powf(-exponent)).collect();
            let total: f64 = weights.iter().sum();
            for (seen, weight) in seen.iter().zip(&weights) {
                assert!((seen - weight / total).abs() < 0.004, "{exponent}: {seen} {weight}");
            }
        }
    }

    #[test]
    fn pareto_gives_a_fifth_four_fifths() {
        let seen = histogram("pareto", 1000, 200_000);
        let fifth: f64 = seen[..200].iter().sum();
        let fifth_of_fifth: f64 = seen[..40].iter().sum();
        assert!((fifth - 0.8).abs() < 0.01, "{fifth}");
        assert!((fifth_of_fifth - 0.64).abs() < 0.01, "{fifth_of_fifth}");
    }

    #[test]
    fn draws_stay_in_range_at_the_smallest_and_largest_counts() {
        for name in ["uniform", "pareto", "zipf:0.01", "zipf:1", "zipf:10"] {
            for n in [1, 2, 1 << 32, 1 << 40] {
                let sampler = Sampler::new(name.parse().unwrap(), n);
                let mut draws = Draws::new(9, DOMAIN, 0);
                assert!((0..1000).all(|_| sampler.draw(&mut draws) < n), "{name} {n}");
            }
        }
    }
}
