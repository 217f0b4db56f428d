//! What the fuzz target `line_tree` does, with the inputs of its corpus and with some that are drawn here.

#![allow(unreachable_pub, clippy::pedantic, reason = "these files are of a crate of their own")]

#[path = "../../fuzz/src/input.rs"]
#[allow(dead_code, reason = "other targets use more of it")]
mod input;
#[path = "../../fuzz/src/line_tree.rs"]
mod line_tree;

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

#[test]
fn pages_follow_the_naive_trie() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/line_tree");
    for file in std::fs::read_dir(corpus).expect("a corpus") {
        line_tree::run(&std::fs::read(file.expect("a file").path()).expect("an input"));
    }
    let cases = std::env::var("PLEACH_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases: usize = cases.unwrap_or(1500);
    let (mut rng, mut changed) = (ChaCha8Rng::seed_from_u64(0), 0);
    for _ in 0..cases {
        let mut input = vec![0; 20 + (rng.next_u32() % 400) as usize];
        rng.fill_bytes(&mut input);
        changed += usize::from(line_tree::run(&input) > 0);
    }
    assert!(changed * 2 > cases, "keys of the page changed in {changed} of {cases}");
}
