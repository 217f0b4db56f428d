//! What the page tests share: seeded pages of each type.

#![allow(dead_code, reason = "each test file uses its part")]

mod canonical;

use std::collections::BTreeMap;

#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use canonical::*;

use pleach_core::page::{
    BranchBuilder, BranchEntry, BranchHeader, Cell, FileKind, Identity, LeafBuilder, LeafHeader,
    MAX_PAGE_NO, OverflowCell, OverflowExtent, PAGE_SIZE, Page, RawCell, StreamHeader, StreamId,
    leaf, stream,
};
use pleach_core::{Key, Node, Prefix, ValueHash};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Cases of a randomized test.
pub(crate) fn cases(default: u32) -> u32 {
    std::env::var("PLEACH_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub(crate) fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

pub(crate) fn random_key(rng: &mut ChaCha8Rng) -> Key {
    let mut key = [0; 32];
    rng.fill_bytes(&mut key);
    key
}

/// A key below a prefix.
pub(crate) fn key_below(prefix: &Prefix, rng: &mut ChaCha8Rng) -> Key {
    below(prefix, &random_key(rng))
}

/// `free` with the prefix's bits in front.
pub(crate) fn below(prefix: &Prefix, free: &Key) -> Key {
    let (first, last) = (prefix.first_key(), prefix.last_key());
    std::array::from_fn(|index| first[index] | (free[index] & (first[index] ^ last[index])))
}

pub(crate) fn number(rng: &mut ChaCha8Rng, below: u64) -> u64 {
    rng.next_u64() % below
}

pub(crate) const LEAF: Identity = Identity { kind: FileKind::Leaf, page_no: 77, db_id: 0xdb };
pub(crate) const BRANCH: Identity = Identity { kind: FileKind::Image, page_no: 5, db_id: 0xdb };
pub(crate) const STREAM: Identity =
    Identity { kind: FileKind::Overflow, page_no: MAX_PAGE_NO, db_id: 0xdb };

/// A value as tests keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Inline(Vec<u8>),
    Overflow { total_len: u64, hash: ValueHash, runs: Vec<(u64, u32)> },
}

impl Value {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Inline(bytes) => bytes.clone(),
            Self::Overflow { total_len, hash, runs } => {
                let runs: Vec<OverflowExtent> =
                    runs.iter().map(|&(start, pages)| OverflowExtent { start, pages }).collect();
                let mut bytes = Vec::new();
                OverflowCell::encode(*total_len, hash, &runs, &mut bytes).unwrap();
                bytes
            }
        }
    }

    pub(crate) fn from_cell(cell: &Cell<'_>) -> Self {
        match cell {
            Cell::Inline(bytes) => Self::Inline(bytes.to_vec()),
            Cell::Overflow(cell) => Self::Overflow {
                total_len: cell.total_len(),
                hash: cell.value_hash(),
                runs: cell.extents().map(|run| (run.start, run.pages)).collect(),
            },
        }
    }

    /// An overflow value in `runs` neighbouring but separate runs of one page, the last longer.
    pub(crate) fn overflow(runs: u32, last_pages: u32, rng: &mut ChaCha8Rng) -> Self {
        let first = number(rng, 1 << 39);
        let runs: Vec<(u64, u32)> = (0..runs)
            .map(|run| (first + 2 * u64::from(run), if run + 1 == runs { last_pages } else { 1 }))
            .collect();
        let pages: u64 = runs.iter().map(|run| u64::from(run.1)).sum();
        let spare = number(rng, stream::PAYLOAD as u64 / 2);
        let total_len = pages * stream::PAYLOAD as u64 - spare;
        Self::Overflow { total_len, hash: random_key(rng).into(), runs }
    }
}

pub(crate) type Cells = BTreeMap<Key, Value>;

pub(crate) fn size_of(cells: &Cells, prefix_len: u16) -> usize {
    cells.values().map(|value| leaf::cell_size(prefix_len, value.bytes().len())).sum()
}

pub(crate) fn leaf_header(prefix: Prefix, levels: u8, count: usize) -> LeafHeader {
    LeafHeader {
        identity: LEAF,
        flush: 3 << 32 | 9,
        namespace: 2,
        prefix,
        applied_through: 1_000_007,
        levels,
        count: count.try_into().unwrap(),
    }
}

pub(crate) fn build_leaf(header: &LeafHeader, cells: &Cells, nodes: &[Node]) -> Box<Page> {
    let mut page = Box::new([0xee; PAGE_SIZE]);
    let mut builder = LeafBuilder::new(&mut page, header);
    for (key, value) in cells {
        let overflow = matches!(value, Value::Overflow { .. });
        builder.push(key, RawCell { bytes: &value.bytes(), overflow });
    }
    builder.set_nodes(nodes);
    builder.seal();
    page
}

pub(crate) fn nodes(levels: u8, rng: &mut ChaCha8Rng) -> Vec<Node> {
    (0..leaf::node_count(levels)).map(|_| random_key(rng).into()).collect()
}

/// A page as the engine would write it: 8-byte balances, some longer values, two overflow cells.
pub(crate) fn sample_leaf(seed: u64, prefix_len: u16, levels: u8) -> Box<Page> {
    let mut rng = rng(seed);
    let prefix = Prefix::new(&random_key(&mut rng), prefix_len);
    let mut cells = Cells::new();
    cells.insert(key_below(&prefix, &mut rng), Value::overflow(1, 16_000, &mut rng));
    cells.insert(key_below(&prefix, &mut rng), Value::overflow(5, 2, &mut rng));
    loop {
        let len = match number(&mut rng, 8) {
            0 => number(&mut rng, 200),
            1 => 0,
            _ => 8,
        };
        let mut value = vec![0; usize::try_from(len).unwrap()];
        rng.fill_bytes(&mut value);
        let mut more = cells.clone();
        more.insert(key_below(&prefix, &mut rng), Value::Inline(value));
        if size_of(&more, prefix_len) > leaf::capacity(levels) - 300 {
            break;
        }
        cells = more;
    }
    build_leaf(&leaf_header(prefix, levels, cells.len()), &cells, &nodes(levels, &mut rng))
}

pub(crate) fn branch_header(prefix: Prefix) -> BranchHeader {
    BranchHeader {
        identity: BRANCH,
        flush: 1 << 32 | 4,
        namespace: 0,
        prefix,
        level: 1,
        log_pos: 123_456_789,
    }
}

/// A random tiling of a prefix by at most `count` children.
pub(crate) fn tiling(prefix: Prefix, count: usize, rng: &mut ChaCha8Rng) -> Vec<Prefix> {
    let mut children = vec![prefix];
    while children.len() < count {
        let index = usize::try_from(number(rng, children.len() as u64)).unwrap();
        let parent = children[index];
        if parent.len() < 255 {
            children.splice(index..=index, [parent.child(false), parent.child(true)]);
        } else if children.iter().all(|child| child.len() == 255) {
            break;
        }
    }
    children
}

pub(crate) fn random_entry(depth: u16, rng: &mut ChaCha8Rng) -> BranchEntry {
    let page_no = (number(rng, 4) > 0).then(|| number(rng, MAX_PAGE_NO + 1));
    BranchEntry {
        depth,
        page_no,
        tag: page_no.map_or(0, |_| rng.next_u32()),
        node: random_key(rng).into(),
    }
}

pub(crate) fn build_branch(header: &BranchHeader, entries: &[BranchEntry]) -> Box<Page> {
    let mut page = Box::new([0xee; PAGE_SIZE]);
    let mut builder = BranchBuilder::new(&mut page, header);
    for entry in entries {
        builder.push(entry);
    }
    builder.seal();
    page
}

pub(crate) fn sample_branch(seed: u64, prefix_len: u16, count: usize) -> Box<Page> {
    let mut rng = rng(seed);
    let prefix = Prefix::new(&random_key(&mut rng), prefix_len);
    let entries: Vec<BranchEntry> = tiling(prefix, count, &mut rng)
        .iter()
        .map(|child| random_entry(child.len(), &mut rng))
        .collect();
    build_branch(&branch_header(prefix), &entries)
}

pub(crate) fn sample_stream(seed: u64, len: usize) -> Box<Page> {
    let mut payload = vec![0; len];
    rng(seed).fill_bytes(&mut payload);
    let mut page = Box::new([0xee; PAGE_SIZE]);
    let header = StreamHeader {
        identity: STREAM,
        flush: 8,
        namespace: 1,
        stream: StreamId::Value,
        index: 3,
    };
    stream::build(&mut page, &header, &payload);
    page
}
