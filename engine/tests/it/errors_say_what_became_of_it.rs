//! An error said that the device had failed, and nobody knew whether the commit was there. Now each
//! says what became of its operation. Here every device operation of every public operation fails, and
//! what the error says is held against what a reopened database has: at once, and after a power failure.

use std::collections::BTreeMap;
use std::time::Duration;

use pleach::load::LoadOptions;
use pleach::{Access, Advice, Error, Outcome, SessionOptions, Value};
use pleach_core::{Key, Node};
use pleach_io::sim::{
    Aftermath, Fault, FaultRepeats, FaultRule, Image, SimDisk, SimOptions, SimRuntime, code,
};

use crate::common::{Keys, Rng, bytes, cases};
use crate::crash::{Setup, SimDb, unrecorded};

fn setup() -> Setup {
    Setup { keys: Keys::Uniform, ids: 60, flush_at: 2, cache_kib: 512, ..Setup::draw(1) }
}

/// Every operation that gives an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Op {
    Create,
    Open,
    Read,
    ReadMany,
    Finish,
    Commit,
    CommitLong,
    CommitOnOverlay,
    OverlayCommit,
    Drain,
    Close,
    CloseUnderSession,
    Load,
    Stat,
    Check,
    Reader,
    Explain,
}

const OPS: [Op; 17] = [
    Op::Create,
    Op::Open,
    Op::Read,
    Op::ReadMany,
    Op::Finish,
    Op::Commit,
    Op::CommitLong,
    Op::CommitOnOverlay,
    Op::OverlayCommit,
    Op::Drain,
    Op::Close,
    Op::CloseUnderSession,
    Op::Load,
    Op::Stat,
    Op::Check,
    Op::Reader,
    Op::Explain,
];

impl Op {
    /// True when the operation leads from one state to the next.
    fn changes_the_state(self) -> bool {
        let commits = [Op::Commit, Op::CommitLong, Op::CommitOnOverlay, Op::OverlayCommit];
        commits.contains(&self) || self == Op::Load
    }
}

type Again = Box<dyn FnOnce() -> Result<(), Error>>;

/// What an operation gave, and how to do it again with what the error left.
struct Attempt {
    result: Result<(), Error>,
    again: Option<Again>,
}

impl Attempt {
    fn of(result: Result<(), Error>, again: impl FnOnce() -> Result<(), Error> + 'static) -> Self {
        Self { result, again: Some(Box::new(again)) }
    }

    fn done() -> Self {
        Self { result: Ok(()), again: None }
    }
}

fn put(setup: &Setup, ids: std::ops::Range<u64>, len: usize) -> Vec<Access> {
    let mut rng = Rng::new(ids.start * 1000 + len as u64);
    ids.map(|id| Access::read_write(setup.key(id), Some(bytes(&mut rng, len)))).collect()
}

fn pairs(setup: &Setup) -> Vec<(Key, Value)> {
    let mut rng = Rng::new(9);
    (0..40).map(|id| (setup.key(id), bytes(&mut rng, if id == 7 { 9_000 } else { 500 }))).collect()
}

/// A database with pages, long values, and a commit that is in the log alone.
fn base(setup: &Setup) -> Image {
    let disk = SimDisk::new(1, unrecorded());
    let (db, _runtime) = setup.open(&disk, 1).expect("created");
    let commit = |db: &SimDb, accesses| {
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(accesses).expect("finished").commit().expect("committed");
    };
    commit(&db, put(setup, 0..40, 900));
    commit(&db, put(setup, 40..44, 9_000));
    db.drain(0).expect("room");
    db.close().expect("closed");
    let (db, _runtime) = setup.open(&disk, 2).expect("opened");
    commit(&db, put(setup, 0..3, 70));
    drop(db);
    disk.image()
}

/// An empty database.
fn empty(setup: &Setup) -> Image {
    let disk = SimDisk::new(2, unrecorded());
    drop(setup.open(&disk, 1).expect("created"));
    disk.image()
}

/// Reads all pairs through an open for reading alone.
fn read_all(disk: &SimDisk, setup: &Setup) -> Result<(), Error> {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let db = SimDb::open_on(disk.clone(), runtime, setup.options().create(false).read_only(true))?;
    db.snapshot()?.iter(..).try_for_each(|pair| pair.map(drop))
}

/// Does the operation; the device is sound until `arm` is called.
fn attempt(op: Op, setup: &Setup, disk: &SimDisk, arm: &mut dyn FnMut()) -> Attempt {
    if matches!(op, Op::Create | Op::Open) {
        arm();
        let (disk, setup) = (disk.clone(), setup.clone());
        return match setup.open(&disk, 3) {
            Ok(_) => Attempt::done(),
            Err(error) => Attempt::of(Err(error), move || setup.open(&disk, 4).map(drop)),
        };
    }
    if matches!(op, Op::Stat | Op::Check | Op::Reader | Op::Explain) {
        let (disk, key, setup) = (disk.clone(), setup.key(1), setup.clone());
        let look = move || match op {
            Op::Stat => pleach_ops::stat_on(&disk, None).map(drop),
            Op::Check => pleach_ops::check_on(&disk, pleach_ops::CheckOptions::default()).map(drop),
            Op::Reader => read_all(&disk, &setup),
            _ => pleach_ops::explain_on(&disk, None, 0, &key, true).map(drop),
        };
        arm();
        return Attempt::of(look(), look);
    }
    let (db, runtime) = setup.open(disk, 3).expect("no fault yet");
    let session = || db.session(SessionOptions::new()).expect("a session");
    // More than a segment of the log.
    let new = put(setup, 10..30, 900);
    match op {
        Op::Read | Op::ReadMany => {
            let keys: Vec<Key> = (0..44).map(|id| setup.key(id)).collect();
            let session = session();
            let read = move || match op {
                Op::Read => keys.iter().try_for_each(|key| session.read(key).map(drop)),
                _ => session.read_many(&keys).map(drop),
            };
            arm();
            Attempt::of(read(), read)
        }
        Op::Finish => {
            let session = session();
            arm();
            match session.finish(new) {
                Ok(_) => Attempt::done(),
                Err(error) => {
                    let (session, accesses, error) = error.into_parts();
                    Attempt::of(Err(error), move || {
                        session.finish(accesses).map(drop).map_err(pleach::FinishError::into_error)
                    })
                }
            }
        }
        Op::Commit | Op::CommitLong | Op::CommitOnOverlay => {
            commit_block(op, setup, (db, runtime), arm)
        }
        Op::OverlayCommit => {
            let over = session().finish(new).expect("no fault yet").into_overlay();
            let above = db.session(SessionOptions::new().over(&over)).expect("a session");
            let above = above.finish(put(setup, 15..25, 200)).expect("no fault yet").into_overlay();
            arm();
            let commit = move || {
                let committed = above.commit().map(drop);
                let told = committed.as_ref().is_err_and(Error::is_poisoned);
                assert_eq!(db.is_poisoned(), told, "{committed:?}");
                committed
            };
            Attempt::of(commit(), commit)
        }
        Op::Drain => {
            let block = session().finish(new).expect("no fault yet");
            block.commit().expect("no fault yet");
            // It is part of the state before.
            arm();
            Attempt::of(db.drain(0), move || {
                // The background tries again in its own rhythm.
                runtime.clock().advance(Duration::from_secs(60));
                db.drain(0)
            })
        }
        Op::Close | Op::CloseUnderSession => {
            let reader = (op == Op::CloseUnderSession).then(session);
            let clone = db.clone();
            arm();
            let close = move || {
                let _reader = &reader;
                clone.close().map(drop)
            };
            Attempt::of(close(), close)
        }
        Op::Load => {
            let (pairs, options) = (pairs(setup), LoadOptions::new().memory_mib(1));
            arm();
            let load = move || {
                let _tasks = &runtime;
                db.bulk_load(pairs.iter().cloned(), &options).map(drop)
            };
            Attempt::of(load(), load)
        }
        _ => unreachable!("done above"),
    }
}

fn commit_block(
    op: Op,
    setup: &Setup,
    (db, runtime): (SimDb, SimRuntime),
    arm: &mut dyn FnMut(),
) -> Attempt {
    let session = || db.session(SessionOptions::new()).expect("a session");
    let len = if op == Op::CommitLong { 70_000 } else { 900 };
    let mut block = session().finish(put(setup, 10..30, len)).expect("no fault yet");
    if op == Op::CommitOnOverlay {
        let over = block.into_overlay();
        let session = db.session(SessionOptions::new().over(&over)).expect("a session");
        block = session.finish(put(setup, 15..25, 200)).expect("no fault yet");
    }
    arm();
    match block.commit() {
        Ok(_) => Attempt::done(),
        Err(error) => {
            let (block, error) = error.into_parts();
            assert_eq!(db.is_poisoned(), error.is_poisoned(), "{error:?}");
            // The database lives as long as the block is tried.
            Attempt::of(Err(error), move || {
                let committed = block.commit();
                drop((db, runtime));
                committed.map(drop).map_err(pleach::CommitError::into_error)
            })
        }
    }
}

/// What a reopened database may have: commit number and root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State(u64, Node);

fn state(setup: &Setup, disk: &SimDisk, what: &str) -> (State, bool) {
    let (db, _runtime) =
        setup.open(disk, 5).unwrap_or_else(|error| panic!("{what}: does not open: {error}"));
    (State(db.commit_number(), db.root()), db.opened().closed)
}

/// Where an operation leads, without a fault.
struct Way {
    image: Option<Image>,
    before: State,
    after: State,
}

fn disk_of(image: Option<&Image>, seed: u64, record: bool) -> SimDisk {
    let options = SimOptions { record, ..SimOptions::default() };
    match image {
        Some(image) => SimDisk::from_image_with(image, seed, options),
        None => SimDisk::new(seed, options),
    }
}

fn way(op: Op, setup: &Setup) -> Way {
    let image = match op {
        Op::Create => None,
        Op::Load => Some(empty(setup)),
        _ => Some(base(setup)),
    };
    let at = |disk: &SimDisk| state(setup, disk, &format!("{op:?} without a fault")).0;
    let before = match &image {
        Some(image) => at(&disk_of(Some(image), 1, false)),
        None => State(0, pleach_core::TERMINATOR),
    };
    let disk = disk_of(image.as_ref(), 1, false);
    let done = attempt(op, setup, &disk, &mut || ()).result;
    assert!(done.is_ok(), "{op:?}: {done:?}");
    let after = at(&disk);
    let moved = op.changes_the_state() || op == Op::Drain;
    assert_eq!(after != before, moved, "{op:?}");
    // The commit before a drain is there before.
    let before = if op == Op::Drain { after } else { before };
    Way { image, before, after }
}

/// How often each outcome was told, and what was there then.
type Told = BTreeMap<(Op, String), [u64; 2]>;

/// The `number`th device operation of `op` fails. False when there were not as many.
fn strike(
    op: Op,
    setup: &Setup,
    way: &Way,
    (number, times, fault): (u64, FaultRepeats, Fault),
    told: &mut Told,
) -> bool {
    let what = format!("{op:?}, {fault:?} {times:?} at device operation {number}");
    let disk = disk_of(way.image.as_ref(), number, true);
    let mut from = 0;
    let Attempt { result, again } = attempt(op, setup, &disk, &mut || {
        from = disk.operations();
        disk.inject(FaultRule::at(from + number, times, fault));
    });
    let struck = disk.operations() >= from + number;
    let outcome = result.as_ref().err().map(Error::outcome);
    if let Err(error) = &result {
        describes_itself(error, &what, fault);
    }
    // A process that ends, and then a power failure: with all, none or some of what was not synced.
    let trace = disk.trace();
    let cut = trace.crash_point(trace.len());
    let killed = SimDisk::from_image_with(&disk.image(), 3, unrecorded());
    let mut left = vec![killed];
    left.extend(cut.outcomes(number, 3).map(|outcome| outcome.disk_with(unrecorded())));
    for disk in &left {
        let (found, closed) = state(setup, disk, &what);
        let expected = match outcome {
            None => vec![way.after],
            Some(Outcome::DidNotHappen) => vec![way.before],
            Some(Outcome::Unknown) => vec![way.before, way.after],
        };
        assert!(expected.contains(&found), "{what}: {found:?} after {result:?}");
        let closes = matches!(op, Op::Close | Op::CloseUnderSession);
        if closes && outcome != Some(Outcome::Unknown) {
            assert_eq!(closed, outcome.is_none(), "{what}: {result:?}");
        }
        let there = usize::from(found == way.after && (!closes || closed));
        told.entry((op, format!("{outcome:?}"))).or_default()[there] += 1;
    }
    disk.heal();
    let Err(error) = result else { return struck };
    let again = again.expect("of every operation that failed");
    match error.advice() {
        Advice::Retry | Advice::FreeSpace => {
            let second = again();
            assert!(second.is_ok(), "{what}: {error:?}, and again {second:?}");
            assert_eq!(state(setup, &disk, &what).0, way.after, "{what}: done again");
        }
        advice => {
            assert!(
                !matches!(advice, Advice::FixCall | Advice::MakeAgain),
                "{what}: the call was right: {error:?}"
            );
            drop(again);
            let found = state(setup, &disk, &what).0;
            assert!(found == way.before || found == way.after, "{what}: {found:?}");
        }
    }
    struck
}

/// The error names what the device refused, and is what it says it is.
fn describes_itself(error: &Error, what: &str, fault: Fault) {
    let Some(device) = error.device() else {
        // What was counted, and copies that cannot be read and are damaged for whoever looks.
        let counted = matches!(error, Error::Full(_));
        let damage = error.advice() == Advice::Restore;
        assert!(counted || damage, "{what}: no device error in {error:?}");
        return;
    };
    let file = device.file().unwrap_or_else(|| panic!("{what}: no file in {error:?}"));
    assert!(error.to_string().contains(file), "{what}: {error}");
    assert!(device.offset().is_some(), "{what}: {error:?}");
    let Fault::Errno(injected) = fault else { return };
    assert_eq!(device.code(), Some(injected), "{what}: {error:?}");
    assert_eq!(error.is_full(), injected == code::ENOSPC, "{what}: {error:?}");
}

#[test]
fn what_an_error_says_of_its_operation_is_so() {
    let setup = setup();
    let mut told = Told::new();
    let faults = [
        (FaultRepeats::Once, Fault::Errno(code::EIO)),
        (FaultRepeats::Forever, Fault::Errno(code::EIO)),
        (FaultRepeats::Once, Fault::Errno(code::ENOSPC)),
        (FaultRepeats::Forever, Fault::Errno(code::ENOSPC)),
        (FaultRepeats::Once, Fault::Sync(Aftermath::NewVisible)),
        (FaultRepeats::Forever, Fault::Sync(Aftermath::OldBack)),
    ];
    // A first run has each operation fail in two of the six ways; with more cases it fails in all of them.
    let stride = if cases(1) > 1 { 1 } else { 3 };
    for op in OPS {
        let way = way(op, &setup);
        for ((times, fault), first) in faults.into_iter().zip((1..=stride).cycle()) {
            let mut number = first;
            while strike(op, &setup, &way, (number, times, fault), &mut told) {
                number += stride;
                assert!(number < 2_000, "{op:?} comes to its end");
            }
        }
    }
    let count = |op, outcome: Option<Outcome>| {
        told.get(&(op, format!("{outcome:?}"))).copied().unwrap_or_default()
    };
    for op in OPS {
        let [refused, doubt, done] = [Some(Outcome::DidNotHappen), Some(Outcome::Unknown), None]
            .map(|outcome| count(op, outcome));
        println!("{op:?}: did not happen {refused:?}, unknown {doubt:?}, happened {done:?}");
        // A check reports what it meets as findings.
        assert!(refused.iter().sum::<u64>() > 0 || op == Op::Check, "{op:?} is refused somewhere");
        let doubtful = op.changes_the_state() || matches!(op, Op::Close | Op::CloseUnderSession);
        assert_eq!(doubt.iter().sum::<u64>() > 0, doubtful, "{op:?} in doubt");
        if doubtful {
            assert!(doubt[0] > 0 && doubt[1] > 0, "{op:?}: doubt is doubt: {doubt:?}");
        }
    }
}

/// What is not the device's fault.
#[test]
fn refusals_did_not_happen_and_say_what_to_do() {
    let setup = setup();
    let disk = SimDisk::from_image_with(&base(&setup), 1, unrecorded());
    let (db, _runtime) = setup.open(&disk, 1).expect("opened");
    let session = || db.session(SessionOptions::new()).expect("a session");
    let [one, two] = [0, 1].map(|_| session().finish(put(&setup, 0..4, 20)).expect("finished"));
    let number = one.commit().expect("committed");
    let refused = |error: Error, advice| {
        assert_eq!((error.outcome(), error.advice()), (Outcome::DidNotHappen, advice), "{error}");
        assert!(error.device().is_none() && !error.is_full() && !error.is_poisoned());
        assert_eq!(db.commit_number(), number);
    };
    refused(two.commit().expect_err("stale").into_error(), Advice::MakeAgain);
    let twice = [put(&setup, 0..2, 8), put(&setup, 1..3, 8)].concat();
    refused(session().finish(twice).expect_err("a key twice").into_error(), Advice::FixCall);
    let mut block = session().finish(Vec::new()).expect("finished");
    refused(block.set_blob(vec![0; 17 << 20]).expect_err("too long"), Advice::FixCall);
    drop(block);
    let load = |pairs: &mut dyn Iterator<Item = (Key, Value)>| {
        db.bulk_load(pairs, &LoadOptions::new()).expect_err("not empty")
    };
    let mut pairs = pairs(&setup).into_iter();
    refused(load(&mut pairs), Advice::FixCall);
    assert_eq!(pairs.len(), 40, "nothing was taken");
    let reader = session();
    assert_eq!(db.close().expect("closed").sessions, 1);
    refused(db.close().expect_err("closed"), Advice::Reopen);
    drop(reader);
}
