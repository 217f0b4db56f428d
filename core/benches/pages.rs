//! What a page costs: sealing, parsing, finding a key, building. Nanoseconds for one page or key.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use pleach_core::page::{
    BranchBuilder, BranchEntry, BranchHeader, BranchView, FileKind, Identity, LeafBuilder,
    LeafHeader, LeafView, PAGE_SIZE, Page, RawCell, seal,
};
use pleach_core::{Key, Prefix};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

const LEAF: Identity = Identity { kind: FileKind::Leaf, page_no: 7, db_id: 1 };
const BRANCH: Identity = Identity { kind: FileKind::Image, page_no: 7, db_id: 1 };
/// Cells of a full page with 8-byte balances.
const CELLS: u16 = 90;

fn keys(prefix: &Prefix) -> Vec<Key> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut keys: Vec<Key> = (0..CELLS)
        .map(|_| {
            let mut key = [0; 32];
            rng.fill_bytes(&mut key);
            key[..3].copy_from_slice(&prefix.first_key()[..3]);
            key
        })
        .collect();
    keys.sort_unstable();
    keys
}

fn build(page: &mut Page, prefix: Prefix, keys: &[Key]) -> u32 {
    let header = LeafHeader {
        identity: LEAF,
        flush: 1,
        namespace: 0,
        prefix,
        applied_through: 1,
        levels: 3,
        count: CELLS,
    };
    let mut builder = LeafBuilder::new(page, &header);
    for key in keys {
        builder.push(key, RawCell { bytes: &[5; 8], overflow: false });
    }
    builder.set_nodes(&[[9; 32].into(); 8]);
    builder.seal()
}

fn leaf(c: &mut Criterion) {
    let prefix = Prefix::new(&[0x5c; 32], 21);
    let keys = keys(&prefix);
    let mut page = [0; PAGE_SIZE];
    c.bench_function("leaf/build", |b| b.iter(|| build(black_box(&mut page), prefix, &keys)));
    c.bench_function("page/seal", |b| b.iter(|| seal(black_box(&mut page))));
    c.bench_function("leaf/parse", |b| {
        b.iter(|| LeafView::parse(black_box(&page), &LEAF).unwrap().len());
    });
    let mut order: Vec<Key> = keys.clone();
    order.sort_unstable_by_key(|key| (key[31], key[30]));
    let mut next = order.iter().cycle();
    c.bench_function("leaf/find", |b| {
        b.iter(|| LeafView::from_trusted(black_box(&page)).find(next.next().unwrap()));
    });
}

fn branch(c: &mut Criterion) {
    let header = BranchHeader {
        identity: BRANCH,
        flush: 1,
        namespace: 0,
        prefix: Prefix::new(&[0x5c; 32], 14),
        level: 1,
        log_pos: 1,
    };
    let mut page = [0; PAGE_SIZE];
    let mut builder = BranchBuilder::new(&mut page, &header);
    for _ in 0..64 {
        builder.push(&BranchEntry { depth: 20, page_no: Some(3), tag: 4, node: [5; 32].into() });
    }
    builder.seal();
    c.bench_function("branch/parse", |b| {
        b.iter(|| BranchView::parse(black_box(&page), &BRANCH).unwrap().child_count());
    });
    c.bench_function("branch/iterate", |b| {
        b.iter(|| {
            BranchView::from_trusted(black_box(&page))
                .iter()
                .map(|(prefix, entry)| u32::from(prefix.first_key()[2]) + entry.tag)
                .sum::<u32>()
        });
    });
}

criterion_group!(benches, leaf, branch);
criterion_main!(benches);
