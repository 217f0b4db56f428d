//! Verifying a witness: time for a batch on a set of 2^15 keys, per operation.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pleach_core::{
    Blake3, Hasher,
    naive::Naive,
    proof::{Access, Op, witness},
};

const KEYS: u32 = 1 << 15;

fn key(index: u32) -> [u8; 32] {
    Blake3::hash(&index.to_le_bytes())
}

fn witnesses(c: &mut Criterion) {
    let set: Naive = (0..KEYS).map(|index| (key(index), key(index ^ 1).into())).collect();
    let root = set.root::<Blake3>();
    let mut group = c.benchmark_group("verify");
    for count in [100u32, 2000] {
        // Three of four operations overwrite, the fourth puts a fresh key.
        let ops: Vec<Op> = (0..count)
            .map(|index| {
                let index = if index % 4 == 3 { KEYS + index } else { index * (KEYS / count) };
                Op { key: key(index), access: Access::ReadWrite(Some([7; 32].into())) }
            })
            .collect();
        let bytes = set.witness::<Blake3>(&ops).encode::<Blake3>().expect("small");
        let id = format!("{count} operations, {} bytes each", bytes.len() / ops.len());
        group.throughput(Throughput::Elements(u64::from(count)));
        group.bench_function(BenchmarkId::from_parameter(id), |b| {
            b.iter(|| {
                let verified = witness::verify::<Blake3>(black_box(&bytes), &root);
                *verified.expect("valid").new_root()
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(400))
        .sample_size(20);
    targets = witnesses
}
criterion_main!(benches);
