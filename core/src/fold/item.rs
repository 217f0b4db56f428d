//! The records that folds are made of; all lie in flat lists and name each other by number.

use super::{Columns, HashId};
use crate::node::{Key, Node};

/// No item, no fragment.
pub(super) const NONE: u32 = u32::MAX;
/// No common prefix length: after the last item of a fold.
pub(super) const END: u16 = u16::MAX;

/// What an item says of the old trie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Old {
    Absent,
    Leaf,
    /// A subtrie with two keys or more, fixed at the item's depth.
    Many,
    /// A subtrie given by its node only, which is a leaf node: placing a terminal there needs
    /// the key.
    HiddenLeaf,
}

/// A key, a subtrie or the result of a fold below, as it was given.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) key: Key,
    pub(super) old: Old,
    pub(super) opened: bool,
    /// Was it given as accessed? (A terminal's leaf is opened even when it was not.)
    pub(super) accessed: bool,
    /// Depth of the terminal, or of the fixed child.
    pub(super) anchor: u16,
    /// First of the items that end in the same terminal.
    pub(super) group: u32,
    pub(super) old_hash: HashId,
    /// Fragment number of a fixed child.
    pub(super) fragment: u32,
}

/// State of a merged subtrie, stored with its first item.
#[derive(Clone, Copy)]
pub(super) struct Subtrie {
    pub(super) node: Node,
    pub(super) depth: u16,
    pub(super) opened: bool,
    /// Was the node computed here rather than given?
    pub(super) computed: bool,
    pub(super) fold: u32,
    /// Last item (valid at the first item).
    pub(super) tail: u32,
    /// First item (valid at the last item).
    pub(super) head: u32,
}

/// What the emission needs to know of a merge.
#[derive(Clone, Copy)]
pub(super) struct Merge {
    pub(super) left_opened: bool,
    pub(super) right_opened: bool,
    /// Node of the unopened side where exactly one is opened.
    pub(super) sibling: Node,
}

/// One fold: a run of items.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) floor: u16,
    /// Levels below the floor whose nodes are captured.
    pub(super) capture: u8,
    /// The bits at which these part, where they are not those behind the floor.
    pub(super) columns: Option<Columns>,
    pub(super) opened: bool,
    /// Old keys: 0, 1 (of a leaf item, whose index is in `only`), or 2 for more.
    pub(super) old_keys: u8,
    pub(super) only: u32,
}

/// Items are numbered in 32 bits; a caller folds in chunks of far fewer.
#[expect(clippy::cast_possible_truncation, reason = "a chunk of 2^32 items would need 400 GB")]
pub(super) fn index32(index: usize) -> u32 {
    index as u32
}
