//! The page tree: leaf pages and lowest branch pages cut at key prefixes, in memory and on the
//! device, with their cache, their places and their folds. It orders nothing: durability is the
//! engine's.
//!
//! * [`build`]: cutting cells into pages, folding and writing them;
//! * [`leaf_fold`]: one page, what hangs over it and what is accessed, into a fold;
//! * [`cuts`], [`region`], [`top`]: the index, from the whole key space to a page;
//! * [`stored`]: the state of a key.

pub mod build;
pub mod cache;
pub mod children;
pub mod grace;
pub mod index;
pub mod leaf_fold;
pub mod load;
pub mod page_no;
pub mod recycled;
pub mod region;
pub mod space;
pub mod split;
pub mod stored;
pub mod treelet;
pub mod value;

pub use children::{ChildRef, ChildTable};
pub use index::RegionIndex;
pub use page_no::PageNo;
pub use region::{Region, RegionState};
pub use stored::Stored;
pub use value::Value;
