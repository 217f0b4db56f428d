//! Any bytes, and proofs of any shape, as a change proof: no panic, and both verifiers say the same.
#![no_main]

use pleach_core::{
    Hasher, Node,
    proof::{
        ProofKind,
        multi::MultiProof,
        wire::{self, terminal_encode},
    },
};
use pleach_fuzz::{Input, change_agrees};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let shaped = input.u8() & 1 == 1;
    let range = input.range();
    if !shaped {
        let roots = (input.root(), input.root());
        change_agrees(input.0, roots, range);
        return;
    }
    let roots = (input.hash(), input.hash());
    let (before, after) = (input.proof(), input.proof());
    let records = |proof: &MultiProof| {
        let mut bytes = Vec::new();
        for terminal in &proof.terminals {
            terminal_encode(&mut bytes, terminal);
        }
        bytes
    };
    let flags: Vec<u8> = (0..input.u8() % 8).map(|_| input.u8()).collect();
    let terminals = records(&before);
    let ops = [records(&after), flags].concat();
    // All siblings of both, or without those of one side, as if they were the same.
    let mut siblings = before.siblings;
    if input.u8() & 1 == 1 {
        siblings.extend(after.siblings);
    }
    let count = |len: usize| u32::try_from(len).expect("small");
    let sizes = wire::SectionSizes {
        terminals: count(before.terminals.len()),
        ops: count(after.terminals.len()),
        siblings: count(siblings.len()),
        terminal_bytes: count(terminals.len()),
        op_bytes: count(ops.len()),
    };
    let header = wire::header(Hasher::BLAKE3, ProofKind::Change, &sizes);
    let bytes = [&header, &terminals[..], &ops, Node::bytes_of(&siblings)].concat();
    change_agrees(&bytes, roots, range);
});
