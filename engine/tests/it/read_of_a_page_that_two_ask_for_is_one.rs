//! A page that two ask for at the same time is read once, whoever they are: the prefetch task, a finish,
//! readers of one key and of many, and the flush.
//!
//! The device holds reads until the readers have met: each sleeps in the device, or waits for a page that
//! another one reads. Then it counts, by page. The cache has room for all pages, so that none leaves.

use std::sync::{Arc, OnceLock};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use pleach::load::LoadOptions;
use pleach::{Access, Db, Error, Metrics, Options, SessionOptions, Value};
use pleach_core::Key;
use pleach_io::sim::{Image, SimDisk};

use crate::common::held_device::{Gate, Held, Mishap, NEVER, Patient};
use crate::common::{commit, uniform};
use crate::crash::unrecorded;

type HeldDb = Db;
type Session = pleach::Session;

/// Enough for a few hundred leaf pages in several regions.
const KEYS: u64 = 12_000;

/// Reads in flight: few, so that readers overtake each other, and more than there are pages.
const DEPTHS: [usize; 2] = [6, 1024];

fn keys() -> Vec<Key> {
    (0..KEYS).map(uniform).collect()
}

fn value(commit: u8) -> Value {
    Value::from(&[commit; 8][..])
}

fn writes(keys: &[Key], commit: u8) -> Vec<Access> {
    keys.iter().map(|key| Access::read_write(*key, Some(value(commit)))).collect()
}

fn options(in_flight: usize) -> Options {
    Options::new("sim")
        .create(true)
        .cache_mib(64)
        .threads(2)
        .in_flight(in_flight)
        .tune(|tuning| tuning.flush_at = 255)
        .small()
}

/// A database on a held device, all of whose pages are cold.
struct Cold {
    db: HeldDb,
    gate: Arc<Gate>,
    opened: Metrics,
}

impl Cold {
    fn open(image: &Image, options: Options) -> Self {
        let (device, gate) = Held::new(SimDisk::from_image_with(image, 1, unrecorded()));
        let db = Db::open_on(device, Patient::new(2, &gate), options).expect("opened");
        // The first step of the flush task lets nodes leave. After that, a flush or a checkpoint comes
        // when the test wants it.
        let steps =
            || db.tasks().iter().find(|task| task.name == "pleach-flush").expect("listed").steps;
        let end = Instant::now() + NEVER;
        while steps() < 2 {
            assert!(Instant::now() < end, "the flush task does not run");
            db.resume_background();
            std::thread::sleep(Duration::from_millis(1));
        }
        // Regions are in memory: whoever finds one away reads it.
        let are_loaded = |metrics: Metrics| metrics.index_bytes > 50 * metrics.leaf_pages;
        while !are_loaded(db.metrics()) {
            assert!(Instant::now() < end, "nobody loads the regions");
            std::thread::sleep(Duration::from_millis(1));
        }
        db.pause_background();
        let opened = db.metrics();
        assert_eq!(opened.cache_misses, 0, "an open reads no leaf page");
        Self { db, gate, opened }
    }

    fn loaded(in_flight: usize) -> Self {
        Self::open(loaded(), options(in_flight))
    }

    fn session(&self) -> Session {
        self.db.session(SessionOptions::new()).expect("a session")
    }

    /// Lets readers meet: each begins when those before it are stuck, and then the device answers. What a
    /// flush writes it gets written when all others are done, so that no page leaves before.
    fn meet<const N: usize>(&self, readers: [Reader<'_>; N]) {
        self.gate.close();
        std::thread::scope(|scope| {
            let (mut stuck, mut reading) = (0, Vec::new());
            for reader in readers {
                let thread = scope.spawn(reader.read);
                if !reader.writes {
                    reading.push(thread);
                }
                stuck += reader.stuck;
                self.gate.until_stuck(stuck);
            }
            self.gate.open();
            let ended: Vec<_> = reading.into_iter().map(ScopedJoinHandle::join).collect();
            self.gate.let_write();
            if let Some(panic) = ended.into_iter().find_map(Result::err) {
                std::panic::resume_unwind(panic);
            }
        });
    }

    /// No page was read twice, nobody waited in vain, and the counters tell of what the device did. Gives the number of
    /// leaf pages that were read.
    fn each_was_read_once(&self) -> u64 {
        let reads = self.gate.reads();
        let twice: Vec<_> = reads.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "{} of {} pages: {twice:?}", twice.len(), reads.len());
        assert_eq!(self.gate.waits().1, 0, "a reader waited in vain");
        let leaves = reads.keys().filter(|(file, _)| file == "leaf").count() as u64;
        let metrics = self.db.metrics();
        assert_eq!(metrics.cache_misses + metrics.page_rereads, leaves);
        leaves
    }

    /// The same, and every leaf page was read.
    fn all_were_read_once(&self) {
        assert_eq!(self.each_was_read_once(), self.opened.leaf_pages);
        assert!(self.opened.leaf_pages > 200, "{} pages", self.opened.leaf_pages);
    }
}

/// Somebody who reads.
struct Reader<'a> {
    read: Box<dyn FnOnce() + Send + 'a>,
    /// Threads that are stuck by it in any case.
    stuck: usize,
    /// True of the flush.
    writes: bool,
}

impl<'a> Reader<'a> {
    fn new(read: impl FnOnce() + Send + 'a) -> Self {
        Self { read: Box::new(read), stuck: 1, writes: false }
    }

    /// The task has asked for what the ring has room for, and sleeps; the caller is back.
    fn prefetch(session: &'a Session, keys: &'a [Key]) -> Self {
        Self::new(move || session.prefetch(keys))
    }

    /// The same after others, who may have left nothing to ask for.
    fn late_prefetch(session: &'a Session, keys: &'a [Key]) -> Self {
        Self { stuck: 0, ..Self::prefetch(session, keys) }
    }

    fn finish(session: Session, keys: &[Key]) -> Self {
        let accesses = writes(keys, 9);
        Self::new(move || drop(session.finish(accesses).expect("finished")))
    }

    fn read_many(session: &'a Session, keys: &'a [Key]) -> Self {
        Self::new(move || {
            let values = session.read_many(keys).expect("read");
            assert!(values.iter().all(|got| got.as_deref() == Some(&[1; 8])));
        })
    }

    fn read(session: &'a Session, keys: &'a [Key]) -> Self {
        Self::new(move || {
            for key in keys {
                assert_eq!(session.read(key).expect("read").as_deref(), Some(&[1; 8][..]));
            }
        })
    }
}

/// A loaded database that was closed.
fn loaded() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let disk = SimDisk::new(1, unrecorded());
        let (device, gate) = Held::new(disk.clone());
        let db: HeldDb = Db::open_on(device, Patient::new(2, &gate), options(64)).expect("created");
        let items = keys().into_iter().map(|key| (key, value(1)));
        db.bulk_load(items, &LoadOptions::new()).expect("loaded");
        db.close().expect("closed");
        disk.image()
    })
}

#[test]
fn prefetch_and_the_finish_that_follows_at_once() {
    for depth in DEPTHS {
        let (cold, keys) = (Cold::loaded(depth), keys());
        let (session, other) = (cold.session(), cold.session());
        cold.meet([Reader::prefetch(&session, &keys), Reader::finish(other, &keys)]);
        cold.all_were_read_once();
    }
}

#[test]
fn prefetch_and_read_many() {
    for depth in DEPTHS {
        let (cold, keys) = (Cold::loaded(depth), keys());
        let session = cold.session();
        cold.meet([Reader::prefetch(&session, &keys), Reader::read_many(&session, &keys)]);
        cold.all_were_read_once();
        let cold = Cold::loaded(depth);
        let session = cold.session();
        cold.meet([Reader::read_many(&session, &keys), Reader::late_prefetch(&session, &keys)]);
        cold.all_were_read_once();
    }
}

#[test]
fn prefetch_and_readers_of_one_key_after_the_other() {
    for depth in DEPTHS {
        let (cold, keys) = (Cold::loaded(depth), keys());
        let session = cold.session();
        let backwards: Vec<Key> = keys.iter().rev().copied().collect();
        cold.meet([
            Reader::prefetch(&session, &keys),
            Reader::read(&session, &keys),
            Reader::read(&session, &keys),
            Reader::read(&session, &backwards),
        ]);
        cold.all_were_read_once();
    }
}

#[test]
fn readers_of_many_keys() {
    for depth in DEPTHS {
        let (cold, keys) = (Cold::loaded(depth), keys());
        let (session, other) = (cold.session(), cold.session());
        let backwards: Vec<Key> = keys.iter().rev().copied().collect();
        cold.meet([
            Reader::read_many(&session, &keys),
            Reader::read_many(&other, &keys),
            // A session has one ring: this one reads its keys one by one.
            Reader::read_many(&session, &backwards),
        ]);
        cold.all_were_read_once();
    }
}

#[test]
fn readers_of_one_key() {
    let (cold, keys) = (Cold::loaded(64), keys());
    let session = cold.session();
    let read = || Reader::read(&session, &keys[..1]);
    cold.meet([read(), read(), read(), read()]);
    assert_eq!(cold.each_was_read_once(), 1);
    assert_eq!(cold.gate.waits().0, 3, "all but one have waited");
}

#[test]
fn a_finish_and_read_many() {
    for depth in DEPTHS {
        let (cold, keys) = (Cold::loaded(depth), keys());
        let (session, other) = (cold.session(), cold.session());
        cold.meet([Reader::read_many(&session, &keys), Reader::finish(other, &keys)]);
        cold.all_were_read_once();
        let cold = Cold::loaded(depth);
        let (session, other) = (cold.session(), cold.session());
        cold.meet([Reader::finish(other, &keys), Reader::read_many(&session, &keys)]);
        cold.all_were_read_once();
    }
}

#[test]
fn two_finishes_and_a_small_one() {
    for depth in DEPTHS {
        let (cold, keys) = (Cold::loaded(depth), keys());
        // So few accesses are folded on the calling thread.
        let few: Vec<Key> = keys.iter().rev().take(64).copied().collect();
        cold.meet([
            Reader::finish(cold.session(), &keys),
            Reader::finish(cold.session(), &few),
            Reader { stuck: 0, ..Reader::finish(cold.session(), &keys) },
        ]);
        cold.all_were_read_once();
    }
}

/// A database with changes buffered for every page.
fn pending() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let disk = SimDisk::from_image_with(loaded(), 2, unrecorded());
        let (device, gate) = Held::new(disk.clone());
        let db: HeldDb = Db::open_on(device, Patient::new(2, &gate), options(64)).expect("opened");
        db.pause_background();
        commit(&db, writes(&changed(), 2));
        db.close().expect("closed");
        disk.image()
    })
}

/// Every eighth key: some on each page.
fn changed() -> Vec<Key> {
    keys().into_iter().step_by(8).collect()
}

#[test]
fn a_flush_and_readers() {
    let unchanged: Vec<Key> = keys().chunks(8).flat_map(|eight| eight[1..].to_vec()).collect();
    for depth in DEPTHS {
        for flush_first in [true, false] {
            let cold = Cold::open(pending(), options(depth));
            assert_eq!(cold.opened.pending_entries, changed().len() as u64);
            let (session, other) = (cold.session(), cold.session());
            let drain = || Reader::new(|| cold.db.drain(0).expect("flushed"));
            let flush = || Reader { writes: true, ..drain() };
            let many = Reader::read_many(&session, &unchanged);
            let one = Reader::read(&other, &unchanged);
            if flush_first {
                cold.meet([flush(), many, one]);
            } else {
                cold.meet([many, one, flush()]);
            }
            cold.all_were_read_once();
            assert!(cold.db.metrics().pages_written > 0);
        }
    }
}

/// The device fails one reader, or it panics: those who wait go on by themselves.
#[test]
fn a_reader_that_fails_or_panics_leaves_the_others_alone() {
    for mishap in [Mishap::Fails, Mishap::Panics] {
        for many in [false, true] {
            let (cold, keys) = (Cold::loaded(64), keys());
            let (session, other) = (cold.session(), cold.session());
            let unlucky = Reader::new(|| {
                let read = || {
                    let many = many.then(|| session.read_many(&keys[..1]).map(drop));
                    many.unwrap_or_else(|| session.read(&keys[0]).map(drop))
                };
                let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
                match mishap {
                    Mishap::Panics => drop(read.expect_err("the device panics")),
                    Mishap::Fails => {
                        let read = read.expect("no panic");
                        assert!(matches!(read, Err(Error::Io(_))), "{read:?}");
                    }
                }
            });
            cold.gate.mishap(mishap);
            let lucky = || Reader::read(&other, &keys[..1]);
            cold.meet([unlucky, lucky(), lucky()]);
            let reads: u32 = cold.gate.reads().values().sum();
            assert!((2..=3).contains(&reads), "{reads} reads: who waited looks for itself");
            assert_eq!(cold.gate.waits(), (2, 0), "{mishap:?}");
            assert_eq!(cold.db.metrics().quarantined_pages, 0);
        }
    }
}
