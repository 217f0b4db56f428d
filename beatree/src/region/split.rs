//! A region with more children than a branch page holds becomes several.

use std::ops::Range;

use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::prefix::bit;
use pleach_core::{Hasher, Node};

use super::{Region, RegionState};
use crate::children::{ChildRef, ChildTable};

impl RegionState {
    /// Divides the region into regions of at most [`MAX_ENTRIES`] children each, which get its buffered changes, and
    /// retires it.
    ///
    /// # Panics
    /// When all children are below one half, which is a defect.
    pub fn split(&mut self, hasher: Hasher) -> Vec<Region> {
        let mut done = Vec::new();
        let mut todo = vec![self.take(hasher)];
        while let Some(whole) = todo.pop() {
            if whole.children.len() <= MAX_ENTRIES {
                done.push(Region::from_state(whole));
                continue;
            }
            let depth = whole.depth();
            let at = (0..whole.children.len())
                .position(|child| bit(whole.children.prefix(child).first_key(), depth))
                .expect("a region of many children has some on the right");
            let buffered = whole.buffered();
            let buffered_at = buffered.partition_point(|buffered| !bit(&buffered.key, depth));
            let (buffered, children) = (buffered.len(), whole.children.len());
            todo.push(whole.half(hasher, true, at..children, buffered_at..buffered));
            todo.push(whole.half(hasher, false, 0..at, 0..buffered_at));
        }
        done
    }

    /// Moves out the whole state, for the successors.
    fn take(&mut self, hasher: Hasher) -> Self {
        let nodes = std::mem::take(&mut self.nodes).into_vec();
        self.lines = None;
        self.retire();
        Self {
            buffered: std::mem::take(&mut self.buffered),
            changes_since_write: std::mem::take(&mut self.changes_since_write),
            versions: std::mem::take(&mut self.versions),
            log_position: self.log_position,
            ..Self::new(hasher, self.namespace, self.children.clone(), nodes, self.last_commit)
        }
    }

    fn half(
        &self,
        hasher: Hasher,
        right: bool,
        children: Range<usize>,
        buffered: Range<usize>,
    ) -> Self {
        let prefix = self.children.region().child(right);
        let halves: Vec<ChildRef> =
            children.clone().map(|child| self.children.get(child)).collect();
        let table = ChildTable::new(prefix, &halves);
        let nodes = self.nodes.get(children.clone()).map_or(Vec::new(), <[Node]>::to_vec);
        Self {
            buffered: self.buffered.part(buffered, &prefix),
            changes_since_write: self.changes_since_write[children.clone()].to_vec(),
            versions: self.versions[children].to_vec(),
            log_position: self.log_position,
            ..Self::new(hasher, self.namespace, table, nodes, self.last_commit)
        }
    }
}
