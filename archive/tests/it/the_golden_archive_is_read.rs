//! An archive that version 0.1 wrote: every later version lists, checks and restores it. It has a full backup, changes one commit each
//! and several at once, a namespace that is added, a plain one, long values and blobs.

use std::path::Path;

use pleach::Db;
use pleach_archive::{Archive, BackupOptions, Follower, backup, check, restore};

use crate::common::{State, commit, open, options, put, state_of};

const ARCHIVE: &str = "tests/golden/archive-1";
/// Commits that are archived.
const ARCHIVED: [u64; 5] = [3, 4, 5, 6, 10];

/// One commit after the other, ten in all.
fn next_commit(db: &Db) {
    let number = db.commit_number() + 1;
    match number {
        1 => drop(db.add_plain_namespace(3).expect("added")),
        8 => drop(db.add_namespace(5).expect("added")),
        9 => drop(db.drop_namespace(5).expect("dropped")),
        _ => {
            let fill = u8::try_from(number).expect("few");
            let value = |id: u64| match id % 10 {
                0 => vec![fill; 3000],
                few => vec![fill; usize::try_from(few * 7).expect("few")],
            };
            let some = (0..30).filter(|id: &u64| (id + number).is_multiple_of(3));
            let write = |id: u64| {
                let gone = number > 5 && id.is_multiple_of(4);
                put(if id.is_multiple_of(2) { 0 } else { 3 }, id, (!gone).then(|| value(id)))
            };
            commit(db, some.map(write).collect(), number.is_multiple_of(2).then(|| vec![fill; 9]));
        }
    }
    assert_eq!(db.commit_number(), number);
}

/// The state and the roots of each commit, from the same commits on another database.
fn states() -> Vec<(State, pleach::Roots)> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = open(folder.path(), 0);
    let mut states = vec![(state_of(&db), db.roots())];
    for _ in 1..=10 {
        next_commit(&db);
        states.push((state_of(&db), db.roots()));
    }
    states
}

#[test]
fn an_archive_of_version_0_1_is_listed_restored_and_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let archive = Archive::open(ARCHIVE).expect("opened");
    let listing = archive.list().expect("listed");
    assert!(listing.restorable().eq(ARCHIVED), "{listing:?}");
    assert!(listing.gaps().is_empty() && listing.useless().is_empty());
    assert_eq!(check(&archive, None).expect("read").len(), 0);
    let states = states();
    let at = |commit: u64| &states[usize::try_from(commit).expect("few")];
    for commit in ARCHIVED {
        let restored = folder.path().join(commit.to_string());
        restore(&archive, &restored, &options().commit(Some(commit))).expect("restored");
        let db = open(&restored, 0);
        assert!(state_of(&db) == at(commit).0, "commit {commit}");
        assert!(db.roots().iter().eq(at(commit).1.iter()), "roots of commit {commit}");
        db.close().expect("closed");
    }
    let mut follower =
        Follower::open(&archive, &folder.path().join("follower"), &options()).expect("opened");
    // It begins at the newest full, or steps to it.
    let mut steps = 0;
    while follower.step().expect("a step").is_some() {
        steps += 1;
        assert!(steps <= ARCHIVED.len(), "each piece is taken once");
    }
    assert_eq!(follower.at(), 10);
    assert!(state_of(follower.db()) == at(10).0);
}

/// Writes the golden archive: once, when its format gets a version.
#[test]
#[ignore = "writes files of the repository"]
fn write_the_golden_archive() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = open(folder.path(), 200);
    assert!(!Path::new(ARCHIVE).exists(), "it is written once");
    let archive = Archive::create(ARCHIVE).expect("an archive");
    for commit in 1..=10 {
        next_commit(&db);
        match commit {
            3 | 10 => drop(backup(&archive, &db, &BackupOptions::new()).expect("backed up")),
            6 => {
                backup(&archive, &db, &BackupOptions::new().every(1)).expect("backed up");
            }
            _ => {}
        }
    }
}
