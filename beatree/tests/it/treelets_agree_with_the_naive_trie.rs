//! A treelet that follows commit after commit says of every position what the slow trie says, and
//! the folds that lean on it give the root of the slow trie.

use std::collections::BTreeMap;

use pleach_beatree::build::{CellRef, PageStamp, Unfolded, fold_pages, write_page};
use pleach_beatree::leaf_fold::{KeyAccess, PageState, PendingChange, fold_leaf, fold_path_block};
use pleach_beatree::older::{
    BUCKET_LEVELS, BUCKETS, GROUP_LEVELS, GROUPS, OlderNodes, Said, bucket_of, groups_of,
};
use pleach_beatree::treelet::capture_levels;
use pleach_beatree::treelet::{LEVELS, PartialTreelet, Treelet};
use pleach_beatree::{Stored, Value};
use pleach_core::fold::path_blocks::PathBlocks;
use pleach_core::fold::{BatchFolder, Occupancy, Sink, heap_below, heap_index};
use pleach_core::naive::Naive;
use pleach_core::node::{NodeKind, kind};
use pleach_core::page::leaf::LeafView;
use pleach_core::page::{FileKind, Identity, Page};
use pleach_core::{Blake3, Hasher, Key, Node, Prefix, ValueHash};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

type State = BTreeMap<Key, Vec<u8>>;

fn cases(default: u64) -> u64 {
    std::env::var("PLEACH_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn below(rng: &mut ChaCha8Rng, bound: u32) -> u32 {
    rng.next_u32() % bound
}

/// A key below `at`; few bits after it differ when `narrow`, so that subtries fill and empty.
fn key(at: &Prefix, narrow: bool, rng: &mut ChaCha8Rng) -> Key {
    let mut key = [0; 32];
    if narrow {
        for _ in 0..3 {
            let depth = at.len() + u16::try_from(below(rng, 7)).unwrap();
            let depth = usize::from(depth.min(255));
            key[depth / 8] |= 0x80 >> (depth % 8);
        }
    } else {
        rng.fill_bytes(&mut key);
    }
    let keep = usize::from(at.len());
    for bit in 0..keep {
        let mask = 0x80 >> (bit % 8);
        key[bit / 8] = key[bit / 8] & !mask | at.first_key()[bit / 8] & mask;
    }
    key
}

fn naive(state: &State) -> Naive {
    state.iter().map(|(key, value)| (*key, Blake3::hash(value).into())).collect()
}

/// The page that holds a state.
fn page_of(at: &Prefix, state: &State) -> Box<Page> {
    let cells: Vec<CellRef<'_>> = state
        .iter()
        .map(|(key, value)| CellRef { key: *key, bytes: value, overflow: false })
        .collect();
    let mut folder = BatchFolder::<Blake3>::new();
    let unfolded = [Unfolded { prefix: *at, cells: &cells, known: None }];
    let nodes = fold_pages(&mut folder, &unfolded);
    let mut page = Box::new([0; 4096]);
    let identity = Identity { kind: FileKind::Leaf, page_no: 7, db_id: 1 };
    let stamp = PageStamp { identity, flush: 1, namespace: 0, through: 0 };
    write_page(&mut page, &stamp, at, &cells, &nodes[0].stored);
    page
}

/// Every position that may be read has the slow trie's node.
fn check(treelet: &Treelet, trie: &Naive, at: &Prefix, level: u8, bits: u8) {
    let known = treelet.node(heap_index(level, bits));
    if let Some(node) = known {
        assert_eq!(*node, trie.node::<Blake3>(at), "level {level}, bits {bits:b}");
        if kind(node) != NodeKind::Internal {
            return;
        }
    }
    if level < LEVELS {
        check(treelet, trie, &at.child(false), level + 1, bits << 1);
        check(treelet, trie, &at.child(true), level + 1, bits << 1 | 1);
    }
}

/// The part of a treelet for a key: nothing but what the treelet has, and all of it around the key.
fn partial(treelet: &Treelet, at: &Prefix, key: &Key) -> PartialTreelet {
    let bucket = (0..LEVELS).fold(0, |bucket, level| {
        let depth = at.len() + u16::from(level);
        bucket << 1 | u8::from(depth < 256 && pleach_core::prefix::bit(key, depth))
    });
    let mut partial = PartialTreelet::empty();
    partial.set(&Treelet::empty(), 0);
    partial.set(treelet, bucket);
    for level in 0..=LEVELS {
        let own = bucket >> (LEVELS - level);
        for bits in 0..1 << level {
            let index = heap_index(level, bits);
            let got = partial.known().node(index);
            assert!(got.is_none() || got == treelet.node(index));
            if bits == own || bits == own ^ 1 {
                assert_eq!(got, treelet.node(index), "level {level}, bits {bits:b}");
            }
        }
    }
    partial
}

/// What a fold has emitted.
#[derive(Debug, Default, PartialEq)]
struct Emitted(Vec<(Option<ValueHash>, Key, u16)>, Vec<Node>);

impl Sink for Emitted {
    fn leaf(&mut self, key: &Key, value_hash: &ValueHash, depth: u16) {
        self.0.push((Some(*value_hash), *key, depth));
    }

    fn terminator(&mut self, key: &Key, depth: u16) {
        self.0.push((None, *Prefix::new(key, depth).first_key(), depth));
    }

    fn sibling(&mut self, node: &Node) {
        self.1.push(*node);
    }

    fn fragment(&mut self, _: u32) {
        unreachable!("a page has no folds below it");
    }
}

/// Folds the same page as a path block, where that can be done: node, what is captured, emitted, and
/// which accesses are the first of their terminals. The number of items says what it cost.
type Tiled = (Node, Vec<(u8, Node)>, Emitted, Vec<bool>, usize);

fn tiled(page: &PageState<'_>, accesses: &[KeyAccess]) -> Option<Tiled> {
    let (mut folder, mut blocks) = (BatchFolder::<Blake3>::new(), PathBlocks::<Blake3>::default());
    let mut results = Vec::new();
    // Two of them: what one leaves must not show in the other.
    fold_path_block(&mut folder, &mut blocks, page, accesses, &mut results)?;
    let block = fold_path_block(&mut folder, &mut blocks, page, accesses, &mut results)?;
    assert_eq!(results.len(), 2 * accesses.len());
    folder.run();
    blocks.run(&folder);
    let mut captured = Vec::new();
    blocks.computed(block, |index, node| captured.push((index, *node)));
    for (bucket, fold) in blocks.buckets(block) {
        let own = folder.captured().iter().filter(|one| one.fold as usize == fold);
        captured.extend(own.map(|one| (heap_below(bucket, one.index), one.node)));
    }
    let firsts =
        blocks.buckets(block).flat_map(|(_, fold)| folder.first_of_terminal(fold)).collect();
    let mut emitted = Emitted::default();
    blocks.emit(block, page.at.len(), &mut folder, &mut emitted);
    Some((*blocks.node(block), captured, emitted, firsts, folder.len() / 2))
}

fn accesses(at: &Prefix, narrow: bool, state: &State, rng: &mut ChaCha8Rng) -> Vec<KeyAccess> {
    let mut accesses = BTreeMap::new();
    for _ in 0..=below(rng, 5) {
        let own = state.keys().nth(below(rng, 64) as usize);
        let key = own.filter(|_| below(rng, 2) == 0).copied();
        let key = key.unwrap_or_else(|| self::key(at, narrow, rng));
        let writes = match below(rng, 6) {
            0 => None,
            1 | 2 => Some(Stored::Absent),
            _ => Some(Stored::Inline(Value::from(&rng.next_u64().to_le_bytes()))),
        };
        accesses.insert(key, KeyAccess { key, reads: true, writes });
    }
    accesses.into_values().collect()
}

/// Folds the same page with an partial: what does not know as much says the same. Gives a treelet
/// that began with it.
fn by_partial(
    partial: &PartialTreelet,
    input: &PageState<'_>,
    accesses: &[KeyAccess],
    tiled: Option<&Tiled>,
    node: &Node,
    commit: u64,
) -> Option<Treelet> {
    let input = PageState { treelet: Some(partial.known()), ..*input };
    let capture = capture_levels(input.at);
    let mut folder = BatchFolder::<Blake3>::new();
    folder.begin_capturing(input.at.len(), capture);
    fold_leaf(&mut folder, &input, capture, accesses, &mut Vec::new());
    let fold = folder.end().expect("keys are given by key");
    folder.run();
    assert_eq!(folder.node(fold), *node, "commit {commit}");
    let own = self::tiled(&input, accesses);
    // What it does not know is folded, so items and what is captured may be more.
    assert_eq!(own.is_some(), tiled.is_some());
    let (own, tiled) = (own?, tiled?);
    assert_eq!((own.0, &own.2, &own.3), (tiled.0, &tiled.2, &tiled.3), "commit {commit}");
    let mut begun = Treelet::empty();
    begun.begin_with(partial);
    begun.advance(commit - 1, commit, &own.0, own.1.iter().copied());
    Some(begun)
}

/// An older state of a page, and what later commits have recorded of it.
struct Then {
    state: State,
    commits: Vec<(Said, Vec<Node>)>,
    undo: BTreeMap<Key, Stored>,
}

impl Then {
    fn new(state: &State) -> Self {
        Self { state: state.clone(), commits: Vec::new(), undo: BTreeMap::new() }
    }

    /// A commit with these accesses leaves `state`. Now and then a node is not recorded.
    fn commit(&mut self, at: &Prefix, state: &State, accesses: &[KeyAccess], rng: &mut ChaCha8Rng) {
        let trie = naive(state);
        let (mut said, mut nodes) = (Said::default(), Vec::new());
        for access in accesses.iter().filter(|access| access.writes.is_some()) {
            let prior = state.get(&access.key).map(|value| Value::from(&**value));
            let prior = prior.map_or(Stored::Absent, Stored::Inline);
            self.undo.entry(access.key).or_insert(prior);
            said.changed |= 1 << bucket_of(at, &access.key);
        }
        if capture_levels(at) == 0 {
            return;
        }
        for group in (0..GROUPS).filter(|one| groups_of(said.changed) >> one & 1 == 1) {
            if below(rng, 4) > 0 {
                said.groups |= 1 << group;
                nodes.push(trie.node::<Blake3>(&at.descendant(GROUP_LEVELS, group)));
            }
        }
        for bucket in (0..BUCKETS).filter(|one| said.changed >> one & 1 == 1) {
            if below(rng, 4) > 0 {
                said.buckets |= 1 << bucket;
                nodes.push(trie.node::<Blake3>(&at.descendant(BUCKET_LEVELS, bucket)));
            }
        }
        self.commits.push((said, nodes));
    }

    /// Folds the page as it was then, from its nodes and as a whole. Adds the items that each took.
    fn check(
        &self,
        now: &PageState<'_>,
        accesses: &[KeyAccess],
        (by_nodes_items, whole_items): &mut (usize, usize),
    ) {
        let fold = |page: &PageState<'_>| {
            let mut folder = BatchFolder::<Blake3>::new();
            let mut results = Vec::new();
            folder.begin(page.at.len());
            fold_leaf(&mut folder, page, 0, accesses, &mut results);
            let fold = folder.end().expect("keys are given by key");
            folder.run();
            let mut emitted = Emitted::default();
            if folder.occupancy(fold) == Occupancy::Many {
                folder.emit(fold, &mut emitted);
            }
            let firsts: Vec<bool> = folder.first_of_terminal(fold).collect();
            let priors: Vec<Stored> = results.into_iter().map(|result| result.prior).collect();
            (folder.node(fold), emitted, firsts, priors, folder.len())
        };
        let accessed = accesses.iter().map(|access| bucket_of(now.at, &access.key));
        let mut then = OlderNodes::new(accessed.fold(0, |mask, bucket| mask | 1 << bucket));
        self.commits.iter().for_each(|(said, nodes)| then.say(said, nodes));
        // Only what `PageState::then` asks for.
        let asked = |key: &Key| then.asked() >> bucket_of(now.at, key) & 1 == 1;
        let pending = |asked: &dyn Fn(&Key) -> bool| -> Vec<PendingChange> {
            let mut all: BTreeMap<Key, Stored> = now.pending.iter().cloned().collect();
            let undo = self.undo.iter().filter(|one| asked(one.0));
            all.extend(undo.map(|(key, stored)| (*key, stored.clone())));
            all.into_iter().collect()
        };
        let some = pending(&asked);
        let by_nodes = fold(&PageState { pending: &some, then: Some(&then), ..*now });
        let all = pending(&|_| true);
        let whole = fold(&PageState { pending: &all, treelet: None, ..*now });
        assert_eq!((by_nodes.0, &by_nodes.1), (whole.0, &whole.1));
        assert_eq!((&by_nodes.2, &by_nodes.3), (&whole.2, &whole.3));
        let reads = accesses.iter().all(|access| access.writes.is_none());
        if reads {
            assert_eq!(by_nodes.0, naive(&self.state).node::<Blake3>(now.at));
        }
        *by_nodes_items += by_nodes.4;
        *whole_items += whole.4;
    }
}

#[test]
fn a_treelet_follows_its_page() {
    let (mut known, mut blocks, mut items, mut whole_items, mut partials) = (0u64, 0, 0, 0, 0);
    let mut older = (0, 0);
    for case in 0..cases(400) {
        let mut rng = ChaCha8Rng::seed_from_u64(case);
        let depth = [0, 3, 8, 17, 250, 251, 252, 254][below(&mut rng, 8) as usize];
        let mut lead = [0; 32];
        rng.fill_bytes(&mut lead);
        let at = Prefix::new(&lead, depth);
        let narrow = below(&mut rng, 2) == 0;
        let mut state = State::new();
        for _ in 0..[0, 1, 2, 10, 40][below(&mut rng, 5) as usize] {
            state.insert(key(&at, narrow, &mut rng), rng.next_u64().to_le_bytes().to_vec());
        }
        let page = page_of(&at, &state);
        let view = LeafView::trusted(&page);
        let mut pending: BTreeMap<Key, Stored> = BTreeMap::new();
        let mut treelet = Treelet::empty();
        let mut then = Then::new(&state);
        let mut folder = BatchFolder::<Blake3>::new();
        for commit in 1..30 {
            let accesses = accesses(&at, narrow, &state, &mut rng);
            let changes: Vec<PendingChange> =
                pending.iter().map(|(key, stored)| (*key, stored.clone())).collect();
            let capture = capture_levels(&at);
            // Now and then a page is folded without its treelet.
            let current = treelet.as_of() == commit - 1 && below(&mut rng, 8) > 0;
            folder.clear();
            folder.begin_capturing(at.len(), capture);
            let input = PageState {
                at: &at,
                leaf: Some(&view),
                pending: &changes,
                treelet: current.then(|| treelet.known()),
                then: None,
            };
            if capture > 0 && below(&mut rng, 4) == 0 {
                then.check(&input, &accesses, &mut older);
            }
            if below(&mut rng, 8) == 0 {
                then = Then::new(&state);
            }
            fold_leaf(&mut folder, &input, capture, &accesses, &mut Vec::new());
            let fold = folder.end().expect("keys are given by key");
            folder.run();
            let tiled = tiled(&input, &accesses);
            if let Some((node, _, emitted, firsts, count)) = &tiled {
                assert_eq!(*node, folder.node(fold), "case {case}, commit {commit}");
                assert_eq!(folder.occupancy(fold), Occupancy::Many);
                let mut whole = Emitted::default();
                folder.emit(fold, &mut whole);
                assert_eq!(*emitted, whole, "case {case}, commit {commit}");
                let whole_firsts: Vec<bool> = folder.first_of_terminal(fold).collect();
                assert_eq!(*firsts, whole_firsts, "case {case}, commit {commit}");
                (blocks, items, whole_items) =
                    (blocks + 1, items + count, whole_items + folder.len());
            }
            let begun = accesses.first().filter(|_| current).and_then(|access| {
                partials += 1;
                let partial = partial(&treelet, &at, &access.key);
                by_partial(&partial, &input, &accesses, tiled.as_ref(), &folder.node(fold), commit)
            });
            then.commit(&at, &state, &accesses, &mut rng);
            for access in accesses {
                let Some(stored) = access.writes else { continue };
                match &stored {
                    Stored::Inline(value) => drop(state.insert(access.key, value.to_vec())),
                    _ => drop(state.remove(&access.key)),
                }
                pending.insert(access.key, stored);
            }
            let trie = naive(&state);
            let own = folder.node(fold);
            assert_eq!(own, trie.node::<Blake3>(&at), "case {case}, commit {commit}");
            if let Some(begun) = begun {
                check(&begun, &trie, &at, 0, 0);
            }
            if capture == 0 {
                continue;
            }
            let whole = || folder.captured().iter().map(|one| (one.index, one.node)).collect();
            // What the one has learnt serves the other.
            let captured: Vec<(u8, Node)> = match tiled {
                Some((_, captured, ..)) if below(&mut rng, 4) > 0 => captured,
                _ => whole(),
            };
            // One as of another commit forgets.
            let before = if current { commit - 1 } else { u64::MAX - 1 };
            treelet.advance(before, commit, &own, captured.into_iter());
            check(&treelet, &trie, &at, 0, 0);
            let (nodes, mask) = treelet.known().level::<8>(3);
            for (slot, node) in nodes.iter().enumerate().filter(|(slot, _)| mask >> slot & 1 == 1) {
                let bits = u16::try_from(slot).unwrap();
                let below = pleach_beatree::leaf_fold::below(&at, 3, bits);
                assert_eq!(*node, trie.node::<Blake3>(&below), "case {case}, slot {slot}");
                known += 1;
            }
        }
    }
    assert!(older.0 * 4 < older.1 * 3, "an older state takes fewer items: {older:?}");
    assert!(known > 1000, "the flush finds nodes: {known}");
    assert!(partials > 1000, "partials: {partials}");
    assert!(blocks > 1000, "most folds are path blocks: {blocks}");
    assert!(items * 3 < whole_items * 2, "path blocks take fewer items: {items} of {whole_items}");
}
