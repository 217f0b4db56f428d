//! Appending to the log.
//!
//! 1. [`Segments::prepare_through`] makes room; a full disk shows here, before anything is decided.
//! 2. The sequencer takes positions from its [`LogTail`]: arithmetic, no I/O. [`LogTail::seal`] ends a
//!    block; the next record starts on a fresh one.
//! 3. [`LogWriter::write`] writes a batch in large runs, in the order of its positions.
//! 4. [`LogWriter::sync`] makes the written records durable.
//!
//! [`LogWriter::needs_seal`] says which batches end with a seal: all that go to the device directly, and of those that
//! go through the page cache the last one before a sync. The others follow each other byte by byte.
//!
//! Invariants: a write never covers a block that was synced, so a torn write cannot harm a durable record;
//! `durable_through` of a record is the synced position when it was written; after a failed write or sync the writer
//! refuses everything, and neither is repeated.

use std::collections::BTreeSet;

use pleach_io::{Disk, File, IoError, OpenMode, PAGE, PageBuf};

use super::error::{BadSegment, LogError};
use super::scan::ScanEnd;
use super::segment::{SegmentOptions, Segments, run_pages, spare, write_zeros};
use crate::format::names::segment_name;
use crate::format::position::{BLOCK, LogPoint, LogPos};
use crate::format::record::{ALIGN, MAX_RECORD, RecordBuf, RecordChain};

/// The sequencer's end of the log: allocates positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTail {
    next: LogPos,
}

impl LogTail {
    /// The position of a record of `len` bytes, after all reserved before.
    #[must_use]
    pub fn reserve(&mut self, len: u64) -> LogPos {
        let position = self.next;
        self.next = (position + len).align_up(ALIGN);
        position
    }

    /// Lets the next record start on a fresh block. Called when a batch is taken for [`LogWriter::write`], by the same
    /// holder of the sequencer: a later record must not share a block with synced ones.
    pub fn seal(&mut self) {
        self.next = self.next.align_up(BLOCK);
    }

    /// Where the next record will start.
    pub fn position(&self) -> LogPos {
        self.next
    }

    /// The position up to which [`Segments::prepare_through`] has to prepare before a record of `len` bytes is
    /// reserved: its last block is written whole, and the block after it must be prepared, too.
    pub fn needed_through(&self, len: u64) -> LogPos {
        after_batch(self.next.align_up(BLOCK) + len)
    }
}

/// The position up to which segments must be prepared for a batch that ends here: one byte into the next block. So each
/// record knows of the file for the next one, and a file that is missing later contradicts a record in the file before
/// it.
fn after_batch(end: LogPos) -> LogPos {
    end.align_up(BLOCK) + 1
}

/// The log that a writer continues.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriterStart {
    /// Id of the database.
    pub database: u64,
    /// End of the log, from the scan.
    pub end: LogPoint,
    /// The log is known to have been synced below this: from the scan, or the end after [`WriterStart::confirm`].
    pub proven: LogPos,
    /// Positions from here on are still needed: segments below are retired.
    pub needed_from: LogPos,
    /// The replay start. Only the other generation needs positions below.
    pub replay: LogPos,
    /// Segments below this are known to be prepared.
    pub prepared_through: LogPos,
}

impl WriterStart {
    /// The start of a new database's log.
    pub fn new_log(database: u64) -> Self {
        Self { database, ..Self::default() }
    }

    /// Continues where a scan has ended.
    pub fn after_scan(scan: &ScanEnd, database: u64, needed_from: LogPos, replay: LogPos) -> Self {
        Self {
            database,
            end: scan.end,
            proven: scan.proven,
            needed_from,
            replay,
            prepared_through: scan.prepared_through,
        }
    }

    /// Makes durable what the scan has read. `size` is that of a segment.
    ///
    /// The end that the scan has read may be visible and not durable: a process that was killed, or whose sync failed,
    /// leaves bytes in caches, and repeating a failed sync proves nothing. So the segments that hold `[proven, end)`
    /// are replaced by synced copies, blank after `end`; a durable block is never overwritten in place. The room for a
    /// copy is reserved ([`spare`]), so that a full disk does not keep the database closed.
    pub fn confirm(&mut self, device: &Disk, size: u64) -> Result<(), LogError> {
        let end = self.end.position;
        if self.proven >= end {
            return Ok(());
        }
        for index in self.proven.segment(size)..end.get().div_ceil(size) {
            let name = segment_name(index);
            let old = device.open(&name, OpenMode::Read)?;
            let segment = SegmentCopy { start: LogPos::of_segment(index, size), size };
            let copied = spare(size).replace(device, self.database, &name, |copy| {
                segment.copy(device, &old, copy, self)
            });
            copied?;
        }
        self.proven = end;
        Ok(())
    }
}

/// The only appender of the log.
pub struct LogWriter {
    segments: Segments,
    chain: RecordChain,
    /// End of the last record written.
    written: LogPos,
    /// Segments written since the last sync.
    written_to: BTreeSet<u64>,
    /// The buffer of a write.
    stage: PageBuf,
    poisoned: bool,
    /// Bytes written since the open, with padding.
    bytes: u64,
}

impl core::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LogWriter")
            .field("written", &self.written)
            .field("durable", &self.chain.durable_through)
            .field("poisoned", &self.poisoned)
            .finish_non_exhaustive()
    }
}

impl LogWriter {
    /// Takes the log over for writing, after [`WriterStart::confirm`]. The incarnation is this open's, already durable.
    ///
    /// # Panics
    /// When the log was not confirmed.
    pub fn open(
        device: Disk,
        options: SegmentOptions,
        start: &WriterStart,
        incarnation: u32,
    ) -> Result<Self, LogError> {
        let (from, end) = (start.needed_from, start.end);
        assert!(start.proven >= end.position, "what was read is confirmed before records follow");
        let segments = Segments::open(device, options, from, end.position, start.prepared_through)?;
        let chain = RecordChain {
            database: start.database,
            incarnation,
            durable_through: end.position,
            prepared_through: LogPos::START,
            previous: end.checksum,
        };
        Ok(Self::new(segments, chain, end.position, run_pages(options.size)))
    }

    fn new(segments: Segments, chain: RecordChain, written: LogPos, stage: usize) -> Self {
        Self {
            stage: PageBuf::zeroed(stage),
            segments,
            chain,
            written,
            written_to: BTreeSet::new(),
            poisoned: false,
            bytes: 0,
        }
    }

    /// A writer that refuses everything, for a log that another process writes.
    pub fn new_refusing(device: Disk, options: SegmentOptions, end: LogPoint) -> Self {
        let chain = RecordChain {
            durable_through: end.position,
            previous: end.checksum,
            ..RecordChain::default()
        };
        let segments = Segments::new_refusing(device, options);
        Self { poisoned: true, ..Self::new(segments, chain, end.position, 1) }
    }

    /// The tail for the sequencer; valid as long as no other reservation was made.
    pub fn tail(&self) -> LogTail {
        LogTail { next: self.written.align_up(BLOCK) }
    }

    /// The log's files, shared with the code that prepares and retires them.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Everything below this position is durable.
    pub fn durable(&self) -> LogPos {
        self.chain.durable_through
    }

    /// End of the last record written, and its checksum.
    pub fn end(&self) -> LogPoint {
        LogPoint { position: self.written, checksum: self.chain.previous }
    }

    /// True when a write or sync has failed.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Bytes written since the open, with padding.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True when the [`LogTail`] must be sealed behind the next batch; `sync` says whether a sync follows the batch.
    pub fn needs_seal(&self, sync: bool) -> bool {
        sync || !self.segments.is_cached()
    }

    /// Writes a batch of records that have their positions, one after the other. After an error of a full device
    /// nothing was written, and the same batch may be tried again.
    ///
    /// # Panics
    /// When a record has no position, or one that does not follow the written records or lies in a synced
    /// block.
    pub fn write(&mut self, records: &mut [RecordBuf]) -> Result<(), LogError> {
        self.check()?;
        let Some(first) = records.first().and_then(RecordBuf::position) else { return Ok(()) };
        assert!(
            first >= self.chain.durable_through.align_up(BLOCK),
            "synced blocks stay as they are"
        );
        let mut end = self.written;
        for record in records.iter() {
            let position =
                record.position().expect("records have a position before they are written");
            assert!(
                position == end || position == end.align_up(BLOCK),
                "records are written in the order of their positions"
            );
            assert!(record.len() <= MAX_RECORD, "the engine refuses a batch of that size");
            end = (position + record.len()).align_up(ALIGN);
        }
        self.segments.prepare_through(after_batch(end))?;
        self.chain.prepared_through = self.segments.prepared_through();
        let written = self.write_all(first, records);
        self.poisoned |= written.is_err();
        self.written = written?;
        Ok(())
    }

    fn write_all(&mut self, first: LogPos, records: &[RecordBuf]) -> Result<LogPos, LogError> {
        let mut run = WriteRun {
            stage: &mut self.stage,
            segments: &self.segments,
            written_to: &mut self.written_to,
            bytes: &mut self.bytes,
            start: first,
            filled: 0,
            limit: 0,
        };
        run.begin(first);
        let mut end = first;
        for record in records {
            let position = record.position().unwrap_or(end);
            run.pad_to(position)?;
            let (header, checksum) = record.header(&self.chain, position).encode();
            run.push(&header)?;
            for part in record.body_parts() {
                run.push(part)?;
            }
            self.chain.previous = checksum;
            end = (position + record.len()).align_up(ALIGN);
            run.pad_to(end)?;
        }
        // A block that begins here is written whole: to write a part, the kernel would have to read the rest.
        let block = end.align_up(BLOCK);
        run.pad_to(if block >= first + BLOCK { block } else { end })?;
        run.flush()?;
        Ok(end)
    }

    /// Makes everything written so far durable, and returns the durable position.
    pub fn sync(&mut self) -> Result<LogPos, LogError> {
        let unsynced = self.take_unsynced()?;
        self.finish_sync(&unsynced, unsynced.sync())
    }

    /// Takes the segments that a sync of everything written so far needs. Meanwhile others may write, in blocks behind
    /// it.
    pub fn take_unsynced(&mut self) -> Result<UnsyncedSegments, LogError> {
        self.check()?;
        let indexes = std::mem::take(&mut self.written_to);
        // A segment that was retired meanwhile holds nothing that anybody waits for.
        let file = |index| self.segments.file(LogPos::of_segment(index, self.segments.size()));
        let files = indexes.into_iter().filter_map(file).collect();
        Ok(UnsyncedSegments { device: self.segments.device().clone(), files, up_to: self.written })
    }

    /// Takes the result of a sync of these segments; returns the durable position. One sync at a time.
    ///
    /// # Panics
    /// When a later sync was finished before.
    pub fn finish_sync(
        &mut self,
        unsynced: &UnsyncedSegments,
        result: Result<(), IoError>,
    ) -> Result<LogPos, LogError> {
        self.poisoned |= result.is_err();
        result?;
        assert!(unsynced.up_to >= self.chain.durable_through, "what is durable only grows");
        self.chain.durable_through = unsynced.up_to;
        self.segments.close_below(unsynced.up_to);
        Ok(unsynced.up_to)
    }

    fn check(&self) -> Result<(), LogError> {
        if self.poisoned { Err(LogError::Poisoned) } else { Ok(()) }
    }
}

/// Segments with records that no sync has covered.
#[derive(Debug)]
pub struct UnsyncedSegments {
    device: Disk,
    files: Vec<File>,
    up_to: LogPos,
}

impl UnsyncedSegments {
    /// Syncs these segments.
    pub fn sync(&self) -> Result<(), IoError> {
        self.files.iter().try_for_each(|file| self.device.sync(file))
    }
}

/// A write that is being collected: never longer than the stage, never across segments.
struct WriteRun<'a> {
    stage: &'a mut PageBuf,
    segments: &'a Segments,
    written_to: &'a mut BTreeSet<u64>,
    bytes: &'a mut u64,
    start: LogPos,
    filled: usize,
    limit: usize,
}

impl WriteRun<'_> {
    fn begin(&mut self, start: LogPos) {
        let left = self.segments.size() - start.in_segment(self.segments.size());
        self.start = start;
        self.filled = 0;
        // All runs but the first begin with a block.
        let most = (self.stage.len() as u64 - start.in_segment(BLOCK)).min(left);
        self.limit = usize::try_from(most).unwrap_or(usize::MAX);
    }

    fn push(&mut self, mut bytes: &[u8]) -> Result<(), LogError> {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(self.limit - self.filled));
            self.stage[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.advance(now.len())?;
            bytes = rest;
        }
        Ok(())
    }

    fn pad_to(&mut self, position: LogPos) -> Result<(), LogError> {
        // Less than a block: records follow each other at 8 bytes or at the next block.
        static ZEROS: [u8; PAGE] = [0; PAGE];
        let at = self.start + self.filled as u64;
        let gap = usize::try_from(position - at).unwrap_or(PAGE);
        self.push(&ZEROS[..gap])
    }

    fn advance(&mut self, by: usize) -> Result<(), LogError> {
        self.filled += by;
        if self.filled == self.limit { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), LogError> {
        if self.filled == 0 {
            return Ok(());
        }
        let (segments, size) = (self.segments, self.segments.size());
        let file = segments.file(self.start).ok_or_else(|| BadSegment {
            index: self.start.segment(size),
            found: None,
            expected: size,
        })?;
        self.written_to.insert(self.start.segment(size));
        let offset = self.start.in_segment(size);
        segments.device().write_bytes(&file, self.stage, self.filled, offset)?;
        *self.bytes += self.filled as u64;
        self.begin(self.start + self.filled as u64);
        Ok(())
    }
}

/// A segment to be copied.
#[derive(Clone, Copy)]
struct SegmentCopy {
    /// Its first position.
    start: LogPos,
    size: u64,
}

impl SegmentCopy {
    /// Copies the segment up to the log's end; the rest of the copy is blank.
    fn copy(
        self,
        device: &Disk,
        from: &File,
        to: &File,
        start: &WriterStart,
    ) -> Result<(), IoError> {
        let end = start.end.position.min(self.start + self.size);
        let mut at = self.start;
        while at < end {
            let left = usize::try_from((end.align_up(BLOCK) - at) / BLOCK).unwrap_or(usize::MAX);
            let mut buf = PageBuf::zeroed(left.min(run_pages(self.size)));
            self.read(device, from, &mut buf, at, start)?;
            // Bytes after the end are no part of the log, even within its last block.
            let valid = usize::try_from(end - at).unwrap_or(usize::MAX).min(buf.len());
            buf[valid..].fill(0);
            device.write_at(to, &buf, buf.pages(), at - self.start)?;
            at = at + buf.len() as u64;
        }
        let zeros = PageBuf::zeroed(run_pages(self.size));
        write_zeros(device, to, &zeros, at - self.start, self.size)
    }

    /// Reads from a position on. Blocks below the replay start that cannot be read stay blank: replayed records are not
    /// needed, and a dead block must not keep the database closed.
    fn read(
        self,
        device: &Disk,
        from: &File,
        buf: &mut PageBuf,
        at: LogPos,
        start: &WriterStart,
    ) -> Result<(), IoError> {
        if at + buf.len() as u64 <= start.needed_from {
            buf.fill(0);
            return Ok(());
        }
        let whole = device.read_at(from, buf, at - self.start);
        if whole.is_ok() || at >= start.replay {
            return whole;
        }
        let mut page = PageBuf::zeroed(1);
        for index in 0..buf.pages() {
            let position = at + index as u64 * BLOCK;
            match device.read_at(from, &mut page, position - self.start) {
                Ok(()) => buf.page_mut(index).copy_from_slice(page.page(0)),
                Err(error) if position + BLOCK <= start.replay => {
                    // The engine's target, for subscribers of its events.
                    tracing::warn!(target: "pleach::log", %error, %position, "a dead block of the log that was not needed");
                    buf.page_mut(index).fill(0);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
