//! A treelet that follows commit after commit says of every position what the slow trie says, and
//! the folds that lean on it give the root of the slow trie.

use std::collections::BTreeMap;

use pleach_beatree::build::{CellRef, PageStamp, Unfolded, fold_pages, write_page};
use pleach_beatree::leaf_fold::{
    KeyAccess, PageState, PendingChange, columns_of, fold_known, fold_leaf,
};
use pleach_beatree::treelet::capture_levels;
use pleach_beatree::treelet::{LEVELS, Treelet};
use pleach_beatree::{Stored, Value};
use pleach_core::fold::{
    BatchFolder, Columns, NO_HASH, Occupancy, Sink, TreeletFolder, heap_index,
};
use pleach_core::naive::Naive;
use pleach_core::node::{NodeKind, kind};
use pleach_core::page::leaf::LeafView;
use pleach_core::page::{FileKind, Identity, Page};
use pleach_core::proof::Terminal;
use pleach_core::proof::terminal::terminal_encode;
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

/// How the keys of a page lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Anywhere.
    Spread,
    /// In few bits after the prefix: subtries fill and empty.
    Narrow,
    /// All in one bucket, and spread there: a full bucket.
    OneBucket,
    /// They share all bits but the last few: one long chain.
    Chain,
    /// Each shares some more bits with one key: chains from a chain.
    Ladder,
    /// They share a lead, and differ in some bits of each byte behind it, as names and numbers do.
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
        // Now and then one is spelled otherwise, near the lead or far from it.
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

fn naive(state: &State) -> Naive {
    state.iter().map(|(key, value)| (*key, BLAKE3.hash(value).into())).collect()
}

/// The page that holds a state.
fn page_of(at: &Prefix, state: &State) -> Box<Page> {
    let cells: Vec<CellRef<'_>> = state
        .iter()
        .map(|(key, value)| CellRef { key: *key, bytes: value, overflow: false })
        .collect();
    let mut folder = BatchFolder::new(BLAKE3);
    let unfolded = [Unfolded { prefix: *at, cells: &cells, known: None }];
    let nodes = fold_pages(&mut folder, &unfolded);
    let mut page = Box::new([0; 4096]);
    let identity = Identity { kind: FileKind::Leaf, page_no: 7, db_id: 1 };
    let stamp = PageStamp { identity, flush: 1, namespace: 0, through: 0 };
    write_page(&mut page, &stamp, at, &cells, &nodes[0].stored);
    page
}

/// Every position that may be read has the slow trie's node.
fn check(treelet: &Treelet, trie: &Naive, page: (&Prefix, &LeafView<'_>), level: u8, bits: u8) {
    let at = match treelet.columns() {
        Some(columns) if level > 0 => columns.position(&page.1.key(0), level, bits),
        _ => page.0.descendant(level, bits),
    };
    let known = treelet.node(heap_index(level, bits));
    if let Some(node) = known {
        assert_eq!(*node, trie.node(BLAKE3, &at), "level {level}, bits {bits:b}");
        if kind(node) != NodeKind::Internal {
            return;
        }
    }
    if level < LEVELS {
        check(treelet, trie, page, level + 1, bits << 1);
        check(treelet, trie, page, level + 1, bits << 1 | 1);
    }
}

/// What a fold has emitted: terminals as a witness has them, and siblings.
#[derive(Debug, Default, PartialEq)]
struct Emitted(Vec<u8>, u32, Vec<Node>);

impl Sink for Emitted {
    fn leaf(&mut self, key: &Key, value_hash: &ValueHash, depth: u16) {
        let terminal = Terminal::Leaf { key: *key, value_hash: *value_hash, depth };
        terminal_encode(&mut self.0, &terminal);
        self.1 += 1;
    }

    fn terminator(&mut self, key: &Key, depth: u16) {
        terminal_encode(&mut self.0, &Terminal::Terminator { prefix: Prefix::new(key, depth) });
        self.1 += 1;
    }

    fn sibling(&mut self, node: &Node) {
        self.2.push(*node);
    }

    fn fragment(&mut self, _: u32) {
        unreachable!("a page has no folds below it");
    }
}

/// What a fold gives: node, what was before and the hash of what was put at each access, what is emitted, and which
/// accesses are the first of their terminals.
type Folded = (Node, Vec<(Stored, Option<ValueHash>)>, Emitted, Vec<bool>);

/// Folds a page in the general way.
fn whole(page: &PageState<'_>, accesses: &[KeyAccess], folder: &mut BatchFolder) -> Folded {
    let capture = capture_levels(page.at);
    let mut results = Vec::new();
    folder.clear();
    folder.begin_with_columns(page.at.len(), capture, columns_of(page, accesses));
    fold_leaf(folder, page, capture, accesses, &mut results);
    let fold = folder.end().expect("keys are given by key");
    folder.run();
    let mut emitted = Emitted::default();
    if folder.occupancy(fold) == Occupancy::Many {
        folder.emit(fold, &mut emitted);
    }
    let put = |put| (put != NO_HASH).then(|| *folder.value_hash(put));
    let results = results.into_iter().map(|result| (result.prior, put(result.put))).collect();
    let firsts = folder.first_of_terminal(fold).collect();
    (folder.node(fold), results, emitted, firsts)
}

/// What a treelet learns, and with which columns.
type Learned = (Option<Columns>, Vec<(u8, Node)>);

/// Folds the same page by its treelet, where that can be done, and gives what its treelet learns.
fn by_treelet(page: &PageState<'_>, accesses: &[KeyAccess]) -> Option<(Folded, Learned)> {
    let (mut folder, mut results) = (TreeletFolder::new(BLAKE3), Vec::new());
    // What an earlier use and the treelet before leave must not show.
    folder.clear();
    fold_known(&mut folder, page, accesses, &mut results)?;
    folder.run();
    let alone = *folder.node(0);
    folder.clear();
    fold_known(&mut folder, page, accesses, &mut results)?;
    results.clear();
    let number = fold_known(&mut folder, page, accesses, &mut results)?;
    folder.run();
    assert_eq!((alone, folder.node(0)), (*folder.node(1), folder.node(1)));
    let put = |put| (put != NO_HASH).then(|| *folder.value_hash(put));
    let results = results.into_iter().map(|result| (result.prior, put(result.put))).collect();
    let part = folder.proof_part(number);
    let proof = folder.proof();
    let (terminals, siblings) = (&proof.terminals[part.terminals], &proof.siblings[part.siblings]);
    let emitted = Emitted(terminals.to_vec(), part.count, siblings.to_vec());
    let firsts = folder.first_of_terminal(number).to_vec();
    let mut learned = Vec::new();
    folder.learned(number, |index, node| learned.push((index, *node)));
    let folded = (*folder.node(number), results, emitted, firsts);
    Some((folded, (folder.columns(number), learned)))
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

    /// Folds the page as it was then: page, pending changes, and over them what was replaced.
    fn check(&self, now: &PageState<'_>, accesses: &[KeyAccess]) {
        let mut all: BTreeMap<Key, Stored> = now.pending.iter().cloned().collect();
        all.extend(self.undo.iter().map(|(key, stored)| (*key, stored.clone())));
        let all: Vec<PendingChange> = all.into_iter().collect();
        let reads = |access: &KeyAccess| KeyAccess { writes: None, ..access.clone() };
        let reads: Vec<KeyAccess> = accesses.iter().map(reads).collect();
        let page = PageState { pending: &all, treelet: None, ..*now };
        let (node, found, ..) = whole(&page, &reads, &mut BatchFolder::new(BLAKE3));
        assert_eq!(node, naive(&self.state).node(BLAKE3, now.at));
        for (access, (prior, _)) in reads.iter().zip(found) {
            let value = self.state.get(&access.key).map(|value| Value::from(&**value));
            assert_eq!(prior, value.map_or(Stored::Absent, Stored::Inline));
        }
    }
}

/// A page of hostile or ordinary form, and accesses to it, commit after commit: all ways to fold it agree with
/// the slow trie.
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
    let view = LeafView::trusted(&page);
    let mut pending: BTreeMap<Key, Stored> = BTreeMap::new();
    let mut treelet = Treelet::empty();
    let mut then = Then::new(&state);
    let mut folder = BatchFolder::new(BLAKE3);
    for commit in 1..30 {
        let accesses = accesses(&at, form, &state, &mut rng);
        let changes: Vec<PendingChange> =
            pending.iter().map(|(key, stored)| (*key, stored.clone())).collect();
        let capture = capture_levels(&at);
        // Now and then a page is folded without its treelet.
        let current = treelet.as_of() == commit - 1 && below(&mut rng, 8) > 0;
        let input = PageState {
            at: &at,
            leaf: Some(&view),
            pending: &changes,
            treelet: current.then(|| treelet.known()),
        };
        if below(&mut rng, 4) == 0 {
            then.check(&input, &accesses);
        }
        if below(&mut rng, 8) == 0 {
            then = Then::new(&state);
        }
        let same = whole(&input, &accesses, &mut folder);
        tally.folds += 1;
        let learned = by_treelet(&input, &accesses).map(|(own, learned)| {
            assert_eq!(own, same, "case {case}, commit {commit}");
            assert_eq!(learned.0, folder.columns(0), "case {case}, commit {commit}");
            tally.treelets += 1;
            tally.columns += u64::from(learned.0.is_some());
            learned
        });
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
        let captured = || folder.captured().iter().map(|one| (one.index, one.node));
        let whole = || (folder.columns(0), captured().collect());
        // What the one has learnt serves the other.
        let (columns, learned) = learned.filter(|_| below(&mut rng, 4) > 0).unwrap_or_else(whole);
        // One as of another commit forgets.
        let before = if current { commit - 1 } else { u64::MAX - 1 };
        treelet.advance((before, commit), columns, &own, learned.into_iter());
        check(&treelet, &trie, (&at, &view), 0, 0);
        let (nodes, mask) = treelet.known().level::<8>(3);
        for (slot, node) in nodes.iter().enumerate().filter(|(slot, _)| mask >> slot & 1 == 1) {
            let bits = u16::try_from(slot).unwrap();
            let below = pleach_beatree::leaf_fold::below(&at, 3, bits);
            assert_eq!(*node, trie.node(BLAKE3, &below), "case {case}, slot {slot}");
            tally.known += 1;
        }
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

/// The second fold of a page of fifty names, each of which gets another value in turn: hashes of all, by a treelet with
/// these columns.
fn hashed_for_names(state: &State, at: &Prefix, by_columns: bool) -> u64 {
    let page = page_of(at, state);
    let view = LeafView::trusted(&page);
    let own = Stored::Inline(Value::from(vec![9; 8]));
    let access = |key: &Key| KeyAccess { key: *key, reads: true, writes: Some(own.clone()) };
    let all: Vec<KeyAccess> = state.keys().map(access).collect();
    let input = PageState { at, leaf: Some(&view), pending: &[], treelet: None };
    let mut folder = BatchFolder::new(BLAKE3);
    let columns = columns_of(&input, &all).filter(|_| by_columns);
    assert_eq!(columns.is_some(), by_columns);
    folder.begin_with_columns(at.len(), LEVELS, columns);
    fold_leaf(&mut folder, &input, LEVELS, &all, &mut Vec::new());
    let fold = folder.end().expect("keys are given by key");
    folder.run();
    let mut treelet = Treelet::empty();
    let captured = folder.captured().iter().map(|one| (one.index, one.node));
    treelet.advance((0, 1), columns, &folder.node(fold), captured);
    let pending: Vec<PendingChange> = state.keys().map(|key| (*key, own.clone())).collect();
    let input = PageState { pending: &pending, treelet: Some(treelet.known()), ..input };
    let mut kernel = TreeletFolder::new(BLAKE3);
    for access in &all {
        kernel.clear();
        let folded = fold_known(&mut kernel, &input, std::slice::from_ref(access), &mut Vec::new());
        folded.expect("all nodes are known");
        kernel.run();
    }
    kernel.hashed()
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
