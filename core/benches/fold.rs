//! Folding the pages that a batch touches; `--bench fold` prints time and hashes an update.
//!
//! 64 pages, each with 70 keys of 8-byte values, three of them updated, and the nodes three
//! levels below its prefix stored: the subtries that are not accessed are given by their node.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pleach_core::{
    Hasher, Key, Node, NodeKind, Prefix,
    fold::{FoldValue, Folder, ValueChange},
    node,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

const PAGES: usize = 64;
const PAGE_KEYS: usize = 70;
const PAGE_UPDATES: usize = 3;
/// 2^27 keys in pages of 2^6 and a little.
const PAGE_DEPTH: u16 = 21;
const LEVELS: u16 = 3;

enum Input {
    Subtrie(Prefix, Node),
    Untouched(Key, [u8; 8]),
    Updated(Key, [u8; 8], [u8; 8]),
}

fn pages() -> Vec<Vec<Input>> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    (0..PAGES).map(|_| page(&mut rng)).collect()
}

fn page(rng: &mut ChaCha8Rng) -> Vec<Input> {
    let mut start = [0; 32];
    rng.fill_bytes(&mut start);
    let at = Prefix::new(&start, PAGE_DEPTH);
    let mut pairs: Vec<(Key, [u8; 8])> = (0..PAGE_KEYS).map(|_| pair(&at, rng)).collect();
    let updated: Vec<Key> = pairs[..PAGE_UPDATES].iter().map(|(key, _)| *key).collect();
    pairs.sort_unstable();
    let mut groups = vec![at];
    for _ in 0..LEVELS {
        groups = groups.iter().flat_map(|at| [at.child(false), at.child(true)]).collect();
    }
    let mut inputs = Vec::new();
    for group in groups {
        let below: Vec<_> = pairs.iter().filter(|(key, _)| group.covers(key)).copied().collect();
        let node = group_node(&group, &below);
        if node::kind(&node) == NodeKind::Internal && !updated.iter().any(|key| group.covers(key)) {
            inputs.push(Input::Subtrie(group, node));
            continue;
        }
        for (key, value) in below {
            inputs.push(if updated.contains(&key) {
                Input::Updated(key, value, value.map(|byte| byte ^ 1))
            } else {
                Input::Untouched(key, value)
            });
        }
    }
    inputs
}

fn pair(at: &Prefix, rng: &mut ChaCha8Rng) -> (Key, [u8; 8]) {
    let (mut key, mut value) = ([0; 32], [0; 8]);
    rng.fill_bytes(&mut key);
    rng.fill_bytes(&mut value);
    for bit in 0..at.len() {
        let (byte, mask) = (usize::from(bit / 8), 0x80 >> (bit % 8));
        key[byte] = key[byte] & !mask | at.first_key()[byte] & mask;
    }
    (key, value)
}

fn group_node(at: &Prefix, pairs: &[(Key, [u8; 8])]) -> Node {
    let mut folder = Folder::new(Hasher::BLAKE3);
    let mut span = folder.span(at.len());
    for (key, value) in pairs {
        span.push_unaccessed(key, FoldValue::Bytes(value));
    }
    let fold = span.end_fold();
    folder.run();
    *folder.node(fold)
}

fn push(folder: &mut Folder, pages: &[Vec<Input>]) {
    folder.clear();
    for page in pages {
        let mut span = folder.span(PAGE_DEPTH);
        for input in page {
            match input {
                Input::Subtrie(at, node) => span.push_known(at, node),
                Input::Untouched(key, value) => span.push_unaccessed(key, FoldValue::Bytes(value)),
                Input::Updated(key, old, new) => {
                    let (old, new) = (FoldValue::Bytes(old), FoldValue::Bytes(new));
                    black_box(span.push_accessed(key, Some(old), ValueChange::Put(new)));
                }
            }
        }
        span.end_fold();
    }
}

/// Copies terminals and siblings, as an encoder of witnesses does.
fn emit(folder: &Folder, terminals: &mut Vec<u8>, siblings: &mut Vec<Node>) {
    terminals.clear();
    siblings.clear();
    for fold in 0..PAGES {
        folder.terminals(fold, terminals, |_, _| unreachable!("a page has no children"));
        siblings.extend_from_slice(&folder.siblings()[folder.siblings_of(fold)]);
    }
}

fn folds(c: &mut Criterion) {
    let pages = pages();
    let updates = PAGES * PAGE_UPDATES;
    let mut folder = Folder::new(Hasher::BLAKE3);
    push(&mut folder, &pages);
    let items = folder.len();
    folder.run();
    let mut group = c.benchmark_group(format!(
        "fold/{items} items, {} hashes, {updates} updates",
        folder.hash_count()
    ));
    group.throughput(Throughput::Elements(updates as u64));
    group.bench_function("push", |b| b.iter(|| push(&mut folder, black_box(&pages))));
    group.bench_function("push and run", |b| {
        b.iter(|| {
            push(&mut folder, black_box(&pages));
            folder.run();
        });
    });
    let (mut terminals, mut siblings) = (Vec::new(), Vec::new());
    group.bench_function("push, run and emit", |b| {
        b.iter(|| {
            push(&mut folder, black_box(&pages));
            folder.run();
            emit(&folder, &mut terminals, &mut siblings);
            black_box(terminals.len() + siblings.len())
        });
    });
    group.finish();
}

/// What hashing alone costs: as many blocks in batches as wide as those of a fold.
fn hashing(c: &mut Criterion) {
    let pages = pages();
    let mut folder = Folder::new(Hasher::BLAKE3);
    push(&mut folder, &pages);
    folder.run();
    let count = usize::try_from(folder.hash_count()).expect("a few thousand");
    let blocks = vec![[7u8; 64]; count];
    let mut out = vec![[0u8; 32]; count];
    let mut group = c.benchmark_group("fold");
    group.throughput(Throughput::Elements((PAGES * PAGE_UPDATES) as u64));
    group.bench_function("hashes alone", |b| {
        b.iter(|| Hasher::BLAKE3.hash64_many(black_box(&blocks), black_box(&mut out)));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_millis(1500))
        .sample_size(30);
    targets = folds, hashing
}
criterion_main!(benches);
