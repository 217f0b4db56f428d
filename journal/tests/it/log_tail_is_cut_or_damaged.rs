//! For any change of the log's bytes, a scan gives the records before it and then either cuts or reports damage,
//! exactly as rule `evidence-of-damage` says.

use crate::log_support::{
    DATABASE, SEGMENT, append, cases, continue_log, input, new_log, read_log, record, sync,
};
use pleach_io::sim::{
    Damage, DamagedPage, Fault, FaultRepeats, FaultRule, Rng, SimDisk, SimOptions, code,
};
use pleach_io::{Device, Disk, OpenMode, Operation, PageBuf};
use pleach_journal::format::names::segment_name as name;
use pleach_journal::format::position::{BLOCK, LogPoint, LogPos};
use pleach_journal::format::record::RecordHeader;
use pleach_journal::log::error::BadSegment;
use pleach_journal::log::{ScanError, ScanInput, scan};

/// A log of `batches` batches, some synced, and its headers.
fn sample(rng: &mut Rng, batches: usize) -> (SimDisk, Vec<RecordHeader>) {
    let disk = SimDisk::new(rng.next(), SimOptions::default());
    let (mut writer, mut tail) = new_log(&disk, rng.chance(1, 2));
    let (mut number, mut durable, mut known) = (0, LogPos::START, Vec::new());
    for _ in 0..batches {
        let mut batch = Vec::new();
        for _ in 0..=rng.index(3) {
            number += 1;
            let len = [0, 1, 7, 200, 4000, 9000, 20_000][rng.index(7)];
            batch.push(record(number, len, rng.next()));
            known.push(durable);
        }
        append(&mut writer, &mut tail, &mut batch).expect("no faults");
        if rng.chance(2, 3) {
            durable = sync(&mut writer, &mut tail).expect("no faults");
        }
    }
    let (found, end) = read_log(&disk, &input(1, 0)).expect("an intact log");
    assert_eq!(end.end, writer.end());
    assert_eq!(end.cut, None);
    assert!(end.proven <= writer.durable());
    // Each record knows what was synced when it was written: the evidence that this file is about.
    assert!(found.iter().map(|(header, _)| header.durable_through).eq(known));
    (disk, found.into_iter().map(|(header, _)| header).collect())
}

/// The verdict of the rule when the records from index `bad` on no longer chain: `Err` is damage.
fn verdict(headers: &[RecordHeader], bad: usize, superblock: u64) -> Result<u64, u64> {
    let x = if bad == 0 { 0 } else { headers[bad - 1].end().get() };
    let known = (headers[bad + 1..].iter())
        .map(|header| header.durable_through.get())
        .fold(superblock, u64::max);
    if known > x { Err(x) } else { Ok(x) }
}

fn check(disk: &SimDisk, headers: &[RecordHeader], bad: usize, superblock: u64, what: &str) {
    let result = read_log(disk, &input(1, superblock));
    match (verdict(headers, bad, superblock), result) {
        (Ok(x), Ok((found, end))) => {
            assert_eq!(end.end.position.get(), x, "{what}");
            assert!(found.iter().map(|(header, _)| header).eq(&headers[..bad]), "{what}");
            assert!(end.proven.get() <= x, "{what}");
        }
        (Err(x), Err(ScanError::Damaged { position, durable_through, .. })) => {
            assert_eq!(position.get(), x, "{what}");
            assert!(durable_through.get() > x, "{what}");
        }
        (expected, found) => panic!("{what}: expected {expected:?}, found {found:?}"),
    }
}

/// Index of the record that owns the byte at a position; `None` in padding.
fn owner(headers: &[RecordHeader], position: u64) -> Option<usize> {
    let position = LogPos::new(position);
    (headers.iter()).position(|h| (h.position..h.position + h.record_len()).contains(&position))
}

#[test]
fn a_flipped_bit_is_a_cut_or_damage_by_the_rule() {
    let mut rng = Rng::new(1);
    for case in 0..cases(40) {
        let (disk, headers) = sample(&mut rng, 8);
        let end = headers.last().expect("records").end().get();
        let image = disk.image();
        for _ in 0..60 {
            let position = rng.below(end);
            let superblock = if rng.chance(1, 4) { rng.below(end) } else { 0 };
            let disk = SimDisk::from_image(&image, 0);
            let at =
                DamagedPage { file: name(position / SEGMENT), page: position % SEGMENT / BLOCK };
            let byte = u16::try_from(position % BLOCK).expect("a page");
            assert!(disk.damage(&Damage::Flip { at, byte, bit: rng.byte() % 8 }));
            let what = format!("case {case}, position {position:#x}");
            if let Some(bad) = owner(&headers, position) {
                check(&disk, &headers, bad, superblock, &what);
            } else {
                // Padding between records belongs to none.
                let (found, _) = read_log(&disk, &input(1, superblock)).expect(&what);
                assert_eq!(found.len(), headers.len(), "{what}");
            }
        }
    }
}

#[test]
fn a_file_of_the_log_that_is_missing_or_has_another_length_is_damage() {
    // The newest file was cut off or removed, and the log ended there: acknowledged commits were lost without an error.
    let mut rng = Rng::new(2);
    for case in 0..cases(20) {
        let (disk, headers) = sample(&mut rng, 6);
        let end = headers.last().expect("records").end().get();
        let image = disk.image();
        let files = image.names().filter(|name| name.starts_with("log-")).count() as u64;
        for index in 0..files {
            let file = name(index);
            let lengths =
                [0, 1, 4095, 4096, rng.below(SEGMENT), SEGMENT - 1, SEGMENT + 1, 2 * SEGMENT];
            for superblock in [0, rng.below(end)] {
                for len in lengths {
                    let disk = SimDisk::from_image(&image, 0);
                    if len < SEGMENT {
                        disk.damage(&Damage::Truncate { file: file.clone(), len });
                    } else {
                        let file = disk.open(&file, OpenMode::Write).expect("no faults");
                        disk.set_len(&file, len).expect("no faults");
                    }
                    let result = read_log(&disk, &input(1, superblock));
                    assert!(
                        matches!(result, Err(ScanError::Segment(BadSegment { index: at, found: Some(found), .. }))
                            if (at, found) == (index, len)),
                        "case {case}, file {index} of {len} bytes: {result:?}"
                    );
                }
                let disk = SimDisk::from_image(&image, 0);
                disk.remove(&file).expect("no faults");
                // A superblock knows of the segment of the replay start.
                let known = ScanInput { prepared_through: SEGMENT.into(), ..input(1, superblock) };
                let result = read_log(&disk, &known);
                let named = matches!(result, Err(ScanError::Segment(BadSegment { index: at, found: None, .. })) if at == index)
                    || matches!(result, Err(ScanError::Damaged { .. }));
                // No record knows of a file that was made ahead while nothing has been written since.
                let unknown = index + 1 == files && index * SEGMENT > end;
                assert!(named || unknown, "case {case}, file {index} is missing: {result:?}");
            }
        }
    }
}

/// As beside a process that writes: records may name a file, or go on in one, that was made after the files were listed.
#[test]
fn a_segment_that_is_made_during_the_scan_is_no_missing_one() {
    let mut rng = Rng::new(3);
    let mut made = 0;
    for case in 0..cases(20) {
        let (disk, headers) = sample(&mut rng, 6);
        let image = disk.image();
        let second = headers[0].end().segment(SEGMENT) + 1;
        for file in (second..).map(name).take_while(|file| image.names().any(|it| it == file)) {
            let disk = SimDisk::from_image(&image, 0);
            disk.rename(&file, "made").expect("no faults");
            let mut found = Vec::new();
            let scanned = scan(&Disk::from(&disk), &input(1, 0), |record| {
                if found.is_empty() {
                    disk.rename("made", &file).expect("no faults");
                    made += 1;
                }
                found.push(record.header);
                Ok::<(), ScanError>(())
            });
            let end = scanned.unwrap_or_else(|error| panic!("case {case}, {file}: {error}")).end;
            let last = headers.last().expect("records");
            assert_eq!((end.position, &found), (last.end(), &headers), "case {case}, {file}");
        }
    }
    assert!(made > 0, "no case has a second segment");
}

#[test]
fn records_of_a_cut_off_incarnation_never_come_back() {
    // Incarnation 1 loses the middle of its unsynced batches and incarnation 2 overwrites them with records of the same
    // sizes, so that old records lie exactly where the next ones are expected.
    let disk = SimDisk::new(0, SimOptions::default());
    let (mut writer, mut tail) = new_log(&disk, false);
    for number in 1..=6 {
        append(&mut writer, &mut tail, &mut [record(number, 3000, 1)]).expect("no faults");
        if number <= 2 {
            sync(&mut writer, &mut tail).expect("no faults");
        }
    }
    drop(writer);
    let at = DamagedPage { file: name(0), page: 2 };
    assert!(disk.damage(&Damage::Flip { at, byte: 100, bit: 0 }));
    for incarnation in 2..6u32 {
        let (found, end) = read_log(&disk, &input(incarnation - 1, 0)).expect("a cut");
        assert_eq!(found.len(), incarnation as usize);
        let (mut writer, mut tail) = continue_log(&disk, &end, incarnation).expect("no faults");
        let number = found.len() as u64 + 1;
        let batch = &mut [record(number, 3000, u64::from(incarnation))];
        append(&mut writer, &mut tail, batch).expect("no faults");
        sync(&mut writer, &mut tail).expect("no faults");
        let (found, _) = read_log(&disk, &input(incarnation, 0)).expect("a cut");
        assert_eq!(found.len() as u64, number);
        assert_eq!(found.last().map(|(header, _)| header.incarnation), Some(incarnation));
    }
}

/// Names of the log's segments, ascending.
fn log_files(disk: &SimDisk) -> Vec<String> {
    disk.image().names().filter(|name| name.starts_with("log-")).map(str::to_owned).collect()
}

#[test]
fn a_recycled_segments_past_is_not_taken_for_the_log() {
    recycle(false);
    recycle(true);
}

fn recycle(cached: bool) {
    let mut rng = Rng::new(4);
    let disk = SimDisk::new(0, SimOptions::default());
    let (mut writer, mut tail) = new_log(&disk, cached);
    let (mut kept, mut recycled) = (LogPoint::default(), 0);
    for number in 1..=200u64 {
        let len = usize::try_from(rng.below(6000)).expect("small");
        let before = writer.segments().prepared_through();
        append(&mut writer, &mut tail, &mut [record(number, len, rng.next())]).expect("no faults");
        let prepared = writer.segments().prepared_through();
        // Nothing has been written to the last page of a new segment yet.
        if prepared > before && writer.end().position + BLOCK <= prepared {
            let (image, last) = (disk.image(), prepared.segment(SEGMENT) - 1);
            let file = image.file(&name(last)).expect("prepared");
            recycled += u32::from(file.page(file.pages() - 1).iter().any(|byte| *byte != 0));
        }
        if !cached || number % 3 == 0 {
            sync(&mut writer, &mut tail).expect("no faults");
        }
        if number % 10 == 0 {
            writer.segments().retire(kept.position).expect("no faults");
            kept = writer.end();
        }
        let mut input = input(1, writer.durable());
        input.from = kept;
        let (found, end) = read_log(&disk, &input).expect("an intact log");
        assert_eq!(end.end, writer.end());
        assert_eq!(found.len() as u64, number % 10);
    }
    let files = log_files(&disk).len();
    assert!(recycled > 10 && files < 12, "{recycled} recycled, {files} files");
}

#[test]
fn hostile_lengths_and_positions_are_only_bytes() {
    let honest = RecordHeader {
        kind: pleach_journal::format::record::LogRecordKind::Commit,
        flags: 0,
        body_len: 0,
        database: DATABASE,
        position: LogPos::START,
        number: 1,
        durable_through: LogPos::START,
        previous: 0,
        body_checksum: 0,
        incarnation: 1,
        prepared_through: SEGMENT.into(),
    };
    for body_len in [1 << 20, (1 << 30) - 88, 1 << 30, u64::MAX - 88, u64::MAX] {
        for position in [0, 8, u64::MAX - 7] {
            let disk = SimDisk::new(0, SimOptions::default());
            let file = disk.open(&name(0), OpenMode::CreateNew).expect("no faults");
            disk.set_len(&file, SEGMENT).expect("no faults");
            let mut page = PageBuf::zeroed(1);
            let header = RecordHeader { body_len, position: position.into(), ..honest };
            page[..88].copy_from_slice(&header.encode().0);
            disk.write_at(&file, &page, 1, 0).expect("no faults");
            let (found, end) = read_log(&disk, &input(1, 0)).expect("a cut");
            assert!(found.is_empty());
            // A whole header of another place is an old one of a recycled segment.
            let of_before = position > 0 && RecordHeader::decode(&header.encode().0).is_ok();
            assert_eq!(end.cut.is_none(), of_before, "{header:?}");
        }
    }
    for position in [1, u64::MAX - 7] {
        let mut input = input(1, 0);
        input.from.position = position.into();
        let result = read_log(&SimDisk::new(0, SimOptions::default()), &input);
        assert!(matches!(result, Err(ScanError::Geometry { .. })));
    }
}

#[test]
fn a_record_of_an_older_incarnation_does_not_follow_even_when_it_chains() {
    for (second, expected) in [(5, 2), (6, 2), (4, 1)] {
        let disk = SimDisk::new(0, SimOptions::default());
        let file = disk.open(&name(0), OpenMode::CreateNew).expect("no faults");
        disk.set_len(&file, SEGMENT).expect("no faults");
        let mut page = PageBuf::zeroed(1);
        let mut previous = 0;
        for (position, incarnation) in [(0, 5), (88, second)] {
            let header = RecordHeader {
                kind: pleach_journal::format::record::LogRecordKind::Close,
                flags: 0,
                body_len: 0,
                database: DATABASE,
                position: position.into(),
                number: 1,
                durable_through: LogPos::START,
                previous,
                body_checksum: pleach_journal::format::record::body_checksum(DATABASE, []),
                incarnation,
                prepared_through: SEGMENT.into(),
            };
            let at = usize::try_from(position).expect("small");
            let (bytes, checksum) = header.encode();
            page[at..at + 88].copy_from_slice(&bytes);
            previous = checksum;
        }
        disk.write_at(&file, &page, 1, 0).expect("no faults");
        let (found, _) = read_log(&disk, &input(9, 0)).expect("a cut");
        assert_eq!(found.len(), expected);
    }
}

#[test]
fn a_record_of_a_future_incarnation_is_an_error() {
    let mut rng = Rng::new(5);
    let (disk, _) = sample(&mut rng, 3);
    let result = read_log(&disk, &input(0, 0));
    assert!(matches!(result, Err(ScanError::Future { found: 1, known: 0, .. })));
}

#[test]
fn behind_a_clean_close_unreadable_sectors_do_not_matter_and_records_do() {
    let mut rng = Rng::new(6);
    let (disk, headers) = sample(&mut rng, 4);
    let (_, end) = read_log(&disk, &input(1, 0)).expect("an intact log");
    let clean = ScanInput { from: end.end, clean: true, ..input(1, end.end.position) };
    let unclean = ScanInput { clean: false, ..clean };
    let image = disk.image();
    let block = end.end.position.get().div_ceil(BLOCK);
    for page in block..(block / (SEGMENT / BLOCK) + 1) * (SEGMENT / BLOCK) {
        let disk = SimDisk::from_image(&image, 0);
        let at = DamagedPage { file: name(page * BLOCK / SEGMENT), page: page % (SEGMENT / BLOCK) };
        disk.damage(&Damage::Unreadable(at));
        let (found, scanned) = read_log(&disk, &clean).expect("nothing was to be read");
        assert_eq!((found.len(), scanned.end, scanned.proven), (0, end.end, end.end.position));
        assert!(matches!(read_log(&disk, &unclean), Err(ScanError::Io(_))), "page {page}");
    }
    // A superblock from before the last records, which came back, does not hide them.
    let last = headers[headers.len() - 1];
    let older = LogPoint { position: last.position, checksum: last.previous };
    let stale = ScanInput { from: older, clean: true, ..input(1, last.position) };
    assert_eq!(read_log(&disk, &stale).expect("intact").0.len(), 1);
    let stale = ScanInput { incarnation: 0, ..stale };
    assert!(matches!(read_log(&disk, &stale), Err(ScanError::Future { .. })));
}

#[test]
fn a_spare_segment_that_cannot_be_renamed_goes_on_waiting() {
    // The segment had been taken from the list before the rename failed, and was lost until the next open.
    let mut rng = Rng::new(7);
    for operation in [Operation::Rename, Operation::Open] {
        let disk = SimDisk::new(0, SimOptions::default());
        let (mut writer, mut tail) = new_log(&disk, false);
        for number in 1..=8 {
            append(&mut writer, &mut tail, &mut [record(number, 9000, rng.next())])
                .expect("no faults");
            sync(&mut writer, &mut tail).expect("no faults");
        }
        let segments = writer.segments().clone();
        segments.retire(writer.end().position).expect("no faults");
        let before = log_files(&disk);
        let next = segments.prepared_through() + 1;
        disk.inject(FaultRule::nth(
            operation,
            "log-",
            1,
            FaultRepeats::Once,
            Fault::Errno(code::EIO),
        ));
        assert!(segments.prepare_through(next).is_err(), "{operation:?}");
        assert_eq!(log_files(&disk), before, "{operation:?}: nothing is lost");
        segments.prepare_through(next).expect("the fault strikes once");
        assert_eq!(log_files(&disk).len(), before.len(), "{operation:?}: a spare was used");
    }
}
