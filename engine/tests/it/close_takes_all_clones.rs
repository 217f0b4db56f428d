//! A database behind an `Arc` could not be closed, since close wanted the only handle. Clones are one
//! database now: any of them closes it for all, and the folder is free although others still live.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use pleach::load::LoadOptions;
use pleach::{Access, Db, Error, Geometry, Options, Outcome, SessionOptions, Value};

fn open(folder: &Path) -> Db {
    let geometry = Geometry { segment_pages: 64, log_segment: 1 << 20, ..Geometry::default() };
    let options = Options::new(folder).create(true).threads(1).cache_mib(8).geometry(geometry);
    Db::open(options).expect("opened")
}

fn commit(db: &Db, key: u8) -> Result<u64, Error> {
    let session = db.session(SessionOptions::new().witness(false))?;
    session
        .finish(vec![Access::write([key; 32], Some(Value::from(&[key])))])?
        .commit()
        .map_err(pleach::CommitError::into_error)
}

#[test]
fn one_clone_closes_for_all_and_the_folder_is_free() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let clones = [db.clone(), db.clone()];
    assert_eq!(commit(&clones[0], 1).expect("committed"), 1);
    let (root, metrics, info) = (db.root(), db.metrics(), db.device_info());
    clones[1].close().expect("nothing is open");
    for clone in [&db, &clones[0], &clones[1]] {
        let refused = [
            clone.session(SessionOptions::new()).err(),
            clone.drain(0).err(),
            clone.bulk_load(std::iter::empty(), &LoadOptions::new()).err(),
            clone.close().err(),
        ];
        for error in refused {
            let error = error.expect("closed");
            assert!(matches!(error, Error::Closed), "{error}");
            assert_eq!(error.outcome(), Outcome::DidNotHappen);
        }
        // What it was last.
        assert_eq!((clone.root(), clone.commit_number(), clone.blob()), (root, 1, vec![]));
        assert!(clone.metrics().commits == metrics.commits && !clone.is_poisoned());
        assert!(clone.open_handles().is_empty() && clone.device_info() == info);
        assert!(clone.quarantined().is_empty() && clone.opened().created);
        assert!(clone.tasks().iter().all(|task| !task.stalled), "{:?}", clone.tasks());
        clone.pause_background();
        assert!(format!("{clone:?}").contains("commit: 1"));
    }
    // The closed clones live, and do not keep the folder.
    let again = open(folder.path());
    assert!(again.opened().closed);
    assert_eq!(commit(&again, 2).expect("committed"), 2);
    assert_eq!(db.commit_number(), 1, "of the database that was closed");
    drop((db, clones));
    assert_eq!(again.root(), again.clone().root());
}

/// Only the last drop ends the database; that its folder can be locked again shows that the tasks, which
/// hold it, have ended.
#[test]
fn the_last_clone_that_goes_ends_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for round in 1..=3 {
        let db = open(folder.path());
        let clone = db.clone();
        drop(db);
        assert_eq!(commit(&clone, 1).expect("committed"), round);
        clone.drain(0).expect("the flush is at work");
        let session = clone.session(SessionOptions::new()).expect("a session");
        drop(clone);
        let late = session.finish(vec![Access::write([9; 32], None)]).expect("finished");
        assert!(matches!(
            late.commit().map_err(pleach::CommitError::into_error),
            Err(Error::Closed)
        ));
    }
}

#[test]
fn a_session_outlives_the_close_behind_a_clone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    commit(&db, 1).expect("committed");
    let session = db.session(SessionOptions::new()).expect("a session");
    let clone = db.clone();
    assert_eq!(clone.close().expect("closed").sessions, 1);
    assert_eq!(session.read(&[1; 32]).expect("reads"), Some(Value::from(&[1])));
    assert_eq!(db.open_handles().sessions, 1, "whoever is left can ask who keeps the folder");
    drop(session);
    assert!(db.open_handles().is_empty());
    assert_eq!(open(folder.path()).commit_number(), 1);
}

/// Some close, some commit, some wait, all at once: one close succeeds, what was acknowledged is there, and
/// all come to their end.
#[test]
fn many_close_at_once_and_each_commit_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for _ in 0..12 {
        let db = open(folder.path());
        let acknowledged = AtomicU64::new(db.commit_number());
        let closed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (db, acknowledged) = (db.clone(), &acknowledged);
                scope.spawn(move || {
                    loop {
                        match commit(&db, 1) {
                            Ok(number) => drop(acknowledged.fetch_max(number, Ordering::Relaxed)),
                            Err(Error::StaleParent { .. }) => {}
                            Err(error) => break assert!(matches!(error, Error::Closed), "{error}"),
                        }
                    }
                });
            }
            let drains = db.clone();
            scope.spawn(move || while drains.drain(0).is_ok() {});
            for wait in [2, 3] {
                let (db, closed) = (db.clone(), &closed);
                scope.spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(wait));
                    let told = db.close();
                    let mine = told.is_ok();
                    assert!(mine || matches!(told, Err(Error::Closed)), "{told:?}");
                    closed.fetch_add(u64::from(mine), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(closed.into_inner(), 1, "one of them closed it");
        // `db` lives.
        let again = open(folder.path());
        assert!(again.opened().closed);
        assert_eq!(again.commit_number(), acknowledged.into_inner());
    }
}

/// A load calls its caller for each pair; a close from there, or beside it, comes first.
///
/// The close's image has the overflow map as far as the load had come by then. The load cut the file off behind
/// it when it failed, and the database did not open any more.
#[test]
fn a_load_that_is_closed_meanwhile_leaves_an_empty_database() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let pairs = (0..2000_u64).map(|id| {
        if id == 1000 {
            assert_eq!(db.close().expect("closed").loads, 1);
        }
        let mut key = [0; 32];
        key[..8].copy_from_slice(&id.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        let value = if id % 50 == 0 { vec![7; 100_000] } else { id.to_le_bytes().to_vec() };
        (key, Value::from(value))
    });
    let error = db.bulk_load(pairs, &LoadOptions::new().memory_mib(1)).expect_err("closed");
    assert!(matches!(error, Error::Closed), "{error}");
    let again = open(folder.path());
    assert!(again.opened().closed && again.commit_number() == 0);
    again.close().expect("closed");
    let report = pleach_ops::check(folder.path(), pleach_ops::CheckOptions::default());
    assert_eq!(report.expect("checked").findings, []);
}
