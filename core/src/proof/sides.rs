//! Two lists of terminals, before and after, of the same range: what they say has changed, and whether that is all.
//!
//! Terminals and siblings of a proof cut the space of keys into cells. Where both sides have a terminal, both values
//! are known. Where one side has a terminal and the other a sibling below it, that sibling has to be the node that the
//! terminal has there: its leaf, or nothing. Where both have a sibling, it has to be the same one. So a key of the
//! range that is not listed has not changed (`docs/proofs.md`).

use alloc::vec::Vec;

use super::{
    error::DecodeError,
    list::TerminalList,
    slots::{SiblingSlot, SlotSide, merged_slots},
    span::KeySpan,
    terminal::Terminal,
};
use crate::{
    node::{Key, Node, TERMINATOR, ValueHash},
    prefix::Prefix,
};

/// A key, and the hash of its value before and after; `None`: absent.
pub(super) type ChangedPair = (Key, Option<ValueHash>, Option<ValueHash>);

/// The two sides of a change proof, without siblings.
#[derive(Clone, Debug)]
pub(super) struct Sides<'a> {
    pub(super) before: TerminalList<'a>,
    pub(super) after: TerminalList<'a>,
    pub(super) span: KeySpan,
}

impl<'a> Sides<'a> {
    /// Two lists that begin and end where the range does.
    pub(super) fn new(
        before: TerminalList<'a>,
        after: TerminalList<'a>,
        span: KeySpan,
    ) -> Result<Self, DecodeError> {
        span.check_ends(&before)?;
        span.check_ends(&after)?;
        Ok(Self { before, after, span })
    }

    /// The places of all siblings in order, and which side has one there.
    pub(super) fn slots(&self) -> impl Iterator<Item = (SiblingSlot, SlotSide)> + use<'a> {
        merged_slots(&self.before, &self.after)
    }

    /// The keys of the range that have another value, or a value on one side only.
    pub(super) fn changes(&self) -> impl Iterator<Item = ChangedPair> + '_ {
        let leaves = |list: &TerminalList<'a>| {
            let span = self.span;
            list.leaves().filter(move |(key, _)| span.contains(key)).peekable()
        };
        let (mut before, mut after) = (leaves(&self.before), leaves(&self.after));
        core::iter::from_fn(move || {
            loop {
                let key = match (before.peek(), after.peek()) {
                    (Some((left, _)), Some((right, _))) => *left.min(right),
                    (Some((key, _)), None) | (None, Some((key, _))) => *key,
                    (None, None) => return None,
                };
                let old = before.next_if(|(at, _)| *at == key).map(|(_, value_hash)| value_hash);
                let new = after.next_if(|(at, _)| *at == key).map(|(_, value_hash)| value_hash);
                // A leaf on one side that the other one does not open is there, too.
                let known = (old.is_some() || self.before.find(&key).is_some())
                    && (new.is_some() || self.after.find(&key).is_some());
                if known && old != new {
                    return Some((key, old, new));
                }
            }
        })
    }

    /// The values of a key on both sides, where both open it.
    pub(super) fn values(&self, key: &Key) -> Option<(Option<ValueHash>, Option<ValueHash>)> {
        let (before, after) = (self.before.find(key)?, self.after.find(key)?);
        Some((before.value_of(key).copied(), after.value_of(key).copied()))
    }

    /// Checks that each terminal covers an end of the range or a key that changed.
    pub(super) fn check_used(&self) -> Result<(), DecodeError> {
        for list in [&self.before, &self.after] {
            let mut changes = self.changes().peekable();
            for terminal in list.iter() {
                let mut used = self.span.has_end_in(&terminal);
                while changes.next_if(|(key, ..)| terminal.covers(key)).is_some() {
                    used = true;
                }
                if !used {
                    return Err(DecodeError::UnusedTerminal);
                }
            }
        }
        Ok(())
    }

    /// Depth of the first sibling in the range that is not proven to be unchanged, given the siblings of both sides.
    /// `leaf` is the node of a leaf of one of the two.
    pub(super) fn first_unopened(
        &self,
        before: &[Node],
        after: &[Node],
        leaf: impl Fn(SlotSide, &Key, &ValueHash) -> Node,
    ) -> Option<u16> {
        let (mut before, mut after) = (before.iter(), after.iter());
        for (slot, of) in self.slots() {
            let old = if of == SlotSide::After { None } else { before.next() };
            let new = if of == SlotSide::Before { None } else { after.next() };
            let place = slot.place();
            if !self.span.contains_all(&place) {
                continue;
            }
            let same = match (old, new) {
                (Some(old), Some(new)) => old == new,
                (Some(node), None) => {
                    let leaf =
                        |key: &Key, value_hash: &ValueHash| leaf(SlotSide::After, key, value_hash);
                    node_at(&self.after, &place, leaf) == Some(*node)
                }
                (None, Some(node)) => {
                    let leaf =
                        |key: &Key, value_hash: &ValueHash| leaf(SlotSide::Before, key, value_hash);
                    node_at(&self.before, &place, leaf) == Some(*node)
                }
                (None, None) => false,
            };
            if !same {
                return Some(place.len());
            }
        }
        None
    }
}

/// The node at `place` by a terminal above it; `None` if there is no such terminal.
fn node_at(
    list: &TerminalList<'_>,
    place: &Prefix,
    leaf: impl Fn(&Key, &ValueHash) -> Node,
) -> Option<Node> {
    let above = list.find(place.first_key()).filter(|above| above.depth() < place.len())?;
    Some(match &above {
        Terminal::Leaf { key, value_hash, .. } if place.covers(key) => leaf(key, value_hash),
        _ => TERMINATOR,
    })
}

/// The siblings of both sides, each in the order of its own proof.
#[derive(Clone, Debug, Default)]
pub(super) struct SideSiblings {
    pub(super) before: Vec<Node>,
    pub(super) after: Vec<Node>,
}

impl SideSiblings {
    /// Splits the siblings that [`MergedSiblings`] has merged.
    pub(super) fn split(
        sides: &Sides<'_>,
        flags: &[u8],
        nodes: &[Node],
    ) -> Result<Self, DecodeError> {
        let found = u32::try_from(nodes.len()).map_err(|_| DecodeError::Length)?;
        // All siblings of a side are there, so the number of places is at most twice theirs.
        let expected = sides.before.siblings().max(sides.after.siblings());
        if expected > u64::from(found) {
            return Err(DecodeError::SiblingCount { expected, found });
        }
        let mut siblings = Self::default();
        siblings.before.reserve_exact(len(sides.before.siblings())?);
        siblings.after.reserve_exact(len(sides.after.siblings())?);
        let mut flags = FlagBits { bytes: flags, taken: 0 };
        let mut nodes = nodes.iter();
        let mut expected = 0u64;
        let mut next = || {
            expected = expected.saturating_add(1);
            nodes.next().copied()
        };
        for (slot, of) in sides.slots() {
            let node = next();
            if of != SlotSide::After {
                siblings.before.extend(node);
            }
            let twice =
                of == SlotSide::Both && !sides.span.contains_all(&slot.place()) && flags.next()?;
            let other = if twice { next() } else { node };
            if twice && other.is_some() && other == node {
                return Err(DecodeError::RepeatedSibling);
            }
            if of != SlotSide::Before {
                siblings.after.extend(other);
            }
        }
        if expected != u64::from(found) {
            return Err(DecodeError::SiblingCount { expected, found });
        }
        flags.end()?;
        Ok(siblings)
    }
}

fn len(count: u64) -> Result<usize, DecodeError> {
    usize::try_from(count).map_err(|_| DecodeError::Length)
}

/// The siblings of both sides in one list, those that are the same on both sides once.
#[derive(Clone, Debug, Default)]
pub(super) struct MergedSiblings {
    /// For each sibling outside of the range that both sides have, a bit: it differs, and both nodes stand in the list.
    pub(super) flags: Vec<u8>,
    pub(super) nodes: Vec<Node>,
}

impl MergedSiblings {
    /// Merges the siblings; nothing is [unopened](Sides::first_unopened).
    pub(super) fn merge(sides: &Sides<'_>, before: &[Node], after: &[Node]) -> Self {
        let mut together = Self::default();
        let mut bit = 0u8;
        let (mut before, mut after) = (before.iter(), after.iter());
        for (slot, of) in sides.slots() {
            let old = if of == SlotSide::After { None } else { before.next() };
            let new = if of == SlotSide::Before { None } else { after.next() };
            together.nodes.extend(old.or(new));
            if of != SlotSide::Both || sides.span.contains_all(&slot.place()) {
                continue;
            }
            if bit == 0 {
                together.flags.push(0);
                bit = 1;
            }
            if old != new {
                together.nodes.extend(new);
                if let Some(flags) = together.flags.last_mut() {
                    *flags |= bit;
                }
            }
            bit = bit.wrapping_shl(1);
        }
        together
    }
}

/// Bits from the front of some bytes, the lowest of each byte first.
struct FlagBits<'a> {
    bytes: &'a [u8],
    taken: usize,
}

impl FlagBits<'_> {
    fn next(&mut self) -> Result<bool, DecodeError> {
        let byte = self.bytes.get(self.taken / 8).ok_or(DecodeError::Length)?;
        let bit = byte.checked_shr(u32::try_from(self.taken % 8).unwrap_or(0)).unwrap_or(0) & 1;
        self.taken = self.taken.saturating_add(1);
        Ok(bit == 1)
    }

    /// Checks that nothing is left but zero bits of the last byte.
    fn end(mut self) -> Result<(), DecodeError> {
        if self.bytes.len() != self.taken.div_ceil(8) {
            return Err(DecodeError::Length);
        }
        while !self.taken.is_multiple_of(8) {
            if self.next()? {
                return Err(DecodeError::UnknownFlags);
            }
        }
        Ok(())
    }
}
