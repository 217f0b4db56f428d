//! The log of Pleach, and the bytes of everything on the device: [`mod@format`] has one module for each type that is
//! written, [`log`] the files of the log: appending, syncing, and reading back. Pages of the trie are
//! `pleach_core::page`'s.
//!
//! What a record means, when a superblock is written and when the log is cut is the engine's. See `docs/format-log.md`
//! and `docs/commit-and-recovery.md`.
#![warn(missing_debug_implementations)]
#![forbid(unsafe_code)]

pub mod format;
pub mod log;
