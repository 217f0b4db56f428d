//! The live overlays: what a chain of them says of keys and prefixes.
//!
//! Each overlay is a [`Layer`]: its sorted changes, shared with the block that it was, the nodes that it
//! recorded, and its part of the trie over the keys of all layers below it ([`trie`]). A view has the
//! layers of its [`Chain`], so that reading takes no lock, and a chain of hundreds costs a lookup no more
//! than one overlay does (decision 0028).
//!
//! Invariants:
//! * the layers of a chain have consecutive numbers, and each but the newest has its trie;
//! * nothing of a layer changes once it is there, but that its trie is built, once, and that a
//!   commit takes it;
//! * layers do not hold each other: a layer goes with the last chain that has it.

#[cfg(test)]
mod tests;
mod trie;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use pleach_beatree::Stored;
use pleach_core::{Key, Node, Prefix};

use super::undo::{ChangeList, Changed};
use trie::{LayerNo, Layers, Trie};

/// How many overlays live, and what memory they take.
#[derive(Debug, Default)]
pub(crate) struct Overlays {
    bytes: AtomicUsize,
}

impl Overlays {
    /// Allocated bytes of all live overlays: changes with their values, recorded nodes, tries. Lists that
    /// undo shares count here, too.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The commit that an overlay became part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenBy {
    pub(crate) commit: u64,
    /// Is the commit's state the overlay's own? Of merged overlays it is that of the newest only.
    pub(crate) own: bool,
}

/// What one overlay adds to the state below it.
pub(crate) struct Layer {
    number: LayerNo,
    changes: Vec<ChangeList>,
    /// How many changes are in the lists before each list.
    starts: Vec<usize>,
    /// Nodes of pages and of regions that it changed, each sorted by prefix.
    nodes: [Vec<(Prefix, Node)>; 2],
    trie: OnceLock<Trie>,
    taken: OnceLock<TakenBy>,
    /// Bytes that it takes, without its trie.
    bytes: usize,
    all: Arc<Overlays>,
}

impl Layer {
    /// A layer over a chain. The lists of changes are sorted, each before the next; so are the nodes of
    /// pages and of regions.
    pub(crate) fn new(
        all: &Arc<Overlays>,
        below: &Chain,
        mut changes: Vec<ChangeList>,
        mut nodes: [Vec<(Prefix, Node)>; 2],
    ) -> Arc<Self> {
        changes.retain(|list| !list.is_empty());
        let starts = changes.iter().scan(0, |next, list| {
            let start = *next;
            *next += list.len();
            Some(start)
        });
        let starts: Vec<usize> = starts.collect();
        for nodes in &mut nodes {
            nodes.shrink_to_fit();
            debug_assert!(nodes.is_sorted_by(|a, b| a.0 < b.0), "nodes come in order");
        }
        let of_nodes = nodes.iter().map(|nodes| nodes.capacity() * size_of::<(Prefix, Node)>());
        let heap = |changed: &Changed| changed.new.heap_bytes() + changed.prior.heap_bytes();
        let of_changes = changes.iter().map(|list| {
            list.capacity() * size_of::<Changed>() + list.iter().map(heap).sum::<usize>()
        });
        let bytes = size_of::<Self>() + of_nodes.sum::<usize>() + of_changes.sum::<usize>();
        all.bytes.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(Self {
            number: below.layers.last().map_or(LayerNo::new(0), |below| below.number.next()),
            changes,
            starts,
            nodes,
            trie: OnceLock::new(),
            taken: OnceLock::new(),
            bytes,
            all: Arc::clone(all),
        })
    }

    /// Its changes: lists of which none is empty, in order.
    pub(crate) fn changes(&self) -> &[ChangeList] {
        &self.changes
    }

    /// The commit that it became part of, published or not.
    pub(crate) fn taken(&self) -> Option<TakenBy> {
        self.taken.get().copied()
    }

    /// A commit with a ticket has it. The first one counts: only a layer that changes nothing can be in
    /// two.
    pub(crate) fn take(&self, by: TakenBy) {
        let _ = self.taken.set(by);
    }

    /// Its part of the trie.
    #[inline]
    fn own_trie(&self) -> &Trie {
        self.trie.get().expect("whoever reads it, or stands on it, has made it readable")
    }

    #[inline]
    fn change(&self, at: usize) -> &Changed {
        let list = self.starts.partition_point(|start| *start <= at) - 1;
        &self.changes[list][at - self.starts[list]]
    }

    /// The node that it recorded for a prefix.
    fn recorded(&self, prefix: &Prefix) -> Option<Node> {
        self.nodes.iter().find_map(|nodes| {
            let at = nodes.binary_search_by_key(prefix, |node| node.0).ok()?;
            Some(nodes[at].1)
        })
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        let bytes = self.bytes + self.trie.get().map_or(0, Trie::bytes);
        self.all.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What overlays say of a prefix's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverlayNode {
    /// None of them changed anything below it.
    Unchanged,
    /// The node after the newest of them that did.
    Recorded(Node),
    /// One of them did, and no page or region had this prefix then.
    Unrecorded,
}

/// The overlays over a commit, oldest first. Clones share the list.
#[derive(Clone, Default)]
pub(crate) struct Chain {
    layers: Arc<[Arc<Layer>]>,
    /// Number of the last of them, which each step of a lookup asks for.
    newest: LayerNo,
}

impl Chain {
    /// Is there no overlay?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The chain with a layer over it, which was made for that.
    pub(crate) fn with(&self, layer: &Arc<Layer>) -> Self {
        let layers = self.layers.iter().chain([layer]).cloned().collect();
        Self { layers, newest: layer.number }
    }

    /// What is over the newest commit that is the state of one of these overlays, up to commit
    /// `published`; and the commit.
    pub(crate) fn above_commit(&self, published: u64) -> (Option<u64>, Self) {
        let own = |layer: &Arc<Layer>| {
            let taken = layer.taken().filter(|taken| taken.own && taken.commit <= published);
            taken.map(|taken| taken.commit)
        };
        let newest =
            self.layers.iter().enumerate().rev().find_map(|(at, one)| Some((at, own(one)?)));
        match newest {
            None => (None, self.clone()),
            Some((at, commit)) => {
                (Some(commit), Self { layers: self.layers[at + 1..].into(), newest: self.newest })
            }
        }
    }

    /// Lets the newest layer be read; builds its trie, where nobody did before.
    pub(crate) fn make_readable(&self) {
        let Some((newest, below)) = self.layers.split_last() else { return };
        newest.trie.get_or_init(|| {
            let keys: Vec<&Key> =
                newest.changes.iter().flat_map(|list| list.iter()).map(|one| &one.key).collect();
            let trie =
                Trie::build(below.last().map(|below| below.own_trie()), self, newest.number, &keys);
            newest.all.bytes.fetch_add(trie.bytes(), Ordering::Relaxed);
            trie
        });
    }

    fn newest_trie(&self) -> Option<&Trie> {
        self.layers.last().map(|newest| newest.own_trie())
    }

    /// State of a key in the newest overlay that changed it.
    #[inline]
    pub(crate) fn get(&self, key: &Key) -> Option<&Stored> {
        let (layer, at) = self.newest_trie()?.find(self, key)?;
        Some(&self.layer(layer)?.change(at).new)
    }

    /// Did any of them change anything below a prefix?
    pub(crate) fn changes_below(&self, prefix: &Prefix) -> bool {
        self.newest_trie().is_some_and(|trie| trie.newest_below(self, prefix).is_some())
    }

    /// States of all keys below `prefix` that overlays changed, in order.
    pub(crate) fn visit_below<'a>(
        &'a self,
        prefix: &Prefix,
        mut visit: impl FnMut(&'a Key, &'a Stored),
    ) {
        let Some(trie) = self.newest_trie() else { return };
        trie.visit_below(self, prefix, |layer, at| {
            let layer = self.layer(layer).expect("what is visited is of the chain");
            let changed = layer.change(at);
            visit(&changed.key, &changed.new);
        });
    }

    /// The node of a prefix as the newest overlay that changed anything below it has recorded it.
    pub(crate) fn node(&self, prefix: &Prefix) -> OverlayNode {
        let newest = self.newest_trie().and_then(|trie| trie.newest_below(self, prefix));
        let Some(layer) = newest.and_then(|newest| self.layer(newest)) else {
            return OverlayNode::Unchanged;
        };
        layer.recorded(prefix).map_or(OverlayNode::Unrecorded, OverlayNode::Recorded)
    }

    #[inline]
    fn layer(&self, number: LayerNo) -> Option<&Layer> {
        let above = self.age(number) as usize;
        let at = self.layers.len().checked_sub(above.checked_add(1)?)?;
        Some(&self.layers[at])
    }
}

impl Layers for Chain {
    #[inline]
    fn trie(&self, layer: LayerNo) -> Option<&Trie> {
        self.layer(layer).map(Layer::own_trie)
    }

    #[inline]
    fn key(&self, layer: LayerNo, change: usize) -> &Key {
        &self.layer(layer).expect("the caller has its trie").change(change).key
    }

    #[inline]
    fn age(&self, layer: LayerNo) -> u32 {
        if self.layers.is_empty() { u32::MAX } else { self.newest.above(layer) }
    }
}
