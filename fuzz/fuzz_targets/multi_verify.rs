//! Multiproofs of any shape, most of them well-formed, about a root that they do not lead to.
#![no_main]

use pleach_core::{Hasher, proof::path::PathProof};
use pleach_fuzz::{Input, multi_agrees, path_holds};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let proof = input.proof();
    let root = input.hash();
    let bytes = proof.encode(Hasher::BLAKE3).expect("small");
    // An accepted proof says nothing, or is about an empty or one-leaf trie.
    if multi_agrees(&bytes, &root) {
        assert!(proof.siblings.is_empty() && proof.terminals.len() <= 1);
    }
    if let [terminal] = proof.terminals[..] {
        let path = PathProof { terminal, siblings: proof.siblings };
        path_holds(&path.encode(Hasher::BLAKE3).expect("small"), &root);
    }
});
