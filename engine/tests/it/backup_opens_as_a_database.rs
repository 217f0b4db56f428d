//! A backup has the whole of one commit, whatever commits, flushes and checkpoints do while it is made; one that failed or was
//! cut off does not open, or is whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pleach::errors::NoRoom;
use pleach::load::LoadOptions;
use pleach::{
    Access, Db, Durability, Error, Geometry, Hasher, Options, Progress, SessionOptions, Value,
};
use pleach_io::sim::{Fault, FaultRepeats, FaultRule, SimDisk, SimOptions, SimRuntime};
use pleach_io::{Device as _, OpenMode, Operation};
use pleach_journal::format::creation::CreationError;
use pleach_journal::format::names::{IMAGES, REQUIRED, SUPERBLOCK};
use pleach_ops::BackupOptions;

use crate::common::{Model, Rng, commit, uniform};
use crate::crash::workload::{batch, value};
use crate::crash::{Setup, SimDb, unrecorded};

/// A database, its states by number, and what goes on while it is backed up.
struct Source {
    setup: Setup,
    db: SimDb,
    runtime: SimRuntime,
    rng: Rng,
    models: Vec<Model>,
    plain: Vec<u64>,
}

impl Source {
    fn new(seed: u64) -> Self {
        let mut setup = Setup::draw(seed);
        setup.history = [0, 3, 20][usize::try_from(seed % 3).expect("small")];
        setup.history_bytes = [64 << 20, 20_000, 1][usize::try_from(seed / 3 % 3).expect("small")];
        if seed.is_multiple_of(4) {
            (setup.ids, setup.flush_at) = (600, 1);
        }
        let disk = SimDisk::new(seed, unrecorded());
        let (db, runtime) = setup.open(&disk, 1).expect("created");
        db.add_plain_namespace(9).expect("added");
        let models = vec![Model::default(); 2];
        Self { setup, db, runtime, rng: Rng::new(seed), models, plain: vec![0, 0] }
    }

    fn commit(&mut self) {
        let mut model = self.models.last().expect("some").clone();
        let mut accesses = batch(&mut self.rng, &self.setup, &model);
        model.apply(&accesses);
        let number = self.models.len() as u64;
        let counter = Value::from(number.to_be_bytes().as_slice());
        accesses.push(Access::write(uniform(1), Some(counter)).in_namespace(9));
        assert_eq!(commit(&self.db, accesses), number);
        self.models.push(model);
        self.plain.push(number);
    }

    /// Some of what a node does.
    fn go_on(&mut self) {
        for _ in 0..=self.rng.below(4) {
            self.commit();
            self.runtime.step_some(self.rng.index(40));
        }
        if self.rng.below(3) == 0 {
            self.db.drain(0).expect("flushed");
        }
        self.runtime.clock().advance(std::time::Duration::from_millis(150));
        self.runtime.step_some(self.rng.index(200));
    }

    /// What a copy must be that says it has this commit.
    fn check(&self, disk: &SimDisk, number: u64) {
        let what = format!("{:?}, commit {number}", self.setup);
        let (copy, _runtime) = self.setup.open(disk, 7).expect("the backup opens");
        assert_eq!(copy.commit_number(), number, "{what}");
        let oldest = number.saturating_sub(self.setup.history).max(1);
        assert!(*copy.history().start() <= oldest, "{what}: {:?}", copy.history());
        for commit in oldest..=number {
            let at = usize::try_from(commit).expect("few");
            let session = copy.at(commit).expect("in the history");
            let pairs = session.iter(..).map(|pair| pair.expect("read"));
            let model = &self.models[at].values;
            let expected = model.iter().map(|(key, value)| (*key, value.clone()));
            assert!(pairs.eq(expected), "{what}: {commit}");
            assert_eq!(
                session.root(),
                self.models[at].naive(Hasher::BLAKE3).root(Hasher::BLAKE3),
                "{what}"
            );
            let plain = session.namespace(9).expect("added").read(&uniform(1)).expect("read");
            let counter = Value::from(self.plain[at].to_be_bytes().as_slice());
            assert_eq!(plain, (self.plain[at] > 0).then_some(counter), "{what}: {commit}");
        }
        // It is as good as any: it is written to, closed, and opens again.
        commit(&copy, vec![Access::write(uniform(2), Some(value(&mut Rng::new(number))))]);
        copy.drain(0).expect("flushed");
        copy.close().expect("closed");
        let (copy, _runtime) = self.setup.open(disk, 8).expect("opens again");
        assert_eq!(copy.commit_number(), number + 1);
    }
}

/// A source that goes on each time that a backup tells its progress.
fn beside(source: &Arc<Mutex<Source>>) -> BackupOptions {
    let source = Arc::clone(source);
    let progress: Progress = Arc::new(move |_, _| source.lock().expect("sound").go_on());
    BackupOptions::new().progress(Some(progress))
}

#[test]
fn a_backup_beside_commits_flushes_and_checkpoints_is_one_commit() {
    let mut checkpoints = 0;
    for seed in 0..crate::common::cases(12) {
        let source = Arc::new(Mutex::new(Source::new(seed)));
        let db = {
            let mut source = source.lock().expect("sound");
            for _ in 0..seed % 12 {
                source.go_on();
            }
            source.db.clone()
        };
        for turn in 0..3 {
            let disk = SimDisk::new(100 + turn, unrecorded());
            let before = db.commit_number();
            let report = pleach_ops::backup_on(&db, &disk, &beside(&source)).expect("backed up");
            // What came while pages were copied is not in it.
            assert!(report.commit >= before && report.commit <= db.commit_number());
            let source = source.lock().expect("sound");
            source.check(&disk, report.commit);
        }
        let mut source = source.lock().expect("sound");
        source.go_on();
        assert!(source.db.pins().is_empty() && source.db.open_handles().is_empty());
        checkpoints += source.db.metrics().checkpoints;
    }
    assert!(checkpoints > 0, "no checkpoint was made");
}

/// Undo of the commits beside a copy went beyond what it may take, the copy's pin held nothing from then on, and long values that only
/// the copied history names were written over before they were copied: the copy said Ok, and could read 4 of its 13 commits.
#[test]
fn a_backup_has_its_history_however_much_is_replaced_meanwhile() {
    const KEYS: u64 = 60;
    let disk = SimDisk::new(1, unrecorded());
    let options =
        Options::new("sim").cache_mib(8).threads(1).small().history(12).undo_memory_bytes(1);
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let db = Db::open_on(disk, runtime.clone(), options.clone().create(true)).expect("created");
    // Each key has the number of the last commit that wrote it.
    let of =
        |number: u64| (0..KEYS).filter(move |id| number == 1 || (id + number).is_multiple_of(4));
    let value = |id: u64, number: u64| {
        let mut bytes = vec![u8::try_from((id * 31 + number) % 251).expect("a byte"); 20_000];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Value::from(bytes)
    };
    let write = move |db: &Db| {
        let number = db.commit_number() + 1;
        let put = |id| Access::write(uniform(id), Some(value(id, number)));
        commit(db, of(number).map(put).collect());
        db.drain(0).expect("flushed");
    };
    for _ in 0..20 {
        write(&db);
    }
    let source = db.clone();
    let progress: Progress = Arc::new(move |_, _| (0..10).for_each(|_| write(&source)));
    let target = SimDisk::new(2, unrecorded());
    let report = db.copy_on(target.clone(), Some(&progress)).expect("copied");
    assert!(db.commit_number() > report.commit + 12, "nothing came meanwhile");
    let copy = Db::open_on(target, runtime, options).expect("opens");
    assert_eq!(copy.history(), report.commit - 12..=report.commit);
    for commit in copy.history() {
        let session = copy.at(commit).expect("in the history");
        for id in 0..KEYS {
            let last = (1..=commit).rev().find(|number| *number == 1 || (id + number) % 4 == 0);
            let found = session.read(&uniform(id)).unwrap_or_else(|error| {
                panic!("commit {commit}, key {id}: {error}");
            });
            assert_eq!(found, Some(value(id, last.expect("written"))), "{commit}, {id}");
        }
    }
}

/// Each operation on the target fails in turn: the database goes on, and what is there does not open or is whole.
#[test]
fn a_backup_that_fails_harms_nobody_and_is_refused_or_whole() {
    let source = Arc::new(Mutex::new(Source::new(4)));
    (0..20).for_each(|_| source.lock().expect("sound").go_on());
    let db = source.lock().expect("sound").db.clone();
    let options = BackupOptions::new().verify(false);
    let (mut failed, mut whole) = (0, 0);
    for operation in [
        Operation::Create,
        Operation::Write,
        Operation::Sync,
        Operation::Allocate,
        Operation::SyncFolder,
        Operation::Rename,
    ] {
        for nth in 1..200 {
            let disk = SimDisk::new(nth, unrecorded());
            let code = if operation == Operation::Allocate {
                pleach_io::sim::code::ENOSPC
            } else {
                pleach_io::sim::code::EIO
            };
            disk.inject(FaultRule::nth(operation, "", nth, FaultRepeats::Once, Fault::Errno(code)));
            let result = pleach_ops::backup_on(&db, &disk, &options);
            disk.heal();
            assert!(!db.is_poisoned(), "{operation:?} {nth}");
            let source = source.lock().expect("sound");
            match result {
                Ok(report) => {
                    source.check(&disk, report.commit);
                    break;
                }
                Err(_) => failed += 1,
            }
            // Without `create`: nobody takes it for a creation to be gone on with.
            let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
            let options = source.setup.options().create(false);
            if let Ok(copy) = SimDb::open_on(disk.clone(), runtime, options) {
                assert_eq!(copy.root(), db.root(), "{operation:?} {nth}");
                whole += 1;
            }
        }
    }
    assert!(failed > 20, "{failed} failures");
    println!("{failed} failed, {whole} of them were whole");
    source.lock().expect("sound").go_on();
}

/// A power cut at each point, with each kind of outcome: what is on the target does not open, or is whole; and whole once the
/// backup has returned.
#[test]
fn a_backup_that_was_cut_off_is_refused_or_whole() {
    const DONE: u64 = 1;
    let mut source = Source::new(4);
    (0..4).for_each(|_| source.go_on());
    let disk = SimDisk::new(1, SimOptions::default());
    pleach_ops::backup_on(&source.db, &disk, &BackupOptions::new().verify(false))
        .expect("backed up");
    disk.mark(DONE);
    disk.open("after", OpenMode::CreateNew).expect("made");
    let (root, mut refused, mut whole) = (source.db.root(), 0, 0);
    for point in disk.trace().crash_points() {
        let is_done = point.marks().contains(&DONE);
        for outcome in point.outcomes(3, 6) {
            let disk = outcome.disk();
            // The superblock proves that all other files are there: without it a copy is known to be unfinished.
            let names = disk.list().expect("listed");
            let has = |name: &&str| names.iter().any(|found| found == name);
            let others = || REQUIRED.iter().chain(&IMAGES);
            assert!(!has(&SUPERBLOCK) || others().all(has), "{outcome}: {names:?}");
            let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
            let options = source.setup.options().create(false);
            match SimDb::open_on(disk, runtime, options) {
                Ok(copy) => {
                    assert_eq!(copy.root(), root, "{outcome}");
                    copy.snapshot()
                        .expect("a snapshot")
                        .iter(..)
                        .for_each(|pair| drop(pair.expect("read")));
                    whole += 1;
                }
                Err(error) => {
                    assert!(!is_done, "{outcome}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 50 && whole > 0, "{refused} refused, {whole} whole");
}

#[test]
fn a_backup_wants_an_empty_folder() {
    let source = Source::new(1);
    let disk = SimDisk::new(1, unrecorded());
    pleach_ops::backup_on(&source.db, &disk, &BackupOptions::new()).expect("backed up");
    let again =
        pleach_ops::backup_on(&source.db, &disk, &BackupOptions::new()).expect_err("there is one");
    assert!(matches!(again, Error::Creation(CreationError::Exists)), "{again}");
    let disk = SimDisk::new(1, unrecorded());
    disk.open("letter.txt", OpenMode::CreateNew).expect("made");
    let foreign =
        pleach_ops::backup_on(&source.db, &disk, &BackupOptions::new()).expect_err("not empty");
    assert!(matches!(foreign, Error::Creation(CreationError::NotADatabase { .. })), "{foreign}");
}

/// What one left that found no room was called a foreign folder by the next: `NotADatabase { found: "image-a" }`.
#[test]
fn a_full_target_is_told_as_full_and_what_is_left_there_as_unfinished() {
    let mut source = Source::new(4);
    (0..20).for_each(|_| source.go_on());
    source.db.drain(0).expect("flushed");
    let options = BackupOptions::new().verify(false);
    let mut unfinished = 0;
    for operation in [Operation::Create, Operation::Write, Operation::Sync, Operation::Allocate] {
        for nth in 1.. {
            let disk = SimDisk::new(nth, unrecorded());
            let code = pleach_io::sim::code::ENOSPC;
            disk.inject(FaultRule::nth(operation, "", nth, FaultRepeats::Once, Fault::Errno(code)));
            let Err(full) = pleach_ops::backup_on(&source.db, &disk, &options) else { break };
            assert!(matches!(full, Error::Full(NoRoom::Backup(_))), "{operation:?} {nth}: {full}");
            disk.heal();
            match pleach_ops::backup_on(&source.db, &disk, &options) {
                Err(Error::Creation(CreationError::Unfinished { .. })) => unfinished += 1,
                // It failed before it had made anything, or nothing but the name of the superblock was left to be synced.
                Ok(_) | Err(Error::Creation(CreationError::Exists)) => {}
                Err(error) => panic!("{operation:?} {nth}: {error}"),
            }
        }
    }
    assert!(unfinished > 10, "{unfinished} folders with a part of a copy");
}

#[test]
fn a_close_lets_a_backup_go_on() {
    let mut source = Source::new(4);
    (0..10).for_each(|_| source.go_on());
    source.db.drain(0).expect("flushed");
    let (db, number) = (source.db.clone(), source.db.commit_number());
    let closed = Arc::new(AtomicBool::new(false));
    let progress: Progress = {
        let (db, closed) = (db.clone(), Arc::clone(&closed));
        Arc::new(move |_, _| {
            if !closed.swap(true, Ordering::Relaxed) {
                assert_eq!(db.close().expect("closed").backups, 1);
            }
        })
    };
    let disk = SimDisk::new(1, unrecorded());
    let report = pleach_ops::backup_on(&db, &disk, &BackupOptions::new().progress(Some(progress)));
    assert_eq!(report.expect("backed up").commit, number);
    assert!(closed.load(Ordering::Relaxed));
    let late = pleach_ops::backup_on(&db, SimDisk::new(1, unrecorded()), &BackupOptions::new());
    assert!(matches!(late, Err(Error::Closed)), "{late:?}");
    source.check(&disk, number);
}

/// A load wants a database of which nobody holds a state. A backup that begins meanwhile waits for its end, and has all of
/// it. It was not woken by that, and slept until the next commit.
#[test]
fn a_backup_waits_for_a_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options::new(folder.path().join("db")).create(true).cache_mib(16).threads(2);
    let db = Db::open(options.geometry(Geometry::small())).expect("created");
    let copy = folder.path().join("copy");
    let report = std::thread::scope(|scope| {
        let mut backup = None;
        let pairs = (0..1000).map(|id| {
            backup.get_or_insert_with(|| {
                let backup = scope.spawn(|| pleach_ops::backup(&db, &copy, &BackupOptions::new()));
                // The last file that it makes before it looks at the database.
                while !copy.join(IMAGES[1]).exists() && !backup.is_finished() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(100));
                backup
            });
            (uniform(id), Value::from(id.to_be_bytes().as_slice()))
        });
        db.bulk_load(pairs, &LoadOptions::new()).expect("nobody holds a state");
        let (backup, end) = (backup.expect("begun"), Instant::now() + Duration::from_secs(10));
        while !backup.is_finished() {
            if Instant::now() > end {
                db.close().expect("closed");
                panic!("the backup sleeps");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        backup.join().expect("no panic").expect("backed up")
    });
    assert_eq!((report.commit, report.roots), (db.commit_number(), db.roots()));
    assert!(db.commit_number() > 0);
}

/// Threads commit to real files, long values among them, while backups are made.
#[test]
fn backups_beside_threads_are_one_commit() {
    const KEYS: u64 = 3000;
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options::new(folder.path().join("db")).create(true).cache_mib(64).threads(2);
    let geometry = Geometry { segment_pages: 64, log_segment: 1 << 20, size_factor: 150 };
    let options = options
        .geometry(geometry)
        .log_limit_bytes(4 << 20)
        .tune(|tuning| tuning.flush_at = 1)
        .history(4)
        .durability(Durability::None);
    let db = Db::open(options).expect("created");
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
    let (done, newest) = (AtomicBool::new(false), AtomicU64::new(0));
    let backups = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                number += 1;
                assert_eq!(write(number), number);
                newest.store(number, Ordering::Release);
            }
        });
        let backups: Vec<_> = (0..6)
            .map(|turn| {
                while newest.load(Ordering::Acquire) < 10 * (turn + 1) && !writer.is_finished() {
                    std::thread::yield_now();
                }
                let copy = folder.path().join(format!("copy-{turn}"));
                let before = newest.load(Ordering::Acquire);
                (pleach_ops::backup(&db, &copy, &BackupOptions::new()), before, copy)
            })
            .collect();
        // Before anything is asserted: the writer would go on for ever.
        done.store(true, Ordering::Relaxed);
        writer.join().expect("no wrong number");
        backups
    });
    for (report, before, copy) in backups {
        let report = report.expect("backed up");
        assert!(report.commit >= before);
        let db = Db::open(Options::new(&copy).cache_mib(64)).expect("opens");
        assert_eq!((db.commit_number(), db.roots()), (report.commit, report.roots));
        for number in *db.history().start()..=report.commit {
            let session = db.at(number).expect("in the history");
            for (id, value) in
                (0..KEYS).filter_map(|id| Some((id, session.read(&uniform(id)).expect("read")?)))
            {
                let last = (1..=number).rev().find(|at| id == 0 || (id + at).is_multiple_of(7));
                let written = u64::from_be_bytes(*value.first_chunk().expect("8 bytes"));
                assert_eq!(Some(written), last, "key {id} of commit {number}");
            }
        }
        commit(&db, vec![Access::write(uniform(5), None)]);
        db.session(SessionOptions::new()).expect("a session");
    }
}
