//! Witnesses of any shape: operations over terminals that belong to no set.
#![no_main]

use pleach_core::{Hasher, proof::witness::DecodedWitness};
use pleach_fuzz::{Input, witness_agrees};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let proof = input.proof();
    let mut ops = input.ops();
    let root = input.hash();
    // One operation a terminal at least, as the format asks.
    ops.extend(proof.terminals.iter().map(|terminal| pleach_core::proof::Op {
        key: *terminal.bits(),
        access: pleach_core::proof::Access::Write(None),
    }));
    ops.sort_by_key(|op| op.key);
    ops.dedup_by_key(|op| op.key);
    ops.retain(|op| proof.terminals.iter().any(|terminal| terminal.covers(&op.key)));
    let witness = DecodedWitness { proof, ops };
    if let Ok(bytes) = witness.encode(Hasher::BLAKE3) {
        witness_agrees(&bytes, &root);
    }
});
