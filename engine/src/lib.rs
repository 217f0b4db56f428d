//! Pleach: a state database for blockchain nodes. A flat key-value store and a binary Merkle trie
//! share the same SSD pages.

mod ahead;
mod announced;
mod answers;
mod block;
mod checkpoint;
mod commit;
pub mod creation;
mod db;
mod error;
mod examine;
mod files;
mod finish;
mod flush;
mod foreground;
mod given_back;
mod handles;
pub mod incarnation;
mod load;
pub mod log;
mod metrics;
mod node_cache;
mod notice;
mod options;
mod overflow;
mod overlay;
mod overlays;
mod prefetch;
mod quarantine;
mod recovery;
mod resources;
mod sequencer;
mod session;
mod shared;
mod spare;
pub mod superblock;
pub mod tools;
mod touches;
mod undo;
mod view;
mod warm;
mod watchdog;
mod witness;

pub use block::Block;
pub use db::Db;
pub use error::{Error, Result};
pub use examine::{Note, Opening};
pub use given_back::{CommitError, FinishError};
pub use handles::OpenHandles;
pub use load::{LoadOptions, LoadReport, Progress};
pub use metrics::Metrics;
pub use options::{Durability, Geometry, IoMode, Options};
pub use overlay::Overlay;
pub use pleach_beatree::Value;
pub use pleach_core::{Blake3, Hasher, Key, Node, Sha2};
pub use pleach_io::IoError;
pub use quarantine::Quarantined;
pub use session::{Access, AccessKind, MAX_VALUE, Session, SessionOptions};
pub use watchdog::TaskState;
pub use witness::Witness;

/// A database under BLAKE3.
pub type Pleach = Db<Blake3>;
