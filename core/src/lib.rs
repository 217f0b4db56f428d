//! The rules of the Pleach trie, without I/O, threads or an operating system.
//!
//! A set of 32-byte keys, each with the hash of a value, has one *root*: the [`Node`] at the top of
//! a binary trie. Whoever knows the root can be shown, by a proof of a few hundred bytes, what the
//! set says about a key; and by a *witness*, which root a batch of changes leads to. This crate
//! defines the root, makes it from sorted keys, encodes and verifies proofs and witnesses, and says
//! how the trie lies in pages of 4 KiB. A light client that verifies needs nothing else.
//!
//! # Example
//!
//! The root of two accounts, computed from sorted pairs; then a proof about one of them, made by
//! the reference trie of feature `naive`, and checked as a light client would check it.
//!
//! ```
//! use pleach_core::fold::{FoldValue, Folder};
//! use pleach_core::naive::NaiveTrie;
//! use pleach_core::proof::{Lookup, path};
//! use pleach_core::{Hasher, Key, node::value_hash};
//!
//! let mut accounts: Vec<(Key, &[u8])> =
//!     vec![(Hasher::BLAKE3.hash(b"alice"), b"100"), (Hasher::BLAKE3.hash(b"bob"), b"7")];
//! accounts.sort();
//!
//! let mut folder = Folder::new(Hasher::BLAKE3);
//! let mut span = folder.span(0);
//! for (key, value) in &accounts {
//!     span.push_unaccessed(key, FoldValue::Bytes(value));
//! }
//! let fold = span.end_fold();
//! folder.run();
//! let root = *folder.node(fold);
//!
//! let trie: NaiveTrie =
//!     accounts.iter().map(|(key, value)| (*key, value_hash(Hasher::BLAKE3, value))).collect();
//! assert_eq!(trie.root(Hasher::BLAKE3), root);
//!
//! let alice = Hasher::BLAKE3.hash(b"alice");
//! let bytes = trie.path(Hasher::BLAKE3, &alice).encode(Hasher::BLAKE3)?;
//! let verified = path::verify(Hasher::BLAKE3, &bytes, &root)?;
//! assert_eq!(verified.get(&alice), Lookup::Present(value_hash(Hasher::BLAKE3, b"100")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! * [`node`]: what a node is, and the one rule that combines two of them; [`prefix`]: where in the
//!   trie a node is; [`hasher`]: the hash functions, one message or many at a time;
//! * [`range`]: ranges of keys, and those of a prefix;
//! * [`proof`]: path proofs, multiproofs and witnesses, their encoding and their verifiers; the one
//!   root over all namespaces of a database, and proofs through it;
//! * [`fold`]: from sorted keys to nodes and proofs, all hashing in batches;
//! * [`page`]: leaf pages, branch pages and byte streams in 4 KiB;
//! * `naive` (a feature, for tests): the slow, obvious twin of everything clever here.
//!
//! # Features
//!
//! `std` (default) detects instruction sets at run time; without it the crate is `no_std` and needs
//! `alloc`. `blake3-platform` (default) hashes nodes through the batch call of the `blake3` crate.
//! `naive` adds the reference trie. Definitions with their reasons are in `docs/trie.md` and
//! `docs/proofs.md`.
#![no_std]
#![warn(missing_debug_implementations)]

#[cfg(target_endian = "big")]
compile_error!(
    "Pleach is tested on little-endian processors alone; docs/stability.md, \"Platforms\", says which"
);

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

/// Makes the `Debug` of errors their text: a program whose `main` returns one prints that.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_text {
    ($($error:ty),*) => {$(
        impl core::fmt::Debug for $error {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

// What is hidden is the engine's: hashing of pages and their encodings may change in any version.
mod cpu_prefetch;
#[doc(hidden)]
pub mod fold;
pub mod hasher;
#[doc(hidden)]
pub mod hexadecimal;
mod lanes;
#[cfg(feature = "naive")]
pub mod naive;
pub mod node;
#[doc(hidden)]
pub mod page;
pub mod prefix;
pub mod proof;
pub mod range;
#[doc(hidden)]
pub mod search;
#[doc(hidden)]
pub mod tree;

#[doc(hidden)]
pub use cpu_prefetch::cpu_prefetch;
pub use hasher::{Hasher, KeyedBlake3, keyed_blake3};
pub use node::{Key, Node, NodeKind, ParseDigitsError, TERMINATOR, ValueHash};
pub use prefix::Prefix;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
