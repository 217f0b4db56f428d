//! Any bytes as log segments: the scan ends with a verdict, in bounded time and memory, and what
//! it accepts is a chain. Bodies go through the views of commits and locations.
//!
//! Input: one byte of flags, then the first segment's bytes; with flag 1, 88-byte strings that
//! start with the magic get a good checksum, so that the fuzzer passes the first gate. With the
//! highest flag the database was closed where the scan begins.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pleach_fuzz::sim::unrecorded;
use pleach_io::PAGE;
use pleach_io::sim::{Content, Image, SimDisk};
use pleach_journal::format::commit_body::CommitView;
use pleach_journal::format::location_body::LocationView;
use pleach_journal::format::names::segment_name as name;
use pleach_journal::format::position::LogPoint;
use pleach_journal::format::record::{
    HEADER_LEN, LogRecordKind, MAGIC, RecordHeader, body_checksum,
};
use pleach_journal::log::{ScanError, ScanInput, scan};

const DATABASE: u64 = 7;
const SEGMENT: usize = 4 * PAGE;

fuzz_target!(|data: &[u8]| {
    let Some((flags, bytes)) = data.split_first() else { return };
    let mut bytes = bytes[..bytes.len().min(3 * SEGMENT)].to_vec();
    bytes.resize(bytes.len().next_multiple_of(SEGMENT), 0);
    if flags & 1 != 0 {
        sign(&mut bytes);
    }
    let clean = flags & 0x80 != 0;
    let names: Vec<String> = (0..3).map(name).collect();
    let files = bytes.chunks(SEGMENT).zip(&names);
    let image = Image::from_files(files.map(|(part, name)| (&**name, Content::from_bytes(part))));
    let disk = SimDisk::from_image_with(&image, 0, unrecorded());
    let input = ScanInput {
        database: DATABASE,
        segment_size: SEGMENT as u64,
        incarnation: 9,
        from: LogPoint::default(),
        durable_through: (if clean { 0 } else { u64::from(flags >> 1) * 64 }).into(),
        prepared_through: (bytes.len() as u64).into(),
        clean,
        live: false,
    };
    let mut last = LogPoint::default();
    let end = scan(&disk.into(), &input, |view| {
        assert_eq!(view.header.previous, last.checksum);
        assert!(view.header.position >= last.position && view.header.incarnation <= 9);
        assert_eq!(view.body.len() as u64, view.header.body_len);
        last = LogPoint { position: view.header.end(), checksum: view.checksum };
        walk(view.header.kind, view.body);
        Ok::<_, ScanError>(())
    });
    if let Ok(end) = end {
        assert!(end.end == last && end.proven <= last.position);
        assert_eq!(end.prepared_through.get(), bytes.len() as u64);
        assert!(input.durable_through <= last.position);
    }
});

/// Gives headers at 8-byte boundaries, where the magic stands, the checksums that they need.
fn sign(bytes: &mut [u8]) {
    for at in (0..bytes.len().saturating_sub(HEADER_LEN)).step_by(8) {
        if bytes[at..at + 4] != MAGIC.to_le_bytes() {
            continue;
        }
        let word = |n: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + 8 * n + i]));
        let body_len = word(1) % 8192;
        let body = at + HEADER_LEN..bytes.len().min(at + HEADER_LEN + body_len as usize);
        let header = RecordHeader {
            kind: [LogRecordKind::Commit, LogRecordKind::Location, LogRecordKind::Close]
                [usize::from(bytes[at + 5] % 3)],
            flags: bytes[at + 6] & 1,
            body_len,
            database: DATABASE,
            position: (at as u64).into(),
            number: word(4),
            durable_through: (word(5) % (at as u64 + 1)).into(),
            previous: word(6),
            body_checksum: body_checksum(DATABASE, [&bytes[body]]),
            incarnation: bytes[at + 64].into(),
            prepared_through: (at as u64 + 1 + word(9) % (4 * SEGMENT as u64)).into(),
        };
        bytes[at..at + HEADER_LEN].copy_from_slice(&header.encode().0);
    }
}

fn walk(kind: LogRecordKind, body: &[u8]) {
    if kind == LogRecordKind::Location {
        if let Ok(view) = LocationView::parse(body) {
            assert!(view.rewrites().all(|one| one.is_ok_and(|one| one.pages().count() > 0)));
        }
        return;
    }
    let Ok(view) = CommitView::parse(body) else { return };
    let replaced = view.undo_header.is_some();
    for ns in view.namespaces() {
        let ns = ns.expect("checked by parse");
        let keys = ns.changes().map_while(Result::ok).map(|(key, _)| key);
        assert!(keys.is_sorted_by(|a, b| a < b));
        assert!(ns.nodes().map_while(Result::ok).is_sorted_by(|a, b| a.0 < b.0));
        let undo = ns.undo().count();
        assert!(undo <= body.len() + 1 && (replaced || undo == 0));
    }
}
