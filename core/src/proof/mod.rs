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

mod error;
mod limits;
mod lookup;
pub mod multi;
pub mod op;
pub mod path;
mod reader;
pub mod terminal;
mod walk;
pub mod wire;
pub mod witness;

pub use error::{DecodeError, EncodeError, Limit, VerifyError};
pub use limits::Limits;
pub use lookup::Lookup;
pub use multi::MultiProof;
pub use op::{Access, Op};
pub use path::PathProof;
pub use terminal::Terminal;
pub use wire::Kind;
pub use witness::{Witness, WitnessWriter};
