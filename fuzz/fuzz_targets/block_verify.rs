//! Any bytes as a block and as a proof through the root over all, and both of any shape: no panic,
//! and both verifiers say the same.
#![no_main]

use pleach_core::{Hasher, proof::ProofKind};
use pleach_fuzz::{Input, block_agrees, framed, through_agrees};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    if input.u8() & 1 == 0 {
        let root = input.root();
        block_agrees(input.0, &root);
        through_agrees(input.0, &root);
        return;
    }
    // A state with what the input says of it, whether or not that can be.
    let (state, root) = (input.set(), input.hash());
    let outer = input.ops();
    let inner: Vec<Vec<u8>> = (0..input.u8() % 4)
        .map(|_| {
            let (set, ops) = (input.set(), input.ops());
            set.witness(Hasher::BLAKE3, &ops).encode(Hasher::BLAKE3).expect("small")
        })
        .collect();
    let inner: Vec<&[u8]> = inner.iter().map(Vec::as_slice).collect();
    let witness = state.witness(Hasher::BLAKE3, &outer).encode(Hasher::BLAKE3).expect("small");
    let roots = [state.root(Hasher::BLAKE3), root];
    let bytes = framed(ProofKind::Block, input.u8() / 128, &witness, &inner);
    roots.iter().for_each(|root| _ = block_agrees(&bytes, root));
    let ns = input.u8();
    let mut key = input.key();
    key[0] = ns;
    let path = state.path(Hasher::BLAKE3, &key).encode(Hasher::BLAKE3).expect("small");
    let bytes = framed(ProofKind::Namespace, ns, &path, &inner);
    roots.iter().for_each(|root| _ = through_agrees(&bytes, root));
});
