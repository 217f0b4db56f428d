//! `hash`: hash functions, one message a call, and trie nodes, several a call.

use core::time::Duration;
use std::hint::black_box;

use pleach_core::Hasher;
use serde::{Deserialize, Serialize};
use sha3::{Digest as _, Keccak256};

use super::{WorkPlan, draws, ours};
use crate::error::{Result, wrong};
use crate::job_context::JobContext;
use crate::measure::{Times, grouped, hex, timed};

/// Bytes of all messages of a case.
const BYTES: usize = 1 << 20;
/// Nodes that are hashed in a round.
const NODES: usize = 16_384;

type Function = fn(&[u8]) -> [u8; 32];

/// Each function with the published digests of the empty message and of `abc`.
const FUNCTIONS: [(&str, Function, [&str; 2]); 3] = [
    (
        "blake3",
        |message| Hasher::BLAKE3.hash(message),
        [
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
        ],
    ),
    (
        "sha-256",
        |message| Hasher::SHA2_256.hash(message),
        [
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ],
    ),
    (
        "keccak-256",
        |message| Keccak256::digest(message).into(),
        [
            "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470",
            "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45",
        ],
    ),
];

/// `nomt-bench hash`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct HashArgs {}

impl HashArgs {
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "as all workloads have it")]
    pub fn plan(&self) -> Result<WorkPlan> {
        Ok(WorkPlan { runs: ours, ..WorkPlan::ROUNDS })
    }
}

pub fn run(_args: &HashArgs, side: &mut JobContext) -> Result<()> {
    for (name, function, published) in FUNCTIONS {
        for (message, expected) in ["", "abc"].into_iter().zip(published) {
            let found = hex(&function(message.as_bytes()));
            if found != expected {
                return wrong(format!("{name} of {message:?} is {found}"));
            }
        }
    }
    let mut random = draws(side.flags.seed, 0);
    let bytes: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.bits().to_le_bytes()).collect();
    for size in [32, 64, 256, 1024, 4096] {
        let case = format!("{} bytes", grouped(size as u64));
        rounds(side, &case, BYTES / size, &FUNCTIONS.map(|one| one.0.to_owned()), |at| {
            let hash = || {
                for message in bytes.chunks_exact(size) {
                    black_box(FUNCTIONS[at].1(black_box(message)));
                }
            };
            Ok(timed(hash).0)
        })?;
    }
    let blocks = &bytes.as_chunks::<64>().0[..NODES];
    let expected: Vec<[u8; 32]> = blocks.iter().map(|block| Hasher::BLAKE3.hash64(block)).collect();
    let lanes = [1, 4, 8, 16];
    rounds(side, "trie nodes", NODES, &lanes.map(|lanes| format!("{lanes} a call")), |at| {
        let mut digests = vec![[0; 32]; NODES];
        let (took, ()) = timed(|| {
            for (blocks, out) in blocks.chunks(lanes[at]).zip(digests.chunks_mut(lanes[at])) {
                Hasher::BLAKE3.hash64_many(black_box(blocks), out);
            }
        });
        let holds = digests == expected;
        if holds { Ok(took) } else { wrong(format!("digests of {} nodes a call", lanes[at])) }
    })
}

/// Lets `work` do the rounds of a case, for each name once a round, in reversed order every second time.
fn rounds(
    side: &mut JobContext,
    case: &str,
    hashes: usize,
    names: &[String],
    mut work: impl FnMut(usize) -> Result<Duration>,
) -> Result<()> {
    let mut times: Vec<Times> = names.iter().map(|_| Times::default()).collect();
    for round in 0..=side.flags.rounds(15) {
        if !side.turn()? {
            break;
        }
        for at in 0..names.len() {
            let at = if round % 2 == 0 { at } else { names.len() - 1 - at };
            let took = work(at)?;
            if round > 0 {
                times[at].record(took);
            }
        }
    }
    for (name, times) in names.iter().zip(times).filter(|one| one.1.count() > 0) {
        side.figure(times.each(case, name, hashes as u64))?;
    }
    Ok(())
}
