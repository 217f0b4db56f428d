//! The load job.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::args::values::Switch;
use crate::backend::batches::BatchWriter;
use crate::backend::{self, EngineOptions};
use crate::child::{Event, HexRoot, Spec, say};
use crate::error::Result;
use crate::machine::{self, DiskUse};

/// How often progress is said.
const TICK: Duration = Duration::from_millis(100);

/// A finished load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LoadResult {
    pub(crate) accounts: u64,
    /// Load and clean close.
    pub(crate) seconds: f64,
    pub(crate) root: HexRoot,
    pub(crate) disk: DiskUse,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) files_bytes: u64,
    pub(crate) notes: Vec<String>,
}

/// Loads the accounts into a new database and closes it.
pub(crate) fn load(spec: &Spec) -> Result<LoadResult> {
    let accounts = spec.initial();
    // Nobody wants a witness of the load, and an engine may be faster when it knows.
    let options = EngineOptions { witness: Switch(false), ..spec.options.clone() };
    let mut engine = backend::open(spec.backend, &spec.place, &options)?;
    let before = DiskUse::now(&spec.place.folder);
    let start = Instant::now();
    let last = Mutex::new(start);
    engine.load(
        accounts,
        Box::new(move |done| {
            let Ok(mut last) = last.try_lock() else { return };
            if last.elapsed() >= TICK || done == accounts {
                *last = Instant::now();
                // A parent that is gone is noticed with the result.
                let _ = say(&Event::Progress { done, of: accounts });
            }
        }),
    )?;
    let root = engine.root();
    let notes = engine.notes();
    engine.close()?;
    let seconds = start.elapsed().as_secs_f64();
    BatchWriter::open(&spec.place.roots)?.append(0, &root)?;
    Ok(LoadResult {
        accounts,
        seconds,
        root: HexRoot(root),
        disk: DiskUse::now(&spec.place.folder).since(&before),
        peak_rss_bytes: machine::peak_rss(),
        files_bytes: machine::folder_bytes(&spec.place.folder),
        notes,
    })
}
