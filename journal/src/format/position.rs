//! Log positions, and the sizes of the files that hold the log.

use core::fmt;
use core::ops::{Add, Sub};

use pleach_io::PAGE;

/// The first record after a sync starts at a multiple of this, so that a write never touches a block with durable
/// bytes.
pub const BLOCK: u64 = PAGE as u64;

/// Smallest segment.
pub const MIN_SEGMENT: u64 = 2 * PAGE as u64;

/// True for a valid size of segments.
pub(crate) fn valid_segment_size(size: u64) -> bool {
    size >= MIN_SEGMENT && size.is_multiple_of(PAGE as u64) && size <= 1 << 40
}

/// A byte of the log, counted since the database was created.
///
/// The position *of* a record is where it begins; its *end* is its last byte, rounded up to 8. Segment `i`
/// holds the positions from `i * size` to `(i + 1) * size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPos(u64);

impl LogPos {
    /// The first byte of the log.
    pub const START: Self = Self(0);
    /// Positions stay far below the largest integer, so that sums of them cannot overflow.
    pub const MAX: Self = Self(1 << 62);

    /// The position behind this number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes of the log before the position.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Rounded up to a multiple of `unit`, a power of two.
    #[inline]
    #[must_use]
    pub const fn align_up(self, unit: u64) -> Self {
        Self((self.0 + (unit - 1)) & !(unit - 1))
    }

    /// True for a multiple of `unit`.
    pub const fn is_aligned(self, unit: u64) -> bool {
        self.0.is_multiple_of(unit)
    }

    /// The position where a segment begins.
    pub const fn of_segment(index: u64, size: u64) -> Self {
        Self(index * size)
    }

    /// The index of the segment that holds the position.
    pub const fn segment(self, size: u64) -> u64 {
        self.0 / size
    }

    /// The position's byte in the file of its segment.
    pub const fn in_segment(self, size: u64) -> u64 {
        self.0 % size
    }

    /// Bytes from `start` to here; `None` when `start` comes later.
    pub const fn checked_since(self, start: Self) -> Option<u64> {
        self.0.checked_sub(start.0)
    }

    /// Bytes from `start` to here; 0 when `start` comes later.
    pub const fn saturating_since(self, start: Self) -> u64 {
        self.0.saturating_sub(start.0)
    }
}

impl Add<u64> for LogPos {
    type Output = Self;

    #[inline]
    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// Bytes between two positions.
impl Sub for LogPos {
    type Output = u64;

    #[inline]
    fn sub(self, start: Self) -> u64 {
        self.0 - start.0
    }
}

impl From<u64> for LogPos {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for LogPos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::LowerHex for LogPos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The end of a record, and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPoint {
    /// The end of a record, rounded up to 8 bytes; 0 before the first.
    pub position: LogPos,
    /// That record's checksum; 0 before the first.
    pub checksum: u64,
}

/// The point before a record whose predecessor is not known.
impl From<LogPos> for LogPoint {
    fn from(position: LogPos) -> Self {
        Self { position, checksum: 0 }
    }
}
