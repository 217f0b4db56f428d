//! Objects that are missing, cut, damaged, or of another database: each is named, with what can be restored instead, and nothing
//! wrong is restored.

use std::path::Path;

use pleach_archive::{
    Archive, ArchiveError, BackupOptions, Follower, FullReason, Gap, Piece, backup, check,
    check_heads, prune, restore,
};

use crate::common::{World, commit, objects, open, options, put};

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
    let restored = restore(archive, &folder, &options().commit(Some(commit)));
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
    let to = |commit| restore(&archive, &folder, &options().commit(Some(commit)));
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
    let id = other.db.id().expect("open");
    let is_foreign = |refused: &ArchiveError, piece: Piece| {
        let named = matches!(refused, ArchiveError::Foreign { object, found, .. }
            if *object == piece.name() && *found == id);
        assert!(named, "{refused}");
    };
    // Beside the full that a restore begins with.
    put_in(changes(4), &foreign);
    is_foreign(&restore_to(&mut world, &archive, 4).expect_err("foreign"), changes(4));
    put_in(changes(4), &kept);
    // On the way from there: the commits before it are restored.
    put_in(changes(5), &foreign);
    is_foreign(&restore_to(&mut world, &archive, 6).expect_err("foreign"), changes(5));
    restore_to(&mut world, &archive, 5).expect("before it");
    // A backup looks at the newest object, also where the history has its commit no more.
    world.commit_pairs();
    is_foreign(
        &backup(&archive, &world.db, &BackupOptions::new()).expect_err("foreign"),
        changes(5),
    );
    put_in(changes(5), &kept);
    let full = Piece::Full { commit: 4 };
    put_in(full, &foreign);
    is_foreign(&restore_to(&mut world, &archive, 6).expect_err("foreign"), full);
    // And under the name of another commit.
    std::fs::copy(kept.join(changes(4).name()), own.join(changes(5).name())).expect("copied");
    put_in(full, &kept);
    let refused = restore_to(&mut world, &archive, 6).expect_err("changes of another commit");
    assert!(matches!(&refused, ArchiveError::Damaged { .. }), "{refused}");
    assert!(refused.to_string().contains("its head is of another piece"), "{refused}");
    put_in(changes(5), &kept);
    restore_to(&mut world, &archive, 6).expect("whole again");
}

/// Nothing else in the archive speaks of the commit of a foreign full: it was restored as that commit, and a check found
/// nothing.
#[test]
fn a_foreign_full_that_nothing_else_touches_is_refused() {
    let (mut world, archive) = archived(10);
    let mut other = World::new(11, 50);
    let foreign = other.archive();
    while other.db.commit_number() < 9 {
        other.commit_pairs();
    }
    backup(&foreign, &other.db, &BackupOptions::new()).expect("backed up");
    let full = Piece::Full { commit: 9 };
    let copy_to = |name: &str| {
        let from = other.folder.path().join("archive").join(full.name());
        let to = world.folder.path().join("archive").join(name);
        std::fs::copy(from, to).expect("copied");
    };
    copy_to(&full.name());
    let folder = world.folder.path().join("restored");
    for commit in [None, Some(9)] {
        let restored = restore(&archive, &folder, &options().commit(commit));
        let refused = restored.expect_err("foreign");
        assert!(matches!(refused, ArchiveError::Foreign { .. }), "{refused}");
        let followed = Follower::open(&archive, &folder, &options().commit(commit));
        let refused = followed.expect_err("foreign");
        assert!(matches!(refused, ArchiveError::Foreign { .. }), "{refused}");
        assert!(!folder.exists(), "nothing was begun");
    }
    for found in [check(&archive, None), check_heads(&archive)] {
        let [finding] = &found.expect("checked")[..] else { panic!("one finding") };
        assert!(finding.piece == full && finding.what.contains("is of database"), "{finding:?}");
    }
    let before = archive.list().expect("listed");
    let refused = prune(&archive, 1).expect_err("it is not what is to be kept");
    assert!(matches!(refused, ArchiveError::Foreign { .. }), "{refused}");
    assert_eq!(archive.list().expect("listed"), before);
    std::fs::remove_file(world.folder.path().join("archive").join(full.name())).expect("removed");
    restore_to(&mut world, &archive, 6).expect("whole again");
}

/// A salvage could be of any database.
#[test]
fn an_object_that_names_no_database_is_refused() {
    let (world, archive) = archived(12);
    let (other, mut stream) = (world.folder.path().join("other"), Vec::new());
    let db = open(&other, 0);
    for number in 1..=5 {
        commit(&db, vec![put(0, number, Some(vec![1]))], None);
    }
    db.close().expect("closed");
    pleach_ops::repair::salvage(&other, &mut stream).expect("salvaged");
    let full = Piece::Full { commit: 5 };
    let path = world.folder.path().join("archive").join(full.name());
    std::fs::write(path, stream).expect("written");
    let folder = world.folder.path().join("restored");
    let refused = restore(&archive, &folder, &options()).expect_err("of no database");
    assert!(
        matches!(&refused, ArchiveError::Unnamed(object) if *object == full.name()),
        "{refused}"
    );
    for found in [check(&archive, None), check_heads(&archive)] {
        let [finding] = &found.expect("checked")[..] else { panic!("one finding") };
        assert!(finding.piece == full && finding.what.contains("does not say"), "{finding:?}");
    }
}

#[test]
fn an_archive_of_two_databases_is_refused_by_all() {
    let (mut world, archive) = archived(13);
    let second = world.folder.path().join("archive").join("database-00000000000000ff");
    std::fs::write(&second, "another").expect("written");
    let folder = world.path("restored");
    let all = [
        archive.list().map(drop),
        restore(&archive, &folder, &options()).map(drop),
        Follower::open(&archive, &folder, &options()).map(drop),
        check(&archive, None).map(drop),
        check_heads(&archive).map(drop),
        backup(&archive, &world.db, &BackupOptions::new()).map(drop),
        prune(&archive, 1).map(drop),
    ];
    for (at, one) in all.into_iter().enumerate() {
        let refused = one.expect_err("two databases");
        assert!(matches!(refused, ArchiveError::TwoDatabases { .. }), "{at}: {refused}");
    }
    std::fs::remove_file(second).expect("removed");
    restore_to(&mut world, &archive, 6).expect("of one database again");
}

/// Changes of plain namespaces alone have no root that could differ: the follower is told by the database.
#[test]
fn a_follower_takes_no_changes_of_another_database() {
    let begin = |seed| {
        let mut world = World::new(seed, 50);
        world.db.add_plain_namespace(7).expect("added");
        let archive = world.archive();
        backup(&archive, &world.db, &BackupOptions::new()).expect("a full");
        commit(&world.db, vec![put(7, 1, Some(vec![1]))], None);
        let copy = world.path("copy");
        (world, archive, copy)
    };
    let ((world, archive, copy), (other, foreign, _)) = (begin(14), begin(15));
    let mut follower = Follower::open(&archive, &copy, &options()).expect("opened");
    backup(&archive, &world.db, &BackupOptions::new()).expect("changes");
    backup(&foreign, &other.db, &BackupOptions::new()).expect("changes");
    let (own, name) = (world.folder.path().join("archive"), changes(1).name());
    let good = std::fs::read(own.join(&name)).expect("read");
    std::fs::copy(other.folder.path().join("archive").join(&name), own.join(&name))
        .expect("put in");
    let refused = follower.step().expect_err("foreign");
    assert!(matches!(refused, ArchiveError::Foreign { .. }), "{refused}");
    assert_eq!(follower.at(), 1);
    drop(follower);
    // Nor does it follow the other's archive.
    let refused = Follower::open(&foreign, &copy, &options()).expect_err("another");
    assert!(matches!(refused, ArchiveError::Lost { found: Some(_), .. }), "{refused}");
    std::fs::write(own.join(name), good).expect("written");
    let mut follower = Follower::open(&archive, &copy, &options()).expect("opened");
    assert_eq!(follower.step().expect("its own"), Some(changes(1)));
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
        assert!(findings.iter().all(|(_, what)| what.contains("is of database")), "{findings:?}");
        std::fs::write(folder.join(&name), bytes).expect("written");
    }
    assert_eq!(found(&archive), []);
}

/// Its head alone was read: changes were put behind an object that nobody could go through.
#[test]
fn a_backup_does_not_build_on_a_damaged_object_and_writes_a_full() {
    for (seed, part) in [(6, 0), (16, 1), (17, 2)] {
        let (mut world, archive) = archived(seed);
        let path = world.folder.path().join("archive").join(changes(5).name());
        let mut bytes = std::fs::read(&path).expect("read");
        // In the head, among the changes, at the end.
        let at = [30, bytes.len() / 2, bytes.len() - 5][part];
        bytes[at] ^= 4;
        std::fs::write(path, bytes).expect("written");
        world.commit_pairs();
        let report = backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
        let full = Piece::Full { commit: 7 };
        assert_eq!(report.written, [full], "{part}");
        assert!(
            matches!(&report.full, Some(FullReason::NewestDamaged { object, .. }) if *object == changes(5).name()),
            "{report:?}"
        );
        restore_to(&mut world, &archive, 7).expect("restored");
        // The next one goes on behind the full.
        world.commit_pairs();
        let report = backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
        assert_eq!((report.written, report.full), (vec![changes(7)], None));
        restore_to(&mut world, &archive, 8).expect("restored");
        // So it is with a full, here one of the newest commit, whose head is damaged.
        let how = BackupOptions::new().full(true);
        backup(&archive, &world.db, &how).expect("backed up");
        let path = world.folder.path().join("archive").join(Piece::Full { commit: 8 }.name());
        let good = std::fs::read(&path).expect("a full");
        std::fs::write(&path, &good[..10]).expect("written");
        backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
        assert!(std::fs::read(&path).expect("a full") == good);
    }
}

/// A copy of a database has its number: what it has become is told by its roots.
#[test]
fn a_full_of_a_copy_that_went_another_way_is_refused() {
    let mut world = World::new(18, 50);
    world.commit_pairs();
    let archive = world.archive();
    backup(&archive, &world.db, &BackupOptions::new()).expect("a full");
    let (folder, place) = (world.path("copy"), world.path("archive-of-the-copy"));
    pleach_ops::backup(&world.db, &folder, &pleach_ops::BackupOptions::new()).expect("copied");
    let copy = open(&folder, 50);
    commit(&world.db, vec![put(0, 1, Some(vec![1]))], None);
    commit(&copy, vec![put(0, 1, Some(vec![2]))], None);
    backup(&archive, &world.db, &BackupOptions::new()).expect("changes");
    let other = Archive::create(place.to_str().expect("a name")).expect("an archive");
    backup(&other, &copy, &BackupOptions::new()).expect("a full");
    let name = Piece::Full { commit: 2 }.name();
    let to = world.folder.path().join("archive").join(&name);
    std::fs::copy(place.join(&name), to).expect("copied");
    let refused = restore_to(&mut world, &archive, 2).expect_err("another state");
    assert!(matches!(refused, ArchiveError::Contradiction { commit: 2, .. }), "{refused}");
}
