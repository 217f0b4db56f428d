//! How long the history is and what memory it takes, what is said where it does not reach, and readers of it beside commits.
//! That each of its commits is what it was, whatever comes, is said by `plans_follow_their_models`.

use pleach::status::Holder;
use pleach::{Access, Durability, Error, Hasher, Options, SessionOptions, Value};
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::Keys;
use crate::crash::{Setup, SimDb, unrecorded};

fn small(history: u64) -> (SimDisk, Options) {
    let mut setup = Setup::draw(3);
    (setup.keys, setup.ids, setup.cache_kib) = (Keys::Uniform, 200, 4096);
    setup.history = history;
    (SimDisk::new(3, unrecorded()), setup.options())
}

fn opened(disk: &SimDisk, options: &Options) -> SimDb {
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    SimDb::open_on(disk.clone(), runtime, options.clone()).expect("opened")
}

fn put(db: &SimDb, ids: std::ops::Range<u64>, value: u64) -> u64 {
    let value = Value::from(value.to_be_bytes().as_slice());
    let writes = ids.map(|id| Access::write(crate::common::uniform(id), Some(value.clone())));
    crate::common::commit(db, writes.collect())
}

/// The commit never fails, and no wrong value is read: the reader is told.
#[test]
fn a_reader_whose_undo_takes_too_much_is_told_and_the_commit_goes_on() {
    let (disk, options) = small(0);
    let db = opened(&disk, &options.undo_memory_bytes(64 << 10));
    put(&db, 0..200, 0);
    let options = SessionOptions::new().label("explorer");
    let old = db.session(options).expect("a session");
    let key = crate::common::uniform(7);
    let mut reads = 0;
    let mut newest = 0;
    for value in 1..40 {
        newest = put(&db, 0..200, value);
        match old.read(&key) {
            Ok(found) => {
                assert_eq!(found, Some(Value::from(0_u64.to_be_bytes().as_slice())));
                reads += 1;
                let pins = db.pins();
                let pin = &pins[0];
                assert_eq!((pins.len(), pin.commit, pin.holder), (1, 1, Holder::Session));
                assert_eq!(pin.label.as_deref(), Some("explorer"));
                assert!(pin.bytes > 0 && pin.bytes <= 64 << 10, "{pin:?}");
            }
            Err(Error::SnapshotTooOld { commit: 1, .. }) => break,
            Err(other) => panic!("{other}"),
        }
        assert!(db.metrics().undo_bytes <= 64 << 10);
    }
    assert!(reads > 1, "the budget bears some commits");
    assert!(newest < 39, "and not all");
    assert!(matches!(old.read(&key), Err(Error::SnapshotTooOld { .. })));
    assert!(matches!(old.fork().map(drop), Err(Error::SnapshotTooOld { .. })));
    let refused = old.finish(vec![Access::read(key)]).expect_err("too old");
    assert!(matches!(refused.error(), Error::SnapshotTooOld { .. }));
    drop(refused);
    assert_eq!((db.pins().len(), db.metrics().undo_bytes), (0, 0));
}

/// A rollback names its target, or how many commits it undoes; none are undone without a commit.
#[test]
fn a_rollback_says_what_it_cannot_do() {
    let (disk, options) = small(u64::MAX);
    let db = opened(&disk, &options);
    assert_eq!(db.rollback(0).expect("nothing to do"), 0);
    let refused = db.rollback(1).expect_err("a new database");
    assert_eq!(
        refused.to_string(),
        "cannot go back so far: 1 commits were wanted, the history goes back 0"
    );
    for value in 0..3 {
        put(&db, 0..10, value);
    }
    assert_eq!((db.rollback(0).expect("nothing"), db.rollback_to(3).expect("nothing")), (3, 3));
    assert_eq!(db.commit_number(), 3);
    assert!(matches!(db.rollback_to(4), Err(Error::NoSuchCommit { commit: 4, tip: 3 })));
    assert!(matches!(db.rollback(4), Err(Error::TooFarBack { commits: 4, most: 3 })));
    let second = db.commit_at(2).expect("in the history").root;
    assert_eq!(db.rollback_to(1).expect("in the history"), 4);
    assert_eq!(db.rollback(2).expect("in the history"), 5);
    assert_eq!(db.root(), second);
    drop(db);
    let db = opened(&disk, &options);
    assert_eq!(db.history(), 0..=5);
    assert_eq!(db.rollback(5).expect("in the history"), 6);
    assert_eq!(db.root(), db.commit_at(0).expect("in the history").root);
}

/// A history of `n` has `n` commits, with memory for few of them or for none: what later commits replaced is read from the
/// device.
#[test]
fn a_history_is_as_long_as_it_should_be_whatever_memory_it_has() {
    for memory in [1, 64 << 10, u64::MAX] {
        let (disk, options) = small(1000);
        let options = options.undo_memory_bytes(memory);
        let mut db = opened(&disk, &options);
        let key = crate::common::uniform;
        let value = |number: u64| Some(Value::from(number.to_be_bytes().as_slice()));
        put(&db, 0..200, 0);
        let held = db.snapshot().expect("a snapshot");
        for number in 1..60 {
            put(&db, 0..200, number);
            assert_eq!(held.read(&key(number)).expect("in the history"), value(0));
        }
        // There is no more than the limit, beside 200 bytes a commit, what is not on the device yet, and some pages that were
        // read.
        drop(held);
        put(&db, 0..1, 60);
        let bytes = db.metrics().undo_bytes;
        let most = memory.max(1 << 20).saturating_add(61 * 200 + (128 << 10));
        assert!(bytes <= most, "{bytes} of {memory}");
        for turn in 0..2 {
            assert_eq!(db.history(), 0..=61, "{memory} bytes, {turn}");
            for commit in [1, 2, 17, 40, 60] {
                let session = db.at(commit).expect("in the history");
                let keys: Vec<_> = (0..200).map(key).collect();
                let values = session.read_many(&keys).expect("read");
                assert!(values.iter().all(|found| *found == value(commit - 1)), "{commit}");
                assert_eq!(session.iter(..).count(), 200);
                let proof = session.prove(&key(5)).expect("proven");
                let read = pleach::proof::path::verify(Hasher::BLAKE3, &proof, &session.root());
                assert!(read.is_ok(), "{read:?}");
            }
            let none = db.at(0).expect("in the history");
            assert_eq!(none.iter(..).count(), 0);
            let changes = db.prove_change(3, 50, [0; 32]..=[255; 32]).expect("proven");
            assert!(!changes.is_empty());
            drop(none);
            drop(db);
            db = opened(&disk, &options.clone().require_history(true));
        }
        assert_eq!(db.rollback_to(7).expect("in the history"), 62);
        assert_eq!(db.root(), db.commit_at(7).expect("in the history").root);
        let session = db.snapshot().expect("a snapshot");
        assert_eq!(session.read(&key(9)).expect("read"), value(6));
        drop(session);
        db.close().expect("closed");
        let report = pleach_ops::check_on(&disk, pleach_ops::CheckOptions::default());
        assert!(report.expect("checked").findings.is_empty());
    }
}

#[test]
fn a_history_is_shorter_where_its_bytes_are_limited() {
    let (disk, options) = small(1000);
    let options = options.history_disk_mib(1);
    for run in 0..12 {
        let db = opened(&disk, &options);
        for value in 5 * run..5 * run + 5 {
            put(&db, 0..1000, value);
        }
        db.close().expect("closed");
    }
    let db = opened(&disk, &options);
    let history = db.history();
    assert!(*history.start() > 20 && *history.start() < 56, "{history:?}");
    let oldest = db.at(*history.start()).expect("in the history");
    let value = (history.start() - 1).to_be_bytes();
    let found = oldest.read(&crate::common::uniform(5)).expect("read");
    assert_eq!(found, Some(Value::from(value.as_slice())));
    drop(oldest);
    db.close().expect("closed");
    let db = opened(&disk, &options);
    assert_eq!(db.history(), history);
}

/// Undo that leaves memory for its bytes before a checkpoint is in no run on the device: the run said that it has it, so that a
/// session that was too old read values of later commits, and an open found damage where there is none.
#[test]
fn a_run_does_not_have_what_was_dropped_before_it_was_written() {
    let (disk, options) = small(100);
    let options = options.history_disk_mib(1);
    let db = opened(&disk, &options);
    let key = crate::common::uniform;
    let put = |number: u64| {
        let long = Value::from(vec![number.to_le_bytes()[0]; 400 << 10]);
        let short = || Some(Value::from(number.to_be_bytes().as_slice()));
        let own = Access::write(key(10 + number), short());
        let writes = vec![Access::write(key(1), Some(long)), Access::write(key(2), short()), own];
        assert_eq!(crate::common::commit(&db, writes), number);
    };
    (1..=2).for_each(put);
    let old = db.session(SessionOptions::new()).expect("a session");
    (3..=8).for_each(put);
    let too_old = || {
        for key in [key(2), key(13)] {
            let read = old.read(&key);
            assert!(matches!(read, Err(Error::SnapshotTooOld { .. })), "{read:?}");
        }
    };
    too_old();
    let history = db.history();
    assert!(*history.start() > 3 && *history.start() < 8, "{history:?}");
    db.close().expect("closed");
    too_old();
    drop(old);
    let db = opened(&disk, &options);
    assert_eq!(db.history(), history);
    for number in history {
        let session = db.at(number).expect("in the history");
        let found = session.read(&key(2)).expect("read");
        assert_eq!(found, Some(Value::from(number.to_be_bytes().as_slice())));
    }
}

#[test]
fn a_bulk_load_is_where_the_history_begins() {
    let (disk, options) = small(10);
    let db = opened(&disk, &options);
    let key = crate::common::uniform;
    let value = |number: u64| Value::from(number.to_be_bytes().as_slice());
    let pairs = (0..100).map(|id| (key(id), value(id)));
    db.bulk_load(pairs, &pleach::load::LoadOptions::default()).expect("loaded");
    let loaded = db.root();
    assert_eq!(db.history(), 1..=1);
    assert!(matches!(db.rollback(1), Err(Error::SnapshotTooOld { .. })));
    put(&db, 0..50, 7);
    drop(db);
    let db = opened(&disk, &options);
    assert_eq!(db.history(), 1..=2);
    assert_eq!(db.at(1).expect("in the history").read(&key(9)).expect("read"), Some(value(9)));
    assert_eq!(db.rollback(1).expect("in the history"), 3);
    assert_eq!(db.root(), loaded);
    assert_eq!(db.rollback(1).expect("a rollback is rolled back"), 4);
    assert_eq!(db.snapshot().expect("a snapshot").read(&key(9)).expect("read"), Some(value(7)));
}

/// Readers on threads of their own, while commits come, the window moves and memory runs out: a value is that
/// of the reader's commit, or the reader is told.
#[test]
fn readers_beside_commits_see_their_commit_or_are_told() {
    const KEYS: u64 = 400;
    const COMMITS: u64 = 150;
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options::new(folder.path())
        .create(true)
        .cache_mib(16)
        .threads(2)
        .durability(pleach::Durability::None)
        .history(20)
        .undo_memory_bytes(700 << 10);
    let db = pleach::Db::open(options).expect("opened");
    let write = |number: u64| {
        let value = Value::from(number.to_be_bytes().as_slice());
        let writes =
            (0..KEYS).map(|id| Access::write(crate::common::uniform(id), Some(value.clone())));
        crate::common::commit(&db, writes.collect())
    };
    write(1);
    let done = std::sync::atomic::AtomicBool::new(false);
    let (read, told) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2_u64)
            .map(|reader| {
                let (db, done) = (&db, &done);
                scope.spawn(move || {
                    let (mut read, mut told, mut turn) = (0_u64, 0_u64, reader);
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        turn += 1;
                        let history = db.history();
                        let back = (turn * 7 % 25).min(history.end() - 1);
                        let commit = history.end() - back;
                        let Ok(session) = db.at(commit) else {
                            told += 1;
                            continue;
                        };
                        let proof = session.fork().ok();
                        for id in 0..KEYS / 4 {
                            match session.read(&crate::common::uniform(id * 4 + turn % 4)) {
                                Ok(found) => {
                                    let found = found.expect("all keys are there");
                                    assert_eq!(*found, commit.to_be_bytes(), "as of {commit}");
                                    read += 1;
                                }
                                Err(Error::SnapshotTooOld { .. }) => told += 1,
                                Err(other) => panic!("{other}"),
                            }
                        }
                        let Some(proof) = proof else { continue };
                        let reads = (0..8).map(|id| Access::read(crate::common::uniform(id * 9)));
                        let root = proof.root();
                        match proof
                            .finish(reads.collect::<Vec<_>>())
                            .map_err(pleach::FinishError::into_error)
                        {
                            Ok(mut block) => {
                                let proof = block.take_witness().expect("asked for");
                                let verified =
                                    pleach::proof::witness::verify(Hasher::BLAKE3, &proof, &root)
                                        .expect("valid");
                                assert_eq!(verified.op_count(), 8);
                            }
                            Err(Error::SnapshotTooOld { .. }) => told += 1,
                            Err(other) => panic!("{other}"),
                        }
                    }
                    (read, told)
                })
            })
            .collect();
        for number in 2..=COMMITS {
            assert_eq!(write(number), number);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let counts = readers.into_iter().map(|reader| reader.join().expect("no wrong value"));
        counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    });
    println!("{read} reads, {told} times told");
    assert!(read > 0);
}

/// Each segment of the log is an open file: a small database with a long history came to thousands of them,
/// where a process may have a thousand.
#[test]
fn a_long_history_keeps_few_files_open() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).cache_mib(16).threads(2).small();
    let options = options.history(100_000).kept_log_mib(0).durability(Durability::None);
    let db = pleach::Db::open(options).expect("created");
    for number in 0..700_u64 {
        let value = Value::from(vec![u8::try_from(number % 251).expect("a byte"); 60_000]);
        let put = vec![Access::write(crate::common::uniform(number % 9), Some(value))];
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(put).expect("finished").commit().expect("committed");
    }
    let files = std::fs::read_dir(folder.path()).expect("listed").filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("log-"))
    });
    let files = files.count();
    assert!(files < 100, "{files} files of the log");
    assert_eq!(db.history(), 0..=700);
    db.close().expect("closed");
}

/// The left half has many keys. The right half has one, and had two more beside it, which went one commit before:
/// what the page knows below the right half is from before that, and must not be taken for the past.
#[test]
fn what_a_page_knows_below_a_leaf_node_is_not_the_past() {
    let (disk, options) = small(100);
    let db = opened(&disk, &options);
    let left = |id: u8| [id & 0x7f; 32];
    let (right, gone) = ([0x80; 32], [[0xc0; 32], [0xd0; 32]]);
    let value = |number: u64| Some(Value::from(number.to_be_bytes().as_slice()));
    let write = |keys: &[[u8; 32]], number| {
        let writes = keys.iter().map(|key| Access::write(*key, value(number)));
        crate::common::commit(&db, writes.collect())
    };
    let lefts: Vec<[u8; 32]> = (0..40).map(|id| left(id * 3)).collect();
    let all: Vec<[u8; 32]> = lefts.iter().copied().chain([right]).chain(gone).collect();
    write(&all, 0);
    db.drain(0).expect("drained");
    (1..4).for_each(|number| _ = write(&all, number));
    let emptied = gone.map(|key| Access::write(key, None)).to_vec();
    let then = crate::common::commit(&db, emptied);
    let proven = |commit| {
        let session = db.at(commit).expect("in the history");
        let mut proofs: Vec<Vec<u8>> = Vec::new();
        for key in lefts[..2].iter().chain([&right]).chain(&gone) {
            proofs.push(session.prove(key).expect("proven").to_vec());
        }
        proofs
    };
    let made_then = proven(then);
    for number in 10..14 {
        write(&[right], number);
        assert!(proven(then) == made_then, "after {number}");
    }
    write(&gone, 20);
    assert!(proven(then) == made_then);
}
