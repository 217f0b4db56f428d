//! Pleach: a state database that a blockchain node embeds.
//!
//! A flat key-value store and a binary Merkle trie share the same 4 KiB pages: a cold account costs one
//! read of the SSD, the trie adds none, and a durable commit costs one sequential append.
//!
//! ```
//! use pleach::{Access, Options, Pleach, SessionOptions, Value, proof, witness};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let db = Pleach::open(Options::new(folder).create(true).cache_mib(64))?;
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
//! let verified = witness::verify::<pleach::Blake3>(&witness, &block.prev_root())?;
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
//! A [`Session`] reads one fixed state, whatever is committed meanwhile: [`Session::read`] from any number
//! of threads, [`Session::read_many`] at the device's full depth, [`Session::prefetch`] to return at once.
//! [`Session::finish`] takes what a block did with its keys ([`Access`]), in any order and each key once, and
//! gives a [`Block`]: a root, and a [`Witness`] unless told otherwise. Nothing is written by then.
//!
//! # Overlays
//!
//! A block that is not to be committed yet becomes an [`Overlay`]: a state in memory that sessions stand on
//! ([`SessionOptions::over`]), in chains of any length and with branches. [`Overlay::commit`] makes one commit
//! of a chain; what stands on it stays valid, what stands beside it is stale.
//!
//! # Proofs
//!
//! [`witness`] and [`mod@proof`] are the verifiers, which need neither the database nor an operating system
//! (crate `pleach-core`). The roots are those of `nomt-core`.
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
//! [`Error`] is one enum to match on. What is refused comes back with its reason: [`FinishError`] has the
//! session, [`CommitError`] the block. [`Error::Full`] means that nothing took place; after a failed write or
//! sync ([`Error::Poisoned`]) the database reads on and commits nothing until it is opened again. Damage is
//! found before anything is changed; [`tools::check`] lists all of it, and [`tools`] looks into a folder
//! that nobody writes to.
//!
//! # Type parameters
//!
//! `Db<H, D, R>` and its handles take a hasher, a device and a runtime. The defaults ([`Blake3`], the
//! operating system, threads) are what an application uses; the others are there for tests on a simulated
//! disk. [`Pleach`] is `Db` with all defaults.
#![warn(missing_debug_implementations)]

mod access;
mod checkpoint;
mod commit;
mod db;
mod engine;
mod error;
mod finish;
mod flush;
mod format;
mod given_back;
mod handles;
mod load;
mod log;
mod metrics;
mod open;
mod opening;
mod options;
mod prefetch;
mod read;
mod rollback;
mod session;
mod state;
pub mod tools;
mod watchdog;

pub use access::{Access, AccessKind, MAX_VALUE};
pub use commit::block::{Block, CommitError, Overlay};
pub use db::{Commit, Db};
pub use error::{Error, Result};
pub use finish::witness::Witness;
pub use handles::OpenHandles;
pub use load::{LoadOptions, LoadReport, Progress};
pub use metrics::Metrics;
pub use opening::{Note, Opening};
pub use options::{Durability, Geometry, IoMode, Options};
pub use pleach_beatree::Value;
pub use pleach_core::{Blake3, Hasher, Key, Node, Sha2, ValueHash, proof, witness};
pub use pleach_io::IoError;
pub use session::{FinishError, Session, SessionOptions};
pub use state::beats::TaskState;
pub use state::pins::{Holder, Pin};
pub use state::quarantine::Quarantined;

/// A database under BLAKE3.
pub type Pleach = Db<Blake3>;

/// What the variants of [`Error`] carry.
pub mod errors {
    pub use pleach_beatree::space::SpaceError;
    pub use pleach_core::page::{OverflowError, PageError};
    pub use pleach_io::IoError;

    pub use crate::error::{Contradiction, NoRoom, PoisonCause};
    pub use crate::format::bytes::BodyError;
    pub use crate::format::creation::CreationError;
    pub use crate::format::image_error::ImageError;
    pub use crate::format::incarnation::IncarnationError;
    pub use crate::format::position::LogPos;
    pub use crate::format::superblock::{SlotError, SuperblockError};
    pub use crate::log::error::{BadSegment, DurableEvidence, Invalid, LogError, ScanError};
    pub use crate::options::InvalidOption;
}

/// The log and the formats of the small files, for tests and fuzzers; no part of the interface.
#[doc(hidden)]
pub mod internals {
    pub use crate::format::{
        commit_body, creation, incarnation, location_body, names, record, superblock,
    };

    pub mod log {
        pub use crate::format::bytes::BodyError;
        pub use crate::format::position::{BLOCK, LogPos, Point};
        pub use crate::format::record::{Header, Kind, RecordBuf};
        pub use crate::log::error::{BadSegment, DurableEvidence, Invalid, LogError, ScanError};
        pub use crate::log::scan::{CutReport, ScanEnd, ScanInput, scan};
        pub use crate::log::segment::{SegmentOptions, SegmentStats, Segments, create};
        pub use crate::log::writer::{LogWriter, Tail, WriterStart};
    }
}
