//! What three of the fuzz targets do, with the inputs of their corpora and with some that are drawn here.

#![allow(unreachable_pub, clippy::pedantic, reason = "these files are of a crate of their own")]

#[path = "../../fuzz/src/api_model.rs"]
mod api_model;
#[path = "../../fuzz/src/crash_schedule.rs"]
mod crash_schedule;
#[path = "../../fuzz/src/input.rs"]
mod input;
#[path = "../../fuzz/src/model.rs"]
mod model;
#[path = "../../fuzz/src/open_dir.rs"]
mod open_dir;
#[path = "../../fuzz/src/sim.rs"]
mod sim;

use std::path::Path;

use input::Input;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// The inputs of a target's corpus, and as many as `PLEACH_CASES` says (200) of up to 600 bytes.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let files =
        std::fs::read_dir(corpus).expect("a corpus").map(|file| file.expect("a file").path());
    let mut inputs: Vec<Vec<u8>> =
        files.map(|file| std::fs::read(file).expect("an input")).collect();
    assert!(inputs.len() > 2, "the corpus of {target}");
    let cases = std::env::var("PLEACH_CASES").ok().and_then(|cases| cases.parse().ok());
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    for _ in 0..cases.unwrap_or(200) {
        let mut input = vec![0; 100 + (rng.next_u32() % 500) as usize];
        rng.fill_bytes(&mut input);
        inputs.push(input);
    }
    inputs
}

#[test]
fn the_api_follows_its_model() {
    inputs("api_model").iter().for_each(|input| api_model::run(input));
}

#[test]
fn power_cuts_leave_what_the_model_has() {
    inputs("crash_schedule").iter().for_each(|input| crash_schedule::run(input));
}

#[test]
fn damaged_folders_are_refused_or_right() {
    inputs("open_dir").iter().for_each(|input| open_dir::run(input));
}
