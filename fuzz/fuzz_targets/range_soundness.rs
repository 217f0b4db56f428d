//! Range and change proofs of small sets, changed, or with keys left out that changed: only the one
//! encoding is accepted, and it says what the sets say.
#![no_main]

use pleach_core::{
    Hasher, Key,
    proof::{change, range},
};
use pleach_fuzz::Input;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let from = input.set();
    let mut to = from.clone();
    to.apply(&input.ops());
    let (one, other) = input.range();
    let (first, last) = (one.min(other), one.max(other));
    let (from_root, to_root) = (from.root(Hasher::BLAKE3), to.root(Hasher::BLAKE3));
    match input.u8() % 4 {
        0 => {
            let bounds =
                from.multi(Hasher::BLAKE3, &[first, last]).encode(Hasher::BLAKE3).expect("small");
            let pairs = from.pairs().range(first..=last).map(|(key, hash)| (*key, *hash));
            let valid =
                range::build(Hasher::BLAKE3, &bounds, &first, &last, pairs).expect("its parts");
            assert_eq!(valid, from.range(Hasher::BLAKE3, &first, &last));
            let verified = range::verify(Hasher::BLAKE3, &valid, &from_root, &first, &last);
            let pairs = from.pairs().range(first..=last).map(|(key, hash)| (*key, *hash));
            assert!(verified.expect("valid").pairs().eq(pairs));
            let mut bytes = valid.clone();
            input.mutate(&mut bytes);
            let verdict = range::verify(Hasher::BLAKE3, &bytes, &from_root, &first, &last);
            assert_eq!(verdict.is_ok(), bytes == valid);
        }
        1 => {
            // Pairs that are not those of the set.
            let bounds =
                from.multi(Hasher::BLAKE3, &[first, last]).encode(Hasher::BLAKE3).expect("small");
            let pairs = || to.pairs().range(first..=last).map(|(key, hash)| (*key, *hash));
            let built = range::build(Hasher::BLAKE3, &bounds, &first, &last, pairs());
            let Ok(bytes) = built else { return };
            let verdict = range::verify(Hasher::BLAKE3, &bytes, &from_root, &first, &last);
            let same =
                pairs().eq(from.pairs().range(first..=last).map(|(key, hash)| (*key, *hash)));
            assert_eq!(verdict.is_ok(), same);
        }
        2 => {
            let mut keys = from.changed(&to, &first, &last);
            keys.extend([first, last]);
            let multi = |set: &pleach_core::naive::NaiveTrie| {
                set.multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3).expect("small")
            };
            let valid = change::build(Hasher::BLAKE3, &multi(&from), &multi(&to), &first, &last);
            let valid = valid.expect("its parts");
            assert_eq!(valid, from.change(Hasher::BLAKE3, &to, &first, &last));
            let verify = |bytes: &[u8]| {
                let verified =
                    change::verify(Hasher::BLAKE3, bytes, &from_root, &to_root, &first, &last);
                verified
                    .map(|verified| verified.changes().map(|(key, ..)| key).collect::<Vec<Key>>())
            };
            assert_eq!(verify(&valid), Ok(from.changed(&to, &first, &last)));
            let mut bytes = valid.clone();
            input.mutate(&mut bytes);
            assert_eq!(verify(&bytes).is_ok(), bytes == valid);
        }
        _ => {
            // Other keys opened than those that changed.
            let mut keys = vec![first, last];
            keys.extend(
                from.changed(&to, &first, &last).into_iter().filter(|_| input.u8() & 3 != 0),
            );
            keys.extend((0..input.u8() % 3).map(|_| input.key()));
            let lie = from.change_of(Hasher::BLAKE3, &to, &keys, &first, &last);
            let verdict = change::verify(Hasher::BLAKE3, &lie, &from_root, &to_root, &first, &last);
            assert_eq!(verdict.is_ok(), lie == from.change(Hasher::BLAKE3, &to, &first, &last));
        }
    }
});
