//! A read that does not block: it gives what a blocking one gives, a page that many wait for is read once, and it comes to an
//! end whatever becomes of the ring, the task, the database and the hasher.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pleach::load::LoadOptions;
use pleach::{Access, Db, Error, Options, Session, SessionOptions, Value};
use pleach_core::{Hasher, Key};
use pleach_io::sim::{Fault, FaultRepeats, FaultRule, SimDisk, SimRuntime, code};
use pleach_io::{IoError, Operation};

use crate::common::held_device::{Held, Mishap, NEVER, Patient};
use crate::common::{commit, uniform};
use crate::crash::unrecorded;

const KEYS: u64 = 12_000;

type Read<'a> = Pin<Box<dyn Future<Output = pleach::Result<Option<Value>>> + Send + 'a>>;

fn poll<T>(read: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    read.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls until it is done, on real threads.
fn wait<T>(read: impl Future<Output = T>) -> T {
    let (mut read, end) = (pin!(read), Instant::now() + NEVER);
    loop {
        if let Poll::Ready(done) = poll(read.as_mut()) {
            return done;
        }
        assert!(Instant::now() < end, "nobody reads the page");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Short values, and every fiftieth a long one.
fn value(id: u64) -> Value {
    let len = if id.is_multiple_of(50) { 3000 } else { 8 + id % 60 };
    Value::from(id.to_le_bytes().repeat(400)[..usize::try_from(len).expect("small")].to_vec())
}

fn options() -> Options {
    Options::new("sim")
        .create(true)
        .cache_mib(64)
        .threads(2)
        .in_flight(64)
        .tune(|tuning| tuning.flush_at = 255)
        .small()
}

/// A loaded database that was closed.
fn loaded() -> SimDisk {
    let disk = SimDisk::new(1, unrecorded());
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let db = Db::open_on(disk.clone(), runtime, options()).expect("created");
    let pairs = (0..KEYS).map(|id| (uniform(id), value(id)));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    db.close().expect("closed");
    disk
}

fn session(db: &Db) -> Session {
    db.session(SessionOptions::new()).expect("a session")
}

#[test]
fn it_is_pending_until_the_page_is_there_and_a_page_is_read_once_for_all() {
    let (device, gate) = Held::new(loaded());
    let db = Db::open_on(device, Patient::new(2, &gate), options()).expect("opened");
    let session = session(&db);
    let keys: Vec<Key> = (0..KEYS).map(uniform).collect();
    gate.close();
    let mut reads: Vec<Read<'_>> = Vec::new();
    for key in &keys {
        reads.push(Box::pin(session.read_async(*key)));
    }
    // Not one of them is done, and none of them blocks this thread.
    assert!(reads.iter_mut().all(|read| poll(read.as_mut()).is_pending()));
    gate.until_stuck(1);
    // What is dropped needs no answer.
    reads.truncate(10_000);
    gate.open();
    for (id, read) in (0..).zip(reads) {
        assert_eq!(wait(read).expect("read"), Some(value(id)), "key {id}");
    }
    let read_twice =
        gate.reads().into_iter().filter(|((file, _), count)| file == "leaf" && *count > 1);
    assert_eq!(read_twice.count(), 0);
    // And what is in memory comes at once.
    let (cached, absent) = (uniform(7), uniform(KEYS + 7));
    let now = |key: &Key| poll(pin!(session.read_async(*key)));
    assert!(matches!(now(&cached), Poll::Ready(Ok(Some(found))) if found == value(7)));
    let absent = wait(session.read_async(absent));
    assert_eq!(absent.expect("read"), None);
    drop(session);
    gate.let_write();
    db.close().expect("closed");
}

/// Tasks of an executor read while another thread commits, flushes and rolls back; the cache is small.
#[test]
fn tasks_of_an_executor_read_the_state_of_their_session() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path())
        .create(true)
        .cache_mib(16)
        .in_flight(16)
        .history(4)
        .tune(|tuning| tuning.flush_at = 1)
        .small();
    let db = Db::open(options).expect("created");
    db.bulk_load((0..KEYS).map(|id| (uniform(id), value(id))), &LoadOptions::new())
        .expect("loaded");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
    let runtime = runtime.expect("a runtime");
    let mut base = 0;
    for round in 1..=6_u64 {
        let overlaid = Access::write(uniform(3), Some(value(base + 1)));
        let below = session(&db);
        let overlay = session(&db).finish([overlaid]).expect("finished").into_overlay();
        let over = db.session(SessionOptions::new().over(&overlay)).expect("a session");
        let (below, over) = (Arc::new(below), Arc::new(over));
        let reading: Vec<_> = (0..800)
            .map(|task| {
                let (below, over) = (Arc::clone(&below), Arc::clone(&over));
                runtime.spawn(async move {
                    for step in 0..8 {
                        let id = (task * 997 + step * 3571) % KEYS;
                        let expected = (base == 0 || !id.is_multiple_of(3)).then(|| value(id));
                        assert_eq!(below.read_async(uniform(id)).await.expect("read"), expected);
                        let at = over.read_async(uniform(3)).await.expect("read");
                        assert_eq!(at, Some(value(base + 1)));
                    }
                })
            })
            .collect();
        // Every third key goes, comes back, and goes again, with all its pages.
        let write = |id| Access::write(uniform(id), round.is_multiple_of(2).then(|| value(id)));
        commit(&db, (0..KEYS).step_by(3).map(write).collect());
        db.drain(0).expect("flushed");
        for task in reading {
            runtime.block_on(task).expect("no panic");
        }
        base = round % 2;
    }
    drop(runtime);
    db.close().expect("closed");
}

#[test]
fn a_page_that_cannot_be_read_is_the_readers_error() {
    let disk = loaded();
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let db = Db::open_on(disk.clone(), runtime.clone(), options()).expect("opened");
    let session = session(&db);
    let read = |key: &Key| {
        let mut read = pin!(session.read_async(*key));
        for _ in 0..10_000 {
            if let Poll::Ready(read) = poll(read.as_mut()) {
                return read;
            }
            if runtime.step_some(1) == 0 {
                runtime.clock().advance(Duration::from_millis(1));
            }
        }
        panic!("nobody reads the page");
    };
    let fails = |operation, file| {
        let rule =
            FaultRule::nth(operation, file, 1, FaultRepeats::Forever, Fault::Errno(code::EIO));
        disk.inject(rule);
    };
    // No ring can be made: the thread reads by itself, and so does the next while the task rests.
    fails(Operation::SetUpRing, "");
    for id in [1, 50] {
        assert_eq!(read(&uniform(id)).expect("read"), Some(value(id)));
    }
    disk.heal();
    runtime.clock().advance(Duration::from_secs(60));
    assert_eq!(read(&uniform(1000)).expect("read"), Some(value(1000)));
    for file in ["leaf", "overflow"] {
        fails(Operation::Read, file);
        let error = read(&uniform(if file == "leaf" { 2001 } else { 1050 })).expect_err("no page");
        let Error::Io(IoError::Os { file: named, operation: Operation::Read, .. }) = &error else {
            panic!("{error}");
        };
        assert_eq!(named, file);
        disk.heal();
    }
    assert_eq!(read(&uniform(2001)).expect("read"), Some(value(2001)));
    assert_eq!(read(&uniform(1050)).expect("read"), Some(value(1050)));
    drop(session);
    db.close().expect("closed");
}

/// The task read a long value in one go: all other reads waited for its last byte.
#[test]
fn other_reads_are_answered_between_the_pieces_of_a_long_value() {
    let disk = loaded();
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let open = || Db::open_on(disk.clone(), runtime.clone(), options()).expect("opened");
    let (long, bytes) = (uniform(KEYS), Value::from(b"long".repeat(1 << 20)));
    let db = open();
    commit(&db, vec![Access::write(long, Some(bytes.clone()))]);
    db.close().expect("closed");
    let db = open();
    let session = session(&db);
    let mut slow = pin!(session.read_async(long));
    assert!(poll(slow.as_mut()).is_pending());
    for others in 0..40 {
        let id = 1001 + 100 * others;
        let mut other = pin!(session.read_async(uniform(id)));
        let mut steps = 0;
        while poll(other.as_mut()).is_pending() {
            assert!(steps < 100, "nobody reads the page");
            (_, steps) = (runtime.step_some(1), steps + 1);
        }
        if let Poll::Ready(found) = poll(slow.as_mut()) {
            assert_eq!(found.expect("read"), Some(bytes));
            assert!(others >= 4, "the value has five pieces, and {others} others were answered");
            return;
        }
    }
    panic!("nobody reads the long value");
}

#[test]
fn it_ends_when_the_database_is_closed_or_the_task_panics() {
    for panics in [false, true] {
        let (device, gate) = Held::new(loaded());
        let db = Db::open_on(device, Patient::new(2, &gate), options()).expect("opened");
        let session = session(&db);
        let keys: Vec<Key> = (0..500).map(uniform).collect();
        gate.close();
        let mut reads: Vec<Read<'_>> = Vec::new();
        for key in &keys {
            reads.push(Box::pin(session.read_async(*key)));
        }
        assert!(reads.iter_mut().all(|read| poll(read.as_mut()).is_pending()));
        gate.until_stuck(1);
        if panics {
            gate.mishap(Mishap::Panics);
        }
        gate.let_write();
        let closing = std::thread::spawn(move || db.close());
        gate.open();
        for (id, read) in (0..).zip(reads) {
            assert_eq!(wait(read).expect("read"), Some(value(id)), "key {id}");
        }
        assert_eq!(closing.join().expect("no panic").is_err(), panics);
        // Nobody is there to read for it.
        let late = uniform(KEYS - 1);
        let late = poll(pin!(session.read_async(late)));
        assert!(matches!(late, Poll::Ready(Ok(Some(found))) if found == value(KEYS - 1)));
    }
}

/// The executor that would run the task has gone.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the executor has gone");
    }
}

/// A waker is the application's. One that panicked ended the prefetch task, whose destructor woke the other readers: the process
/// was aborted, or the folder stayed locked.
#[test]
fn a_waker_that_panics_harms_nobody() {
    let panics = Waker::from(Arc::new(Panics));
    for ring_fails in [false, true] {
        let (device, gate) = Held::new(loaded());
        let db = Db::open_on(device, Patient::new(2, &gate), options()).expect("opened");
        let session = session(&db);
        // Long values, too: the task sends these itself.
        let keys: Vec<Key> = (0..500).map(uniform).collect();
        gate.close();
        let mut reads: Vec<Read<'_>> = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            reads.push(Box::pin(session.read_async(*key)));
            let waker = if at % 2 == 0 { &panics } else { Waker::noop() };
            assert!(reads[at].as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        }
        gate.until_stuck(1);
        if ring_fails {
            // All readers hear that they have to read their pages themselves.
            gate.mishap(Mishap::Fails);
        }
        gate.let_write();
        gate.open();
        for (id, read) in (0..).zip(reads) {
            assert_eq!(wait(read).expect("read"), Some(value(id)), "key {id}");
        }
        drop(session);
        db.close().expect("no task has panicked");
    }
}

static ARMED: AtomicBool = AtomicBool::new(false);

fn touchy(message: &[u8]) -> [u8; 32] {
    assert!(!ARMED.load(Ordering::SeqCst), "armed");
    Hasher::BLAKE3.hash(message)
}

#[test]
fn a_hasher_that_panics_does_so_on_the_readers_thread() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path())
        .create(true)
        .cache_mib(16)
        .in_flight(16)
        .tune(|tuning| tuning.flush_at = 1)
        .small();
    let db = Db::open(options.hasher(Hasher::new("touchy", touchy))).expect("created");
    commit(&db, vec![Access::write(uniform(50), Some(value(50)))]);
    db.drain(0).expect("flushed");
    let session = session(&db);
    ARMED.store(true, Ordering::SeqCst);
    let key = uniform(50);
    let panicked = catch_unwind(AssertUnwindSafe(|| wait(session.read_async(key))));
    ARMED.store(false, Ordering::SeqCst);
    assert!(panicked.is_err(), "the panic reaches the reader");
    assert_eq!(wait(session.read_async(key)).expect("read"), Some(value(50)));
    drop(session);
    db.close().expect("the task goes on");
}
