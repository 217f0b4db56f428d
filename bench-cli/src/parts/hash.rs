//! `nomt-bench hash`: hash functions one message a call, and trie nodes in batches.

use std::hint::black_box;

use pleach_core::{Blake3, Hasher as _};
use sha2::{Digest as _, Sha256};
use sha3::Keccak256;

use super::sheet::{Subject, Turn};
use super::{Sheet, draws};
use crate::args::parts::HashArgs;
use crate::error::{BenchError, Result};
use crate::progress::Progress;
use crate::text::{grouped, hex};

/// Bytes of all messages of a case.
const BYTES: usize = 1 << 20;
/// Nodes of a round.
const NODES: usize = 16_384;

/// A hash function.
type Function = fn(&[u8]) -> [u8; 32];

const FUNCTIONS: [(&str, Function); 3] = [
    ("blake3", |message| Blake3::hash(message)),
    ("sha-256", |message| Sha256::digest(message).into()),
    ("keccak-256", |message| Keccak256::digest(message).into()),
];

/// Published digests of the empty message and of `abc`.
const KNOWN: [(&str, &str, &str); 3] = [
    (
        "blake3",
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
    ),
    (
        "sha-256",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    ),
    (
        "keccak-256",
        "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470",
        "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45",
    ),
];

/// Measures all cases.
pub(crate) fn run(args: &HashArgs, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    for ((name, function), (_, empty, abc)) in FUNCTIONS.iter().zip(KNOWN) {
        for (message, expected) in [("", empty), ("abc", abc)] {
            let found = hex(&function(message.as_bytes()));
            if found != expected {
                return Err(BenchError::Wrong(format!("{name} of {message:?} is {found}")));
            }
        }
    }
    let mut random = draws(args.parts.results.seed, 0);
    let bytes: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.bits().to_le_bytes()).collect();
    for size in [32, 64, 256, 1024, 4096] {
        let subjects = FUNCTIONS.iter().map(|(name, function)| -> Subject<'_> {
            let bytes = &bytes;
            let turn = move |_| {
                let (turn, ()) = Turn::of(|| {
                    for message in bytes.chunks_exact(size) {
                        black_box(function(black_box(message)));
                    }
                });
                Ok(turn)
            };
            ((*name).to_owned(), Box::new(turn))
        });
        let name = format!("{} bytes", grouped(size as u64));
        let messages = (BYTES / size) as u64;
        sheet.case(bar, (&name, messages), args.parts.rounds(), subjects.collect())?;
    }
    nodes(args, bar, &bytes, sheet)
}

fn nodes(args: &HashArgs, bar: &Progress, bytes: &[u8], sheet: &mut Sheet) -> Result<()> {
    let blocks: Vec<[u8; 64]> =
        bytes.chunks_exact(64).take(NODES).map(|block| block.try_into().expect("64")).collect();
    let expected: Vec<[u8; 32]> = blocks.iter().map(Blake3::hash64).collect();
    let subjects = [1, 4, 8, 16].map(|lanes| -> Subject<'_> {
        let (blocks, expected) = (&blocks, &expected);
        let mut digests = vec![[0; 32]; NODES];
        let turn = move |_| {
            let (turn, ()) = Turn::of(|| {
                for (blocks, out) in blocks.chunks(lanes).zip(digests.chunks_mut(lanes)) {
                    Blake3::hash64_many(black_box(blocks), out);
                }
            });
            if digests != *expected {
                return Err(BenchError::Wrong(format!("digests of {lanes} nodes a call")));
            }
            Ok(turn)
        };
        (format!("pleach, {lanes} a call"), Box::new(turn))
    });
    sheet.case(bar, ("trie nodes", NODES as u64), args.parts.rounds(), subjects.into())
}
