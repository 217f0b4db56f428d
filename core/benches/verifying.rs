//! Verifying a witness, a range and what changed in one; building the last two. All on a set of 2^15
//! keys; times are per operation, pair and change.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pleach_core::{
    Hasher,
    naive::NaiveTrie,
    proof::{Access, Op, change, range, witness},
};

const BLAKE3: Hasher = Hasher::BLAKE3;

const KEYS: u32 = 1 << 15;

fn key(index: u32) -> [u8; 32] {
    BLAKE3.hash(&index.to_le_bytes())
}

fn witnesses(c: &mut Criterion) {
    let set: NaiveTrie = (0..KEYS).map(|index| (key(index), key(index ^ 1).into())).collect();
    let root = set.root(BLAKE3);
    let mut group = c.benchmark_group("verify");
    for count in [100u32, 2000] {
        // Three of four operations overwrite, the fourth puts a fresh key.
        let ops: Vec<Op> = (0..count)
            .map(|index| {
                let index = if index % 4 == 3 { KEYS + index } else { index * (KEYS / count) };
                Op { key: key(index), access: Access::ReadWrite(Some([7; 32].into())) }
            })
            .collect();
        let bytes = set.witness(BLAKE3, &ops).encode(BLAKE3).expect("small");
        let id = format!("{count} operations, {} bytes each", bytes.len() / ops.len());
        group.throughput(Throughput::Elements(u64::from(count)));
        group.bench_function(BenchmarkId::from_parameter(id), |b| {
            b.iter(|| {
                let verified = witness::verify(BLAKE3, black_box(&bytes), &root);
                *verified.expect("valid").new_root()
            });
        });
    }
}

fn ranges_and_changes(c: &mut Criterion) {
    let set: NaiveTrie = (0..KEYS).map(|index| (key(index), key(index ^ 1).into())).collect();
    let root = set.root(BLAKE3);
    let (first, last) = ([0x40; 32], [0x5f; 32]);
    let bounds = set.multi(BLAKE3, &[first, last]).encode(BLAKE3).expect("small");
    let pairs: Vec<_> = set.pairs().range(first..=last).map(|(key, hash)| (*key, *hash)).collect();
    let build = || range::build(BLAKE3, &bounds, &first, &last, pairs.iter().copied());
    let bytes = build().expect("of the set");
    let mut group = c.benchmark_group("range");
    group.throughput(Throughput::Elements(u64::try_from(pairs.len()).expect("few")));
    let id = format!("{} pairs, {} bytes each", pairs.len(), bytes.len() / pairs.len());
    group.bench_function(BenchmarkId::new("build", &id), |b| b.iter(|| black_box(build())));
    group.bench_function(BenchmarkId::new("verify", &id), |b| {
        b.iter(|| {
            let verified = range::verify(BLAKE3, black_box(&bytes), &root, &first, &last);
            verified.expect("valid").pairs().count()
        });
    });
    group.finish();

    let mut to = set.clone();
    // As above: three of four have another value, the fourth is new.
    for index in 0..2000 {
        let index = if index % 4 == 3 { KEYS + index } else { index * (KEYS / 2000) };
        to.set(key(index), Some([7; 32].into()));
    }
    let to_root = to.root(BLAKE3);
    let (first, last) = ([0; 32], [0xff; 32]);
    let keys = [set.changed(&to, &first, &last), vec![first, last]].concat();
    let [from, to] = [&set, &to].map(|set| set.multi(BLAKE3, &keys).encode(BLAKE3).expect("small"));
    let build = || change::build(BLAKE3, &from, &to, &first, &last);
    let bytes = build().expect("of these keys");
    let mut group = c.benchmark_group("change");
    group.throughput(Throughput::Elements(2000));
    let id = format!("2000 keys, {} bytes each", bytes.len() / 2000);
    group.bench_function(BenchmarkId::new("build", &id), |b| b.iter(|| black_box(build())));
    group.bench_function(BenchmarkId::new("verify", &id), |b| {
        b.iter(|| {
            let verified =
                change::verify(BLAKE3, black_box(&bytes), &root, &to_root, &first, &last);
            verified.expect("valid").changes().count()
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(400))
        .sample_size(20);
    targets = witnesses, ranges_and_changes
}
criterion_main!(benches);
