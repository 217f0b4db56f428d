//! Any bytes as a page of a run of the history: no panic, and a page that parses has the entries that it is built of. Any
//! bytes as what leads to a run: what parses is encoded to the same bytes.
#![no_main]

use pleach_history::{RunDescriptor, entries_of};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = entries_of(&bytes[..bytes.len().min(4052)]) {
        assert!(what != "other entries" && what != "an entry is not there");
    }
    if let Some((names, left)) = RunDescriptor::decode(bytes) {
        let mut again = Vec::new();
        names.encode(&mut again);
        assert_eq!(again, bytes[..bytes.len() - left.len()]);
    }
});
