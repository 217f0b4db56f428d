//! A scrub names each bad page, with its keys, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pleach::load::LoadOptions;
use pleach::scrub::{ScrubOptions, ScrubReport, scrub};
use pleach::{Access, Db, Options, SessionOptions, Value};
use pleach_io::sim::SimDisk;
use pleach_ops::{CheckOptions, check_on};

use crate::common::{Chain, SimDb, damage, disk_of, key, new_disk, open, options, pairs, runtime};

/// A scrub of a read-only open.
fn scrubbed_by_a_reader(disk: &SimDisk) -> (SimDb, ScrubReport) {
    let reading = options(60).create(false).read_only(true);
    let reader = SimDb::open_on(disk.clone(), runtime(disk), reading).expect("opens");
    let report = scrubbed(&reader);
    (reader, report)
}

fn scrubbed(db: &SimDb) -> ScrubReport {
    scrub(&db.snapshot().expect("a snapshot"), &ScrubOptions::new()).expect("scrubbed")
}

/// A database with flushed pages, long values and buffered changes.
fn subject() -> SimDisk {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, 0);
    for _ in 0..6 {
        chain.commit(90);
    }
    chain.db.drain(0).expect("flushed");
    chain.commit(5);
    chain.db.close().expect("closed");
    disk
}

/// The command opens for reading alone, and left the history out: "nothing found", whatever was bad.
#[test]
fn a_reader_scrubs_the_history() {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, 60);
    for _ in 0..70 {
        chain.commit(20);
    }
    // Beside the process that writes.
    let (_, beside) = scrubbed_by_a_reader(&disk);
    assert!(beside.is_clean() && beside.runs > 1, "{beside:?}");
    chain.db.close().expect("closed");
    let image = disk.image();
    let pages = image.file("overflow").expect("a file").len() / 4096;
    let (mut of_runs, mut given_up) = (0, 0);
    for page in 0..pages {
        let disk = disk_of(&image);
        damage(&disk, "overflow", page, false);
        let checked = check_on(&disk, CheckOptions::default()).expect("checked");
        let (reader, report) = scrubbed_by_a_reader(&disk);
        let found = !report.is_clean() || reader.opened().lost.is_some();
        let what = format!("page {page}: {report:?}, {:?}", checked.findings);
        assert_eq!(found, !checked.findings.is_empty(), "{what}");
        given_up += u32::from(reader.opened().lost.is_some());
        if let [bad] = &report.bad[..] {
            assert_eq!((&*bad.file, bad.page), ("overflow", page), "{what}");
            of_runs += u32::from(bad.keys.is_none());
        }
    }
    assert!(of_runs > 10, "{of_runs} pages of runs, {given_up} histories were given up");
}

#[test]
fn each_bad_page_is_named_and_no_other() {
    let disk = subject();
    let image = disk.image();
    let mut found = [0, 0];
    for (file, found) in ["leaf", "overflow"].into_iter().zip(&mut found) {
        let pages = image.file(file).expect("a file").len() / 4096;
        for page in 0..pages {
            for unreadable in [false, true] {
                let disk = disk_of(&image);
                damage(&disk, file, page, unreadable);
                let checked = check_on(&disk, CheckOptions::default()).expect("checked");
                let db = open(&disk, 0).expect("opens");
                let report = scrubbed(&db);
                let what = format!("page {page} of {file}, {unreadable}: {report:?}");
                let is_bad = !checked.findings.is_empty();
                assert_eq!(!report.is_clean(), is_bad, "{what}: {:?}", checked.findings);
                let [bad] = &report.bad[..] else {
                    assert!(report.bad.is_empty() && !is_bad, "{what}");
                    continue;
                };
                assert_eq!((&*bad.file, bad.page), (file, page), "{what}");
                let (namespace, prefix) = bad.keys.expect("of some keys");
                // Those keys cannot be read, and all others can.
                let session = db.snapshot().expect("a snapshot");
                for id in 0..400 {
                    let read = session.namespace(namespace).expect("it exists").read(&key(id));
                    let may_fail = prefix.covers(&key(id));
                    assert!(read.is_ok() || may_fail, "{what}: key {id}");
                    assert!(read.is_err() || !may_fail || file == "leaf", "{what}: key {id}");
                }
                *found += 1;
            }
        }
    }
    assert!(found[0] > 10 && found[1] > 5, "{found:?}");
}

#[test]
fn a_cached_copy_does_not_hide_a_bad_page() {
    let disk = subject();
    let db = open(&disk, 0).expect("opens");
    let there = pairs(&db);
    let clean = scrubbed(&db);
    assert!(clean.is_clean() && clean.pages > 5 && clean.long_values > 0, "{clean:?}");
    let pages = disk.image().file("leaf").expect("a file").len() / 4096;
    for page in 0..pages {
        damage(&disk, "leaf", page, false);
    }
    assert!(pairs(&db) == there, "all of it is cached");
    let report = scrubbed(&db);
    assert_eq!(report.bad.len() as u64, clean.pages, "{report:?}");
    assert!(report.roots.iter().any(|root| root.found.is_none()), "{report:?}");
    // And the cache is as it was.
    assert!(pairs(&db) == there);
}

#[test]
fn a_bad_record_of_the_history_is_named() {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, 40);
    for _ in 0..20 {
        chain.commit(8);
    }
    let clean = scrubbed(&chain.db);
    assert!(clean.is_clean() && clean.records >= 20, "{clean:?}");
    let segment = "log-0000000000000001";
    damage(&disk, segment, 2, false);
    let report = scrubbed(&chain.db);
    let [bad] = &report.bad[..] else { panic!("{report:?}") };
    // The record that the page is a part of may begin before it.
    assert!(bad.file.starts_with("log-") && bad.keys.is_none(), "{bad}");
    assert!(report.records < clean.records && report.records > clean.records / 2, "{report:?}");
}

#[test]
fn a_bad_page_of_a_run_of_the_history_is_named() {
    let disk = new_disk();
    let mut chain = Chain::new(&disk, 40);
    for _ in 0..20 {
        chain.commit(8);
    }
    chain.db.close().expect("closed, with a run of what they have replaced");
    let image = disk.image();
    let mut found = 0;
    for page in 0..image.file("overflow").expect("a file").len() / 4096 {
        let disk = disk_of(&image);
        damage(&disk, "overflow", page, false);
        let report = scrubbed(&open(&disk, 40).expect("opens"));
        for bad in report.bad.iter().filter(|bad| bad.keys.is_none()) {
            assert_eq!((&*bad.file, bad.page), ("overflow", page), "{report:?}");
            found += 1;
        }
    }
    assert!(found > 0, "no page of a run was damaged");
}

/// Where a part of the log is kept beside what a replay needs, it began where a record had ended, and the next one begins in
/// another block: a scrub took what lies between for a record that is gone.
#[test]
fn the_log_that_is_kept_begins_with_a_record() {
    let disk = new_disk();
    let options = options(3).kept_log_mib(1);
    let db = Db::open_on(disk.clone(), runtime(&disk), options).expect("created");
    let mut begins = 0;
    for round in 0_u64..300 {
        let value = u8::try_from(round % 251).expect("below 251");
        let put = |id: u64| Access::write(key(id), Some(Value::from(vec![value; 40])));
        let session = db.session(SessionOptions::new().witness(false)).expect("a session");
        let block = session.finish((0..60).map(|id| put(id * 29 % 900)).collect::<Vec<_>>());
        block.expect("finished").commit().expect("committed");
        if round % 10 == 0 {
            let report = scrubbed(&db);
            assert!(report.is_clean(), "commit {round}: {report:?}");
            begins += u64::from(report.records < round);
        }
    }
    assert!(begins > 5, "the first records were not kept");
}

/// Tells the writer to end, after a failed assertion as well.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_scrub_beside_commits_finds_nothing_and_keeps_its_pace() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).small().threads(2).history(3);
    let db = Db::open(options).expect("created");
    let value = |id: u64| Value::from(vec![7; if id.is_multiple_of(50) { 5000 } else { 40 }]);
    db.bulk_load((0..8000).map(|id| (key(id), value(id))), &LoadOptions::new()).expect("loaded");
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..u64::MAX {
                let put = |id: u64| Access::write(key(id), Some(value(id + round)));
                let session = db.session(SessionOptions::new().witness(false)).expect("a session");
                let block =
                    session.finish((0..300).map(|id| put(id * 29 % 9000)).collect::<Vec<_>>());
                block.expect("finished").commit().expect("committed");
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let _told = SetOnDrop(&done);
        for _ in 0..6 {
            let session = db.snapshot().expect("a snapshot");
            match scrub(&session, &ScrubOptions::new()) {
                Ok(report) => assert!(report.is_clean() && report.pages > 50, "{report:?}"),
                Err(error) => {
                    assert!(matches!(error, pleach::Error::SnapshotTooOld { .. }), "{error}");
                }
            }
        }
    });
    // It takes its time, and the flag ends it.
    let (rate, last) = (4_000_000, Arc::new(AtomicU64::new(0)));
    let told = Arc::clone(&last);
    let tell: pleach::Progress = Arc::new(move |done, all| {
        let all = all.expect("known");
        assert!(done <= all && done > told.swap(done, Ordering::Relaxed));
    });
    let paced = ScrubOptions::new().bytes_per_second(rate).progress(Some(tell));
    let report = scrub(&db.snapshot().expect("a snapshot"), &paced).expect("scrubbed");
    let least = Duration::from_millis(report.bytes * 600 / rate);
    assert!(report.is_clean() && report.bytes > rate / 4 && report.time > least, "{report:?}");
    assert_eq!(last.load(Ordering::Relaxed), report.bytes);
    let stop = ScrubOptions::new().bytes_per_second(1).stop(Some(Arc::new(AtomicBool::new(true))));
    let report = scrub(&db.snapshot().expect("a snapshot"), &stop).expect("scrubbed");
    assert!(report.stopped && !report.is_clean() && report.pages < 2, "{report:?}");
}
