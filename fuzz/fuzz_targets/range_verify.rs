//! Any bytes, and proofs of any shape, as a range proof: no panic, and both verifiers say the same.
#![no_main]

use pleach_core::{Hasher, proof::ProofKind};
use pleach_fuzz::{Input, range_agrees};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let shaped = input.u8() & 1 == 1;
    let (first, last) = input.range();
    if !shaped {
        let root = input.root();
        range_agrees(input.0, &root, &first, &last);
        return;
    }
    let root = input.hash();
    let proof = input.proof();
    let mut bytes = proof.encode(Hasher::BLAKE3).expect("small");
    bytes[5] = ProofKind::Range as u8;
    // An accepted proof is about an empty or one-leaf trie: no other hashes to 32 equal bytes.
    if range_agrees(&bytes, &root, &first, &last) {
        assert!(proof.siblings.is_empty() && proof.terminals.len() == 1);
    }
});
