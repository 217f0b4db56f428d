//! Proofs about a root, and witnesses of a batch: one wire encoding, strict verifiers.
//!
//! * [`terminal`], [`op`]: the two kinds of records, and their bytes;
//! * [`wire`]: the header, the three sections and what makes an encoding canonical;
//! * `walk`: subtries completed from left to right on an explicit stack;
//! * [`path`], [`multi`], [`witness`]: one key, many keys, a batch with its new root;
//! * [`Limits`]: what a verification may take.
//!
//! `docs/proofs.md` has the format and the argument. Verification is total (any bytes to a
//! `Result`), canonical (one byte string a claim), iterative and bounded: no more than 256 hashes
//! a terminal and a put beside one a sibling, memory at most four times the input and a constant
//! of 64 KiB. Only the `Verified` types answer queries.
#![deny(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod limits;
pub mod multi;
pub mod op;
pub mod path;
pub mod terminal;
mod walk;
pub mod wire;
pub mod witness;

pub use limits::{Limit, Limits};
pub use multi::MultiProof;
pub use op::{Access, Op};
pub use path::PathProof;
pub use terminal::Terminal;
pub use wire::{DecodeError, EncodeError, Kind};
pub use witness::{Witness, WitnessWriter};

use crate::node::{Key, ValueHash};

/// What a verified proof says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The key is in the set, with this value hash.
    Present(ValueHash),
    /// The key is not in the set.
    Absent,
    /// The proof says nothing about the key.
    OutOfScope,
}

/// Why a proof or witness was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The bytes are not a canonical encoding.
    #[error("not an encoding: {0}")]
    Decode(#[from] DecodeError),
    /// Two siblings that cannot stand side by side: a leaf or nothing beside nothing (the leaf
    /// would have moved up), or anything but two leaves at the last level.
    #[error("no trie has these two nodes as siblings, at depth {depth}")]
    Impossible {
        /// Depth of the two nodes.
        depth: u16,
    },
    /// More than the caller's [`Limits`] allow; nothing was hashed.
    #[error("{needed} {limit}, where {allowed} are allowed: {} too many", needed.saturating_sub(*allowed))]
    OverLimit {
        /// Which limit.
        limit: Limit,
        /// What the encoding takes.
        needed: u64,
        /// The limit.
        allowed: u64,
    },
    /// The proof is about another root.
    #[error("the proof leads to another root")]
    RootMismatch,
}

/// What a terminal that covers `key` says about it.
fn lookup(terminal: Option<Terminal>, key: &Key) -> Lookup {
    match terminal {
        None => Lookup::OutOfScope,
        Some(terminal) => {
            terminal.value_of(key).map_or(Lookup::Absent, |hash| Lookup::Present(*hash))
        }
    }
}
