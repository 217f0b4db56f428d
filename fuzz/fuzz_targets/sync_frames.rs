//! Any bytes as the parts of a fetch, and the same with right checksums: the folder opens, what is whole in it is kept, and
//! the next open finds the same.
#![no_main]

use std::sync::OnceLock;

use pleach_core::{Hasher, Node};
use pleach_sync::Target;
use pleach_sync::internals::Frames;
use tempfile::TempDir;
use twox_hash::XxHash3_64;

/// Gives each frame that fits its checksums.
fn summed(bytes: &[u8]) -> Vec<u8> {
    let (mut summed, mut at) = (bytes.to_vec(), 0);
    while let Some(rest) = summed.get_mut(at..).filter(|rest| rest.len() >= 128) {
        let length = u32::from_le_bytes(*rest[8..].first_chunk().expect("a length")) as usize;
        let length = length.min(rest.len() - 128);
        rest[..4].copy_from_slice(b"PLSF");
        rest[8..12].copy_from_slice(&u32::try_from(length).expect("short").to_le_bytes());
        let body = XxHash3_64::oneshot(&rest[128..128 + length]);
        rest[16..24].copy_from_slice(&body.to_le_bytes());
        let head = XxHash3_64::oneshot(&rest[5..120]);
        rest[120..128].copy_from_slice(&head.to_le_bytes());
        at += 128 + length;
    }
    summed
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    open(bytes);
    open(&summed(bytes));
});

fn open(bytes: &[u8]) {
    // One folder for all inputs: a target is written and synced.
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder"));
    let target = Target::over_all(Node::new([7; 32]), Hasher::BLAKE3);
    drop(Frames::open(folder.path(), &target).expect("made"));
    let parts = folder.path().join("parts");
    std::fs::write(&parts, bytes).expect("written");
    drop(Frames::open(folder.path(), &target).expect("any bytes"));
    let kept = std::fs::read(&parts).expect("there");
    assert!(bytes.starts_with(&kept));
    drop(Frames::open(folder.path(), &target).expect("opened"));
    assert!(std::fs::read(&parts).expect("there") == kept);
}
