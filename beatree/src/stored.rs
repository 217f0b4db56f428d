//! What is stored under a key: nothing, a short value in the page, or a long one.
//!
//! A change travels as `Stored` from the session through the log and the buffered changes into a page. Long values
//! carry their hash, so that folding never hashes them again.
//!
//! ```
//! use pleach_beatree::Stored;
//! use pleach_core::Hasher;
//!
//! let short = Stored::from_value(Hasher::BLAKE3, b"in the page".as_slice().into());
//! assert!(matches!(short, Stored::Inline(_)));
//! // Too long for a page: hashed at once, written to the overflow file later.
//! let long = Stored::from_value(Hasher::BLAKE3, vec![0; 100_000].into());
//! assert!(matches!(long, Stored::Long(_)) && long.is_present());
//! assert!(Stored::Absent.fold_value().is_none());
//! ```

use std::sync::Arc;

use pleach_core::fold::FoldValue;
use pleach_core::page::leaf::{Cell, MAX_INLINE};
use pleach_core::page::overflow::OverflowCell;
use pleach_core::{Hasher, ValueHash};

use crate::page_no::page_offset;
use crate::value::Value;

/// The state of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stored {
    /// No value: never put, or deleted.
    #[default]
    Absent,
    /// A value of at most [`MAX_INLINE`] bytes.
    Inline(Value),
    /// A longer value that has not been written to the overflow file yet.
    Long(Arc<LongValue>),
    /// A longer value in the overflow file: the raw overflow cell.
    Overflow(Arc<[u8]>),
}

/// A long value in memory.
#[derive(Debug, PartialEq, Eq)]
pub struct LongValue {
    /// The value's hash under the database's hasher.
    pub hash: ValueHash,
    /// The value's bytes.
    pub bytes: Value,
}

impl Stored {
    /// The state of a value that is put; hashes a long one.
    pub fn from_value(hasher: Hasher, value: Value) -> Self {
        if value.len() <= MAX_INLINE {
            Self::Inline(value)
        } else {
            Self::Long(Arc::new(LongValue { hash: hasher.hash(&value).into(), bytes: value }))
        }
    }

    /// The state of a page's cell.
    #[inline]
    pub fn from_cell(cell: Cell<'_>) -> Self {
        match cell {
            Cell::Inline(bytes) => Self::Inline(Value::from(bytes)),
            Cell::Overflow(cell) => Self::Overflow(cell.bytes().into()),
        }
    }

    /// True when there is a value.
    pub fn is_present(&self) -> bool {
        !matches!(self, Self::Absent)
    }

    /// The value as the fold hashes it; `None` when absent.
    ///
    /// # Panics
    /// When an overflow cell in memory is malformed: it was parsed when it was read.
    pub fn fold_value(&self) -> Option<FoldValue<'_>> {
        match self {
            Self::Absent => None,
            Self::Inline(value) => Some(FoldValue::Bytes(value)),
            Self::Long(large) => Some(FoldValue::Hash(large.hash)),
            Self::Overflow(raw) => Some(FoldValue::Hash(overflow_cell(raw).value_hash())),
        }
    }

    /// Bytes that this value takes in the overflow file.
    pub fn overflow_bytes(&self) -> u64 {
        match self {
            Self::Overflow(raw) => {
                overflow_cell(raw).extents().map(|extent| page_offset(extent.pages.into())).sum()
            }
            _ => 0,
        }
    }

    /// Bytes that this value takes on the heap, for the memory budget.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Inline(value) => value.heap_bytes(),
            Self::Long(large) => large.bytes.heap_bytes() + size_of::<LongValue>() + 16,
            Self::Overflow(raw) => raw.len() + 16,
        }
    }
}

/// The parsed form of an overflow cell in memory.
///
/// # Panics
/// When the cell is malformed: cells are parsed when they are read, with their page or log record.
pub fn overflow_cell(raw: &[u8]) -> OverflowCell<'_> {
    OverflowCell::parse(raw).expect("a cell in memory was parsed before")
}

/// The value of a page's cell as the fold hashes it.
pub fn cell_value<'a>(cell: &Cell<'a>) -> FoldValue<'a> {
    match cell {
        Cell::Inline(bytes) => FoldValue::Bytes(bytes),
        Cell::Overflow(cell) => FoldValue::Hash(cell.value_hash()),
    }
}
