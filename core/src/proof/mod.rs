//! Proofs about a root, and witnesses of a batch: one wire encoding, strict verifiers.
//!
//! A *terminal* is where the walk to a key ends: in a leaf or in an empty subtrie. A proof is a set
//! of terminals and the sibling nodes that lead from them to the root. A witness adds the batch's
//! operations, so that its verifier computes the new root as well.
//!
//! * [`path`], [`multi`], [`witness`]: one key, many keys, a batch with its new root;
//! * [`mod@range`], [`change`]: all keys of a range, and what changed in one between two roots;
//! * [`roots`]: the one root over all namespaces of a database; [`namespace`]: proofs in a namespace
//!   for whoever knows it; [`block`]: a block's batches in several namespaces, with the root after;
//! * `terminal`, `op`: the two kinds of records, and their bytes;
//! * `wire`: the header, the three sections and what makes an encoding canonical;
//! * `walk`: subtries completed from left to right on an explicit stack; `slots`: where their
//!   siblings are; `sides`: two states of the same range side by side;
//! * [`KeyProof`], [`KeysProof`], [`RangeProof`], [`ChangeProof`]: encodings, a type for each claim;
//! * [`Unverified`]: what an encoding claims, without a root;
//! * [`Limits`]: what a verification may take.
//!
//! `docs/proofs.md` has the format and the argument. Verification is total (any bytes give a
//! `Result`), canonical (one byte string for each claim), iterative and bounded: at most 256 hashes
//! for each terminal and each put, and one for each sibling; memory of at most four times the
//! input and a constant of 64 KiB. Only the `Verified` types answer queries.
//!
//! ```
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::proof::{Lookup, VerifyError, multi};
//! use pleach_core::Hasher;
//!
//! let trie = NaiveTrie::from_iter([([1; 32], [10; 32].into()), ([2; 32], [20; 32].into())]);
//! let mut bytes = trie.multi(Hasher::BLAKE3, &[[1; 32], [3; 32]]).encode(Hasher::BLAKE3)?;
//! let root = trie.root(Hasher::BLAKE3);
//!
//! let verified = multi::verify(Hasher::BLAKE3, &bytes, &root)?;
//! assert_eq!(verified.get(&[1; 32]), Lookup::Present([10; 32].into()));
//! assert_eq!(verified.get(&[3; 32]), Lookup::Absent);
//!
//! // A changed value leads to another root.
//! let value = 32 + 2 + 32;
//! bytes[value] ^= 1;
//! assert_eq!(multi::verify(Hasher::BLAKE3, &bytes, &root).unwrap_err(), VerifyError::RootMismatch);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

pub mod block;
mod bytes;
pub mod change;
mod error;
mod frame;
mod limits;
mod list;
mod lookup;
pub mod multi;
pub mod namespace;
mod op;
pub mod path;
pub mod range;
mod reader;
pub mod roots;
mod sides;
mod slots;
mod span;
pub(crate) mod terminal;
mod unverified;
mod walk;
#[doc(hidden)]
pub mod wire;
pub mod witness;

pub use bytes::{ChangeProof, KeyProof, KeysProof, RangeProof};
pub use error::{BuildError, DecodeError, EncodeError, Limit, VerifyError};
pub use limits::Limits;
pub use lookup::Lookup;
pub use op::{Access, Op};
pub use terminal::Terminal;
pub use unverified::Unverified;
pub use wire::ProofKind;
