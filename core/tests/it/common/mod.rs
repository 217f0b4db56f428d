//! Random sets and batches with the shapes that tries are bad at.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod mutate;
pub(crate) mod second;

use nomt_core::hasher::NodeHasher;
pub(crate) use nomt_core::hasher::{Blake3Hasher, Sha2Hasher};
use pleach_core::{
    Hasher, Key, Node, ValueHash,
    naive::NaiveTrie,
    proof::{Access, Op},
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Number of cases, small unless `PLEACH_CASES` says otherwise.
pub(crate) fn cases(default: u64) -> u64 {
    std::env::var("PLEACH_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

pub(crate) fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

pub(crate) fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    usize::try_from(rng.next_u64() % u64::try_from(bound).unwrap()).unwrap()
}

pub(crate) fn bytes32<T: From<[u8; 32]>>(rng: &mut ChaCha8Rng) -> T {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    bytes.into()
}

/// How the keys of a test are spread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spread {
    Uniform,
    /// Big-endian integers from zero.
    Sequential,
    /// 60 shared bits, then random ones.
    Shared60,
    /// A few bits in the first byte and in the last one, nothing between.
    Ends,
    /// Pairs that part at the very last bit.
    LastBit,
}

pub(crate) const SPREADS: [Spread; 5] =
    [Spread::Uniform, Spread::Sequential, Spread::Shared60, Spread::Ends, Spread::LastBit];

pub(crate) fn key(spread: Spread, rng: &mut ChaCha8Rng) -> Key {
    let mut key = [0; 32];
    match spread {
        Spread::Uniform => rng.fill_bytes(&mut key),
        Spread::Sequential => key[28..].copy_from_slice(&(rng.next_u32() % 64).to_be_bytes()),
        Spread::Shared60 => {
            rng.fill_bytes(&mut key);
            key[..7].copy_from_slice(&[0xa5, 0x5a, 0, 0xff, 0x12, 0x34, 0x56]);
            key[7] = 0x70 | key[7] & 15;
        }
        Spread::Ends => {
            key[0] = (rng.next_u32() % 4).to_le_bytes()[0] << 6;
            key[31] = (rng.next_u32() % 8).to_le_bytes()[0];
        }
        Spread::LastBit => {
            key = [(rng.next_u32() % 5).to_le_bytes()[0]; 32];
            key[31] ^= (rng.next_u32() % 2).to_le_bytes()[0];
        }
    }
    key
}

pub(crate) fn set(spread: Spread, rng: &mut ChaCha8Rng, count: usize) -> NaiveTrie {
    (0..count).map(|_| (key(spread, rng), bytes32(rng))).collect()
}

/// Keys, some of the set and some that may not be.
pub(crate) fn some_keys(
    set: &NaiveTrie,
    spread: Spread,
    rng: &mut ChaCha8Rng,
    count: usize,
) -> Vec<Key> {
    let own: Vec<Key> = set.pairs().keys().copied().collect();
    let mut keys: Vec<Key> = (0..count)
        .map(|_| {
            if own.is_empty() || rng.next_u32().is_multiple_of(3) {
                key(spread, rng)
            } else {
                own[below(rng, own.len())]
            }
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

pub(crate) fn some_ops(
    set: &NaiveTrie,
    spread: Spread,
    rng: &mut ChaCha8Rng,
    count: usize,
) -> Vec<Op> {
    let deletes = [0, 30, 100][below(rng, 3)];
    some_keys(set, spread, rng, count)
        .into_iter()
        .map(|key| {
            let value: Option<ValueHash> =
                (u64::from(rng.next_u32() % 100) >= deletes).then(|| bytes32(rng));
            let access = match rng.next_u32() % 3 {
                0 => Access::Read,
                1 => Access::Write(value),
                _ => Access::ReadWrite(value),
            };
            Op { key, access }
        })
        .collect()
}

/// A published hasher that stands for one of ours.
pub(crate) trait Oracle: NodeHasher {
    const HASHER: Hasher;
}

impl Oracle for Blake3Hasher {
    const HASHER: Hasher = Hasher::BLAKE3;
}

impl Oracle for Sha2Hasher {
    const HASHER: Hasher = Hasher::SHA2_256;
}

/// The root that the published crate computes.
pub(crate) fn oracle_root<H: Oracle>(set: &NaiveTrie) -> Node {
    let pairs: Vec<_> = set.pairs().iter().map(|(key, value)| (*key, value.to_bytes())).collect();
    nomt_core::update::build_trie::<H>(0, pairs, |_| {}).into()
}
