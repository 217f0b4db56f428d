//! Any page as a superblock's slot: an error or a superblock whose own encoding is that page.
//!
//! The page gets a good checksum, magic and version; the fuzzer works on the fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pleach_io::PAGE;
use pleach_journal::format::superblock::{
    FORMAT_VERSION, KNOWN_INCOMPATIBLE, KNOWN_READ_ONLY, MAGIC, SlotError, Superblock,
};
use twox_hash::XxHash3_64;

fuzz_target!(|data: &[u8]| {
    let mut page = [0; PAGE];
    let len = data.len().min(PAGE);
    page[..len].copy_from_slice(&data[..len]);
    let _ = Superblock::decode(&page, 0);

    page[8..16].copy_from_slice(&MAGIC);
    page[16..20].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    page[20..24].fill(0);
    sign(&mut page);
    let Ok(superblock) = Superblock::decode(&page, 0) else { return };
    let encoded = *superblock.encode(0).page(0);
    if superblock.check_features(true).is_ok() {
        assert_eq!(encoded, page);
        return;
    }
    // A feature that is not known may have given reserved bytes a meaning. They are those that are refused where
    // all features are known.
    let known = Superblock {
        read_only_compatible: superblock.read_only_compatible & KNOWN_READ_ONLY,
        incompatible: superblock.incompatible & KNOWN_INCOMPATIBLE,
        ..superblock
    };
    let known = *known.encode(0).page(0);
    for at in (8..PAGE).filter(|at| encoded[*at] != page[*at]) {
        let mut changed = known;
        changed[at] = page[at];
        sign(&mut changed);
        assert!(matches!(Superblock::decode(&changed, 0), Err(SlotError::Field(_))), "byte {at}");
    }
});

/// Gives a page the checksum of its bytes.
fn sign(page: &mut [u8; PAGE]) {
    let checksum = XxHash3_64::oneshot(&page[8..]);
    page[..8].copy_from_slice(&checksum.to_le_bytes());
}
