//! A folder of format version 8: every later version opens it, or refuses it by its number and imports its
//! export stream (`export_is_imported`). It has runs of the history on the device.
//!
//! The files are kept without the zeros at their ends; `lengths` has their lengths.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use pleach::{Db, Options};
use pleach_io::Device as _;
use pleach_io::sim::SimDisk;
use pleach_ops::{CheckOptions, check};

use crate::common::commit;
use crate::crash::{SimDb, unrecorded};
use crate::export_is_imported::{EMPTY, MERKLE, PLAIN, filled, open, pairs, pairs_of, put};

const FORMAT_8: &str = "tests/golden/folder-8";

/// A database whose history is in runs on the device and, of the newest commit, in the log.
fn with_runs(disk: &SimDisk) -> SimDb {
    let mut db = filled(disk);
    for round in 0..3_u64 {
        db.close().expect("closed");
        db = open(disk);
        let ids = 10 * round..10 * round + 16;
        let lens = [40, 1025, 3_000, 0];
        let len = |id: u64| lens[usize::try_from(id % 4).expect("small")];
        let of = |namespace| ids.clone().map(move |id| put(namespace, id, len(id)));
        commit(&db, of(0).chain(of(MERKLE)).chain(of(PLAIN)).collect());
    }
    db
}

/// The folder as it was.
fn unpacked(from: &str, to: &Path) {
    let lengths = fs::read_to_string(Path::new(from).join("lengths")).expect("there");
    for line in lengths.lines() {
        let (name, length) = line.split_once(' ').expect("name and length");
        fs::copy(Path::new(from).join(name), to.join(name)).expect("copied");
        let file = fs::File::options().write(true).open(to.join(name)).expect("opened");
        file.set_len(length.parse().expect("a length")).expect("as long as it was");
    }
}

#[test]
fn the_folder_of_format_8_opens_with_all_that_it_had() {
    let expected = with_runs(&SimDisk::new(3, unrecorded()));
    let times = opens(FORMAT_8, &expected);
    let known = expected.history().skip(1).map(|at| expected.committed_at(at).expect("known"));
    assert_eq!(times, known.collect::<Vec<_>>());
    assert!(times.iter().all(Option::is_some), "{times:?}");
}

/// The folder has what this database has. Returns when its commits were made.
fn opens(from: &str, expected: &SimDb) -> Vec<Option<SystemTime>> {
    let folder = tempfile::tempdir().expect("a folder");
    unpacked(from, folder.path());
    let report = check(folder.path(), CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let db = Db::open(Options::new(folder.path()).cache_mib(16)).expect("opened");
    assert_eq!((db.commit_number(), db.blob()), (expected.commit_number(), b"block 17".to_vec()));
    assert_eq!(db.roots(), expected.roots(), "digests, too");
    for namespace in [0, MERKLE, EMPTY, PLAIN] {
        assert!(pairs(&db, namespace) == pairs(expected, namespace), "namespace {namespace}");
    }
    assert_eq!(db.history(), expected.history());
    for commit in db.history() {
        let then = expected.commit_at(commit).expect("in the history");
        assert_eq!(db.commit_at(commit).expect("in the history"), then);
        let [found, wanted] = [&db, expected].map(|db| db.at(commit).expect("in the history"));
        for namespace in [0, MERKLE, EMPTY, PLAIN] {
            let same = pairs_of(&found, namespace) == pairs_of(&wanted, namespace);
            assert!(same, "commit {commit}, namespace {namespace}");
        }
    }
    let times =
        db.history().skip(1).map(|at| db.committed_at(at).expect("in the history")).collect();
    assert_eq!(db.rollback_to(3).expect("in the history"), expected.commit_number() + 1);
    db.close().expect("closed");
    times
}

/// Writes the golden folder of the newest format: once, when the format gets a version.
#[test]
#[ignore = "writes files of the repository"]
fn write_the_golden_folder() {
    let disk = SimDisk::new(3, unrecorded());
    // Not closed: image, log and buffered changes are all needed.
    let db = with_runs(&disk);
    drop(db);
    fs::create_dir_all(FORMAT_8).expect("a folder");
    let (image, mut lengths) = (disk.image(), String::new());
    let mut names = disk.list().expect("no faults");
    names.sort();
    for name in names.iter().filter(|name| *name != "LOCK") {
        let bytes = image.file(name).expect("listed").to_vec();
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        fs::write(Path::new(FORMAT_8).join(name), &bytes[..end]).expect("written");
        writeln!(lengths, "{name} {}", bytes.len()).expect("to memory");
    }
    fs::write(Path::new(FORMAT_8).join("lengths"), lengths).expect("written");
}
