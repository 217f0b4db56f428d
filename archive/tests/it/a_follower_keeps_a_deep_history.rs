//! A follower keeps a history of its own: each state that it was at is the source's, however many commits lie between two pieces of
//! the archive, and after opens of the follower, too.

use std::collections::BTreeMap;

use pleach::Options;
use pleach_archive::{ArchiveError, BackupOptions, Follower, backup};

use crate::common::{World, options, state_of_session};

const DEEP: u64 = 1000;

fn is_in_use(error: &ArchiveError) -> bool {
    let ArchiveError::Database(pleach_ops::Error::Db(error)) = error else { return false };
    matches!(error, pleach::Error::NamespaceInUse { .. })
}

/// Every state that the follower was at, by its own number: the commit of the source.
fn compare(world: &World, follower: &Follower, reached: &BTreeMap<u64, u64>, what: &str) {
    let db = follower.db();
    assert!(db.opened().lost.is_none(), "{what}: {:?}", db.opened());
    assert!(db.history().start() <= reached.keys().next().expect("the full"), "{what}");
    for (own, source) in reached {
        let session = db.at(*own).expect("in the history");
        let found = state_of_session(&session);
        assert!(found == world.states[source], "{what}: {own}, which is {source} of the source");
        if let Ok(there) = world.db.commit_at(*source) {
            assert!(session.roots().iter().eq(there.roots.iter()), "{what}: roots of {source}");
        }
    }
}

#[test]
fn a_follower_has_each_state_that_it_was_at_however_far_apart() {
    let mut compared = 0;
    let cases = std::env::var("PLEACH_CASES").ok().and_then(|text| text.parse().ok());
    for seed in 0..cases.unwrap_or(2) {
        let mut world = World::new(500 + seed, DEEP);
        world.loads = false;
        world.commit_pairs();
        let archive = world.archive();
        backup(&archive, &world.db, &BackupOptions::new()).expect("backed up");
        let folder = world.path("follower");
        // What it replaces is read from memory, or from the device.
        let memory = [1, 1 << 30][usize::try_from(seed % 2).expect("small")];
        let opened = |history| {
            let database = move |options: Options| options.small().cache_mib(8).history(history);
            let options =
                options().database(move |options| database(options).undo_memory_bytes(memory));
            Follower::open(&archive, &folder, &options).expect("opened")
        };
        let mut follower = opened(DEEP);
        let mut reached = BTreeMap::from([(follower.db().commit_number(), follower.at())]);
        for round in 0..8 {
            // Some hundred commits at once, or a few that are archived one by one.
            let (commits, every) = if round % 3 == 0 { (120, u64::MAX) } else { (12, 1) };
            for _ in 0..commits {
                world.commit_anything();
            }
            let how = BackupOptions::new().every(every);
            let report = backup(&archive, &world.db, &how).expect("backed up");
            assert_eq!(report.full, None, "the history reaches back");
            for piece in report.written {
                match follower.step() {
                    Ok(step) => assert_eq!(step, Some(piece)),
                    // A rollback has restored a namespace, which the follower's history has as a dropped one.
                    Err(error) => {
                        assert!(is_in_use(&error), "{error}");
                        for history in [0, DEEP] {
                            follower.db().close().expect("closed");
                            drop(follower);
                            follower = opened(history);
                            if history == 0 {
                                assert_eq!(follower.step().expect("a step"), Some(piece));
                            }
                        }
                        reached.clear();
                    }
                }
                reached.insert(follower.db().commit_number(), follower.at());
            }
            assert_eq!(follower.at(), world.db.commit_number());
            if round % 2 == 0 {
                compare(&world, &follower, &reached, &format!("seed {seed}, round {round}"));
            }
            if round % 3 == 1 {
                follower.db().close().expect("closed");
            }
            if round % 3 > 0 {
                drop(follower);
                follower = opened(DEEP);
            }
        }
        compare(&world, &follower, &reached, &format!("seed {seed}, at the end"));
        compared += reached.len();
        follower.db().close().expect("closed");
        drop(follower);
        let report = pleach_ops::check(&folder, pleach_ops::CheckOptions::default());
        assert!(report.expect("checked").findings.is_empty());
    }
    assert!(compared > 60, "{compared} states");
}
