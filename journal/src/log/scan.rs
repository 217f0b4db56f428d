//! Reading the log back, and telling a torn end from damage (rules `evidence-of-damage` and
//! `incarnation-in-records` of `docs/commit-and-recovery.md`).
//!
//! After a valid record that ends at `e`, the next one begins at `e`, or at the next block
//! behind a seal. A record is *valid* there when its header's checksum, database, position,
//! predecessor and incarnation (never lower than the one before) fit, and then its body's
//! checksum. Where neither position has one, the log is invalid at `e`, and:
//!
//! * it is **damage** when there is durable evidence past `e`: a superblock, or any good header of this
//!   database that lies at its own position at or after `e`, says that the log was synced past `e`. A good
//!   header counts whatever its incarnation, and whether or not its body and its chain are intact: its fields
//!   were true when it was written, and durable positions never go back;
//! * otherwise it is the **end**: the log is cut at `e`, and the bytes after it (a torn batch, records of
//!   a cut-off incarnation, old records of a recycled segment) are ignored.
//!
//! So the log is cut at `e` only when no good header after `e` knows of a durable position past `e`, and bytes that a
//! cut leaves in the files never contradict the incarnations that overwrite them (`docs/format-log.md`).
//!
//! The log's *files* are checked, too. From the replay start on each has its full size, and none is missing up to the
//! last one that a superblock or any good header knows to be prepared. Anything else is an error, whether the database
//! was closed or killed. Later files may exist whose names never became durable; no record is in them, since the record
//! before it would know of its file.
//!
//! A failed read is an error, never an end, except after a clean close: nothing follows there, so an unreadable sector
//! does not matter. The scan changes nothing.

use pleach_io::{Disk, PAGE};

use super::error::{BadSegment, DurableEvidence, InvalidReason, ScanError};
use super::reader::{FoundRecord, LogReader, Verdict, magic_in};
use crate::format::position::{BLOCK, LogPoint, LogPos, valid_segment_size};
use crate::format::record::{ALIGN, RecordHeader, RecordView};

/// A block that was never written. Segments are prepared ahead, so an open reads far more of these than of others, and
/// comparing whole blocks is an order of magnitude cheaper than checking each word.
static ZEROS: [u8; PAGE] = [0; PAGE];

/// The input of a scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanInput {
    /// Id of the database.
    pub database: u64,
    /// Bytes of a segment.
    pub segment_size: u64,
    /// The last incarnation known, from its file.
    pub incarnation: u32,
    /// Replay start: the end of the record before it, and its checksum.
    pub from: LogPoint,
    /// From the superblocks: the log was synced below this.
    pub durable_through: LogPos,
    /// From the superblocks: segments had been prepared below this.
    pub prepared_through: LogPos,
    /// True when the database was closed at the replay start, and nobody has opened it for writing since.
    pub clean: bool,
    /// True when another process may be writing the log. The scan ends where no valid record follows, and does not
    /// judge the bytes there: they may be an unfinished record.
    pub live: bool,
}

/// A cut at the log's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutReport {
    /// The position of the cut.
    pub position: LogPos,
    /// Bytes from there to the end of the last recognisable record, torn ones included; 0 when there is none.
    pub bytes: u64,
    /// Number of recognisable records of the last writable open. Those of earlier opens were cut off, and reported,
    /// before.
    pub records: u64,
    /// The contents at the cut.
    pub invalid: InvalidReason,
}

/// The log's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanEnd {
    /// End of the last valid record, and its checksum.
    pub end: LogPoint,
    /// Incarnation of the last valid record, 0 when there was none.
    pub incarnation: u32,
    /// Below this the log is known to have been synced. Records from here to the end were read back, but a crash may
    /// still lose them until [`super::WriterStart::confirm`] has made them durable.
    pub proven: LogPos,
    /// Durable evidence names the segments below this position, and they exist.
    pub prepared_through: LogPos,
    /// Valid records seen.
    pub records: u64,
    /// The cut; `None` when only blank space, old contents of a recycled segment, or records that an earlier open has
    /// cut off follow. Noise without a recognisable record is cut off by each open, until commits have overwritten it.
    pub cut: Option<CutReport>,
}

/// Reads the log from the replay start to its end and calls `visit` for each valid record.
pub fn scan<E>(
    device: &Disk,
    input: &ScanInput,
    mut visit: impl FnMut(&RecordView<'_>) -> Result<(), E>,
) -> Result<ScanEnd, E>
where
    E: From<ScanError>,
{
    let from = input.from.position;
    if !valid_segment_size(input.segment_size) || from > LogPos::MAX || !from.is_aligned(ALIGN) {
        let segment_size = input.segment_size;
        return Err(ScanError::Geometry { segment_size, position: from }.into());
    }
    let reader = LogReader::open(device, input.segment_size, from, false)?;
    let mut scanner = Scanner::new(reader, input);
    if input.clean && !matches!(scanner.next(), Ok(Ok(_)) | Err(ScanError::Future { .. })) {
        return Ok(scanner.finish_scan()?);
    }
    loop {
        match scanner.next()? {
            Ok(found) => {
                visit(&scanner.reader.view(found)?)?;
                scanner.accept(found);
            }
            Err(_) if input.live => return Ok(scanner.end),
            Err(invalid) => return Ok(scanner.end_or_damage(invalid)?),
        }
    }
}

/// [`scan`] for a repair: the log ends at its first unusable record, whatever evidence says. So a failed read is an
/// end, and so is a segment that is missing or cut.
pub fn scan_lenient<E>(
    device: &Disk,
    input: &ScanInput,
    mut visit: impl FnMut(&RecordView<'_>) -> Result<(), E>,
) -> Result<ScanEnd, E>
where
    E: From<ScanError>,
{
    let reader = LogReader::open(device, input.segment_size, input.from.position, true)?;
    let mut scanner = Scanner::new(reader, input);
    loop {
        match scanner.next() {
            Ok(Ok(found)) => {
                visit(&scanner.reader.view(found)?)?;
                scanner.accept(found);
            }
            Ok(Err(_)) | Err(ScanError::Io(_)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let mut end = scanner.end;
    (end.proven, end.prepared_through) = (end.end.position, end.end.position);
    Ok(end)
}

/// The contents of the end's segment after the end.
struct TailContents {
    /// True when there are only zeros.
    blank: bool,
    /// True when there are records of another position, or of an earlier open.
    used_before: bool,
}

struct Scanner {
    reader: LogReader,
    input: ScanInput,
    end: ScanEnd,
    /// The evidence so far knows of segments below this.
    known_prepared: LogPos,
}

impl Scanner {
    fn new(reader: LogReader, input: &ScanInput) -> Self {
        let end = ScanEnd {
            end: input.from,
            incarnation: 0,
            proven: input.from.position,
            prepared_through: LogPos::START,
            records: 0,
            cut: None,
        };
        Self { reader, input: *input, end, known_prepared: input.prepared_through }
    }

    fn next(&mut self) -> Result<Verdict, ScanError> {
        let at = self.end.end.position;
        let first = match self.judge(at)? {
            Ok(found) => return Ok(Ok(found)),
            Err(invalid) => invalid,
        };
        let block = at.align_up(BLOCK);
        if block == at {
            return Ok(Err(first));
        }
        // The rest of the block is zero when the batch ended there: then the next block decides.
        Ok(self.judge(block)?.map_err(|second| {
            if matches!(first, InvalidReason::Blank | InvalidReason::NoSegment) {
                second
            } else {
                first
            }
        }))
    }

    /// The record at `at`, if it is valid and follows the last one.
    fn judge(&mut self, at: LogPos) -> Result<Verdict, ScanError> {
        let Self { reader, input, end, .. } = self;
        reader.record(at, |header| {
            let follows = header.database == input.database
                && header.previous == end.end.checksum
                && header.incarnation >= end.incarnation;
            if follows && header.incarnation > input.incarnation && !input.live {
                let (found, known) = (header.incarnation, input.incarnation);
                return Err(ScanError::Future { position: at, found, known });
            }
            Ok(follows)
        })
    }

    fn accept(&mut self, FoundRecord { header, checksum }: FoundRecord) {
        self.end.end = LogPoint { position: header.end(), checksum };
        self.end.incarnation = header.incarnation;
        self.end.proven = self.end.proven.max(header.durable_through);
        self.known_prepared = self.known_prepared.max(header.prepared_through);
        self.end.records += 1;
    }

    /// Decides between end and damage.
    fn end_or_damage(mut self, invalid: InvalidReason) -> Result<ScanEnd, ScanError> {
        let position = self.end.end.position;
        let known = self.input.durable_through;
        if known > position {
            let evidence = DurableEvidence::Superblock;
            return Err(ScanError::Damaged { position, invalid, durable_through: known, evidence });
        }
        self.end.proven = self.end.proven.max(known);
        let mut cut = CutReport { position, bytes: 0, records: 0, invalid };
        let mut rest = TailContents { blank: true, used_before: false };
        for (from, to) in self.reader.readable_ranges(position) {
            self.search(from, to, &mut cut, &mut rest)?;
        }
        let nothing = (rest.blank || rest.used_before) && cut.records == 0;
        self.end.cut = (!nothing).then_some(cut);
        self.finish_scan()
    }

    /// Ends the scan, after a check that all files exist that durable evidence names.
    fn finish_scan(mut self) -> Result<ScanEnd, ScanError> {
        let there = self.reader.prepared_up_to(self.known_prepared)?;
        if there < self.known_prepared {
            let (index, expected) =
                (there.segment(self.input.segment_size), self.input.segment_size);
            return Err(BadSegment { index, found: None, expected }.into());
        }
        self.end.prepared_through = self.known_prepared;
        Ok(self.end)
    }

    /// Searches the rest of a segment for good headers, wherever one may begin.
    fn search(
        &mut self,
        from: LogPos,
        to: LogPos,
        cut: &mut CutReport,
        rest: &mut TailContents,
    ) -> Result<(), ScanError> {
        let own_segment = cut.position.segment(self.input.segment_size);
        let mut at = from;
        while at < to {
            let stop = to.min((at + 1).align_up(BLOCK));
            let Some(bytes) = self.reader.read(at, stop - at)? else { return Ok(()) };
            if *bytes == ZEROS[..bytes.len()] {
                at = stop;
                continue;
            }
            if at.segment(self.input.segment_size) == own_segment {
                rest.blank = false;
            }
            let Some(hit) = magic_in(bytes).map(|hit| at + hit) else {
                at = stop;
                continue;
            };
            if let Ok(FoundRecord { header, .. }) = self.reader.header(hit)? {
                rest.used_before |= header.database == self.input.database
                    && (header.position != hit || header.incarnation < self.input.incarnation);
                self.testify(&header, hit, cut)?;
            }
            at = hit + ALIGN;
        }
        Ok(())
    }

    /// Takes the evidence of a good header at or after the end.
    fn testify(
        &mut self,
        header: &RecordHeader,
        at: LogPos,
        cut: &mut CutReport,
    ) -> Result<(), ScanError> {
        if header.database != self.input.database || header.position != at {
            return Ok(());
        }
        let durable_through = header.durable_through;
        if durable_through > cut.position {
            return Err(ScanError::Damaged {
                position: cut.position,
                invalid: cut.invalid,
                durable_through,
                evidence: DurableEvidence::Record(at),
            });
        }
        self.end.proven = self.end.proven.max(durable_through);
        self.known_prepared = self.known_prepared.max(header.prepared_through);
        if header.incarnation == self.input.incarnation {
            cut.records += 1;
            cut.bytes = cut.bytes.max(header.end() - cut.position);
        }
        Ok(())
    }
}
