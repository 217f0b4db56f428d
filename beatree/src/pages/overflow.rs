//! Values too long for a page: in extents of the overflow file, named by a cell.
//!
//! A value's pages are stream pages of the overflow file; the cell has its length, its hash and the extents. A writer
//! syncs the file before anything durable names the value: a commit record for values over 64 KiB, a location record
//! for shorter ones.

use std::sync::Arc;

use pleach_core::Hasher;
use pleach_core::page::overflow::{OverflowCell, OverflowExtent};
use pleach_core::page::stream::{self, StreamHeader, StreamId, StreamView};
use pleach_core::page::{FileKind, Identity};
use pleach_io::{Disk, File, PageBuf};

use super::store::Store;
use crate::error::{Error, Result};
use crate::files::OVERFLOW_FILE;
use crate::page_no::page_offset;
use crate::stored::{LongValue, Stored, overflow_cell};
use crate::value::Value;

/// Pages of one write or read.
const RUN_PAGES: usize = 256;

/// Splits extents into reads and writes: a first page, and how many.
fn pieces(extents: impl Iterator<Item = OverflowExtent>) -> impl Iterator<Item = (u64, usize)> {
    extents.flat_map(|extent| {
        let pages = extent.pages as usize;
        let starts = (0..pages).step_by(RUN_PAGES);
        starts.map(move |from| (extent.start + from as u64, RUN_PAGES.min(pages - from)))
    })
}

/// The pieces in which the value of a cell is read.
pub fn pieces_of(raw: &[u8]) -> impl Iterator<Item = (u64, usize)> + use<'_> {
    pieces(overflow_cell(raw).extents())
}

/// Writes a value (unsynced) into extents that were allocated for it; returns the cell that names it.
pub fn write(
    store: &Store,
    file: &File,
    extents: &[OverflowExtent],
    large: &LongValue,
    namespace: u8,
    flush: u64,
) -> Result<Arc<[u8]>> {
    let mut chunks = large.bytes.chunks(stream::PAYLOAD);
    let mut index = 0u32;
    for (at, count) in pieces(extents.iter().copied()) {
        let mut buf = PageBuf::zeroed(count);
        for page in 0..count {
            let header = StreamHeader {
                identity: overflow_identity(store.database, at + page as u64),
                flush,
                namespace,
                stream: StreamId::Value,
                index,
            };
            stream::build(buf.page_mut(page), &header, chunks.next().unwrap_or_default());
            index += 1;
        }
        let written = store.device.write_at(file, &buf, count, page_offset(at));
        written.map_err(Error::of_unnamed)?;
    }
    let mut cell = Vec::new();
    OverflowCell::encode(large.bytes.len() as u64, &large.hash, extents, &mut cell)
        .map_err(Error::ValueExtents)?;
    Ok(cell.into())
}

/// Reads pages of the overflow file.
pub fn read_piece(device: &Disk, file: &File, at: u64, count: usize) -> Result<PageBuf> {
    let mut piece = PageBuf::zeroed(count);
    device.read_at(file, &mut piece, page_offset(at))?;
    Ok(piece)
}

/// Reads the pieces of a value from a file that is open for reading.
pub fn read_pieces(disk: &Disk, file: &File, raw: &[u8]) -> impl Iterator<Item = Result<PageBuf>> {
    pieces_of(raw).map(|(at, count)| read_piece(disk, file, at, count))
}

/// Puts a value together from its pieces; every page and the value's hash are checked.
pub fn assemble_value(
    hasher: Hasher,
    database: u64,
    raw: &[u8],
    pieces: impl Iterator<Item = Result<PageBuf>>,
) -> Result<Value> {
    let cell = overflow_cell(raw);
    let total = usize::try_from(cell.total_len())
        .map_err(|_| Error::ValueLength { bytes: cell.total_len() })?;
    let bad = |page, what| Error::Contents { file: OVERFLOW_FILE, page, what };
    let mut bytes = Vec::with_capacity(total);
    let mut index = 0u32;
    for ((at, count), piece) in pieces_of(raw).zip(pieces) {
        let piece = piece?;
        for offset in 0..count {
            let page = at + offset as u64;
            let view = StreamView::parse(piece.page(offset), &overflow_identity(database, page))
                .map_err(|error| Error::Page { file: OVERFLOW_FILE, page, error })?;
            if view.stream() != StreamId::Value || view.index() != index {
                return Err(bad(page, "it belongs to another value"));
            }
            bytes.extend_from_slice(view.payload());
            index += 1;
        }
    }
    if bytes.len() != total || hasher.hash(&bytes) != cell.value_hash().to_bytes() {
        let page = cell.extents().next().map_or(0, |extent| extent.start);
        return Err(bad(page, "the value does not have the hash in its cell"));
    }
    Ok(Value::from(bytes))
}

fn overflow_identity(database: u64, page: u64) -> Identity {
    Identity { kind: FileKind::Overflow, page_no: page, db_id: database }
}

/// The extents that a stored state occupies in the overflow file.
pub fn extents(stored: &Stored) -> Vec<OverflowExtent> {
    match stored {
        Stored::Overflow(raw) => overflow_cell(raw).extents().collect(),
        _ => Vec::new(),
    }
}
