//! Any page as a superblock's slot: an error or a superblock whose own encoding is that page.
//!
//! The page gets a good checksum, magic and version; the fuzzer works on the fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pleach::internals::format::superblock::{FORMAT_VERSION, MAGIC, Superblock};
use pleach_io::PAGE;
use twox_hash::XxHash3_64;

fuzz_target!(|data: &[u8]| {
    let mut page = [0; PAGE];
    let len = data.len().min(PAGE);
    page[..len].copy_from_slice(&data[..len]);
    let _ = Superblock::decode(&page, 0);

    page[8..16].copy_from_slice(&MAGIC);
    page[16..20].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    page[20..24].fill(0);
    let checksum = XxHash3_64::oneshot(&page[8..]);
    page[..8].copy_from_slice(&checksum.to_le_bytes());
    if let Ok(superblock) = Superblock::decode(&page, 0) {
        assert_eq!(superblock.encode(0).page(0), &page);
    }
});
