//! What a session reads of one namespace: a commit, and the overlays over it.
//!
//! A session has one pin, and a view for each namespace that it is asked for ([`View::of`]).
//!
//! Undo is asked last, and may have been dropped under the reader: whoever has looked something up asks
//! [`View::check`] before it believes what was found.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use pleach_beatree::leaf_fold::{KeyAccess, PendingChange};
use pleach_beatree::older::{BUCKET_LEVELS, FoundNodes, OlderNodes, bucket_of, has_buckets};
use pleach_beatree::{ChildTable, RegionState, Stored};
use pleach_core::{Key, Node, Prefix};

use super::last_changes::LastSeen;
use super::node_versions::{NodeThen, then};
use super::overlays::{Chain, Overlaid, OverlayNode};
use super::pins::{Holder, PinId};
use super::replaced::ReplacedNode;
use super::undo::Undo;
use crate::error::Result;

/// A namespace of a state: that of the commit `base` (pinned while this lives) under a chain of overlays.
pub(crate) struct View {
    pub(crate) base: u64,
    pub(crate) namespace: u8,
    overlays: Overlaid,
    undo: Arc<Undo>,
    seen: LastSeen,
    pin: Arc<Pinned>,
}

/// A pin, which goes with the last view that has it.
struct Pinned {
    id: PinId,
    undo: Arc<Undo>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.undo.unpin(self.id);
    }
}

impl View {
    /// A view of namespace 0 as of the commit that the pin `id` holds, which goes with the view.
    pub(super) fn new(id: PinId, overlays: &Chain, undo: Arc<Undo>) -> Self {
        overlays.make_readable();
        let pin = Arc::new(Pinned { id, undo: Arc::clone(&undo) });
        let (overlays, seen) = (overlays.of(0), LastSeen::default());
        Self { base: id.0, namespace: 0, overlays, undo, seen, pin }
    }

    /// A view of another namespace of the same state, under the same pin.
    pub(crate) fn of(&self, namespace: u8) -> Self {
        Self {
            base: self.base,
            namespace,
            overlays: self.overlays.chain().of(namespace),
            undo: Arc::clone(&self.undo),
            seen: LastSeen::default(),
            pin: Arc::clone(&self.pin),
        }
    }

    /// Says what holds the view from now on, for [`crate::Db::pins`].
    pub(crate) fn held_by(&self, holder: Holder, label: Option<Arc<str>>) {
        self.undo.set_holder(self.pin.id, holder, label);
    }

    /// The overlays over the commit.
    pub(crate) fn overlays(&self) -> &Chain {
        self.overlays.chain()
    }

    /// Is it that of the commit alone, since no overlay changes the namespace?
    pub(crate) fn is_committed(&self) -> bool {
        self.overlays.is_empty()
    }

    /// Is what the view needs of undo still there? What was looked up before is right only then.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.undo.check(self.base)
    }

    /// The state of a key in the overlays; they are asked first.
    pub(crate) fn overlaid(&self, key: &Key) -> Option<Stored> {
        self.overlays.get(key).cloned()
    }

    /// What the overlays have recorded as the node of a prefix.
    pub(crate) fn node(&self, prefix: &Prefix) -> OverlayNode {
        self.overlays.node(prefix)
    }

    /// The state of a key that a later commit changed. What this finds is the answer, whatever the present says; it
    /// is asked after the present was.
    #[inline]
    pub(crate) fn undone(&self, key: &Key) -> Result<Option<Stored>> {
        if self.undo.newest() <= self.base {
            return Ok(None);
        }
        let undone = self.undo.get(self.namespace, key, self.base, &self.seen);
        self.check()?;
        Ok(undone)
    }

    /// Prefetches the memory that [`Self::undone`] begins with.
    #[inline]
    pub(crate) fn cpu_prefetch_undone(&self, key: &Key) {
        if self.undo.newest() > self.base {
            self.undo.cpu_prefetch(self.namespace, key, &self.seen);
        }
    }

    /// All keys that commits after the view's have changed, and what they had; in order.
    pub(crate) fn undone_all(&self) -> Result<Vec<(Key, Stored)>> {
        let all = self.undone_below(&Prefix::ROOT);
        self.check()?;
        Ok(all)
    }

    /// Has anything below the region changed against the pages and pending changes in it?
    pub(crate) fn differs(&self, state: &RegionState) -> bool {
        state.last_commit() > self.base || self.overlays.changes_below(state.children().region())
    }

    /// What the view says below a prefix beyond pages and pending changes: undo of later commits, then
    /// overlays over it. Sorted. The caller holds the region, and asks [`Self::check`] afterwards.
    pub(crate) fn changes(&self, prefix: &Prefix, state: &RegionState) -> BTreeMap<Key, Stored> {
        let behind = state.last_commit() > self.base;
        let undone = if behind { self.undone_below(prefix) } else { Vec::new() };
        self.overlaid_over(prefix, undone)
    }

    /// All that the view says below `prefix` beyond pages and pending changes, whatever these are by now.
    pub(crate) fn over_the_present(&self, prefix: &Prefix) -> Result<BTreeMap<Key, Stored>> {
        let undone = self.undone_below(prefix);
        self.check()?;
        Ok(self.overlaid_over(prefix, undone))
    }

    fn overlaid_over(&self, prefix: &Prefix, undone: Vec<(Key, Stored)>) -> BTreeMap<Key, Stored> {
        let mut changes: BTreeMap<Key, Stored> = undone.into_iter().collect();
        self.overlays.visit_below(prefix, |key, stored| {
            changes.insert(*key, stored.clone());
        });
        changes
    }

    /// Puts what the overlays say below a prefix over the changes that are there from `from` on.
    pub(crate) fn put_overlays(
        &self,
        prefix: &Prefix,
        below: &mut Vec<PendingChange>,
        from: usize,
    ) {
        let mut changes = Vec::new();
        self.overlays.visit_below(prefix, |key, stored| changes.push((*key, stored.clone())));
        if !changes.is_empty() {
            put_over(below, from, changes.into_iter());
        }
    }

    /// Is there a history, so that commits say which nodes they replace?
    pub(crate) fn keeps_history(&self) -> bool {
        self.undo.keeps_history()
    }

    /// The node of a region's prefix in the view's commit, where that commit is behind the region's last.
    pub(crate) fn region_then(&self, prefix: &Prefix) -> NodeThen {
        if !self.undo.keeps_history() {
            return NodeThen::Unrecorded;
        }
        then(prefix, &self.undo.region_nodes(self.namespace, prefix, self.base))
    }

    /// What undo says of a region beyond its pages and pending changes; of the insides of pages that are accessed
    /// it goes into `insides`: children, in order, with the accesses below each. The caller holds the region.
    pub(crate) fn region<'a>(
        &self,
        state: &RegionState,
        accessed: impl Iterator<Item = (usize, &'a [KeyAccess])>,
        insides: &mut Insides,
    ) -> RegionThen<'_> {
        let region = *state.children().region();
        let behind = state.last_commit() > self.base;
        let history = behind && self.undo.keeps_history();
        let nodes = history.then(|| {
            let replaced = self.undo.page_nodes(self.namespace, &region, self.base);
            pages_then(state.children(), &replaced)
        });
        let next = insides.pages.len();
        if let Some(nodes) = &nodes {
            self.look_inside(state, nodes, accessed, insides);
        }
        RegionThen {
            view: self,
            behind,
            undone: (behind && !history).then(|| self.undone_below(&region).into_iter().collect()),
            nodes,
            next,
        }
    }

    /// Looks up what later commits recorded of the nodes inside of pages, and the keys that these ask for.
    fn look_inside<'a>(
        &self,
        state: &RegionState,
        nodes: &[ChildThen],
        accessed: impl Iterator<Item = (usize, &'a [KeyAccess])>,
        insides: &mut Insides,
    ) {
        let (mut children, mut prefixes, mut buckets) = (Vec::new(), Vec::new(), Vec::new());
        for (child, accesses) in accessed {
            // Where pages were laid out anew, what was recorded of others says nothing of this one.
            let ChildThen { node, same_layout } = nodes[child];
            if same_layout && matches!(node, NodeThen::Recorded(_)) {
                let prefix = state.children().prefix(child);
                if has_buckets(&prefix) {
                    let of = accesses.iter().map(|access| bucket_of(&prefix, &access.key));
                    children.push(child);
                    prefixes.push(prefix);
                    buckets.push(of.fold(0, |mask, bucket| mask | 1 << bucket));
                }
            }
        }
        let Insides { pages, nodes, keys } = insides;
        let found = self.undo.inside(self.namespace, &prefixes, &buckets, self.base, nodes);
        let (mut ranges, mut of) = (Vec::with_capacity(2 * found.len()), Vec::new());
        for ((child, prefix), found) in children.into_iter().zip(prefixes).zip(found) {
            let then = found.with(nodes);
            push_ranges(&prefix, then.asked(), &mut ranges);
            of.resize(ranges.len(), pages.len());
            pages.push(PageThen { child, found, keys: 0..0 });
        }
        self.undo.ranges(self.namespace, &ranges, self.base, |range, key, stored| {
            let of_page = &mut pages[of[range]].keys;
            if of_page.end == 0 {
                *of_page = keys.len()..keys.len();
            }
            of_page.end += 1;
            keys.push((*key, stored.clone()));
        });
    }

    /// Keeps what a fold has found out of the insides of some pages: see [`Undo::learn`].
    pub(crate) fn learn<'a>(
        &self,
        learned: impl Iterator<Item = (&'a Prefix, u64, &'a [(u8, Node)])>,
    ) {
        self.undo.learn(self.namespace, self.base, learned);
    }

    /// What commits after the view's have changed below a prefix, and what it was. Sorted. To be checked afterwards.
    pub(crate) fn undone_below(&self, prefix: &Prefix) -> Vec<(Key, Stored)> {
        let mut undone = Vec::new();
        self.undo.below(self.namespace, prefix, self.base, &mut undone);
        undone
    }
}

/// A region in a view: see [`View::region`].
pub(crate) struct RegionThen<'a> {
    view: &'a View,
    /// Have later commits changed the region?
    behind: bool,
    /// What later commits have changed in it, where they did not record nodes.
    undone: Option<BTreeMap<Key, Stored>>,
    /// Its children, where later commits recorded what they replaced.
    nodes: Option<Vec<ChildThen>>,
    /// The next of the pages whose insides are known.
    next: usize,
}

/// What later commits say of a child.
#[derive(Clone, Copy)]
struct ChildThen {
    node: NodeThen,
    /// Had all of them this layout here?
    same_layout: bool,
}

/// What they say of the insides of pages of some regions, and what keys had that these pages ask for.
#[derive(Default)]
pub(crate) struct Insides {
    pages: Vec<PageThen>,
    nodes: Vec<Node>,
    keys: Vec<(Key, Stored)>,
}

struct PageThen {
    child: usize,
    found: FoundNodes,
    /// Where its keys are in the list of all.
    keys: Range<usize>,
}

impl Insides {
    /// Forgets all, and keeps memory for as much as a chunk of a proof mostly asks for.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.nodes.clear();
        self.nodes.shrink_to(Self::KEPT);
        self.keys.clear();
        self.keys.shrink_to(Self::KEPT);
    }

    /// Nodes, and keys, whose memory is kept.
    const KEPT: usize = 8192;

    /// A page by its number: its nodes, and what the keys had that they ask for.
    pub(crate) fn page(&self, number: usize) -> (OlderNodes<'_>, &[(Key, Stored)]) {
        let PageThen { found, keys, .. } = &self.pages[number];
        (found.with(&self.nodes), &self.keys[keys.clone()])
    }
}

impl RegionThen<'_> {
    /// The node of a child, which has this prefix, in the view's commit.
    pub(crate) fn node(&self, child: usize, prefix: &Prefix) -> NodeThen {
        match (&self.nodes, &self.undone) {
            (Some(nodes), _) => nodes[child].node,
            (None, Some(undone)) => {
                let mut changed = undone.range(*prefix.first_key()..=prefix.last_key());
                if changed.next().is_some() { NodeThen::Unrecorded } else { NodeThen::Unchanged }
            }
            (None, None) => NodeThen::Unchanged,
        }
    }

    /// The number of a child, if the inside of it is known; children in order.
    pub(crate) fn inside(&mut self, child: usize, insides: &Insides) -> Option<usize> {
        let pages = &insides.pages[self.next..];
        self.next += pages.iter().take_while(|page| page.child < child).count();
        insides.pages.get(self.next).filter(|page| page.child == child).map(|_| self.next)
    }

    /// What later commits have replaced below a prefix. Sorted.
    pub(crate) fn undone(&self, prefix: &Prefix) -> Vec<(Key, Stored)> {
        match &self.undone {
            Some(undone) => undone
                .range(*prefix.first_key()..=prefix.last_key())
                .map(|(key, stored)| (*key, stored.clone()))
                .collect(),
            None if self.behind => self.view.undone_below(prefix),
            None => Vec::new(),
        }
    }
}

/// Adds the ranges of keys of these buckets of a page: neighbours are one.
fn push_ranges(prefix: &Prefix, mut asked: u32, ranges: &mut Vec<RangeInclusive<Key>>) {
    let bucket = |bucket: u32| prefix.descendant(BUCKET_LEVELS, bucket.to_le_bytes()[0]);
    while asked != 0 {
        let first = asked.trailing_zeros();
        let count = (!(asked >> first)).trailing_zeros();
        ranges.push(*bucket(first).first_key()..=bucket(first + count - 1).last_key());
        asked &= u32::MAX.checked_shl(first + count).unwrap_or(0);
    }
}

/// What the nodes that were replaced in and around a region say of each of its children: as
/// [`then`] for one prefix, in one pass.
fn pages_then(children: &ChildTable, replaced: &[ReplacedNode]) -> Vec<ChildThen> {
    let region = children.region();
    let mut own: Vec<Option<(u64, Node)>> = vec![None; children.len()];
    let mut other = vec![u64::MAX; children.len()];
    // Most of them are the children, in order.
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
    let then = own.into_iter().zip(other).map(|(own, relaid)| {
        let same_layout = relaid == u64::MAX;
        let node = match own {
            Some((number, node)) if number < relaid => NodeThen::Recorded(node),
            None if same_layout => NodeThen::Unchanged,
            _ => NodeThen::Unrecorded,
        };
        ChildThen { node, same_layout }
    });
    then.collect()
}

/// Puts `changes` over those that are there from `from` on, both sorted; of two for one key the newer wins.
pub(crate) fn put_over(
    below: &mut Vec<PendingChange>,
    from: usize,
    changes: impl Iterator<Item = (Key, Stored)>,
) {
    if below.len() == from {
        return below.extend(changes);
    }
    let older: Vec<PendingChange> = below.drain(from..).collect();
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
