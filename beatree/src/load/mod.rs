//! Building a whole tree from all its pairs, in any order: the parts without I/O.
//!
//! * [`LoadRecord`]: pairs packed into blocks, which may be moved to a file;
//! * [`LoadUnit`]: the pairs below one prefix, sorted and divided among pages;
//! * [`regions()`]: an index over finished pages.
//!
//! Pages have the prefixes that [`crate::page_plan::plan_pages`] gives for all cells at once, whatever the blocks and units
//! were: a unit is formed only below a prefix whose parent is too full for one page.
//!
//! ```
//! use pleach_beatree::load::{LoadRecord, LoadUnit, record_len};
//! use pleach_core::prefix::Prefix;
//!
//! // Two pairs, packed into a block as they come.
//! let mut block = vec![0; 2 * record_len(1)];
//! let mut end = 0;
//! for key in [[9; 32], [3; 32]] {
//!     let record = LoadRecord { key: &key, bytes: &key[..1], overflow: false };
//!     end = record.write(&mut block, end).expect("there is room");
//! }
//! let blocks = [&block[..end]];
//! let unit = LoadUnit::new(Prefix::ROOT, &blocks).expect("no key comes twice");
//! assert_eq!(unit.record(0).key, &[3; 32]);
//! assert_eq!(unit.plan().len(), 1, "both fit in one page");
//! ```

mod record;
mod regions;
mod unit;

pub use record::{LoadRecord, LoadRecords, MAX_RECORD, record_len};
pub use regions::{BuiltLeaf, regions};
pub use unit::{LoadUnit, RepeatedKey};
