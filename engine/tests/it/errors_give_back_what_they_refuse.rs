//! `Full` said "free some space and try again", and the block was gone; a key named twice cost the
//! session with all that it had prefetched. What can be tried again comes back with the error now,
//! as it was before.

use std::sync::mpsc;
use std::time::Duration;

use pleach::{
    Access, CommitError, Db, Error, FinishError, Geometry, MAX_VALUE, Options, Session,
    SessionOptions, Value,
};
use pleach_io::Operation;
use pleach_io::sim::{Fault, FaultRepeats, FaultRule, Quota, SimDisk};

use crate::common::{Keys, Model, Rng, batch, bytes, key};
use crate::crash::{Setup, SimDb, unrecorded};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn setup() -> Setup {
    Setup {
        seed: 1,
        keys: Keys::Uniform,
        ids: 40,
        flush_at: 2,
        durability: pleach::Durability::Commit,
        cache_kib: 512,
        keeps_lines: true,
        checkpoint_regions: 256,
        history: 0,
        history_bytes: 64 << 20,
    }
}

type SimFinishError = FinishError;
type SimSession = Session;

fn session(db: &SimDb) -> SimSession {
    db.session(SessionOptions::new()).expect("a session")
}

/// A value of each length that travels in its own way.
fn values(rng: &mut Rng, ids: std::ops::Range<u64>) -> Vec<Access> {
    let lens = [8, 30, 5_000, 70_000, 100_000];
    ids.zip(lens.into_iter().cycle())
        .map(|(id, len)| match id % 7 {
            6 => Access::read(key(Keys::Uniform, id)),
            5 => Access::write(key(Keys::Uniform, id), None),
            _ => Access::read_write(key(Keys::Uniform, id), Some(bytes(rng, len))),
        })
        .collect()
}

/// The second finish gives what a first one would have given.
fn finishes_as_a_fresh_one(db: &SimDb, session: SimSession, accesses: Vec<Access>) {
    let mut expected = self::session(db).finish(accesses.clone()).expect("finished");
    let mut block = session.finish(accesses).expect("finished");
    assert_eq!(block.root(), expected.root());
    let [witness, expected] = [&mut block, &mut expected].map(pleach::Block::take_witness);
    assert_eq!(witness.as_deref(), expected.as_deref());
}

#[test]
fn a_refused_batch_gives_back_session_and_accesses() {
    let setup = setup();
    let (db, _runtime) = setup.open(&SimDisk::new(1, unrecorded()), 1).expect("no faults");
    let mut rng = Rng::new(1);
    let first = values(&mut rng, 0..20);
    session(&db).finish(first).expect("finished").commit().expect("committed");
    let good = values(&mut rng, 10..30);
    // Each stands in the middle of the batch, so that some accesses were taken before it.
    let twice = Access::read(key(Keys::Uniform, 17));
    let elsewhere = Access { namespace: 3, ..Access::read(key(Keys::Uniform, 100)) };
    let long = Access::write(key(Keys::Uniform, 101), Some(Value::from(vec![1; MAX_VALUE + 1])));
    for bad in [twice, elsewhere, long] {
        let mut accesses = good.clone();
        accesses.insert(9, bad);
        let held = session(&db);
        let keys: Vec<_> = good.iter().map(|access| access.key).collect();
        held.prefetch(&keys);
        let (root, read) = (held.root(), held.read(&keys[0]).expect("reads"));
        let error = held.finish(accesses.clone()).expect_err("refused");
        assert_eq!(error.accesses(), accesses);
        assert!(error.session().root() == root);
        assert_eq!(error.to_string(), error.error().to_string());
        let (held, given, error) = error.into_parts();
        let known = matches!(
            error,
            Error::RepeatedKey(_) | Error::Namespace(3) | Error::ValueTooLarge { .. }
        );
        assert!(known, "{error}");
        assert_eq!(given, accesses, "as they were given");
        assert_eq!(held.read(&keys[0]).expect("reads on"), read);
        // Corrected, it is finished by the same session.
        accesses.remove(9);
        finishes_as_a_fresh_one(&db, held, accesses);
    }
    assert_eq!(db.open_handles(), pleach::status::OpenHandles::default());
}

#[test]
fn a_failed_read_gives_back_session_and_accesses() {
    let setup = setup();
    let mut refused = 0;
    for nth in 1..6 {
        let disk = SimDisk::new(nth, unrecorded());
        let (db, _runtime) = setup.open(&disk, 1).expect("no faults");
        let mut rng = Rng::new(nth);
        // Enough for a few hundred pages, so that most of what a finish needs is not here.
        for round in 0..8 {
            let many = (250 * round..250 * (round + 1))
                .map(|id| Access::write(key(Keys::Uniform, id), Some(bytes(&mut rng, 500))));
            session(&db)
                .finish(many.collect::<Vec<_>>())
                .expect("finished")
                .commit()
                .expect("committed");
        }
        db.drain(0).expect("room");
        db.close().expect("closed");
        let (db, _runtime) = setup.open(&disk, 2).expect("no faults");
        // A session that looks back, too: its undo stays with it.
        let old = session(&db);
        let over = values(&mut rng, 3..9);
        session(&db).finish(over).expect("finished").commit().expect("committed");
        for held in [session(&db), old] {
            disk.inject(FaultRule::nth(
                Operation::Read,
                "leaf",
                nth,
                FaultRepeats::Once,
                Fault::Errno(EIO),
            ));
            let accesses = values(&mut rng, 0..40);
            let (root, before) = (held.root(), accesses.clone());
            match held.finish(accesses) {
                Ok(block) => assert_eq!(block.prev_root(), root),
                Err(error) => {
                    refused += 1;
                    let (held, accesses, error) = error.into_parts();
                    assert!(matches!(error, Error::Io(_)) && !error.is_full(), "{error}");
                    assert_eq!(accesses, before);
                    assert_eq!(held.root(), root);
                    let again = held.finish(accesses).expect("the device reads again");
                    assert_eq!(again.prev_root(), root);
                    if root == db.root() {
                        finishes_as_a_fresh_one(&db, session(&db), before);
                    }
                }
            }
        }
        assert!(!db.is_poisoned(), "a read harms nobody");
    }
    assert!(refused > 2, "{refused} finishes met the fault");
}

/// At each size of what is left of a device: a commit that does not fit is tried again with the
/// same block. One with values of its own in the overflow file named runs there that the first
/// try had given back.
#[test]
fn a_block_that_found_no_room_commits_when_there_is_some() {
    let setup = setup();
    let mut refused = 0;
    for room in (0..160).step_by(4) {
        let disk = SimDisk::new(room, unrecorded());
        let (db, runtime) = setup.open(&disk, 1).expect("no faults");
        let mut rng = Rng::new(room);
        let mut model = Model::default();
        let first = values(&mut rng, 0..20);
        model.apply(&first);
        session(&db).finish(first).expect("finished").commit().expect("committed");

        let second = values(&mut rng, 10..40);
        let mut block = session(&db).finish(second.clone()).expect("finished");
        // On every other device the block stands on an overlay, and is merged with it.
        if room % 8 == 0 {
            model.apply(&second);
            let overlay = block.into_overlay();
            let third = values(&mut rng, 20..30);
            let over = db.session(SessionOptions::new().over(&overlay)).expect("a session");
            block = over.finish(third.clone()).expect("finished");
            model.apply(&third);
        } else {
            model.apply(&second);
        }
        block.set_blob(vec![7]).expect("short");
        let root = block.root();
        disk.set_quota(Some(Quota { bytes: disk.used() + room * 4096, code: ENOSPC }));
        let mut given = Some(block);
        for _ in 0..3 {
            let Some(block) = given.take() else { break };
            let (block, error) = match block.commit() {
                Ok(_) => break,
                Err(error) => error.into_parts(),
            };
            refused += 1;
            assert!(matches!(error, Error::Full(_)) && error.is_full(), "{error}");
            assert!(!db.is_poisoned() && db.commit_number() == 1);
            assert_eq!(block.root(), root);
            given = Some(block);
            runtime.step_some(5);
        }
        disk.set_quota(None);
        if let Some(mut block) = given {
            assert!(block.take_witness().is_some(), "nobody took it");
            // Others take the room that the refused tries gave back.
            assert_eq!(block.commit().expect("there is room"), 2);
        }
        assert_eq!((db.root(), db.blob()), (root, vec![7]));
        let after = values(&mut rng, 40..50);
        model.apply(&after);
        session(&db).finish(after).expect("finished").commit().expect("committed");
        let expect = |db: &SimDb, when: &str| {
            let session = session(db);
            for id in 0..50 {
                let key = key(Keys::Uniform, id);
                let found = session.read(&key).unwrap_or_else(|error| panic!("{when}: {error}"));
                assert!(found.as_ref() == model.values.get(&key), "room {room}, {when}, {id}");
            }
        };
        expect(&db, "in memory");
        drop(db);
        let (db, _runtime) = setup.open(&disk, 2).expect("opens");
        expect(&db, "from the log");
        db.drain(0).expect("room");
        db.close().expect("closed");
        let (db, _runtime) = setup.open(&disk, 3).expect("opens");
        expect(&db, "from pages");
    }
    assert!(refused > 20, "{refused} refusals");
}

#[test]
fn a_stale_or_poisoned_block_comes_back_too() {
    let setup = setup();
    let disk = SimDisk::new(1, unrecorded());
    let (db, _runtime) = setup.open(&disk, 1).expect("no faults");
    let mut rng = Rng::new(1);
    let [one, two] = [0, 1].map(|_| {
        let accesses = batch(&mut rng, Keys::Uniform, 40, 30);
        session(&db).finish(accesses).expect("finished")
    });
    one.commit().expect("committed");
    let root = two.root();
    let mut two = match two.commit().map_err(CommitError::into_parts) {
        Err((block, Error::StaleParent { base: 0, tip: 1 })) => block,
        other => panic!("{other:?}"),
    };
    assert!(two.root() == root && two.take_witness().is_some());
    // It is still a state to stand on.
    let stale = two.into_overlay();
    let over = db.session(SessionOptions::new().over(&stale)).expect("a session");
    assert_eq!(over.root(), root);

    disk.inject(FaultRule::nth(Operation::Write, "log-", 1, FaultRepeats::Once, Fault::Errno(EIO)));
    let block = session(&db).finish(values(&mut rng, 0..5)).expect("finished");
    let error = block.commit().expect_err("the device failed");
    assert!(db.is_poisoned());
    let error = error.into_block().commit().expect_err("poisoned");
    assert!(error.error().is_poisoned(), "{error}");
}

/// By `?` a caller that wants the reason alone gets it, as before there was more.
#[test]
fn errors_turn_into_their_reason() {
    fn run(db: &SimDb, accesses: Vec<Access>) -> pleach::Result<u64> {
        Ok(db.session(SessionOptions::new())?.finish(accesses)?.commit()?)
    }
    fn boxed(
        db: &SimDb,
        accesses: Vec<Access>,
    ) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        Ok(db.session(SessionOptions::new())?.finish(accesses)?.commit()?)
    }
    let (db, _runtime) = setup().open(&SimDisk::new(1, unrecorded()), 1).expect("no faults");
    let put = Access::write([1; 32], None);
    assert_eq!(run(&db, vec![put.clone()]).expect("committed"), 1);
    assert_eq!(boxed(&db, vec![put.clone()]).expect("committed"), 2);
    let twice = vec![put.clone(), put];
    assert!(matches!(run(&db, twice.clone()), Err(Error::RepeatedKey(_))));
    let error = boxed(&db, twice).expect_err("refused");
    let failed = error.downcast_ref::<SimFinishError>().expect("its own type");
    assert!(format!("{failed:?}").contains("is in the batch twice"), "{failed:?}");
    assert!(size_of::<SimFinishError>() <= 8, "a result stays small");
}

/// A commit that waited for room while the database was dropped or closed waited for ever: nobody
/// woke it. The stale blocks here ask for room again and again, so that some ask in that moment.
#[test]
fn commits_that_wait_for_room_are_told_of_the_close() {
    for closes in [false, true] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let geometry = Geometry { segment_pages: 64, log_segment: 1 << 20, ..Geometry::default() };
        let options = Options::new(folder.path()).create(true).threads(2).cache_mib(8);
        let db = Db::open(options.geometry(geometry)).expect("opened");
        db.pause_background();
        let session = || db.session(SessionOptions::new().witness(false)).expect("a session");
        let stale: Vec<_> = (0..4)
            .map(|id| session().finish(vec![Access::write([id; 32], None)]).expect("finished"))
            .collect();
        // More changes than may be buffered: the next commit waits, unless the background is held.
        let full = (0..4000)
            .map(|id| Access::write(key(Keys::Uniform, id), Some(Value::from(vec![1; 900]))));
        session().finish(full.collect::<Vec<_>>()).expect("finished").commit().expect("committed");
        let (tell, told) = mpsc::channel();
        for mut block in stale {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let end = loop {
                    match block.commit().map_err(CommitError::into_parts) {
                        Err((given, Error::StaleParent { .. })) => block = given,
                        Err((_, error)) => break error,
                        Ok(number) => panic!("a stale block became commit {number}"),
                    }
                };
                tell.send(end).expect("somebody listens");
            });
        }
        std::thread::sleep(Duration::from_millis(20));
        if closes {
            let closed = db.close();
            assert!(closed.is_ok(), "{closed:?}");
        } else {
            drop(db);
        }
        for _ in 0..4 {
            let end = told.recv_timeout(Duration::from_secs(30)).expect("it came to its end");
            assert!(matches!(end, Error::Closed), "{end}");
        }
    }
}

/// A block that was given back can come again: while it has no chance, its long values are not written.
#[test]
fn a_stale_block_writes_no_long_values() {
    let setup = setup();
    let disk = SimDisk::new(setup.seed, unrecorded());
    let (db, _runtime) = setup.open(&disk, 1).expect("created");
    let put = |id, len| vec![Access::write(setup.key(id), Some(Value::from(vec![1; len])))];
    let block = session(&db).finish(put(1, 100_000)).expect("finished");
    session(&db).finish(put(2, 10)).expect("finished").commit().expect("committed");
    for operation in [Operation::Write, Operation::Allocate] {
        disk.inject(FaultRule::nth(
            operation,
            "overflow",
            1,
            FaultRepeats::Forever,
            Fault::Errno(EIO),
        ));
    }
    let refused = block.commit().map_err(CommitError::into_error);
    assert!(matches!(refused, Err(Error::StaleParent { base: 0, tip: 1 })), "{refused:?}");
    assert!(!db.is_poisoned());
    disk.heal();
    db.close().expect("closed");
}
