//! The line tree: nodes in memory as one line of 64 bytes for each boundary between neighbouring keys, and the
//! computation of new nodes, multiproofs and witnesses from them (`docs/line-tree.md`).
//!
//! * [`LineTree`]: the keys and lines of a page; [`Tiling`]: those of a region's children, or of all regions.
//! * [`Merkleizer`]: goes up from the accesses of a batch, hashes all messages of one height together, and
//!   gives nodes, new lines, terminals, operations and siblings.
//! * [`Reshape`]: what a batch does to the keys of a page.
//!
//! ```
//! use pleach_core::fold::{Change, FoldValue};
//! use pleach_core::tree::{KeyAccess, LineTree, Merkleizer, PageView};
//! use pleach_core::naive::Naive;
//! use pleach_core::{Blake3, node::value_hash};
//!
//! // A page with two keys; one is read and changed, a third one is new.
//! let keys = [[0x10; 32], [0x40; 32]];
//! let tree = LineTree::from_keys(0, &keys);
//! let values: [&[u8]; 2] = [b"ten", b"forty"];
//! let value = |slot: usize| FoldValue::Bytes(values[slot]);
//! let access = |key, old, new| KeyAccess {
//!     key,
//!     accessed: true,
//!     differs: false,
//!     reads: true,
//!     old,
//!     change: Change::Put(FoldValue::Bytes(new)),
//! };
//! let accesses = [
//!     access([0x10; 32], Some(FoldValue::Bytes(b"ten")), b"eleven"),
//!     access([0x70; 32], None, b"seventy"),
//! ];
//!
//! let mut merkleizer = Merkleizer::<Blake3>::default();
//! let page = PageView { tree: &tree, value: &value };
//! let (number, top) = merkleizer.page(page, &accesses);
//! let end = merkleizer.end(top, 0);
//! merkleizer.run();
//!
//! let pairs = [([0x10; 32], &b"eleven"[..]), ([0x40; 32], b"forty"), ([0x70; 32], b"seventy")];
//! let naive: Naive = pairs.iter().map(|(key, value)| (*key, value_hash::<Blake3>(value))).collect();
//! assert_eq!(*merkleizer.end_node(end), naive.root::<Blake3>());
//! ```

mod line_tree;
mod merkleizer;
mod numbers;
mod record;
mod reshape;
mod shape;
mod stages;
mod tiling;
mod union;

pub use line_tree::LineTree;
pub use merkleizer::{GroupedLines, HiddenLeaf, KeyAccess, Merkleizer, Subtrie};
pub use reshape::{PageChange, Reshape};
pub use shape::PageView;
pub use tiling::Tiling;

use crate::node::Node;

/// The nodes of a boundary's two children, which are the message that is hashed; in one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub struct Line(pub [Node; 2]);
