//! Page codecs: how leaf pages, branch pages and byte streams lie in 4 KiB. `docs/format.md` has
//! the same pictures with the reasons and the table of limits.
//!
//! ```text
//! every page   checksum 8 | page number 8 | database 8 | flush 8 | kind 1 | type 1 | version 1 | namespace 1
//! leaf page    ... flags 1 | 0 | prefix length 2 | applied through 8 | prefix 32 | count 2 | nodes | slots | keys | values | zeros
//! branch page  ... level 1 | 0 | prefix length 2 | log position 8    | prefix 32 | count 2 | entries | zeros
//! stream page  ... stream 1 | 0 | length 2 | index 4 | payload | zeros
//! ```
//!
//! * [`header`]: what all pages have in common, sealing and checking;
//! * [`leaf`], [`branch`], [`stream`]: one page type each, and the only file that spells its offsets;
//! * [`overflow`]: the cell that stands for a value too long for a leaf page.
//!
//! Rules that hold for each type:
//!
//! * `parse` is total: any 4096 bytes give a view or a [`PageError`]. The view's other methods rely on its checks;
//!   `from_trusted` makes a view of a page that was parsed before.
//! * One claim, one page: bytes without a meaning are zero and checked, so the same contents built
//!   twice are the same bytes, and no flipped bit hides.
//! * All integers are little-endian. Nothing is allocated to read a page.
//!
//! This module knows no files and no caches; it uses [`crate::node`] and [`crate::prefix`] alone.
//!
//! ```
//! use pleach_core::page::{FileKind, Identity, LeafBuilder, LeafHeader, LeafView, PAGE_SIZE};
//! use pleach_core::page::{PageError, RawCell};
//! use pleach_core::Prefix;
//!
//! let identity = Identity { kind: FileKind::Leaf, page_no: 3, db_id: 0xdb };
//! let header = LeafHeader {
//!     identity,
//!     flush: 1,
//!     namespace: 0,
//!     prefix: Prefix::ROOT,
//!     applied_through: 7,
//!     levels: 0,
//!     count: 1,
//! };
//! let mut page = [0; PAGE_SIZE];
//! let mut builder = LeafBuilder::new(&mut page, &header);
//! builder.push(&[5; 32], RawCell { bytes: b"value", overflow: false });
//! builder.seal();
//!
//! let view = LeafView::parse(&page, &identity)?;
//! assert_eq!(view.find(&[5; 32]), Ok(0));
//!
//! // The same bytes read from another page number are refused.
//! let elsewhere = Identity { page_no: 4, ..identity };
//! assert_eq!(
//!     LeafView::parse(&page, &elsewhere).unwrap_err(),
//!     PageError::WrongPageNo { found: 3, expected: 4 }
//! );
//! # Ok::<(), PageError>(())
//! ```

pub mod branch;
mod error;
pub mod header;
mod kinds;
pub mod leaf;
pub mod overflow;
mod prefix_header;
pub mod stream;

pub use branch::{BranchBuilder, BranchEntry, BranchHeader, BranchView};
pub use error::{OverflowError, PageError};
pub use header::{Identity, seal};
pub use kinds::{FileKind, PageType, StreamId, VERSION};
pub use leaf::{Cell, LeafBuilder, LeafHeader, LeafView, RawCell};
pub use overflow::{OverflowCell, OverflowExtent};
pub use stream::{StreamHeader, StreamView};

/// Bytes of a page, the unit of every file but the log.
pub const PAGE_SIZE: usize = 4096;

/// The bytes of one page.
pub type Page = [u8; PAGE_SIZE];

/// Page numbers are stored in 40 bits: a file has at most 2^40 pages, 4 PiB.
pub const MAX_PAGE_NO: u64 = (1 << 40) - 1;

/// Pages are cut at prefixes of at most 255 bits: a page can always hold two keys.
pub const MAX_PREFIX_LEN: u16 = 255;

/// Bytes of the longest value that lies in a leaf page.
pub const MAX_INLINE: usize = 1024;
