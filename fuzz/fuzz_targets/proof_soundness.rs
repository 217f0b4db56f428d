//! Valid proofs of a small set, changed: what is still accepted is true of the set.
#![no_main]

use pleach_core::{
    Blake3, Key,
    proof::{Op, multi, path, witness},
};
use pleach_fuzz::{Input, true_of};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let set = input.set();
    let ops = input.ops();
    let root = set.root::<Blake3>();
    let keys: Vec<Key> = ops.iter().map(|op| op.key).collect();
    let valid = set.witness::<Blake3>(&ops).encode::<Blake3>().expect("small");
    let mut bytes = valid.clone();
    let which = input.u8() % 3;
    match which {
        0 => {
            input.mutate(&mut bytes);
            let Ok(verified) = witness::verify::<Blake3>(&bytes, &root) else { return };
            verified.terminals().for_each(|terminal| true_of(&set, &terminal));
            let mut after = set.clone();
            for op in verified.ops() {
                assert_eq!(op.before.as_ref(), set.get(&op.key));
                after.apply(&[Op { key: op.key, access: op.access }]);
            }
            assert_eq!(*verified.new_root(), after.root::<Blake3>());
        }
        1 => {
            bytes = set.multi::<Blake3>(&keys).encode::<Blake3>().expect("small");
            let valid = bytes.clone();
            input.mutate(&mut bytes);
            let Ok(verified) = multi::verify::<Blake3>(&bytes, &root) else { return };
            verified.terminals().for_each(|terminal| true_of(&set, &terminal));
            assert!(bytes == valid || verified.terminal_count() == 0);
        }
        _ => {
            let Some(key) = keys.first() else { return };
            bytes = set.path::<Blake3>(key).encode::<Blake3>().expect("small");
            let valid = bytes.clone();
            input.mutate(&mut bytes);
            if path::verify::<Blake3>(&bytes, &root).is_ok() {
                assert_eq!(bytes, valid);
            }
        }
    }
});
