//! A subtrie during its climb.

use super::stages::Source;
use crate::node::{Key, NodeKind};

/// What the multiproof needs of a subtrie before the batch; accesses are record numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum OldOccupancy {
    /// No access, and no pair in it can be another key's terminal.
    Unaccessed,
    /// No access, and this only pair.
    UnaccessedPair(u32),
    /// No key; the terminal of this access and of those after it is not placed.
    Empty(u32),
    /// One key: likewise.
    Leaf(u32),
    /// All terminals are placed.
    Many,
}

impl OldOccupancy {
    #[inline]
    const fn pack(self) -> u64 {
        let (tag, number) = match self {
            Self::Unaccessed => (0, 0),
            Self::UnaccessedPair(pair) => (1, pair),
            Self::Empty(access) => (2, access),
            Self::Leaf(access) => (3, access),
            Self::Many => (4, 0),
        };
        (number as u64) << 32 | tag
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the word")]
    const fn unpack(word: u64) -> Self {
        let number = (word >> 32) as u32;
        match word as u32 {
            0 => Self::Unaccessed,
            1 => Self::UnaccessedPair(number),
            2 => Self::Empty(number),
            3 => Self::Leaf(number),
            _ => Self::Many,
        }
    }
}

/// A subtrie during its climb: its node after the batch, and what the multiproof needs of it. Two words: separate
/// fields would be written one by one and read together a moment later, which stalls a processor.
#[derive(Clone, Copy)]
pub struct Subtrie {
    new: u64,
    old: u64,
}

impl Subtrie {
    #[inline]
    pub(super) const fn new(kind: NodeKind, source: Source, old: OldOccupancy) -> Self {
        Self { new: source.pack() | (kind as u64) << 56, old: old.pack() }
    }

    /// The same node with another old occupancy.
    #[inline]
    pub(super) const fn with(self, old: OldOccupancy) -> Self {
        Self { old: old.pack(), ..self }
    }

    /// The kind of the node after the batch.
    #[inline]
    pub(super) fn kind(self) -> NodeKind {
        match self.new >> 56 {
            0 => NodeKind::Terminator,
            1 => NodeKind::Leaf,
            _ => NodeKind::Internal,
        }
    }

    /// The source of the node, if it is no terminator.
    #[inline]
    pub(super) fn source(self) -> Option<Source> {
        (self.kind() != NodeKind::Terminator).then(|| Source::unpack(self.new))
    }

    /// The least height of messages that contain the node.
    #[inline]
    pub(super) fn height(self) -> u16 {
        self.source().map_or(1, Source::above)
    }

    #[inline]
    pub(super) fn old(self) -> OldOccupancy {
        OldOccupancy::unpack(self.old)
    }
}

impl core::fmt::Debug for Subtrie {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Subtrie").field(&self.source()).field(&self.old()).finish()
    }
}

/// A subtrie and its place: this depth on the path of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedSubtrie {
    pub(super) key: Key,
    pub(super) depth: u16,
    pub(super) subtrie: Subtrie,
}

/// A terminator, without an access.
pub(super) const EMPTY: Subtrie =
    Subtrie::new(NodeKind::Terminator, Source::NOTHING, OldOccupancy::Unaccessed);
