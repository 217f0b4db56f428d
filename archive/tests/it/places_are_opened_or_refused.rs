//! Places of archives: folders and URLs; and databases that an archive does not take.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::sync::Arc;

use object_store::memory::InMemory;
use pleach::{Db, Hasher, Options};
use pleach_archive::{Archive, ArchiveError, BackupOptions, Follower, backup, restore};

use crate::common::{World, commit, open, options, put};

#[test]
fn a_folder_and_a_file_url_are_the_same_archive() {
    let mut world = World::new(1, 9);
    world.commit_pairs();
    let place = world.folder.path().join("new/archive");
    let place = place.to_str().expect("a name");
    let refused = Archive::open(place).expect_err("no folder");
    assert!(matches!(&refused, ArchiveError::NoFolder(found) if found == place), "{refused}");
    let archive = Archive::create(place).expect("made");
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let same = Archive::open(format!("file://{place}")).expect("opened");
    assert_eq!(same.list().expect("listed"), archive.list().expect("listed"));
    assert_eq!(same.list().expect("listed").newest(), Some(1));
}

/// An object is durable with its name, and so the folders must be that it is in: they were made and not synced.
#[test]
fn the_names_of_folders_that_are_made_are_synced() {
    const PLACE: &str = "PLEACH_ARCHIVE_MADE";
    if let Some(place) = std::env::var_os(PLACE) {
        Archive::create(place).expect("made");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (log, own) = (folder.path().join("calls"), std::env::current_exe().expect("its path"));
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-e", "trace=mkdir,mkdirat,fsync,fdatasync", "-o"]).arg(&log);
    let test = module_path!().split_once("::").expect("a module").1;
    strace
        .arg(own)
        .arg("--exact")
        .arg(format!("{test}::the_names_of_folders_that_are_made_are_synced"));
    let output = strace.env(PLACE, folder.path().join("one/two")).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        eprintln!("SKIPPED: strace is not installed here, or may not trace");
        return;
    };
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    let calls = std::fs::read_to_string(&log).expect("the log");
    for (made, above) in [("one", ""), ("one/two", "one")] {
        let made = folder.path().join(made).display().to_string();
        let above = folder.path().join(above).display().to_string();
        let behind = calls.split_once(&format!("{made}\", 0")).expect("a folder is made").1;
        let above = above.trim_end_matches('/');
        let synced = |line: &str| line.contains("sync(") && line.contains(&format!("<{above}>"));
        assert!(behind.lines().any(synced), "{above} is not synced:\n{calls}");
    }
}

#[test]
fn places_that_cannot_be_used_are_refused_with_a_reason() {
    for place in ["ftp://host/path", "http:///", "s3://bucket/path", "://"] {
        if cfg!(feature = "aws") && place.starts_with("s3") {
            continue;
        }
        let refused = Archive::open(place).expect_err("no place");
        assert!(matches!(refused, ArchiveError::Place { .. }), "{place}: {refused}");
        if place.starts_with("s3") {
            assert!(refused.to_string().contains("`--features aws`"), "{refused}");
        }
    }
}

/// A path need not be UTF-8.
#[test]
fn a_folder_of_any_name_is_an_archive() {
    let mut world = World::new(7, 9);
    world.commit_pairs();
    let place = world.folder.path().join(OsStr::from_bytes(b"new \xff/archive \xfe"));
    let archive = Archive::create(&place).expect("made");
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let archive = Archive::open(&place).expect("opened");
    assert_eq!(archive.list().expect("listed").newest(), Some(1));
    let folder = world.folder.path().join(OsStr::from_bytes(b"copy \xfd"));
    restore(&archive, &folder, &options()).expect("restored");
    world.compare(&folder, 1);
    let refused = Archive::open(place.join("none")).expect_err("no folder");
    assert!(matches!(refused, ArchiveError::NoFolder(_)), "{refused}");
}

#[test]
fn a_prefix_of_a_store_is_an_archive_of_its_own() {
    let mut world = World::new(2, 9);
    world.commit_pairs();
    let store = Arc::new(InMemory::new());
    let one = Archive::with_store(Arc::clone(&store) as _, "chains/one").expect("an archive");
    let two = Archive::with_store(store, "chains/two").expect("an archive");
    backup(&one, &world.db, &BackupOptions::new()).expect("backed up");
    assert!(two.list().expect("listed").newest().is_none());
    world.restore_and_compare(&one, 1);
    let empty = restore(&two, &world.path("none"), &options()).expect_err("empty");
    assert!(matches!(empty, ArchiveError::Empty(_)), "{empty}");
}

/// A restore has the hasher of the archived database, which the archive knows by its number.
#[test]
fn a_restore_takes_the_hasher_of_the_archive() {
    let own = Hasher::new("test-hash", |bytes| Hasher::BLAKE3.hash(&[bytes, b"!"].concat()));
    for hasher in [Hasher::BLAKE3, Hasher::SHA2_256, own] {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let state = Options::new(at("state")).create(true).small().history(9).hasher(hasher);
        let db = Db::open(state).expect("created");
        commit(&db, vec![put(0, 1, Some(vec![1]))], None);
        let archive = Archive::create(at("archive")).expect("an archive");
        backup(&archive, &db, &BackupOptions::new()).expect("backed up");
        let other = if hasher == own { None } else { Some(own) };
        let wrong = other.map_or(options(), |other| options().hasher(other));
        let refused = restore(&archive, &at("copy"), &wrong).expect_err("another hasher");
        assert!(
            matches!(refused, ArchiveError::Hasher { archived, given }
                if archived == hasher.id() && given == other.map(Hasher::name)),
            "{refused}"
        );
        assert!(!at("copy").exists(), "nothing was begun");
        let right = if hasher == own { options().hasher(own) } else { options() };
        let report = restore(&archive, &at("copy"), &right).expect("restored");
        assert_eq!(report.roots, db.roots());
        commit(&db, vec![put(0, 2, Some(vec![2]))], None);
        backup(&archive, &db, &BackupOptions::new()).expect("backed up");
        restore(&archive, &at("copy"), &right).expect("restored on");
    }
}

/// `block_on` of a runtime panics on a thread of another one.
#[test]
fn an_archive_is_used_from_a_thread_of_an_asynchronous_runtime() {
    let mut world = World::new(3, 9);
    world.commit_pairs();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let archive = world.archive();
        backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
        world.restore_and_compare(&archive, 1);
    });
}

#[test]
fn an_archive_of_another_database_is_refused() {
    let mut world = World::new(4, 9);
    let archive = world.archive();
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let before = archive.list().expect("listed");
    // A restored database counts its commits anew: it is another one.
    let other: Db = open(&world.path("other"), 9);
    commit(&other, vec![put(0, 1, Some(vec![1]))], None);
    for full in [false, true] {
        let how = BackupOptions::new().full(full);
        let refused = backup(&archive, &other, &how).expect_err("another database");
        assert!(matches!(refused, ArchiveError::OtherDatabase { .. }), "{refused}");
    }
    assert_eq!(archive.list().expect("listed"), before);
}

/// Copies of a folder have the same number, and may have gone another way since.
#[test]
fn an_archive_of_a_copy_that_went_another_way_is_refused() {
    let mut world = World::new(5, 9);
    let archive = world.archive();
    commit(&world.db, vec![put(0, 1, Some(vec![1]))], None);
    let copy = world.path("copy");
    pleach_ops::backup(&world.db, &copy, &pleach_ops::BackupOptions::new()).expect("copied");
    commit(&world.db, vec![put(0, 1, Some(vec![2]))], None);
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let copy = open(&copy, 9);
    let refused = backup(&archive, &copy, &BackupOptions::new()).expect_err("behind");
    assert!(matches!(refused, ArchiveError::Ahead { archived: 2, newest: 1 }), "{refused}");
    commit(&copy, vec![put(0, 1, Some(vec![3]))], None);
    let refused = backup(&archive, &copy, &BackupOptions::new()).expect_err("another commit 2");
    assert!(matches!(refused, ArchiveError::OtherCommit { commit: 2, .. }), "{refused}");
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("the right one");
}

#[test]
fn folders_that_are_no_restores_are_left_as_they_are() {
    let mut world = World::new(6, 9);
    let archive = world.archive();
    for value in 1..=3 {
        commit(&world.db, vec![put(0, 1, Some(vec![value]))], None);
        backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    }
    let own = world.path("own");
    let db = open(&own, 0);
    commit(&db, vec![put(0, 7, Some(vec![7]))], None);
    let root = db.root();
    db.close().expect("closed");
    let refused = restore(&archive, &own, &options()).expect_err("not a restore");
    assert!(matches!(refused, ArchiveError::NotARestore(_)), "{refused}");
    assert_eq!(open(&own, 0).root(), root);

    let folder = world.path("restored");
    restore(&archive, &folder, &options().commit(Some(2))).expect("restored");
    let refused = restore(&archive, &folder, &options().commit(Some(1)));
    let refused = refused.expect_err("it is later");
    assert!(matches!(refused, ArchiveError::Beyond { at: 2, commit: 1, .. }), "{refused}");
    // A restored folder can be followed on; one that was written to cannot.
    restore(&archive, &folder, &options()).expect("restored on");
    let db = open(&folder, 0);
    commit(&db, vec![put(0, 7, Some(vec![7]))], None);
    db.close().expect("closed");
    let refused = Follower::open(&archive, &folder, &options()).expect_err("written to");
    assert!(matches!(refused, ArchiveError::WrittenTo { .. }), "{refused}");
}
