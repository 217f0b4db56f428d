//! Pleach: a state database for blockchain nodes. A flat key-value store and a binary Merkle trie
//! share the same SSD pages.

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
mod session;
mod state;
pub mod tools;
mod watchdog;

pub use access::{Access, AccessKind, MAX_VALUE};
pub use commit::block::{Block, CommitError, Overlay};
pub use db::Db;
pub use error::{Error, Result};
pub use finish::witness::Witness;
pub use handles::OpenHandles;
pub use load::{LoadOptions, LoadReport, Progress};
pub use metrics::Metrics;
pub use opening::{Note, Opening};
pub use options::{Durability, Geometry, IoMode, Options};
pub use pleach_beatree::Value;
pub use pleach_core::{Blake3, Hasher, Key, Node, Sha2};
pub use pleach_io::IoError;
pub use session::{FinishError, Session, SessionOptions};
pub use state::beats::TaskState;
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
