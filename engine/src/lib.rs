//! Pleach: a state database that a blockchain node embeds.
//!
//! A flat key-value store and a binary Merkle trie share the same 4 KiB pages: a cold account costs one
//! read of the SSD, the trie adds none, and a durable commit costs one sequential append.
//!
//! ```
//! use pleach::{Access, Db, Hasher, Options, SessionOptions, Value, proof::witness};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let db = Db::open(Options::new(folder).create(true).cache_mib(64))?;
//! let (alice, bob) = ([1; 32], [2; 32]); // hashes of the application's own keys
//!
//! let session = db.session(SessionOptions::new())?;
//! session.prefetch(&[alice, bob]); // pages and values start to arrive
//! assert_eq!(session.read(&alice)?, None);
//! let mut block = session.finish(vec![
//!     Access::read_write(alice, Some(Value::from(&b"100"[..]))),
//!     Access::write(bob, Some(Value::from(&b"7"[..]))),
//! ])?;
//!
//! // A light client: from the old root and the witness to the new root, without the database.
//! let witness = block.take_witness().expect("asked for by default");
//! let verified = witness::verify(Hasher::BLAKE3, &witness, &block.prev_root())?;
//! assert_eq!(*verified.new_root(), block.root());
//!
//! let number = block.commit()?; // durable; or `block.into_overlay()`, and sessions on that
//! assert_eq!((number, db.commit_number()), (1, 1));
//! db.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Sessions
//!
//! A [`Session`] reads one fixed state, whatever is committed meanwhile, namespace 0 by itself ([`Namespace`]):
//! [`Namespace::read`] from any number of threads, [`Namespace::read_many`] at the device's full depth,
//! [`Namespace::prefetch`] to return at once. *Announce the keys of a block with `prefetch` as soon as they are known*,
//! in one call or key by key: on pages that are not cached, 50,000 accesses without it took 926 ms against 120.
//! [`Session::finish`] takes what a block did with its keys ([`Access`]), in any order and each key once, and gives a
//! [`Block`]: a root, and a [`Witness`] unless told otherwise. Nothing is written by then.
//!
//! [`Namespace::iter`] goes through the pairs of a range of keys, in order, from either end, and reads ahead.
//!
//! # Namespaces
//!
//! A database has up to 256 tries with a root each: accounts, storage, code, whatever an application keeps apart.
//! Namespace 0 is always there; [`Db::add_namespace`] and [`Db::drop_namespace`] are commits. A batch has accesses of
//! any of them ([`Access::in_namespace`]) and is one commit with one log record, whichever it changes. A session's own
//! methods read namespace 0, [`Session::namespace`] gives the others, and [`Roots::over_all`] is one root over all.
//!
//! ```
//! use pleach::{Access, Db, Hasher, Options, SessionOptions, Value};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let db = Db::open(Options::new(folder.path()).create(true).cache_mib(64))?;
//! const CODE: u8 = 2;
//! db.add_namespace(CODE)?;
//! let session = db.session(SessionOptions::new())?;
//! let mut block = session.finish(vec![
//!     Access::write([1; 32], Some(Value::from(b"a balance"))),
//!     Access::write([1; 32], Some(Value::from(b"a program"))).in_namespace(CODE),
//! ])?;
//! for (namespace, witness) in block.take_witnesses() {
//!     let before = block.prev_roots().get(namespace).ok_or("it has a witness")?;
//!     let verified = pleach::proof::witness::verify(Hasher::BLAKE3, &witness, &before)?;
//!     assert_eq!(Some(*verified.new_root()), block.roots().get(namespace));
//! }
//! block.commit()?;
//! let session = db.session(SessionOptions::new())?;
//! assert_eq!(session.namespace(CODE)?.read(&[1; 32])?.as_deref(), Some(&b"a program"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Overlays
//!
//! A block that is not to be committed yet becomes an [`Overlay`]: a state in memory that sessions stand on
//! ([`SessionOptions::over`]), in chains of any length and with branches; a lookup takes as many steps over a long
//! chain as over a short one. [`Overlay::commit`] makes one commit of a chain; what stands on it stays valid, what
//! stands beside it is stale. One whose parent is the newest commit, or is just being committed by another thread,
//! costs what its block would have cost. [`Block::changes`] and [`Overlay::changes`] list what is written, with the
//! values before.
//!
//! # Proofs
//!
//! [`Namespace::prove`] proves what a state says of one key, [`Namespace::prove_many`] what it says of many, present or
//! absent; [`Namespace::prove_range`] proves all pairs of a range, and that there is no other,
//! [`Namespace::prove_change`] which keys of a range differ from another session's state. Each gives a type of its own
//! ([`proof::KeyProof`] and the others), bytes that know their verifier. Like a read, a proof is of the state that the
//! session reads, and the session goes on. [`mod@proof`] has the verifiers, which need neither the
//! database nor an operating system (crate `pleach-core`). The roots are those of `nomt-core`.
//!
//! ```
//! use pleach::{Access, Db, Hasher, Options, SessionOptions, Value, proof};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! # let db = Db::open(Options::new(folder).create(true).cache_mib(64))?;
//! # let session = db.session(SessionOptions::new())?;
//! # session.finish(vec![Access::write([1; 32], Some(Value::from(b"7")))])?.commit()?;
//! let session = db.session(SessionOptions::new())?;
//! let proof = session.prove_many(&[[1; 32], [9; 32]])?;
//!
//! // Whoever trusts the root:
//! let verified = proof.verify(Hasher::BLAKE3, &session.root())?;
//! let hash = pleach_core::node::value_hash(Hasher::BLAKE3, b"7");
//! assert_eq!(verified.get(&[1; 32]), proof::Lookup::Present(hash));
//! assert_eq!(verified.get(&[9; 32]), proof::Lookup::Absent);
//! # Ok(())
//! # }
//! ```
//!
//! # History
//!
//! With [`Options::history`] the last commits before the newest can be read by their numbers, across restarts and
//! crashes: [`Db::at`] gives a session on one, with reads, iteration and proofs, [`Session::fork`] a second one on the
//! same state, [`Db::prove_change`] what differs between two. [`Db::rollback`] goes back by one durable commit. A
//! history of `n` has `n` commits: what they replaced lies on the device in sorted runs, the newest of it in memory as
//! well, as far as [`Options::undo_memory_mib`] allows. The device's bytes can be limited, too
//! ([`Options::history_disk_mib`]): then the oldest commits go first, reading them gives [`Error::SnapshotTooOld`],
//! and commits never fail for it. A session that is kept beyond the history can be read as long as memory has its undo.
//! Damage costs the commits before it alone ([`Opening::lost`](status::Opening::lost)); with
//! [`Options::require_history`] the open is refused then. [`Db::pins`] says who holds which commit, and since when.
//!
//! ```
//! use pleach::{Access, Db, Options, SessionOptions, Value};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let options = Options::new(folder.path()).create(true).small().history(100);
//! let db = Db::open(options)?;
//! for balance in 1..=3 {
//!     let put = Access::write([7; 32], Some(Value::from(&[balance])));
//!     db.session(SessionOptions::new())?.finish(vec![put])?.commit()?;
//! }
//! assert_eq!(db.at(1)?.read(&[7; 32])?, Some(Value::from(&[1])));
//! assert_eq!(db.rollback(2)?, 4);
//! assert_eq!(db.root(), db.commit_at(1)?.root);
//! # Ok(())
//! # }
//! ```
//!
//! # Durability
//!
//! [`Durability::Commit`], the default: when [`Block::commit`] returns, the commit survives a power cut.
//! [`Durability::Periodic`] and [`Durability::None`] lose the newest commits in a crash, and never anything
//! else. Pages are written and checkpoints made in the background. [`Db::close`] writes one more, so that
//! the next open reads no log; to be killed instead loses nothing. [`Db::opened`] says what an open found.
//!
//! # Errors
//!
//! [`Error`] is one enum to match on. [`Error::outcome`] says whether the operation took place, did not, or may have;
//! [`Error::advice`] whether to try again, free space or reopen; [`Error::device`] what the device said, with file,
//! offset and errno. What is refused comes back with its reason: [`FinishError`] has the session, [`CommitError`] the
//! block. After a failed write or sync ([`Error::Poisoned`], and [`Error::InDoubt`] for the commit that met it) the
//! database reads on and commits nothing until it is opened again. Damage is found before anything is changed;
//! `pleach_ops::check` lists all of it, and that crate looks into a folder that nobody writes to.
//!
//! ```
//! use pleach::{Advice, Block, CommitError, Error, Outcome};
//!
//! /// Commits a block; when there is no room, it makes some and tries again.
//! fn commit(block: Block, make_room: impl FnOnce()) -> Result<u64, Error> {
//!     let (block, error) = match block.commit() {
//!         Ok(number) => return Ok(number),
//!         Err(failed) => failed.into_parts(),
//!     };
//!     match (error.outcome(), error.advice()) {
//!         (Outcome::DidNotHappen, Advice::FreeSpace) => {
//!             make_room();
//!             block.commit().map_err(CommitError::into_error)
//!         }
//!         // With `Outcome::Unknown` the reopened database tells whether the commit is there.
//!         _ => Err(error),
//!     }
//! }
//! # assert_eq!(Error::Closed.outcome(), Outcome::DidNotHappen);
//! ```
//!
//! # Tests and development
//!
//! A new database reserves 8 MiB of disk for its log. [`Options::small`] makes one of less than 2 MiB, for the tests of
//! an application: `Options::new(folder).create(true).small()`. It works like any other and may grow as large.
//!
//! # Hash functions
//!
//! A database hashes with BLAKE3. [`Options::hasher`] gives it SHA-256 or an application's own function
//! ([`Hasher::new`]), which it records by name; verifiers take the same value.
//!
//! # Simulated disks
//!
//! [`Db::open_on`] opens a database on any device and executor, such as the simulated disk of `pleach-io`, which can be
//! cut off at any moment.
//!
//! # Features
//!
//! * `sha2` (on by default): the hasher SHA-256. Without it a database of that hasher does not open.
//! * `serde`: `Serialize` and `Deserialize` of proofs, nodes and roots.
//! * `metrics`: all figures, and histograms, for the recorder of the crate `metrics` (`observe`).
#![warn(missing_debug_implementations)]

mod access;
mod checkpoint;
mod commit;
mod db;
mod digest;
mod engine;
mod error;
mod error_forwarding;
mod finish;
mod flush;
mod handles;
pub mod load;
mod memory_limit;
pub mod metrics;
mod namespace;
mod namespaces;
pub mod observe;
mod open;
mod opening;
mod options;
mod phase;
mod prefetch;
mod read;
mod rollback;
mod roots;
pub mod scrub;
mod session;
mod state;
mod timings;

pub use access::{Access, AccessKind, MAX_VALUE};
pub use commit::CommitOptions;
pub use commit::block::{Block, CommitError};
pub use commit::changes::Change;
pub use commit::overlay::Overlay;
pub use db::Db;
pub use error::{Advice, Error, Outcome, Result};
pub use finish::witness::Witness;
pub use load::Progress;
pub use metrics::Metrics;
pub use namespace::{Iter, Namespace};
pub use options::{Durability, Geometry, IoMode, Options};
pub use pleach_beatree::Value;
pub use pleach_core::{Hasher, Key, Node, ValueHash, proof, range};
pub use roots::{Commit, Roots};
pub use scrub::bad_page::BadPage;
pub use session::{FinishError, Session, SessionOptions};

/// Reports of an open database about itself.
pub mod status {
    pub use crate::db::backup::CopyReport;
    pub use crate::handles::{Holder, OpenHandles};
    pub use crate::opening::{LostHistory, Note, Opening};
    pub use crate::phase::Phase;
    pub use crate::state::pace::beats::TaskState;
    pub use crate::state::undo::pins::Pin;
    pub use pleach_beatree::pages::Quarantined;
}

/// Types in the variants of [`Error`] that callers may match on. All other fields of variants are causes for display
/// and logs, whose types may change in any version. [`Error::code`], [`Error::outcome`], [`Error::advice`] and
/// [`Error::device`] do not.
pub mod errors {
    pub use pleach_io::{IoError, LockHolder, Operation};

    pub use crate::error::{NoRoom, PoisonCause};
    pub use crate::options::InvalidOption;
}

/// Items of the engine for `pleach-ops`, tests and fuzzers; no part of the interface.
#[doc(hidden)]
pub mod internals {
    pub use pleach_core::hexadecimal;

    pub mod history {
        pub use crate::open::history::{root_after, root_before};
    }

    /// Causes of errors.
    pub mod error {
        pub use pleach_beatree::Error as TreeError;
        pub use pleach_core::page::{OverflowError, PageError};

        pub use crate::error::{Contradiction, full_or};
    }

    pub mod open {
        pub use crate::open::{examine, examine_beside, pages, recovery};
    }

    pub mod options {
        pub use crate::options::{HistoryLimits, Tuning};
    }

    pub mod roots {
        pub use crate::roots::TrieRoot;
    }

    pub mod state {
        pub use crate::scrub::bad_page::page_of_value;
        pub use crate::state::undo::Undo;
        pub use crate::state::undo::replaced::stored;
        pub use crate::state::view::merge_changes;
        pub use pleach_beatree::pages::overflow::{assemble_value, extents, read_pieces};
    }
}

/// The examples of both READMEs, of the guide and of the page on proofs compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/embed.md")]
#[doc = include_str!("../../docs/proofs.md")]
struct Examples;
