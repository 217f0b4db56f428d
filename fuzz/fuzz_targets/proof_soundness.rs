//! Valid proofs of a small set, changed: what is still accepted is true of the set.
#![no_main]

use pleach_core::{
    Hasher, Key,
    proof::{Op, multi, path, witness},
};
use pleach_fuzz::{Input, true_of};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let set = input.set();
    let ops = input.ops();
    let root = set.root(Hasher::BLAKE3);
    let keys: Vec<Key> = ops.iter().map(|op| op.key).collect();
    let valid = set.witness(Hasher::BLAKE3, &ops).encode(Hasher::BLAKE3).expect("small");
    let mut bytes = valid.clone();
    let which = input.u8() % 3;
    match which {
        0 => {
            input.mutate(&mut bytes);
            let Ok(verified) = witness::verify(Hasher::BLAKE3, &bytes, &root) else { return };
            verified.terminals().for_each(|terminal| true_of(&set, &terminal));
            let mut after = set.clone();
            for op in verified.ops() {
                assert_eq!(op.before.as_ref(), set.get(&op.key));
                after.apply(&[Op { key: op.key, access: op.access }]);
            }
            assert_eq!(*verified.new_root(), after.root(Hasher::BLAKE3));
        }
        1 => {
            bytes = set.multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3).expect("small");
            let valid = bytes.clone();
            input.mutate(&mut bytes);
            let Ok(verified) = multi::verify(Hasher::BLAKE3, &bytes, &root) else { return };
            verified.terminals().for_each(|terminal| true_of(&set, &terminal));
            assert!(bytes == valid || verified.terminal_count() == 0);
        }
        _ => {
            let Some(key) = keys.first() else { return };
            bytes = set.path(Hasher::BLAKE3, key).encode(Hasher::BLAKE3).expect("small");
            let valid = bytes.clone();
            input.mutate(&mut bytes);
            if path::verify(Hasher::BLAKE3, &bytes, &root).is_ok() {
                assert_eq!(bytes, valid);
            }
        }
    }
});
