//! The nodes above pages: of the children of a region, and of all regions. Both are prefixes that tile a prefix, with
//! one line of 64 bytes for each boundary between neighbours: the nodes of the boundary's two children, which are the
//! message that is hashed.
//!
//! [`Tiling::update`] computes the nodes above changed children; a fold climbs along them by a
//! [`TilingPath`](crate::fold::TilingPath).
//!
//! ```
//! use pleach_core::fold::{Folder, TilingPath};
//! use pleach_core::tree::Tiling;
//! use pleach_core::{Hasher, Prefix, node};
//!
//! // Two children, of which the left one has changed and had no key before.
//! let halves = [false, true].map(|right| Prefix::ROOT.child(right));
//! let leaf = |byte: u8| node::leaf(Hasher::BLAKE3, &[byte; 32], &[1; 32].into());
//! let mut tiling = Tiling::new(Hasher::BLAKE3, halves.iter().copied(), &[node::TERMINATOR, leaf(0x80)]);
//!
//! let mut folder = Folder::new(Hasher::BLAKE3);
//! let left = folder.known_subtrie(&leaf(0x01), &halves[0]);
//! let whole = folder.span_along(0, TilingPath::new(&tiling)).push_child(0, &halves[0], left, None).unwrap();
//! let end = folder.end_fold(whole, true);
//! folder.run();
//! tiling.update(Hasher::BLAKE3, [(0, leaf(0x01))].into_iter());
//! assert_eq!(folder.node(end), tiling.own_node());
//! ```

mod tiling;

pub(crate) use tiling::index32;
pub use tiling::{Tiling, boundary_above};

use crate::node::Node;

/// The nodes of a boundary's two children, which are the message that is hashed; in one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub struct Line(pub [Node; 2]);
