//! Any bytes as a path proof or multiproof: no panic, and both verifiers say the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (root, bytes) = bytes.split_first_chunk().unwrap_or((&[0; 32], bytes));
    pleach_fuzz::path_holds(bytes, pleach_core::Node::ref_of(root));
    pleach_fuzz::multi_agrees(bytes, pleach_core::Node::ref_of(root));
});
