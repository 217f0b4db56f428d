//! A treelet of the fuzzer's keys, folded by the mask kernel and in the general way.
//!
//! The input says where the prefix ends, which keys there are, which of them and of others are accessed, and which
//! nodes are known.

use pleach_core::fold::{
    BatchFolder, Change, Differing, FoldValue, Keys, NO_HASH, Occupancy, Sink, TreeletFolder,
    heap_position, way,
};
use pleach_core::naive::Naive;
use pleach_core::node::{NodeKind, kind, value_hash};
use pleach_core::proof::terminal::{Terminal, terminal_encode};
use pleach_core::{Hasher, Key, Node, Prefix, ValueHash};
use std::collections::BTreeMap;

use super::input::Input;

const LEVELS: u8 = 5;
const POSITIONS: u8 = 63;

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

/// What a fold emits: terminals as a witness has them, and siblings.
#[derive(Debug, Default, PartialEq)]
struct Emitted(Vec<u8>, Vec<Node>);

impl Sink for Emitted {
    fn leaf(&mut self, key: &Key, value_hash: &ValueHash, depth: u16) {
        let terminal = Terminal::Leaf { key: *key, value_hash: *value_hash, depth };
        terminal_encode(&mut self.0, &terminal);
    }

    fn terminator(&mut self, key: &Key, depth: u16) {
        terminal_encode(&mut self.0, &Terminal::Terminator { prefix: Prefix::new(key, depth) });
    }

    fn sibling(&mut self, node: &Node) {
        self.1.push(*node);
    }

    fn fragment(&mut self, _: u32) {
        unreachable!("all is given by key");
    }
}

/// What becomes of an accessed key.
enum Then {
    Read,
    Deleted,
    Put(Vec<u8>),
}

type Accesses = BTreeMap<Key, Then>;
type Pairs = BTreeMap<Key, Vec<u8>>;

/// Gives all keys below a prefix; and the numbers of what is put.
fn give(keys: &mut impl Keys, at: &Prefix, pairs: &Pairs, accesses: &Accesses, put: &mut Vec<u32>) {
    let range = *at.first_key()..=at.last_key();
    let all: BTreeMap<&Key, ()> = pairs
        .range(range.clone())
        .map(|(key, _)| (key, ()))
        .chain(accesses.range(range).map(|(key, _)| (key, ())))
        .collect();
    for (key, ()) in all {
        let old = pairs.get(key).map(|value| FoldValue::Bytes(value));
        let Some(then) = accesses.get(key) else {
            keys.unaccessed(key, old.expect("it is there"));
            continue;
        };
        let change = match then {
            Then::Read => Change::Keep,
            Then::Deleted => Change::Delete,
            Then::Put(value) => Change::Put(FoldValue::Bytes(value)),
        };
        put.push(keys.accessed(key, old, change));
    }
}

fn naive(pairs: &Pairs) -> Naive {
    pairs.iter().map(|(key, value)| (*key, value_hash(Hasher::BLAKE3, value))).collect()
}

/// What an input was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// Too few keys for a treelet.
    Nothing,
    /// A treelet whose levels part at the bits behind its prefix.
    Plain,
    /// One with columns.
    Columns,
}

/// Folds what the input says both ways.
pub fn run(data: &[u8]) -> Was {
    let mut input = Input(data);
    let at = Prefix::new(&[0x5a; 32], u16::from(input.u8() % 252));
    let known = (0..8).fold(0_u64, |mask, _| mask << 8 | u64::from(input.u8()));
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
    let before = naive(&pairs);
    let like = *pairs.keys().chain(accesses.keys()).next().expect("an access at least");
    let mut differing = Differing::from(&like);
    pairs.keys().chain(accesses.keys()).for_each(|key| differing.add(key));
    let columns = differing.columns(at.len());
    let position = |index: u8| match (heap_position(index), columns) {
        ((level, bits), Some(columns)) if level > 0 => columns.position(&like, level, bits),
        ((level, bits), _) => at.descendant(level, bits),
    };
    let nodes: Vec<Node> =
        (0..POSITIONS).map(|index| before.node(Hasher::BLAKE3, &position(index))).collect();
    if kind(&nodes[0]) != NodeKind::Internal {
        return Was::Nothing;
    }
    // The prefix is known, and of the others what the input says.
    let known = known | 1;
    let internal = (0..POSITIONS)
        .filter(|index| kind(&nodes[usize::from(*index)]) == NodeKind::Internal)
        .fold(0, |mask, index| mask | known & 1 << index);
    let bucket_of = |key: &Key| {
        if let Some(columns) = columns {
            return columns.bucket(key);
        }
        (0..LEVELS).fold(0, |bits, level| {
            bits << 1 | u8::from(pleach_core::prefix::bit(key, at.len() + u16::from(level)))
        })
    };

    let mut kernel = TreeletFolder::new(Hasher::BLAKE3);
    let mut put = Vec::new();
    // What is folded before leaves nothing.
    for _ in 0..2 {
        kernel.clear();
        put.clear();
        let ways = accesses.keys().fold(0, |ways, key| ways | way(bucket_of(key)));
        let pair = |left: u8| {
            [left, left + 1].map(|index| match known >> index & 1 {
                1 => nodes[usize::from(index)],
                _ => Node::new([0x77; 32]),
            })
        };
        kernel.begin((at.len(), columns.map(|columns| (columns, like))), ways, internal, pair);
        let unknown = kernel.beside() & !known;
        for index in (0..POSITIONS).filter(|index| unknown >> index & 1 == 1) {
            if input.u8() % 2 == 0 {
                kernel.known(index, &nodes[usize::from(index)]);
                continue;
            }
            give(&mut kernel, &position(index), &pairs, &accesses, &mut Vec::new());
            kernel.bucket(index, false);
        }
        let mut left = accesses.keys().peekable();
        while let Some(key) = left.peek() {
            let index = kernel.bucket_of(bucket_of(key));
            let at = position(index);
            give(&mut kernel, &at, &pairs, &accesses, &mut put);
            kernel.bucket(index, true);
            while left.next_if(|key| at.covers(key)).is_some() {}
        }
        kernel.end();
        kernel.run();
    }

    let mut general = BatchFolder::new(Hasher::BLAKE3);
    let mut whole_put = Vec::new();
    general.begin_with_columns(at.len(), LEVELS, columns);
    give(&mut general, &at, &pairs, &accesses, &mut whole_put);
    let fold = general.end().expect("all is given by key");
    general.run();
    assert_eq!(general.occupancy(fold), Occupancy::Many);
    let mut emitted = Emitted::default();
    general.emit(fold, &mut emitted);

    assert_eq!(*kernel.node(0), general.node(fold));
    let part = kernel.proof_part(0);
    let proof = kernel.proof();
    assert_eq!((&proof.terminals, &proof.siblings), (&emitted.0, &emitted.1));
    assert_eq!((part.terminals.len(), part.siblings.len()), (emitted.0.len(), emitted.1.len()));
    let firsts = kernel.first_of_terminal(0).iter().copied();
    assert!(firsts.eq(general.first_of_terminal(fold)));
    for (own, whole) in put.iter().zip(&whole_put) {
        assert_eq!(*own == NO_HASH, *whole == NO_HASH);
        assert!(*own == NO_HASH || kernel.value_hash(*own) == general.value_hash(*whole));
    }

    let mut after = pairs;
    for (key, then) in accesses {
        match then {
            Then::Read => {}
            Then::Deleted => {
                after.remove(&key);
            }
            Then::Put(value) => {
                after.insert(key, value);
            }
        }
    }
    let after = naive(&after);
    assert_eq!(*kernel.node(0), after.node(Hasher::BLAKE3, &at));
    // What the general fold captures is right everywhere.
    for one in general.captured() {
        assert_eq!(one.node, after.node(Hasher::BLAKE3, &position(one.index)), "{}", one.index);
    }
    // What is learned is right, as far as it may be read.
    let learned: BTreeMap<u8, Node> = {
        let mut learned = BTreeMap::new();
        kernel.learned(0, |index, node| {
            learned.insert(index, *node);
        });
        learned
    };
    for (index, node) in learned {
        let above = |index: u8| (index > 0).then(|| (index - 1) / 2);
        let internal =
            |index: u8| kind(&after.node(Hasher::BLAKE3, &position(index))) == NodeKind::Internal;
        let mut parent = above(index);
        let mut read = true;
        while let Some(own) = parent {
            read &= internal(own);
            parent = above(own);
        }
        assert!(!read || node == after.node(Hasher::BLAKE3, &position(index)), "{index}");
    }
    if columns.is_some() { Was::Columns } else { Was::Plain }
}
