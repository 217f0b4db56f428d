//! A process that forks with a database open: the child is refused, whatever it calls, and harms nobody; what the
//! parent was told is there.
//!
//! Parent and child both committed, both got `Ok`, and acknowledged commits were written over; a child alone waited
//! for workers that it does not have, and its drop aborted.
#![expect(unsafe_code, reason = "there is no safe fork")]

mod forks;

use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pleach::errors::{IoError, LockHolder};
use pleach::load::LoadOptions;
use pleach::{
    Access, Advice, CommitError, Db, Durability, Error, FinishError, Geometry, IoMode, Iter,
    Options, Outcome, Overlay, Session, SessionOptions, Value, Witness,
};
use pleach_ops::BackupOptions;

use forks::{alone, begin_in_child, end, fork, in_child};

type Block = pleach::Block;

fn key(id: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&id.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

fn put(id: u64) -> Access {
    Access::write(key(id), Some(Value::from(&id.to_le_bytes())))
}

fn options(folder: &Path, io: IoMode) -> Options {
    Options::new(folder).create(true).cache_mib(64).geometry(Geometry::least()).history(8).io(io)
}

fn session(db: &Db) -> Session {
    db.session(SessionOptions::new()).expect("a session")
}

/// Commits numbers `from` to `through`, one a commit: key and commit have the same number.
fn commit(db: &Db, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        let block = session(db).finish(vec![put(number)]).expect("finished");
        assert_eq!(block.commit().expect("committed"), number);
    }
}

/// The folder opens, and has these commits and no other.
fn has_commits(folder: &Path, through: u64) {
    let db = Db::open(options(folder, IoMode::Auto)).expect("it opens");
    assert_eq!(db.commit_number(), through);
    let session = session(&db);
    for id in 1..=through {
        let value = session.read(&key(id)).expect("read");
        assert_eq!(value, Some(Value::from(&id.to_le_bytes())), "commit {id}");
    }
    assert_eq!(session.iter(..).flatten().count() as u64, through);
}

#[track_caller]
fn refused<T>(result: Result<T, Error>) {
    let error = result.map(drop).expect_err("it is the parent's");
    assert!(matches!(error, Error::Io(IoError::Forked)), "{error}");
    assert_eq!((error.outcome(), error.advice()), (Outcome::DidNotHappen, Advice::OpenHere));
}

/// What a program may hold of a database when it forks.
struct Held {
    db: Db,
    session: Session,
    block: Block,
    overlay: Overlay,
    witness: Option<Witness>,
    iter: Iter,
}

fn is_refused_everything(held: Held, other_folder: &Path) {
    let Held { db, session, block, overlay, witness, mut iter } = held;
    refused(db.session(SessionOptions::new()));
    refused(db.snapshot());
    refused(db.at(1));
    refused(db.commit_at(1));
    refused(db.refresh());
    refused(db.rollback(1));
    refused(db.rollback_to(1));
    refused(db.add_namespace(3));
    refused(db.add_plain_namespace(4));
    refused(db.drop_namespace(1));
    refused(db.bulk_load(std::iter::empty(), &LoadOptions::new()));
    refused(pleach_ops::backup(&db, &other_folder.join("backup"), &BackupOptions::default()));
    assert!(!other_folder.join("backup").exists(), "nothing was made for it");
    refused(db.sync());
    refused(db.drain(0));
    refused(session.fork());
    refused(session.read(&key(1)));
    refused(session.read_many(&[key(1), key(2), key(3)]));
    refused(session.prove(&key(1)));
    refused(session.prove_many(&[key(1), key(2)]));
    refused(session.namespace(0).and_then(|first| first.read(&key(1))));
    session.prefetch(&[key(1), key(2)]);
    refused(session.iter(..).next().expect("an error"));
    refused(block.commit().map_err(CommitError::into_error));
    refused(overlay.commit());
    // What is in memory is given, and no page after it.
    refused(iter.find(Result::is_err).expect("an error before the end"));
    assert!(iter.next().is_none(), "after an error it has ended");
    refused(session.finish(vec![put(1)]).map_err(FinishError::into_error));
    refused(db.close());
    drop((witness, iter, overlay));
    drop(db);
}

/// A child beside a process that has one of each kind of handle.
fn holds_on_to_what_it_has(db: &Db, folder: &Path, other: &Path, io: IoMode) {
    db.drain(0).expect("flushed");
    // Rings of this thread, one with reads in flight.
    let reading = session(db);
    reading.read_many(&(1..=500).map(key).collect::<Vec<_>>()).expect("read");
    let mut iter = reading.iter(..);
    for _ in 0..200 {
        iter.next().expect("500 pairs").expect("read");
    }
    let mut block = session(db).finish(vec![put(501)]).expect("finished");
    let witness = block.take_witness();
    let overlay = session(db).finish(vec![put(502)]).expect("finished").into_overlay();
    let held = Held { db: db.clone(), session: session(db), block, overlay, witness, iter };
    let mut held = Some(held);
    in_child(|| {
        is_refused_everything(held.take().expect("held"), other);
        let locked = Db::open(options(folder, io)).expect_err("the parent has it");
        assert_eq!(locked.advice(), Advice::CloseOthers, "{locked}");
        let parent = std::os::unix::process::parent_id();
        assert!(locked.to_string().contains(&format!("process {parent}")), "{locked}");
        // A database of its own is as any other.
        let own = Db::open(options(&other.join("own"), io)).expect("created");
        commit(&own, 1..=3);
        own.close().expect("closed");
    });
    has_commits(&other.join("own"), 3);
    // The parent's are as they were.
    let Held { block, overlay, iter, session, .. } = held.take().expect("the parent's");
    assert_eq!(iter.flatten().count(), 300);
    assert_eq!(session.read(&key(1)).expect("read"), Some(Value::from(&1_u64.to_le_bytes())));
    assert_eq!(block.commit().expect("committed"), 501);
    assert!(overlay.commit().is_err(), "a sibling");
}

#[test]
fn a_child_is_refused_everything_and_its_drops_harm_nobody() {
    let _alone = alone();
    for io in [IoMode::Auto, IoMode::Blocking] {
        let (folder, other) =
            (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
        let db = Db::open(options(folder.path(), io)).expect("created");
        commit(&db, 1..=500);
        holds_on_to_what_it_has(&db, folder.path(), other.path(), io);
        commit(&db, 502..=600);
        db.close().expect("closed");
        has_commits(folder.path(), 600);
    }
}

/// Whatever threads of the parent hold in that moment.
#[test]
fn children_that_are_forked_between_and_during_commits_cost_none_of_them() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let db = Db::open(options(folder.path(), IoMode::Auto)).expect("created");
    commit(&db, 1..=10);
    let (stop, last) = (AtomicBool::new(false), AtomicU64::new(10));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let next = last.load(Ordering::Relaxed) + 1;
                commit(&db, next..=next);
                last.store(next, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let session = session(&db);
                session.prefetch(&(1..=10).map(key).collect::<Vec<_>>());
                session.read_many(&(1..=10).map(key).collect::<Vec<_>>()).expect("read");
            }
        });
        let children = || {
            for _ in 0..60 {
                let block = session(&db).finish(vec![put(1 << 40)]).expect("finished");
                let overlay = session(&db).finish(vec![put(1 << 41)]).expect("finished");
                let held = (db.clone(), session(&db), block, overlay.into_overlay());
                let mut held = Some(held);
                in_child(|| {
                    let (db, session, block, overlay) = held.take().expect("held");
                    refused(db.session(SessionOptions::new()));
                    refused(block.commit().map_err(CommitError::into_error));
                    refused(overlay.commit());
                    refused(session.finish(vec![put(1 << 42)]).map_err(FinishError::into_error));
                    drop(overlay);
                    refused(db.close());
                });
            }
        };
        let done = catch_unwind(AssertUnwindSafe(children));
        stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let last = last.into_inner();
    commit(&db, last + 1..=last + 50);
    db.close().expect("closed");
    has_commits(folder.path(), last + 50);
}

/// What the error says to do.
#[test]
fn a_child_opens_the_database_when_the_parent_has_closed_it() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let db = Db::open(options(folder.path(), IoMode::Auto)).expect("created");
    commit(&db, 1..=20);
    let (mut closed, closes) = std::io::pipe().expect("a pipe");
    let mut held = Some((db, closes));
    let child = begin_in_child(|| {
        let (db, closes) = held.take().expect("held");
        drop(closes);
        closed.read_to_end(&mut Vec::new()).expect("the parent has closed");
        let own = Db::open(options(folder.path(), IoMode::Auto)).expect("it is free");
        commit(&own, 31..=40);
        refused(db.session(SessionOptions::new()));
        own.close().expect("closed");
        drop(db);
    });
    let (db, closes) = held.take().expect("held");
    commit(&db, 21..=30);
    db.close().expect("closed");
    drop(closes);
    assert_eq!(child.verdict(), "", "found in the child");
    has_commits(folder.path(), 40);
}

/// The load's items come from a caller's code, which may fork.
#[test]
fn a_load_that_a_fork_comes_into_ends_in_the_child() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let db = Db::open(options(folder.path(), IoMode::Auto)).expect("created");
    let mut forked = None;
    let pairs = (1..=20_000).map(|id| {
        if id == 10_000 {
            forked = Some(fork());
        }
        (key(id), Value::from(&id.to_le_bytes()))
    });
    let loaded = db.bulk_load(pairs, &LoadOptions::new());
    match forked.expect("half-way") {
        (None, tells) => end(catch_unwind(AssertUnwindSafe(|| refused(loaded))), tells),
        (Some(child), tells) => {
            drop(tells);
            assert_eq!(child.verdict(), "", "found in the child");
        }
    }
    loaded.expect("loaded");
    db.close().expect("closed");
    let db = Db::open(options(folder.path(), IoMode::Auto)).expect("it opens");
    assert_eq!(session(&db).iter(..).flatten().count(), 20_000);
}

/// What was printed by a program without standard streams landed in the log.
#[test]
fn no_file_of_a_database_has_the_number_of_a_standard_stream() {
    let _alone = alone();
    for io in [IoMode::Auto, IoMode::Blocking] {
        let folder = tempfile::tempdir().expect("a folder");
        in_child(|| {
            // SAFETY: what uses these descriptors in the child is what is tested here.
            (0..3).for_each(|stream| assert_eq!(unsafe { libc::close(stream) }, 0));
            let options = options(folder.path(), io).durability(Durability::None).direct(false);
            let print = || {
                for stream in 0..3 {
                    // SAFETY: the text lives as long as the call.
                    let printed = unsafe { libc::write(stream, b"printed\n".as_ptr().cast(), 8) };
                    assert_eq!(printed, -1, "descriptor {stream} is taken");
                }
            };
            let db = Db::open(options).expect("created");
            for number in 1..=300 {
                commit(&db, number..=number);
                print();
            }
            db.drain(0).expect("flushed");
            session(&db).read_many(&(1..=300).map(key).collect::<Vec<_>>()).expect("read");
            print();
            drop(db);
        });
        has_commits(folder.path(), 300);
    }
}

/// The lock is the file's, which a child has open, too.
#[test]
fn a_child_that_outlives_a_killed_parent_keeps_the_folder_locked() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (mut over, ends) = std::io::pipe().expect("a pipe");
    let parent = match fork() {
        (Some(parent), _) => parent,
        (None, tells) => {
            let db = Db::open(options(folder.path(), IoMode::Auto)).expect("created");
            commit(&db, 1..=20);
            if let (None, inner) = fork() {
                drop((tells, inner, ends));
                let _ = over.read_to_end(&mut Vec::new());
                std::process::exit(0);
            }
            // SAFETY: ends this process, which is the test's child.
            unsafe { libc::raise(libc::SIGKILL) };
            unreachable!("killed");
        }
    };
    let pid = parent.id();
    assert!(parent.verdict().contains("status 0x9"), "killed");
    let error = Db::open(options(folder.path(), IoMode::Auto)).expect_err("the child lives");
    assert!(
        matches!(error, Error::Io(IoError::Locked { holder: LockHolder::Ended(it), .. }) if it == pid),
        "{error}"
    );
    drop((ends, over));
    has_commits(folder.path(), 20);
}
