//! Chains beside a map for each: keys, prefixes, nodes; with forks, with lower layers committed, and with
//! layers that change some namespaces and leave others as they are.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use pleach_beatree::{Stored, Value};
use pleach_core::{Hasher, Key, Node, Prefix};

use super::key_trie::{KeyTrie, LayerLookup, LayerNo};
use super::{Chain, Layer, LayerCommit, LayerPart, NamespaceChain, OverlayCounters};
use crate::state::undo::changes::KeyUpdate;
use crate::state::undo::past_node::PastNode;

/// A generator like any other: the next number below a bound.
fn draw(seed: &mut u64, bound: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % bound
}

/// Keys that share much and keys that share little.
fn key(seed: &mut u64, ids: u64) -> Key {
    let id = draw(seed, ids).to_be_bytes();
    let mut key = [0x5a; 32];
    match id[7] % 3 {
        0 => key[24..].copy_from_slice(&id),
        1 => key[..2].copy_from_slice(&id[6..]),
        _ => key[13] = id[7],
    }
    key
}

/// Namespaces that layers change, each with others.
const NAMESPACES: [u8; 3] = [0, 7, 255];

/// A layer and its expected lookups: the state of each key and the layer that changed it, for this layer and all below.
#[derive(Clone)]
struct Model {
    chain: Chain,
    layer: Option<Arc<Layer>>,
    /// By namespace and key: number of the layer in the whole tree, and the state.
    keys: BTreeMap<(u8, Key), (u64, Stored)>,
    nodes: BTreeMap<(u64, u8, Prefix), Node>,
}

impl Model {
    fn empty() -> Self {
        let (keys, nodes) = (BTreeMap::new(), BTreeMap::new());
        Self { chain: Chain::default(), layer: None, keys, nodes }
    }
}

fn over(
    parent: &Model,
    all: &Arc<OverlayCounters>,
    seed: &mut u64,
    number: u64,
    ids: u64,
) -> Model {
    let mut model = parent.clone();
    let mut said = Vec::new();
    for namespace in NAMESPACES {
        if draw(seed, 3) == 0 {
            continue;
        }
        let count = draw(seed, 30);
        let changes: BTreeMap<Key, Stored> = (0..count)
            .map(|_| {
                let absent = draw(seed, 4) == 0;
                let value = [number, namespace.into()].map(u64::to_be_bytes).concat();
                let value = Stored::Inline(Value::from(&value[..]));
                (key(seed, ids), if absent { Stored::Absent } else { value })
            })
            .collect();
        let mut nodes = BTreeMap::new();
        for (key, stored) in &changes {
            model.keys.insert((namespace, *key), (number, stored.clone()));
            let prefix = Prefix::new(key, u16::try_from(draw(seed, 257)).expect("small"));
            nodes.insert(prefix, Node::new([u8::try_from(number % 251).expect("small"); 32]));
        }
        for (prefix, node) in &nodes {
            model.nodes.insert((number, namespace, *prefix), *node);
        }
        let changed = |(key, new)| KeyUpdate { key, new, prior: Stored::Absent };
        let list: Vec<KeyUpdate> = changes.into_iter().map(changed).collect();
        let changes = list.chunks(7).map(|part| part.to_vec().into()).collect();
        said.push(LayerPart::new(namespace, changes, [nodes.into_iter().collect(), Vec::new()]));
    }
    let layer = Layer::new(all, &parent.chain, said.into_iter());
    model.chain = parent.chain.with_layer(&layer);
    model.chain.build_tries();
    model.layer = Some(layer);
    model
}

fn check(model: &Model, seed: &mut u64, ids: u64) {
    for namespace in NAMESPACES {
        let overlaid = model.chain.for_namespace(namespace);
        let any = model.keys.keys().any(|(of, _)| *of == namespace);
        assert!(!any || !overlaid.is_empty());
        for _ in 0..10 {
            let key = key(seed, ids);
            let expected = model.keys.get(&(namespace, key)).map(|(_, stored)| stored);
            assert_eq!(overlaid.get(&key), expected, "{namespace}: {key:02x?}");
            let prefix = Prefix::new(&key, u16::try_from(draw(seed, 257)).expect("small"));
            let ends = (namespace, *prefix.first_key())..=(namespace, prefix.last_key());
            let range = || model.keys.range(ends.clone());
            let mut found = Vec::new();
            overlaid.visit_below(&prefix, |key, stored| found.push((*key, stored.clone())));
            let expected: Vec<_> =
                range().map(|((_, key), (_, stored))| (*key, stored.clone())).collect();
            assert_eq!(found, expected, "{namespace}: {prefix:?}");
            let newest = range().map(|(_, (number, _))| *number).max();
            let node = newest.map_or(PastNode::Unchanged, |number| {
                let node = model.nodes.get(&(number, namespace, prefix));
                node.map_or(PastNode::Unrecorded, |node| PastNode::Recorded(*node))
            });
            assert_eq!(overlaid.node(&prefix), node, "{namespace}: {prefix:?}");
            assert_eq!(overlaid.version(&prefix).is_some(), newest.is_some());
        }
    }
}

#[test]
fn chains_and_forks_say_what_their_maps_say() {
    for mut seed in 0..20 {
        let all = Arc::<OverlayCounters>::default();
        let ids = [20, 300, 60_000][(seed % 3) as usize];
        let base = Model::empty();
        let mut models = vec![base];
        for number in 1..80 {
            let newest = models.len() as u64;
            let at = draw(&mut seed, newest).max(draw(&mut seed, newest));
            let parent = models[usize::try_from(at).expect("small")].clone();
            let made = over(&parent, &all, &mut seed, number, ids);
            check(&made, &mut seed, ids);
            models.push(made);
        }
        // Newer layers do not change the lookups of older chains.
        for model in &models {
            check(model, &mut seed, ids);
        }
        drop(models);
        assert_eq!(all.bytes(), 0);
    }
}

/// A pipeline: the oldest layer of a window is committed when a new one comes. Committed layers are not seen any more,
/// and are freed with the handles that have them.
#[test]
fn what_is_committed_is_seen_no_more() {
    let (window, ids) = (7, 300);
    let all = Arc::<OverlayCounters>::default();
    let mut seed = 5;
    let base = Model::empty();
    let mut held = vec![base];
    let mut most = 0;
    for number in 1..200_u64 {
        // As in a session, the view has only layers that are not committed.
        let mut parent = held.last().expect("never empty").clone();
        let committed = number.saturating_sub(window + 1);
        let (commit, above) = parent.chain.above_commit(committed);
        assert_eq!(commit, Some(committed).filter(|committed| *committed > 0));
        parent.chain = above;
        parent.keys.retain(|_, (by, _)| *by > committed);
        check(&parent, &mut seed, ids);
        let made = over(&parent, &all, &mut seed, number, ids);
        check(&made, &mut seed, ids);
        made.layer
            .as_ref()
            .expect("it has one")
            .set_commit(LayerCommit { number, is_own_state: true });
        held.push(made);
        if held.len() > usize::try_from(window).expect("small") {
            held.remove(0);
        }
        if number == 50 {
            most = all.bytes();
        }
        assert!(most == 0 || all.bytes() < 2 * most, "{number}: {} bytes", all.bytes());
    }
}

/// A chain that counts how often a lookup reads a layer's memory: once for each branch and each leaf.
struct Counted<'a>(&'a NamespaceChain, Cell<u32>);

impl LayerLookup for Counted<'_> {
    fn trie(&self, layer: LayerNo) -> Option<&KeyTrie> {
        self.1.set(self.1.get() + 1);
        self.0.trie(layer)
    }

    fn key(&self, layer: LayerNo, change: usize) -> &Key {
        self.0.key(layer, change)
    }

    fn age(&self, layer: LayerNo) -> u32 {
        self.0.age(layer)
    }
}

/// Keys spread evenly in layers of 1,000.
fn chain_of(layers: u64, all: &Arc<OverlayCounters>) -> Chain {
    let mut chain = Chain::default();
    for layer in 0..layers {
        let keys: std::collections::BTreeSet<Key> =
            (0..1000).map(|id| Hasher::BLAKE3.hash(&(1000 * layer + id).to_be_bytes())).collect();
        let changes = keys.into_iter().map(|key| KeyUpdate {
            key,
            new: Stored::Absent,
            prior: Stored::Absent,
        });
        let changes = vec![changes.collect()];
        let said = LayerPart::new(0, changes, Default::default());
        let layer = Layer::new(all, &chain, std::iter::once(said));
        chain = chain.with_layer(&layer);
        chain.build_tries();
    }
    chain
}

/// What a lookup reads over 128 layers: 128,000 keys in 16^4 subtrees, 2 in each on average. A lookup reads the four
/// branches above the subtrees, and rarely more where it finds nothing.
#[test]
fn a_lookup_reads_few_branches_and_mostly_none_in_vain() {
    let all = Arc::<OverlayCounters>::default();
    let chain = chain_of(128, &all).for_namespace(0);
    let newest = chain.newest_trie().expect("it is readable");
    let steps = |from: u64, there: bool| {
        let counted = Counted(&chain, Cell::new(0));
        for id in from..from + 10_000 {
            let found = newest.find(&counted, &Hasher::BLAKE3.hash(&id.to_be_bytes()));
            assert_eq!(found.is_some(), there, "{id}");
        }
        f64::from(counted.1.get()) / 10_000.0
    };
    let absent = steps(1 << 32, false);
    assert!((4.0..4.3).contains(&absent), "{absent} steps to find nothing");
    let present = steps(0, true);
    assert!((5.0..6.0).contains(&present), "{present} steps to a change");
}

/// What a layer's trie takes, beside the changes.
#[test]
fn a_layer_takes_memory_for_its_own_changes() {
    let all = Arc::<OverlayCounters>::default();
    let chain = chain_of(64, &all).for_namespace(0);
    let newest = chain.newest_trie().expect("it is readable");
    assert!(newest.bytes() < 150 * 1000, "{} bytes for 1,000 changes", newest.bytes());
}

/// Numbers of layers come round after the last one.
#[test]
fn layers_are_numbered_round() {
    let all = Arc::<OverlayCounters>::default();
    let (mut seed, ids) = (9, 300);
    let base = Model::empty();
    let mut model = over(&base, &all, &mut seed, 1, ids);
    let first = model.layer.take().expect("it has one");
    let mut first = Arc::into_inner({
        model.chain = Chain::default();
        first
    })
    .expect("held once");
    first.number = LayerNo::new(u32::MAX - 2);
    for part in &mut first.parts {
        part.trie = std::sync::OnceLock::new();
    }
    model.chain = Chain::default().with_layer(&Arc::new(first));
    model.chain.build_tries();
    for number in 2..8 {
        model = over(&model, &all, &mut seed, number, ids);
        check(&model, &mut seed, ids);
    }
}
