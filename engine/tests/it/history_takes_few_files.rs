//! Each segment of the history was kept open: 256 of them were 290 descriptors, and a process that may have 256 could neither open
//! the database nor look at it nor repair it.

use std::path::Path;
use std::process::Command;

use pleach::{Access, Db, Geometry, Options, SessionOptions, Value};
use pleach_ops::repair::{RepairOptions, repair};
use pleach_ops::{CheckOptions, Verdict, check, stat};

use crate::common::{commit, uniform};

const CHILD: &str = "PLEACH_FEW_FILES";
const COMMITS: u64 = 300;
/// Descriptors that the child may have.
const FILES: u64 = 56;

fn options(folder: &Path) -> Options {
    let options = Options::new(folder).create(true).cache_mib(8).threads(2).in_flight(8);
    options.history(COMMITS).geometry(Geometry::least())
}

fn value(number: u64) -> Value {
    Value::from(number.to_be_bytes().repeat(350).as_slice())
}

fn write(db: &Db, number: u64) {
    let accesses =
        (0..2).map(|id| Access::write(uniform(2 * (number % 40) + id), Some(value(number))));
    assert_eq!(commit(db, accesses.collect()), number);
}

/// What is done with few descriptors.
fn use_it(folder: &Path) {
    let looked = stat(folder).expect("looked at");
    assert_eq!((looked.commit, looked.oldest_commit), (COMMITS, 0));
    let report = check(folder, CheckOptions::default()).expect("checked");
    assert_eq!(report.verdict(), Verdict::Clean, "{:?}", report.findings);
    for reads_only in [true, false] {
        let options = options(folder).create(false).read_only(reads_only);
        let db = Db::open(options).expect("opens");
        for number in [1, COMMITS / 2, COMMITS] {
            let session = db.at(number).expect("in the history");
            let found = session.read(&uniform(2 * (number % 40))).expect("read");
            assert_eq!(found, Some(value(number)));
        }
        if !reads_only {
            write(&db, COMMITS + 1);
            let session = db.session(SessionOptions::new()).expect("a session");
            drop(session);
        }
        db.close().expect("closed");
    }
    repair(folder, &RepairOptions::new()).expect("there is nothing to be repaired");
}

#[test]
fn a_history_of_more_segments_than_descriptors_opens_and_is_looked_at_and_repaired() {
    if let Some(folder) = std::env::var_os(CHILD) {
        use_it(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path())).expect("created");
    (1..=COMMITS).for_each(|number| write(&db, number));
    db.close().expect("closed");
    drop(db);
    let segments = (std::fs::read_dir(folder.path()).expect("a folder"))
        .filter(|entry| {
            entry.as_ref().is_ok_and(|file| file.file_name().to_string_lossy().starts_with("log-"))
        })
        .count();
    assert!(segments as u64 > 2 * FILES, "{segments}");
    let name = "history_takes_few_files::\
                a_history_of_more_segments_than_descriptors_opens_and_is_looked_at_and_repaired";
    let limit = format!("ulimit -n {FILES} || exit 77; exec \"$0\" --exact {name} --nocapture");
    let child = Command::new("sh")
        .args(["-c", &limit])
        .arg(std::env::current_exe().expect("this program"))
        .env(CHILD, folder.path())
        .output();
    match child {
        Ok(child) if child.status.code() == Some(77) => println!("SKIPPED: no limit can be set"),
        Err(error) => println!("SKIPPED: there is no shell: {error}"),
        Ok(child) => {
            let told = String::from_utf8_lossy(&child.stdout);
            assert!(child.status.success(), "{told}{}", String::from_utf8_lossy(&child.stderr));
            assert!(told.contains("1 passed"), "{told}");
        }
    }
}
