//! Pages, regions and root as line trees give the root and the witness, byte by byte, that the slow trie gives; and the
//! lines that a batch leaves are nodes of the trie after it.
#![cfg(feature = "naive")]

mod common;
mod fold_support;

use std::collections::{BTreeMap, BTreeSet};

use common::{SPREADS, Spread, cases, rng};
use fold_support::{Case, Value, Write};
use pleach_core::fold::{Change, FoldValue};
use pleach_core::naive::Naive;
use pleach_core::proof::wire::Sizes;
use pleach_core::proof::{Access, Op, op::op_not_first, witness};
use pleach_core::tree::{
    GroupedLines, HiddenLeaf, KeyAccess, LineTree, Merkleizer, PageChange, PageView, Subtrie,
    Tiling,
};
use pleach_core::{Blake3, Hasher, Key, Node, Prefix, Sha2, node};

type Pairs = BTreeMap<Key, Value>;
/// New lines of a tiling: boundary and line.
type Lined = Vec<(u32, [Node; 2])>;

/// What is known of a page's lines before the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    Unknown,
    /// As a page has them that was read from the device.
    Stored,
    /// All; but pages are brought to the state after a batch without the lines that it has computed.
    Forgotten,
    Known,
}

const LINES: [Lines; 4] = [Lines::Unknown, Lines::Stored, Lines::Forgotten, Lines::Known];

struct Page {
    at: Prefix,
    tree: LineTree,
    values: Vec<Value>,
}

/// What pages, regions and root have in memory.
struct Memory {
    pages: Vec<Page>,
    regions: Vec<(Prefix, std::ops::Range<usize>, Tiling)>,
    root: Tiling,
}

/// A value as its bytes or as its hash.
fn fold_value<H: Hasher>(value: &Value) -> FoldValue<'_> {
    if value.len() == 32 {
        FoldValue::Hash(node::value_hash::<H>(value))
    } else {
        FoldValue::Bytes(value)
    }
}

fn naive<H: Hasher>(pairs: &Pairs) -> Naive {
    pairs.iter().map(|(key, value)| (*key, node::value_hash::<H>(value))).collect()
}

fn below<'a>(pairs: &'a Pairs, at: &Prefix) -> impl Iterator<Item = (&'a Key, &'a Value)> {
    pairs.range(*at.first_key()..=at.last_key())
}

fn node_of<H: Hasher>(pairs: &Pairs, at: &Prefix) -> Node {
    let own = below(pairs, at).map(|(key, value)| (*key, value.clone())).collect();
    naive::<H>(&own).node::<H>(at)
}

impl Memory {
    fn new<H: Hasher>(case: &Case, base: &Pairs, lines: Lines) -> Self {
        let mut pages: Vec<Page> = Vec::new();
        for at in case.pages() {
            let own: Vec<(&Key, &Value)> = below(base, &at).collect();
            let keys: Vec<Key> = own.iter().map(|(key, _)| **key).collect();
            let mut tree = LineTree::from_keys(at.len(), &keys);
            if lines == Lines::Stored && at.len() <= 253 {
                let nodes = (0..8).map(|bits| node_of::<H>(base, &at.descendant(3, bits)));
                tree.set_stored(3, &nodes.collect::<Vec<_>>());
            }
            pages.push(Page {
                at,
                tree,
                values: own.into_iter().map(|(_, v)| v.clone()).collect(),
            });
        }
        let mut next = 0;
        let mut regions = Vec::new();
        for at in case.regions() {
            let from = next;
            while pages.get(next).is_some_and(|page| at.contains(&page.at)) {
                next += 1;
            }
            let own = &pages[from..next];
            let nodes: Vec<Node> = own.iter().map(|page| node_of::<H>(base, &page.at)).collect();
            let tiling = Tiling::new::<H>(own.iter().map(|page| page.at), &nodes);
            assert_eq!(*tiling.own(), node_of::<H>(base, &at));
            regions.push((at, from..next, tiling));
        }
        let nodes: Vec<Node> = regions.iter().map(|(.., tiling)| *tiling.own()).collect();
        let root = Tiling::new::<H>(regions.iter().map(|(at, ..)| *at), &nodes);
        Self { pages, regions, root }
    }

    /// Everything in memory is of these pairs.
    fn check<H: Hasher>(&self, pairs: &Pairs, all_known: bool) {
        for page in &self.pages {
            let own: Vec<(&Key, &Value)> = below(pairs, &page.at).collect();
            assert_eq!(page.tree.len(), own.len());
            assert_eq!(page.values.len(), own.len());
            for (at, (key, value)) in own.iter().enumerate() {
                assert_eq!(page.tree.key(at), *key);
                assert_eq!(&page.values[page.tree.slot(at)], *value);
                assert_eq!(page.tree.find(key), Ok(at));
            }
            let mut known = 0;
            for (at, node) in page.tree.nodes() {
                assert_eq!(*node, node_of::<H>(pairs, &at), "a line at {at:?}");
                known += 1;
            }
            assert_eq!(page.tree.is_known(), known == 2 * own.len().saturating_sub(1));
            assert!(!all_known || page.tree.is_known());
            if page.at.len() <= 253 {
                let (nodes, known) = page.tree.stored::<8>(3);
                for (bits, node) in (0..8).zip(nodes).filter(|(bits, _)| known >> bits & 1 == 1) {
                    assert_eq!(node, node_of::<H>(pairs, &page.at.descendant(3, bits)), "{bits}");
                }
            }
        }
        for (at, pages, tiling) in &self.regions {
            let nodes = self.pages[pages.clone()].iter().map(|page| node_of::<H>(pairs, &page.at));
            let nodes: Vec<Node> = nodes.collect();
            let prefixes = self.pages[pages.clone()].iter().map(|page| page.at);
            same(tiling, &Tiling::new::<H>(prefixes, &nodes));
            assert_eq!(*tiling.own(), node_of::<H>(pairs, at));
        }
        let mut other = self.root.clone();
        other.update::<H>(self.regions.iter().map(|(.., tiling)| *tiling.own()).enumerate());
        same(&self.root, &other);
        let nodes: Vec<Node> = self.regions.iter().map(|(.., tiling)| *tiling.own()).collect();
        same(&self.root, &Tiling::new::<H>(self.regions.iter().map(|(at, ..)| *at), &nodes));
    }
}

fn same(a: &Tiling, b: &Tiling) {
    assert_eq!((a.len(), a.own()), (b.len(), b.own()));
    for boundary in 0..a.len() - 1 {
        assert_eq!(a.line(boundary), b.line(boundary), "boundary {boundary}");
    }
}

/// A batch: what is accessed, on the pairs of a view, over memory that has those of `base`.
struct Batch<'a> {
    accesses: &'a BTreeMap<Key, fold_support::Accessed>,
    view: &'a Pairs,
    base: &'a Pairs,
    exposed: BTreeSet<Key>,
}

impl<'a> Batch<'a> {
    fn op<H: Hasher>(&self, key: &Key) -> Op {
        let access = &self.accesses[key];
        let put = match &access.writes {
            Write::Nothing => return Op { key: *key, access: Access::Read },
            Write::Put(value) => Some(node::value_hash::<H>(value)),
            Write::Delete => None,
        };
        let access = if access.reads { Access::ReadWrite(put) } else { Access::Write(put) };
        Op { key: *key, access }
    }

    /// Accesses and differing keys below a prefix.
    fn of_page<H: Hasher>(&self, at: &Prefix) -> Vec<KeyAccess<'a>> {
        let range = *at.first_key()..=at.last_key();
        let keys = self.accesses.range(range.clone()).map(|(key, _)| key);
        let keys = keys.chain(self.view.range(range.clone()).map(|(key, _)| key));
        let keys: BTreeSet<&Key> = keys.chain(self.base.range(range).map(|(key, _)| key)).collect();
        let mut all = Vec::new();
        for key in keys {
            let differs = self.view.get(key) != self.base.get(key);
            let access = self.accesses.get(key);
            if !differs && access.is_none() {
                continue;
            }
            all.push(KeyAccess {
                key: *key,
                accessed: access.is_some(),
                differs,
                reads: access.is_some_and(|access| access.reads),
                old: self.view.get(key).map(fold_value::<H>),
                change: match access.map(|access| &access.writes) {
                    None | Some(Write::Nothing) => Change::Keep,
                    Some(Write::Put(value)) => Change::Put(fold_value::<H>(value)),
                    Some(Write::Delete) => Change::Delete,
                },
            });
        }
        all
    }

    fn exposed(&self, at: &Prefix) -> Option<(&'a Key, &'a Value)> {
        let key = self.exposed.iter().find(|key| at.covers(key))?;
        let pair = below(self.view, at).next().expect("a leaf was asked for");
        assert!(below(self.view, at).count() == 1 && at.covers(key));
        Some(pair)
    }
}

/// What a batch makes of a page or tiling.
struct Made {
    root: Node,
    witness: Vec<u8>,
    /// Page, and the accesses that it was given.
    pages: Vec<(usize, PageChange)>,
    regions: Vec<(usize, Lined, Node)>,
    top: Lined,
}

/// Root, witness and changes by two merkleizers: for pages and regions, and for the root. A key that is asked for as
/// an error.
#[expect(clippy::too_many_lines, reason = "pages, regions and root as an engine goes through them")]
fn merkleize<H: Hasher>(
    memory: &Memory,
    batch: &Batch<'_>,
    merkleizer: &mut Merkleizer<H>,
) -> Result<Made, Key> {
    merkleizer.clear();
    let mut given: Vec<(usize, u32, Vec<KeyAccess<'_>>)> = Vec::new();
    let mut ends = Vec::new();
    for (index, (at, pages, tiling)) in memory.regions.iter().enumerate() {
        let children: Vec<(usize, Vec<KeyAccess<'_>>)> = pages
            .clone()
            .map(|page| (page, batch.of_page::<H>(&memory.pages[page].at)))
            .filter(|(page, accesses)| {
                !accesses.is_empty() || batch.exposed(&memory.pages[*page].at).is_some()
            })
            .collect();
        if children.is_empty() {
            continue;
        }
        let number = merkleizer.begin_tiling();
        let mut top: Option<Subtrie> = None;
        for (child, (at_page, accesses)) in children.iter().enumerate() {
            let page = &memory.pages[*at_page];
            let subtrie = if accesses.is_empty() {
                let (key, value) = batch.exposed(&page.at).expect("asked for");
                if at_page % 2 == 0 {
                    merkleizer.unaccessed_leaf(key, fold_value::<H>(value), true)
                } else {
                    let value = |slot: usize| fold_value::<H>(&page.values[slot]);
                    merkleizer.unaccessed_page(PageView { tree: &page.tree, value: &value })
                }
            } else {
                let value = |slot: usize| fold_value::<H>(&page.values[slot]);
                let view = PageView { tree: &page.tree, value: &value };
                let (number, subtrie) = merkleizer.page(view, accesses);
                given.push((*at_page, number, accesses.clone()));
                subtrie
            };
            let next = children.get(child + 1).map(|(next, _)| next - pages.start);
            let place = at_page - pages.start;
            match merkleizer.child((tiling, number), place, subtrie, next) {
                Ok(up) => top = up,
                Err(HiddenLeaf { child }) => {
                    return Err(*memory.pages[pages.start + child].at.first_key());
                }
            }
        }
        let top = top.expect("the last child reaches the top");
        let end = merkleizer.end(top, at.len());
        ends.push((index, number, end, top.is_same()));
    }
    merkleizer.run();
    let mut grouped = GroupedLines::default();
    merkleizer.group(&mut grouped);
    let mut pages = Vec::new();
    for (at, number, accesses) in &given {
        let page = &memory.pages[*at];
        let value = |slot: usize| fold_value::<H>(&page.values[slot]);
        let view = PageView { tree: &page.tree, value: &value };
        // Which access it was.
        let _ = accesses;
        pages.push((*at, merkleizer.page_change(&view, *number, &grouped)));
    }
    let mut root = Merkleizer::<H>::default();
    let (mut ops, mut first_ops, mut regions) = (Vec::new(), Vec::new(), Vec::new());
    let (mut top, number) = (None, root.begin_tiling());
    for (at, (index, tiling, end, is_same)) in ends.iter().enumerate() {
        let (prefix, _, own) = &memory.regions[*index];
        let node = if *is_same { *own.own() } else { *merkleizer.end_node(*end) };
        regions.push((*index, grouped.of(*tiling).to_vec(), node));
        let subtrie = match (merkleizer.occupancy(*end), merkleizer.lone(*end)) {
            (Some(old), _) => {
                first_ops.push(ops.len());
                merkleizer.ops(*end, &mut ops);
                let number = u32::try_from(*end).unwrap();
                root.fragment((&node, prefix.len()), (&old, prefix.first_key()), number)
            }
            (None, Some((key, hash))) => root.unaccessed_leaf(&key, FoldValue::Hash(hash), false),
            (None, None) => root.unaccessed(&node, prefix.len()),
        };
        let next = ends.get(at + 1).map(|(next, ..)| *next);
        match root.child((&memory.root, number), *index, subtrie, next) {
            Ok(up) => top = up,
            Err(HiddenLeaf { child }) => {
                let pages = &memory.pages[memory.regions[child].1.clone()];
                let page = pages.iter().find(|page| below(batch.view, &page.at).next().is_some());
                return Err(*page.expect("the leaf").at.first_key());
            }
        }
    }
    let Some(top) = top else {
        let root = *memory.root.own();
        let witness = witness::Witness::default().encode::<H>().unwrap();
        return Ok(Made { root, witness, pages, regions, top: Vec::new() });
    };
    let end = root.end(top, 0);
    root.run();
    for (at, first) in first_ops.into_iter().zip(root.firsts(end)) {
        if !first {
            op_not_first(&mut ops[at]);
        }
    }
    let mut terminals = Vec::new();
    let mut count = 0;
    count += root.terminals(end, &mut terminals, |number, out| {
        count += merkleizer.terminals(number as usize, out, |_, _| unreachable!("no fragments"));
    });
    let mut siblings = Vec::new();
    root.siblings(end, &mut siblings, |number, out| {
        merkleizer.siblings(number as usize, out, |_, _| unreachable!("no fragments"));
    });
    let size = |size: usize| u32::try_from(size).unwrap();
    let sizes = Sizes {
        terminals: count,
        ops: size(batch.accesses.len()),
        siblings: size(siblings.len()),
        terminal_bytes: size(terminals.len()),
        op_bytes: size(ops.len()),
    };
    let mut bytes = witness::header::<H>(&sizes).to_vec();
    bytes.extend_from_slice(&terminals);
    bytes.extend_from_slice(&ops);
    bytes.extend_from_slice(Node::bytes_of(&siblings));
    root.group(&mut grouped);
    let node = if top.is_same() { *memory.root.own() } else { *root.end_node(end) };
    Ok(Made { root: node, witness: bytes, pages, regions, top: grouped.of(number).to_vec() })
}

fn apply(memory: &mut Memory, made: Made, batch: &Batch<'_>, forgets: bool) {
    for (at, change) in made.pages {
        let page = &mut memory.pages[at];
        if forgets {
            let range = *page.at.first_key()..=page.at.last_key();
            let written =
                batch.accesses.range(range).filter_map(|(key, access)| match &access.writes {
                    Write::Nothing => None,
                    Write::Put(value) => Some((*key, Some(value.clone()))),
                    Write::Delete => Some((*key, None)),
                });
            page.tree.change(&mut page.values, &written.collect::<Vec<_>>());
            continue;
        }
        let range = *page.at.first_key()..=page.at.last_key();
        let accesses: Vec<_> = batch.accesses.range(range).collect();
        // Values stay in their slots before keys move.
        for (key, access) in &accesses {
            if let (Ok(at), Write::Put(value)) = (page.tree.find(key), &access.writes) {
                let slot = page.tree.slot(at);
                page.values[slot].clone_from(value);
            }
        }
        change.apply(&mut page.tree, &mut page.values, |access| {
            let Write::Put(value) = &accesses[access as usize].1.writes else {
                panic!("a new key was put")
            };
            value.clone()
        });
    }
    for (index, lines, node) in made.regions {
        let tiling = &mut memory.regions[index].2;
        for (boundary, pair) in lines {
            tiling.set_line(boundary as usize, &pair);
        }
        tiling.set_own(&node);
    }
    for (boundary, pair) in made.top {
        memory.root.set_line(boundary as usize, &pair);
    }
    memory.root.set_own(&made.root);
}

fn run<H: Hasher>(memory: &Memory, batch: &mut Batch<'_>, merkleizer: &mut Merkleizer<H>) -> Made {
    loop {
        match merkleize(memory, batch, merkleizer) {
            Ok(made) => return made,
            Err(key) => {
                assert!(batch.exposed.insert(key), "a leaf was given and is asked for again");
            }
        }
    }
}

/// The witness is that of the slow trie; gives the pairs afterwards.
fn check_made<H: Hasher>(batch: &Batch<'_>, made: &Made) -> Pairs {
    let mut set = naive::<H>(batch.view);
    let before = set.root::<H>();
    let ops: Vec<Op> = batch.accesses.keys().map(|key| batch.op::<H>(key)).collect();
    let wanted = set.witness::<H>(&ops).encode::<H>().unwrap();
    set.apply(&ops);
    assert_eq!(made.root, set.root::<H>(), "the root");
    assert_eq!(made.witness, wanted, "the witness");
    let verified = witness::verify::<H>(&made.witness, &before).expect("a witness");
    assert_eq!(*verified.new_root(), made.root);
    let mut after = batch.view.clone();
    for (key, access) in batch.accesses {
        match &access.writes {
            Write::Nothing => {}
            Write::Put(value) => drop(after.insert(*key, value.clone())),
            Write::Delete => drop(after.remove(key)),
        }
    }
    after
}

/// Two batches, one on top of the other.
fn check<H: Hasher>(case: &Case, lines: Lines, merkleizer: &mut Merkleizer<H>) {
    let mut memory = Memory::new::<H>(case, &case.pairs, lines);
    if matches!(lines, Lines::Known | Lines::Forgotten) {
        let accessed =
            |key: &Key| (*key, fold_support::Accessed { reads: true, writes: Write::Nothing });
        let accesses = case.pairs.keys().map(accessed).collect();
        let (view, base, exposed) = (&case.pairs, &case.pairs, BTreeSet::new());
        let mut batch = Batch { accesses: &accesses, view, base, exposed };
        let made = run(&memory, &mut batch, merkleizer);
        check_made::<H>(&batch, &made);
        apply(&mut memory, made, &batch, false);
        memory.check::<H>(&case.pairs, true);
    }
    let mut pairs = case.pairs.clone();
    let mut accesses = case.accesses.clone();
    for turn in 0..3 {
        let (view, base, exposed) = (&pairs, &pairs, BTreeSet::new());
        let mut batch = Batch { accesses: &accesses, view, base, exposed };
        let made = run(&memory, &mut batch, merkleizer);
        let after = check_made::<H>(&batch, &made);
        apply(&mut memory, made, &batch, lines == Lines::Forgotten);
        memory.check::<H>(&after, lines == Lines::Known);
        pairs = after;
        for access in accesses.values_mut() {
            access.writes = match &access.writes {
                Write::Nothing => Write::Put(vec![turn]),
                Write::Put(_) => Write::Delete,
                Write::Delete => Write::Put(vec![turn; 9]),
            };
        }
    }
}

/// A batch on a view that differs from what pages have.
fn check_view<H: Hasher>(case: &Case, lines: Lines, merkleizer: &mut Merkleizer<H>) {
    let mut base = Pairs::new();
    for (at, (key, value)) in case.pairs.iter().enumerate() {
        match at % 4 {
            0 => drop(base.insert(*key, vec![9; 5])),
            1 => {}
            _ => drop(base.insert(*key, value.clone())),
        }
    }
    for key in case.accesses.keys().filter(|key| !case.pairs.contains_key(*key)).step_by(2) {
        base.insert(*key, vec![7]);
    }
    let memory = Memory::new::<H>(case, &base, lines);
    let (accesses, view, exposed) = (&case.accesses, &case.pairs, BTreeSet::new());
    let mut batch = Batch { accesses, view, base: &base, exposed };
    let made = run(&memory, &mut batch, merkleizer);
    check_made::<H>(&batch, &made);
}

fn agrees<H: Hasher>(spread: Spread, seed: u64, count: u64) {
    let kept = std::cell::RefCell::new(Merkleizer::<H>::default());
    for number in 0..cases(count) {
        let case = Case::draw(spread, &mut rng(seed << 32 | number));
        let lines = LINES[(number % 4) as usize];
        case.run(&format!("{spread:?} case {number} {lines:?}"), |case| {
            let mut merkleizer = kept.take();
            check::<H>(case, lines, &mut merkleizer);
            check_view::<H>(case, lines, &mut merkleizer);
            kept.replace(merkleizer);
        });
    }
}

#[test]
fn roots_witnesses_and_lines_agree_under_blake3() {
    for (seed, spread) in (21..).zip(SPREADS) {
        agrees::<Blake3>(spread, seed, 300);
    }
}

#[test]
fn roots_witnesses_and_lines_agree_under_sha256() {
    for (seed, spread) in (31..).zip(SPREADS) {
        agrees::<Sha2>(spread, seed, 60);
    }
}
