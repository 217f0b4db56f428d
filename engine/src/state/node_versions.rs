//! What the nodes of prefixes were before the commits that changed them, and the nodes inside of pages.
//!
//! A commit says what it replaced for the pages, or regions, of the layout that it was published in
//! ([`super::replaced`]). Flushes change layouts, so a prefix may not have been a page's when a commit changed a
//! key below it: then the commit has replaced the node of a finer or a coarser prefix, and that of this one is
//! not known. [`then`] tells both from a prefix that nothing has changed below. Each prefix has a list of what
//! commits replaced there ([`super::steps`]); prefixes are in order, in shards by their first bits.
//!
//! Used by [`super::undo_maps`] alone, with one of these for pages and one for regions.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use pleach_beatree::older::OlderSearch;
use pleach_core::{Node, Prefix, cpu_prefetch};

use super::replaced::{ReplacedList, ReplacedNode};
use super::slabs::Slabs;
use super::steps::Steps;
use super::versions::shard;

/// What is known of a prefix's node as of an older commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeThen {
    /// No later commit has changed a key below it.
    Unchanged,
    /// It was this.
    Recorded(Node),
    /// A later commit has changed a key below it, and no page or region had this prefix then.
    Unrecorded,
}

impl NodeThen {
    /// The node, where it was recorded.
    pub(crate) fn recorded(self) -> Option<Node> {
        match self {
            Self::Recorded(node) => Some(node),
            Self::Unchanged | Self::Unrecorded => None,
        }
    }
}

type Shard = RwLock<BTreeMap<Prefix, Steps>>;

/// Prefixes of a range that are looked up together.
const TOGETHER: usize = 16;
/// Bytes of an entry: the nodes of a B-tree are between half and entirely full.
const ENTRY: usize = size_of::<(Prefix, Steps)>() * 3 / 2;

/// Nodes by prefix and commit.
pub(super) struct NodeVersions {
    shards: OnceLock<Box<[Shard]>>,
    /// Locked before a shard, or without one. A commit's nodes come before its steps, and go after them.
    slabs: RwLock<Slabs>,
    /// Leading bits that a shard is named by.
    bits: u32,
    bytes: AtomicUsize,
    /// The newest commit that replaced a node at each depth; 0 for none.
    depths: Box<[AtomicU64]>,
}

impl NodeVersions {
    /// Nodes whose map is cut by the first `bits` bits of their prefixes, at most 16.
    pub(super) fn new(bits: u32) -> Self {
        let depths = (0..=256).map(|_| AtomicU64::new(0)).collect();
        let (shards, slabs) = (OnceLock::new(), RwLock::default());
        Self { shards, slabs, bits, bytes: AtomicUsize::new(0), depths }
    }

    fn shard(&self, prefix: &Prefix) -> usize {
        shard(self.bits, prefix.first_key())
    }

    /// Bytes that it takes: lists exactly, the tree's nodes as they are on average.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Puts in what commit `number`, later than all that are in, has replaced.
    pub(super) fn insert(&self, number: u64, replaced: &ReplacedList) {
        let all = || (0..1_usize << self.bits).map(|_| RwLock::default()).collect();
        let shards = self.shards.get_or_init(all);
        if replaced.heads().is_empty() {
            return;
        }
        let pushed = self.slabs.write().push(number, replaced.nodes());
        let Some((list, mut bytes)) = pushed else { return };
        let mut left = replaced.heads();
        while let Some(at) = left.first().map(|head| self.shard(&head.prefix)) {
            let end = left.partition_point(|head| self.shard(&head.prefix) == at);
            let (own, rest) = left.split_at(end);
            left = rest;
            let mut map = shards[at].write();
            let entries = map.len();
            for some in own.chunks(TOGETHER) {
                // The waits for memory overlap.
                some.iter()
                    .filter_map(|head| map.get(&head.prefix))
                    .for_each(Steps::cpu_prefetch_end);
                for head in some {
                    self.depths[usize::from(head.prefix.len())]
                        .fetch_max(number, Ordering::Release);
                    let steps = map.entry(head.prefix).or_default();
                    let had = steps.bytes();
                    steps.push(list, head);
                    bytes += steps.bytes() - had;
                }
            }
            bytes += (map.len() - entries) * ENTRY;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The nodes of all commits, for [`Self::inside`].
    pub(super) fn slabs(&self) -> RwLockReadGuard<'_, Slabs> {
        self.slabs.read()
    }

    /// What commits after `base` have replaced below `prefix` and, above it, for a prefix that contains
    /// it: of each prefix the oldest.
    pub(super) fn below(&self, prefix: &Prefix, base: u64, found: &mut Vec<ReplacedNode>) {
        let Some(shards) = self.shards.get() else { return };
        let slabs = self.slabs();
        let before = slabs.through(base);
        let mut see = |prefix: &Prefix, own: Option<(u64, &Node)>| {
            found.extend(own.map(|(number, node)| ReplacedNode {
                prefix: *prefix,
                number,
                node: *node,
            }));
        };
        for depth in 0..prefix.len() {
            if self.depths[usize::from(depth)].load(Ordering::Acquire) > base {
                let above = Prefix::new(prefix.first_key(), depth);
                if let Some(steps) = shards[self.shard(&above)].read().get(&above) {
                    see(&above, steps.own(before, &slabs));
                }
            }
        }
        let last = Prefix::new(&prefix.last_key(), 256);
        for map in &shards[self.shard(prefix)..=self.shard(&last)] {
            let map = map.read();
            let all = map.range(*prefix..=last);
            let mut all = all.filter(|(_, steps)| steps.is_after(before, &slabs));
            // Some at a time, so that their waits for memory overlap.
            let mut some: [Option<(&Prefix, &Steps)>; TOGETHER] = [None; TOGETHER];
            loop {
                let mut count = 0;
                for (to, one) in some.iter_mut().zip(&mut all) {
                    one.1.cpu_prefetch(before, &slabs);
                    *to = Some(one);
                    count += 1;
                }
                if count == 0 {
                    break;
                }
                let mut nodes = [None; TOGETHER];
                for (own, (_, steps)) in nodes.iter_mut().zip(some[..count].iter().flatten()) {
                    *own = steps.own(before, &slabs);
                    cpu_prefetch(own.map_or(&[], |(_, node)| std::slice::from_ref(node)));
                }
                for ((prefix, _), own) in some[..count].iter().flatten().zip(nodes) {
                    see(prefix, own);
                }
            }
        }
    }

    /// What commits after `base` say of the nodes that some pages, in order, had inside as of `base`.
    pub(super) fn inside<'a>(
        &self,
        prefixes: &[Prefix],
        base: u64,
        slabs: &'a Slabs,
        searches: &mut [OlderSearch<'a>],
    ) {
        let Some(shards) = self.shards.get() else { return };
        let (before, mut from) = (slabs.through(base), 0);
        while from < prefixes.len() {
            let at = self.shard(&prefixes[from]);
            let is_here = |prefix: &&Prefix| self.shard(prefix) == at;
            let count = prefixes[from..].iter().take(TOGETHER).take_while(is_here).count();
            let map = shards[at].read();
            let mut some: [Option<&Steps>; TOGETHER] = [None; TOGETHER];
            // Most of a region's pages: to go from one to the next costs less than to look each up.
            let mut all = map.range(prefixes[from]..).peekable();
            for (to, prefix) in some.iter_mut().zip(&prefixes[from..][..count]) {
                while all.next_if(|(one, _)| *one < prefix).is_some() {}
                *to = all.next_if(|(one, _)| *one == prefix).map(|(_, steps)| steps);
                for steps in to.iter() {
                    steps.cpu_prefetch_after(before, slabs);
                }
            }
            for (steps, search) in some[..count].iter().zip(&mut searches[from..]) {
                if let Some(steps) = steps {
                    steps.inside(before, slabs, search);
                }
            }
            from += count;
        }
    }

    /// Keeps what a proof as of `base` has found out of the insides of pages, each with the last commit that had the
    /// page so since; if all `is_there` that this takes. That is asked under the lock: a sweep, before which the
    /// answer changes, takes no step out before it has the lock, so the first step after `base` is the one that it was.
    pub(super) fn learn<'a>(
        &self,
        base: u64,
        is_there: impl Fn() -> bool,
        learned: impl Iterator<Item = (&'a Prefix, u64, &'a [(u8, Node)])>,
    ) {
        let Some(shards) = self.shards.get() else { return };
        // A sweep holds it for long, and who waits to write keeps out all readers: better to learn it another time.
        let Some(mut slabs) = self.slabs.try_write() else { return };
        if !is_there() {
            return;
        }
        let before = slabs.through(base);
        for (prefix, last, nodes) in learned {
            if let Some(steps) = shards[self.shard(prefix)].read().get(prefix) {
                steps.learn(before..slabs.through(last), &mut slabs, nodes);
            }
        }
    }

    /// Drops what the commits through `floor` have replaced.
    pub(super) fn drop_through(&self, floor: u64) {
        let mut left = 0;
        // See `learn`.
        let slabs = self.slabs();
        let before = slabs.through(floor);
        for map in self.shards.get().into_iter().flatten() {
            let mut map = map.write();
            map.retain(|_, steps| steps.drop_before(before, &slabs));
            left += map.values().map(|steps| ENTRY + steps.bytes()).sum::<usize>();
        }
        drop(slabs);
        let mut slabs = self.slabs.write();
        slabs.drop_through(floor);
        left += slabs.bytes();
        drop(slabs);
        // Nobody puts a commit in meanwhile.
        self.bytes.store(left, Ordering::Relaxed);
    }

    /// Drops all.
    pub(super) fn clear(&self) {
        for map in self.shards.get().into_iter().flatten() {
            let gone = std::mem::take(&mut *map.write());
            drop(gone);
        }
        let gone = std::mem::take(&mut *self.slabs.write());
        drop(gone);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// What the nodes that were replaced in and around it say of one prefix.
pub(super) fn then(prefix: &Prefix, around: &[ReplacedNode]) -> NodeThen {
    let own = around.iter().filter(|one| one.prefix == *prefix).min_by_key(|one| one.number);
    let others = around.iter().filter(|one| {
        one.prefix != *prefix && (one.prefix.contains(prefix) || prefix.contains(&one.prefix))
    });
    let other = others.map(|one| one.number).min();
    match (own, other) {
        (None, None) => NodeThen::Unchanged,
        (Some(own), None) => NodeThen::Recorded(own.node),
        // The prefix was a page's when the oldest of them came.
        (Some(own), Some(other)) if own.number < other => NodeThen::Recorded(own.node),
        _ => NodeThen::Unrecorded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> Node {
        Node::new([number; 32])
    }

    fn list(nodes: &[(Prefix, u8)]) -> ReplacedList {
        let mut list = ReplacedList::default();
        for (prefix, number) in nodes {
            list.push(*prefix, node(*number));
        }
        list
    }

    fn asked(versions: &NodeVersions, prefix: Prefix, base: u64) -> NodeThen {
        let mut around = Vec::new();
        versions.below(&prefix, base, &mut around);
        then(&prefix, &around)
    }

    #[test]
    fn a_node_is_known_only_while_its_prefix_was_a_pages() {
        use NodeThen::{Recorded, Unchanged, Unrecorded};
        let root = Prefix::ROOT;
        let (left, right) = (root.child(false), root.child(true));
        let versions = NodeVersions::new(9);
        // Commits 1 and 2 find one page, 3 and 4 two, 5 one again.
        versions.insert(1, &list(&[(root, 0)]));
        versions.insert(2, &list(&[(root, 1)]));
        versions.insert(3, &list(&[(left, 2)]));
        versions.insert(4, &list(&[(left, 3), (right, 3)]));
        versions.insert(5, &list(&[(root, 4)]));
        let as_of = |prefix| (0..=5).map(|base| asked(&versions, prefix, base)).collect::<Vec<_>>();
        let known = |number| Recorded(node(number));
        assert_eq!(as_of(root), [known(0), known(1), Unrecorded, Unrecorded, known(4), Unchanged]);
        assert_eq!(
            as_of(left),
            [Unrecorded, Unrecorded, known(2), known(3), Unrecorded, Unchanged]
        );
        assert_eq!(
            as_of(right),
            [Unrecorded, Unrecorded, known(3), known(3), Unrecorded, Unchanged]
        );
        versions.drop_through(4);
        assert_eq!((asked(&versions, root, 4), asked(&versions, root, 5)), (known(4), Unchanged));
    }
}
