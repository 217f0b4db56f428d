//! No single bad page keeps a database closed for ever: it opens, or a repair opens it at the newest commit before the damage, and
//! names those behind it.

use pleach::Value;
use pleach::load::LoadOptions;
use pleach_io::sim::{Content, Fault, FaultRepeats, FaultRule, Image, SimDisk, SimOptions, code};
use pleach_io::{Device as _, OpenMode, Operation};
use pleach_ops::repair::{RepairOptions, RepairReport, repair_on};
use pleach_ops::{Error, Verdict};

use crate::common::{
    Chain, States, damage, disk_of, is_named, key, new_disk, open, pairs, runtime, unrecorded,
};

const HISTORY: u64 = 8;

fn cut_once(disk: &SimDisk) -> Result<RepairReport, Error> {
    repair_on(disk, &RepairOptions::new().cut(true), runtime(disk))
}

/// Repairs a database. Where that would lose commits, it first changes nothing.
fn repaired(disk: &SimDisk) -> Result<RepairReport, Error> {
    let before = disk.image();
    match repair_on(disk, &RepairOptions::new(), runtime(disk)) {
        Err(Error::WouldLose(loss)) => {
            assert!(!loss.lost.is_none() || loss.history.is_some(), "{loss}");
            let after = disk.image();
            let bytes = |image: &Image, name: &str| image.file(name).map(Content::to_vec);
            assert!(before.names().eq(after.names()), "{loss}");
            let mut names = before.names();
            assert!(names.all(|name| bytes(&before, name) == bytes(&after, name)), "{loss}");
            let report = cut_once(disk)?;
            if let Some(log) = &report.cut {
                assert_eq!((loss.commit, &loss.lost), (report.commit, &log.lost), "{loss}");
            }
            Ok(report)
        }
        repaired => {
            let cut = repaired.as_ref().ok().and_then(|report| report.cut.as_ref());
            assert!(cut.is_none_or(|cut| cut.lost.is_none()), "{repaired:?}");
            repaired
        }
    }
}

/// A database whose log has commits that no checkpoint has, and these.
fn killed() -> (SimDisk, States) {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, HISTORY);
    for _ in 0..7 {
        chain.commit(60);
    }
    chain.db.close().expect("closed");
    chain.db = open(&disk, HISTORY).expect("opens");
    for _ in 0..10 {
        chain.commit(9);
    }
    let states = chain.states;
    drop(chain.db);
    (disk, states)
}

/// What was replaced is there as it was, whatever of it can be read.
fn is_kept(aside: &[String], before: &Image, after: &Image, what: &str) {
    assert!(!aside.is_empty(), "{what}");
    for name in aside {
        let (_, file) = name.split_once('.').expect("a prefix");
        let [kept, was] = [after.file(name), before.file(file)].map(|bytes| bytes.expect("there"));
        assert!(kept.to_vec() == was.to_vec(), "{what}: {name}");
    }
}

/// The newest state is that of its commit, and the next commit is made.
fn is_whole(disk: &SimDisk, states: &States, what: &str) -> u64 {
    let db = open(disk, HISTORY).unwrap_or_else(|error| panic!("{what}: {error}"));
    let number = db.commit_number();
    let (roots, model, blob) = &states[&number];
    assert!(db.roots() == *roots && db.blob() == *blob, "{what}: roots and blob of {number}");
    assert!(pairs(&db) == *model, "{what}: pairs of {number}");
    number
}

#[test]
fn a_log_with_a_bad_page_is_cut_before_it_and_the_lost_commits_are_named() {
    let (disk, states) = killed();
    let image = disk.image();
    let newest = *states.keys().last().expect("commits");
    let (mut cut, mut named) = (0, 0);
    let names: Vec<&str> = image.names().filter(|name| name.starts_with("log-")).collect();
    for name in names {
        let pages = image.file(name).expect("a file").len() / 4096;
        for page in 0..pages {
            for unreadable in [false, true] {
                let what = format!("page {page} of {name}, unreadable {unreadable}");
                let disk = disk_of(&image);
                damage(&disk, name, page, unreadable);
                let before = disk.image();
                let opened = open(&disk_of(&before), HISTORY).is_ok();
                let report = repaired(&disk).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(report.check.verdict() != Verdict::DoesNotOpen, "{what}");
                assert_eq!(is_whole(&disk, &states, &what), report.commit, "{what}");
                let Some(log) = report.cut else { continue };
                assert!(!opened || unreadable, "{what}: it was no repair's business");
                cut += 1;
                named += log.lost.numbers.clone().count();
                is_named(&log.lost, report.commit, newest, &what);
                is_kept(&log.aside, &before, &disk.image(), &what);
            }
        }
    }
    assert!(cut > 5 && named > 10, "{cut} {named}");
}

/// Reads of the log that fail at the moment of the repair, and not before or after it: blanks were written in their place, and the copies had
/// blanks, too.
#[test]
fn a_repair_keeps_what_it_cannot_read_at_the_moment() {
    let (disk, states) = killed();
    let image = disk.image();
    let (mut struck, mut cut) = (0, 0);
    for name in image.names().filter(|name| name.starts_with("log-")) {
        for page in 0..image.file(name).expect("a file").len() / 4096 {
            let damaged = disk_of(&image);
            damage(&damaged, name, page, false);
            let before = damaged.image();
            if open(&disk_of(&before), HISTORY).is_ok() {
                continue;
            }
            for nth in (1..400).step_by(13) {
                let disk = disk_of(&before);
                let fault = Fault::Errno(code::EIO);
                disk.inject(FaultRule::nth(
                    Operation::Read,
                    "log-",
                    nth,
                    FaultRepeats::Once,
                    fault,
                ));
                let what = format!("page {page} of {name}, read {nth} fails");
                let repaired = cut_once(&disk);
                struck += disk.ledger().len();
                disk.heal();
                let after = disk.image();
                if let Ok(RepairReport { cut: Some(log), .. }) = &repaired {
                    is_kept(&log.aside, &before, &after, &what);
                    is_whole(&disk, &states, &what);
                    cut += 1;
                }
                // Whatever has come of it, each segment is there as it was.
                for segment in before.names().filter(|name| name.starts_with("log-")) {
                    let was = before.file(segment).expect("there").to_vec();
                    let mut same = after.names().filter(|name| name.ends_with(segment));
                    assert!(
                        same.any(|name| after.file(name).expect("there").to_vec() == was),
                        "{what}: {segment}"
                    );
                }
            }
        }
    }
    assert!(struck > 20 && cut > 20, "{struck} {cut}");
}

#[test]
fn a_log_segment_that_is_missing_or_cut_is_repaired() {
    let (disk, states) = killed();
    let image = disk.image();
    let newest = *states.keys().last().expect("commits");
    let mut cut = 0;
    let names: Vec<&str> = image.names().filter(|name| name.starts_with("log-")).collect();
    for name in names {
        for len in [None, Some(0), Some(4096)] {
            let disk = disk_of(&image);
            match len {
                None => disk.remove(name).expect("removed"),
                Some(len) => {
                    let file = disk.open(name, OpenMode::Write).expect("opened");
                    disk.set_len(&file, len).expect("cut");
                }
            }
            let what = format!("{name} of length {len:?}");
            let report = repaired(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(is_whole(&disk, &states, &what), report.commit, "{what}");
            if let Some(log) = &report.cut {
                is_named(&log.lost, report.commit, newest, &what);
            }
            cut += u64::from(report.cut.is_some());
        }
    }
    assert!(cut > 2, "{cut}");
}

/// Files that are named like segments of positions which no log reaches: a repair went through all positions up to there, or took room for
/// as many segments.
#[test]
fn files_named_like_segments_of_absurd_positions_end_a_repair() {
    for stray in ["log-ffffffffffffffff", "log-0000001000000000"] {
        let (disk, _) = killed();
        disk.open(stray, OpenMode::CreateNew).expect("made");
        let before = disk.image();
        let refused = repaired(&disk).expect_err("the log has a file too many");
        assert!(refused.to_string().contains(stray), "{refused}");
        assert_eq!(disk.image().names().count(), before.names().count());
        disk.remove(stray).expect("removed");
        open(&disk, HISTORY).expect("opens as before");
    }
}

#[test]
fn a_repair_that_is_cut_off_leaves_the_database_damaged_as_before_or_repaired() {
    let (disk, states) = killed();
    let image = disk.image();
    let (mut damaged, mut done) = (0, 0);
    for name in image.names().filter(|name| name.starts_with("log-")) {
        for page in 0..image.file(name).expect("a file").len() / 4096 {
            let disk = disk_of(&image);
            damage(&disk, name, page, false);
            if open(&disk_of(&disk.image()), HISTORY).is_ok() {
                continue;
            }
            let recorded = SimDisk::from_image_with(&disk.image(), 5, SimOptions::default());
            let whole = cut_once(&recorded).expect("repaired").commit;
            for point in recorded.trace().crash_points() {
                for outcome in point.outcomes(7, 3) {
                    let disk = outcome.disk_with(unrecorded());
                    let what = format!("page {page} of {name}, {outcome}");
                    match open(&disk, HISTORY) {
                        Ok(db) => {
                            done += 1;
                            drop(db);
                        }
                        Err(error) => {
                            damaged += 1;
                            let again = repaired(&disk);
                            let again = again.unwrap_or_else(|e| panic!("{what}: {error}, {e}"));
                            assert_eq!(again.commit, whole, "{what}");
                        }
                    }
                    assert_eq!(is_whole(&disk, &states, &what), whole, "{what}");
                }
            }
        }
    }
    assert!(damaged > 100 && done > 100, "{damaged} {done}");
}

#[test]
fn no_other_bad_page_keeps_a_database_closed() {
    let (killed, states) = killed();
    let closed = disk_of(&killed.image());
    open(&closed, HISTORY).expect("opens").close().expect("closed");
    let fresh = new_disk();
    drop(open(&fresh, 0).expect("created"));
    for (kind, image) in
        [("killed", killed.image()), ("closed", closed.image()), ("new", fresh.image())]
    {
        for name in image.names().filter(|name| kind != "killed" || !name.starts_with("log-")) {
            let pages = image.file(name).expect("a file").len() / 4096;
            for page in 0..pages {
                for unreadable in [false, true] {
                    let disk = disk_of(&image);
                    damage(&disk, name, page, unreadable);
                    let what = format!("{kind}: page {page} of {name}, unreadable {unreadable}");
                    let healed = open(&disk_of(&disk.image()), HISTORY);
                    // A failed read of the history alone fails an open, as it may be read again.
                    let of_the_past = unreadable && name.starts_with("log-");
                    if let Err(error) = &healed
                        && !of_the_past
                    {
                        panic!("{what}: {error}");
                    }
                    let report = repaired(&disk);
                    let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(report.cut.is_some(), healed.is_err(), "{what}: {report:?}");
                    assert!(report.cut.is_none_or(|cut| cut.lost.numbers.is_empty()), "{what}");
                    if kind != "new" && name != "leaf" && name != "overflow" {
                        is_whole(&disk, &states, &what);
                    }
                }
            }
        }
    }
}

/// The log has nothing of a load: a bad page of the image that has it would have taken the database, if the other image did
/// not have it, too.
#[test]
fn a_loaded_database_opens_with_any_bad_page_of_an_image() {
    let disk = new_disk();
    let db = open(&disk, 0).expect("created");
    let pairs = (0..3000).map(|id| (key(id), Value::from(&[7; 40])));
    let report = db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    let image = disk.image();
    drop(db);
    let mut fell_back = 0;
    for name in ["image-a", "image-b", "super"] {
        for page in 0..image.file(name).expect("a file").len() / 4096 {
            let disk = disk_of(&image);
            damage(&disk, name, page, false);
            let db = open(&disk, 0).unwrap_or_else(|e| panic!("page {page} of {name}: {e}"));
            assert_eq!(db.root(), report.root, "page {page} of {name}");
            fell_back += u64::from(db.opened().fell_back.is_some());
        }
    }
    assert!(fell_back > 0);
}
