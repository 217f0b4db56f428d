//! Why bytes are refused as a page. One variant for each rule, so that a report can say what was broken.

use crate::page::kinds::{FileKind, PageType, StreamId, VERSION};

/// Why 4096 bytes are not the page that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The bytes are not those that were sealed.
    #[error("checksum {stored:016x} stored, {computed:016x} computed")]
    Checksum {
        /// The checksum in the page.
        stored: u64,
        /// The checksum of the page's other bytes.
        computed: u64,
    },
    /// A page of another file.
    #[error("page of file kind {found} in a file of kind {expected:?}")]
    WrongKind {
        /// The file kind in the page.
        found: u8,
        /// The file kind asked for.
        expected: FileKind,
    },
    /// A page with another number: misdirected.
    #[error("page number {found} where page {expected} belongs")]
    WrongPageNo {
        /// The page number in the page.
        found: u64,
        /// The page number asked for.
        expected: u64,
    },
    /// A page of another database.
    #[error("page of database {found:016x} in database {expected:016x}")]
    WrongDatabase {
        /// The database in the page.
        found: u64,
        /// The database asked for.
        expected: u64,
    },
    /// A page of another namespace of the same database.
    #[error("page of namespace {found} where namespace {expected} is expected")]
    WrongNamespace {
        /// The namespace in the page.
        found: u8,
        /// The namespace asked for.
        expected: u8,
    },
    /// Written by a newer version of this crate.
    #[error("page of format version {found}, newer than {}", VERSION)]
    NewerVersion {
        /// The version in the page.
        found: u8,
    },
    /// A version that never existed.
    #[error("page of format version {found}, which never existed")]
    UnknownVersion {
        /// The version in the page.
        found: u8,
    },
    /// A page of another type.
    #[error("page of type {found} instead of {expected:?}")]
    WrongType {
        /// The page type in the page.
        found: u8,
        /// The page type asked for.
        expected: PageType,
    },
    /// Bits that mean nothing in this version are set.
    #[error("reserved bits set in byte {offset}")]
    ReservedBits {
        /// The byte's offset in the page.
        offset: usize,
    },
    /// A prefix longer than 255 bits, or with a bit set beyond its length.
    #[error("a prefix of {len} bits: too long, or bits beyond its length are set")]
    Prefix {
        /// The prefix length in the page.
        len: u16,
    },
    /// More cells or entries than fit, or none where there must be one.
    #[error("impossible count {count}")]
    Count {
        /// The count in the page.
        count: u16,
    },
    /// A leaf page with nodes at a depth that does not exist or is not in use.
    #[error("nodes {levels} levels below a prefix of {prefix_len} bits")]
    Levels {
        /// Levels below the prefix.
        levels: u8,
        /// Length of the prefix.
        prefix_len: u16,
    },
    /// A value ends before it starts, or outside the page.
    #[error("value of cell {cell} ends before it starts or outside the page")]
    Slot {
        /// Index of the cell.
        cell: usize,
    },
    /// An inline value longer than [`crate::page::MAX_INLINE`].
    #[error("inline value of cell {cell} has {len} bytes")]
    InlineLength {
        /// Index of the cell.
        cell: usize,
        /// Length of its value.
        len: usize,
    },
    /// A key that is not below the page's prefix.
    #[error("key of cell {cell} is not below the prefix")]
    KeyOutside {
        /// Index of the cell.
        cell: usize,
    },
    /// A key that is not greater than the one before.
    #[error("key of cell {cell} is not greater than the one before")]
    KeyOrder {
        /// Index of the cell.
        cell: usize,
    },
    /// A malformed overflow cell.
    #[error("overflow cell {cell}: {reason}")]
    Overflow {
        /// Index of the cell.
        cell: usize,
        /// What is wrong with it.
        reason: OverflowError,
    },
    /// A branch page without children below it.
    #[error("branch page of level {level}")]
    Level {
        /// The level in the page.
        level: u8,
    },
    /// A child with unknown flags, or with a page number where the flags say that it has no page.
    #[error("flags or page number of entry {entry}")]
    Entry {
        /// Index of the entry.
        entry: usize,
    },
    /// Children that leave a gap, overlap, or do not end with the page's prefix.
    #[error("children do not tile the prefix at entry {entry}")]
    Tiling {
        /// Index of the first entry that does not fit; the count, when entries are missing.
        entry: usize,
    },
    /// A stream page with an unknown stream number.
    #[error("unknown stream {found}")]
    UnknownStream {
        /// The stream number in the page.
        found: u8,
    },
    /// A page of another stream, or with another index in it.
    #[error("page {found_index} of stream {found:?} instead of page {index} of {expected:?}")]
    WrongStream {
        /// The stream in the page.
        found: StreamId,
        /// The page's index in its stream.
        found_index: u32,
        /// The stream asked for.
        expected: StreamId,
        /// The index asked for.
        index: u32,
    },
    /// A payload longer than a page has room for, or not of the length that the stream needs here.
    #[error("impossible payload of {len} bytes")]
    PayloadLength {
        /// The payload length in the page.
        len: u16,
    },
    /// Bytes after the contents are not zero.
    #[error("bytes after the contents, from {offset} on, are not all zero")]
    Unused {
        /// Where the contents end.
        offset: usize,
    },
}

/// Why bytes are no overflow cell, or why a value cannot have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverflowError {
    /// The length does not fit the extent count.
    #[error("{len} bytes are not an overflow cell")]
    Length {
        /// Length of the cell.
        len: usize,
    },
    /// No extent, or more than [`crate::page::overflow::MAX_EXTENTS`].
    #[error("impossible number of extents {extents}")]
    Extents {
        /// Number of extents.
        extents: usize,
    },
    /// A value that belongs inline.
    #[error("a value of {total_len} bytes belongs inline")]
    Short {
        /// Length of the value.
        total_len: u64,
    },
    /// An empty extent, one too long, or one that leaves the file.
    #[error("extent {extent} is empty, too long or leaves the file")]
    Extent {
        /// Index of the extent.
        extent: usize,
    },
    /// Two extents share a page.
    #[error("extent {extent} shares a page with an earlier one")]
    Shared {
        /// Index of the later extent.
        extent: usize,
    },
    /// The extents have more or fewer pages than the value needs.
    #[error("{pages} pages for a value of {total_len} bytes")]
    Pages {
        /// Pages in all extents.
        pages: u64,
        /// Length of the value.
        total_len: u64,
    },
}
