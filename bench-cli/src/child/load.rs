//! The load job.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::args::values::Switch;
use crate::backend::roots::RootWriter;
use crate::backend::{self, EngineOptions};
use crate::child::pipe::say;
use crate::child::{Event, HexRoot, LoadResult, Spec};
use crate::error::Result;
use crate::machine::{self, DiskUse};

/// How often progress is reported.
const TICK: Duration = Duration::from_millis(100);

/// Loads the accounts into a new database and closes it.
pub(crate) fn load(spec: &Spec) -> Result<LoadResult> {
    let accounts = spec.initial();
    // Nobody needs a witness of the load, and an engine may be faster if it knows that.
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
                // If the parent is gone, that is noticed when the result is sent.
                let _ = say(&Event::Progress { done, of: accounts });
            }
        }),
    )?;
    let root = engine.root();
    let notes = engine.notes();
    engine.close()?;
    let seconds = start.elapsed().as_secs_f64();
    RootWriter::open(&spec.place.roots)?.append(0, &root)?;
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
