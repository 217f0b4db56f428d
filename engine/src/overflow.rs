//! Values too long for a page: in extents of the overflow file, named by a cell.
//!
//! A value's pages are stream pages of the overflow file; the cell keeps its length, its hash and
//! the runs. Who writes a value syncs the file before anything durable names it: a commit record
//! for values over 64 KiB, a location record for the others.

use std::sync::Arc;

use parking_lot::Mutex;

use pleach_beatree::space::Extents;
use pleach_beatree::stored::{LargeValue, overflow_cell};
use pleach_beatree::{Stored, Value};
use pleach_core::Hasher;
use pleach_core::page::overflow::{OverflowCell, Run};
use pleach_core::page::stream::{self, StreamHeader, StreamId, StreamView};
use pleach_core::page::{FileKind, Identity};
use pleach_io::{Device, PageBuf, Runtime};

use crate::error::{Error, Result};
use crate::resources::full;
use crate::shared::{OVERFLOW_FILE, Shared};

/// Pages of one write or read.
const RUN_PAGES: usize = 256;

/// Writes a value (unsynced) and gives the cell that names it.
pub(crate) fn write<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    tentative: &mut Tentative<'_>,
    large: &LargeValue,
    flush: u64,
) -> Result<Arc<[u8]>> {
    let pages = large.bytes.len().div_ceil(stream::PAYLOAD);
    let runs = shared.allocate_overflow(pages, tentative)?;
    let mut chunks = large.bytes.chunks(stream::PAYLOAD);
    let mut index = 0u32;
    for run in &runs {
        let mut at = run.start;
        let mut left = run.pages as usize;
        while left > 0 {
            let count = left.min(RUN_PAGES);
            let mut buf = PageBuf::zeroed(count);
            for page in 0..count {
                let header = StreamHeader {
                    identity: overflow_identity(shared.database, at + page as u64),
                    flush,
                    namespace: 0,
                    stream: StreamId::Value,
                    index,
                };
                stream::build(buf.page_mut(page), &header, chunks.next().unwrap_or_default());
                index += 1;
            }
            let written = shared.device.write_at(&shared.files.overflow, &buf, count, at * 4096);
            written.map_err(full).inspect_err(|error| {
                // A file system that copies on writing may have no room for what is reserved. Nothing
                // names the runs yet: they are given back.
                if !matches!(error, Error::Full(_)) {
                    shared.poison(error);
                }
            })?;
            at += count as u64;
            left -= count;
        }
    }
    let mut cell = Vec::new();
    OverflowCell::encode(large.bytes.len() as u64, &large.hash, &runs, &mut cell).map_err(
        |error| Error::Corrupt(format!("a long value's extents cannot be named: {error}")),
    )?;
    Ok(cell.into())
}

/// Runs that are written and that no record names yet. A checkpoint's map leaves them out; when
/// nothing comes to name them, they are free again.
pub(crate) struct Tentative<'a> {
    extents: &'a Mutex<Extents>,
    all: &'a Mutex<Vec<Run>>,
    own: Vec<Run>,
}

impl<'a> Tentative<'a> {
    pub(crate) fn new(extents: &'a Mutex<Extents>, all: &'a Mutex<Vec<Run>>) -> Self {
        Self { extents, all, own: Vec::new() }
    }

    /// Takes up runs that were kept.
    pub(crate) fn again(
        extents: &'a Mutex<Extents>,
        all: &'a Mutex<Vec<Run>>,
        own: Vec<Run>,
    ) -> Self {
        Self { extents, all, own }
    }

    /// Leaves the runs tentative, in the caller's care.
    pub(crate) fn keep(mut self) -> Vec<Run> {
        std::mem::take(&mut self.own)
    }

    /// Runs just allocated; the extents are still locked.
    pub(crate) fn add(&mut self, runs: &[Run]) {
        self.all.lock().extend_from_slice(runs);
        self.own.extend_from_slice(runs);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// A record that names the runs has been queued; called under the sequencer's lock.
    pub(crate) fn named(mut self) {
        let own = std::mem::take(&mut self.own);
        self.all.lock().retain(|run| !own.contains(run));
    }
}

impl Drop for Tentative<'_> {
    fn drop(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let mut extents = self.extents.lock();
        self.all.lock().retain(|run| !self.own.contains(run));
        for run in &self.own {
            extents.mark_free(*run).expect("allocated by the same owner");
        }
    }
}

/// The value behind a stored state.
pub(crate) fn value<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    stored: Stored,
) -> Result<Option<Value>> {
    match stored {
        Stored::Absent => Ok(None),
        Stored::Inline(value) => Ok(Some(value)),
        Stored::Large(large) => Ok(Some(large.bytes.clone())),
        Stored::Overflow(raw) => read(shared, &raw).map(Some),
    }
}

/// Reads a value; every page and the value's hash are checked.
fn read<H: Hasher, D: Device, R: Runtime>(shared: &Shared<H, D, R>, raw: &[u8]) -> Result<Value> {
    read_from::<H, D>(&shared.device, &shared.files.overflow, shared.database, raw)
}

/// The same from a file that is open for reading.
pub(crate) fn read_from<H: Hasher, D: Device>(
    device: &D,
    file: &D::File,
    database: u64,
    raw: &[u8],
) -> Result<Value> {
    let cell = overflow_cell(raw);
    let total = usize::try_from(cell.total_len())
        .map_err(|_| Error::Corrupt("a value over 4 GiB".to_owned()))?;
    let mut bytes = Vec::with_capacity(total);
    let mut index = 0u32;
    for run in cell.runs() {
        let mut at = run.start;
        let mut left = run.pages as usize;
        while left > 0 {
            let count = left.min(RUN_PAGES);
            let mut buf = PageBuf::zeroed(count);
            device.read_at(file, &mut buf, at * 4096)?;
            for page in 0..count {
                let place = at + page as u64;
                let view =
                    StreamView::parse(buf.page(page), &overflow_identity(database, place))
                        .map_err(|error| Error::Page { file: OVERFLOW_FILE, page: place, error })?;
                if view.stream() != StreamId::Value || view.index() != index {
                    return Err(Error::Corrupt(format!(
                        "page {place} of {OVERFLOW_FILE} belongs to another value"
                    )));
                }
                bytes.extend_from_slice(view.payload());
                index += 1;
            }
            at += count as u64;
            left -= count;
        }
    }
    if bytes.len() != total || H::hash(&bytes) != cell.value_hash() {
        return Err(Error::Corrupt(
            "a long value does not have the hash that its cell names".to_owned(),
        ));
    }
    Ok(Value::from(bytes))
}

fn overflow_identity(database: u64, place: u64) -> Identity {
    Identity { kind: FileKind::Overflow, page_no: place, db_id: database }
}

/// The runs that a stored state occupies in the overflow file.
pub(crate) fn runs(stored: &Stored) -> Vec<Run> {
    match stored {
        Stored::Overflow(raw) => overflow_cell(raw).runs().collect(),
        _ => Vec::new(),
    }
}
