//! A batch on a small set: the witness verifies, says what was read and gives the new root.
#![no_main]

use pleach_core::{Hasher, proof::witness};
use pleach_fuzz::Input;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let set = input.set();
    let ops = input.ops();
    let root = set.root(Hasher::BLAKE3);
    let made = set.witness(Hasher::BLAKE3, &ops);
    let bytes = made.encode(Hasher::BLAKE3).expect("small");
    let verified = witness::verify(Hasher::BLAKE3, &bytes, &root).expect("valid");
    assert!(verified.terminals().eq(made.proof.terminals));
    let seen: Vec<_> = verified.ops().map(|op| (op.key, op.access, op.before)).collect();
    let wanted: Vec<_> =
        ops.iter().map(|op| (op.key, op.access, set.get(&op.key).copied())).collect();
    assert_eq!(seen, wanted);
    let mut after = set.clone();
    after.apply(&ops);
    assert_eq!(*verified.new_root(), after.root(Hasher::BLAKE3));
});
