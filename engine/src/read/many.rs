//! Reading many keys: the pages that they need are read first, as many at once as the device takes.
//!
//! Nothing is given to the caller but an error: the keys are read one by one afterwards ([`super::point`]),
//! from the cache.

use std::collections::HashSet;
use std::thread::ThreadId;

use parking_lot::Mutex;
use pleach_core::Key;
use pleach_io::{Device, Runtime};

use super::key_batch::{KEY_BATCH, Reach, cpu_prefetch};
use super::point::{Found, find};
use crate::error::Result;
use crate::state::State;
use crate::state::in_flight::Reading;
use crate::state::reader::{PageReader, PageRequest};
use crate::state::view::View;

/// A reader that is made on first use. A ring serves the thread that made it, and is made again on another.
pub(crate) struct SpareReader<D: Device, R: Runtime>(Mutex<Option<Bound<D, R>>>);

/// A reader, and the thread that made it.
type Bound<D, R> = (ThreadId, PageReader<D, R, ()>);

impl<D: Device, R: Runtime> Default for SpareReader<D, R> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// Brings the pages of many keys into the cache. A second caller at the same time does nothing: its keys
/// are read one by one. So are keys in pages that somebody else is reading.
pub(crate) fn bring<D: Device, R: Runtime>(
    db: &State<D, R>,
    view: &View,
    spare: &SpareReader<D, R>,
    keys: &[Key],
) -> Result<()> {
    if db.all_is_here() {
        return Ok(());
    }
    let Some(mut spare) = spare.0.try_lock() else { return Ok(()) };
    let here = std::thread::current().id();
    let mut reader = match spare.take() {
        Some((thread, reader)) if thread == here => reader,
        _ => PageReader::new(&db.store, db.options.in_flight, Reading::Keys)?,
    };
    // After an error the reader goes, and waits for what is in flight.
    fetch(db, view, &mut reader, keys)?;
    *spare = Some((here, reader));
    Ok(())
}

fn fetch<D: Device, R: Runtime>(
    db: &State<D, R>,
    view: &View,
    reader: &mut PageReader<D, R, ()>,
    keys: &[Key],
) -> Result<()> {
    let _guard = db.store.enter();
    let batch = db.store.batch();
    let mut asked = HashSet::new();
    for (index, key) in keys.iter().enumerate() {
        if index.is_multiple_of(KEY_BATCH) {
            cpu_prefetch(db, keys[index..].iter().take(KEY_BATCH), Reach::Page);
        }
        if view.overlaid(key).is_some() {
            continue;
        }
        let Found::Page(at) = find(db, key) else { continue };
        if db.store.cache().hold(at.page, at.tag, batch) || !asked.insert(at.page) {
            continue;
        }
        if !reader.has_room() {
            take(db, reader)?;
        }
        // A page that is in flight for somebody else is waited for when its keys are read.
        reader.ask(&db.store, &db.nodes, PageRequest::Leaf(at), ());
    }
    while reader.in_flight() > 0 {
        take(db, reader)?;
    }
    Ok(())
}

/// Waits for one page, and takes in all others that are done.
fn take<D: Device, R: Runtime>(db: &State<D, R>, reader: &mut PageReader<D, R, ()>) -> Result<()> {
    let mut next = reader.wait(&db.store, &db.nodes, 1)?;
    while let Some(((), page)) = next {
        page?;
        next = reader.poll(&db.store, &db.nodes);
    }
    Ok(())
}
