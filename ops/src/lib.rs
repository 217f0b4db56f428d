//! What operators do with a [`pleach`] database: check it, look into its files, scrub, repair, back up, export and import it.
//!
//! * [`stat`], [`check`], [`explain`]: look into a folder that nobody writes to. They recover into memory as an open would, and write
//!   nothing. Pairs, proofs and history are read through an open with [`Options::read_only`](pleach::Options::read_only);
//! * [`mod@repair`]: makes a damaged database open again, brings a backup to the newest commit, or saves what is whole;
//! * [`backup()`]: copies an open database;
//! * [`open_unfinished`] and [`finish`]: a database that is filled from elsewhere, and that no node takes before it is whole;
//! * [`export`]: streams of all pairs of a state, and of the changes between two commits.
//!
//! [`RootFolder`] gives the root of pairs that come in key order, wherever they come from.
//!
//! Functions that end in `_on` take any device. `stat`, `check` and `explain` take the folder's lock as readers do. Where a process has
//! the database open for writing, `stat` and `explain` look beside it (`docs/readers.md`), and `check` refuses.
//!
//! ```
//! use pleach::{Access, Db, Options, SessionOptions, Value};
//! use pleach_ops::{CheckOptions, check, explain, stat};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let db = Db::open(Options::new(folder.path()).create(true))?;
//! let (key, value) = ([7; 32], Value::from(&b"seven"[..]));
//! let session = db.session(SessionOptions::new())?;
//! session.finish(vec![Access::write(key, Some(value))])?.commit()?;
//! db.close()?;
//!
//! assert_eq!(stat(folder.path())?.commit, 1);
//! let report = check(folder.path(), CheckOptions::default())?;
//! assert!(report.findings.is_empty() && report.keys == 1);
//! assert!(explain(folder.path(), 0, &key)?.present);
//! # Ok(())
//! # }
//! ```
#![warn(missing_debug_implementations)]

mod backup;
mod check;
mod error;
mod explain;
pub mod export;
mod losses;
mod metrics;
mod opened;
pub mod repair;
mod replay;
mod stat;
mod unfinished;

pub use backup::{BackupOptions, BackupReport, backup, backup_on};
pub use check::{CheckOptions, CheckReport, Finding, Severity, Verdict, check, check_on};
pub use error::{Error, Result};
pub use explain::{Explanation, explain, explain_on, explain_past};
pub use metrics::reader_metrics;
pub use opened::{has_writer, hasher, id};
pub use pleach_core::fold::{FoldValue, NotAscending, RootFolder};
pub use stat::{NamespaceStat, Stat, stat, stat_on};
pub use unfinished::{finish, open_unfinished};

/// The examples of the package's README and of the guide from other stores compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../docs/from-other-stores.md")]
struct Examples;
