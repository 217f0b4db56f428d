//! The frame of a log record: a header of [`HEADER_LEN`] bytes, then the body.
//!
//! ```text
//!   0      4        5     6      7         8         16        24        32      40
//!   +------+--------+-----+------+---------+---------+---------+---------+-------+
//!   | magic| version| kind| flags| header/8| body len| database| position| number|
//!   +------+--------+-----+------+---------+---------+---------+---------+-------+
//!   40               48        56             64           68  72      80         88
//!   +----------------+---------+--------------+------------+---+-------+----------+
//!   | durable_through| previous| body checksum| incarnation| 0 | prep. | checksum |
//!   +----------------+---------+--------------+------------+---+-------+----------+
//! ```
//!
//! All numbers are little-endian. `checksum` is the XXH3-64 of the 80 bytes before it. It covers the
//! whole record, since the `body checksum` is among them. `previous` is the `checksum` of the record
//! before this one, 0 for the first. Both checksums are seeded with the database id, so that bytes which
//! an application stores cannot pass for a record unless it knows the id.
//!
//! Invariants of a written record:
//! * `position` is a multiple of 8 and the record's byte in the log since creation;
//! * `durable_through` is at most `position`, and everything below it had been synced;
//! * `prep.` is above the end of the record's batch: the segments below it had been prepared, each with
//!   its full size, its name durable. A file that a record in an earlier one knows of is never missing;
//! * the length is used only after the header's checksum, position and database fit.

use core::hash::Hasher as _;

use twox_hash::XxHash3_64;

use super::bytes::{get_u32, get_u64, put};
use super::position::LogPos;

/// First bytes of a record: "PLLR".
pub const MAGIC: u32 = u32::from_le_bytes(*b"PLLR");
/// Version of the frame and of the bodies.
pub const VERSION: u8 = 2;
/// Largest record, header included. A larger batch is refused before anything is written.
pub const MAX_RECORD: u64 = 1 << 30;
/// Records start at multiples of this.
pub const ALIGN: u64 = 8;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = AT_MAGIC + 4;
const AT_KIND: usize = AT_VERSION + 1;
const AT_FLAGS: usize = AT_KIND + 1;
const AT_WORDS: usize = AT_FLAGS + 1;
const AT_BODY_LEN: usize = AT_WORDS + 1;
const AT_DATABASE: usize = AT_BODY_LEN + 8;
const AT_POSITION: usize = AT_DATABASE + 8;
const AT_NUMBER: usize = AT_POSITION + 8;
const AT_DURABLE: usize = AT_NUMBER + 8;
const AT_PREVIOUS: usize = AT_DURABLE + 8;
const AT_BODY_SUM: usize = AT_PREVIOUS + 8;
const AT_INCARNATION: usize = AT_BODY_SUM + 8;
const AT_RESERVED: usize = AT_INCARNATION + 4;
const AT_PREPARED: usize = AT_RESERVED + 4;
const AT_CHECKSUM: usize = AT_PREPARED + 8;
/// Bytes of a header.
pub const HEADER_LEN: usize = AT_CHECKSUM + 8;

const _: () = assert!(HEADER_LEN == 88 && HEADER_LEN.is_multiple_of(8));
const _: () = assert!(AT_BODY_LEN.is_multiple_of(8) && AT_CHECKSUM.is_multiple_of(8));

/// The kind of a record's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LogRecordKind {
    /// A commit: [`super::commit_body`].
    Commit = 1,
    /// A flush: [`super::location_body`].
    Location = 2,
    /// A clean close, without a body. No version has written one: a superblock records the close
    /// ([`super::superblock::Superblock::clean_end`]). A reader skips it; the number stays reserved.
    Close = 3,
}

impl LogRecordKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Commit, Self::Location, Self::Close].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Flag: the writer meant to sync this record before it acknowledged it.
pub const FLAG_SYNCED: u8 = 1;
const KNOWN_FLAGS: u8 = FLAG_SYNCED;

/// A header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Kind of the body.
    pub kind: LogRecordKind,
    /// [`FLAG_SYNCED`] or nothing.
    pub flags: u8,
    /// Bytes of the body.
    pub body_len: u64,
    /// Id of the database.
    pub database: u64,
    /// Where the record starts in the log.
    pub position: LogPos,
    /// Commit number, or flush number of a location record.
    pub number: u64,
    /// The log was synced below this position when the record was written.
    pub durable_through: LogPos,
    /// Checksum of the record before this one; 0 for the first.
    pub previous: u64,
    /// XXH3-64 of the body.
    pub body_checksum: u64,
    /// The writable open that wrote it.
    pub incarnation: u32,
    /// The log's segments had been prepared below this position when the record was written.
    pub prepared_through: LogPos,
}

/// The reason why 88 bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Not our magic.
    #[error("no magic")]
    Magic,
    /// The checksum does not fit.
    #[error("wrong checksum")]
    Checksum,
    /// A good checksum over fields that no writer of this version makes.
    #[error("unknown version, kind, flags, header length, or reserved bytes")]
    Unknown,
    /// The body is longer than [`MAX_RECORD`] allows, or position and length overflow.
    #[error("the length is out of range")]
    Length,
}

impl RecordHeader {
    /// The 88 bytes and the record's checksum, which the next record names.
    pub fn encode(&self) -> ([u8; HEADER_LEN], u64) {
        let mut bytes = [0; HEADER_LEN];
        put(&mut bytes, AT_MAGIC, MAGIC.to_le_bytes());
        put(&mut bytes, AT_VERSION, [VERSION]);
        put(&mut bytes, AT_KIND, [self.kind as u8]);
        put(&mut bytes, AT_FLAGS, [self.flags]);
        put(&mut bytes, AT_WORDS, [WORDS]);
        put(&mut bytes, AT_BODY_LEN, self.body_len.to_le_bytes());
        put(&mut bytes, AT_DATABASE, self.database.to_le_bytes());
        put(&mut bytes, AT_POSITION, self.position.get().to_le_bytes());
        put(&mut bytes, AT_NUMBER, self.number.to_le_bytes());
        put(&mut bytes, AT_DURABLE, self.durable_through.get().to_le_bytes());
        put(&mut bytes, AT_PREVIOUS, self.previous.to_le_bytes());
        put(&mut bytes, AT_BODY_SUM, self.body_checksum.to_le_bytes());
        put(&mut bytes, AT_INCARNATION, self.incarnation.to_le_bytes());
        put(&mut bytes, AT_PREPARED, self.prepared_through.get().to_le_bytes());
        let checksum = XxHash3_64::oneshot_with_seed(self.database, &bytes[..AT_CHECKSUM]);
        put(&mut bytes, AT_CHECKSUM, checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// Decodes a header and verifies it as far as that is possible without the body; also gives the record's checksum.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<(Self, u64), HeaderError> {
        if get_u32(bytes, AT_MAGIC) != MAGIC {
            return Err(HeaderError::Magic);
        }
        let database = get_u64(bytes, AT_DATABASE);
        let checksum = get_u64(bytes, AT_CHECKSUM);
        if XxHash3_64::oneshot_with_seed(database, &bytes[..AT_CHECKSUM]) != checksum {
            return Err(HeaderError::Checksum);
        }
        let kind = LogRecordKind::from_byte(bytes[AT_KIND]).ok_or(HeaderError::Unknown)?;
        let flags = bytes[AT_FLAGS];
        if bytes[AT_VERSION] != VERSION
            || bytes[AT_WORDS] != WORDS
            || flags & !KNOWN_FLAGS != 0
            || bytes[AT_RESERVED..AT_PREPARED].iter().any(|byte| *byte != 0)
        {
            return Err(HeaderError::Unknown);
        }
        let header = Self {
            kind,
            flags,
            body_len: get_u64(bytes, AT_BODY_LEN),
            database,
            position: get_u64(bytes, AT_POSITION).into(),
            number: get_u64(bytes, AT_NUMBER),
            durable_through: get_u64(bytes, AT_DURABLE).into(),
            previous: get_u64(bytes, AT_PREVIOUS),
            body_checksum: get_u64(bytes, AT_BODY_SUM),
            incarnation: get_u32(bytes, AT_INCARNATION),
            prepared_through: get_u64(bytes, AT_PREPARED).into(),
        };
        let fits = header.body_len <= MAX_RECORD - HEADER_LEN as u64
            && header.position <= LogPos::MAX
            && header.prepared_through > header.position
            && header.prepared_through.get() <= 2 * LogPos::MAX.get()
            && header.durable_through <= header.position;
        if fits { Ok((header, checksum)) } else { Err(HeaderError::Length) }
    }

    /// Bytes of header and body.
    pub fn record_len(&self) -> u64 {
        HEADER_LEN as u64 + self.body_len
    }

    /// The earliest start of the next record: the end, rounded up to [`ALIGN`].
    pub fn end(&self) -> LogPos {
        (self.position + self.record_len()).align_up(ALIGN)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "11, asserted above")]
const WORDS: u8 = (HEADER_LEN / 8) as u8;

/// Checksum of a body, or of a body in parts.
pub fn body_checksum<'a>(database: u64, parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hasher = XxHash3_64::with_seed(database);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

/// A record to be written: kind, number and body, the body in parts that are written one after the other, so that parts
/// encoded by several workers need no copy.
///
/// Its steps: [`RecordBuf::new`] (any thread, hashes the body), [`RecordBuf::set_position`] (the sequencer, from
/// [`crate::log::LogTail::reserve`]), [`crate::log::LogWriter::write`], which sets the writer's fields.
#[derive(Debug)]
pub struct RecordBuf {
    kind: LogRecordKind,
    flags: u8,
    number: u64,
    parts: Vec<Vec<u8>>,
    body_len: u64,
    body_checksum: u64,
    position: Option<LogPos>,
}

impl RecordBuf {
    /// A record with the given body; hashes it.
    pub fn new(database: u64, kind: LogRecordKind, number: u64, parts: Vec<Vec<u8>>) -> Self {
        let body_len = parts.iter().map(|part| part.len() as u64).sum();
        let body_checksum = body_checksum(database, parts.iter().map(Vec::as_slice));
        Self { kind, flags: 0, number, parts, body_len, body_checksum, position: None }
    }

    /// Bytes of header and body. A record of more than [`MAX_RECORD`] must not be reserved.
    #[expect(clippy::len_without_is_empty, reason = "a record has a header, it is never empty")]
    pub fn len(&self) -> u64 {
        HEADER_LEN as u64 + self.body_len
    }

    /// Kind of the body.
    pub fn kind(&self) -> LogRecordKind {
        self.kind
    }

    /// Commit or flush number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Sets [`FLAG_SYNCED`].
    pub fn set_synced(&mut self) {
        self.flags |= FLAG_SYNCED;
    }

    /// Gives the record its log position.
    pub fn set_position(&mut self, position: LogPos) {
        self.position = Some(position);
    }

    /// The record's log position, once it is set.
    pub fn position(&self) -> Option<LogPos> {
        self.position
    }

    /// The body's parts, in order.
    pub fn body_parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(Vec::as_slice)
    }

    pub(crate) fn header(&self, chain: &RecordChain, position: LogPos) -> RecordHeader {
        RecordHeader {
            kind: self.kind,
            flags: self.flags,
            body_len: self.body_len,
            database: chain.database,
            position,
            number: self.number,
            durable_through: chain.durable_through,
            previous: chain.previous,
            body_checksum: self.body_checksum,
            incarnation: chain.incarnation,
            prepared_through: chain.prepared_through,
        }
    }
}

/// The fields that a record takes from the log it is appended to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordChain {
    pub(crate) database: u64,
    pub(crate) incarnation: u32,
    pub(crate) durable_through: LogPos,
    pub(crate) prepared_through: LogPos,
    pub(crate) previous: u64,
}

/// A valid record of a scan.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    /// Its header.
    pub header: RecordHeader,
    /// The record's checksum, which covers all of it.
    pub checksum: u64,
    /// Its body.
    pub body: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> RecordHeader {
        RecordHeader {
            kind: LogRecordKind::Location,
            flags: FLAG_SYNCED,
            body_len: 77,
            database: 0x1122_3344_5566_7788,
            position: LogPos::new(4096),
            number: 9,
            durable_through: LogPos::new(4000),
            previous: 5,
            body_checksum: 6,
            incarnation: 3,
            prepared_through: LogPos::new(8192),
        }
    }

    #[test]
    fn a_header_comes_back_and_no_bit_of_it_can_flip() {
        let header = sample();
        let (bytes, checksum) = header.encode();
        assert_eq!(RecordHeader::decode(&bytes), Ok((header, checksum)));
        for bit in 0..HEADER_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(RecordHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn hostile_headers_with_good_checksums_are_refused() {
        type Spoil = fn(&mut RecordHeader);
        let cases: [(Spoil, HeaderError); 7] = [
            (|h| h.prepared_through = h.position, HeaderError::Length),
            (|h| h.prepared_through = u64::MAX.into(), HeaderError::Length),
            (|h| h.body_len = MAX_RECORD, HeaderError::Length),
            (|h| h.body_len = u64::MAX, HeaderError::Length),
            (|h| h.position = (u64::MAX - 7).into(), HeaderError::Length),
            (|h| h.durable_through = h.position + 1, HeaderError::Length),
            (|h| h.flags = 0x80, HeaderError::Unknown),
        ];
        for (spoil, expected) in cases {
            let mut header = sample();
            spoil(&mut header);
            assert_eq!(RecordHeader::decode(&header.encode().0), Err(expected));
        }
        let mut largest = sample();
        largest.body_len = MAX_RECORD - HEADER_LEN as u64;
        largest.prepared_through = (2 * LogPos::MAX.get()).into();
        assert!(RecordHeader::decode(&largest.encode().0).is_ok());
    }

    #[test]
    fn a_body_in_parts_has_the_checksum_of_the_whole() {
        let whole: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
        for middle in [0, 1, 63, 64, 240, 241, 1024, 4999, 5000] {
            let (a, b) = whole.split_at(middle);
            assert_eq!(body_checksum(7, [a, b]), XxHash3_64::oneshot_with_seed(7, &whole));
        }
    }
}
