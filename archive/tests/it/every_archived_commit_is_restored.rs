//! Random databases, archived after random numbers of commits, are restored to every archived commit: with pairs, Merkle roots
//! and blob of a model.

use std::collections::BTreeSet;

use pleach::Error;
use pleach_archive::{ArchiveError, BackupOptions, Follower, FullReason, Piece, backup, prune};

use crate::common::{World, commit, options, put, state_of};

#[test]
fn every_archived_commit_is_the_models() {
    let mut kinds = BTreeSet::new();
    for seed in 0..12 {
        let mut world = World::new(seed, [0, 3, 8, 200][usize::try_from(seed % 4).expect("small")]);
        let archive = world.archive();
        let mut archived = BTreeSet::new();
        for _ in 0..8 {
            for _ in 0..world.below(7) {
                world.commit_anything();
            }
            if world.below(5) == 0 {
                world.reopen();
            }
            let every = [1, 2, 5, u64::MAX][usize::try_from(world.below(4)).expect("small")];
            let full = world.below(8) == 0;
            let how = BackupOptions::new().full(full).every(every);
            let report = backup(&archive, &world.db, &how).expect("backed up");
            assert_eq!(report.commit, world.db.commit_number());
            kinds.extend(report.full.clone().map(|reason| format!("{reason:?}")[..3].to_owned()));
            kinds.extend(report.written.iter().map(|piece| piece.name()[..3].to_owned()));
            archived.extend(report.written.iter().map(|piece| piece.to()));
            // What is archived already is not written again.
            let again = backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
            assert_eq!((again.commit, again.written.len(), again.full), (report.commit, 0, None));
        }
        let listing = archive.list().expect("listed");
        assert!(listing.restorable().eq(archived.iter().copied()), "{listing:?}");
        assert!(listing.gaps().is_empty() && listing.useless().is_empty());
        assert_eq!(listing.others(), [""; 0]);
        assert_eq!(listing.database(), world.db.id().ok());
        for commit in archived {
            world.restore_and_compare(&archive, commit);
        }
    }
    // All ways were taken.
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    assert_eq!(kinds, ["Ask", "Fir", "Not", "cha", "ful"]);
}

#[test]
fn a_follower_is_at_each_archived_commit_in_turn() {
    let mut world = World::new(77, 200);
    world.loads = false;
    let archive = world.archive();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    let folder = world.path("follower");
    let mut follower = Follower::open(&archive, &folder, &options()).expect("opened");
    for round in 0..15 {
        for _ in 0..=world.below(5) {
            world.commit_anything();
        }
        let report =
            backup(&archive, &world.db, &BackupOptions::new().every(2)).expect("backed up");
        for piece in report.written {
            assert_eq!(follower.step().expect("a step"), Some(piece));
            assert_eq!(follower.at(), piece.to());
            assert!(state_of(follower.db()) == world.states[&piece.to()], "at {}", piece.to());
        }
        assert_eq!(follower.step().expect("nothing"), None);
        if round % 4 == 0 {
            follower.db().close().expect("closed");
            drop(follower);
            follower = Follower::open(&archive, &folder, &options()).expect("opened");
            assert_eq!(follower.at(), report.commit);
        }
    }
    // A load ends the history. The archive goes on with a full: there is no way from here to there.
    let at = follower.at();
    world.db.add_namespace(9).expect("added");
    let pair = std::iter::once(([1; 32], pleach::Value::from(&[1])));
    world.db.bulk_load(pair, &pleach::load::LoadOptions::new().namespace(9)).expect("loaded");
    let full = world.db.commit_number();
    let report = backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    assert_eq!(report.full, Some(FullReason::NotInHistory { archived: at, oldest: full }));
    let stuck = follower.step().expect_err("a gap");
    assert!(
        matches!(stuck, ArchiveError::NoWayOn { at: found, goal, .. } if (found, goal) == (at, full)),
        "{stuck}"
    );
}

/// A namespace is dropped and added again. A follower whose history has the dropped one says so, and goes on with a shorter history.
#[test]
fn a_follower_with_a_history_waits_for_a_dropped_namespace() {
    let mut world = World::new(78, 2);
    let archive = world.archive();
    let piece = |world: &mut World| {
        let report = backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
        report.written[0]
    };
    world.db.add_namespace(4).expect("added");
    commit(&world.db, vec![put(4, 1, Some(vec![1]))], None);
    piece(&mut world);
    let folder = world.path("follower");
    let long = options().database(|options| options.small().history(100));
    let mut follower = Follower::open(&archive, &folder, &long).expect("opened");
    world.db.drop_namespace(4).expect("dropped");
    let dropped = piece(&mut world);
    assert_eq!(follower.step().expect("a step"), Some(dropped));
    for id in 0..3 {
        commit(&world.db, vec![put(0, id, Some(vec![1]))], None);
        piece(&mut world);
        follower.step().expect("a step");
    }
    world.db.add_namespace(4).expect("added again");
    let added = piece(&mut world);
    let refused = follower.step().expect_err("the history has it");
    assert!(
        matches!(
            refused,
            ArchiveError::Database(pleach_ops::Error::Db(Error::NamespaceInUse {
                namespace: 4,
                ..
            }))
        ),
        "{refused}"
    );
    follower.db().close().expect("closed");
    drop(follower);
    let short = options().database(|options| options.small().history(0));
    let mut follower = Follower::open(&archive, &folder, &short).expect("opened");
    assert_eq!(follower.step().expect("a step"), Some(added));
    assert!(state_of(follower.db()) == state_of(&world.db));
}

#[test]
fn a_pruned_archive_restores_all_from_the_oldest_kept_full_on() {
    let mut world = World::new(5, 200);
    let archive = world.archive();
    let mut fulls = Vec::new();
    for round in 0..12 {
        world.commit_pairs();
        let how = BackupOptions::new().full(round % 4 == 0);
        let report = backup(&archive, &world.db, &how).expect("backed up");
        fulls.extend(report.full.map(|_| report.commit));
    }
    assert_eq!(fulls, [1, 5, 9]);
    assert_eq!(prune(&archive, 3).expect("pruned"), []);
    assert_eq!(prune(&archive, 4).expect("pruned"), []);
    let removed = prune(&archive, 2).expect("pruned");
    assert!(removed.iter().all(|piece| piece.to() <= 5), "{removed:?}");
    assert_eq!(removed.len(), 5);
    let listing = archive.list().expect("listed");
    assert!(listing.restorable().eq(5..=12), "{listing:?}");
    for commit in [5, 6, 8, 9, 12] {
        world.restore_and_compare(&archive, commit);
    }
    let gone = archive.list().expect("listed");
    assert!(gone.pieces().all(|(piece, _)| !removed.contains(&piece)));
    // Another backup goes on from there.
    world.commit_pairs();
    let report = backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    assert_eq!(report.written, [Piece::Changes { from: 12, to: 13 }]);
    prune(&archive, 0).expect("pruned");
    assert!(archive.list().expect("listed").restorable().eq(9..=13));
}

/// Changes that begin before a full and lead beyond it are needed by the commit that they lead to.
#[test]
fn prune_keeps_what_a_later_commit_needs() {
    let mut world = World::new(6, 200);
    let archive = world.archive();
    let pieces = |world: &mut World, commits: u64, full: bool| {
        for _ in 0..commits {
            world.commit_pairs();
        }
        backup(&archive, &world.db, &BackupOptions::new().full(full)).expect("backed up")
    };
    pieces(&mut world, 1, false);
    pieces(&mut world, 3, false);
    // A full of a commit in between, as another process may write it.
    let folder = world.folder.path().join("archive");
    let file = folder.join(Piece::Full { commit: 3 }.name());
    let file = std::fs::File::create(file).expect("made");
    pleach_ops::export::export(&world.db.at(3).expect("in the history"), file).expect("exported");
    assert_eq!(prune(&archive, 1).expect("pruned"), []);
    world.restore_and_compare(&archive, 4);
    world.restore_and_compare(&archive, 3);
}

/// 500,000 changes fill the log record of a commit: they become several objects.
#[test]
fn more_changes_than_fit_a_commit_are_archived_in_parts() {
    let mut world = World::new(8, 10);
    let archive = world.archive();
    backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    for at in 0..3_u64 {
        commit(
            &world.db,
            (0..175_000).map(|id| put(0, at * 175_000 + id, Some(vec![1]))).collect(),
            None,
        );
    }
    let report = backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
    assert_eq!(
        report.written,
        [(0, 1), (1, 2), (2, 3)].map(|(from, to)| Piece::Changes { from, to })
    );
    assert_eq!(report.records, 525_000);
    let folder = world.path("restored");
    let restored = pleach_archive::restore(&archive, &folder, &options()).expect("restored");
    assert_eq!(restored.roots.get(0), Some(world.db.root()));
}

/// A process that reads beside the one that writes makes the backups.
#[test]
fn an_open_for_reading_is_archived_beside_the_writer() {
    for seed in 0..4 {
        let mut world = World::new(40 + seed, 200);
        world.loads = seed % 2 == 0;
        world.commit_pairs();
        let archive = world.archive();
        let state = world.folder.path().join("state");
        let options = pleach::Options::new(state).read_only(true).cache_mib(8);
        let reader = pleach::Db::open(options).expect("opened");
        let mut archived = BTreeSet::new();
        for _ in 0..8 {
            for _ in 0..=world.below(5) {
                world.commit_anything();
            }
            reader.refresh().expect("refreshed");
            let report = backup(&archive, &reader, &BackupOptions::new()).expect("backed up");
            assert_eq!(report.commit, world.db.commit_number());
            archived.extend(report.written.iter().map(|piece| piece.to()));
            assert!(seed % 2 == 0 || archived.len() == 1 || report.full.is_none(), "{report:?}");
        }
        for commit in archived {
            world.restore_and_compare(&archive, commit);
        }
    }
}
