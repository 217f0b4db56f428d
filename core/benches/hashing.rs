//! Hashing in batches against one call a message, and hash functions beside each other; `--bench hashing` prints time a
//! batch.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pleach_core::Hasher;
use sha3::Digest as _;

fn nodes_of(hasher: Hasher, c: &mut Criterion) {
    let mut group = c.benchmark_group(format!("hash64/{}", hasher.name()));
    let blocks: Vec<[u8; 64]> = (0..64u8).map(|i| [i; 64]).collect();
    let mut out = vec![[0u8; 32]; 64];
    group.throughput(Throughput::Elements(1));
    group.bench_function("single", |b| b.iter(|| hasher.hash64(black_box(&blocks[7]))));
    for count in [1usize, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 64] {
        group.throughput(Throughput::Elements(count as u64));
        group.bench_with_input(BenchmarkId::new("batch", count), &count, |b, &count| {
            b.iter(|| {
                hasher.hash64_many(black_box(&blocks[..count]), black_box(&mut out[..count]));
            });
        });
    }
}

fn nodes(c: &mut Criterion) {
    nodes_of(Hasher::BLAKE3, c);
    nodes_of(Hasher::SHA2_256, c);
}

/// Values of balances, slots and nodes, and of accounts.
fn values(c: &mut Criterion) {
    let hasher = Hasher::BLAKE3;
    values_of(hasher, c, 64, &[8, 40, 64]);
    values_of(hasher, c, 128, &[72, 110]);
}

fn values_of(hasher: Hasher, c: &mut Criterion, stride: usize, lens: &[u8]) {
    for &len in lens {
        let mut group = c.benchmark_group(format!("short{len}/{}", hasher.name()));
        let mut messages = vec![0; 64 * stride];
        for (i, message) in (0..).zip(messages.chunks_mut(stride)) {
            message[..usize::from(len)].fill(i);
        }
        let lens = [len; 64];
        let mut out = vec![[0u8; 32]; 64];
        group.throughput(Throughput::Elements(1));
        group.bench_function("single", |b| {
            b.iter(|| hasher.hash(black_box(&messages[7 * stride..][..usize::from(len)])));
        });
        for count in [2usize, 3, 4, 8, 16, 64] {
            group.throughput(Throughput::Elements(count as u64));
            group.bench_with_input(BenchmarkId::new("batch", count), &count, |b, &count| {
                b.iter(|| {
                    hasher.hash_short_many(
                        black_box(&messages[..count * stride]),
                        stride,
                        black_box(&lens[..count]),
                        black_box(&mut out[..count]),
                    );
                });
            });
        }
    }
}

type Function = fn(&[u8]) -> [u8; 32];

/// Whole messages, one a call, beside Keccak-256.
fn messages(c: &mut Criterion) {
    let functions: [(&str, Function); 3] = [
        ("blake3", |message| Hasher::BLAKE3.hash(message)),
        ("sha-256", |message| Hasher::SHA2_256.hash(message)),
        ("keccak-256", |message| sha3::Keccak256::digest(message).into()),
    ];
    let message: Vec<u8> = (0..4096_u32).map(|at| at.to_le_bytes()[0]).collect();
    for (name, function) in functions {
        let mut group = c.benchmark_group(format!("message/{name}"));
        for size in [32, 64, 256, 1024, 4096] {
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_with_input(BenchmarkId::from_parameter(size), &size, |b, &size| {
                b.iter(|| function(black_box(&message[..size])));
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
    targets = nodes, values, messages
}
criterion_main!(benches);
