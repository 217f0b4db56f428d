//! Any bytes as an export stream or a change stream: an error, or records that ascend and are as many as the stream says.
//!
//! Bytes as they are mostly end at the first checksum, so they are read a second time as the payloads of blocks that get right
//! headers and checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pleach_ops::export::{ChangeReader, StreamError, StreamReader};
use twox_hash::XxHash3_64;

fn read(bytes: &[u8]) -> Result<(), StreamError> {
    let mut reader = StreamReader::new(bytes)?;
    for _ in 0..reader.head().namespaces.len() {
        let mut last = None;
        while let Some((key, value)) = reader.next()? {
            assert!(last < Some(key) && value.len() <= bytes.len());
            last = Some(key);
        }
    }
    reader.finish()
}

fn read_changes(bytes: &[u8]) -> Result<(), StreamError> {
    let mut reader = ChangeReader::new(bytes)?;
    assert!(reader.head().from < reader.head().to);
    for of in reader.head().namespaces.clone() {
        let mut last = None;
        while let Some((key, value)) = reader.next()? {
            assert!(last < Some(key) && value.is_none_or(|value| value.len() <= bytes.len()));
            assert!(of.after.is_some() && (of.before.is_some() || value.is_some()));
            last = Some(key);
        }
        assert!(
            of.plain
                || last.is_some()
                || of.after.is_none()
                || of.before.is_none()
                || of.before == of.after
        );
    }
    reader.finish()
}

fuzz_target!(|data: &[u8]| {
    let _ = (read(data), read_changes(data));
    let (mut stream, mut before, mut rest) = (Vec::new(), 0, data);
    while let Some((head, after)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([head[1], head[2]])).min(after.len());
        let (payload, after) = after.split_at(length);
        let count = u32::try_from(length).expect("short").to_le_bytes();
        let header = [&b"PLXB"[..], &[head[0] % 7, 0, 0, 0], &count, &[0; 4]].concat();
        before = XxHash3_64::oneshot_with_seed(before, &[&*header, payload].concat());
        stream.extend([&*header, &before.to_le_bytes(), payload].concat());
        rest = after;
    }
    let _ = (read(&stream), read_changes(&stream));
});
