//! The live overlays, and lookups of keys and prefixes in a chain of them.
//!
//! Each overlay is a [`Layer`]. It has a [`LayerPart`] for each namespace that it changes: the sorted changes, shared
//! with the overlay's block, the recorded nodes, and the layer's part of the trie over the keys of all layers below it
//! ([`key_trie`]). A view has the layers of its [`Chain`] as its namespace sees them ([`NamespaceChain`]), so that
//! reading takes no lock, and a lookup in a chain of hundreds costs no more than in one overlay (decision 0028).
//!
//! Invariants:
//! * the layers of a chain have consecutive numbers, and each but the newest has the tries of all its parts;
//! * a layer never changes, except that its tries are built, once, and that a commit takes it;
//! * layers do not hold each other: a layer is freed with the last chain that has it.

mod key_trie;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use pleach_beatree::Stored;
use pleach_core::{Key, Node, Prefix};

use crate::state::undo::changes::{ChangeList, KeyUpdate};
use crate::state::undo::past_node::PastNode;
use key_trie::{KeyTrie, LayerLookup, LayerNo};

/// Number of overlays made, and the memory that the live ones take.
#[derive(Debug, Default)]
pub(crate) struct OverlayCounters {
    bytes: AtomicUsize,
    /// Layers made so far, for their versions.
    made: AtomicU64,
}

impl OverlayCounters {
    /// Bytes of all live overlays: changes with their values, recorded nodes, tries, and lists that undo shares.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The commit that an overlay became part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerCommit {
    pub(crate) number: u64,
    /// True when the commit's state is the overlay's own. Of merged overlays it is that of the newest only.
    pub(crate) is_own_state: bool,
}

/// Set in the versions of pages that overlays have changed.
const OVERLAY: u64 = 1 << 63;

/// What one overlay adds to the state below it.
pub(crate) struct Layer {
    number: LayerNo,
    version: u64,
    /// By namespace, ascending; only namespaces with changes.
    pub(crate) parts: Box<[LayerPart]>,
    commit: OnceLock<LayerCommit>,
    /// Bytes of the layer without its tries.
    bytes: usize,
    all: Arc<OverlayCounters>,
}

/// What one overlay adds to one namespace.
pub(crate) struct LayerPart {
    pub(crate) namespace: u8,
    /// In key order; no list is empty.
    pub(crate) changes: Vec<ChangeList>,
    /// For each list, the number of changes in the lists before it.
    starts: Vec<usize>,
    nodes: [Vec<(Prefix, Node)>; 2],
    trie: OnceLock<KeyTrie>,
}

impl Layer {
    /// A layer over the chain `below`, with its parts in ascending order of namespaces.
    pub(crate) fn new(
        all: &Arc<OverlayCounters>,
        below: &Chain,
        parts: impl Iterator<Item = LayerPart>,
    ) -> Arc<Self> {
        let parts: Box<[LayerPart]> = parts.filter(|part| !part.changes.is_empty()).collect();
        assert!(parts.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
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

    /// The version of pages that this layer was the last to change. Commits have other versions.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Bytes of the layer with its tries.
    pub(crate) fn bytes(&self) -> usize {
        let tries = self.parts.iter().filter_map(|part| part.trie.get());
        self.bytes + tries.map(KeyTrie::bytes).sum::<usize>()
    }

    /// The layer's changes in a namespace: lists in key order, none of them empty.
    pub(crate) fn changes(&self, namespace: u8) -> &[ChangeList] {
        self.part(namespace).map_or(&[], |part| &part.changes)
    }

    /// The layer's part for a namespace.
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

    /// The commit that the overlay became part of, published or not.
    pub(crate) fn commit(&self) -> Option<LayerCommit> {
        self.commit.get().copied()
    }

    /// Sets the commit that takes the overlay, when it has its ticket. The caller holds the sequencer's lock, and no
    /// commit has taken it before.
    pub(crate) fn set_commit(&self, commit: LayerCommit) {
        let taken = self.commit.set(commit);
        assert!(taken.is_ok(), "an overlay is in one commit");
    }
}

impl LayerPart {
    /// Lists of changes in key order, and the nodes of changed pages and of changed regions, each sorted by prefix.
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
            assert!(nodes.is_sorted_by(|a, b| a.0 < b.0), "nodes come in order");
        }
        Self { namespace, changes, starts, nodes, trie: OnceLock::new() }
    }

    /// Bytes of the part without its trie.
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

    /// The part's own trie.
    #[inline]
    fn own_trie(&self) -> &KeyTrie {
        self.trie.get().expect("whoever reads it, or stands on it, has made it readable")
    }

    #[inline]
    fn change(&self, at: usize) -> &KeyUpdate {
        let list = self.starts.partition_point(|start| *start <= at) - 1;
        &self.changes[list][at - self.starts[list]]
    }

    /// The node recorded for a prefix.
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
    /// Number of the newest layer, which each step of a lookup needs.
    newest: LayerNo,
}

impl Chain {
    /// The chain with `layer` over it, which was made over this chain.
    pub(crate) fn with_layer(&self, layer: &Arc<Layer>) -> Self {
        let layers = self.layers.iter().chain([layer]).cloned().collect();
        Self { layers, newest: layer.number }
    }

    /// The newest commit up to `published` that is the state of one of these overlays, and the chain above that one.
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

    /// Builds the tries of the newest layer, in all namespaces, unless they are built, so that the layer can be read.
    /// All at once: a trie covers the layers that are not committed when it is built, and later readers read the layer
    /// over no more than these.
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
    /// The whole chain, whatever its layers change.
    pub(crate) fn chain(&self) -> &Chain {
        &self.chain
    }

    /// True when no overlay of the chain changes the namespace.
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

    /// The version of a page with this prefix, set by the newest overlay that changed anything below it.
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

    /// The node of a prefix as recorded by the newest overlay that changed anything below it.
    pub(crate) fn node(&self, prefix: &Prefix) -> PastNode {
        let newest = self.newest_trie().and_then(|trie| trie.newest_below(self, prefix));
        let Some(part) = newest.and_then(|newest| self.part(newest)) else {
            return PastNode::Unchanged;
        };
        part.recorded(prefix).map_or(PastNode::Unrecorded, PastNode::Recorded)
    }

    /// The layer of this number; `None` when it is not in the chain.
    #[inline]
    fn layer(&self, number: LayerNo) -> Option<&Layer> {
        let above = self.age(number) as usize;
        let at = self.chain.layers.len().checked_sub(above.checked_add(1)?)?;
        Some(&self.chain.layers[at])
    }

    /// The part of a layer for the namespace.
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
