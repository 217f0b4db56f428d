//! Copies of segments: those of a backup, and those with which a repair replaces damaged ones.

use std::ops::Range;

use pleach_io::{Disk, File, OpenMode, PAGE, PageBuf};

use super::error::LogError;
use super::segment::{SegmentOptions, make_segment, run_pages, spare, write_zeros};
use crate::format::names::segment_name;
use crate::format::position::LogPos;

/// Copies the log between two positions to another device, which has none: its segments from the first of `stretch` on,
/// empty ones behind its end up to `prepared`, and the spare. All but the folder is synced.
pub fn copy(
    from: &Disk,
    to: &Disk,
    database: u64,
    size: u64,
    stretch: Range<LogPos>,
    prepared: LogPos,
) -> Result<(), LogError> {
    spare(size).create(to, database)?;
    let options = SegmentOptions { size, spares: 0, cached: false };
    let mut buf = PageBuf::zeroed(run_pages(size));
    for index in stretch.start.segment(size)..prepared.get().div_ceil(size) {
        let file = make_segment(to, index, options)?;
        let start = LogPos::of_segment(index, size);
        // Records begin and end within pages.
        let first = stretch.start.max(start).get() / PAGE as u64 * PAGE as u64;
        let end = stretch.end.min(start + size).get();
        if first >= end {
            continue;
        }
        let source = from.open(&segment_name(index), OpenMode::Read)?;
        let mut at = first;
        while at < end {
            let left = usize::try_from((end - at).div_ceil(PAGE as u64)).unwrap_or(usize::MAX);
            if left < buf.pages() {
                buf = PageBuf::zeroed(left);
            }
            let offset = at - start.get();
            from.read_at(&source, &mut buf, offset)?;
            // The last page may have records that were written since.
            let own = usize::try_from(end - at).unwrap_or(usize::MAX).min(buf.len());
            buf[own..].fill(0);
            to.write_at(&file, &buf, buf.pages(), offset)?;
            at += (buf.pages() * PAGE) as u64;
        }
        if buf.pages() < run_pages(size) {
            buf = PageBuf::zeroed(run_pages(size));
        }
        to.sync(&file)?;
    }
    Ok(())
}

/// Writes the replacement of a segment, for a repair: its first `kept` bytes, and blank pages behind them. A page that
/// cannot be read is left blank; if it holds bytes of `needed`, that is an error.
pub fn fill(
    device: &Disk,
    file: &File,
    size: u64,
    index: u64,
    kept: u64,
    needed: &Range<LogPos>,
) -> Result<(), LogError> {
    let start = LogPos::of_segment(index, size);
    let source = device.open(&segment_name(index), OpenMode::Read);
    device.allocate(file, 0, size)?;
    let zeros = PageBuf::zeroed(run_pages(size));
    write_zeros(device, file, &zeros, 0, size)?;
    let mut page = PageBuf::zeroed(1);
    for at in (0..kept).step_by(PAGE) {
        let read = source.clone().and_then(|source| device.read_at(&source, &mut page, at));
        let is_needed = !needed.is_empty()
            && start + at < needed.end
            && needed.start < start + at + PAGE as u64;
        match read {
            Err(error) if is_needed => return Err(error.into()),
            Err(_) => continue,
            Ok(()) => {}
        }
        let own = usize::try_from(kept - at).unwrap_or(PAGE).min(PAGE);
        page.page_mut(0)[own..].fill(0);
        device.write_at(file, &page, 1, at)?;
    }
    Ok(())
}
