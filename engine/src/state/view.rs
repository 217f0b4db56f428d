//! What a session reads of one namespace: a commit, and the overlays over it.
//!
//! A session has one pin, and a view for each namespace that it reads ([`View::for_namespace`]). A reader looks in
//! overlays first and in undo last; undo that is only on the device is read by the calling thread.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use arc_swap::Guard;
use parking_lot::Mutex;
use pleach_beatree::leaf_fold::KeyState;
use pleach_beatree::{ChildTable, RegionState, Stored};
use pleach_core::{Key, Node, Prefix};
use pleach_io::ProcessBound;

use super::overlays::{Chain, NamespaceChain};
use super::undo::past_node::{PastNode, past_node};
use super::undo::pins::PinId;
use super::undo::{Undo, UndoSet};
use crate::error::Result;
use crate::handles::Holder;
use pleach_history::{AsOf, NodeScope, NodesAround, ReplacedNode, Tier};

/// A namespace of a state: of commit `base`, which is pinned while this lives, under a chain of overlays.
pub(crate) struct View {
    pub(crate) base: u64,
    pub(crate) namespace: u8,
    overlays: NamespaceChain,
    /// Nodes of regions in this state that were looked up in undo or folded: they stay what they are, and each lookup
    /// asks all runs of the history.
    past_nodes: Mutex<HashMap<Prefix, Node>>,
    undo: Arc<Undo>,
    pin: Arc<ProcessBound<PinGuard>>,
}

/// A state of a namespace, and its root or digest.
#[derive(Clone, Copy)]
pub(crate) struct RootedView<'a> {
    pub(crate) view: &'a View,
    pub(crate) root: &'a Node,
}

/// Releases the pin when the last view that shares it is dropped.
struct PinGuard {
    id: PinId,
    undo: Arc<Undo>,
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        self.undo.unpin(self.id);
    }
}

impl View {
    /// A view of namespace 0 as of the commit of pin `id`, which the view releases.
    pub(super) fn new(id: PinId, overlays: &Chain, undo: Arc<Undo>) -> Self {
        overlays.build_tries();
        let pin = Arc::new(ProcessBound::new(PinGuard { id, undo: Arc::clone(&undo) }));
        let overlays = overlays.for_namespace(0);
        Self { base: id.0, namespace: 0, overlays, past_nodes: Mutex::default(), undo, pin }
    }

    /// A view of another namespace of the same state, under the same pin.
    pub(crate) fn for_namespace(&self, namespace: u8) -> Self {
        Self {
            base: self.base,
            namespace,
            overlays: self.overlays.chain().for_namespace(namespace),
            past_nodes: Mutex::default(),
            undo: Arc::clone(&self.undo),
            pin: Arc::clone(&self.pin),
        }
    }

    /// Records what holds the view from now on, for [`crate::Db::pins`].
    pub(crate) fn set_holder(&self, holder: Holder, label: Option<Arc<str>>) {
        self.undo.set_holder(self.pin.id, holder, label);
    }

    /// The overlays over the commit.
    pub(crate) fn overlays(&self) -> &Chain {
        self.overlays.chain()
    }

    /// True when no overlay changes the namespace, so that the view is of the commit alone.
    pub(crate) fn is_committed(&self) -> bool {
        self.overlays.is_empty()
    }

    /// Refuses a view that cannot be read any more. Called after a lookup in a dropped trie without undo: that trie is
    /// reclaimed once no readable state has it.
    #[inline]
    pub(crate) fn check_readable(&self) -> Result<()> {
        if self.undo.newest() > self.base { self.undo_set().map(drop) } else { Ok(()) }
    }

    /// The undo of commits after the view's.
    ///
    /// # Errors
    /// [`SnapshotTooOld`](crate::Error::SnapshotTooOld).
    #[inline]
    fn undo_set(&self) -> Result<Guard<Arc<UndoSet>>> {
        self.undo.load_since(self.base)
    }

    fn as_of(&self) -> AsOf {
        AsOf { namespace: self.namespace, base: self.base }
    }

    /// The state of a key in the overlays, which readers ask first.
    pub(crate) fn overlay_value(&self, key: &Key) -> Option<Stored> {
        self.overlays.get(key).cloned()
    }

    /// What the overlays recorded as the node of a prefix.
    pub(crate) fn overlay_node(&self, prefix: &Prefix) -> PastNode {
        self.overlays.node(prefix)
    }

    /// The version of a page with this prefix, if overlays changed anything below it.
    pub(crate) fn overlay_version(&self, prefix: &Prefix) -> Option<u64> {
        self.overlays.version(prefix)
    }

    /// The state of a key as of the view's commit, if a later commit changed it. It overrides what the present index
    /// has; the caller reads the index before.
    #[inline]
    pub(crate) fn undo_value(&self, key: &Key) -> Result<Option<Stored>> {
        if self.undo.newest() <= self.base {
            return Ok(None);
        }
        let found = self.undo_set()?.after(self.base).version(self.as_of(), key)?;
        Ok(found.map(|(_, prior)| prior))
    }

    /// True when undo or overlays change anything below the region, against its pages and buffered changes.
    pub(crate) fn has_changes(&self, state: &RegionState) -> bool {
        state.last_commit() > self.base || self.overlay_version(state.children().region()).is_some()
    }

    /// What the view has below a prefix beyond pages and buffered changes: undo of later commits, then overlays over
    /// it. Sorted. The caller holds the region.
    pub(crate) fn changes_below(&self, at: &Prefix, state: &RegionState) -> Result<Vec<KeyState>> {
        let behind = state.last_commit() > self.base;
        let undone = if behind { self.undo_below(at)? } else { Vec::new() };
        Ok(self.merge_overlays(&undone, &[*at]))
    }

    /// Undo and overlays below `prefix`, whatever pages and buffered changes are by now.
    pub(crate) fn all_changes_below(&self, prefix: &Prefix) -> Result<Vec<KeyState>> {
        Ok(self.merge_overlays(&self.undo_below(prefix)?, &[*prefix]))
    }

    /// Sorted changes `older`, and over them what the overlays have below these prefixes, which ascend.
    pub(crate) fn merge_overlays(&self, older: &[KeyState], below: &[Prefix]) -> Vec<KeyState> {
        let (mut changes, mut all) = (Vec::new(), older.to_vec());
        for prefix in below {
            self.overlays.visit_below(prefix, |key, stored| changes.push((*key, stored.clone())));
        }
        merge_changes(&mut all, 0, changes.into_iter());
        all
    }

    /// The node of a prefix in this state, if it was kept ([`Self::keep_past_node`]).
    pub(crate) fn kept_past_node(&self, prefix: &Prefix) -> Option<Node> {
        self.past_nodes.lock().get(prefix).copied()
    }

    /// Keeps the node of a prefix in this state, which later commits have changed, for the next proof.
    pub(crate) fn keep_past_node(&self, prefix: &Prefix, node: Node) {
        self.past_nodes.lock().insert(*prefix, node);
    }

    /// The node of a region's prefix in the view's commit, which is older than the region's last commit.
    pub(crate) fn past_region_node(&self, prefix: &Prefix) -> Result<PastNode> {
        if !self.undo.has_history() {
            return Ok(PastNode::Unrecorded);
        }
        let past = self.undo_set()?;
        let replaced = past.after(self.base).nodes(self.as_of(), NodeScope::Regions, prefix)?;
        Ok(past_node(prefix, replaced.as_ref()))
    }

    /// A region in the view's commit, from the undo of later commits: each child's node, and the undo below children
    /// whose node is not recorded, or that are `asked` for. The caller holds the region.
    pub(crate) fn past_region(
        &self,
        state: &RegionState,
        asked: impl Fn(usize, &Prefix) -> bool,
    ) -> Result<PastRegion> {
        let children = state.children();
        if state.last_commit() <= self.base {
            let nodes = vec![PastNode::Unchanged; children.len()];
            return Ok(PastRegion { nodes, undo: Vec::new() });
        }
        if !self.undo.has_history() {
            let undone = self.undo_below(children.region())?;
            let mut nodes = vec![PastNode::Unchanged; children.len()];
            for (key, _) in &undone {
                nodes[children.find(key)] = PastNode::Unrecorded;
            }
            return Ok(PastRegion { nodes, undo: undone });
        }
        let past = self.undo_set()?;
        let mut nodes = vec![PastNode::Unchanged; children.len()];
        // The oldest record of a child's node is its node in the view's commit.
        let mut from = self.as_of();
        while let Some(NodesAround { nodes: replaced, last_commit }) =
            past.after(from.base).nodes(from, NodeScope::Pages, children.region())?
        {
            from.base = last_commit;
            let then = past_child_nodes(children, &replaced);
            for (node, then) in nodes.iter_mut().zip(then) {
                *node = node.or_else(|| then);
            }
            if !nodes.contains(&PastNode::Unchanged) {
                break;
            }
        }
        let ranges = nodes.iter().enumerate().filter_map(|(child, node)| {
            let prefix = children.prefix(child);
            let is_wanted = match node {
                PastNode::Unchanged => false,
                PastNode::Recorded(_) => asked(child, &prefix),
                PastNode::Unrecorded => true,
            };
            is_wanted.then(|| *prefix.first_key()..=prefix.last_key())
        });
        let ranges: Vec<RangeInclusive<Key>> = ranges.collect();
        let undo = past.after(self.base).values(self.as_of(), &ranges)?;
        Ok(PastRegion { nodes, undo })
    }

    /// The keys below a prefix that commits after the view's changed, with their states before. Sorted.
    fn undo_below(&self, prefix: &Prefix) -> Result<Vec<(Key, Stored)>> {
        let below = *prefix.first_key()..=prefix.last_key();
        Ok(self.undo_set()?.after(self.base).values(self.as_of(), &[below])?)
    }
}

/// A region in a view's commit: see [`View::past_region`].
pub(crate) struct PastRegion {
    nodes: Vec<PastNode>,
    /// In order.
    undo: Vec<(Key, Stored)>,
}

impl PastRegion {
    /// The node of a child in the view's commit.
    pub(crate) fn node(&self, child: usize) -> PastNode {
        self.nodes[child]
    }

    /// The keys below a prefix that later commits changed, with their states in the view's commit.
    pub(crate) fn undo_below(&self, prefix: &Prefix) -> impl Iterator<Item = (Key, Stored)> {
        let from = self.undo.partition_point(|(key, _)| key < prefix.first_key());
        let below = self.undo[from..].iter().take_while(|(key, _)| prefix.covers(key));
        below.cloned()
    }
}

/// What the nodes replaced in and around a region say of each of its children: [`past_node`] for each, in one pass.
fn past_child_nodes(children: &ChildTable, replaced: &[ReplacedNode]) -> Vec<PastNode> {
    let region = children.region();
    let mut own: Vec<Option<(u64, Node)>> = vec![None; children.len()];
    let mut other = vec![u64::MAX; children.len()];
    // Most of the replaced nodes are of the children, in order.
    let mut next = 0;
    for ReplacedNode { prefix, number, node } in replaced {
        let is_next = next < children.len() && children.prefix(next) == *prefix;
        let (first, last) = if is_next {
            (next, next)
        } else if region.contains(prefix) {
            (children.find(prefix.first_key()), children.find(&prefix.last_key()))
        } else {
            (0, children.len() - 1)
        };
        next = last + 1;
        if is_next || first == last && children.prefix(first) == *prefix {
            let own = &mut own[first];
            if own.is_none_or(|(before, _)| *number < before) {
                *own = Some((*number, *node));
            }
        } else {
            for other in &mut other[first..=last] {
                *other = (*other).min(*number);
            }
        }
    }
    let then = own.into_iter().zip(other).map(|(own, relaid)| match own {
        Some((number, node)) if number < relaid => PastNode::Recorded(node),
        None if relaid == u64::MAX => PastNode::Unchanged,
        _ => PastNode::Unrecorded,
    });
    then.collect()
}

/// Merges `changes` into `below` from index `from` on, both sorted; a change replaces an older one of its key.
pub fn merge_changes(
    below: &mut Vec<KeyState>,
    from: usize,
    changes: impl Iterator<Item = (Key, Stored)>,
) {
    if below.len() == from {
        return below.extend(changes);
    }
    let older: Vec<KeyState> = below.drain(from..).collect();
    let mut older = older.into_iter().peekable();
    for (key, stored) in changes {
        while let Some(smaller) = older.next_if(|change| change.0 < key) {
            below.push(smaller);
        }
        older.next_if(|change| change.0 == key);
        below.push((key, stored));
    }
    below.extend(older);
}
