//! The interface of the crate `nomt` 1.0, over the state database [Pleach](pleach).
//!
//! A program that uses `nomt` changes one line of its `Cargo.toml`:
//!
//! ```toml
//! nomt = { package = "pleach-nomt", version = "0.1" }
//! ```
//!
//! Roots, proofs and witnesses are the same, their types are those of `nomt-core`. Folders are not: [`Nomt::import`] takes the pairs over.
//! `docs/from-nomt.md` lists what differs; each item here says its own part. [`Nomt::engine`] gives the
//! database itself, with what `nomt` has no interface for.
//!
//! ```
//! use nomt::hasher::Blake3Hasher;
//! use nomt::{KeyReadWrite, Nomt, Options, SessionParams, WitnessMode};
//!
//! # fn main() -> anyhow::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("nomt-{}", std::process::id()));
//! let mut options = Options::new();
//! options.path(&folder);
//! options.rollback(true);
//! let nomt = Nomt::<Blake3Hasher>::open(options)?;
//!
//! let params = SessionParams::default().witness_mode(WitnessMode::read_write());
//! let session = nomt.begin_session(params);
//! session.warm_up([1; 32]);
//! let before = session.read([1; 32])?;
//! let write = KeyReadWrite::ReadThenWrite(before, Some(b"value".to_vec()));
//! let mut finished = session.finish(vec![([1; 32], write)])?;
//! let witness = finished.take_witness().expect("asked for");
//! assert_eq!(witness.operations.writes.len(), 1);
//! finished.commit(&nomt)?;
//! assert!(!nomt.is_empty());
//! nomt.rollback(1)?;
//! assert!(nomt.is_empty());
//! # drop(nomt);
//! # std::fs::remove_dir_all(folder)?;
//! # Ok(())
//! # }
//! ```

mod database;
mod hashing;
#[doc(hidden)]
pub mod import;
mod metrics;
mod options;
pub mod proofs;
mod session;

pub use database::{HashTableUtilization, Nomt, grow_hashtable, validate_hashtable};
pub use hashing::HashAlgorithm;
pub use metrics::{IoUringPermission, Metrics, check_iou_permissions};
pub use nomt_core::witness::{
    Witness, WitnessedOperations, WitnessedPath, WitnessedRead, WitnessedWrite,
};
pub use nomt_core::{hasher, proof, trie};
pub use options::Options;
/// The engine: types of [`Nomt::engine`], and the error to look for in those of this crate.
pub use pleach;
pub use session::{
    FinishedSession, InvalidAncestors, Overlay, Session, SessionParams, WitnessMode,
};

/// A value, whole.
pub type Value = Vec<u8>;

/// What a session did with a key.
#[derive(Clone, Debug)]
pub enum KeyReadWrite {
    /// It read the key, which had this value. The engine looks it up itself: the value given here is not used.
    Read(Option<Value>),
    /// It wrote this value; `None` deletes the key.
    Write(Option<Value>),
    /// It read the key, and wrote the second value. The first one is not used.
    ReadThenWrite(Option<Value>, Option<Value>),
}

impl KeyReadWrite {
    /// The value that the key has after it.
    pub fn last_value(&self) -> Option<&[u8]> {
        let (Self::Read(last) | Self::Write(last) | Self::ReadThenWrite(_, last)) = self;
        last.as_deref()
    }

    /// True when the key was written.
    pub fn is_write(&self) -> bool {
        !matches!(self, Self::Read(_))
    }

    /// The key is written, again or after it was read.
    pub fn write(&mut self, new_value: Option<Value>) {
        match self {
            Self::Read(read) => *self = Self::ReadThenWrite(read.take(), new_value),
            Self::Write(value) | Self::ReadThenWrite(_, value) => *value = new_value,
        }
    }

    /// The key is read. Only the first read counts, with what it found before any write.
    pub fn read(&mut self, read_value: Option<Value>) {
        if let Self::Write(value) = self {
            *self = Self::ReadThenWrite(read_value, value.take());
        }
    }
}

/// The root of a state.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "borsh", derive(borsh::BorshSerialize, borsh::BorshDeserialize))]
pub struct Root([u8; 32]);

impl Root {
    /// True for the root of a state without keys.
    pub fn is_empty(&self) -> bool {
        self.0 == trie::TERMINATOR
    }

    /// The bytes of the root.
    pub fn into_inner(self) -> [u8; 32] {
        self.0
    }
}

/// The first and the last four bytes.
impl std::fmt::Display for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hex = pleach::Node::new(self.0).to_string();
        write!(f, "{}...{}", &hex[..8], &hex[56..])
    }
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Root({})", pleach::Node::new(self.0))
    }
}

impl AsRef<[u8]> for Root {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<[u8; 32]> for Root {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// The examples of the package's README and of the page for programs that use `nomt` compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../../docs/from-nomt.md")]
struct Examples;
