//! The nodes above pages: of the children of a region, and of all regions. Those are prefixes that tile a prefix, with one
//! line of 64 bytes for each boundary between neighbours: the nodes of the boundary's two children, which are the message
//! that is hashed.
//!
//! * [`Tiling`]: the prefixes and lines; [`Tiling::update`] computes those above changed children.
//! * [`Merkleizer`]: goes up from the accessed children of many tilings, hashes all messages of one height together, and gives
//!   nodes, new lines, and the parts of the multiproof above the children.
//!
//! ```
//! use pleach_core::tree::{Merkleizer, Tiling};
//! use pleach_core::{Hasher, Prefix, node};
//!
//! // Two children, of which the left one has changed and had no key before.
//! let halves = [false, true].map(|right| Prefix::ROOT.child(right));
//! let leaf = |byte: u8| node::leaf(Hasher::BLAKE3, &[byte; 32], &[1; 32].into());
//! let tiling = Tiling::new(Hasher::BLAKE3, halves.iter().copied(), &[node::TERMINATOR, leaf(0x80)]);
//!
//! let mut merkleizer = Merkleizer::new(Hasher::BLAKE3);
//! let number = merkleizer.begin_tiling();
//! let left = merkleizer.unaccessed(&leaf(0x01));
//! let top = merkleizer.child((&tiling, number), 0, left, None).unwrap().unwrap();
//! let end = merkleizer.end(top, true);
//! merkleizer.run();
//! let mut whole = tiling;
//! whole.update(Hasher::BLAKE3, [(0, leaf(0x01))].into_iter());
//! assert_eq!(merkleizer.end_node(end), whole.own());
//! ```

mod merkleizer;
mod numbers;
mod record;
mod stages;
mod tiling;

pub use merkleizer::{GroupedLines, HiddenLeaf, Merkleizer, Subtrie};
pub use tiling::Tiling;

use crate::node::Node;

/// The nodes of a boundary's two children, which are the message that is hashed; in one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub struct Line(pub [Node; 2]);
