//! Answers of a stranger who serves a state: bytes as they are, or an honest answer that was changed. A part that is
//! accepted has all pairs of the state from its first key to its end, and no others; values of keys are those of the state.
#![no_main]

use std::collections::BTreeMap;

use pleach_core::{Hasher, Key, naive::NaiveTrie, node::value_hash};
use pleach_fuzz::Input;
use pleach_sync::internals::{decode_roots, encode_part, verify_part};
use pleach_sync::verify_keys;

fn encode(pairs: &BTreeMap<Key, Vec<u8>>, first: &Key, end: &Key, proof: &[u8]) -> Vec<u8> {
    let (mut encoded, mut answer) = (Vec::new(), Vec::new());
    for (key, value) in pairs.range(*first..=*end) {
        encoded.extend(key);
        encoded.extend(u32::try_from(value.len()).expect("short").to_le_bytes());
        encoded.extend(value);
    }
    encode_part(proof, end, &encoded, &mut answer);
    answer
}

fn judge_keys(input: &mut Input, trie: &NaiveTrie, pairs: &BTreeMap<Key, Vec<u8>>) {
    let keys: Vec<Key> = (0..=input.u8() % 4).map(|_| input.key()).collect();
    let root = trie.root(Hasher::BLAKE3);
    let proof = trie.multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3).expect("small");
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_le_bytes();
    let mut answer = [&length(&proof)[..], &proof].concat();
    for key in &keys {
        let value = pairs.get(key);
        answer.extend(value.map_or([0xff; 4], |value| length(value)));
        answer.extend(value.into_iter().flatten());
    }
    let check = |answer: &[u8]| {
        let values = verify_keys(answer, Hasher::BLAKE3, &root, &keys)?;
        for (key, value) in keys.iter().zip(&values) {
            assert_eq!(*value, pairs.get(key).map(Vec::as_slice), "a value of the state");
        }
        Ok::<_, &str>(values.len())
    };
    assert_eq!(check(&answer), Ok(keys.len()));
    input.mutate(&mut answer);
    let _ = check(&answer);
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let count = input.u8() % 24;
    let pair = |_| (input.key(), vec![input.u8(); usize::from(input.u8() % 80)]);
    let pairs: BTreeMap<Key, Vec<u8>> = (0..count).map(pair).collect();
    let hash = |(key, value): (&Key, &Vec<u8>)| (*key, value_hash(Hasher::BLAKE3, value));
    let trie: NaiveTrie = pairs.iter().map(hash).collect();
    let root = trie.root(Hasher::BLAKE3);
    if input.u8() % 4 == 3 {
        return judge_keys(&mut input, &trie, &pairs);
    }
    let (one, other) = input.range();
    let (first, last) = (one.min(other), one.max(other));
    let end = input.key().clamp(first, last);
    let answer = if input.u8() % 4 == 0 {
        input.0.to_vec()
    } else {
        let proof =
            trie.multi(Hasher::BLAKE3, &[first, end]).encode(Hasher::BLAKE3).expect("small");
        let honest = encode(&pairs, &first, &end, &proof);
        let judged = verify_part(&honest, Hasher::BLAKE3, &root, &first, &last).expect("honest");
        assert_eq!((judged.end, judged.count), (end, pairs.range(first..=end).count() as u64));
        let mut answer = honest;
        input.mutate(&mut answer);
        answer
    };
    let _ = decode_roots(&answer, Hasher::BLAKE3, &root);
    if let Ok(judged) = verify_part(&answer, Hasher::BLAKE3, &root, &first, &last) {
        assert!((first..=last).contains(&judged.end));
        let length = u32::from_le_bytes(*answer.first_chunk().expect("a length")) as usize;
        let same = encode(&pairs, &first, &judged.end, &answer[4..4 + length]);
        assert!(answer == same, "the pairs are those of the state");
    }
});
