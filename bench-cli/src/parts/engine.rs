//! The database of a workload of single parts: opened as an application would, with its durability.

use std::path::Path;

use pleach::{Access, Durability, Key, LoadOptions, Options, Pleach, SessionOptions, Value};

use crate::error::{BenchError, Result};

/// An engine's error.
pub(super) fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("pleach")(error)
}

/// Opens or creates a database that syncs nothing.
pub(super) fn open(folder: &Path, cache_mib: u64) -> Result<Pleach> {
    let options = Options::new(folder).create(true).durability(Durability::None);
    Pleach::open(options.cache_mib(cache_mib)).map_err(wrap)
}

/// Opens or creates a database whose commits are durable.
pub(super) fn open_durable(folder: &Path, cache_mib: u64) -> Result<Pleach> {
    Pleach::open(Options::new(folder).create(true).cache_mib(cache_mib)).map_err(wrap)
}

/// Commits pairs, and says what the root is.
pub(super) fn commit(db: &Pleach, pairs: &[(Key, u64)]) -> Result<pleach::Node> {
    let session = db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
    let block = session.finish(writes(pairs)).map_err(wrap)?;
    let root = block.root();
    block.commit().map_err(wrap)?;
    Ok(root)
}

/// Pairs as a batch of blind writes.
pub(super) fn writes(pairs: &[(Key, u64)]) -> Vec<Access> {
    pairs.iter().map(|(key, value)| Access::write(*key, Some(encode(*value)))).collect()
}

/// A number as the value that is stored.
pub(super) fn encode(value: u64) -> Value {
    Value::from(value.to_le_bytes().as_slice())
}

/// The root that a load of these pairs gives, in a database of its own.
pub(super) fn root_of_load(folder: &Path, pairs: &[(Key, u64)]) -> Result<pleach::Node> {
    let at = tempfile::tempdir_in(folder).map_err(BenchError::file(folder))?;
    let db = open(at.path(), 64)?;
    let pairs: Vec<_> = pairs.iter().map(|(key, value)| (*key, encode(*value))).collect();
    let report = db.bulk_load(pairs.into_iter(), &LoadOptions::new()).map_err(wrap)?;
    db.close().map_err(wrap)?;
    Ok(report.root)
}

/// The values of these pairs are there, and nothing else is.
pub(super) fn check(db: &Pleach, pairs: &[(Key, u64)]) -> Result<()> {
    let session = db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
    let keys: Vec<Key> = pairs.iter().map(|pair| pair.0).collect();
    let values = session.read_many(&keys).map_err(wrap)?;
    let expected = pairs.iter().map(|pair| Some(encode(pair.1)));
    let wrong = values.into_iter().zip(expected).filter(|(found, expected)| found != expected);
    let wrong = wrong.count();
    let there =
        session.iter(..).try_fold(0, |count, pair| pair.map(|_| count + 1)).map_err(wrap)?;
    if wrong > 0 || there != pairs.len() {
        let text = format!("{wrong} of {} values are wrong, {there} are there", pairs.len());
        return Err(BenchError::Wrong(text));
    }
    Ok(())
}
