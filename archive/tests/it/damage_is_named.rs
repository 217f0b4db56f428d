//! Objects that are missing, cut, damaged, or of another database: each is named, with what can be restored instead, and nothing
//! wrong is restored.

use std::path::Path;

use pleach::Blake3;
use pleach_archive::{
    Archive, ArchiveError, BackupOptions, FullReason, Gap, Piece, backup, check, restore,
};

use crate::common::{World, commit, objects, options, put};

/// An archive with a full of commit 1, changes to each later commit up to 6, and a full of commit 4.
fn archived(seed: u64) -> (World, Archive) {
    let mut world = World::new(seed, 50);
    let archive = world.archive();
    for number in 1..=6 {
        world.commit_pairs();
        let report = backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
        assert_eq!(report.commit, number);
        if number == 4 {
            backup(&archive, &world.db, &BackupOptions::new().full(true)).expect("backed up");
        }
    }
    (world, archive)
}

fn changes(from: u64) -> Piece {
    Piece::Changes { from, to: from + 1 }
}

fn restore_to(world: &mut World, archive: &Archive, commit: u64) -> Result<(), ArchiveError> {
    let folder = world.path("restored");
    let restored = restore::<Blake3>(archive, &folder, &options().commit(Some(commit)));
    restored.map(|_| world.compare(&folder, commit))
}

#[test]
fn missing_changes_are_named_with_the_commits_on_both_sides() {
    let (mut world, archive) = archived(1);
    let folder = world.folder.path().join("archive");
    let remove = |piece: Piece| std::fs::remove_file(folder.join(piece.name())).expect("removed");
    remove(changes(2));
    let listing = archive.list().expect("listed");
    assert!(listing.restorable().eq([1, 2, 4, 5, 6]), "{listing:?}");
    assert_eq!(listing.gaps(), [Gap { after: Some(2), before: 3 }]);
    assert_eq!(listing.useless(), [changes(3)]);
    let refused = restore_to(&mut world, &archive, 3).expect_err("missing");
    assert!(
        matches!(
            refused,
            ArchiveError::NotArchived { commit: 3, before: Some(2), after: Some(4), .. }
        ),
        "{refused}"
    );
    restore_to(&mut world, &archive, 6).expect("from the second full");
    remove(Piece::Full { commit: 4 });
    let refused = restore_to(&mut world, &archive, 6).expect_err("missing");
    let text = refused.to_string();
    assert!(text.ends_with("changes from commit 2 to 3 are missing; restore commit 2"), "{text}");
    // The next backup sees that nothing can be put behind what is there.
    world.commit_pairs();
    let report = backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    assert_eq!((report.full, report.commit), (None, 7));
    assert_eq!(report.written, [Piece::Changes { from: 2, to: 7 }], "the history has commit 2");
    restore_to(&mut world, &archive, 7).expect("restored");
}

/// Every object, cut and with a changed byte at many places.
#[test]
fn cut_and_changed_objects_are_named_and_nothing_wrong_is_restored() {
    let (mut world, archive) = archived(2);
    let folder = world.folder.path().join("archive");
    let mut bad = 0;
    for (name, bytes) in objects(&folder) {
        let Some(piece) = Piece::parse(&name) else { continue };
        let goal = match piece {
            Piece::Full { commit } => commit,
            Piece::Changes { to, .. } => to,
        };
        let path = folder.join(&name);
        for part in 0..6 {
            let mut damaged = bytes.clone();
            let at = (bytes.len() - 1) * part / 5;
            damaged[at] ^= 0x10;
            for bytes in [&damaged[..], &bytes[..at]] {
                std::fs::write(&path, bytes).expect("written");
                match restore_to(&mut world, &archive, goal) {
                    // Another way leads there.
                    Ok(()) => assert!(piece == changes(3), "{name} was used"),
                    Err(ArchiveError::Damaged { object, before, without, .. }) => {
                        assert_eq!(object, name);
                        assert_eq!(before, (goal > 1).then(|| goal - 1), "{name}");
                        // Commit 4 has a full, and changes that lead to it from the first one.
                        assert_eq!(without.is_some(), goal == 4, "{name}");
                        bad += 1;
                    }
                    Err(error) => panic!("{name}: {error}"),
                }
            }
        }
        std::fs::write(&path, bytes).expect("written");
    }
    assert_eq!(bad, 6 * 12, "all but the changes beside the full of commit 4");
    restore_to(&mut world, &archive, 6).expect("whole again");
}

#[test]
fn another_full_leads_around_a_damaged_one() {
    let (mut world, archive) = archived(3);
    let path = world.folder.path().join("archive").join(Piece::Full { commit: 4 }.name());
    std::fs::write(&path, b"nothing").expect("written");
    let refused = restore_to(&mut world, &archive, 6).expect_err("damaged");
    assert!(matches!(refused, ArchiveError::Damaged { without: Some(6), .. }), "{refused}");
    // As the error says.
    std::fs::remove_file(path).expect("removed");
    restore_to(&mut world, &archive, 6).expect("from the first full");
}

/// A damaged object leaves the folder at the commit before it, from where the good one goes on.
#[test]
fn a_restore_goes_on_when_a_good_copy_is_put_in() {
    let (mut world, archive) = archived(9);
    let path = world.folder.path().join("archive").join(changes(5).name());
    let good = std::fs::read(&path).expect("read");
    std::fs::write(&path, &good[..good.len() - 9]).expect("written");
    let folder = world.path("restored");
    let to = |commit| restore::<Blake3>(&archive, &folder, &options().commit(Some(commit)));
    for _ in 0..2 {
        let refused = to(6).expect_err("damaged");
        assert!(matches!(refused, ArchiveError::Damaged { before: Some(5), .. }), "{refused}");
    }
    assert_eq!(to(5).expect("it is there").applied, []);
    std::fs::write(&path, &good).expect("written");
    assert_eq!(to(6).expect("restored").applied, [changes(5)]);
    world.compare(&folder, 6);
}

/// Objects of another database with the same commits, put in under the names of this one's.
#[test]
fn objects_of_another_database_are_refused() {
    let (mut world, archive) = archived(4);
    let (other, _) = archived(5);
    let (own, foreign) = (world.folder.path().join("archive"), other.folder.path().join("archive"));
    let put_in = |piece: Piece, from: &Path| {
        std::fs::copy(from.join(piece.name()), own.join(piece.name())).expect("copied");
    };
    let kept = world.folder.path().join("kept");
    std::fs::create_dir(&kept).expect("made");
    for name in objects(&own).keys() {
        std::fs::copy(own.join(name), kept.join(name)).expect("copied");
    }
    put_in(changes(4), &foreign);
    let refused = restore_to(&mut world, &archive, 4).expect_err("a contradiction");
    assert!(matches!(&refused, ArchiveError::Contradiction { commit: 4, .. }), "{refused}");
    put_in(changes(4), &kept);
    put_in(changes(5), &foreign);
    let refused = restore_to(&mut world, &archive, 6).expect_err("not from commit 5");
    assert!(
        matches!(&refused, ArchiveError::Damaged { object, before: Some(5), .. } if *object == changes(5).name()),
        "{refused}"
    );
    // A backup compares with the newest object.
    world.commit_pairs();
    let refused = backup(&archive, &world.db, &BackupOptions::new()).expect_err("another commit 6");
    assert!(matches!(refused, ArchiveError::OtherCommit { commit: 6, .. }), "{refused}");
    put_in(changes(5), &kept);
    put_in(Piece::Full { commit: 4 }, &foreign);
    let refused = restore_to(&mut world, &archive, 6).expect_err("a contradiction");
    assert!(matches!(&refused, ArchiveError::Contradiction { commit: 4, .. }), "{refused}");
    // And under the name of another commit.
    std::fs::copy(kept.join(changes(4).name()), own.join(changes(5).name())).expect("copied");
    put_in(Piece::Full { commit: 4 }, &kept);
    let refused = restore_to(&mut world, &archive, 6).expect_err("changes of another commit");
    assert!(matches!(&refused, ArchiveError::Damaged { .. }), "{refused}");
    assert!(refused.to_string().contains("its head is of another piece"), "{refused}");
    put_in(changes(5), &kept);
    restore_to(&mut world, &archive, 6).expect("whole again");
}

#[test]
fn a_check_lists_each_damaged_and_each_foreign_object() {
    let (world, archive) = archived(7);
    let (other, _) = archived(8);
    let found = |archive: &Archive| {
        let findings = check(archive, None).expect("checked");
        findings.into_iter().map(|one| (one.piece, one.what)).collect::<Vec<_>>()
    };
    assert_eq!(found(&archive), []);
    let (folder, foreign) = [&world, &other].map(|one| one.folder.path().join("archive")).into();
    for (name, bytes) in objects(&folder) {
        let Some(piece) = Piece::parse(&name) else { continue };
        let mut changed = bytes.clone();
        changed[bytes.len() - 30] ^= 1;
        std::fs::write(folder.join(&name), changed).expect("written");
        let [(damaged, what)] = &found(&archive)[..] else { panic!("one finding") };
        assert!(*damaged == piece && what.contains("damaged"), "{damaged:?}: {what}");
        std::fs::copy(foreign.join(&name), folder.join(&name)).expect("copied");
        let findings = found(&archive);
        assert!(!findings.is_empty(), "{name} is of another database");
        assert!(findings.iter().all(|(_, what)| what.contains("other roots for commit")));
        std::fs::write(folder.join(&name), bytes).expect("written");
    }
    assert_eq!(found(&archive), []);
}

#[test]
fn a_backup_behind_a_damaged_object_is_refused_until_a_full_is_asked_for() {
    let (mut world, archive) = archived(6);
    let path = world.folder.path().join("archive").join(changes(5).name());
    std::fs::write(path, b"nothing").expect("written");
    commit(&world.db, vec![put(0, 1, None)], None);
    let before = archive.list().expect("listed");
    let refused = backup(&archive, &world.db, &BackupOptions::new()).expect_err("damaged");
    assert!(matches!(refused, ArchiveError::NewestDamaged { .. }), "{refused}");
    assert_eq!(archive.list().expect("listed"), before);
    let how = BackupOptions::new().full(true);
    let report = backup(&archive, &world.db, &how).expect("backed up");
    assert_eq!(report.full, Some(FullReason::Asked));
    let folder = world.path("restored");
    let restored = restore::<Blake3>(&archive, &folder, &options()).expect("restored");
    assert_eq!(restored.roots, world.db.roots());
    // A damaged full of the newest commit is written anew.
    let path = world.folder.path().join("archive").join(Piece::Full { commit: 7 }.name());
    let good = std::fs::read(&path).expect("a full");
    std::fs::write(&path, &good[..10]).expect("written");
    let refused = backup(&archive, &world.db, &BackupOptions::new()).expect_err("damaged");
    assert!(matches!(refused, ArchiveError::NewestDamaged { .. }), "{refused}");
    backup(&archive, &world.db, &how).expect("backed up");
    assert!(std::fs::read(&path).expect("a full") == good);
}
