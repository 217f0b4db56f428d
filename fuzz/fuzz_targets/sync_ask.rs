//! Questions of a stranger to a server: a text that is read as one is the text of it. Heads and places of a stranger's
//! server have one length.
#![no_main]

use pleach_sync::{Ask, Head, Place};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(head) = Head::decode(bytes) {
        assert_eq!(bytes.len(), Head::BYTES, "{head:?}");
    }
    if let Some(place) = Place::decode(bytes) {
        assert_eq!(bytes.len(), Place::BYTES, "{place:?}");
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(ask) = text.parse::<Ask>() {
        assert_eq!(ask.to_string(), text);
    }
});
