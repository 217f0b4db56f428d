//! What the fuzz target `treelet_fold` does, with the inputs of its corpus and with some that are drawn here.

#![allow(unreachable_pub, clippy::pedantic, reason = "these files are of a crate of their own")]

#[path = "../../../fuzz/src/input.rs"]
#[allow(dead_code, reason = "other targets use more of it")]
mod input;
#[path = "../../../fuzz/src/treelet_fold.rs"]
mod treelet_fold;

use std::path::Path;

use self::treelet_fold::Was;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

#[test]
fn folds_agree_whatever_is_known() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/treelet_fold");
    for file in std::fs::read_dir(corpus).expect("a corpus") {
        treelet_fold::run(&std::fs::read(file.expect("a file").path()).expect("an input"));
    }
    let cases = std::env::var("PLEACH_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = cases.unwrap_or(800);
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let (mut treelets, mut columns) = (0, 0);
    for _ in 0..cases {
        let mut input = vec![0; 20 + (rng.next_u32() % 300) as usize];
        rng.fill_bytes(&mut input);
        let was = treelet_fold::run(&input);
        treelets += u32::from(was != Was::Nothing);
        columns += u32::from(was == Was::Columns);
    }
    assert!(treelets * 2 > cases, "treelets: {treelets} of {cases}");
    assert!(columns * 8 > cases, "treelets with columns: {columns} of {cases}");
}
