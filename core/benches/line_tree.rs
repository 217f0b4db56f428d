//! The line tree on a chunk of a batch: 512 accesses to pages of 64 keys, eight regions of 64 pages. Per access, since the rest
//! of a commit is counted so, too.
//!
//! * `replace`: values of keys that are there; `insert`: a quarter of the keys is new; `cold`: no line is known but those that a
//!   page stores; `read`: nothing changes.
//! * `insert and apply`: with the new lines and keys put in place, on a copy of the pages.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pleach_core::fold::{Change, FoldValue};
use pleach_core::tree::{GroupedLines, KeyAccess, LineTree, Merkleizer, PageView, Tiling};
use pleach_core::{Blake3, Hasher, Key, Node, Prefix};

const REGIONS: u16 = 8;
const PAGES: u16 = 64;
const ACCESSES: usize = 512;

type Value = [u8; 8];
/// Page and key, whether the key is there.
type Draw = Vec<(usize, Key, bool)>;

#[derive(Clone)]
struct Page {
    tree: LineTree,
    values: Vec<Value>,
}

struct Chunk {
    pages: Vec<Page>,
    tilings: Vec<Tiling>,
    merkleizer: Merkleizer<Blake3>,
    grouped: GroupedLines,
}

fn key(number: u64) -> Key {
    Blake3::hash(&number.to_be_bytes())
}

fn page_of(key: &Key) -> usize {
    usize::from(u16::from_be_bytes([key[0], key[1]]) >> 7)
}

impl Chunk {
    fn new() -> Self {
        let mut keys: Vec<Key> = (0..32_768).map(key).collect();
        keys.sort_unstable();
        let pages = keys.chunk_by(|a, b| page_of(a) == page_of(b)).map(|keys| Page {
            tree: LineTree::from_keys(9, keys),
            values: vec![[7; 8]; keys.len()],
        });
        let pages: Vec<Page> = pages.collect();
        assert_eq!(pages.len(), usize::from(REGIONS * PAGES));
        let tilings = (0..REGIONS).map(|region| {
            let at = |page: u16| ((region * PAGES + page) << 7).to_be_bytes();
            let prefixes = (0..PAGES).map(|page| {
                let mut first = [0; 32];
                first[..2].copy_from_slice(&at(page));
                Prefix::new(&first, 9)
            });
            Tiling::new::<Blake3>(prefixes, &[Node::new([1; 32]); PAGES as usize])
        });
        let tilings = tilings.collect();
        let (merkleizer, grouped) = (Merkleizer::default(), GroupedLines::default());
        Self { pages, tilings, merkleizer, grouped }
    }

    fn draw(fresh: usize) -> Draw {
        let old = (0..ACCESSES - fresh).map(|at| (key(at as u64 * 61), true));
        let new = (0..fresh).map(|at| (key(1 << 32 | at as u64), false));
        let mut draw: Draw = old.chain(new).map(|(key, old)| (page_of(&key), key, old)).collect();
        draw.sort_unstable_by_key(|(_, key, _)| *key);
        draw
    }

    /// Nodes of all regions; gives the number of each page's tree.
    fn run(&mut self, draw: &Draw, change: Change<'_>) -> Vec<(usize, u32)> {
        let Self { pages, tilings, merkleizer, grouped } = self;
        merkleizer.clear();
        let mut numbers = Vec::new();
        let mut accesses: Vec<KeyAccess<'_>> = Vec::new();
        let mut groups = draw.chunk_by(|a, b| a.0 == b.0).peekable();
        let mut tiling = None;
        while let Some(group) = groups.next() {
            let at = group[0].0;
            let page = &pages[at];
            let old = Some(FoldValue::Bytes(&[7; 8]));
            accesses.clear();
            accesses.extend(group.iter().map(|(_, key, is_old)| KeyAccess {
                key: *key,
                accessed: true,
                differs: false,
                reads: true,
                old: old.filter(|_| *is_old),
                change,
            }));
            let value = |slot: usize| FoldValue::Bytes(&page.values[slot]);
            let view = PageView { tree: &page.tree, value: &value };
            let (number, subtrie) = merkleizer.page(view, &accesses);
            numbers.push((at, number));
            let region = at / usize::from(PAGES);
            let next = groups.peek().map(|next| next[0].0);
            let next = next.filter(|next| next / usize::from(PAGES) == region);
            let tree = *tiling.get_or_insert_with(|| merkleizer.begin_tiling());
            let next = next.map(|next| next % usize::from(PAGES));
            let child = at % usize::from(PAGES);
            let top = merkleizer.child((&tilings[region], tree), child, subtrie, next);
            if let Some(top) = top.expect("no hidden leaf") {
                merkleizer.end(top, 3);
                tiling = None;
            }
        }
        merkleizer.run();
        merkleizer.group(grouped);
        numbers
    }

    fn apply(&mut self, numbers: &[(usize, u32)]) {
        for (at, number) in numbers {
            let Page { tree, values } = &mut self.pages[*at];
            let value = |_: usize| FoldValue::Bytes(&[]);
            let view = PageView { tree, value: &value };
            let change = self.merkleizer.page_change(&view, *number, &self.grouped);
            change.apply(tree, values, |_| [8; 8]);
        }
    }
}

fn line_tree(c: &mut Criterion) {
    let mut group = c.benchmark_group("line_tree");
    group.throughput(Throughput::Elements(ACCESSES as u64));
    let put = Change::Put(FoldValue::Bytes(&[9; 8]));
    let mut chunk = Chunk::new();
    let replace = Chunk::draw(0);
    group.bench_function("cold", |b| b.iter(|| black_box(chunk.run(&replace, put))));
    // Reading all keys makes all lines known.
    let all: Draw = (0..32_768).map(key).map(|key| (page_of(&key), key, true)).collect();
    let mut all = all;
    all.sort_unstable_by_key(|(_, key, _)| *key);
    let numbers = chunk.run(&all, Change::Keep);
    chunk.apply(&numbers);
    assert!(chunk.pages.iter().all(|page| page.tree.is_known()));
    let before = chunk.merkleizer.hashed();
    chunk.run(&replace, put);
    let hashes = chunk.merkleizer.hashed() - before;
    println!("hashes of {ACCESSES} accesses, replace: {hashes}");
    group.bench_function("replace", |b| b.iter(|| black_box(chunk.run(&replace, put))));
    group.bench_function("read", |b| b.iter(|| black_box(chunk.run(&replace, Change::Keep))));
    let insert = Chunk::draw(ACCESSES / 4);
    group.bench_function("insert", |b| b.iter(|| black_box(chunk.run(&insert, put))));
    let pages = chunk.pages.clone();
    group.bench_function("insert and apply", |b| {
        b.iter_batched(
            || pages.clone(),
            |pages| {
                chunk.pages = pages;
                let numbers = chunk.run(&insert, put);
                chunk.apply(&numbers);
                std::mem::take(&mut chunk.pages)
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

criterion_group!(benches, line_tree);
criterion_main!(benches);
