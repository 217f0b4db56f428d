//! Where the siblings of a list of terminals are, in the order in which `walk` takes them.
//!
//! A *slot* is the place of one sibling. `walk` hashes and asks for the next sibling only; code that compares two
//! lists, or sorts siblings by place, has to know the places. They follow from the terminals alone.
//!
//! The order is post-order of the subtries that climb: what lies below comes first, then what lies
//! to the left. It is the same for every list, so that the slots of two lists can be merged.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::{list::TerminalList, terminal::Terminal};
use crate::{
    node::Key,
    prefix::{self, Prefix},
};

/// The place of a sibling.
#[derive(Clone, Copy, Debug)]
pub(super) struct SiblingSlot {
    /// A key below the subtrie that climbs.
    bits: Key,
    /// Depth of both.
    depth: u16,
}

impl SiblingSlot {
    /// Prefix of the subtrie that climbs past the sibling.
    fn climbing(&self) -> Prefix {
        Prefix::new(&self.bits, self.depth)
    }

    /// Prefix of the sibling.
    pub(super) fn place(&self) -> Prefix {
        let climbing = self.climbing();
        // Only the root has no sibling, and no slot is at depth 0.
        climbing.sibling().unwrap_or(climbing)
    }

    /// The order in which slots are taken.
    fn order(&self, other: &Self) -> Ordering {
        if prefix::common_len(&self.bits, &other.bits) >= self.depth.min(other.depth) {
            other.depth.cmp(&self.depth)
        } else {
            self.bits.cmp(&other.bits)
        }
    }
}

/// The slots of terminals in order, each of which comes with its fork with the next one.
pub(super) fn slots<I: Iterator<Item = (Terminal, Option<u16>)>>(
    terminals: I,
) -> impl Iterator<Item = SiblingSlot> + use<I> {
    SiblingSlots { terminals, climbing: None, fork: None, waiting: Vec::new() }
}

/// Takes the steps of `ProofWalk::push` without the nodes.
struct SiblingSlots<I> {
    terminals: I,
    /// The subtrie that climbs: a key below it, and its depth.
    climbing: Option<(Key, u16)>,
    /// The depth at which the next terminal's path leaves this one's.
    fork: Option<u16>,
    /// Forks whose right side is not finished; they grow strictly, so there are at most 256.
    waiting: Vec<u16>,
}

impl<I: Iterator<Item = (Terminal, Option<u16>)>> Iterator for SiblingSlots<I> {
    type Item = SiblingSlot;

    fn next(&mut self) -> Option<SiblingSlot> {
        loop {
            let Some((bits, depth)) = self.climbing else {
                let (terminal, fork) = self.terminals.next()?;
                self.climbing = Some((*terminal.bits(), terminal.depth()));
                self.fork = fork;
                continue;
            };
            let left = self.waiting.last().copied();
            let deepest = left.max(self.fork);
            if depth > deepest.map_or(0, |fork| fork.saturating_add(1)) {
                self.climbing = Some((bits, depth.saturating_sub(1)));
                return Some(SiblingSlot { bits, depth });
            }
            match (left, self.fork) {
                (Some(at), _) if deepest == left => {
                    self.waiting.pop();
                    self.climbing = Some((bits, at));
                }
                (_, fork) => {
                    self.waiting.extend(fork);
                    self.climbing = None;
                }
            }
        }
    }
}

/// Which of two lists has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotSide {
    Before,
    After,
    Both,
}

/// The slots of two lists in order, those of both once.
pub(super) fn merged_slots<'a>(
    before: &TerminalList<'a>,
    after: &TerminalList<'a>,
) -> impl Iterator<Item = (SiblingSlot, SlotSide)> + use<'a> {
    let slots = |list: &TerminalList<'a>| slots(list.iter().with_forks()).peekable();
    let (mut before, mut after) = (slots(before), slots(after));
    core::iter::from_fn(move || {
        let order = match (before.peek(), after.peek()) {
            (Some(left), Some(right)) => left.order(right),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        match order {
            Ordering::Less => before.next().map(|slot| (slot, SlotSide::Before)),
            Ordering::Greater => after.next().map(|slot| (slot, SlotSide::After)),
            Ordering::Equal => {
                before.next();
                after.next().map(|slot| (slot, SlotSide::Both))
            }
        }
    })
}
