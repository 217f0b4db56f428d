//! Two neighbouring regions that have few children become one.

use pleach_core::Hasher;

use super::{Region, RegionState};
use crate::children::{ChildRef, ChildTable};

impl RegionState {
    /// The region over this one and its sibling on the right, with the children and the buffered changes of both, as of
    /// the log record that ends at `log_position`. Both are retired.
    ///
    /// # Panics
    /// When they are not siblings, or records come out of order.
    pub fn join(&mut self, hasher: Hasher, right: &mut Self, log_position: u64) -> Region {
        self.assert_next_record(log_position);
        right.assert_next_record(log_position);
        let prefix = self.children.region().parent().expect("a region with a sibling");
        assert_eq!(
            (*self.children.region(), *right.children.region()),
            (prefix.child(false), prefix.child(true)),
            "siblings are joined"
        );
        let children: Vec<ChildRef> = self.children.iter().chain(right.children.iter()).collect();
        let table = ChildTable::new(prefix, &children);
        let nodes = [&*self.nodes, &*right.nodes].concat();
        self.retire();
        right.retire();
        let mut counts = std::mem::take(&mut self.changes_since_write);
        counts.append(&mut right.changes_since_write);
        let mut versions = std::mem::take(&mut self.versions);
        versions.append(&mut right.versions);
        let buffered = super::buffered::BufferedChanges::joined(
            &mut self.buffered,
            &mut right.buffered,
            prefix.len(),
        );
        // The commit that one side applied last changed nothing on the other.
        let last_commit = self.last_commit.max(right.last_commit);
        Region::from_state(Self {
            buffered,
            changes_since_write: counts,
            versions,
            log_position,
            ..Self::new(hasher, self.namespace, table, nodes, last_commit)
        })
    }
}
