//! Any bytes as a witness: no panic, and both verifiers say the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (root, bytes) = bytes.split_first_chunk().unwrap_or((&[0; 32], bytes));
    pleach_fuzz::witness_agrees(bytes, pleach_core::Node::ref_of(root));
});
