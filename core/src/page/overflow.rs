//! The overflow cell: what a leaf page stores of a value too long to lie in it.
//!
//! ```text
//! 0             8            40         42        42 + 8 n
//! | total length | value hash | run count | n runs  |
//!                                   run: start 5 | pages 3
//! ```
//!
//! The runs are consecutive parts of the value, in pages of [`crate::page::stream`] in the overflow file. One value,
//! one cell: the runs have exactly as many pages as the length needs, are not empty and share no page. The hash is that
//! of the whole value, so the trie never needs the value's own pages, and a reader of the value detects a stale page
//! among them.
//!
//! ```
//! use pleach_core::page::{OverflowCell, OverflowError, OverflowRun, overflow};
//!
//! let mut cell = Vec::new();
//! let run = OverflowRun { start: 40, pages: 3 };
//! assert_eq!(overflow::pages_for(10_000), 3);
//! OverflowCell::encode(10_000, &[7; 32].into(), &[run], &mut cell)?;
//! assert_eq!(OverflowCell::parse(&cell)?.runs().collect::<Vec<_>>(), [run]);
//! # Ok::<(), OverflowError>(())
//! ```

use alloc::vec::Vec;

use crate::node::ValueHash;
use crate::page::error::OverflowError;
use crate::page::header::{array_at, u16_at, u40_at, u64_at};
use crate::page::{MAX_INLINE, MAX_PAGE_NO, stream};

const TOTAL_LEN: usize = 0;
const HASH: usize = TOTAL_LEN + 8;
const RUN_COUNT: usize = HASH + 32;
const RUNS: usize = RUN_COUNT + 2;

/// Bytes of a run: start 5, pages 3.
const RUN_SIZE: usize = 8;
/// Maximum number of runs of a value; a value in more pieces is written again, in one.
pub const MAX_RUNS: usize = 32;
/// Maximum number of pages of a run, 24 bits: 64 GiB.
pub const MAX_RUN_PAGES: u32 = (1 << 24) - 1;

const _: () = assert!(cell_len(MAX_RUNS) == 298, "the longest overflow cell");
const _: () = assert!(cell_len(MAX_RUNS) <= MAX_INLINE, "no longer than an inline value");

/// Neighbouring pages of the overflow file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverflowRun {
    /// Number of the first page.
    pub start: u64,
    /// Number of pages.
    pub pages: u32,
}

/// Bytes of a cell with this many runs.
pub const fn cell_len(runs: usize) -> usize {
    RUNS + runs * RUN_SIZE
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
        if len < RUNS {
            return Err(OverflowError::Length { len });
        }
        let runs = usize::from(u16_at(bytes, RUN_COUNT));
        check_count(runs)?;
        if len != cell_len(runs) {
            return Err(OverflowError::Length { len });
        }
        let cell = Self { bytes };
        check_runs(cell.total_len(), &cell.runs())?;
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
        runs: &[OverflowRun],
        out: &mut Vec<u8>,
    ) -> Result<(), OverflowError> {
        check_count(runs.len())?;
        check_runs(total_len, &runs.iter().copied())?;
        let count =
            u16::try_from(runs.len()).map_err(|_| OverflowError::Runs { runs: runs.len() })?;
        out.reserve(cell_len(runs.len()));
        out.extend_from_slice(&total_len.to_le_bytes());
        out.extend_from_slice(value_hash.as_bytes());
        out.extend_from_slice(&count.to_le_bytes());
        for run in runs {
            out.extend_from_slice(&run.start.to_le_bytes()[..5]);
            out.extend_from_slice(&run.pages.to_le_bytes()[..3]);
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
    pub fn runs(&self) -> impl ExactSizeIterator<Item = OverflowRun> + Clone + use<'a> {
        self.bytes[RUNS..].as_chunks::<RUN_SIZE>().0.iter().map(|run| OverflowRun {
            start: u40_at(run, 0),
            pages: u32::from_le_bytes([run[5], run[6], run[7], 0]),
        })
    }

    /// The cell's bytes, as a leaf page or a log record holds them.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

fn check_count(runs: usize) -> Result<(), OverflowError> {
    match runs {
        1..=MAX_RUNS => Ok(()),
        _ => Err(OverflowError::Runs { runs }),
    }
}

fn check_runs(
    total_len: u64,
    runs: &(impl Iterator<Item = OverflowRun> + Clone),
) -> Result<(), OverflowError> {
    if total_len <= MAX_INLINE as u64 {
        return Err(OverflowError::Short { total_len });
    }
    let mut pages = 0;
    for (index, run) in runs.clone().enumerate() {
        let length = u64::from(run.pages);
        if run.pages == 0
            || run.pages > MAX_RUN_PAGES
            || run.start > MAX_PAGE_NO
            || run.start + length - 1 > MAX_PAGE_NO
        {
            return Err(OverflowError::Run { run: index });
        }
        let shares = |earlier: OverflowRun| {
            earlier.start < run.start + length
                && run.start < earlier.start + u64::from(earlier.pages)
        };
        if runs.clone().take(index).any(shares) {
            return Err(OverflowError::Shared { run: index });
        }
        pages += length;
    }
    if pages != pages_for(total_len) {
        return Err(OverflowError::Pages { pages, total_len });
    }
    Ok(())
}
