//! Reading the log by position: a window over the segments that exist, filled by large reads.
//!
//! A segment is opened when it is read, and one at a time: a long history has hundreds of them. While another process
//! writes, the file of a segment's name may be replaced ([`LogReader::reopen`]).

use pleach_io::{Disk, File, IoError, OpenMode, PAGE, PageBuf};

use super::error::{BadSegment, InvalidReason, ScanError};
use super::segment::run_pages;
use crate::format::names::{parse_segment_name, segment_name};
use crate::format::position::LogPos;
use crate::format::record::{HEADER_LEN, MAGIC, RecordHeader, RecordView, body_checksum};

const CHUNK_PAGES: usize = 256;

/// A good header.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundRecord {
    pub(super) header: RecordHeader,
    /// Of the header, which has that of the body.
    pub(super) checksum: u64,
}

/// A record, or the reason why there is none.
pub(super) type Verdict = Result<FoundRecord, InvalidReason>;

/// The first byte in these bytes of the log at which a header may begin; they begin at such a byte.
pub(super) fn magic_in(bytes: &[u8]) -> Option<u64> {
    let words = bytes.chunks_exact(8).position(|word| word[..4] == MAGIC.to_le_bytes());
    words.map(|words| 8 * words as u64)
}

/// The indices of the log's segments in a folder, ascending, without names beyond the largest position.
pub fn segments(device: &Disk, size: u64) -> Result<Vec<u64>, IoError> {
    let names = device.list()?;
    let indices = names.iter().filter_map(|name| parse_segment_name(name));
    let mut indices: Vec<u64> =
        indices.filter(|index| *index < LogPos::MAX.segment(size)).collect();
    indices.sort_unstable();
    Ok(indices)
}

pub(super) struct LogReader {
    device: Disk,
    size: u64,
    first: u64,
    /// The segments from `first` on end before this index.
    end: u64,
    /// Index and file of the segment that is read.
    file: Option<(u64, File)>,
    /// Log bytes from `base` on; `base` is a multiple of the page size.
    window: Vec<u8>,
    base: LogPos,
    chunk: PageBuf,
    /// True when a segment without its full size counts as missing, and a page is read alone where many cannot be read
    /// together.
    lenient: bool,
}

impl LogReader {
    /// A reader of the segments that hold `from` or later positions, up to the first missing one. A segment without its
    /// full size is an error; for a lenient reader it counts as missing, and an unreadable page spoils no other.
    pub(super) fn open(
        device: &Disk,
        size: u64,
        from: LogPos,
        lenient: bool,
    ) -> Result<Self, ScanError> {
        let first = from.segment(size);
        let mut reader = Self {
            device: device.clone(),
            size,
            first,
            end: first,
            file: None,
            window: Vec::new(),
            base: LogPos::START,
            chunk: PageBuf::zeroed(run_pages(size).min(CHUNK_PAGES)),
            lenient,
        };
        reader.list_segments()?;
        Ok(reader)
    }

    /// Adds the segments to which the files reach by now.
    fn list_segments(&mut self) -> Result<(), ScanError> {
        // After a gap no file belongs to the log, or durable evidence names the missing one.
        let known = self.end;
        for index in segments(&self.device, self.size)?.into_iter().filter(|at| *at >= known) {
            let file = self.device.open(&segment_name(index), OpenMode::Read)?;
            let (found, expected) = (self.device.len(&file)?, self.size);
            if found == expected {
                self.end += u64::from(index == self.end);
            } else if !self.lenient {
                return Err(BadSegment { index, found: Some(found), expected }.into());
            }
        }
        Ok(())
    }

    /// Discards the window and the open file, so that the present file of the segment's name is read: the writing
    /// process may have replaced it, and reused the old one.
    pub(super) fn reopen(&mut self) {
        self.window.clear();
        self.file = None;
    }

    /// The readable ranges of positions from `from` on, ascending: one a segment.
    pub(super) fn readable_ranges(&self, from: LogPos) -> Vec<(LogPos, LogPos)> {
        (self.first..self.end)
            .map(|index| {
                let start = LogPos::of_segment(index, self.size);
                (start.max(from), start + self.size)
            })
            .filter(|(start, end)| start < end)
            .collect()
    }

    /// The end of the files, or of the range before the first missing one, at most `position`. Where they end before that
    /// they are listed again: another process may have made some since.
    pub(super) fn prepared_up_to(&mut self, position: LogPos) -> Result<LogPos, ScanError> {
        if LogPos::of_segment(self.end, self.size) < position {
            self.list_segments()?;
        }
        Ok(LogPos::of_segment(self.end, self.size).min(position))
    }

    /// The `len` bytes from `position` on; `None` when some are missing.
    pub(super) fn read(&mut self, position: LogPos, len: u64) -> Result<Option<&[u8]>, ScanError> {
        if self.slice(position, len).is_none() {
            let to = LogPos::new(position.get().saturating_add(len));
            if self.prepared_up_to(to)? < to {
                return Ok(None);
            }
            self.fill(position, len)?;
        }
        Ok(self.slice(position, len))
    }

    /// The header at a position, if it is good in itself, wherever it belongs; with its checksum.
    pub(super) fn header(&mut self, at: LogPos) -> Result<Verdict, ScanError> {
        let bytes = self.read(at, HEADER_LEN as u64)?.and_then(|bytes| bytes.first_chunk());
        let Some(bytes) = bytes else { return Ok(Err(InvalidReason::NoSegment)) };
        let decoded = RecordHeader::decode(bytes);
        Ok(decoded.map(|(header, checksum)| FoundRecord { header, checksum }).map_err(|_| {
            if *bytes == [0; HEADER_LEN] { InvalidReason::Blank } else { InvalidReason::NoHeader }
        }))
    }

    /// The record at a position, if its header follows the record before.
    pub(super) fn record(
        &mut self,
        at: LogPos,
        follows: impl FnOnce(&RecordHeader) -> Result<bool, ScanError>,
    ) -> Result<Verdict, ScanError> {
        let found = match self.header(at)? {
            Ok(found) => found,
            Err(invalid) => return Ok(Err(invalid)),
        };
        let header = &found.header;
        if header.position != at || !follows(header)? {
            return Ok(Err(InvalidReason::Stale));
        }
        let body = self.read(at + HEADER_LEN as u64, header.body_len)?;
        Ok(match body.map(|body| body_checksum(header.database, [body])) {
            None => Err(InvalidReason::CutBody),
            Some(sum) if sum != header.body_checksum => Err(InvalidReason::TornBody),
            Some(_) => Ok(found),
        })
    }

    /// A record that was found, while the window has its bytes.
    pub(super) fn view(
        &mut self,
        FoundRecord { header, checksum }: FoundRecord,
    ) -> Result<RecordView<'_>, ScanError> {
        let body = self.read(header.position + HEADER_LEN as u64, header.body_len)?;
        Ok(RecordView { header, checksum, body: body.unwrap_or_default() })
    }

    fn slice(&self, position: LogPos, len: u64) -> Option<&[u8]> {
        let start = usize::try_from(position.checked_since(self.base)?).ok()?;
        self.window.get(start..start.checked_add(usize::try_from(len).ok()?)?)
    }

    /// Moves the window to `position` and reads on until it has `len` bytes from there.
    fn fill(&mut self, position: LogPos, len: u64) -> Result<(), IoError> {
        let base = LogPos::new(position.get() - position.get() % PAGE as u64);
        let kept = (base.checked_since(self.base))
            .and_then(|skip| usize::try_from(skip).ok())
            .filter(|skip| *skip < self.window.len());
        match kept {
            Some(skip) => drop(self.window.drain(..skip)),
            None => self.window.clear(),
        }
        self.base = base;
        while self.slice(position, len).is_none() {
            if let Err(error) = self.extend() {
                // A window that ends in a gap must not be taken for a filled one.
                self.window.clear();
                return Err(error);
            }
        }
        Ok(())
    }

    fn extend(&mut self) -> Result<(), IoError> {
        let at = self.base + self.window.len() as u64;
        let offset = at.in_segment(self.size);
        let index = at.segment(self.size);
        let file = match &self.file {
            Some((open, file)) if *open == index => file,
            _ => {
                let file = self.device.open(&segment_name(index), OpenMode::Read)?;
                &self.file.insert((index, file)).1
            }
        };
        let left = usize::try_from((self.size - offset) / PAGE as u64).unwrap_or(usize::MAX);
        let mut rest;
        let chunk = if left >= self.chunk.pages() {
            &mut self.chunk
        } else {
            rest = PageBuf::zeroed(left);
            &mut rest
        };
        match self.device.read_at(file, chunk, offset) {
            Ok(()) => self.window.extend_from_slice(chunk),
            Err(_) if self.lenient => {
                let mut page = PageBuf::zeroed(1);
                self.device.read_at(file, &mut page, offset)?;
                self.window.extend_from_slice(&page);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
