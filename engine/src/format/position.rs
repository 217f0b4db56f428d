//! Positions in the log, and the sizes of the files that hold it.

use pleach_io::PAGE;

/// Every batch of records starts at a multiple of this, so that a write never touches a block
/// that holds durable bytes.
pub const BLOCK: u64 = PAGE as u64;

/// Smallest segment.
pub(crate) const MIN_SEGMENT: u64 = 2 * PAGE as u64;

/// Is this a size that segments may have?
pub(crate) fn valid_segment_size(size: u64) -> bool {
    size >= MIN_SEGMENT && size.is_multiple_of(PAGE as u64) && size <= 1 << 40
}

/// A place in the log: where a record ended, and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// The end of a record, rounded up to 8 bytes; 0 before the first.
    pub position: u64,
    /// That record's checksum; 0 before the first.
    pub checksum: u64,
}
