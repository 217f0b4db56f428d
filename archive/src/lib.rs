//! Archives of Pleach databases: incremental backups in a folder or an object store, restores of any archived commit,
//! and followers.
//!
//! An archive has two kinds of objects. A *full* is an export stream: all pairs of a commit. *Changes* are a change
//! stream: what differs between two commits. [`backup`] writes them, beside commits; [`restore`] makes a database of
//! them, at any commit at which one of them ends; a [`Follower`] keeps a database up with an archive; [`prune`] removes
//! what is old, and [`check`] reads an archive as a whole. Each step is verified by the roots of the Merkle namespaces.
//!
//! ```
//! use pleach::{Access, Db, Options, SessionOptions, Value};
//! use pleach_archive::{Archive, BackupOptions, Follower, RestoreOptions, backup, restore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let at = |name: &str| folder.path().join(name);
//! let options = Options::new(at("state")).create(true).history(100);
//! # let options = options.small();
//! let db = Db::open(options)?;
//! let put = |value: &[u8]| -> Result<u64, Box<dyn std::error::Error>> {
//!     let put = Access::write([7; 32], Some(Value::from(value)));
//!     Ok(db.session(SessionOptions::new())?.finish(vec![put])?.commit()?)
//! };
//! put(b"one")?;
//! let archive = Archive::create(at("archive").to_str().ok_or("a name")?)?;
//! backup(&archive, &db, &BackupOptions::new())?; // a full
//!
//! let options = RestoreOptions::new().database(|options| options.small());
//! let mut follower = Follower::open(&archive, &at("copy"), &options)?;
//! put(b"two")?;
//! backup(&archive, &db, &BackupOptions::new())?; // changes
//! while follower.step()?.is_some() {}
//! assert_eq!((follower.at(), follower.db().root()), (2, db.root()));
//!
//! let report = restore(&archive, &at("old"), &options.commit(Some(1)))?;
//! assert_eq!(report.roots.get(0), Some(db.commit_at(1)?.root));
//! # Ok(())
//! # }
//! ```
//!
//! Calls block, and may come from any thread, also from one of an asynchronous runtime that may block. docs/archive.md
//! has objects and protocol.

mod backup;
mod cursor;
mod error;
mod follow;
mod listing;
mod names;
mod place;
mod prune;
mod tasks;
mod transfer;
mod verify;

pub use backup::{BackupOptions, BackupReport, FullReason, backup};
pub use error::{ArchiveError, Gap, Result};
pub use follow::{Follower, RestoreOptions, RestoreReport, restore};
pub use listing::Listing;
pub use names::Piece;
pub use place::Archive;
pub use prune::prune;
pub use transfer::{Progress, Transfer};
pub use verify::{Finding, check, check_heads};

pub use object_store::ObjectStore;

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
