//! A batch on a small set: the witness verifies, says what was read and gives the new root.
#![no_main]

use pleach_core::{Blake3, proof::witness};
use pleach_fuzz::Input;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let set = input.set();
    let ops = input.ops();
    let root = set.root::<Blake3>();
    let made = set.witness::<Blake3>(&ops);
    let bytes = made.encode::<Blake3>().expect("small");
    let verified = witness::verify::<Blake3>(&bytes, &root).expect("valid");
    assert!(verified.terminals().eq(made.proof.terminals));
    let seen: Vec<_> = verified.ops().map(|op| (op.key, op.access, op.before)).collect();
    let wanted: Vec<_> =
        ops.iter().map(|op| (op.key, op.access, set.get(&op.key).copied())).collect();
    assert_eq!(seen, wanted);
    let mut after = set.clone();
    after.apply(&ops);
    assert_eq!(*verified.new_root(), after.root::<Blake3>());
});
