//! A hash function of an application's own gives roots and proofs as the built-in ones do, with a call for many
//! messages and without one; proofs of another are refused.
use crate::common::{Spread, cases, rng, set, some_keys, some_ops};
use pleach_core::{
    Hasher,
    fold::{FoldValue, RootFolder},
    keyed_blake3,
    naive::NaiveTrie,
    node::value_hash,
    proof::{DecodeError, Lookup, VerifyError, multi, path, range, witness},
};

fn keyed(message: &[u8]) -> [u8; 32] {
    keyed_blake3(b"the key of an application's own ", message)
}

const PLAIN: Hasher = Hasher::new("keyed-1", keyed);
const MANY: Hasher = Hasher::new("keyed-2", keyed).with_many(|blocks, out| {
    for (block, out) in blocks.iter().zip(out) {
        *out = keyed(block);
    }
});

#[test]
fn roots_and_proofs_are_made_and_verified() {
    for case in 0..cases(20) {
        let mut rng = rng(case);
        let set = set(Spread::Uniform, &mut rng, 60);
        let root = set.root(PLAIN);
        assert_eq!(root, set.root(MANY), "the same function");
        let keys = some_keys(&set, Spread::Uniform, &mut rng, 10);
        let ops = some_ops(&set, Spread::Uniform, &mut rng, 10);
        let (first, last) = ([0x20; 32], [0xa0; 32]);
        let mut after = set.clone();
        after.apply(&ops);
        for hasher in [PLAIN, MANY] {
            let bytes = set.multi(hasher, &keys).encode(hasher).unwrap();
            assert!(multi::verify(hasher, &bytes, &root).is_ok());
            let bytes = set.range(hasher, &first, &last);
            assert!(range::verify(hasher, &bytes, &root, &first, &last).is_ok());
            let bytes = set.witness(hasher, &ops).encode(hasher).unwrap();
            let verified = witness::verify(hasher, &bytes, &root).unwrap();
            assert_eq!(*verified.new_root(), after.root(hasher));
        }
    }
}

#[test]
fn a_folder_gives_the_root_of_the_naive_trie() {
    let values: Vec<([u8; 32], Vec<u8>)> =
        (0..200u8).map(|i| ([i; 32], vec![i; usize::from(i)])).collect();
    for hasher in [PLAIN, MANY, Hasher::SHA2_256] {
        let mut folder = RootFolder::new(hasher);
        for (key, value) in &values {
            folder.pair(key, FoldValue::Bytes(value)).unwrap();
        }
        let trie: NaiveTrie =
            values.iter().map(|(key, value)| (*key, value_hash(hasher, value))).collect();
        assert_eq!(folder.root(), trie.root(hasher), "{hasher:?}");
    }
}

#[test]
fn a_proof_answers_by_its_own_hasher_and_one_of_another_is_refused() {
    let trie = NaiveTrie::from_iter([([1; 32], value_hash(PLAIN, b"one"))]);
    let root = trie.root(PLAIN);
    let bytes = trie.path(PLAIN, &[1; 32]).encode(PLAIN).unwrap();
    let verified = path::verify(PLAIN, &bytes, &root).unwrap();
    assert_eq!(verified.get(&[1; 32]), Lookup::Present(value_hash(PLAIN, b"one")));
    assert_eq!(verified.proves(&[1; 32], Some(b"one")), Some(true));
    for other in [Hasher::BLAKE3, Hasher::SHA2_256] {
        let (expected, found) = (other.id(), Hasher::APPLICATION);
        let error = VerifyError::Decode(DecodeError::HasherId { expected, found });
        assert_eq!(path::verify(other, &bytes, &root).unwrap_err(), error);
        assert!(error.to_string().contains("with an application's hasher"), "{error}");
        let bytes = trie.path(other, &[1; 32]).encode(other).unwrap();
        let error = DecodeError::HasherId { expected: found, found: expected };
        assert_eq!(path::verify(PLAIN, &bytes, &root).unwrap_err(), VerifyError::Decode(error));
    }
    // All hashers of applications have one number: the root tells these apart.
    let other = Hasher::new("reversed", |message| {
        let reversed: Vec<u8> = message.iter().rev().copied().collect();
        Hasher::SHA2_256.hash(&reversed)
    });
    assert_eq!(path::verify(other, &bytes, &root).unwrap_err(), VerifyError::RootMismatch);
}

#[test]
fn hashers_are_equal_by_number_and_name() {
    assert_eq!(Hasher::default(), Hasher::BLAKE3);
    assert_eq!((Hasher::BLAKE3.id(), Hasher::SHA2_256.id()), (1, 2));
    assert_eq!(PLAIN, Hasher::new("keyed-1", |_| [1; 32]));
    assert_ne!(PLAIN, MANY);
    assert_ne!(Hasher::new("blake3", keyed), Hasher::BLAKE3);
    assert_eq!(format!("{MANY:?} {:?}", Hasher::BLAKE3), "keyed-2 blake3");
    for name in ["", "Keyed", "a b", "é", &"a".repeat(33)] {
        let name: &'static str = String::leak(name.to_owned());
        assert!(std::panic::catch_unwind(|| Hasher::new(name, keyed)).is_err(), "{name}");
    }
}
