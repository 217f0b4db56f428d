//! Answers of a stranger who serves a state: bytes as they are, or an honest answer that was changed. One that is accepted
//! has all pairs of the state from its first key to its end, and no others.
#![no_main]

use std::collections::BTreeMap;

use pleach_core::{Hasher, Key, naive::NaiveTrie, node::value_hash};
use pleach_fuzz::Input;
use pleach_sync::internals::{decode_roots, encode_part, verify_part};

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

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let count = input.u8() % 24;
    let pair = |_| (input.key(), vec![input.u8(); usize::from(input.u8() % 80)]);
    let pairs: BTreeMap<Key, Vec<u8>> = (0..count).map(pair).collect();
    let hash = |(key, value): (&Key, &Vec<u8>)| (*key, value_hash(Hasher::BLAKE3, value));
    let trie: NaiveTrie = pairs.iter().map(hash).collect();
    let root = trie.root(Hasher::BLAKE3);
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
