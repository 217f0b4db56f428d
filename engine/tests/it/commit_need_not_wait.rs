//! A commit without [`CommitOptions::wait`] gives an error where it would have to wait for another commit or for room, and can be
//! tried again.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use pleach::{Access, Advice, Block, CommitOptions, Db, Error, Geometry, Options, Outcome};
use pleach::{Overlay, SessionOptions, Value};
use pleach_io::sim::SimDisk;

use crate::common::held_device::{Gate, Held, NEVER, Patient};
use crate::common::uniform;
use crate::crash::unrecorded;

fn options() -> Options {
    Options::new("sim").create(true).cache_mib(8).geometry(Geometry::small())
}

fn open(options: Options) -> (Db, Arc<Gate>) {
    let (device, gate) = Held::new(SimDisk::new(1, unrecorded()));
    let db = Db::open_on(device, Patient::new(2, &gate), options).expect("opened");
    db.pause_background();
    (db, gate)
}

fn block(db: &Db, over: Option<&Overlay>, ids: std::ops::Range<u64>, bytes: usize) -> Block {
    let options = SessionOptions::new();
    let options = over.map_or(options.clone(), |parent| options.over(parent));
    let value = Value::from(vec![7; bytes]);
    let put = |id| Access::write(uniform(id), Some(value.clone()));
    db.session(options).expect("a session").finish(ids.map(put)).expect("finished")
}

const AT_ONCE: fn() -> CommitOptions = || CommitOptions::new().wait(false);

fn would_wait(error: &Error) {
    assert!(matches!(error, Error::WouldWait), "{error}");
    assert_eq!((error.outcome(), error.advice()), (Outcome::DidNotHappen, Advice::Retry));
}

#[test]
fn for_another_commit() {
    let (db, gate) = open(options());
    let parent = block(&db, None, 0..9, 8).into_overlay();
    let above = block(&db, Some(&parent), 9..18, 8);
    let overlay = block(&db, Some(&parent), 20..30, 8).into_overlay();
    gate.hold_syncs();
    let above = thread::scope(|scope| {
        let first = scope.spawn(|| parent.commit());
        let end = Instant::now() + NEVER;
        while db.metrics().commits_in_flight < 1 {
            assert!(Instant::now() < end);
            thread::sleep(Duration::from_millis(1));
        }
        // One that waits all the same ends, late and with success.
        let (ended, watched) = mpsc::channel::<()>();
        let gate = &gate;
        scope.spawn(move || {
            if watched.recv_timeout(Duration::from_secs(10)) == Err(RecvTimeoutError::Timeout) {
                gate.let_sync(false);
            }
        });
        let (above, error) = above.commit_with(AT_ONCE()).expect_err("in flight").into_parts();
        would_wait(&error);
        would_wait(&overlay.commit_with(AT_ONCE()).expect_err("in flight"));
        // The same overlay, whose commit is another thread's.
        would_wait(&parent.commit_with(AT_ONCE()).expect_err("in flight"));
        drop(ended);
        gate.let_sync(false);
        assert_eq!(first.join().expect("no panic").expect("committed"), 1);
        above
    });
    assert_eq!(parent.commit_with(AT_ONCE()).expect("committed"), 1);
    assert_eq!(above.commit_with(AT_ONCE()).expect("nobody is at it"), 2);
    let stale = overlay.commit_with(AT_ONCE()).expect_err("the state is another");
    assert!(matches!(stale, Error::StaleParent { .. }), "{stale}");
}

#[test]
fn for_room() {
    let (db, _gate) = open(options());
    let mut committed = 0;
    let (refused, error) = loop {
        let ids = committed * 500..(committed + 1) * 500;
        match block(&db, None, ids, 500).commit_with(AT_ONCE()) {
            Ok(number) => committed = number,
            Err(failed) => break failed.into_parts(),
        }
        assert!(committed < 1000, "nothing is flushed, so pending changes fill memory");
    };
    would_wait(&error);
    assert!(committed > 0);
    db.resume_background();
    assert_eq!(refused.commit().expect("it waits for room"), committed + 1);
}

/// Buffered changes have a quarter of the budget, however much log there may be.
#[test]
fn for_buffered_changes_to_be_flushed() {
    let (db, _gate) = open(options().log_limit_bytes(32 << 20));
    let mut committed = 0;
    let (refused, error) = loop {
        let ids = committed * 500..(committed + 1) * 500;
        match block(&db, None, ids, 500).commit_with(AT_ONCE()) {
            Ok(number) => committed = number,
            Err(failed) => break failed.into_parts(),
        }
        assert!(committed < 16, "{} bytes are buffered", db.metrics().pending_bytes);
    };
    would_wait(&error);
    let buffered = db.metrics().pending_bytes;
    assert!(buffered > 2 << 20, "{buffered} bytes are buffered");
    db.drain(0).expect("flushed");
    assert_eq!(refused.commit_with(AT_ONCE()).expect("there is room"), committed + 1);
}
