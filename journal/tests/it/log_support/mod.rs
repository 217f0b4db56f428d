//! Helpers of the log's tests: records whose bodies show who wrote them, a tiny geometry, and one way to open a log.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use pleach_io::Disk;
use pleach_io::sim::{Rng, SimDisk};
use pleach_journal::format::position::{LogPoint, LogPos};
use pleach_journal::format::record::{LogRecordKind, RecordBuf, RecordHeader};
use pleach_journal::log::{
    LogError, LogTail, LogWriter, ScanEnd, ScanError, ScanInput, SegmentOptions, WriterStart, scan,
};

pub const DATABASE: u64 = 0x0123_4567_89ab_cdef;
pub const SEGMENT: u64 = 16 << 10;

/// With `cached` records share blocks between syncs.
fn options(cached: bool) -> SegmentOptions {
    SegmentOptions { size: SEGMENT, spares: 2, cached }
}

/// Headers and bodies.
pub type Found = Vec<(RecordHeader, Vec<u8>)>;

/// Number of cases: `PLEACH_CASES` or the given default.
pub fn cases(default: u64) -> u64 {
    std::env::var("PLEACH_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// A record with a body of `len` bytes drawn from `seed`.
pub fn record(number: u64, len: usize, seed: u64) -> RecordBuf {
    let mut body = vec![0; len];
    Rng::labelled(seed, number).fill(&mut body);
    let cut = len / 3;
    let parts = vec![body[..cut].to_vec(), body[cut..].to_vec()];
    RecordBuf::new(DATABASE, LogRecordKind::Commit, number, parts)
}

pub fn input(incarnation: u32, durable_through: impl Into<LogPos>) -> ScanInput {
    ScanInput {
        database: DATABASE,
        segment_size: SEGMENT,
        incarnation,
        from: LogPoint::default(),
        durable_through: durable_through.into(),
        prepared_through: LogPos::START,
        clean: false,
        live: false,
    }
}

/// Scans and collects headers and bodies.
pub fn read_log(disk: &SimDisk, input: &ScanInput) -> Result<(Found, ScanEnd), ScanError> {
    let mut found = Vec::new();
    let end = scan(&Disk::from(disk), input, |view| {
        found.push((view.header, view.body.to_vec()));
        Ok::<_, ScanError>(())
    })?;
    Ok((found, end))
}

/// Opens the log of a folder for writing, from its start: every other incarnation through the page cache.
pub fn continue_log(
    disk: &SimDisk,
    end: &ScanEnd,
    incarnation: u32,
) -> Result<(LogWriter, LogTail), LogError> {
    let mut start = WriterStart::after_scan(end, DATABASE, LogPos::START, LogPos::START);
    let options = options(incarnation.is_multiple_of(2));
    start.confirm(&disk.clone().into(), options.size)?;
    let writer = LogWriter::open(disk.clone().into(), options, &start, incarnation)?;
    let tail = writer.tail();
    Ok((writer, tail))
}

/// A new log, through the page cache or not.
pub fn new_log(disk: &SimDisk, cached: bool) -> (LogWriter, LogTail) {
    let start = WriterStart::new_log(DATABASE);
    let opened = LogWriter::open(disk.clone().into(), options(cached), &start, 1);
    let writer = opened.expect("an empty folder");
    let tail = writer.tail();
    (writer, tail)
}

/// Reserves and writes, without a sync.
pub fn append(
    writer: &mut LogWriter,
    tail: &mut LogTail,
    records: &mut [RecordBuf],
) -> Result<(), LogError> {
    if writer.is_poisoned() {
        return Err(LogError::Poisoned);
    }
    let mut after = *tail;
    for record in records.iter_mut() {
        record.set_position(after.reserve(record.len()));
    }
    if writer.needs_seal(false) {
        after.seal();
    }
    writer.segments().prepare_through(after.needed_through(0))?;
    *tail = after;
    writer.write(records)
}

/// Seals and syncs.
pub fn sync(writer: &mut LogWriter, tail: &mut LogTail) -> Result<LogPos, LogError> {
    tail.seal();
    writer.sync()
}
