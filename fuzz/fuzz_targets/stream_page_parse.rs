//! Any bytes as a stream page with a right checksum: no panic, and a page that parses is exactly the
//! page that its contents build.
#![no_main]

#[path = "../../core/tests/it/page_common/canonical.rs"]
mod canonical;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (page, identity) = canonical::claimed(bytes);
    let _ = canonical::stream_is_canonical(&page, &identity);
});
