//! Reading back a part of the log with a known first record and end: the records of past commits, below the replay
//! start.
//!
//! The end is a point that a superblock names, with the checksum of the record before it. Each header has the checksum
//! of its predecessor, so a chain that ends there is right from its first record on, wherever that is. So records
//! behind damage can be read from the next whole record on ([`next_record`]). Nothing is cut here, and bytes behind the
//! end are not judged: a record that does not fit is an error.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use pleach_io::{Disk, OpenMode};

use super::error::{InvalidReason, ScanError};
use super::reader::{FoundRecord, LogReader, Verdict, magic_in, segments};
use crate::format::names::parse_segment_name;
use crate::format::position::{BLOCK, LogPoint, LogPos, valid_segment_size};
use crate::format::record::{ALIGN, RecordHeader, RecordView};

/// The place at which a chain breaks off, and the error.
#[derive(Debug)]
pub struct BrokenChain<E> {
    /// Records from here on may be whole.
    pub resume: LogPos,
    /// Why the chain breaks off there.
    pub error: E,
}

impl<E> BrokenChain<E> {
    /// A chain that breaks off at a bad record.
    fn at(position: LogPos, error: impl Into<E>) -> Self {
        Self { resume: position + ALIGN, error: error.into() }
    }
}

/// Calls `visit` for each record from the one at `from` to the point `to`. The records count only when this succeeds.
pub fn read_chain<E>(
    device: &Disk,
    database: u64,
    segment_size: u64,
    from: LogPos,
    to: LogPoint,
    mut visit: impl FnMut(&RecordView<'_>) -> Result<(), E>,
) -> Result<(), BrokenChain<E>>
where
    E: From<ScanError>,
{
    if from == to.position {
        return Ok(());
    }
    let end = walk_records(device, database, segment_size, from.into(), to.position, |record| {
        visit(record).map(|()| ControlFlow::Continue(()))
    })?;
    if end == to {
        return Ok(());
    }
    let stale = ScanError::Past { position: end.position, invalid: InvalidReason::Stale };
    Err(BrokenChain::at(to.position, stale))
}

/// Calls `visit` for each record after the point `from`, or from the one at its position on, until `visit` breaks off
/// or the next one is not before `end`; gives the end of the last one.
pub fn walk_records<E>(
    device: &Disk,
    database: u64,
    segment_size: u64,
    from: LogPoint,
    end: LogPos,
    visit: impl FnMut(&RecordView<'_>) -> Result<ControlFlow<()>, E>,
) -> Result<LogPoint, BrokenChain<E>>
where
    E: From<ScanError>,
{
    let reader = LogReader::open(device, segment_size, from.position, false);
    walk_reader(reader, database, segment_size, from, end, visit)
}

/// Calls `visit` for each whole record of the log, in order, whatever lies between them, until `visit` breaks off.
/// Records that were cut off once, and not overwritten, are among them.
pub fn walk_whole_records<E>(
    device: &Disk,
    database: u64,
    segment_size: u64,
    from: LogPos,
    mut visit: impl FnMut(&RecordView<'_>) -> Result<ControlFlow<()>, E>,
) -> Result<(), E>
where
    E: From<ScanError>,
{
    let (mut at, mut failed) = (from, None);
    // Each turn begins behind the damage that ended the one before.
    let next_from = |at| find_record(device, Some(database), segment_size, at..LogPos::MAX, true);
    while let Some(RecordHeader { position: from, .. }) = next_from(at)? {
        let reader = LogReader::open(device, segment_size, from, true);
        let visit = |record: &RecordView<'_>| {
            Ok::<_, ScanError>(visit(record).unwrap_or_else(|error| {
                failed = Some(error);
                ControlFlow::Break(())
            }))
        };
        let walked = walk_reader(reader, database, segment_size, from.into(), LogPos::MAX, visit);
        match walked {
            Ok(_) => return failed.map_or(Ok(()), Err),
            Err(BrokenChain { resume, .. }) => at = resume,
        }
    }
    Ok(())
}

fn walk_reader<E>(
    opened: Result<LogReader, ScanError>,
    database: u64,
    segment_size: u64,
    from: LogPoint,
    end: LogPos,
    mut visit: impl FnMut(&RecordView<'_>) -> Result<ControlFlow<()>, E>,
) -> Result<LogPoint, BrokenChain<E>>
where
    E: From<ScanError>,
{
    let mut at = from;
    if !valid_segment_size(segment_size) || at.position > end {
        let position = at.position;
        return Err(BrokenChain::at(end, ScanError::Geometry { segment_size, position }));
    }
    let mut reader = opened.map_err(|error| match error {
        ScanError::Segment(bad) => BrokenChain {
            resume: LogPos::of_segment(bad.index + 1, segment_size),
            error: error.into(),
        },
        error => BrokenChain::at(at.position, error),
    })?;
    // Each turn comes closer to the end.
    while at.position < end {
        let broken = |error| BrokenChain::at(at.position, error);
        let mut found = next_after(&mut reader, database, at, end);
        let may_have_moved = match &found {
            Ok(found) => found.is_err(),
            Err(ScanError::Io(error)) => error.is_not_found(),
            Err(_) => false,
        };
        if may_have_moved {
            reader.reopen();
            found = next_after(&mut reader, database, at, end);
        }
        let found = found.map_err(broken)?;
        let found =
            found.map_err(|invalid| broken(ScanError::Past { position: at.position, invalid }))?;
        let FoundRecord { header, checksum } = found;
        let record = reader.view(found).map_err(broken)?;
        let flow = visit(&record).map_err(|error| BrokenChain::at(header.position, error))?;
        at = LogPoint { position: header.end(), checksum };
        if flow.is_break() {
            break;
        }
    }
    Ok(at)
}

/// The position of the first whole record from `from` on and before `to`, with any predecessor.
pub fn next_record(
    device: &Disk,
    database: u64,
    segment_size: u64,
    from: LogPos,
    to: LogPos,
) -> Result<Option<LogPos>, ScanError> {
    let found = find_record(device, Some(database), segment_size, from..to, false)?;
    Ok(found.map(|header| header.position))
}

/// The database of the log, and the bytes of its segments, read from its own files: for use without a superblock.
/// `None` when no segment has a whole record.
pub fn log_identity(device: &Disk) -> Result<Option<(u64, u64)>, ScanError> {
    let mut sizes = BTreeSet::new();
    for name in device.list()?.iter().filter(|name| parse_segment_name(name).is_some()) {
        let len = device.open(name, OpenMode::Read).and_then(|file| device.len(&file));
        sizes.extend(len.ok().filter(|len| valid_segment_size(*len)));
    }
    // The largest size first: a smaller one fits a segment that was cut, too.
    for size in sizes.into_iter().rev() {
        if let Some(header) = find_record(device, None, size, LogPos::START..LogPos::MAX, true)? {
            return Ok(Some((header.database, size)));
        }
    }
    Ok(None)
}

/// Calls `visit` for each good header that lies at its own position from `from` on, whatever its body: its fields were
/// true when it was written. False when some of the log there could not be read.
pub fn scan_headers(
    device: &Disk,
    database: u64,
    segment_size: u64,
    from: LogPos,
    mut visit: impl FnMut(&RecordHeader),
) -> Result<bool, ScanError> {
    let mut all_read = true;
    for index in segments(device, segment_size)? {
        let mut at = LogPos::of_segment(index, segment_size).max(from);
        if at.segment(segment_size) > index {
            continue;
        }
        let mut reader = LogReader::open(device, segment_size, at, true)?;
        let end = reader.prepared_up_to(LogPos::of_segment(index + 1, segment_size))?;
        while at < end {
            let stop = end.min((at + 1).align_up(BLOCK));
            let hit = reader.read(at, stop - at).map(|bytes| bytes.and_then(magic_in));
            all_read &= hit.is_ok();
            let Some(hit) = hit.ok().flatten() else {
                at = stop;
                continue;
            };
            let found = at + hit;
            if let Ok(Ok(FoundRecord { header, .. })) = reader.header(found)
                && header.database == database
                && header.position == found
            {
                visit(&header);
            }
            at = found + ALIGN;
        }
    }
    Ok(all_read)
}

/// The first whole record of a database, or of any, between two positions; unreadable parts may be skipped.
fn find_record(
    device: &Disk,
    database: Option<u64>,
    segment_size: u64,
    range: Range<LogPos>,
    skips_errors: bool,
) -> Result<Option<RecordHeader>, ScanError> {
    let segments = segments(device, segment_size)?;
    let (mut at, to) = (range.start, range.end);
    // Each turn comes to a later segment, or to the end.
    while at < to {
        let next = segments.iter().find(|index| **index >= at.segment(segment_size));
        let Some(next) = next else { return Ok(None) };
        at = at.max(LogPos::of_segment(*next, segment_size));
        let mut reader = match LogReader::open(device, segment_size, at, skips_errors) {
            Err(ScanError::Segment(bad)) => {
                at = LogPos::of_segment(bad.index + 1, segment_size);
                continue;
            }
            opened => opened?,
        };
        let end = reader.prepared_up_to(to)?;
        if end <= at {
            // The segment does not have its size.
            at = LogPos::of_segment(at.segment(segment_size) + 1, segment_size);
        }
        while at < end {
            let stop = end.min((at + 1).align_up(BLOCK));
            let bytes = match reader.read(at, stop - at) {
                Err(_) if skips_errors => {
                    at = stop;
                    continue;
                }
                read => read?.unwrap_or_default(),
            };
            let Some(hit) = magic_in(bytes) else {
                at = stop;
                continue;
            };
            let found = at + hit;
            let is_own =
                |header: &RecordHeader| Ok(database.is_none_or(|own| header.database == own));
            match reader.record(found, is_own) {
                Ok(Ok(found)) => return Ok(Some(found.header)),
                Err(error) if !skips_errors => return Err(error),
                Ok(Err(_)) | Err(_) => {}
            }
            at = found + ALIGN;
        }
    }
    Ok(None)
}

/// The record after a point, which begins there or at the next block. After a point without a checksum it begins there,
/// and may have any predecessor.
fn next_after(
    reader: &mut LogReader,
    database: u64,
    at: LogPoint,
    end: LogPos,
) -> Result<Verdict, ScanError> {
    let (next, is_known) = (at.position.align_up(BLOCK), at.checksum != 0);
    let mut record = |position| {
        reader.record(position, |header| {
            Ok(header.database == database && (!is_known || header.previous == at.checksum))
        })
    };
    match record(at.position)? {
        Err(_) if is_known && next > at.position && next < end => record(next),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::copies::copy;
    use super::super::{LogWriter, SegmentOptions, WriterStart};
    use super::*;
    use crate::format::record::{LogRecordKind, RecordBuf};
    use pleach_io::PageBuf;
    use pleach_io::sim::{SimDisk, SimOptions};

    const SIZE: u64 = 64 << 10;

    /// Two records that share a block, and a third one behind the sync that has sealed the block.
    fn shared() -> (Disk, Vec<(LogPos, LogPoint)>) {
        let device: Disk = SimDisk::new(1, SimOptions::default()).into();
        let options = SegmentOptions { size: SIZE, spares: 0, cached: true };
        let start = WriterStart::new_log(7);
        let mut writer = LogWriter::open(device.clone(), options, &start, 1).expect("opened");
        let (mut tail, mut records) = (writer.tail(), Vec::new());
        for number in 1..=3 {
            let mut record = RecordBuf::new(7, LogRecordKind::Close, number, vec![vec![1; 100]]);
            let position = tail.reserve(record.len());
            record.set_position(position);
            writer.write(&mut [record]).expect("written");
            records.push((position, writer.end()));
            if number == 2 {
                tail.seal();
                writer.sync().expect("synced");
            }
        }
        assert_eq!(records[1].0, records[0].1.position);
        assert_eq!(records[2].0, LogPos::new(BLOCK));
        (device, records)
    }

    #[test]
    fn a_copy_ends_where_it_is_told_to() {
        // The copy had the rest of its last block, and with it a whole record too many.
        let (device, records) = shared();
        let target: Disk = SimDisk::new(2, SimOptions::default()).into();
        let (first, prepared) = (records[0].1, LogPos::new(SIZE));
        copy(&device, &target, 7, SIZE, LogPos::START..first.position, prepared).expect("copied");
        for (disk, count) in [(device, 3), (target, 1)] {
            let mut found = 0;
            walk_whole_records::<ScanError>(&disk, 7, SIZE, LogPos::START, |_| {
                found += 1;
                Ok(ControlFlow::Continue(()))
            })
            .expect("read");
            assert_eq!(found, count);
        }
    }

    #[test]
    fn a_chain_that_ends_with_another_record_is_broken() {
        // A superblock has the checksum of the last record: whole records before another one are none of its past.
        let (device, records) = shared();
        let (from, end) = (records[0].0, records[2].1);
        let read = |end| {
            let all = |_: &RecordView<'_>| Ok(());
            let read = read_chain::<ScanError>(&device, 7, SIZE, from, end, all);
            read.map_err(|broken| broken.resume)
        };
        assert_eq!(read(end), Ok(()));
        let other = LogPoint { checksum: end.checksum ^ 1, ..end };
        assert_eq!(read(other), Err(end.position + ALIGN));
    }

    #[test]
    fn a_walk_from_within_a_block_misses_no_record_that_is_lost() {
        // The third record begins a block, and was taken for the successor of the first.
        for byte in [0, 7] {
            let (device, records) = shared();
            let ((second, after), (_, end)) = (records[1], records[2]);
            let walked = |from: LogPoint| {
                let mut numbers = Vec::new();
                let walked =
                    walk_records::<ScanError>(&device, 7, SIZE, from, end.position, |record| {
                        numbers.push(record.header.number);
                        Ok(ControlFlow::Continue(()))
                    });
                (walked.map_err(|broken| broken.resume), numbers)
            };
            assert_eq!(walked(second.into()), (Ok(end), vec![2, 3]));
            assert_eq!(walked(records[0].1), (Ok(end), vec![2, 3]));
            assert_eq!(walked(after), (Ok(end), vec![3]));
            let file = device.open("log-0000000000000000", OpenMode::Write).expect("opened");
            let mut page = PageBuf::zeroed(1);
            device.read_at(&file, &mut page, 0).expect("read");
            page[usize::try_from(second.get()).expect("small")..].fill(byte);
            device.write_at(&file, &page, 1, 0).expect("written");
            for from in [second.into(), records[0].1] {
                assert_eq!(walked(from), (Err(second + ALIGN), vec![]), "{from:?}, {byte}");
            }
        }
    }
}
