//! Hashing in batches against one call a message; `--bench hashing` prints time a batch.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pleach_core::{Blake3, Hasher, Sha2};

fn nodes<H: Hasher>(c: &mut Criterion) {
    let mut group = c.benchmark_group(format!("hash64/{}", H::NAME));
    let blocks: Vec<[u8; 64]> = (0..64u8).map(|i| [i; 64]).collect();
    let mut out = vec![[0u8; 32]; 64];
    group.throughput(Throughput::Elements(1));
    group.bench_function("single", |b| b.iter(|| H::hash64(black_box(&blocks[7]))));
    for count in [1usize, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 64] {
        group.throughput(Throughput::Elements(count as u64));
        group.bench_with_input(BenchmarkId::new("batch", count), &count, |b, &count| {
            b.iter(|| H::hash64_many(black_box(&blocks[..count]), black_box(&mut out[..count])));
        });
    }
}

/// Values of balances, slots and nodes, and of accounts.
fn values<H: Hasher>(c: &mut Criterion) {
    values_of::<H, 64>(c, &[8, 40, 64]);
    values_of::<H, 128>(c, &[72, 110]);
}

fn values_of<H: Hasher, const BYTES: usize>(c: &mut Criterion, lens: &[u8]) {
    for &len in lens {
        let mut group = c.benchmark_group(format!("short{len}/{}", H::NAME));
        let messages: Vec<[u8; BYTES]> = (0..64u8)
            .map(|i| {
                let mut message = [0; BYTES];
                message[..usize::from(len)].fill(i);
                message
            })
            .collect();
        let lens = [len; 64];
        let mut out = vec![[0u8; 32]; 64];
        group.throughput(Throughput::Elements(1));
        group.bench_function("single", |b| {
            b.iter(|| H::hash(black_box(&messages[7][..usize::from(len)])));
        });
        for count in [2usize, 3, 4, 8, 16, 64] {
            group.throughput(Throughput::Elements(count as u64));
            group.bench_with_input(BenchmarkId::new("batch", count), &count, |b, &count| {
                b.iter(|| {
                    H::hash_short_many(
                        black_box(&messages[..count]),
                        black_box(&lens[..count]),
                        black_box(&mut out[..count]),
                    );
                });
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(400))
        .sample_size(20);
    targets = nodes::<Blake3>, values::<Blake3>, nodes::<Sha2>
}
criterion_main!(benches);
