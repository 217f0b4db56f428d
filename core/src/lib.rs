//! The rules of the Pleach trie, without I/O, threads or an operating system.
//!
//! * [`node`]: what a node is and the one rule that combines two of them;
//! * [`hasher`]: the hash functions and their batch calls in lanes;
//! * [`prefix`]: trie positions as bits and length;
//! * [`proof`]: proofs, witnesses and their verifiers;
//! * [`page`]: how leaf pages, branch pages and streams lie in 4 KiB;
//! * `naive` (a feature, for tests): the slow, obvious twin of everything clever here.
//!
//! A light client that verifies witnesses needs this crate alone. `docs/trie.md` has the definitions.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod cpu_prefetch;
pub mod fold;
pub mod hasher;
pub mod lanes;
#[cfg(feature = "naive")]
pub mod naive;
pub mod node;
pub mod page;
pub mod prefix;
pub mod proof;
pub mod search;

pub use cpu_prefetch::cpu_prefetch;
pub use hasher::{Blake3, Hasher, Sha2};
pub use node::{Key, Node, NodeKind, TERMINATOR, ValueHash};
pub use prefix::Prefix;
pub use proof::{Limits, Lookup, VerifyError, witness};
