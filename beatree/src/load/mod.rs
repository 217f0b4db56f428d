//! Building a whole tree from all its pairs, in whatever order they come: the parts without I/O.
//!
//! * [`record`]: pairs packed into blocks, which may leave memory;
//! * [`mod@unit`]: the pairs below one prefix, sorted and cut into pages;
//! * [`mod@regions`]: an index over finished pages.
//!
//! The cuts are those that [`crate::build::plan`] makes of all cells at once, whatever the blocks
//! and units were: a unit is formed only below a prefix whose parent is too full for one page.

pub mod record;
pub mod regions;
pub mod unit;

pub use record::{Record, Records, record_len};
pub use regions::{BuiltLeaf, regions};
pub use unit::{Repeated, Unit};
