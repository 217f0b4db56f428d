//! Group commit along a chain: children take their tickets while their parent is synced, and the next sync
//! serves all of them. They are published in order, and a parent that fails fails its children.
//!
//! The device holds the syncs of the log until the test has seen who has a ticket.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pleach::{Access, Db, Error, Geometry, Options, Overlay, SessionOptions, Value};
use pleach_io::sim::SimDisk;

use crate::common::held_device::{Gate, Held, NEVER, Patient};
use crate::common::{commit, uniform};
use crate::crash::unrecorded;

type HeldDb = Db;
type HeldOverlay = Overlay;

fn put(id: u64, value: u8) -> Access {
    Access::read_write(uniform(id), Some(Value::from(&[value; 8][..])))
}

/// A database with one commit, in whose background nothing happens.
fn open() -> (HeldDb, Arc<Gate>) {
    let (device, gate) = Held::new(SimDisk::new(1, unrecorded()));
    let options = Options::new("sim").create(true).cache_mib(8).geometry(Geometry::small());
    let db = Db::open_on(device, Patient::new(2, &gate), options).expect("opened");
    db.pause_background();
    commit(&db, (0..100).map(|id| put(id, 1)).collect());
    (db, gate)
}

fn over(db: &HeldDb, parent: Option<&HeldOverlay>, accesses: Vec<Access>) -> HeldOverlay {
    let options = SessionOptions::new();
    let options = parent.map_or(options.clone(), |parent| options.over(parent));
    db.session(options).expect("a session").finish(accesses).expect("finished").into_overlay()
}

fn until_in_flight(db: &HeldDb, commits: u64) {
    let end = Instant::now() + NEVER;
    while db.metrics().commits_in_flight < commits {
        assert!(Instant::now() < end, "no more than {:?}", db.metrics().commits_in_flight);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Commits a chain of three, each on a thread of its own, while the first one's sync is held. Gives what
/// they came to, in order.
fn commit_three(db: &HeldDb, gate: &Gate, fails: bool) -> Vec<Result<u64, Error>> {
    let parent = over(db, None, vec![put(1, 2), put(200, 2)]);
    let child = over(db, Some(&parent), vec![put(1, 3), put(201, 3)]);
    let session = db.session(SessionOptions::new().over(&child)).expect("a session");
    let grandchild = session.finish(vec![put(1, 4), put(202, 4)]).expect("finished");
    let before = db.metrics().hashes;
    gate.hold_syncs();
    thread::scope(|scope| {
        let first = scope.spawn(|| parent.commit());
        until_in_flight(db, 1);
        let second = scope.spawn(|| child.commit());
        until_in_flight(db, 2);
        let third = scope.spawn(|| grandchild.commit().map_err(pleach::CommitError::into_error));
        until_in_flight(db, 3);
        assert_eq!(db.commit_number(), 1, "nothing is published before its sync");
        assert_eq!((parent.commit_number(), child.commit_number()), (None, None));
        gate.let_sync(fails);
        let results = [first, second].map(|one| one.join().expect("no panic"));
        assert_eq!(db.metrics().hashes, before, "none of them was folded again");
        results.into_iter().chain([third.join().expect("no panic")]).collect()
    })
}

#[test]
fn one_sync_serves_a_child_and_its_child() {
    let (db, gate) = open();
    let numbers: Vec<u64> =
        commit_three(&db, &gate, false).into_iter().map(|one| one.expect("committed")).collect();
    assert_eq!(numbers, [2, 3, 4]);
    assert_eq!(gate.log_syncs(), 2, "the parent's, and one for those that came meanwhile");
    assert_eq!((db.commit_number(), db.metrics().commits_in_flight), (4, 0));
    let session = db.session(SessionOptions::new()).expect("a session");
    for (id, value) in [(0, 1), (1, 4), (200, 2), (201, 3), (202, 4)] {
        let found = session.read(&uniform(id)).expect("reads");
        assert_eq!(found.as_deref(), Some(&[value; 8][..]), "{id}");
    }
}

#[test]
fn a_parent_that_fails_fails_its_children() {
    let (db, gate) = open();
    let root = db.root();
    for (at, result) in commit_three(&db, &gate, true).into_iter().enumerate() {
        assert!(result.is_err(), "commit {at} was acknowledged");
    }
    assert_eq!(gate.log_syncs(), 1, "a failed sync is not repeated");
    assert!(db.is_poisoned());
    assert_eq!((db.commit_number(), db.root()), (1, root));
}

/// Commits one upon the other, without a gap, would keep a flush away for ever: it publishes when no commit
/// is in flight. So while a flush waits, a child takes its ticket after its parent's publication.
#[test]
fn a_flush_has_its_turn_among_commits_in_flight() {
    let (db, gate) = open();
    let parent = over(&db, None, vec![put(1, 2)]);
    let child = over(&db, Some(&parent), vec![put(1, 3)]);
    gate.hold_syncs();
    thread::scope(|scope| {
        let first = scope.spawn(|| parent.commit());
        until_in_flight(&db, 1);
        let drain = scope.spawn(|| db.drain(1));
        let publishing = || db.tasks().iter().any(|task| task.stage == "publishing");
        let end = Instant::now() + NEVER;
        while !publishing() {
            assert!(Instant::now() < end, "{:?}", db.tasks());
            thread::sleep(Duration::from_millis(1));
        }
        let second = scope.spawn(|| child.commit());
        let steps = || {
            let tasks = db.tasks();
            tasks.iter().find(|task| task.name == "pleach-flush").expect("listed").steps
        };
        let before = steps();
        while steps() < before + 50 {
            assert!(Instant::now() < end, "{:?}", db.tasks());
            assert_eq!(db.metrics().commits_in_flight, 1, "the child waits for its ticket");
            thread::sleep(Duration::from_millis(1));
        }
        gate.let_sync(false);
        assert_eq!(first.join().expect("no panic").expect("committed"), 2);
        assert_eq!(second.join().expect("no panic").expect("committed"), 3);
        drain.join().expect("no panic").expect("drained");
    });
    db.drain(0).expect("drained");
    assert_eq!(db.metrics().pending_entries, 0);
    let root = db.root();
    assert_eq!(root, child.root());
}
