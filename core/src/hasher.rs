//! The hash functions of the commitment.
//!
//! A [`Hasher`] has a call for one message and calls for many messages of the same form: hashing
//! one 64-byte message at a time leaves most of a SIMD unit idle. The batch calls give, output by
//! output, what the single call gives.
//!
//! ```
//! use pleach_core::{Blake3, Hasher};
//!
//! let blocks = [[1u8; 64], [2; 64], [3; 64]];
//! let mut hashes = [[0; 32]; 3];
//! Blake3::hash64_many(&blocks, &mut hashes);
//! assert_eq!(hashes[2], Blake3::hash(&blocks[2]));
//! ```

use crate::lanes;

/// A hash function of the commitment. It has no state: the type is the function.
///
/// An implementation must never return 32 zero bytes: that is the terminator.
pub trait Hasher: Copy + Clone + Default + Send + Sync + 'static {
    /// Number recorded in a database's superblock; a database opens only with its own hasher.
    const ID: u8;
    /// Name for messages and reports.
    const NAME: &'static str;

    /// Hash of a message of any length (values).
    fn hash(message: &[u8]) -> [u8; 32];

    /// Hash of 64 bytes (nodes).
    fn hash64(block: &[u8; 64]) -> [u8; 32] {
        Self::hash(block)
    }

    /// Hashes of many 64-byte messages; `out.len() == blocks.len()`.
    ///
    /// # Panics
    /// When the lengths differ.
    fn hash64_many(blocks: &[[u8; 64]], out: &mut [[u8; 32]]) {
        assert_eq!(blocks.len(), out.len(), "one output a block");
        for (block, out) in blocks.iter().zip(out) {
            *out = Self::hash64(block);
        }
    }

    /// Hashes of many short messages of equally many blocks of 64 bytes: message `i` is the first `lens[i]`
    /// bytes of `messages[i]`, and the other bytes are zero. All slices have the same length; `BYTES` is a multiple
    /// of 64 below 256, and each message fills all its blocks but the last, which has one byte at least (or none,
    /// where it is the only one).
    ///
    /// # Panics
    /// When the slices' lengths differ or a message has more or fewer blocks.
    fn hash_short_many<const BYTES: usize>(
        messages: &[[u8; BYTES]],
        lens: &[u8],
        out: &mut [[u8; 32]],
    ) {
        lanes::check_short(messages, lens, out);
        for ((message, len), out) in messages.iter().zip(lens).zip(out) {
            *out = Self::hash(&message[..usize::from(*len)]);
        }
    }
}

/// BLAKE3, the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blake3;

impl Hasher for Blake3 {
    const ID: u8 = 1;
    const NAME: &'static str = "blake3";

    fn hash(message: &[u8]) -> [u8; 32] {
        *blake3::hash(message).as_bytes()
    }

    fn hash64_many(blocks: &[[u8; 64]], out: &mut [[u8; 32]]) {
        lanes::hash64_many(blocks, out);
    }

    fn hash_short_many<const BYTES: usize>(
        messages: &[[u8; BYTES]],
        lens: &[u8],
        out: &mut [[u8; 32]],
    ) {
        lanes::hash_short_many(messages, lens, out);
    }
}

impl Blake3 {
    /// Keyed hash of a message of any length; the key tells one use of it from all others.
    pub fn keyed(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(key, message).as_bytes()
    }
}

/// [`Blake3::keyed`] of a message that comes in pieces. Pieces of some KiB are hashed faster than small ones.
#[derive(Clone, Debug)]
pub struct KeyedBlake3(blake3::Hasher);

impl KeyedBlake3 {
    /// Nothing is hashed yet.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(blake3::Hasher::new_keyed(key))
    }

    /// The next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The hash of all pieces.
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// SHA-256.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sha2;

impl Hasher for Sha2 {
    const ID: u8 = 2;
    const NAME: &'static str = "sha2-256";

    fn hash(message: &[u8]) -> [u8; 32] {
        use sha2::Digest as _;
        sha2::Sha256::digest(message).into()
    }
}
