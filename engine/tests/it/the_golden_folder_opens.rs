//! A folder that version 0.1 wrote, format version 6: every later version opens it, or refuses it by its number and imports
//! its export stream (`exports_are_imported`).
//!
//! The files are kept without the zeros at their ends; `lengths` has their lengths.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use pleach::{Db, Options};
use pleach_io::Device as _;
use pleach_io::sim::SimDisk;
use pleach_ops::{CheckOptions, check};

use crate::crash::unrecorded;
use crate::exports_are_imported::{EMPTY, MERKLE, PLAIN, filled, pairs};

const FOLDER: &str = "tests/golden/folder-6";

/// The folder as it was.
fn unpacked(to: &Path) {
    let lengths = fs::read_to_string(Path::new(FOLDER).join("lengths")).expect("there");
    for line in lengths.lines() {
        let (name, length) = line.split_once(' ').expect("name and length");
        fs::copy(Path::new(FOLDER).join(name), to.join(name)).expect("copied");
        let file = fs::File::options().write(true).open(to.join(name)).expect("opened");
        file.set_len(length.parse().expect("a length")).expect("as long as it was");
    }
}

#[test]
fn the_folder_of_format_6_opens_with_all_that_it_had() {
    let folder = tempfile::tempdir().expect("a folder");
    unpacked(folder.path());
    let report = check(folder.path(), CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let db = Db::open(Options::new(folder.path()).cache_mib(16)).expect("opened");
    let expected = filled(&SimDisk::new(3, unrecorded()));
    assert_eq!((db.commit_number(), db.blob()), (5, b"block 17".to_vec()));
    assert_eq!(db.roots(), expected.roots(), "digests, too");
    for namespace in [0, MERKLE, EMPTY, PLAIN] {
        assert!(pairs(&db, namespace) == pairs(&expected, namespace), "namespace {namespace}");
    }
    assert_eq!(db.history(), expected.history());
    for commit in db.history() {
        let then = expected.commit_at(commit).expect("in the history");
        assert_eq!(db.commit_at(commit).expect("in the history"), then);
        let pairs = |pairs: usize| assert_eq!(db.at(commit).expect("it").iter(..).count(), pairs);
        pairs(expected.at(commit).expect("in the history").iter(..).count());
    }
    assert_eq!(db.rollback_to(3).expect("in the history"), 6);
    db.close().expect("closed");
}

/// Writes the golden folder: once, when the format gets a version.
#[test]
#[ignore = "writes files of the repository"]
fn write_the_golden_folder() {
    let disk = SimDisk::new(3, unrecorded());
    // Not closed: image, log and what pends are all needed.
    let db = filled(&disk);
    drop(db);
    fs::create_dir_all(FOLDER).expect("a folder");
    let (image, mut lengths) = (disk.image(), String::new());
    let mut names = disk.list().expect("no faults");
    names.sort();
    for name in names.iter().filter(|name| *name != "LOCK") {
        let bytes = image.file(name).expect("listed").to_vec();
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        fs::write(Path::new(FOLDER).join(name), &bytes[..end]).expect("written");
        writeln!(lengths, "{name} {}", bytes.len()).expect("to memory");
    }
    fs::write(Path::new(FOLDER).join("lengths"), lengths).expect("written");
}
