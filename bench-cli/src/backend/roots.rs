//! The record of roots next to a database: one line `NUMBER ROOT` per batch, appended before the
//! batch is committed. Number 0 is the state after the load, number n the state after n batches.
//!
//! It has three uses. Engines without an application blob learn from it how many batches their root
//! stands for. The roots of several backends are compared, even across runs. And a reopened
//! database must have a root that is in the record.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

#[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
use crate::backend::Place;
use crate::backend::Root;
use crate::error::{BenchError, Result};
use crate::text::{from_hex, hex};

/// Roots by the number of batches done.
#[derive(Debug, Default)]
pub(crate) struct Roots(pub(crate) BTreeMap<u64, Root>);

impl Roots {
    /// Reads a record. A missing file counts as empty; an incomplete last line is skipped.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(BenchError::file(path)(error)),
        };
        let mut roots = BTreeMap::new();
        for line in text.lines() {
            let parts = line.split_once(' ');
            if let Some((Ok(number), Some(root))) =
                parts.map(|(number, root)| (number.parse::<u64>(), from_hex(root)))
            {
                roots.insert(number, root);
            }
        }
        Ok(Self(roots))
    }

    /// The largest number with this root.
    #[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
    pub(crate) fn number_of(&self, root: &Root) -> Option<u64> {
        self.0.iter().rev().find(|entry| entry.1 == root).map(|entry| *entry.0)
    }

    /// The first number at which two records disagree, and how many numbers both have.
    pub(crate) fn compare(&self, other: &Self) -> (Option<u64>, u64) {
        let mut common = 0;
        for (number, root) in &self.0 {
            match other.0.get(number) {
                Some(theirs) if theirs == root => common += 1,
                Some(_) => return (Some(*number), common),
                None => {}
            }
        }
        (None, common)
    }
}

/// A record open for appending.
#[derive(Debug)]
pub(crate) struct RootWriter(File, std::path::PathBuf);

impl RootWriter {
    /// Opens or creates a record.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        Ok(Self(file.map_err(BenchError::file(path))?, path.to_owned()))
    }

    /// Adds a line.
    pub(crate) fn append(&mut self, number: u64, root: &Root) -> Result<()> {
        // One write call per line, so that a kill leaves whole lines. The leading newline ends a
        // line that an earlier kill may have left incomplete.
        let line = format!("\n{number} {}\n", hex(root));
        self.0.write_all(line.as_bytes()).map_err(BenchError::file(&self.1))
    }
}

/// The number of batches done, by the record of roots, for a database without a blob.
#[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
pub(crate) fn batches_by_root(place: &Place, root: &Root) -> Result<u64> {
    let record = Roots::read(&place.roots)?;
    record.number_of(root).ok_or_else(|| {
        let text = format!("its root {} is that of no batch of the stream", hex(root));
        BenchError::Wrong(text)
    })
}
