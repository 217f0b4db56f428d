//! A read-only open beside the process that writes: each session reads the state of its commit, or is told that this is too old,
//! whatever the writer commits, flushes, checkpoints, loads, closes and opens meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pleach::load::LoadOptions;
use pleach::{
    Access, Db, Durability, Error, Geometry, Hasher, Options, Session, SessionOptions, Value,
    proof, witness,
};
use pleach_core::{Key, proof::Lookup};
use pleach_io::sim::{SimDisk, SimRuntime};
use pleach_io::{Device as _, OpenMode, PageBuf};

use crate::common::{Model, Rng, commit, uniform};
use crate::crash::workload::{batch, value};
use crate::crash::{Setup, SimDb, seeds, unrecorded};

type SimSession = Session;

/// What the model has of a commit: the pairs of namespace 0, and of namespace 5 while it exists.
#[derive(Clone, Default)]
struct State {
    model: Model,
    other: Option<BTreeMap<Key, Value>>,
}

/// The writer, and its states by number.
struct Writer {
    setup: Setup,
    disk: SimDisk,
    db: Option<SimDb>,
    runtime: SimRuntime,
    rng: Rng,
    states: Vec<State>,
    opens: u64,
}

impl Writer {
    fn new(seed: u64) -> Self {
        let mut setup = Setup::draw(seed);
        setup.history = [0, 3, 20][usize::try_from(seed % 3).expect("small")];
        setup.history_bytes = [64 << 20, 20_000, 1][usize::try_from(seed / 3 % 3).expect("small")];
        if seed.is_multiple_of(4) {
            (setup.ids, setup.flush_at) = (600, 1);
        }
        let disk = SimDisk::new(seed, unrecorded());
        let (db, runtime) = setup.open(&disk, 1).expect("created");
        let states = vec![State::default()];
        Self { setup, disk, db: Some(db), runtime, rng: Rng::new(seed), states, opens: 1 }
    }

    fn db(&self) -> &SimDb {
        self.db.as_ref().expect("open")
    }

    fn publish(&mut self, number: u64, state: State) {
        assert_eq!(number, self.states.len() as u64);
        self.states.push(state);
    }

    fn commit(&mut self) {
        let mut state = self.states.last().expect("some").clone();
        let mut accesses = batch(&mut self.rng, &self.setup, &state.model);
        state.model.apply(&accesses);
        if let Some(other) = &mut state.other {
            for _ in 0..self.rng.below(4) {
                let (key, value) = (uniform(self.rng.below(20)), value(&mut self.rng));
                if other.insert(key, value.clone()) != Some(value.clone()) {
                    accesses.retain(|access| access.namespace != 5 || access.key != key);
                    accesses.push(Access::write(key, Some(value)).in_namespace(5));
                }
            }
        }
        let number = commit(self.db(), accesses);
        self.publish(number, state);
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0..12 => {
                for _ in 0..=self.rng.below(3) {
                    self.commit();
                    self.runtime.step_some(self.rng.index(40));
                }
            }
            12..14 => self.db().drain(0).expect("flushed"),
            14..19 => {
                self.runtime.clock().advance(std::time::Duration::from_millis(150));
                self.runtime.step_some(self.rng.index(300));
            }
            19 => {
                let to = self.db().history();
                let back = to.start() + self.rng.below(to.end() - to.start() + 1);
                let tip = self.db().commit_number();
                let number = self.db().rollback_to(back).expect("in the history");
                if number > tip {
                    let state = self.states[usize::try_from(back).expect("few")].clone();
                    self.publish(number, state);
                }
            }
            20 => self.toggle_namespace(),
            // A close with a checkpoint, or a drop without one.
            21 => self.open_again(true),
            22 => self.open_again(false),
            _ => {
                let keys: Vec<Key> = self.tip().model.values.keys().copied().collect();
                let delete = |key| Access::write(key, None);
                let number = commit(self.db(), keys.into_iter().map(delete).collect());
                let mut state = self.tip().clone();
                state.model = Model::default();
                self.publish(number, state);
            }
        }
    }

    fn tip(&self) -> &State {
        self.states.last().expect("some")
    }

    fn toggle_namespace(&mut self) {
        let mut state = self.tip().clone();
        let number = if state.other.is_some() {
            state.other = None;
            self.db().drop_namespace(5).expect("dropped")
        } else {
            state.other = Some(BTreeMap::new());
            match self.db().add_namespace(5) {
                Err(Error::NamespaceInUse { .. }) => return,
                added => added.expect("added"),
            }
        };
        self.publish(number, state);
    }

    fn open_again(&mut self, close: bool) {
        let db = self.db.take().expect("open");
        if close {
            db.close().expect("closed");
        }
        drop(db);
        self.opens += 1;
        let (db, runtime) = self.setup.open(&self.disk, self.opens).expect("opens");
        assert_eq!(db.commit_number() + 1, self.states.len() as u64);
        (self.db, self.runtime) = (Some(db), runtime);
    }

    fn reader(&self, seed: u64) -> SimDb {
        let runtime = SimRuntime::with_clock(seed, self.disk.clock(), 1);
        let options = self.setup.options().create(false).read_only(true);
        Db::open_on(self.disk.clone(), runtime, options).expect("opens beside the writer")
    }

    /// Looks at a reader's session: its state is that of its commit, or too old. Says which.
    fn look(&mut self, session: &SimSession) -> bool {
        let (number, setup) = (session.commit_number(), format!("{:?}", self.setup));
        let state = self.states[usize::try_from(number).expect("few")].clone();
        let looked = self.compare(session, &state);
        match looked {
            Ok(()) => true,
            Err(Error::SnapshotTooOld { commit, oldest: told }) => {
                assert_eq!(commit, number, "{setup}");
                // The log is kept from the record behind the oldest commit of the history on, and pages may have moved before that.
                let history = self.db().history();
                assert!(
                    number <= *history.start(),
                    "{setup}: commit {number} of {history:?} can be read, told {told}"
                );
                false
            }
            Err(error) => panic!("{setup}: commit {number}: {error}"),
        }
    }

    fn compare(&mut self, session: &SimSession, state: &State) -> Result<(), Error> {
        let what = format!("{:?}, commit {}", self.setup, session.commit_number());
        let pairs = session.iter(..).collect::<Result<Vec<_>, _>>()?;
        let expected = state.model.values.iter().map(|(key, value)| (*key, value.clone()));
        assert!(pairs.into_iter().eq(expected), "{what}");
        let naive = state.model.naive(Hasher::BLAKE3);
        assert_eq!(session.root(), naive.root(Hasher::BLAKE3), "{what}");
        let ids = (0..8).map(|_| self.rng.below(self.setup.ids + 2));
        let keys: Vec<Key> = ids.map(|id| crate::common::key(self.setup.keys, id)).collect();
        session.prefetch(&keys);
        for (key, found) in keys.iter().zip(session.read_many(&keys)?) {
            assert_eq!(found.as_ref(), state.model.values.get(key), "{what}");
            assert_eq!(session.read(key)?, found, "{what}");
        }
        let proof = session.prove_many(&keys)?;
        let verified =
            proof::multi::verify(Hasher::BLAKE3, &proof, &session.root()).expect("a proof");
        for key in &keys {
            let there =
                state.model.values.get(key).map(|value| {
                    Lookup::Present(pleach_core::node::value_hash(Hasher::BLAKE3, value))
                });
            assert_eq!(verified.get(key), there.unwrap_or(Lookup::Absent), "{what}");
        }
        match (&state.other, session.namespace(5)) {
            (None, Err(Error::Namespace(5))) => {}
            (Some(other), Ok(namespace)) => {
                let pairs = namespace.iter(..).collect::<Result<Vec<_>, _>>()?;
                let expected = other.iter().map(|(key, value)| (*key, value.clone()));
                assert!(pairs.into_iter().eq(expected), "{what}: namespace 5");
            }
            (_, Err(error)) => return Err(error),
            (None, Ok(_)) => panic!("{what}: namespace 5 is not there"),
        }
        Ok(())
    }

    /// A block is made on the reader's newest state, with the root that it would have, and cannot be committed.
    fn finish_on(&mut self, reader: &SimDb) {
        let session = reader.session(SessionOptions::new()).expect("a session");
        let mut model =
            self.states[usize::try_from(session.commit_number()).expect("few")].model.clone();
        let accesses = batch(&mut self.rng, &self.setup, &model);
        model.apply(&accesses);
        let before = session.root();
        let mut block = match session.finish(accesses) {
            Ok(block) => block,
            Err(error) => {
                let error = error.into_error();
                assert!(matches!(error, Error::SnapshotTooOld { .. }), "{error}");
                return;
            }
        };
        assert_eq!(block.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
        let witness = block.take_witness().expect("asked for");
        let verified = witness::verify(Hasher::BLAKE3, &witness, &before).expect("a witness");
        assert_eq!(*verified.new_root(), block.root());
        let refused = block.commit().expect_err("another process writes");
        assert!(matches!(refused.error(), Error::ReadOnly), "{}", refused.error());
    }
}

#[test]
fn a_session_of_a_reader_reads_its_commit_or_is_too_old() {
    let (mut read, mut too_old, mut anew) = (0, 0, 0);
    for seed in seeds(0, 60) {
        let mut writer = Writer::new(seed);
        let mut readers: Vec<SimDb> = Vec::new();
        let mut sessions: Vec<SimSession> = Vec::new();
        for turn in 0..90 {
            writer.step();
            match writer.rng.below(8) {
                0 if readers.len() < 3 => readers.push(writer.reader(1000 + turn)),
                1 if readers.len() > 1 => {
                    let at = writer.rng.index(readers.len());
                    drop(readers.swap_remove(at));
                }
                _ => {}
            }
            for reader in &readers {
                if writer.rng.below(3) == 0 {
                    let before = reader.commit_number();
                    let number = reader.refresh().expect("goes on");
                    assert_eq!(number + 1, writer.states.len() as u64, "seed {seed}");
                    assert!(number >= before);
                    sessions.push(reader.snapshot().expect("a snapshot"));
                }
                if writer.rng.below(4) == 0 {
                    let history = reader.history();
                    let commits = history.end() - history.start() + 1;
                    match reader.at(history.start() + writer.rng.below(commits)) {
                        Ok(session) => sessions.push(session),
                        Err(error) => {
                            assert!(matches!(error, Error::SnapshotTooOld { .. }), "{error}");
                        }
                    }
                }
                if writer.rng.below(6) == 0 {
                    writer.finish_on(reader);
                }
            }
            while sessions.len() > 4 {
                let at = writer.rng.index(sessions.len());
                drop(sessions.swap_remove(at));
            }
            for session in &sessions {
                if writer.rng.below(2) == 0 {
                    *(if writer.look(session) { &mut read } else { &mut too_old }) += 1;
                }
            }
        }
        // One that has slept for so long that the log has left it behind.
        let reader = writer.reader(7);
        let old = reader.snapshot().expect("a snapshot");
        (0..40).for_each(|_| writer.step());
        assert_eq!(reader.refresh().expect("opens anew") + 1, writer.states.len() as u64);
        anew += u64::from(!writer.look(&old));
        assert!(writer.look(&reader.snapshot().expect("a snapshot")));
        drop((old, sessions));
        for reader in readers {
            reader.close().expect("there is nothing to be written");
        }
        assert!(writer.db().open_handles().is_empty());
    }
    println!("{read} states read, {too_old} were too old, {anew} readers were left behind");
    assert!(read > 100 && too_old > 10 && anew > 0);
}

/// A bulk load has no record in the log: a reader opens anew.
#[test]
fn a_reader_goes_on_behind_a_bulk_load() {
    let writer = Writer::new(4);
    let reader = writer.reader(9);
    let before = reader.snapshot().expect("a snapshot");
    let pairs = (0..500).map(|id| (uniform(id), Value::from(id.to_be_bytes().as_slice())));
    writer.db().bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    // With and without a record behind it, which does not follow what the reader has.
    let other = writer.reader(10);
    assert_eq!(other.refresh().expect("goes on"), writer.db().commit_number());
    commit(writer.db(), vec![Access::write(uniform(1), Some(Value::from(b"one".as_slice())))]);
    assert_eq!(other.refresh().expect("goes on"), writer.db().commit_number());
    assert_eq!(reader.refresh().expect("goes on"), writer.db().commit_number());
    assert_eq!(reader.root(), writer.db().root());
    let session = reader.snapshot().expect("a snapshot");
    assert_eq!(session.iter(..).count(), 500);
    let late = before.read(&uniform(1));
    assert!(matches!(late, Ok(None) | Err(Error::SnapshotTooOld { .. })), "{late:?}");
}

/// What damages a page is no move: the reader says so, and does not try for ever.
#[test]
fn a_damaged_page_is_an_error_for_a_reader_and_others_are_read() {
    let mut writer = Writer::new(4);
    for _ in 0..20 {
        writer.commit();
    }
    writer.db().drain(0).expect("flushed");
    let reader = writer.reader(9);
    let disk = &writer.disk;
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
    let keys: Vec<Key> = writer.tip().model.values.keys().copied().collect();
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
    let writing = options.clone().create(true).log_limit_bytes(4 << 20).flush_at(1).history(40);
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
