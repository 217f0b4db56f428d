//! The hash functions of the commitment.
//!
//! A [`Hasher`] has a call for one message and calls for many messages of the same form: hashing one 64-byte message at
//! a time leaves most of a SIMD unit idle. Each output of a batch call equals that of the single call.
//!
//! ```
//! use pleach_core::Hasher;
//!
//! let blocks = [[1u8; 64], [2; 64], [3; 64]];
//! let mut hashes = [[0; 32]; 3];
//! Hasher::BLAKE3.hash64_many(&blocks, &mut hashes);
//! assert_eq!(hashes[2], Hasher::BLAKE3.hash(&blocks[2]));
//! ```

use crate::lanes;

/// A hash function of the commitment: a value, which a database records by number and name, and which is equal to
/// another when both are.
#[derive(Clone, Copy)]
pub struct Hasher {
    id: u8,
    name: &'static str,
    hash: fn(&[u8]) -> [u8; 32],
    hash64_many: Option<Hash64Many>,
    hash_short_many: Option<HashShortMany>,
}

type Hash64Many = fn(&[[u8; 64]], &mut [[u8; 32]]);
type HashShortMany = fn(&[u8], usize, &[u8], &mut [[u8; 32]]);

impl Hasher {
    /// BLAKE3, the default.
    pub const BLAKE3: Self = Self {
        id: 1,
        name: "blake3",
        hash: |message| *blake3::hash(message).as_bytes(),
        hash64_many: Some(lanes::hash64_many),
        hash_short_many: Some(lanes::hash_short_many),
    };

    /// SHA-256, with the feature `sha2`.
    #[cfg(feature = "sha2")]
    pub const SHA2_256: Self = Self {
        id: 2,
        name: "sha2-256",
        hash: |message| <sha2::Sha256 as sha2::Digest>::digest(message).into(),
        hash64_many: None,
        hash_short_many: None,
    };

    /// The hashers of this crate.
    const OWN: &[Self] = &[
        Self::BLAKE3,
        #[cfg(feature = "sha2")]
        Self::SHA2_256,
    ];

    /// The number of every hasher that an application makes.
    pub const APPLICATION: u8 = 255;

    /// This crate's hasher with this number.
    pub fn of_id(id: u8) -> Option<Self> {
        Self::OWN.iter().find(|own| own.id == id).copied()
    }

    /// This crate's hasher with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::OWN.iter().find(|own| own.name == name).copied()
    }

    /// An application's own hash function, which must never give 32 zero bytes: that is the terminator.
    ///
    /// # Panics
    /// When the name is not 1 to 32 bytes of `[a-z0-9-]`.
    pub const fn new(name: &'static str, hash: fn(&[u8]) -> [u8; 32]) -> Self {
        let mut rest = name.as_bytes();
        assert!(!rest.is_empty() && rest.len() <= 32, "a name has 1 to 32 bytes");
        while let [byte, after @ ..] = rest {
            assert!(matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'), "a name is of [a-z0-9-]");
            rest = after;
        }
        Self { id: Self::APPLICATION, name, hash, hash64_many: None, hash_short_many: None }
    }

    /// The hasher with a function that hashes many 64-byte messages at once; it gets as many outputs as messages.
    ///
    /// # Panics
    /// When this is not an application's hasher.
    #[must_use]
    pub const fn with_many(self, hash64_many: fn(&[[u8; 64]], &mut [[u8; 32]])) -> Self {
        assert!(self.id == Self::APPLICATION, "an application's hasher");
        Self { hash64_many: Some(hash64_many), ..self }
    }

    /// Number recorded in a database's superblock and in every proof; a database opens only with its own hasher.
    pub const fn id(self) -> u8 {
        self.id
    }

    /// Name for messages and reports; it distinguishes an application's hashers.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Hash of a message of any length (values).
    #[inline]
    pub fn hash(self, message: &[u8]) -> [u8; 32] {
        (self.hash)(message)
    }

    /// Hash of 64 bytes (nodes).
    #[inline]
    pub fn hash64(self, block: &[u8; 64]) -> [u8; 32] {
        (self.hash)(block)
    }

    /// Hashes of many 64-byte messages.
    ///
    /// # Panics
    /// When the slices' lengths differ.
    pub fn hash64_many(self, blocks: &[[u8; 64]], out: &mut [[u8; 32]]) {
        assert_eq!(blocks.len(), out.len(), "one output a block");
        if let Some(many) = self.hash64_many {
            return many(blocks, out);
        }
        for (block, out) in blocks.iter().zip(out) {
            *out = self.hash64(block);
        }
    }

    /// Hashes of many short messages of equally many blocks of 64 bytes: message `i` is the first `lens[i]` bytes of
    /// `messages[i * stride..]`, and the other bytes of its `stride` are zero. The stride is a multiple of 64 below
    /// 256, and each message fills all its blocks but the last, which has one byte at least (or none, where it is the
    /// only one).
    ///
    /// # Panics
    /// When the stride is invalid, the slices' lengths do not fit or a message has another number of blocks.
    pub fn hash_short_many(
        self,
        messages: &[u8],
        stride: usize,
        lens: &[u8],
        out: &mut [[u8; 32]],
    ) {
        assert!(matches!(stride, 64 | 128 | 192), "whole blocks, few");
        assert!(
            messages.len() == lens.len() * stride && lens.len() == out.len(),
            "one output a message"
        );
        let blocks = |len: u8| usize::from(len).div_ceil(64).max(1);
        assert!(
            lens.iter().all(|len| blocks(*len) == stride / 64),
            "each fills all blocks but the last"
        );
        if let Some(many) = self.hash_short_many {
            return many(messages, stride, lens, out);
        }
        for ((message, len), out) in messages.chunks_exact(stride).zip(lens).zip(out) {
            *out = self.hash(&message[..usize::from(*len)]);
        }
    }
}

impl PartialEq for Hasher {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.name) == (other.id, other.name)
    }
}

impl Eq for Hasher {}

impl core::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self::BLAKE3
    }
}

/// Keyed BLAKE3 of a message of any length; each key makes a separate function.
pub fn keyed_blake3(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    *blake3::keyed_hash(key, message).as_bytes()
}

/// [`keyed_blake3`] of a message that comes in pieces. Pieces of some KiB are hashed faster than small ones.
#[derive(Clone, Debug)]
pub struct KeyedBlake3(blake3::Hasher);

impl KeyedBlake3 {
    /// A hasher without input.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(blake3::Hasher::new_keyed(key))
    }

    /// Adds the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The hash of all pieces.
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}
