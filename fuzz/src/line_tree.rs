//! A page of the fuzzer's keys as a line tree, through several batches.
//!
//! The input says where the prefix ends, which keys there are, and for each batch which of them and of others are accessed,
//! which have other values in the view that it is on, and how the page comes to the state after it.

use pleach_core::fold::{Change, FoldValue};
use pleach_core::naive::Naive;
use pleach_core::node::value_hash;
use pleach_core::proof::wire::Sizes;
use pleach_core::proof::{Access, Op, witness};
use pleach_core::tree::{
    GroupedLines, KeyAccess, LineTree, Merkleizer, PageChange, PageView, Subtrie,
};
use pleach_core::{Blake3, Key, Node, Prefix};
use std::collections::{BTreeMap, BTreeSet};

use super::input::Input;

type Pairs = BTreeMap<Key, Vec<u8>>;

/// Bits of each byte in which most keys of an input differ.
const PATTERNS: [u8; 7] = [0xff, 0xff, 0xff, 0x0f, 0x36, 0x11, 0x81];

/// A key below the prefix: it differs from the others at a place of choice, from there on or in one byte.
fn key(input: &mut Input<'_>, at: &Prefix, pattern: u8) -> Key {
    let (place, value) = (input.u8(), input.u8());
    let mut key = [if place & 0x80 == 0 { 0 } else { pattern }; 32];
    key[usize::from(place & 31)] ^= value & pattern;
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
    vec![byte; [8, 0, 64, 65, 129][usize::from(len % 5)]]
}

#[derive(Clone)]
enum Write {
    Nothing,
    Delete,
    Put(Vec<u8>),
}

fn naive(pairs: &Pairs) -> Naive {
    pairs.iter().map(|(key, value)| (*key, value_hash::<Blake3>(value))).collect()
}

fn op(key: &Key, reads: bool, write: &Write) -> Op {
    let put = match write {
        Write::Nothing => return Op { key: *key, access: Access::Read },
        Write::Delete => None,
        Write::Put(value) => Some(value_hash::<Blake3>(value)),
    };
    Op { key: *key, access: if reads { Access::ReadWrite(put) } else { Access::Write(put) } }
}

/// Has the page these pairs, and is each line that is known a line of their trie?
fn check(tree: &LineTree, values: &[Vec<u8>], pairs: &Pairs) {
    assert_eq!((tree.len(), values.len()), (pairs.len(), pairs.len()));
    for (at, (key, value)) in pairs.iter().enumerate() {
        assert_eq!(tree.find(key), Ok(at));
        assert_eq!(&values[tree.slot(at)], value);
    }
    let trie = naive(pairs);
    for (at, node) in tree.nodes() {
        assert_eq!(*node, trie.node::<Blake3>(&at), "a line at {at:?}");
    }
}

/// The witness of a page that is the whole trie.
fn encode(
    merkleizer: &Merkleizer<Blake3>,
    (top, end): (&Subtrie, usize),
    before: &Node,
    count: usize,
) -> (Node, Vec<u8>) {
    let (mut terminals, mut ops, mut siblings) = (Vec::new(), Vec::new(), Vec::new());
    let terminal_count = merkleizer.terminals(end, &mut terminals, |_, _| unreachable!("none"));
    merkleizer.ops(end, &mut ops);
    merkleizer.siblings(end, &mut siblings, |_, _| unreachable!("none"));
    let size = |size: usize| u32::try_from(size).unwrap();
    let sizes = Sizes {
        terminals: terminal_count,
        ops: size(count),
        siblings: size(siblings.len()),
        terminal_bytes: size(terminals.len()),
        op_bytes: size(ops.len()),
    };
    let mut bytes = witness::header::<Blake3>(&sizes).to_vec();
    bytes.extend_from_slice(&terminals);
    bytes.extend_from_slice(&ops);
    bytes.extend_from_slice(Node::bytes_of(&siblings));
    let node = if top.is_same() { *before } else { *merkleizer.end_node(end) };
    (node, bytes)
}

/// Runs the batches that the input says; gives how many changed keys of the page.
pub fn run(data: &[u8]) -> usize {
    let mut input = Input(data);
    let depth = [0, 0, u16::from(input.u8() % 253)][usize::from(input.u8() % 3)];
    let at = Prefix::new(&[0x5a; 32], depth);
    let pattern = PATTERNS[usize::from(input.u8() % 7)];
    let count = input.u8() % 40;
    let mut page: Pairs =
        (0..count).map(|_| (key(&mut input, &at, pattern), value(&mut input))).collect();
    let keys: Vec<Key> = page.keys().copied().collect();
    let mut values: Vec<Vec<u8>> = page.values().cloned().collect();
    let mut tree = LineTree::from_keys(depth, &keys);
    let levels = input.u8() % 4;
    let trie = naive(&page);
    let nodes = (0..1 << levels).map(|bits| trie.node::<Blake3>(&at.descendant(levels, bits)));
    tree.set_stored(levels, &nodes.collect::<Vec<_>>());
    let mut merkleizer = Merkleizer::<Blake3>::default();
    let mut changed = 0;
    for _ in 0..=input.u8() % 6 {
        let mut view = page.clone();
        let draw = |input: &mut Input<'_>| {
            let choice = input.u8();
            let own = page.keys().nth(usize::from(choice >> 1)).copied();
            own.unwrap_or_else(|| key(input, &at, pattern))
        };
        for _ in 0..[0, 0, 0, 5][usize::from(input.u8() % 4)] {
            let key = draw(&mut input);
            match input.u8() % 2 {
                0 => drop(view.remove(&key)),
                _ => drop(view.insert(key, value(&mut input))),
            }
        }
        let mut accesses: BTreeMap<Key, (bool, Write)> = BTreeMap::new();
        for _ in 0..=input.u8() % 12 {
            let key = draw(&mut input);
            let choice = input.u8();
            let write = match choice % 4 {
                0 => Write::Nothing,
                1 => Write::Delete,
                _ => Write::Put(value(&mut input)),
            };
            accesses.insert(key, (choice & 4 != 0 || choice % 4 == 0, write));
        }
        let differing =
            view.keys().chain(page.keys()).filter(|key| view.get(*key) != page.get(*key));
        let all: BTreeSet<Key> = differing.chain(accesses.keys()).copied().collect();
        let put = |write: &'_ Write| match write {
            Write::Put(value) => value.clone(),
            _ => Vec::new(),
        };
        let new: Vec<Vec<u8>> = all
            .iter()
            .map(|key| accesses.get(key).map_or_else(Vec::new, |(_, w)| put(w)))
            .collect();
        let given: Vec<KeyAccess<'_>> = all
            .iter()
            .zip(&new)
            .map(|(key, new)| KeyAccess {
                key: *key,
                accessed: accesses.contains_key(key),
                differs: view.get(key) != page.get(key),
                reads: accesses.get(key).is_some_and(|(reads, _)| *reads),
                old: view.get(key).map(|value| FoldValue::Bytes(value)),
                change: match accesses.get(key) {
                    None | Some((_, Write::Nothing)) => Change::Keep,
                    Some((_, Write::Delete)) => Change::Delete,
                    Some((_, Write::Put(_))) => Change::Put(FoldValue::Bytes(new)),
                },
            })
            .collect();
        merkleizer.clear();
        let page_value = |slot: usize| FoldValue::Bytes(&values[slot]);
        let own = PageView { tree: &tree, value: &page_value };
        let (number, top) = merkleizer.page(own, &given);
        let end = merkleizer.end(top, depth);
        merkleizer.run();
        let mut lines = GroupedLines::default();
        merkleizer.group(&mut lines);
        let change = merkleizer.page_change(&own, number, &lines);
        let before = naive(&page).node::<Blake3>(&at);
        let mut set = naive(&view);
        let ops: Vec<Op> = accesses.iter().map(|(key, (r, w))| op(key, *r, w)).collect();
        let wanted = (depth == 0).then(|| set.witness::<Blake3>(&ops).encode::<Blake3>().unwrap());
        set.apply(&ops);
        let (node, bytes) = encode(&merkleizer, (&top, end), &before, accesses.len());
        assert_eq!(node, set.node::<Blake3>(&at), "the node");
        if let Some(wanted) = wanted {
            assert_eq!(bytes, wanted, "the witness");
        }
        // The page comes to the state after the batch: with its lines where the view is the page, else without.
        let mut after = view.clone();
        for (key, (_, write)) in &accesses {
            match write {
                Write::Nothing => {}
                Write::Delete => drop(after.remove(key)),
                Write::Put(value) => drop(after.insert(*key, value.clone())),
            }
        }
        if view == page && input.u8() % 4 > 0 {
            for (key, (_, write)) in &accesses {
                if let (Ok(at), Write::Put(value)) = (tree.find(key), write) {
                    values[tree.slot(at)].clone_from(value);
                }
            }
            changed += usize::from(matches!(change, PageChange::Keys(_)));
            change.apply(&mut tree, &mut values, |access| after[&given_key(&all, access)].clone());
        } else {
            let all = all.iter().map(|key| (*key, after.get(key).cloned()));
            tree.change(&mut values, &all.collect::<Vec<_>>());
        }
        check(&tree, &values, &after);
        page = after;
    }
    changed
}

fn given_key(all: &BTreeSet<Key>, access: u32) -> Key {
    *all.iter().nth(access as usize).expect("an access")
}
