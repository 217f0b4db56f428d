//! A read-only open beside the process that writes, with damage, behind a bulk load, and on threads. That its sessions read
//! their commits or are told so, whatever the writer does, is said by `plans_follow_their_models`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;

use pleach::load::LoadOptions;
use pleach::{Access, Db, Durability, Error, Geometry, Key, Options, Value};
use pleach_io::sim::{SimDisk, SimRuntime};
use pleach_io::{Device as _, OpenMode, PageBuf};

use crate::common::held_device::Held;
use crate::common::{commit, uniform};
use crate::crash::{Setup, SimDb, unrecorded};

/// A database that is open for writing, and its disk.
fn writer() -> (Setup, SimDisk, SimDb) {
    let mut setup = Setup::draw(4);
    (setup.history, setup.flush_at) = (3, 1);
    let disk = SimDisk::new(4, unrecorded());
    let (db, _) = setup.open(&disk, 1).expect("created");
    (setup, disk, db)
}

fn reader(setup: &Setup, disk: &SimDisk, seed: u64) -> SimDb {
    let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
    let options = setup.options().create(false).read_only(true);
    Db::open_on(disk.clone(), runtime, options).expect("opens beside the writer")
}

/// A bulk load has no record in the log: a reader opens anew.
#[test]
fn a_reader_goes_on_behind_a_bulk_load() {
    let (setup, disk, db) = writer();
    let reader = self::reader(&setup, &disk, 9);
    let before = reader.snapshot().expect("a snapshot");
    let pairs = (0..500).map(|id| (uniform(id), Value::from(id.to_be_bytes().as_slice())));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    // With and without a record behind it, which does not follow what the reader has.
    let other = self::reader(&setup, &disk, 10);
    assert_eq!(other.refresh().expect("goes on"), db.commit_number());
    commit(&db, vec![Access::write(uniform(1), Some(Value::from(b"one".as_slice())))]);
    assert_eq!(other.refresh().expect("goes on"), db.commit_number());
    assert_eq!(reader.refresh().expect("goes on"), db.commit_number());
    assert_eq!(reader.root(), db.root());
    let session = reader.snapshot().expect("a snapshot");
    assert_eq!(session.iter(..).count(), 500);
    let late = before.read(&uniform(1));
    assert!(matches!(late, Ok(None) | Err(Error::SnapshotTooOld { .. })), "{late:?}");
}

/// A close with too many bytes of history moves its begin, which no record says. Readers went on to offer commits whose long
/// values the next writer wrote over, and called that damage.
#[test]
fn a_reader_is_told_where_a_limit_in_bytes_ends_the_history() {
    let (mut setup, disk) = (Setup::draw(4), SimDisk::new(4, unrecorded()));
    setup.history = 10;
    let open = |limit| {
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = setup.options().create(true).history_disk_mib(limit);
        Db::open_on(disk.clone(), runtime, options).expect("opened")
    };
    let put = |db: &Db, byte| {
        let value = Some(Value::from(vec![byte; 3000]));
        commit(db, vec![Access::write(uniform(1), value)])
    };
    let db = open(1);
    (1..=3).for_each(|byte| assert_eq!(put(&db, byte), u64::from(byte)));
    let reader = self::reader(&setup, &disk, 9);
    assert_eq!(reader.history(), db.history());
    db.close().expect("closed");
    drop(db);
    let db = open(0);
    assert_eq!(put(&db, 4), 4);
    db.close().expect("closed");
    drop(db);
    assert_eq!(reader.refresh().expect("goes on"), 4);
    let db = open(0);
    assert_eq!((reader.history(), db.history()), (4..=4, 4..=4));
    let too_old = reader.at(3).expect_err("the next writer may write over its values");
    assert!(matches!(too_old, Error::SnapshotTooOld { commit: 3, oldest: 4 }), "{too_old}");
}

/// Pages with nodes that came with records of the log were not counted.
#[test]
fn a_reader_counts_the_pages_that_come_as_the_writer_does() {
    let (setup, disk, db) = writer();
    let reader = self::reader(&setup, &disk, 9);
    for round in 0..20 {
        let put = |id| Access::write(uniform(id), Some(Value::from(vec![1; 300])));
        commit(&db, (10 * round..10 * round + 10).map(put).collect());
    }
    db.drain(0).expect("flushed");
    // Its record takes the one before it to the disk, which says where the pages are.
    commit(&db, vec![Access::write(uniform(1), Some(Value::from(b"one".as_slice())))]);
    reader.refresh().expect("goes on");
    let pages = |db: &Db| (db.metrics().leaf_pages, db.metrics().leaf_pages_with_nodes);
    assert_eq!(pages(&reader), pages(&db));
    assert!(pages(&db).1 > 10, "{:?}", pages(&db));
}

/// The overflow file was measured before the log was read. Records that came meanwhile name pages behind that end, and a healthy
/// database was called damaged.
#[test]
fn a_file_that_grows_while_a_reader_opens_is_no_damage() {
    let disk = SimDisk::new(4, unrecorded());
    let geometry = Geometry { segment_pages: 16, log_segment: 1 << 20, size_factor: 150 };
    let options = Options::new("sim").cache_mib(8).threads(1).geometry(geometry).history(100);
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let writing = options.clone().create(true).log_limit_bytes(64 << 20);
    let db = Db::open_on(disk.clone(), runtime, writing).expect("created");
    let long = |id| Access::write(uniform(id), Some(Value::from(vec![7; 100 << 10])));
    commit(&db, vec![long(0)]);
    let (held, gate) = Held::new(disk.clone());
    let (mut commits, writer) = (1, db.clone());
    let length = || disk.len(&disk.open("overflow", OpenMode::Read).expect("there"));
    let before = length().expect("a length");
    // Each try of the open meets records that were made since it began.
    gate.at_each_open("log-", move || {
        commits += 1;
        assert_eq!(commit(&writer, vec![long(commits)]), commits);
    });
    let stat = pleach_ops::stat_on(held.clone(), None).expect("no damage");
    let runtime = SimRuntime::with_clock(9, disk.clock(), 1);
    let reader = Db::open_on(held, runtime, options.read_only(true)).expect("no damage");
    assert!(length().expect("a length") > before, "the file did not grow");
    assert!(1 < stat.commit && stat.commit < reader.commit_number(), "nothing came meanwhile");
    let session = reader.snapshot().expect("a snapshot");
    let found = session.read(&uniform(reader.commit_number())).expect("read");
    assert_eq!(found.map(|value| value.len()), Some(100 << 10));
}

/// A writer that was opened again during each try made a record of an incarnation that was not known when the try began: after four
/// tries the log was called bad.
#[test]
fn a_writer_that_is_opened_again_while_a_reader_opens_is_no_damage() {
    let (setup, disk, db) = writer();
    let put = |number: u64| {
        let value = Value::from(number.to_be_bytes().as_slice());
        vec![Access::write(uniform(number), Some(value))]
    };
    commit(&db, put(1));
    let (held, gate) = Held::new(disk.clone());
    let (mut writer, mut opens) = (Some(db), 0);
    let (options, again) = (setup.options().create(false).read_only(true), disk.clone());
    gate.at_each_open("image", move || {
        if opens < 12 {
            opens += 1;
            drop(writer.take());
            let (db, _) = setup.open(&again, opens).expect("opened again");
            commit(&db, put(1 + opens));
            writer = Some(db);
        }
    });
    let runtime = SimRuntime::with_clock(9, disk.clock(), 1);
    let reader = Db::open_on(held, runtime, options).expect("no damage");
    assert_eq!(reader.commit_number(), 13, "some looks met no restart");
}

/// A database whose history has long values, which take the pages that are free as soon as they are.
fn history_of_long_values(disk: &SimDisk) -> (Options, SimDb, SimRuntime) {
    let options = Options::new("sim").cache_mib(8).threads(1).geometry(Geometry::least());
    let options = options.history(100).undo_memory_bytes(1).kept_log_mib(0);
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let writing = options.clone().create(true);
    let db = Db::open_on(disk.clone(), runtime.clone(), writing).expect("created");
    (options.read_only(true), db, runtime)
}

fn commit_long_values(db: &SimDb, runtime: &SimRuntime, commits: u64) {
    for number in db.commit_number() + 1..=db.commit_number() + commits {
        let value = |len: usize| Some(Value::from(number.to_be_bytes().repeat(len).as_slice()));
        let len = |id| if id < 5 { 20 } else { 150 };
        let replaced = (0..8).map(|id| Access::write(uniform(id), value(len(id))));
        let new = (0..12).map(|id| Access::write(uniform(100 * number + id), value(150)));
        assert_eq!(commit(db, replaced.chain(new).collect()), number);
        runtime.step_some(20);
    }
}

fn read_long_value(db: &SimDb, at: u64) -> Result<u64, Error> {
    let value = db.at(at)?.read(&uniform(at % 8))?.expect("written by each commit");
    Ok(u64::from_be_bytes(*value.first_chunk().expect("8 bytes")))
}

/// Runs that the image before the newest one names are nobody's: their pages had other long values by then, and the
/// reader called the history of a healthy database damaged, and left it out.
#[test]
fn a_checkpoint_while_a_reader_opens_costs_it_nothing_of_the_history() {
    let disk = SimDisk::new(4, unrecorded());
    let (options, db, runtime) = history_of_long_values(&disk);
    commit_long_values(&db, &runtime, 200);
    for round in 0..280 {
        let (held, gate) = Held::new(disk.clone());
        let (writer, beside, mut opens) = (db.clone(), runtime.clone(), 0);
        gate.at_each_open("", move || {
            opens += 1;
            if opens == round % 40 {
                commit_long_values(&writer, &beside, 1 + round % 7);
            }
        });
        let runtime = SimRuntime::with_clock(9, disk.clock(), 1);
        let reader = Db::open_on(held, runtime, options.clone()).expect("opens");
        assert!(reader.opened().lost.is_none(), "round {round}: {:?}", reader.opened());
        let kept = reader.history();
        assert!(kept.end() - kept.start() >= 99, "round {round}: {kept:?}");
        assert_eq!(read_long_value(&reader, *kept.end()).expect("read"), *kept.end());
    }
}

/// A reader takes the runs of each newer image: those that its open has found are merged and written over by then.
#[test]
fn a_reader_reads_the_history_that_the_writer_has_by_now() {
    let disk = SimDisk::new(4, unrecorded());
    let (options, db, runtime) = history_of_long_values(&disk);
    commit_long_values(&db, &runtime, 200);
    for round in 0..60 {
        let own = SimRuntime::with_clock(9, disk.clock(), 1);
        let reader = Db::open_on(disk.clone(), own, options.clone()).expect("opens");
        commit_long_values(&db, &runtime, 3 + round % 20);
        assert_eq!(reader.refresh().expect("follows"), db.commit_number());
        for at in db.history() {
            let found = read_long_value(&reader, at);
            let found = found.unwrap_or_else(|error| panic!("round {round}, commit {at}: {error}"));
            assert_eq!(found, at, "round {round}");
        }
    }
}

/// What damages a page is no move: the reader says so, and does not try for ever.
#[test]
fn a_damaged_page_is_an_error_for_a_reader_and_others_are_read() {
    let (setup, disk, db) = writer();
    let keys: Vec<Key> = (0..200).map(uniform).collect();
    for round in 0..20 {
        let value = Value::from(vec![round; 300]);
        let put = |key: &Key| Access::write(*key, Some(value.clone()));
        commit(&db, keys[usize::from(round) * 10..].iter().map(put).collect());
    }
    db.drain(0).expect("flushed");
    let reader = self::reader(&setup, &disk, 9);
    let leaf = disk.open("leaf", OpenMode::Write).expect("there");
    let pages = disk.len(&leaf).expect("length") / 4096;
    let noise = {
        let mut buf = PageBuf::zeroed(1);
        buf.fill(0xa5);
        buf
    };
    for page in 0..pages {
        disk.write_at(&leaf, &noise, 1, page * 4096).expect("written");
    }
    let session = reader.snapshot().expect("a snapshot");
    let failed = keys.iter().filter(|key| session.read(key).is_err()).count();
    assert!(failed > 0, "no page was read");
}

/// Threads: a writer of real files, and readers with opens of their own.
#[test]
fn readers_beside_a_thread_that_writes_see_whole_commits() {
    const KEYS: u64 = 3000;
    let folder = tempfile::tempdir().expect("a folder");
    let geometry = Geometry { segment_pages: 64, log_segment: 1 << 20, size_factor: 150 };
    let options = Options::new(folder.path()).cache_mib(64).threads(1).geometry(geometry);
    let writing = options
        .clone()
        .create(true)
        .log_limit_bytes(4 << 20)
        .tune(|tuning| tuning.flush_at = 1)
        .history(40);
    let db = Db::open(writing.durability(Durability::None)).expect("created");
    let write = |number: u64| {
        let pair = |id: u64| {
            let len = if id.is_multiple_of(500) { 9000 } else { 40 };
            let mut bytes = vec![u8::try_from(number % 251).expect("a byte"); len];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            Access::write(uniform(id), Some(Value::from(bytes)))
        };
        let ids = (0..KEYS).filter(|id| *id == 0 || (id + number).is_multiple_of(7));
        commit(&db, ids.map(pair).collect())
    };
    let newest = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let looks = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                number += 1;
                assert_eq!(write(number), number);
                newest.store(number, Ordering::Release);
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|turn| {
                let options = options.clone().read_only(true);
                let newest = &newest;
                scope.spawn(move || {
                    while newest.load(Ordering::Acquire) < 5 {
                        std::thread::yield_now();
                    }
                    let reader = Db::open(options).expect("opens beside the writer");
                    (0..crate::common::cases(60))
                        .map(|at| look_at(&reader, newest, KEYS, at + turn))
                        .sum()
                })
            })
            .collect();
        let looks: Vec<u64> =
            readers.into_iter().map(|reader| reader.join().unwrap_or(0)).collect();
        done.store(true, Ordering::Relaxed);
        writer.join().expect("no wrong number");
        looks
    });
    println!("{looks:?} states were read, {} commits made", db.commit_number());
    assert!(looks.iter().all(|looks| *looks > 0), "{looks:?}");
}

/// Threads: a writer of long values with a history on real files, and readers that open again and again. No open may take what
/// the writer frees and writes over meanwhile for damage.
#[test]
fn readers_that_open_beside_a_thread_that_writes_long_values_lose_no_history() {
    const HISTORY: u64 = 30;
    const IDS: u64 = 6;
    let folder = tempfile::tempdir().expect("a folder");
    let geometry = Geometry { segment_pages: 64, log_segment: 1 << 20, size_factor: 150 };
    let options = Options::new(folder.path()).cache_mib(16).threads(1).geometry(geometry);
    let options = options.history(HISTORY).undo_memory_bytes(1).kept_log_mib(0);
    let writing = options.clone().create(true).log_limit_bytes(4 << 20);
    let writing = writing.tune(|tuning| tuning.flush_at = 1).durability(Durability::None);
    let db = Db::open(writing).expect("created");
    // Each commit replaces one key's value in the record, and some in the overflow file.
    let len = |id: u64| [40, 5600, 70_000][usize::try_from(id % 3).expect("small")];
    let written = |id: u64, at: u64| (1..=at).rev().find(|at| (id + at).is_multiple_of(IDS / 2));
    let write = |number: u64| {
        let ids = (0..IDS).filter(|id| written(*id, number) == Some(number));
        let value = |id| Value::from(number.to_be_bytes().repeat(len(id) / 8));
        commit(&db, ids.map(|id| Access::write(uniform(id), Some(value(id)))).collect())
    };
    let (newest, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let read = |reader: &Db, commit: u64| -> Result<(), Error> {
        let session = reader.at(commit)?;
        for id in 0..IDS {
            let value = session.read(&uniform(id))?;
            let expected = written(id, commit).map(|at| at.to_be_bytes().repeat(len(id) / 8));
            assert!(value.as_deref() == expected.as_deref(), "key {id} of commit {commit}");
        }
        Ok(())
    };
    let (opens, too_old) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                number += 1;
                assert_eq!(write(number), number);
                newest.store(number, Ordering::Release);
            }
        });
        let reader = |turn: u64| {
            while newest.load(Ordering::Acquire) < 2 * HISTORY {
                std::thread::yield_now();
            }
            let mut too_old = 0;
            let opens = crate::common::cases(30);
            for round in 0..opens {
                let reader = Db::open(options.clone().read_only(true)).expect("opens");
                assert!(reader.opened().lost.is_none(), "{round}: {:?}", reader.opened());
                let kept = reader.history();
                assert!(kept.end() - kept.start() >= HISTORY - 1, "{round}: {kept:?}");
                for commit in [*kept.end(), *kept.start(), kept.start() + (round + turn) % HISTORY]
                {
                    match read(&reader, commit) {
                        Ok(()) => {}
                        Err(Error::SnapshotTooOld { .. }) => too_old += 1,
                        Err(error) => panic!("{round}: commit {commit} of {kept:?}: {error}"),
                    }
                }
                assert!(reader.refresh().expect("goes on") >= *kept.end());
            }
            (opens, too_old)
        };
        let readers: Vec<_> = (0..2).map(|turn| scope.spawn(move || reader(turn))).collect();
        let all: Vec<_> = readers.into_iter().map(ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        writer.join().expect("no wrong number");
        let all = all.into_iter().map(|one| one.expect("a reader"));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    println!("{opens} opens beside {} commits, {too_old} states too old", db.commit_number());
    assert!(too_old < 3 * opens, "no old state was read");
}

/// Reads a state at one moment; says how many could be read to their end.
fn look_at(reader: &Db, newest: &AtomicU64, keys: u64, at: u64) -> u64 {
    let least = newest.load(Ordering::Acquire);
    let number = reader.refresh().expect("goes on");
    assert!(number >= least, "{number} is older than {least}");
    let session = reader.at(number - at % 3).expect("in the history");
    let number = session.commit_number();
    let check = |id: u64, value: Option<&Value>| {
        let last = (1..=number).rev().find(|at| id == 0 || (id + at).is_multiple_of(7));
        let written = value.map(|value| u64::from_be_bytes(*value.first_chunk().expect("8 bytes")));
        assert_eq!(written, last, "key {id} of commit {number}");
    };
    let done = if at.is_multiple_of(2) {
        let ids: Vec<u64> = (0..keys).collect();
        let all: Vec<Key> = ids.iter().map(|id| uniform(*id)).collect();
        session.read_many(&all).map(|values| {
            ids.iter().zip(&values).for_each(|(id, value)| check(*id, value.as_ref()));
        })
    } else {
        session.iter(..).collect::<Result<BTreeMap<_, _>, _>>().map(|pairs| {
            (0..keys).for_each(|id| check(id, pairs.get(&uniform(id))));
        })
    };
    match done {
        Ok(()) => 1,
        Err(Error::SnapshotTooOld { .. }) => 0,
        Err(error) => panic!("{error}"),
    }
}
