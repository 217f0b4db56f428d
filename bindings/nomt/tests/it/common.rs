//! Helpers of several tests.

use std::path::Path;

use nomt::hasher::Blake3Hasher;
use nomt::trie::KeyPath;
use nomt::{FinishedSession, KeyReadWrite, Nomt, Options, Overlay, SessionParams};

pub(crate) type Database = Nomt<Blake3Hasher>;

/// Small, with rollbacks.
pub(crate) fn options(folder: &Path) -> Options {
    let mut options = Options::new();
    options.path(folder);
    options.rollback(true);
    options.max_rollback_log_len(20);
    options.page_cache_size(8);
    options.leaf_cache_size(8);
    options
}

pub(crate) fn open(folder: &Path) -> Database {
    Nomt::open(options(folder)).expect("opened")
}

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

pub(crate) fn key(byte: u8) -> KeyPath {
    [byte; 32]
}

/// Writes one key over these overlays, newest first.
pub(crate) fn put(db: &Database, over: &[&Overlay], id: u8, value: &[u8]) -> FinishedSession {
    let write = KeyReadWrite::Write(Some(value.to_vec()));
    finish(db, over, vec![(key(id), write)])
}

pub(crate) fn finish(
    db: &Database,
    over: &[&Overlay],
    accesses: Vec<(KeyPath, KeyReadWrite)>,
) -> FinishedSession {
    let params = SessionParams::default().overlay(over.iter().copied()).expect("a chain");
    db.begin_session(params).finish(accesses).expect("finished")
}

/// The value in the newest commit.
pub(crate) fn get(db: &Database, id: u8) -> Option<Vec<u8>> {
    db.begin_session(SessionParams::default()).read(key(id)).expect("read")
}

/// Asserts that the call was refused, with a text that says this.
pub(crate) fn refused<T>(result: anyhow::Result<T>, text: &str) {
    let error = result.err().expect("refused");
    let all = format!("{error:#}");
    assert!(all.contains(text), "{all}");
}
