//! Emission: terminals in key order, siblings in post-order (`docs/proofs.md`).

use super::Sink;
use super::batch_folder::BatchFolder;
use super::item::{Old, index32};
use crate::node::TERMINATOR;

impl BatchFolder {
    /// Gives a fold's terminals and siblings to `sink`.
    ///
    /// # Panics
    /// When the fold's occupancy is not [`Occupancy::Many`](super::Occupancy::Many) (the fold above places its terminal), or
    /// nothing in it was opened.
    pub fn emit(&mut self, fold: usize, sink: &mut impl Sink) {
        let span = self.spans[fold];
        assert!(
            span.opened && span.old_keys == 2,
            "only an opened fold of two old keys places its terminals"
        );
        let mut stack = core::mem::take(&mut self.stack);
        stack.clear();
        let mut at = span.start as usize;
        let end = span.end as usize;
        while at < end {
            let mut last = at;
            while last + 1 < end && self.same_unit(at, last + 1) {
                last += 1;
            }
            let next = if last + 1 < end { Some(self.cpl[last]) } else { None };
            let above = self.above(&stack, next, span.floor);
            self.emit_unit(at, above, sink);
            // Everything deeper than the next boundary is complete.
            while let Some(top) = stack.last().copied() {
                if next.is_some_and(|next| self.cpl[top as usize] < next) {
                    break;
                }
                stack.pop();
                let above = self.above(&stack, next, span.floor);
                self.emit_merge(top, above, sink);
            }
            stack.push(index32(last));
            at = last + 1;
        }
        self.stack = stack;
    }

    fn same_unit(&self, first: usize, other: usize) -> bool {
        let (a, b) = (&self.items[first], &self.items[other]);
        a.opened && b.opened && a.group == b.group
    }

    /// Depth to which the current subtrie climbs: just below the next merge, or the floor.
    fn above(&self, stack: &[u32], next: Option<u16>, floor: u16) -> u16 {
        let left = stack.last().map(|boundary| self.cpl[*boundary as usize]);
        left.max(next).map_or(floor, |cpl| cpl + 1)
    }

    fn emit_unit(&self, first: usize, above: u16, sink: &mut impl Sink) {
        let leader = &self.items[self.items[first].group as usize];
        if !self.items[first].opened {
            return;
        }
        match leader.old {
            Old::Many => sink.fragment(leader.fragment),
            Old::Leaf => {
                sink.leaf(&leader.key, self.values.hash(leader.old_hash), leader.anchor);
            }
            Old::Absent => sink.terminator(&leader.key, leader.anchor),
            Old::HiddenLeaf => unreachable!("a hidden leaf is never opened"),
        }
        debug_assert!(leader.anchor >= above, "a terminal lies below the merge above it");
        for _ in above..leader.anchor {
            sink.sibling(&TERMINATOR);
        }
    }

    fn emit_merge(&self, boundary: u32, above: u16, sink: &mut impl Sink) {
        let merge = &self.merges[boundary as usize];
        if !merge.left_opened && !merge.right_opened {
            return;
        }
        if merge.left_opened != merge.right_opened {
            sink.sibling(&merge.sibling);
        }
        for _ in above..self.cpl[boundary as usize] {
            sink.sibling(&TERMINATOR);
        }
    }
}
