//! The overflow cell: what a leaf page stores of a value too long to lie in it.
//!
//! ```text
//! 0             8            40         42        42 + 8 n
//! | total length | value hash | extent count | n extents  |
//!                                   extent: start 5 | pages 3
//! ```
//!
//! The extents are consecutive parts of the value, in pages of [`crate::page::stream`] in the overflow file. One value,
//! one cell: the extents have exactly as many pages as the length needs, are not empty and share no page. The hash is that
//! of the whole value, so the trie never needs the value's own pages, and a reader of the value detects a stale page
//! among them.
//!
//! ```
//! use pleach_core::page::{OverflowCell, OverflowError, OverflowExtent, overflow};
//!
//! let mut cell = Vec::new();
//! let extent = OverflowExtent { start: 40, pages: 3 };
//! assert_eq!(overflow::pages_for(10_000), 3);
//! OverflowCell::encode(10_000, &[7; 32].into(), &[extent], &mut cell)?;
//! assert_eq!(OverflowCell::parse(&cell)?.extents().collect::<Vec<_>>(), [extent]);
//! # Ok::<(), OverflowError>(())
//! ```

use alloc::vec::Vec;

use crate::node::ValueHash;
use crate::page::error::OverflowError;
use crate::page::header::{array_at, u16_at, u40_at, u64_at};
use crate::page::{MAX_INLINE, MAX_PAGE_NO, stream};

const TOTAL_LEN: usize = 0;
const HASH: usize = TOTAL_LEN + 8;
const EXTENT_COUNT: usize = HASH + 32;
const EXTENTS: usize = EXTENT_COUNT + 2;

/// Bytes of an extent: start 5, pages 3.
const EXTENT_SIZE: usize = 8;
/// Maximum number of extents of a value; a value in more pieces is written again, in one.
pub const MAX_EXTENTS: usize = 32;
/// Maximum number of pages of an extent, 24 bits: 64 GiB.
pub const MAX_EXTENT_PAGES: u32 = (1 << 24) - 1;

const _: () = assert!(cell_len(MAX_EXTENTS) == 298, "the longest overflow cell");
const _: () = assert!(cell_len(MAX_EXTENTS) <= MAX_INLINE, "no longer than an inline value");

/// Neighbouring pages of the overflow file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverflowExtent {
    /// Number of the first page.
    pub start: u64,
    /// Number of pages.
    pub pages: u32,
}

/// Bytes of a cell with this many extents.
pub const fn cell_len(extents: usize) -> usize {
    EXTENTS + extents * EXTENT_SIZE
}

/// Pages of the overflow file that a value needs.
pub const fn pages_for(total_len: u64) -> u64 {
    total_len.div_ceil(stream::PAYLOAD as u64)
}

/// The bytes of an overflow cell.
///
/// [`Self::parse`] validates; a cell from a parsed [`LeafView`](crate::page::LeafView) was validated with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverflowCell<'a> {
    bytes: &'a [u8],
}

impl<'a> OverflowCell<'a> {
    /// Parses bytes as a cell.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, OverflowError> {
        let len = bytes.len();
        if len < EXTENTS {
            return Err(OverflowError::Length { len });
        }
        let extents = usize::from(u16_at(bytes, EXTENT_COUNT));
        check_count(extents)?;
        if len != cell_len(extents) {
            return Err(OverflowError::Length { len });
        }
        let cell = Self { bytes };
        check_extents(cell.total_len(), &cell.extents())?;
        Ok(cell)
    }

    /// A cell from a page that was parsed.
    #[inline]
    pub(super) fn from_trusted(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Appends the cell of a value to `out`. On an error `out` is as it was.
    pub fn encode(
        total_len: u64,
        value_hash: &ValueHash,
        extents: &[OverflowExtent],
        out: &mut Vec<u8>,
    ) -> Result<(), OverflowError> {
        check_count(extents.len())?;
        check_extents(total_len, &extents.iter().copied())?;
        let count = u16::try_from(extents.len())
            .map_err(|_| OverflowError::Extents { extents: extents.len() })?;
        out.reserve(cell_len(extents.len()));
        out.extend_from_slice(&total_len.to_le_bytes());
        out.extend_from_slice(value_hash.as_bytes());
        out.extend_from_slice(&count.to_le_bytes());
        for extent in extents {
            out.extend_from_slice(&extent.start.to_le_bytes()[..5]);
            out.extend_from_slice(&extent.pages.to_le_bytes()[..3]);
        }
        Ok(())
    }

    /// Length of the value in bytes.
    #[inline]
    pub fn total_len(&self) -> u64 {
        u64_at(self.bytes, TOTAL_LEN)
    }

    /// Hash of the value.
    #[inline]
    pub fn value_hash(&self) -> ValueHash {
        ValueHash::new(array_at(self.bytes, HASH))
    }

    /// The pages that hold the value, in the order of its bytes.
    pub fn extents(&self) -> impl ExactSizeIterator<Item = OverflowExtent> + Clone + use<'a> {
        self.bytes[EXTENTS..].as_chunks::<EXTENT_SIZE>().0.iter().map(|extent| OverflowExtent {
            start: u40_at(extent, 0),
            pages: u32::from_le_bytes([extent[5], extent[6], extent[7], 0]),
        })
    }

    /// The cell's bytes, as a leaf page or a log record holds them.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

fn check_count(extents: usize) -> Result<(), OverflowError> {
    match extents {
        1..=MAX_EXTENTS => Ok(()),
        _ => Err(OverflowError::Extents { extents }),
    }
}

fn check_extents(
    total_len: u64,
    extents: &(impl Iterator<Item = OverflowExtent> + Clone),
) -> Result<(), OverflowError> {
    if total_len <= MAX_INLINE as u64 {
        return Err(OverflowError::Short { total_len });
    }
    let mut pages = 0;
    for (index, extent) in extents.clone().enumerate() {
        let length = u64::from(extent.pages);
        if extent.pages == 0
            || extent.pages > MAX_EXTENT_PAGES
            || extent.start > MAX_PAGE_NO
            || extent.start + length - 1 > MAX_PAGE_NO
        {
            return Err(OverflowError::Extent { extent: index });
        }
        let shares = |earlier: OverflowExtent| {
            earlier.start < extent.start + length
                && extent.start < earlier.start + u64::from(earlier.pages)
        };
        if extents.clone().take(index).any(shares) {
            return Err(OverflowError::Shared { extent: index });
        }
        pages += length;
    }
    if pages != pages_for(total_len) {
        return Err(OverflowError::Pages { pages, total_len });
    }
    Ok(())
}
