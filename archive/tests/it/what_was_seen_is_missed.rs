//! An archive that goes away, is emptied, or is replaced by another or an older one, under backups and followers that go on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::StreamExt as _;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt as _};
use pleach_archive::{Archive, ArchiveError, BackupOptions, Follower, backup, check_heads, prune};

use crate::common::{World, commit, options, put};

/// What each step of a follower, and each backup, says.
fn both(world: &World, archive: &Archive, follower: &mut Follower) -> [ArchiveError; 2] {
    let stepped = follower.step().expect_err("nothing to follow");
    [stepped, backup(archive, &world.db, &BackupOptions::new()).expect_err("nowhere to write")]
}

fn move_away(folder: &Path) -> PathBuf {
    let away = folder.with_file_name("away");
    std::fs::rename(folder, &away).expect("moved");
    away
}

fn names(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("a folder").count()
}

/// Once a missing folder was made again for a full of the whole state, and the follower said nothing for ever.
#[test]
fn an_archive_that_is_away_is_an_error_each_time_and_both_go_on_when_it_is_back() {
    let mut world = World::new(21, 50);
    let (archive, copy) = (world.archive(), world.path("follower"));
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let mut follower = Follower::open(&archive, &copy, &options()).expect("opened");
    assert_eq!(follower.step().expect("at the end"), None);
    let folder = world.folder.path().join("archive");
    for round in 1..3 {
        world.commit_pairs();
        let away = move_away(&folder);
        for empty in [false, true, true] {
            // What an unmounted disk leaves.
            if empty && !folder.exists() {
                std::fs::create_dir(&folder).expect("made");
            }
            for error in both(&world, &archive, &mut follower) {
                let lost = matches!(error, ArchiveError::Lost { found: None, .. });
                assert!(lost, "{round}: {error}");
            }
            assert!(matches!(prune(&archive, 1), Err(ArchiveError::Lost { .. })));
            assert!(matches!(check_heads(&archive), Err(ArchiveError::Lost { .. })));
            assert_eq!(folder.exists(), empty, "nothing makes the folder again");
            assert!(!empty || names(&folder) == 0, "nothing is written into it");
        }
        std::fs::remove_dir(&folder).expect("empty");
        std::fs::rename(away, &folder).expect("moved back");
        let report = backup(&archive, &world.db, &BackupOptions::new()).expect("it goes on");
        assert_eq!(report.full, None);
        assert!(follower.step().expect("it goes on").is_some());
        assert_eq!(follower.at(), world.db.commit_number());
    }
}

/// The cursor of a follower has seen the archive, though the process has not.
#[test]
fn a_follower_that_is_opened_misses_what_its_cursor_has_seen() {
    let mut world = World::new(22, 50);
    let (archive, copy) = (world.archive(), world.path("follower"));
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let folder = world.folder.path().join("archive");
    let older = world.path("older");
    std::fs::create_dir(&older).expect("made");
    for entry in std::fs::read_dir(&folder).expect("listed") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), older.join(entry.file_name())).expect("copied");
    }
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let mut follower = Follower::open(&archive, &copy, &options()).expect("opened");
    while follower.step().expect("stepped").is_some() {}
    drop(follower);
    let mut other = World::new(23, 50);
    other.commit_pairs();
    backup(&other.archive(), &other.db, &BackupOptions::new()).expect("backed up");
    let empty = world.path("empty");
    std::fs::create_dir(&empty).expect("made");
    let open = |archive: &Path| {
        let archive = Archive::open(archive).expect("a folder");
        Follower::open(&archive, &copy, &options()).expect_err("not what it has followed")
    };
    for _ in 0..2 {
        let lost = open(&empty);
        assert!(matches!(lost, ArchiveError::Lost { found: None, .. }), "{lost}");
        let lost = open(&other.folder.path().join("archive"));
        assert!(matches!(lost, ArchiveError::Lost { found: Some(_), .. }), "{lost}");
        let behind = open(&older);
        let is_behind = matches!(behind, ArchiveError::Older { newest: Some(1), commit: 2, .. });
        assert!(is_behind, "{behind}");
    }
    let follower = Follower::open(&archive, &copy, &options()).expect("its own");
    assert_eq!(follower.at(), 2);
}

#[test]
fn an_archive_that_is_replaced_is_an_error_each_time() {
    let mut world = World::new(24, 50);
    let (archive, copy) = (world.archive(), world.path("follower"));
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let folder = world.folder.path().join("archive");
    let first = std::fs::read_dir(&folder).expect("listed").count();
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let mut follower = Follower::open(&archive, &copy, &options()).expect("opened");
    while follower.step().expect("stepped").is_some() {}
    // An older copy: the last objects are not there.
    let away = move_away(&folder);
    std::fs::create_dir(&folder).expect("made");
    let mut entries: Vec<_> = std::fs::read_dir(&away).expect("listed").flatten().collect();
    entries.retain(|entry| !entry.file_name().to_string_lossy().starts_with("changes-"));
    assert_eq!(entries.len(), first);
    for entry in entries {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
    }
    world.commit_pairs();
    for _ in 0..2 {
        for error in both(&world, &archive, &mut follower) {
            assert!(matches!(error, ArchiveError::Older { newest: Some(1), .. }), "{error}");
        }
    }
    // Another database's.
    std::fs::remove_dir_all(&folder).expect("removed");
    let mut other = World::new(25, 50);
    other.commit_pairs();
    backup(&other.archive(), &other.db, &BackupOptions::new()).expect("backed up");
    std::fs::rename(other.folder.path().join("archive"), &folder).expect("moved");
    for _ in 0..2 {
        for error in both(&world, &archive, &mut follower) {
            assert!(matches!(error, ArchiveError::Lost { found: Some(_), .. }), "{error}");
        }
    }
    assert_eq!(names(&folder), 2, "nothing is written into it");
    std::fs::remove_dir_all(&folder).expect("removed");
    std::fs::rename(away, &folder).expect("moved back");
    backup(&archive, &world.db, &BackupOptions::new()).expect("it goes on");
    assert!(follower.step().expect("it goes on").is_some());
}

#[test]
fn a_bucket_that_is_emptied_is_an_error() {
    let mut world = World::new(26, 50);
    let store = Arc::new(InMemory::new());
    let archive = Archive::with_store(Arc::clone(&store) as _, "chain").expect("an archive");
    let copy = world.path("follower");
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let mut follower = Follower::open(&archive, &copy, &options()).expect("opened");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        for object in store.list(None).collect::<Vec<_>>().await {
            store.delete(&object.expect("listed").location).await.expect("removed");
        }
    });
    for error in both(&world, &archive, &mut follower) {
        assert!(matches!(error, ArchiveError::Lost { found: None, .. }), "{error}");
    }
    let left = runtime.block_on(store.list(None).count());
    assert_eq!(left, 0, "nothing is written into it");
}

/// An archive of one disk may go away between the listing and the writing: reading back what changes follow takes its time.
#[test]
fn an_archive_that_goes_away_during_a_backup_is_not_written_to() {
    let mut world = World::new(27, 50);
    let archive = world.archive();
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    world.commit_pairs();
    let folder = world.folder.path().join("archive");
    let away = folder.with_file_name("away");
    let how = BackupOptions::new().progress(Some({
        let (folder, away) = (folder.clone(), away.clone());
        Arc::new(move |transfer| {
            // The object is read as a whole; then the disk is unmounted.
            if Some(transfer.bytes) == transfer.of && folder.exists() {
                std::fs::rename(&folder, &away).expect("moved");
            }
        })
    }));
    let lost = backup(&archive, &world.db, &how).expect_err("away");
    assert!(matches!(lost, ArchiveError::Lost { found: None, .. }), "{lost}");
    assert!(away.exists() && !folder.exists(), "the folder is not made again");
}

/// Objects come and go while a follower looks: that is no loss.
#[test]
fn a_follower_beside_backups_and_prunes_sees_no_loss() {
    let mut world = World::new(28, 50);
    let (archive, copy) = (world.archive(), world.path("follower"));
    world.commit_pairs();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let looking = Archive::open(world.folder.path().join("archive")).expect("opened");
    let mut follower = Follower::open(&looking, &copy, &options()).expect("opened");
    std::thread::scope(|scope| {
        let db = world.db.clone();
        let writer = scope.spawn(move || {
            for round in 0..40_u8 {
                commit(&db, vec![put(0, 1, Some(vec![round]))], None);
                let how = BackupOptions::new().full(round % 4 == 3);
                backup(&archive, &db, &how).expect("backed up");
                if round % 8 == 7 {
                    prune(&archive, 4).expect("pruned");
                }
            }
        });
        while !writer.is_finished() {
            follower.step().expect("stepped");
        }
        writer.join().expect("written");
    });
    while follower.step().expect("stepped").is_some() {}
    assert_eq!(follower.at(), 41);
    assert_eq!(follower.db().root(), world.db.root());
}
