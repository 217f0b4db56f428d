//! A filter over the keys of a run: shows at once, and without a search, that the run does not have most other keys.
//!
//! A key has five bits in one cache line, so that a check waits for memory once. With ten bits a key the filter lets
//! about one of a hundred other keys pass.

use std::hash::{BuildHasher, RandomState};

use pleach_core::{Key, cpu_prefetch};

/// Bits of the filter for each key.
const BITS_A_KEY: usize = 10;
/// Bits of a key in its line.
const PROBES: u32 = 5;

/// Secret words, so that nobody can choose keys with equal hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Secret(pub(super) [u64; 4]);

impl Default for Secret {
    fn default() -> Self {
        let random = RandomState::new();
        Self([0, 1, 2, 3].map(|at: u64| random.hash_one(at)))
    }
}

impl Secret {
    /// The hash of a namespace's key.
    #[inline]
    pub(super) fn hash(&self, namespace: u8, key: &Key) -> u64 {
        let (words, _) = key.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]) ^ self.0[at];
        let upper = folded_product(word(0), word(1)).wrapping_add(namespace.into());
        folded_product(upper ^ self.0[2], folded_product(word(2), word(3)) ^ self.0[0])
    }
}

/// The two halves of a product, combined by XOR.
#[inline]
fn folded_product(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    low(product) ^ low(product >> 64)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
fn low(wide: u128) -> u64 {
    wide as u64
}

/// A cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct FilterLine(pub(super) [u64; 8]);

impl FilterLine {
    /// False when no key with this hash was added.
    #[inline]
    pub(super) fn may_have(&self, hash: u64) -> bool {
        bits(hash).all(|(word, bit)| self.0[word] & bit != 0)
    }
}

/// The index of the line of a hash, among `lines`.
#[inline]
pub(super) fn line_of(hash: u64, lines: usize) -> usize {
    let at = low((u128::from(hash) * lines as u128) >> 64);
    usize::try_from(at).unwrap_or(0)
}

/// The bits of a hash in its line: each as the index of the word and the bit of the word.
#[inline]
fn bits(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    // The upper bits of the hash select the line: these are others.
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..PROBES).map(move |probe| {
        let bits = mixed >> (64 - 9 * (probe + 1));
        ((bits >> 6 & 7) as usize, 1 << (bits & 63))
    })
}

/// The filter.
pub(super) struct Filter(Box<[FilterLine]>);

impl Filter {
    /// An empty filter with room for `keys` keys.
    pub(super) fn new(keys: usize) -> Self {
        Self(vec![FilterLine::default(); keys * BITS_A_KEY / 512 + 1].into())
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    pub(super) fn lines(&self) -> &[FilterLine] {
        &self.0
    }

    #[inline]
    pub(super) fn cpu_prefetch(&self, hash: u64) {
        let at = line_of(hash, self.0.len());
        cpu_prefetch(&self.0[at..=at]);
    }

    /// Adds a key by its hash.
    pub(super) fn add(&mut self, hash: u64) {
        let line = line_of(hash, self.0.len());
        bits(hash).for_each(|(word, bit)| self.0[line].0[word] |= bit);
    }

    /// False when no key with this hash was added.
    #[inline]
    pub(super) fn may_have(&self, hash: u64) -> bool {
        self.0[line_of(hash, self.0.len())].may_have(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_added_and_little_else() {
        let (secret, mut filter) = (Secret::default(), Filter::new(10_000));
        // Keys that count up, as in a plain namespace.
        let key = |number: u64| {
            let mut key = [7; 32];
            key[24..].copy_from_slice(&number.to_be_bytes());
            key
        };
        (0..10_000).for_each(|number| filter.add(secret.hash(3, &key(number))));
        assert!((0..10_000).all(|number| filter.may_have(secret.hash(3, &key(number)))));
        let passes = |namespace: u8, numbers: std::ops::Range<u64>| {
            numbers.filter(|one| filter.may_have(secret.hash(namespace, &key(*one)))).count()
        };
        let (others, elsewhere) = (passes(3, 10_000..30_000), passes(4, 0..20_000));
        assert!(others < 600 && elsewhere < 600, "{others} and {elsewhere} of 20,000 pass");
        assert!(!Filter::new(0).may_have(1));
    }
}
