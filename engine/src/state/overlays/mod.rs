//! The live overlays: what a chain of them says of keys and prefixes.
//!
//! Each overlay is a [`Layer`]. It has a [`LayerPart`] for each namespace that it changes: its sorted changes, shared
//! with the block that it was, the nodes that it recorded, and its part of the trie over the keys of all
//! layers below it ([`key_trie`]). A view has the layers of its [`Chain`] as its namespace sees them ([`NamespaceChain`]), so
//! that reading takes no lock, and a chain of hundreds costs a lookup no more than one overlay does
//! (decision 0028).
//!
//! Invariants:
//! * the layers of a chain have consecutive numbers, and each but the newest has the tries of all its parts;
//! * nothing of a layer changes once it is there, but that its tries are built, once, and that a
//!   commit takes it;
//! * layers do not hold each other: a layer goes with the last chain that has it.

mod key_trie;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use pleach_beatree::Stored;
use pleach_core::{Key, Node, Prefix};

use crate::state::history::past_node::PastNode;
use crate::state::history::undo::{ChangeList, KeyUpdate};
use key_trie::{KeyTrie, LayerLookup, LayerNo};

/// How many overlays live, and what memory they take.
#[derive(Debug, Default)]
pub(crate) struct Overlays {
    bytes: AtomicUsize,
    /// Layers that were made.
    made: AtomicU64,
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
pub(crate) struct LayerCommit {
    pub(crate) number: u64,
    /// Is the commit's state the overlay's own? Of merged overlays it is that of the newest only.
    pub(crate) is_own_state: bool,
}

/// Versions of pages that overlays have changed have this bit.
const OVERLAY: u64 = 1 << 63;

/// What one overlay adds to the state below it.
pub(crate) struct Layer {
    number: LayerNo,
    version: u64,
    /// By namespace, ascending; none of them without changes.
    pub(crate) parts: Box<[LayerPart]>,
    commit: OnceLock<LayerCommit>,
    /// Bytes that it takes, without its tries.
    bytes: usize,
    all: Arc<Overlays>,
}

/// What one overlay adds to one namespace.
pub(crate) struct LayerPart {
    pub(crate) namespace: u8,
    /// Lists of which none is empty, in order.
    pub(crate) changes: Vec<ChangeList>,
    /// How many changes are in the lists before each list.
    starts: Vec<usize>,
    nodes: [Vec<(Prefix, Node)>; 2],
    trie: OnceLock<KeyTrie>,
}

impl Layer {
    /// A layer over a chain, with what it says of each namespace, ascending.
    pub(crate) fn new(
        all: &Arc<Overlays>,
        below: &Chain,
        parts: impl Iterator<Item = LayerPart>,
    ) -> Arc<Self> {
        let parts: Box<[LayerPart]> = parts.filter(|part| !part.changes.is_empty()).collect();
        debug_assert!(parts.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
        let bytes = size_of::<Self>() + parts.iter().map(LayerPart::bytes).sum::<usize>();
        all.bytes.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(Self {
            version: OVERLAY | all.made.fetch_add(1, Ordering::Relaxed),
            number: below.layers.last().map_or(LayerNo::new(0), |below| below.number.next()),
            parts,
            commit: OnceLock::new(),
            bytes,
            all: Arc::clone(all),
        })
    }

    /// The version of the pages that it is the last to change. Commits have other numbers.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Bytes that it takes, its tries included.
    pub(crate) fn bytes(&self) -> usize {
        let tries = self.parts.iter().filter_map(|part| part.trie.get());
        self.bytes + tries.map(KeyTrie::bytes).sum::<usize>()
    }

    /// Its changes in a namespace: lists of which none is empty, in order.
    pub(crate) fn changes(&self, namespace: u8) -> &[ChangeList] {
        self.part(namespace).map_or(&[], |part| &part.changes)
    }

    /// What it says of a namespace.
    #[inline]
    fn part(&self, namespace: u8) -> Option<&LayerPart> {
        match &*self.parts {
            [one] => (one.namespace == namespace).then_some(one),
            parts => {
                let at = parts.binary_search_by_key(&namespace, |part| part.namespace).ok()?;
                Some(&parts[at])
            }
        }
    }

    /// The commit that it became part of, published or not.
    pub(crate) fn commit(&self) -> Option<LayerCommit> {
        self.commit.get().copied()
    }

    /// A commit with a ticket has it. The caller holds the sequencer's lock, under which none had.
    pub(crate) fn set_commit(&self, commit: LayerCommit) {
        let taken = self.commit.set(commit);
        debug_assert!(taken.is_ok(), "an overlay is in one commit");
    }
}

impl LayerPart {
    /// Sorted lists of changes, each before the next; and nodes of pages and of regions that the overlay changed, each sorted by
    /// prefix.
    pub(crate) fn new(
        namespace: u8,
        mut changes: Vec<ChangeList>,
        mut nodes: [Vec<(Prefix, Node)>; 2],
    ) -> Self {
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
        Self { namespace, changes, starts, nodes, trie: OnceLock::new() }
    }

    /// Bytes that it takes, without its trie.
    fn bytes(&self) -> usize {
        let of_nodes =
            self.nodes.iter().map(|nodes| nodes.capacity() * size_of::<(Prefix, Node)>());
        let heap = |changed: &KeyUpdate| changed.new.heap_bytes() + changed.prior.heap_bytes();
        let of_changes = self
            .changes
            .iter()
            .map(|list| list.len() * size_of::<KeyUpdate>() + list.iter().map(heap).sum::<usize>());
        size_of::<Self>() + of_nodes.sum::<usize>() + of_changes.sum::<usize>()
    }

    /// Its part of the trie.
    #[inline]
    fn own_trie(&self) -> &KeyTrie {
        self.trie.get().expect("whoever reads it, or stands on it, has made it readable")
    }

    #[inline]
    fn change(&self, at: usize) -> &KeyUpdate {
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
        self.all.bytes.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// The overlays over a commit, oldest first. Clones share the list.
#[derive(Clone, Default)]
pub(crate) struct Chain {
    layers: Arc<[Arc<Layer>]>,
    /// Number of the last of them, which each step of a lookup asks for.
    newest: LayerNo,
}

impl Chain {
    /// The chain with a layer over it, which was made for that.
    pub(crate) fn with_layer(&self, layer: &Arc<Layer>) -> Self {
        let layers = self.layers.iter().chain([layer]).cloned().collect();
        Self { layers, newest: layer.number }
    }

    /// What is over the newest commit that is the state of one of these overlays, up to commit
    /// `published`; and the commit.
    pub(crate) fn above_commit(&self, published: u64) -> (Option<u64>, Self) {
        let own = |layer: &Arc<Layer>| {
            let taken =
                layer.commit().filter(|taken| taken.is_own_state && taken.number <= published);
            taken.map(|taken| taken.number)
        };
        let newest =
            self.layers.iter().enumerate().rev().find_map(|(at, one)| Some((at, own(one)?)));
        let Some((at, commit)) = newest else { return (None, self.clone()) };
        (Some(commit), Self { layers: self.layers[at + 1..].into(), newest: self.newest })
    }

    /// Lets the newest layer be read in all namespaces; builds its tries, where nobody did before. All at
    /// once: a trie is over those layers that are not committed when it is built, and whoever reads the
    /// layer later reads it over no more than these.
    pub(crate) fn build_tries(&self) {
        let Some((newest, below)) = self.layers.split_last() else { return };
        for part in &newest.parts {
            part.trie.get_or_init(|| {
                let keys: Vec<&Key> =
                    part.changes.iter().flat_map(|list| list.iter()).map(|one| &one.key).collect();
                let below = below.iter().rev().find_map(|layer| layer.part(part.namespace));
                let all = self.for_namespace(part.namespace);
                let trie =
                    KeyTrie::build(below.map(LayerPart::own_trie), &all, newest.number, &keys);
                newest.all.bytes.fetch_add(trie.bytes(), Ordering::Relaxed);
                trie
            });
        }
    }

    /// The overlays as a namespace sees them.
    pub(crate) fn for_namespace(&self, namespace: u8) -> NamespaceChain {
        let newest = self.layers.iter().rposition(|layer| layer.part(namespace).is_some());
        NamespaceChain { chain: self.clone(), namespace, newest }
    }
}

/// The overlays over a commit, as one namespace sees them.
pub(crate) struct NamespaceChain {
    chain: Chain,
    namespace: u8,
    /// The newest layer that changes the namespace.
    newest: Option<usize>,
}

impl NamespaceChain {
    /// All of them, whatever they change.
    pub(crate) fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Does none of them change the namespace?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    #[inline]
    fn newest_trie(&self) -> Option<&KeyTrie> {
        self.chain.layers[self.newest?].part(self.namespace).map(LayerPart::own_trie)
    }

    /// State of a key in the newest overlay that changed it.
    #[inline]
    pub(crate) fn get(&self, key: &Key) -> Option<&Stored> {
        let (layer, at) = self.newest_trie()?.find(self, key)?;
        Some(&self.part(layer)?.change(at).new)
    }

    /// The version of a page with this prefix that the newest overlay which changed anything below it has left.
    pub(crate) fn version(&self, prefix: &Prefix) -> Option<u64> {
        let newest = self.newest_trie()?.newest_below(self, prefix)?;
        self.layer(newest).map(|layer| layer.version)
    }

    /// States of all keys below `prefix` that overlays changed, in order.
    pub(crate) fn visit_below<'a>(
        &'a self,
        prefix: &Prefix,
        mut visit: impl FnMut(&'a Key, &'a Stored),
    ) {
        let Some(trie) = self.newest_trie() else { return };
        trie.visit_below(self, prefix, |layer, at| {
            let part = self.part(layer).expect("what is visited is of the chain");
            let changed = part.change(at);
            visit(&changed.key, &changed.new);
        });
    }

    /// The node of a prefix as the newest overlay that changed anything below it has recorded it.
    pub(crate) fn node(&self, prefix: &Prefix) -> PastNode {
        let newest = self.newest_trie().and_then(|trie| trie.newest_below(self, prefix));
        let Some(part) = newest.and_then(|newest| self.part(newest)) else {
            return PastNode::Unchanged;
        };
        part.recorded(prefix).map_or(PastNode::Unrecorded, PastNode::Recorded)
    }

    /// The layer of this number; `None` when it is not of the chain.
    #[inline]
    fn layer(&self, number: LayerNo) -> Option<&Layer> {
        let above = self.age(number) as usize;
        let at = self.chain.layers.len().checked_sub(above.checked_add(1)?)?;
        Some(&self.chain.layers[at])
    }

    /// What it says of the namespace.
    #[inline]
    fn part(&self, number: LayerNo) -> Option<&LayerPart> {
        self.layer(number)?.part(self.namespace)
    }
}

impl LayerLookup for NamespaceChain {
    #[inline]
    fn trie(&self, layer: LayerNo) -> Option<&KeyTrie> {
        self.part(layer).map(LayerPart::own_trie)
    }

    #[inline]
    fn key(&self, layer: LayerNo, change: usize) -> &Key {
        &self.part(layer).expect("the caller has its trie").change(change).key
    }

    #[inline]
    fn age(&self, layer: LayerNo) -> u32 {
        let Chain { layers, newest } = &self.chain;
        if layers.is_empty() { u32::MAX } else { newest.layers_above(layer) }
    }
}
