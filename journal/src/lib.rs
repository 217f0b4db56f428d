//! The log of Pleach, and all formats on the device: [`mod@format`] has one module for each type that is written,
//! [`log`] the files of the log: appending, syncing, and reading back. `pleach_core::page` has the pages of the trie.
//!
//! The engine decides what a record means, when a superblock is written and when the log is cut. See
//! `docs/format-log.md` and `docs/commit-and-recovery.md`.
#![warn(missing_debug_implementations)]
#![forbid(unsafe_code)]

pub mod format;
pub mod log;
