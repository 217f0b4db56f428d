//! Opens of records that no writer makes, and of files that an older generation needs.

use std::sync::Arc;

use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::page::stream::StreamId;
use pleach_core::{Hasher, Key, Node, Prefix, TERMINATOR};
use pleach_io::sim::{
    Content, Damage, DamagedPage, Fault, FaultRepeats, FaultRule, Image, SimDisk, SimOptions,
    SimRuntime, code,
};
use pleach_io::{Device as _, OpenMode, Operation};
use pleach_journal::format::commit_body::{
    EntryKind, LoggedValue, NamespacePart, Section, commit_record,
};
use pleach_journal::format::image::ImageReader;
use pleach_journal::format::location_body::{LocationEncoder, NewPage, Rewrite};
use pleach_journal::format::names::{image_name, segment_name};
use pleach_journal::format::position::{BLOCK, LogPos};
use pleach_journal::format::superblock_store::SuperblockStore;
use pleach_journal::format::table::map_end;
use pleach_journal::format::trie_kind::TrieKind;

use super::recovery::read_table;
use super::trie::{ImageSource, TrieReplay};
use crate::checkpoint::checkpoint;
use crate::error::Contradiction;
use crate::load::LoadOptions;
use crate::state::order::images::NUMBERS_FOR_CLOSE;
use crate::{Access, Db, Error, Geometry, Options, SessionOptions, Value};
use pleach_core::page::overflow::OverflowExtent;
use pleach_ops::repair::{RepairOptions, repair_on};
use pleach_ops::{CheckOptions, Verdict, check_on};

type SimDb = Db;

fn disk() -> SimDisk {
    SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() })
}

fn options() -> Options {
    Options::new("sim").create(true).cache_mib(8).threads(1).small()
}

fn open(disk: &SimDisk, options: Options) -> Result<(SimDb, SimRuntime), Error> {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    Ok((Db::open_on(disk.clone(), runtime.clone(), options)?, runtime))
}

fn id(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn commit(db: &SimDb, accesses: Vec<Access>) -> Result<u64, Error> {
    let session = db.session(SessionOptions::new())?;
    session
        .finish(accesses)
        .map_err(crate::FinishError::into_error)?
        .commit()
        .map_err(crate::CommitError::into_error)
}

/// Records of rewrites, each of a range and its pages, none of which has a number, or of a join. Their checksums and
/// the rest of the log are right.
fn opens_after(pairs: u64, records: &[(Prefix, Vec<Prefix>)]) -> Result<(), Error> {
    let disk = disk();
    let (db, _runtime) = open(&disk, options())?;
    let put = |at| Access::write(id(at), Some(Value::from([7; 40].as_slice())));
    commit(&db, (0..pairs).map(put).collect())?;
    let state = db.state();
    for (range, pages) in records {
        let flush = state.images.next_number(NUMBERS_FOR_CLOSE)?;
        let mut encoder = LocationEncoder::with_buffer(Vec::new(), flush, 0);
        let page = |prefix: &Prefix| NewPage {
            prefix: *prefix,
            page: None,
            tag: 0,
            applied_through: 0,
            node: &TERMINATOR,
        };
        let pages: Vec<NewPage<'_>> = pages.iter().map(page).collect();
        encoder.push(&Rewrite { range: *range, pages: &pages, replaced: &[] });
        let record = encoder.finish(state.store.database, &[], &[]);
        let len = record.len();
        state.commits.sequencer.make_room(len)?;
        let end = state.commits.sequencer.lock().queue(record) + len;
        state.commits.sequencer.write_through(end, true)?;
    }
    let image = disk.image();
    drop((state, db));
    open(&SimDisk::from_image(&image, 1), options()).map(drop)
}

/// All prefixes of this length.
fn level(len: u8) -> Vec<Prefix> {
    (0..1u8 << len).map(|index| Prefix::ROOT.descendant(len, index)).collect()
}

/// The last two keys below each other, and the siblings on the path to them.
fn deepest() -> Vec<Prefix> {
    let mut pages = vec![Prefix::new(&[0; 32], 256)];
    for depth in (1..=256).rev() {
        pages.push(Prefix::new(&[0; 32], depth - 1).child(true));
    }
    pages
}

/// A record with a right checksum may be of a faulty writer. An open that trusted it panicked.
#[test]
fn a_location_record_that_does_not_fit_is_damage() {
    let half = Prefix::ROOT.child(true);
    let quarters = || vec![half.child(false), half.child(true)];
    let whole = (Prefix::ROOT, level(2));
    // Valid records open: the helper does not fail by itself.
    opens_after(0, &[]).expect("nothing was added");
    opens_after(0, std::slice::from_ref(&whole)).expect("no page becomes four");
    opens_after(0, &[whole, (half, vec![half])]).expect("two of them become one");
    let hostile = [
        ("half of a page", 300, vec![(half, vec![half])]),
        ("half of a page, split", 0, vec![(half, quarters())]),
        (
            "a quarter of half of it",
            0,
            vec![(Prefix::ROOT, level(1)), (half.child(true), vec![half.child(true)])],
        ),
        ("pages that are too deep", 0, vec![(Prefix::ROOT, deepest())]),
        ("more pages than a region has", 0, vec![(Prefix::ROOT, level(7)), (Prefix::ROOT, vec![])]),
    ];
    assert!(level(7).len() > MAX_ENTRIES);
    for (what, pairs, records) in hostile {
        let opened = opens_after(pairs, &records);
        assert!(matches!(opened, Err(Error::Corrupt(_))), "{what}: {opened:?}");
    }
}

/// A write of a long value of bytes `byte`, too long for the log's record.
fn long(at: u64, byte: u8) -> Access {
    Access::write(id(at), Some(Value::from(vec![byte; 100_000])))
}

/// Flips a bit of the log's first segment, in the record that begins at a position; a second flip repairs it.
fn flip(disk: &SimDisk, record: LogPos) {
    let at = DamagedPage { file: segment_name(0), page: record.get() / 4096 };
    disk.damage(&Damage::Flip { at, byte: 70, bit: 3 });
}

/// Commits, and gives the position where the record begins.
fn commit_at(db: &SimDb, accesses: Vec<Access>) -> LogPos {
    let begin = db.state().commits.sequencer.lock().log_end().align_up(BLOCK);
    commit(db, accesses).expect("committed");
    begin
}

/// Closes without room for runs of the history, so that the history stays in the log.
fn close_without_room(disk: &SimDisk, db: &SimDb) {
    let full = Fault::Errno(code::ENOSPC);
    disk.inject(FaultRule::nth(Operation::Write, "overflow", 1, FaultRepeats::Forever, full));
    db.close().expect("closed");
    disk.heal();
}

/// Rule `runs-after-window`. A history that one open cannot read may be readable for the next one; so pages that are
/// written meanwhile, and then lost, must not be where its values are.
#[test]
fn what_a_lost_history_names_is_not_written_over() {
    let disk = disk();
    let (db, _runtime) = open(&disk, options().history(4)).expect("created");
    commit(&db, vec![long(0, 1)]).expect("committed");
    let second = commit_at(&db, vec![long(0, 2)]);
    db.drain(0).expect("flushed");
    close_without_room(&disk, &db);
    flip(&disk, second);
    let (db, runtime) = open(&disk, options().history(4)).expect("opened");
    assert_eq!(db.history(), 2..=2);
    let fault = Fault::Errno(code::EIO);
    disk.inject(FaultRule::nth(Operation::Write, "log", 1, FaultRepeats::Forever, fault));
    commit(&db, vec![long(1, 3)]).expect_err("the log cannot be written");
    drop((db, runtime));
    disk.heal();
    flip(&disk, second);
    let (db, _runtime) = open(&disk, options().history(4)).expect("opened");
    assert_eq!(db.history(), 0..=2, "it can be read now");
    let then = db.at(1).expect("in the history").read(&id(0)).expect("not written over");
    assert!(then.is_some_and(|value| *value == *vec![1; 100_000]));
}

/// ... and its pages are free once a durable record says that the window has moved past it.
#[test]
fn what_a_lost_history_named_is_free_later() {
    for lost in [1, 0] {
        let disk = disk();
        let (db, _runtime) = open(&disk, options().history(2)).expect("created");
        let records: Vec<LogPos> =
            (0..12).map(|byte| commit_at(&db, vec![long(0, byte)])).collect();
        db.drain(0).expect("flushed");
        close_without_room(&disk, &db);
        flip(&disk, records[records.len() - 1 - lost]);
        let (db, runtime) = open(&disk, options().history(2)).expect("opened");
        assert_eq!(db.history(), 12 - lost as u64..=12);
        let pending = || db.state().space.overflow_stats().retired;
        let before = pending();
        assert!(before > 0, "nothing waits");
        for byte in 0..4 {
            commit(&db, vec![Access::write(id(9), Some(Value::from(vec![byte; 40])))])
                .expect("committed");
            db.drain(0).expect("flushed");
            runtime.step_some(1000);
        }
        assert_eq!(pending(), 0);
        db.close().expect("closed");
    }
}

/// A closed database with a history of twelve commits in the log, of which the fourth adds a namespace and the eighth
/// drops it; gives where the records begin, by commit.
fn with_past(disk: &SimDisk, options: Options) -> Vec<LogPos> {
    let (db, _runtime) = open(disk, options).expect("created");
    let end = || db.state().commits.sequencer.lock().log_end().align_up(BLOCK);
    let mut records = vec![LogPos::START];
    for number in 1..=12u8 {
        records.push(end());
        match number {
            4 => db.add_namespace(5).expect("added"),
            8 => db.drop_namespace(5).expect("dropped"),
            _ => commit(&db, vec![Access::write(id(0), Some(Value::from(vec![number; 40])))])
                .expect("committed"),
        };
    }
    close_without_room(disk, &db);
    records
}

/// Each commit of the history reads as it did before.
fn assert_past(db: &SimDb, what: &str) {
    for number in db.history() {
        let session = db.at(number).expect("in the history");
        let had = (1..=number).rev().find(|commit| ![4, 8].contains(commit));
        let found = session.read(&id(0)).expect("read");
        let expected = had.map(|commit| vec![u8::try_from(commit).expect("small"); 40]);
        assert_eq!(found.as_deref(), expected.as_deref(), "{what}: at {number}");
        assert_eq!(session.namespace(5).is_ok(), (4..8).contains(&number), "{what}: at {number}");
        assert_eq!(session.prove(&id(0)).map(|_| ()).err().map(|error| error.to_string()), None);
    }
}

/// The whole history was discarded for one bad bit in its oldest record.
#[test]
fn damage_of_the_past_costs_what_lies_before_it() {
    let disk = disk();
    let records = with_past(&disk, options().history(20));
    let image = disk.image();
    for lost in 1..=12u64 {
        let what = format!("record {lost}");
        let disk = SimDisk::from_image(&image, 1);
        flip(&disk, records[usize::try_from(lost).expect("small")]);
        if lost > 2 {
            flip(&disk, records[2]);
        }
        let report = check_on(&disk, CheckOptions::default()).expect("checked");
        assert_eq!(report.verdict(), Verdict::Findings, "{what}: {:?}", report.findings);
        let before = disk.image();
        let error = open(&disk, options().require_history(true)).expect_err("not all is there");
        let short = matches!(error, Error::HistoryShort { wanted: 0, oldest, newest: 12, .. }
            if oldest == lost);
        assert!(short, "{what}: {error}");
        assert!(
            before.names().all(|name| {
                let bytes = |image: &Image| image.file(name).expect("listed").to_vec();
                bytes(&before) == bytes(&disk.image())
            }),
            "{what}: a refused open has changed something"
        );
        let (db, _runtime) = open(&disk, options()).expect("opened");
        assert_eq!(db.history(), lost..=12, "{what}");
        assert_past(&db, &what);
        let lost_too = |error: Error| match error {
            Error::HistoryLost { commit, oldest, newest: 12, .. } => {
                assert_eq!((commit, oldest), (lost - 1, lost), "{what}");
            }
            other => panic!("{what}: {other}"),
        };
        lost_too(db.at(lost - 1).map(drop).expect_err("lost"));
        lost_too(db.commit_at(lost - 1).map(drop).expect_err("lost"));
        lost_too(db.rollback(13 - lost).map(drop).expect_err("lost"));
        // The remaining history stays, and no more comes back from here on.
        commit(&db, vec![Access::write(id(0), Some(Value::from(vec![13; 40])))])
            .expect("committed");
        db.close().expect("closed");
        let (db, _runtime) = open(&disk, options().require_history(true)).expect("opened");
        assert_eq!(db.history(), lost..=13, "{what}");
        assert_past(&db, &what);
        assert_eq!(db.rollback(13 - lost).expect("rolled back"), 14, "{what}");
    }
}

/// A check had counted the runs of the history's long values, and read none.
#[test]
fn a_check_reads_the_long_values_of_the_past() {
    let disk = disk();
    let (db, _runtime) = open(&disk, options().history(4)).expect("created");
    for byte in 1..=3 {
        commit(&db, vec![long(0, byte)]).expect("committed");
    }
    db.drain(0).expect("flushed");
    db.close().expect("closed");
    let check = || check_on(&disk, CheckOptions::default()).expect("checked");
    let sound = check();
    assert!(sound.findings.is_empty(), "{:?}", sound.findings);
    let (mut found, mut past) = (0, 0);
    for page in 0..disk.image().file("overflow").expect("there").len() / 4096 {
        let at = DamagedPage { file: "overflow".to_owned(), page };
        let damage = Damage::Flip { at, byte: 700, bit: 1 };
        disk.damage(&damage);
        let findings = check().findings;
        disk.damage(&damage);
        found += u64::from(!findings.is_empty());
        past += u64::from(findings.iter().any(|finding| finding.what.contains("the history")));
    }
    // Pages of entries, and of the filter.
    let of_runs = 2;
    let (all, long) = (sound.overflow_pages, sound.overflow_pages - of_runs);
    assert_eq!((found, past), (all, long / 3 * 2 + of_runs));
}

/// A closed database with a history of twelve commits in runs of three; gives the pages of each run.
fn with_runs(disk: &SimDisk) -> Vec<Vec<OverflowExtent>> {
    let pages = |db: &SimDb| -> Vec<Vec<OverflowExtent>> {
        let runs = db.state().commits.undo.image_history(LogPos::MAX).runs;
        runs.iter().map(|run| run.descriptor.pages.clone()).collect()
    };
    for first in [1, 4, 7, 10] {
        let (db, _runtime) = open(disk, options().history(20)).expect("opened");
        for number in first..first + 3 {
            commit(&db, vec![Access::write(id(0), Some(Value::from(vec![number; 40])))])
                .expect("committed");
        }
        db.close().expect("closed");
    }
    let (db, _runtime) = open(disk, options()).expect("opened");
    let pages = pages(&db);
    db.close().expect("closed");
    pages
}

/// A damaged run of the history gives whoever reads it an error with its place, and nobody else; a repair removes it,
/// with all runs before it.
#[test]
fn damage_of_a_run_costs_what_lies_before_its_end() {
    let disk = disk();
    let runs = with_runs(&disk);
    assert_eq!(runs.len(), 4);
    let image = disk.image();
    let read = |db: &SimDb, number: u64| db.at(number)?.read(&id(0));
    for (at, pages) in (0u64..).zip(&runs) {
        let what = format!("run {at}");
        let disk = SimDisk::from_image(&image, 1);
        for page in pages.iter().flat_map(|run| run.start..run.start + u64::from(run.pages)) {
            let at = DamagedPage { file: "overflow".to_owned(), page };
            disk.damage(&Damage::Flip { at, byte: 60, bit: 1 });
        }
        let report = check_on(&disk, CheckOptions::default()).expect("checked");
        assert_eq!(report.verdict(), Verdict::Findings, "{what}: {:?}", report.findings);
        let (db, _runtime) = open(&disk, options()).expect("opened");
        assert_eq!(db.history(), 0..=12, "{what}");
        for number in 1..12 {
            let found = read(&db, number);
            if (3 * at..3 * at + 3).contains(&number) {
                assert!(matches!(found, Err(Error::Page { .. })), "{what}: {found:?}");
            } else if number > 3 * at {
                let expected = vec![u8::try_from(number).expect("small"); 40];
                assert_eq!(found.expect("read").as_deref(), Some(&*expected), "{what}");
            }
        }
        db.close().expect("closed");
        let before = disk.image();
        let runtime = || SimRuntime::with_clock(1, disk.clock(), 1);
        let refused = repair_on(&disk, &RepairOptions::new(), runtime()).expect_err("it gives up");
        assert!(matches!(refused, pleach_ops::Error::WouldLose(_)), "{what}: {refused}");
        let same = |name| disk.image().file(name).map(Content::to_vec);
        assert!(before.names().all(|name| same(name) == before.file(name).map(Content::to_vec)));
        let report = repair_on(&disk, &RepairOptions::new().cut(true), runtime());
        let report = report.expect("repaired");
        let notes = &report.opening.notes;
        assert!(notes.iter().any(|note| note.file == "overflow"), "{what}: {notes:?}");
        let lost = report.opening.lost.expect("some of the history is lost");
        assert_eq!((lost.from, lost.before), (0, 3 * at + 3), "{what}");
        assert!(report.check.findings.is_empty(), "{what}: {:?}", report.check.findings);
        let (db, _runtime) = open(&disk, options().require_history(true)).expect("opened");
        assert_eq!(db.history(), 3 * at + 3..=12, "{what}");
        let error = db.at(3 * at + 2).map(drop).expect_err("lost");
        assert!(matches!(error, Error::SnapshotTooOld { .. }), "{what}: {error}");
    }
}

/// Merges write over the pages of runs that the older image alone names. Where that serves, all of its runs are read: each
/// commit of the history that the open finds can be read.
#[test]
fn a_history_of_the_older_image_is_whole_or_shorter() {
    let disk = disk();
    let options = || options().geometry(Geometry::least());
    let put = |number: u8| {
        let put = |at| Access::write(id(at), Some(Value::from(vec![number; 900])));
        (0..4).map(put).collect::<Vec<_>>()
    };
    // Each close writes a run, and leaves the task no time to merge.
    for number in 1..=40 {
        let (db, _runtime) = open(&disk, options().history(200)).expect("opened");
        commit(&db, put(number)).expect("committed");
        db.close().expect("closed");
    }
    let (db, runtime) = open(&disk, options()).expect("opened");
    let (mut shorter, mut whole) = (0, 0);
    for number in 41..=160 {
        commit(&db, put(number)).expect("committed");
        runtime.step_some(2);
        let copy = SimDisk::from_image(&disk.image(), 1);
        let superblocks = SuperblockStore::open((&copy).into(), OpenMode::Read);
        let image = superblocks.expect("opened").newest().image;
        let file = image_name(image.file).to_owned();
        let at = DamagedPage { file, page: image.table_page };
        copy.damage(&Damage::Flip { at, byte: 100, bit: 1 });
        // While the older image is written over there is none.
        let Ok((opened, _runtime)) = open(&copy, options()) else { continue };
        let is_shorter = opened.opened().lost.is_some();
        *(if is_shorter { &mut shorter } else { &mut whole }) += 1;
        for at in opened.history().filter(|at| *at > 0) {
            let found = opened.at(at).and_then(|session| session.read(&id(0)));
            let found = found.unwrap_or_else(|error| panic!("commit {at} of {number}: {error}"));
            let expected = vec![u8::try_from(at).expect("small"); 900];
            assert_eq!(found.as_deref(), Some(&*expected), "commit {at} of {number}");
        }
    }
    assert!(shorter > 0 && whole > 0, "{shorter} shorter, {whole} whole");
}

/// Missing or cut segments of the history also cost the commits before them.
#[test]
fn a_segment_of_the_past_that_is_gone_costs_what_lies_before_it() {
    let least = || Options::new("sim").create(true).cache_kib(512).threads(1).history(20);
    let least = || least().geometry(Geometry::least());
    let disk = disk();
    let records = with_past(&disk, least());
    let segment = 16 << 10;
    let (image, last) = (disk.image(), records[12].segment(segment));
    assert!(last >= 2, "{last} segments");
    for index in 0..last {
        for gone in [true, false] {
            let what = format!("segment {index}, removed: {gone}");
            let disk = SimDisk::from_image(&image, 1);
            if gone {
                disk.remove(&segment_name(index)).expect("there");
            } else {
                let file = disk.open(&segment_name(index), OpenMode::Write).expect("there");
                disk.set_len(&file, 4096).expect("cut");
            }
            let first = records.iter().position(|at| at.segment(segment) > index).expect("later");
            let first = u64::try_from(first).expect("small") - 1;
            let (db, _runtime) = open(&disk, least()).expect("opened");
            assert_eq!(db.history(), first..=12, "{what}");
            assert_past(&db, &what);
        }
    }
}

/// A failed read is no damage: it had cost the history, and the next commit made that final.
#[test]
fn a_read_error_in_the_past_fails_the_open_and_costs_nothing() {
    let disk = disk();
    with_past(&disk, options().history(20));
    let image = disk.image();
    let mut failed = 0;
    for nth in 1..=8 {
        let disk = SimDisk::from_image(&image, 1);
        disk.inject(FaultRule::nth(
            Operation::Read,
            "log",
            nth,
            FaultRepeats::Once,
            Fault::Errno(code::EIO),
        ));
        match open(&disk, options()) {
            Ok((db, _runtime)) => assert_eq!(db.history(), 0..=12, "read {nth}"),
            Err(error) => {
                assert!(error.device().is_some(), "read {nth}: {error}");
                failed += 1;
                disk.heal();
                let (db, _runtime) = open(&disk, options()).expect("opened");
                assert_eq!(db.history(), 0..=12, "read {nth}");
            }
        }
    }
    assert!(failed > 0, "no read of the log has failed");
    // A limit of bytes on the device makes the history short, too; a limit of memory does not.
    let disk = SimDisk::from_image(&image, 1);
    let (db, _runtime) =
        open(&disk, options().undo_memory_bytes(1).require_history(true)).expect("opened");
    assert_eq!(db.history(), 0..=12);
    drop(db);
    let with_runs_on_it = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    with_runs(&with_runs_on_it);
    let tight = options().history_disk_mib(0).require_history(true);
    let error = open(&with_runs_on_it, tight).expect_err("less than there should be");
    assert!(matches!(error, Error::HistoryShort { wanted: 0, cause: None, .. }), "{error}");
    // An open without a history does not need it.
    let disk = SimDisk::from_image(&image, 1);
    let unreadable = Fault::Errno(code::EIO);
    disk.inject(FaultRule::nth(
        Operation::Read,
        &segment_name(0),
        1,
        FaultRepeats::Once,
        unreadable,
    ));
    let (db, _runtime) = open(&disk, options().history(0)).expect("opened");
    assert_eq!(db.history(), 12..=12);
}

/// A block of records that an open leaves unread, in the segment that it rewrites: a failed read of it was taken for a
/// block that nobody needs, and zeros were written in its place.
#[test]
fn a_read_error_in_a_history_that_is_left_unread_costs_nothing() {
    let disk = disk();
    let put = |db: &SimDb, number: u8| {
        let put = Access::write(id(0), Some(Value::from(vec![number; 40])));
        commit(db, vec![put]).expect("committed");
    };
    let (db, runtime) = open(&disk, options().history(20)).expect("created");
    (1..=12).for_each(|number| put(&db, number));
    db.close().expect("closed");
    drop(runtime);
    let (db, runtime) = open(&disk, options()).expect("opened");
    put(&db, 13);
    drop((db, runtime));
    let image = disk.image();
    let assert_all = |db: &SimDb, what: &str| {
        for number in 1..=13 {
            let session = db.at(number).unwrap_or_else(|error| panic!("{what}: {error}"));
            let expected = vec![u8::try_from(number).expect("small"); 40];
            assert_eq!(session.read(&id(0)).expect("read").as_deref(), Some(&*expected), "{what}");
        }
    };
    let mut failed = 0;
    for nth in 1..=24 {
        let disk = SimDisk::from_image(&image, 1);
        disk.inject(FaultRule::nth(
            Operation::Read,
            "log",
            nth,
            FaultRepeats::Once,
            Fault::Errno(code::EIO),
        ));
        let (what, opened) = (format!("read {nth}"), open(&disk, options()));
        disk.heal();
        match opened {
            Ok((db, _runtime)) => assert_all(&db, &what),
            Err(error) => {
                assert!(error.device().is_some(), "{what}: {error}");
                failed += 1;
                let (db, _runtime) = open(&disk, options()).expect("opened");
                assert_all(&db, &what);
            }
        }
    }
    assert!(failed > 0, "no read of the log has failed");
}

/// Rule `shrink-behind-both`. The map of the overflow file may be shorter than the file, which the older generation
/// needs as it is; a failed load cut the file to the map.
#[test]
fn a_failed_load_leaves_what_the_older_generation_needs() {
    let disk = disk();
    let (db, _runtime) = open(&disk, options()).expect("created");
    db.add_namespace(1).expect("added");
    commit(&db, (0..60).map(|at| long(at, 1)).collect()).expect("committed");
    db.drain(0).expect("flushed");
    db.close().expect("closed");
    drop(db);
    let (db, runtime) = open(&disk, options()).expect("opened");
    commit(&db, (0..60).map(|at| Access::write(id(at), None)).collect()).expect("committed");
    db.drain(0).expect("flushed");
    for _ in 0..20 {
        runtime.step_some(500);
        runtime.clock().advance(std::time::Duration::from_millis(100));
    }
    let len = || disk.image().file("overflow").expect("it is there").len();
    let before = len();
    let state = db.state();
    checkpoint(&state, false).expect("an image");
    let map = state.space.overflow_stats().pages;
    assert!(map * 4096 < before && len() == before, "the map is shorter, the file is not");
    // More than the map has room for, and a key twice.
    let pairs = (0..20).chain([0]).map(|at| (id(at), Value::from(vec![5; 100_000])));
    let options = LoadOptions::new().memory_mib(1).namespace(1);
    db.bulk_load(pairs, &options).expect_err("a key comes twice");
    assert_eq!(len(), before);
    let image = disk.image();
    let report = check_on(SimDisk::from_image(&image, 1), CheckOptions::default());
    assert_eq!(report.expect("checked").older_serves, Some(true));
}

/// Rule `shrink-behind-both`. The leaf file is not cut below the pages of the older image before the next checkpoint.
#[test]
fn a_checkpoint_leaves_the_leaf_pages_of_the_older_image() {
    let disk = disk();
    let (db, runtime) = open(&disk, options().log_limit_bytes(32 << 20)).expect("created");
    let state = db.state();
    let settle = || {
        db.drain(0).expect("flushed");
        for _ in 0..20 {
            runtime.step_some(500);
            runtime.clock().advance(std::time::Duration::from_millis(100));
        }
        checkpoint(&state, false).expect("an image");
    };
    let put = |at| Access::write(id(at), Some(Value::from(vec![7; 300])));
    commit(&db, (0..8000).map(put).collect()).expect("committed");
    settle();
    commit(&db, (20..8000).map(|at| Access::write(id(at), None)).collect()).expect("committed");
    settle();
    let len = || disk.image().file("leaf").expect("it is there").len();
    let (device, before) = ((&disk).into(), len());
    let superblocks = SuperblockStore::open((&disk).into(), OpenMode::Read).expect("opened");
    let older = superblocks.other().expect("there are two");
    let mut image = ImageReader::open(&device, &older.image, older.database).expect("an image");
    let table = read_table(&mut image, &older).expect("a table");
    let from = ImageSource { image: &image, superblock: &older, quarantine: &Arc::default() };
    let ends = table.tries.iter().flat_map(|trie| {
        let read = TrieReplay::read(Hasher::BLAKE3, &from, trie, false).expect("a trie");
        let regions = read.trie.regions.regions().to_vec();
        regions.into_iter().map(|region| region.read().children().page_end())
    });
    let end = ends.max().expect("a region");
    let map = image.read_checked_stream(0, StreamId::LeafMap, &table.leaf_map).expect("a map");
    assert_eq!(map_end(&map), end);
    assert!(u64::from(end) * 4096 <= before, "the older image names {end} pages of {before} bytes");
    commit(&db, vec![put(0)]).expect("committed");
    settle();
    assert!(len() < before / 4, "{} of {before} bytes are left", len());
}

/// Opens a copy of the database, whose newest image has a bad page: the older one serves.
fn older_image_serves(disk: &SimDisk, db: &SimDb) {
    let copy = SimDisk::from_image(&disk.image(), 1);
    let superblocks = SuperblockStore::open((&copy).into(), OpenMode::Read).expect("opened");
    let image = superblocks.newest().image;
    let at = DamagedPage { file: image_name(image.file).to_owned(), page: image.table_page };
    assert!(copy.damage(&Damage::Flip { at, byte: 100, bit: 1 }));
    let (opened, _runtime) = open(&copy, options()).expect("the older image serves");
    assert!(opened.opened().fell_back.is_some());
    assert_eq!(opened.commit_number(), db.commit_number());
}

/// A creation writes one image. A bad page of it would cost all commits until the first checkpoint.
#[test]
fn a_new_database_has_two_images_when_it_is_open() {
    let disk = disk();
    let (db, _runtime) = open(&disk, options()).expect("created");
    commit(&db, vec![long(0, 1)]).expect("committed");
    assert_eq!(db.metrics().checkpoints, 1);
    older_image_serves(&disk, &db);
}

/// Rule `shrink-behind-both`, for the overflow file: its end follows one checkpoint later, since the older image and the
/// records behind it name pages there.
#[test]
fn a_checkpoint_leaves_the_overflow_pages_that_the_older_image_names() {
    let disk = disk();
    let (db, runtime) = open(&disk, options().log_limit_bytes(32 << 20)).expect("created");
    let state = db.state();
    let len = || disk.image().file("overflow").expect("it is there").len();
    let settle = || {
        db.drain(0).expect("flushed");
        for _ in 0..20 {
            runtime.step_some(500);
            runtime.clock().advance(std::time::Duration::from_millis(100));
        }
        checkpoint(&state, false).expect("an image");
        older_image_serves(&disk, &db);
    };
    commit(&db, (0..40).map(|at| long(at, 1)).collect()).expect("committed");
    settle();
    let before = len();
    commit(&db, (0..40).map(|at| Access::write(id(at), None)).collect()).expect("committed");
    settle();
    for byte in 0..2 {
        let short = Access::write(id(0), Some(Value::from(vec![byte; 40])));
        commit(&db, vec![short]).expect("committed");
        settle();
    }
    assert!(len() < before / 4, "{} of {before} bytes are left", len());
}

/// Rule `log-for-both`: segments that only the older image needs are not used again, though there are more than wait for
/// that.
#[test]
fn a_checkpoint_leaves_the_log_that_the_older_image_needs() {
    let disk = disk();
    let options = options().log_limit_bytes(32 << 20).kept_log_mib(0);
    let (db, _runtime) = open(&disk, options).expect("created");
    let mut most = 0;
    for round in 0..4u8 {
        for at in 0..20 {
            let half_a_segment = Value::from(vec![round; 60_000]);
            commit(&db, vec![Access::write(id(at), Some(half_a_segment))]).expect("committed");
        }
        older_image_serves(&disk, &db);
        checkpoint(&db.state(), false).expect("an image");
        older_image_serves(&disk, &db);
        let segments = disk.image().names().filter(|name| name.starts_with("log-0")).count();
        most = most.max(segments);
    }
    assert!(most < 30, "{most} segments: none was used again");
}

/// A failed open changes nothing, also where a missing file cannot be made.
#[test]
fn an_open_that_cannot_make_a_missing_file_changes_nothing() {
    let disk = disk();
    let (db, _runtime) = open(&disk, options()).expect("created");
    commit(&db, vec![long(0, 1)]).expect("committed");
    db.close().expect("closed");
    let superblocks = SuperblockStore::open((&disk).into(), OpenMode::Read).expect("opened");
    let in_use = superblocks.newest().image.file;
    disk.remove(image_name(in_use.other())).expect("there");
    let image = disk.image();
    let name = image_name(in_use.other());
    let disk = SimDisk::from_image(&image, 1);
    let fault = Fault::Errno(code::EIO);
    disk.inject(FaultRule::nth(Operation::Create, name, 1, FaultRepeats::Forever, fault));
    open(&disk, options()).expect_err("the file cannot be made");
    disk.heal();
    let after = disk.image();
    assert!(after.names().eq(image.names()));
    for file in image.names() {
        let bytes = |image: &Image| image.file(file).expect("listed").to_vec();
        assert!(bytes(&after) == bytes(&image), "{file} has changed");
    }
}

/// Opens after a commit record of a plain namespace that no writer has made: it puts one key.
fn opens_after_plain(
    kind: EntryKind,
    trie: TrieKind,
    new_root: impl Fn(&Db) -> Node,
) -> Result<SimDb, Error> {
    let disk = disk();
    let (db, _runtime) = open(&disk, options())?;
    db.add_plain_namespace(5)?;
    let put = Access::write(id(1), Some(Value::from([7; 40].as_slice())));
    commit(&db, vec![put.in_namespace(5)])?;
    let state = db.state();
    let mut changes = Section::default();
    changes.push(&id(2), LoggedValue::Inline(&[8; 40]));
    let part = NamespacePart {
        ns: 5,
        kind,
        trie,
        previous_root: db.roots().digest(5).expect("it is plain").into(),
        new_root: new_root(&db),
        sections: vec![changes],
    };
    let number = db.commit_number() + 1;
    let record = commit_record(state.store.database, number, b"", None, vec![part]);
    let len = record.len();
    state.commits.sequencer.make_room(len)?;
    let end = state.commits.sequencer.lock().queue(record) + len;
    state.commits.sequencer.write_through(end, true)?;
    drop((state, db));
    Ok(open(&disk, options())?.0)
}

/// A record's digest is that of its changes, or the open fails.
#[test]
fn a_wrong_digest_in_a_record_is_found() {
    let right = |db: &SimDb| {
        let before = db.roots().digest(5).expect("it is plain").into();
        let new =
            pleach_beatree::Stored::from_value(Hasher::BLAKE3, Value::from([8; 40].as_slice()));
        crate::digest::after_changes(&before, std::iter::once((&id(2), &new)))
    };
    let wrong = |_: &SimDb| Node::from([9; 32]);
    let db = opens_after_plain(EntryKind::Changed, TrieKind::Plain, right).expect("opens");
    let session = db.snapshot().expect("a snapshot");
    let namespace = session.namespace(5).expect("it exists");
    assert_eq!(namespace.read(&id(2)).expect("read").as_deref(), Some([8; 40].as_slice()));
    let found = opens_after_plain(EntryKind::Changed, TrieKind::Plain, wrong).map(drop);
    let is_told = |error: &Error| {
        matches!(error, Error::Corrupt(Contradiction::Commit { commit: 3, namespace: 5, .. }))
    };
    assert!(found.as_ref().is_err_and(is_told), "{found:?}");
    let db = opens_after_plain(EntryKind::Set, TrieKind::Plain, wrong).expect("opens");
    assert_eq!(db.roots().digest(5), Some([9; 32]));
    // A record does not change the kind of a trie, either.
    let found = opens_after_plain(EntryKind::Changed, TrieKind::Merkle, wrong).map(drop);
    assert!(matches!(found, Err(Error::Corrupt(_))), "{found:?}");
}

/// Two values have the same bytes, and the cell of one names the pages of the other: nodes and hashes are right, only a check
/// that counts the pages of the overflow file sees it.
#[test]
fn a_check_finds_pages_that_two_values_name_and_pages_that_none_names() {
    let disk = disk();
    let (db, _runtime) = open(&disk, options()).expect("created");
    let put = |at| Access::write(id(at), Some(Value::from(vec![7; 100_000])));
    commit(&db, [1, 2].map(put).to_vec()).expect("committed");
    let index = db.state().tree.load_full();
    let mut state = index.region(&id(1)).write();
    let [mut one, two] = [1, 2].map(|at| state.buffered_change(&id(at)).expect("put").clone());
    let pages = [&one, &two].map(|change| {
        let run = pleach_beatree::pages::overflow::extents(&change.stored)[0];
        format!("pages {} to {} of overflow", run.start, run.start + u64::from(run.pages))
    });
    one.stored = two.stored.clone();
    let mut buffered = vec![one, two];
    buffered.sort_by_key(|change| change.key);
    state.restore_buffered(buffered, Vec::new());
    drop(state);
    db.drain(0).expect("flushed");
    db.close().expect("closed");
    let report = check_on(&disk, CheckOptions::default()).expect("checked");
    let found: Vec<&str> = report.findings.iter().map(|finding| &*finding.what).collect();
    let [named, leaked] = [1, 0].map(|at: usize| &pages[at]);
    let expected =
        [format!("{named} are named twice"), format!("{leaked} are neither named nor free")];
    assert!(found.len() == 2 && expected.iter().all(|one| found.contains(&&**one)), "{found:?}");
}
