//! A treelet that follows commit after commit has at every position the node of the naive trie, and the folds that use
//! it give the naive trie's root.

use std::collections::BTreeMap;

use pleach_beatree::leaf_fold::{
    AccessResult, FoldedPage, KeyAccess, KeyState, PageState, PartNode, fold_page, fold_parts,
};
use pleach_beatree::page_plan::{CellRef, PageCells, PageStamp, fold_pages, write_page};
use pleach_beatree::treelet::Treelet;
use pleach_beatree::treelet::treelet_levels;
use pleach_beatree::{Stored, Value};
use pleach_core::fold::TREELET_LEVELS;
use pleach_core::fold::{Columns, DifferingBits, Folder, NO_HASH, Occupancy, heap_index};
use pleach_core::naive::NaiveTrie;
use pleach_core::node::{NodeKind, kind};
use pleach_core::page::leaf::LeafView;
use pleach_core::page::{FileKind, Identity, Page};
use pleach_core::{Hasher, Key, Node, Prefix, ValueHash};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

const BLAKE3: Hasher = Hasher::BLAKE3;

type State = BTreeMap<Key, Vec<u8>>;

fn cases(default: u64) -> u64 {
    std::env::var("PLEACH_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn below(rng: &mut ChaCha8Rng, bound: u32) -> u32 {
    rng.next_u32() % bound
}

/// How the keys of a page are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Anywhere.
    Spread,
    /// In few bits after the prefix: subtries fill and empty.
    Narrow,
    /// All in one bucket, and spread there: a full bucket.
    OneBucket,
    /// Keys share all bits but the last few: one long chain.
    Chain,
    /// Each shares some more bits with one key: chains from a chain.
    Ladder,
    /// Keys share a lead, and differ in some bits of each byte behind it, as names and numbers do.
    Names,
}

impl Form {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        let all = [
            Self::Spread,
            Self::Narrow,
            Self::OneBucket,
            Self::Chain,
            Self::Ladder,
            Self::Names,
            Self::Names,
        ];
        all[below(rng, 7) as usize]
    }

    /// A key below `at`.
    fn key(self, at: &Prefix, rng: &mut ChaCha8Rng) -> Key {
        let mut key = [0; 32];
        rng.fill_bytes(&mut key);
        let free = u32::from(256 - at.len());
        let shared = match self {
            Self::Spread => 0,
            Self::Narrow => return Self::narrow(at, rng),
            Self::OneBucket => free.min(7),
            Self::Chain => free.saturating_sub(6),
            Self::Ladder => below(rng, free),
            Self::Names => return Self::name(at, rng),
        };
        let keep = usize::from(at.len());
        for bit in 0..keep + shared as usize {
            let mask = 0x80 >> (bit % 8);
            // Where the prefix ends, the bits of a pattern follow it.
            let from = if bit < keep { at.first_key()[bit / 8] } else { 0x6b };
            key[bit / 8] = key[bit / 8] & !mask | from & mask;
        }
        key
    }

    fn narrow(at: &Prefix, rng: &mut ChaCha8Rng) -> Key {
        let mut key = *at.first_key();
        for _ in 0..3 {
            let depth = at.len() + u16::try_from(below(rng, 7)).unwrap();
            let depth = usize::from(depth.min(255));
            if depth >= usize::from(at.len()) {
                key[depth / 8] |= 0x80 >> (depth % 8);
            }
        }
        key
    }

    fn name(at: &Prefix, rng: &mut ChaCha8Rng) -> Key {
        let mut key = *at.first_key();
        let behind = at.len() + [2, 9, 40][usize::from(at.len() % 3)];
        let letter = *b"bdfgaeio".get(below(rng, 8) as usize).unwrap();
        // Now and then one differs elsewhere, near the lead or far from it.
        let odd = (below(rng, 24) == 0).then(|| at.len() + u16::try_from(below(rng, 100)).unwrap());
        for depth in at.len()..256 {
            let (byte, mask) = (usize::from(depth / 8), 0x80 >> (depth % 8));
            let set = match depth.checked_sub(behind) {
                None => depth % 3 == 0,
                Some(rest) if rest < 24 => {
                    let number = letter ^ u8::from(below(rng, 2) == 1);
                    number >> (7 - rest % 8) & 1 == 1 || rest % 8 == 6 && below(rng, 2) == 0
                }
                Some(_) => false,
            };
            if set != (odd == Some(depth)) {
                key[byte] |= mask;
            }
        }
        key
    }

    /// A value; some are longer than what is hashed in batches.
    fn value(rng: &mut ChaCha8Rng) -> Vec<u8> {
        let len = [8, 8, 8, 0, 1, 65][below(rng, 6) as usize];
        (0..len).map(|_| rng.next_u32().to_le_bytes()[0]).collect()
    }
}

fn naive(state: &State) -> NaiveTrie {
    state.iter().map(|(key, value)| (*key, BLAKE3.hash(value).into())).collect()
}

/// The page that holds a state.
fn page_of(at: &Prefix, state: &State) -> Box<Page> {
    let cells: Vec<CellRef<'_>> = state
        .iter()
        .map(|(key, value)| CellRef { key: *key, bytes: value, overflow: false })
        .collect();
    let mut folder = Folder::new(BLAKE3);
    let unfolded = [PageCells { prefix: *at, cells: &cells, known: None }];
    let nodes = fold_pages(&mut folder, &unfolded);
    let mut page = Box::new([0; 4096]);
    let identity = Identity { kind: FileKind::Leaf, page_no: 7, db_id: 1 };
    let stamp = PageStamp { identity, flush: 1, namespace: 0, last_commit: 0 };
    write_page(&mut page, &stamp, at, &cells, &nodes[0].stored);
    page
}

/// Every position that may be read has the naive trie's node.
fn check(treelet: &Treelet, trie: &NaiveTrie, page: (&Prefix, &LeafView<'_>), level: u8, bits: u8) {
    let at = match treelet.columns() {
        Some(columns) if level > 0 => columns.position(&page.1.key(0), level, bits),
        _ => page.0.descendant(level, bits),
    };
    let known = treelet.known().node(heap_index(level, bits));
    if let Some(node) = known {
        assert_eq!(*node, trie.node(BLAKE3, &at), "level {level}, bits {bits:b}");
        if kind(node) != NodeKind::Internal {
            return;
        }
    }
    if level < TREELET_LEVELS {
        check(treelet, trie, page, level + 1, bits << 1);
        check(treelet, trie, page, level + 1, bits << 1 | 1);
    }
}

/// What a fold has emitted: terminals as a witness has them, their number, and siblings.
#[derive(Debug, Default, PartialEq)]
struct Emitted(Vec<u8>, u32, Vec<Node>);

/// The result of a fold: node, prior value and hash of the new one at each access, what is emitted, and which accesses
/// are the first of their terminals.
type Folded = (Node, Vec<(Stored, Option<ValueHash>)>, Emitted, Vec<bool>);

/// What a treelet learns, and with which columns.
type Learned = (Option<Columns>, Vec<(u8, Node)>);

/// The result of the folder's only fold.
fn folded(folder: &Folder, results: Vec<AccessResult>) -> Folded {
    let mut emitted = Emitted::default();
    if folder.occupancy(0) == Occupancy::Many {
        emitted.1 = folder.terminals(0, &mut emitted.0, |_, _| unreachable!("no folds below it"));
        emitted.2 = folder.siblings()[folder.siblings_of(0)].to_vec();
    }
    let put = |put| (put != NO_HASH).then(|| *folder.value_hash(put));
    let results = results.into_iter().map(|result| (result.prior, put(result.put))).collect();
    let firsts = folder.accesses(0).map(|access| folder.is_first(access)).collect();
    (*folder.node(0), results, emitted, firsts)
}

/// Folds a page, and returns what its treelet learns.
fn fold(page: &PageState<'_>, accesses: &[KeyAccess], folder: &mut Folder) -> (Folded, Learned) {
    let mut results = Vec::new();
    folder.clear();
    let page = fold_page(folder, page, true, accesses, &mut results);
    folder.end_fold(page.subtrie, false);
    folder.run();
    let learned = (page.columns, folder.nodes().to_vec());
    (folded(folder, results), learned)
}

/// Folds a page in parts, with those known by their nodes that an earlier fold returned; returns the parts' nodes.
fn in_parts(
    page: &PageState<'_>,
    known: &[(Prefix, Node)],
    accesses: &[KeyAccess],
    folder: &mut Folder,
) -> (Folded, Vec<(Prefix, Node)>) {
    let mut results = Vec::new();
    folder.clear();
    let FoldedPage { subtrie, parts, .. } =
        fold_parts(folder, page, Some(known), accesses, &mut results);
    folder.end_fold(subtrie, false);
    folder.run();
    let node = |part: &PartNode| match part {
        PartNode::Known(node) => *node,
        PartNode::Watched(number) => *folder.watched(*number),
    };
    let parts = parts.iter().map(|(at, part)| (*at, node(part)));
    let parts = parts.filter(|(_, node)| kind(node) == NodeKind::Internal).collect();
    (folded(folder, results), parts)
}

fn accesses(at: &Prefix, form: Form, state: &State, rng: &mut ChaCha8Rng) -> Vec<KeyAccess> {
    let mut accesses = BTreeMap::new();
    for _ in 0..=below(rng, 5) {
        let own = state.keys().nth(below(rng, 64) as usize);
        let key = own.filter(|_| below(rng, 2) == 0).copied();
        let key = key.unwrap_or_else(|| form.key(at, rng));
        let writes = match below(rng, 6) {
            0 => None,
            1 | 2 => Some(Stored::Absent),
            3 => Some(Stored::Inline(Value::from(vec![below(rng, 256).to_le_bytes()[0]; 65]))),
            _ => Some(Stored::Inline(Value::from(Form::value(rng)))),
        };
        let reads = writes.is_none() || below(rng, 2) == 0;
        accesses.insert(key, KeyAccess { key, reads, writes });
    }
    accesses.into_values().collect()
}

/// An older state of a page, and what later commits have replaced.
struct Then {
    state: State,
    undo: BTreeMap<Key, Stored>,
}

impl Then {
    fn new(state: &State) -> Self {
        Self { state: state.clone(), undo: BTreeMap::new() }
    }

    /// A commit with these accesses leaves `state`.
    fn commit(&mut self, state: &State, accesses: &[KeyAccess]) {
        for access in accesses.iter().filter(|access| access.writes.is_some()) {
            let prior = state.get(&access.key).map(|value| Value::from(&**value));
            let prior = prior.map_or(Stored::Absent, Stored::Inline);
            self.undo.entry(access.key).or_insert(prior);
        }
    }

    /// Folds the page as it was then: page, buffered changes, and over them what was replaced.
    fn check(&self, now: &PageState<'_>, accesses: &[KeyAccess]) {
        let mut all: BTreeMap<Key, Stored> = now.buffered.iter().cloned().collect();
        all.extend(self.undo.iter().map(|(key, stored)| (*key, stored.clone())));
        let all: Vec<KeyState> = all.into_iter().collect();
        let reads = |access: &KeyAccess| KeyAccess { writes: None, ..access.clone() };
        let reads: Vec<KeyAccess> = accesses.iter().map(reads).collect();
        let page = PageState { buffered: &all, treelet: None, ..*now };
        let ((node, found, ..), _) = fold(&page, &reads, &mut Folder::new(BLAKE3));
        assert_eq!(node, naive(&self.state).node(BLAKE3, now.at));
        for (access, (prior, _)) in reads.iter().zip(found) {
            let value = self.state.get(&access.key).map(|value| Value::from(&**value));
            assert_eq!(prior, value.map_or(Stored::Absent, Stored::Inline));
        }
    }
}

/// A page of hostile or ordinary form, and accesses to it, commit after commit: all ways to fold it agree with the
/// naive trie.
#[derive(Default)]
struct Tally {
    /// Nodes that a flush finds.
    known: u64,
    folds: u64,
    treelets: u64,
    /// Those of treelets with columns.
    columns: u64,
}

fn follow(case: u64, tally: &mut Tally) {
    let mut rng = ChaCha8Rng::seed_from_u64(case);
    let depth = [0, 3, 8, 17, 250, 251, 252, 254][below(&mut rng, 8) as usize];
    let mut lead = [0; 32];
    rng.fill_bytes(&mut lead);
    let at = Prefix::new(&lead, depth);
    let form = Form::draw(&mut rng);
    let mut state = State::new();
    for _ in 0..[0, 1, 2, 10, 40][below(&mut rng, 5) as usize] {
        state.insert(form.key(&at, &mut rng), Form::value(&mut rng));
    }
    let page = page_of(&at, &state);
    let view = LeafView::from_trusted(&page);
    let mut pending: BTreeMap<Key, Stored> = BTreeMap::new();
    let mut treelet = Treelet::empty();
    let mut then = Then::new(&state);
    let mut folder = Folder::new(BLAKE3);
    for commit in 1..30 {
        let accesses = accesses(&at, form, &state, &mut rng);
        let changes: Vec<KeyState> =
            pending.iter().map(|(key, stored)| (*key, stored.clone())).collect();
        let capture = treelet_levels(&at);
        // Now and then a page is folded without its treelet.
        let current = treelet.as_of() == commit - 1 && below(&mut rng, 8) > 0;
        let input = PageState {
            at: &at,
            leaf: Some(&view),
            buffered: &changes,
            treelet: current.then(|| treelet.known()),
        };
        if below(&mut rng, 4) == 0 {
            then.check(&input, &accesses);
        }
        if below(&mut rng, 8) == 0 {
            then = Then::new(&state);
        }
        let (same, whole) = fold(&PageState { treelet: None, ..input }, &accesses, &mut folder);
        let (own, learned) = fold(&input, &accesses, &mut folder);
        assert_eq!(own, same, "case {case}, commit {commit}");
        tally.folds += 1;
        tally.treelets += u64::from(current && learned.1.len() < whole.1.len());
        tally.columns += u64::from(current && learned.0.is_some());
        then.commit(&state, &accesses);
        for access in accesses {
            let Some(stored) = access.writes else { continue };
            match &stored {
                Stored::Inline(value) => drop(state.insert(access.key, value.to_vec())),
                _ => drop(state.remove(&access.key)),
            }
            pending.insert(access.key, stored);
        }
        let trie = naive(&state);
        let own = same.0;
        assert_eq!(own, trie.node(BLAKE3, &at), "case {case}, commit {commit}");
        if capture == 0 {
            continue;
        }
        // Nodes of one fold serve the other.
        let (columns, learned) = if below(&mut rng, 4) == 0 { whole } else { learned };
        // A treelet as of another commit is cleared.
        let before = if current { commit - 1 } else { u64::MAX - 1 };
        treelet.advance((before, commit), columns, &own, learned.into_iter());
        check(&treelet, &trie, (&at, &view), 0, 0);
        let (nodes, mask) = treelet.known().nodes_at_level::<8>(3);
        for (slot, node) in nodes.iter().enumerate().filter(|(slot, _)| mask >> slot & 1 == 1) {
            let bits = u16::try_from(slot).unwrap();
            let below = pleach_beatree::leaf_fold::below(&at, 3, bits);
            assert_eq!(*node, trie.node(BLAKE3, &below), "case {case}, slot {slot}");
            tally.known += 1;
        }
    }
}

/// A treelet follows each commit that changes its page. What it knew before one that it has missed, or by other bits of the
/// keys, is not of the page any more.
#[test]
fn a_treelet_that_missed_a_commit_knows_only_what_comes_with_the_next() {
    let node = |byte| Node::new([byte; 32]);
    let [left, right] = [0, 1].map(|bits| heap_index(1, bits));
    let columns = {
        let mut differing = DifferingBits::from(&[0; 32]);
        (0..5).for_each(|byte| differing.add(&[1 << byte; 32]));
        differing.columns(0)
    };
    assert!(columns.is_some());
    for (before, columns, follows) in [(5, None, true), (4, None, false), (5, columns, false)] {
        let mut treelet = Treelet::empty();
        treelet.advance((0, 5), None, &node(1), [(left, node(2))].into_iter());
        treelet.advance((before, 6), columns, &node(3), [(right, node(4))].into_iter());
        let known = treelet.known();
        assert_eq!((treelet.as_of(), known.node(heap_index(0, 0))), (6, Some(&node(3))));
        assert_eq!(known.node(right), Some(&node(4)));
        assert_eq!(known.node(left).is_some(), follows, "{before}, {columns:?}");
    }
}

#[test]
fn a_treelet_follows_its_page() {
    let mut tally = Tally::default();
    (0..cases(250)).for_each(|case| follow(case, &mut tally));
    let Tally { known, folds, treelets, columns } = tally;
    assert!(known > 1000, "the flush finds nodes: {known}");
    assert!(treelets * 3 > folds, "folds by a treelet: {treelets} of {folds}");
    assert!(columns > 300, "treelets with columns: {columns} of {treelets}");
}

/// A page with many buffered changes, commit after commit: folded in parts, known ones included, it gives the same as
/// in one piece.
fn follow_parts(case: u64) -> usize {
    let mut rng = ChaCha8Rng::seed_from_u64(case);
    let at = Prefix::new(&[0x35; 32], [0, 9, 120][below(&mut rng, 3) as usize]);
    let form = [Form::Spread, Form::OneBucket, Form::Ladder][below(&mut rng, 3) as usize];
    let state: State = (0..40).map(|_| (form.key(&at, &mut rng), vec![7; 8])).collect();
    let page = page_of(&at, &state);
    let view = LeafView::from_trusted(&page);
    let (mut pending, mut known) = (BTreeMap::new(), Vec::new());
    let mut used = 0;
    let [mut folder, mut other] = [Folder::new(BLAKE3), Folder::new(BLAKE3)];
    for _ in 0..6 {
        let mut accesses = BTreeMap::new();
        for _ in 0..[1, 40, 700][below(&mut rng, 3) as usize] {
            let own = pending.keys().nth(below(&mut rng, 2000) as usize).copied();
            let key = own.unwrap_or_else(|| form.key(&at, &mut rng));
            let writes = Some(Stored::Inline(Value::from(Form::value(&mut rng))));
            let writes = if below(&mut rng, 5) == 0 { Some(Stored::Absent) } else { writes };
            accesses.insert(key, KeyAccess { key, reads: true, writes });
        }
        let accesses: Vec<KeyAccess> = accesses.into_values().collect();
        let changes: Vec<KeyState> =
            pending.iter().map(|(key, stored): (&Key, &Stored)| (*key, stored.clone())).collect();
        let input = PageState { at: &at, leaf: Some(&view), buffered: &changes, treelet: None };
        let (same, _) = fold(&input, &accesses, &mut folder);
        let (own, parts) = in_parts(&input, &known, &accesses, &mut other);
        assert_eq!(own, same, "case {case}");
        used += parts.iter().filter(|part| known.contains(part)).count();
        known = parts;
        pending.extend(accesses.into_iter().map(|access| (access.key, access.writes.unwrap())));
    }
    used
}

#[test]
fn a_page_folds_in_parts_as_in_one_piece() {
    let used: usize = (0..cases(60)).map(follow_parts).sum();
    assert!(used > 100, "parts that were known: {used}");
}

/// The second fold of a page of fifty names, each of which gets another value in turn: hashes of all, by a treelet with
/// columns or without a treelet.
fn hashed_for_names(state: &State, at: &Prefix, by_columns: bool) -> u64 {
    let page = page_of(at, state);
    let view = LeafView::from_trusted(&page);
    let own = Stored::Inline(Value::from(vec![9; 8]));
    let access = |key: &Key| KeyAccess { key: *key, reads: true, writes: Some(own.clone()) };
    let all: Vec<KeyAccess> = state.keys().map(access).collect();
    let input = PageState { at, leaf: Some(&view), buffered: &[], treelet: None };
    let mut folder = Folder::new(BLAKE3);
    let ((own_node, ..), (columns, learned)) = fold(&input, &all, &mut folder);
    assert!(columns.is_some());
    let mut treelet = Treelet::empty();
    treelet.advance((0, 1), columns, &own_node, learned.into_iter());
    let pending: Vec<KeyState> = state.keys().map(|key| (*key, own.clone())).collect();
    let treelet = by_columns.then(|| treelet.known());
    let input = PageState { buffered: &pending, treelet, ..input };
    let before = folder.hash_count();
    for access in &all {
        fold(&input, std::slice::from_ref(access), &mut folder);
    }
    folder.hash_count() - before
}

#[test]
fn a_changed_name_takes_few_hashes() {
    // Below a prefix that ends with a letter: two syllables.
    let at = Prefix::new(&[b'n'; 32], 16);
    let syllable = |bits: usize| [b"bdfghjklmnprstvz"[bits / 4 % 16], b"aeio"[bits % 4]];
    let state: State = (0..50)
        .map(|id: usize| {
            let mut key = [0; 32];
            key[..2].copy_from_slice(b"nn");
            key[2..4].copy_from_slice(&syllable(id * 0x25 % 64));
            key[4..6].copy_from_slice(&syllable(id));
            (key, vec![1; 8])
        })
        .collect();
    assert_eq!(state.len(), 50);
    let [by_columns, plain] = [true, false].map(|by| hashed_for_names(&state, &at, by) / 50);
    // Two values, the leaf, five levels with six bits between them, and one or two others in the bucket.
    assert!(by_columns < 30, "{by_columns} hashes a key");
    assert!(plain > 2 * by_columns, "{plain} hashes a key, and {by_columns}");
}
