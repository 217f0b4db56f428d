//! A treelet of the fuzzer's keys, folded with known nodes and without: both folds agree with the naive trie.
//!
//! The input decides where the prefix ends, which keys there are, which keys are accessed, which nodes are known, how
//! the unknown ones are added, and when the folder hashes early.

use pleach_core::fold::{
    Columns, DifferingBits, FoldSpan, FoldValue, Folder, HashId, NO_HASH, Occupancy, Path,
    SiblingPath, TREELET_LEVELS, TreeletPath, ValueChange, above, heap_index,
};
use pleach_core::naive::NaiveTrie;
use pleach_core::node::{NodeKind, kind, value_hash};
use pleach_core::proof::wire::terminal_encode;
use pleach_core::{Hasher, Key, Node, Prefix, TERMINATOR, ValueHash};
use std::collections::BTreeMap;

use super::input::Input;

/// Positions of a treelet, and those of them that have children.
const POSITIONS: u8 = heap_index(TREELET_LEVELS + 1, 0);
const PARENTS: u8 = heap_index(TREELET_LEVELS, 0);

/// A node that a fold must not read.
const GARBAGE: Node = Node::new([0x77; 32]);

/// Bits of each byte in which most keys of an input differ.
const PATTERNS: [u8; 7] = [0xff, 0xff, 0xff, 0x0f, 0x36, 0x11, 0x81];

/// A key below the prefix: it differs from the others at a place of choice, from there on or in one byte. Few differ in
/// other bits than those of the pattern.
fn key(input: &mut Input<'_>, at: &Prefix, pattern: u8) -> Key {
    let (place, value) = (input.u8(), input.u8());
    let mut key = [if place & 0x80 == 0 { 0 } else { pattern }; 32];
    let is_odd = place & 0x60 == 0x60 && value % 8 == 0;
    key[usize::from(place & 31)] ^= if is_odd { value } else { value & pattern };
    if place & 0x40 != 0 {
        key[usize::from(at.len() / 8)] = input.u8() & pattern;
    }
    for bit in 0..usize::from(at.len()) {
        let mask = 0x80 >> (bit % 8);
        key[bit / 8] = key[bit / 8] & !mask | at.first_key()[bit / 8] & mask;
    }
    key
}

fn value(input: &mut Input<'_>) -> Vec<u8> {
    let (len, byte) = (input.u8(), input.u8());
    vec![byte; [8, 0, 64, 65][usize::from(len % 4)]]
}

/// The change of an accessed key.
enum Then {
    Read,
    Deleted,
    Put(Vec<u8>),
}

type Accesses = BTreeMap<Key, Then>;
type Pairs = BTreeMap<Key, Vec<u8>>;

fn naive(pairs: &Pairs) -> NaiveTrie {
    pairs.iter().map(|(key, value)| (*key, value_hash(Hasher::BLAKE3, value))).collect()
}

/// Bits of the input that choose, again and again in other orders.
struct Choices {
    bits: u64,
    /// True when the folder hashes now and then before the end ([`Folder::hash_so_far`]).
    settles: bool,
}

impl Choices {
    /// A number of two bits.
    fn next(&mut self) -> u8 {
        self.bits = self.bits.rotate_left(7);
        (self.bits & 3) as u8
    }

    /// After an item.
    fn settle(&mut self, folder: &mut Folder) {
        if self.settles && self.next() == 0 {
            folder.hash_so_far();
        }
    }
}

/// All keys below a prefix, the accessed ones, and the known nodes.
struct Page {
    at: Prefix,
    /// The bits by which positions are distinguished, and a key.
    columns: (Option<Columns>, Key),
    pairs: Pairs,
    accesses: Accesses,
    /// The nodes by position.
    before: Vec<Node>,
    known: u64,
    /// The nodes that are known, and garbage.
    nodes: Vec<Node>,
}

impl Page {
    fn position(&self, index: u8) -> Prefix {
        let (columns, like) = &self.columns;
        // The position's number with a leading one, behind which its bits are.
        let number = index + 1;
        let level = number.ilog2() as u8;
        let bits = number - (1 << level);
        match columns {
            Some(columns) if level > 0 => columns.position(like, level, bits),
            _ => self.at.descendant(level, bits),
        }
    }

    /// The nodes of all positions.
    fn nodes(&self, trie: &NaiveTrie) -> Vec<Node> {
        let node = |index| trie.node(Hasher::BLAKE3, &self.position(index));
        (0..POSITIONS).map(node).collect()
    }

    /// Marks those of the input's nodes as known that a fold may read; the others are garbage.
    fn know(&mut self, known: u64) {
        self.known = known;
        let is_stop =
            |index: &u8| known >> index & 1 == 1 && !is_internal(&self.before[usize::from(*index)]);
        let stops = (0..POSITIONS).filter(is_stop).fold(0, |stops, index| stops | 1 << index);
        // Nodes below a known leaf or terminator may be old.
        let is_read = |index: u8| known >> index & 1 == 1 && above(index) & stops == 0;
        let nodes = self.before.iter().zip(0..);
        self.nodes =
            nodes.map(|(node, index)| if is_read(index) { *node } else { GARBAGE }).collect();
    }

    /// Adds all keys below a prefix; and the numbers of the values put.
    fn give<P: Path>(
        &self,
        span: &mut FoldSpan<'_, P>,
        at: &Prefix,
        choices: &mut Choices,
        puts: &mut Vec<HashId>,
    ) {
        let range = *at.first_key()..=at.last_key();
        let all: BTreeMap<&Key, ()> = self
            .pairs
            .range(range.clone())
            .map(|(key, _)| (key, ()))
            .chain(self.accesses.range(range).map(|(key, _)| (key, ())))
            .collect();
        for (key, ()) in all {
            let old = self.pairs.get(key).map(|value| FoldValue::Bytes(value));
            if let Some(then) = self.accesses.get(key) {
                let change = match then {
                    Then::Read => ValueChange::Keep,
                    Then::Deleted => ValueChange::Delete,
                    Then::Put(value) => ValueChange::Put(FoldValue::Bytes(value)),
                };
                puts.push(span.push_accessed(key, old, change));
            } else {
                span.push_unaccessed(key, old.expect("it is there"));
            }
            choices.settle(span.folder());
        }
    }

    /// Folds all keys.
    fn fold_all(&self, folder: &mut Folder, choices: &mut Choices) -> Fold {
        let path = TreeletPath::new(self.at.len(), self.columns.0, true, 0, &[]);
        let mut span = folder.span_along(self.at.len(), path);
        let mut puts = Vec::new();
        self.give(&mut span, &self.at, choices, &mut puts);
        let number = span.end_fold();
        let passed = Passed { by_node: 0, beside: 0 };
        Fold { number, puts, passed }
    }

    /// Folds with the known nodes.
    fn fold_known(&self, folder: &mut Folder, choices: &mut Choices) -> Fold {
        let (known, nodes) = (self.known, &self.nodes[..]);
        let path = TreeletPath::new(self.at.len(), self.columns.0, true, known, nodes);
        let span = folder.span_along(self.at.len(), path);
        let passed = Passed { by_node: 0, beside: 0 };
        let mut walk = Walk { page: self, span, choices, puts: Vec::new(), passed };
        walk.visit(0);
        let Walk { span, puts, passed, .. } = walk;
        let number = span.end_fold();
        Fold { number, puts, passed }
    }
}

fn is_internal(node: &Node) -> bool {
    kind(node) == NodeKind::Internal
}

/// Positions, as masks, below which a fold with known nodes does not go.
struct Passed {
    /// Subtries added by their node.
    by_node: u64,
    /// Subtries that the climb finds.
    beside: u64,
}

/// A fold that was ended.
struct Fold {
    number: usize,
    puts: Vec<HashId>,
    passed: Passed,
}

/// The way down through the positions of a page, some of which are known.
struct Walk<'p, 'f> {
    page: &'p Page,
    span: FoldSpan<'f, TreeletPath<'p>>,
    choices: &'f mut Choices,
    puts: Vec<HashId>,
    passed: Passed,
}

impl Walk<'_, '_> {
    fn visit(&mut self, index: u8) {
        let page = self.page;
        let at = page.position(index);
        let accessed = page.accesses.range(*at.first_key()..=at.last_key()).next().is_some();
        let is_known = page.known >> index & 1 == 1;
        let is_beside = index > 0 && self.span.path.is_entered((index - 1) / 2);
        // What is known is read where the fold reads it, too.
        let nodes = if is_known { &page.nodes } else { &page.before };
        let node = &nodes[usize::from(index)];
        let is_internal = is_internal(node);
        if !accessed && is_known && is_beside {
            self.passed.beside |= 1 << index;
            return;
        }
        if !accessed && is_internal && (is_known || self.choices.next() < 2) {
            self.passed.by_node |= 1 << index;
            self.span.push_known(&at, node);
            return self.choices.settle(self.span.folder());
        }
        let has_levels = index < PARENTS;
        let parts = if is_known { is_internal } else { self.choices.next() < 2 };
        if !has_levels || !parts {
            return page.give(&mut self.span, &at, self.choices, &mut self.puts);
        }
        if is_known && (index == 0 || is_beside) {
            self.span.path.enter(index);
        }
        self.visit(2 * index + 1);
        self.visit(2 * index + 2);
    }
}

/// The result of a fold.
#[derive(Debug, PartialEq)]
struct Outcome {
    node: Node,
    occupancy: Occupancy,
    terminals: Vec<u8>,
    count: usize,
    siblings: Vec<Node>,
    /// For each access: whether it is the first that ends in its terminal.
    firsts: Vec<bool>,
    /// Of each access: the hash of what is put.
    puts: Vec<Option<ValueHash>>,
}

impl Outcome {
    fn of(folder: &Folder, fold: &Fold) -> Self {
        let number = fold.number;
        let mut terminals = Vec::new();
        let no_fragment = |_, _: &mut Vec<u8>| unreachable!("all is given by key");
        let count = folder.terminals(number, &mut terminals, no_fragment) as usize;
        let put = |put: &HashId| (*put != NO_HASH).then(|| *folder.value_hash(*put));
        Self {
            node: *folder.node(number),
            occupancy: folder.occupancy(number),
            terminals,
            count,
            siblings: folder.siblings()[folder.siblings_of(number)].to_vec(),
            firsts: folder.accesses(number).map(|access| folder.is_first(access)).collect(),
            puts: fold.puts.iter().map(put).collect(),
        }
    }

    /// The result by the naive trie.
    fn wanted(page: &Page, after: &NaiveTrie) -> Self {
        let keys: Vec<Key> = page.accesses.keys().copied().collect();
        let mut proof = naive(&page.pairs).multi(Hasher::BLAKE3, &keys);
        // All keys lie below the prefix: nothing is beside the way from there to the root.
        let above = proof.siblings.split_off(proof.siblings.len() - usize::from(page.at.len()));
        assert!(above.iter().all(|node| *node == TERMINATOR));
        let mut terminals = Vec::new();
        proof.terminals.iter().for_each(|terminal| terminal_encode(&mut terminals, terminal));
        let terminal_of = |key: &Key| proof.terminals.iter().position(|one| one.covers(key));
        let ends: Vec<usize> = keys.iter().map(|key| terminal_of(key).expect("one")).collect();
        let put = |then: &Then| match then {
            Then::Put(value) => Some(value_hash(Hasher::BLAKE3, value)),
            Then::Read | Then::Deleted => None,
        };
        Self {
            node: after.node(Hasher::BLAKE3, &page.at),
            occupancy: Occupancy::Many,
            terminals,
            count: proof.terminals.len(),
            siblings: proof.siblings,
            firsts: (0..ends.len()).map(|at| at == 0 || ends[at - 1] != ends[at]).collect(),
            puts: page.accesses.values().map(put).collect(),
        }
    }
}

/// The nodes that a fold keeps: both below each internal node that it has made, without those that the climb found.
fn wanted_nodes(after: &[Node], passed: &Passed) -> BTreeMap<u8, Node> {
    let is_made = |parent: &u8| {
        let outside = passed.by_node | passed.beside;
        is_internal(&after[usize::from(*parent)]) && (above(*parent) | 1 << parent) & outside == 0
    };
    (0..PARENTS)
        .filter(is_made)
        .flat_map(|parent| [2 * parent + 1, 2 * parent + 2])
        .filter(|index| passed.beside >> index & 1 == 0)
        .map(|index| (index, after[usize::from(index)]))
        .collect()
}

/// The kind of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// Too few keys for a treelet.
    Nothing,
    /// A treelet whose levels part at the bits behind its prefix.
    Plain,
    /// One with columns.
    Columns,
}

fn u64_of(input: &mut Input<'_>) -> u64 {
    (0..8).fold(0, |bits, _| bits << 8 | u64::from(input.u8()))
}

/// Folds the input both ways.
pub fn run(data: &[u8]) -> Was {
    let mut input = Input(data);
    let at = Prefix::new(&[0x5a; 32], u16::from(input.u8() % 252));
    let known = u64_of(&mut input);
    // Of half the inputs more is known, or not even the prefix.
    let known = match input.u8() % 8 {
        0 => known & !1,
        1 => known | known.rotate_left(21) | 1,
        2 => !0,
        3 => known | known.rotate_left(21) | known.rotate_left(42) | 1,
        _ => known | 1,
    };
    let bits = u64_of(&mut input);
    let count = input.u8();
    let pattern = PATTERNS[usize::from(count / 40)];
    let pairs: Pairs =
        (0..count % 40).map(|_| (key(&mut input, &at, pattern), value(&mut input))).collect();
    let mut accesses = Accesses::new();
    for _ in 0..=input.u8() % 12 {
        let choice = input.u8();
        let own = pairs.keys().nth(usize::from(choice >> 2)).copied();
        let key = own.unwrap_or_else(|| key(&mut input, &at, pattern));
        let then = match choice % 4 {
            0 => Then::Read,
            1 => Then::Deleted,
            _ => Then::Put(value(&mut input)),
        };
        accesses.insert(key, then);
    }
    let like = *pairs.keys().chain(accesses.keys()).next().expect("an access at least");
    let mut differing = DifferingBits::from(&like);
    pairs.keys().chain(accesses.keys()).for_each(|key| differing.add(key));
    let columns = (differing.columns(at.len()), like);
    let (before, nodes) = (Vec::new(), Vec::new());
    let mut page = Page { at, columns, pairs, accesses, before, known: 0, nodes };
    page.before = page.nodes(&naive(&page.pairs));
    if !is_internal(&page.before[0]) {
        return Was::Nothing;
    }
    page.know(known);
    check(&page, bits);
    if columns.0.is_some() { Was::Columns } else { Was::Plain }
}

fn check(page: &Page, bits: u64) {
    let mut after = page.pairs.clone();
    for (key, then) in &page.accesses {
        match then {
            Then::Read => None,
            Then::Deleted => after.remove(key),
            Then::Put(value) => after.insert(*key, value.clone()),
        };
    }
    let after = naive(&after);
    let (wanted, after) = (Outcome::wanted(page, &after), page.nodes(&after));

    let mut folder = Folder::new(Hasher::BLAKE3);
    let mut choices = Choices { bits, settles: false };
    // Each alone first; then one behind the other, with settling.
    for settles in [false, true] {
        choices.settles = settles;
        // What is folded before, to the end or not, leaves nothing.
        let mut puts = Vec::new();
        page.give(&mut folder.span(page.at.len()), &page.at, &mut choices, &mut puts);
        clear(&mut folder);
        let mut folds = vec![page.fold_known(&mut folder, &mut choices)];
        if !settles {
            folder.run();
            check_folds(&folder, &folds, &wanted, &after);
            clear(&mut folder);
            folds.clear();
        }
        folds.push(page.fold_all(&mut folder, &mut choices));
        folder.run();
        check_folds(&folder, &folds, &wanted, &after);
    }
    clear(&mut folder);
    let mut span = folder.span_along(page.at.len(), SiblingPath::new(&wanted.siblings));
    span.push_terminals(&wanted.terminals);
    let fold = span.end_proof().expect("a multiproof");
    folder.run();
    assert_eq!(*folder.node(fold), page.before[0], "the node that the multiproof leads to");
}

fn clear(folder: &mut Folder) {
    folder.clear();
    assert!(folder.is_empty() && folder.nodes().is_empty() && folder.siblings().is_empty());
}

fn check_folds(folder: &Folder, folds: &[Fold], wanted: &Outcome, after: &[Node]) {
    let mut kept = folder.nodes();
    for fold in folds {
        assert_eq!(Outcome::of(folder, fold), *wanted);
        let nodes = wanted_nodes(after, &fold.passed);
        assert!(nodes.len() <= kept.len(), "{} nodes of {}", kept.len(), nodes.len());
        let (own, rest) = kept.split_at(nodes.len());
        // As many as expected: so each is there once.
        assert_eq!(own.iter().copied().collect::<BTreeMap<_, _>>(), nodes);
        kept = rest;
    }
    assert!(kept.is_empty(), "nodes are left over");
}
