//! Small databases on the simulated disk, with what each of their commits has.

use std::collections::BTreeMap;
use std::ops::Range;

use pleach::{Access, Db, Error, Geometry, Hasher, Key, Options, Roots, SessionOptions, Value};
use pleach_io::sim::{Damage, DamagedPage, Image, SimDisk, SimOptions, SimRuntime};
use pleach_ops::repair::LostCommits;

pub(crate) type SimDb = Db;
/// The pairs of all namespaces.
pub(crate) type Pairs = BTreeMap<(u8, Key), Vec<u8>>;

/// Roots, pairs and blob of each commit, by number.
pub(crate) type States = BTreeMap<u64, (Roots, Pairs, Vec<u8>)>;

pub(crate) const MERKLE: u8 = 3;
pub(crate) const PLAIN: u8 = 7;

pub(crate) fn new_disk() -> SimDisk {
    SimDisk::new(1, unrecorded())
}

pub(crate) fn unrecorded() -> SimOptions {
    SimOptions { record: false, ..SimOptions::default() }
}

pub(crate) fn disk_of(image: &Image) -> SimDisk {
    SimDisk::from_image_with(image, 3, unrecorded())
}

pub(crate) fn options(history: u64) -> Options {
    Options::new("sim")
        .create(true)
        .cache_kib(8 << 10)
        .in_flight(8)
        .tune(|tuning| tuning.flush_at = 2)
        .history(history)
        .kept_log_mib(0)
        .log_limit_bytes(64 << 10)
        .geometry(Geometry { segment_pages: 16, log_segment: 16 << 10, size_factor: 150 })
}

pub(crate) fn runtime(disk: &SimDisk) -> SimRuntime {
    SimRuntime::with_clock(1, disk.clock(), 2)
}

pub(crate) fn open(disk: &SimDisk, history: u64) -> Result<SimDb, Error> {
    SimDb::open_on(disk.clone(), runtime(disk), options(history))
}

/// All commits after the one that is left are named, or it is said that more may be lost, and not where the newest is named: the
/// records behind the damage tell how far they went. Rot in the very last record alone looks like a tear.
pub(crate) fn is_named(lost: &LostCommits, left: u64, newest: u64, what: &str) {
    let Range { start, end } = lost.numbers;
    assert!(start == left + 1 && end <= newest + 1, "{what}: {lost:?}");
    assert!(end > newest || lost.maybe_more || left + 1 == newest, "{what}: {lost:?}");
    assert!(left == newest || end <= newest || !lost.maybe_more, "{what}: {lost:?}");
}

pub(crate) fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// A database and what its commits have.
pub(crate) struct Chain {
    pub(crate) db: SimDb,
    pub(crate) pairs: Pairs,
    pub(crate) states: States,
    draws: u64,
}

impl Chain {
    /// A new database: some hundred pairs in two namespaces with a root, and in a plain one.
    pub(crate) fn new(disk: &SimDisk, history: u64) -> Self {
        let db = open(disk, history).expect("created");
        db.add_namespace(MERKLE).expect("added");
        db.add_plain_namespace(PLAIN).expect("added");
        let mut chain = Self { db, pairs: Pairs::new(), states: BTreeMap::new(), draws: 1 };
        chain.record();
        chain
    }

    /// A number that follows from those before.
    pub(crate) fn draw(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        let hash = Hasher::BLAKE3.hash(&self.draws.to_le_bytes());
        u64::from_le_bytes(*hash.first_chunk().expect("8 bytes")) % bound
    }

    /// Changes so many keys, which are among 400.
    pub(crate) fn commit(&mut self, keys: u64) -> u64 {
        let mut changes: BTreeMap<(u8, Key), Option<Vec<u8>>> = BTreeMap::new();
        for _ in 0..keys {
            let namespace = [0, 0, 0, MERKLE, PLAIN][usize::try_from(self.draw(5)).expect("small")];
            let roots = self.db.roots();
            if roots.get(namespace).is_none() && roots.digest(namespace).is_none() {
                continue;
            }
            let len = match self.draw(40) {
                0 => 3000,
                1 => 70_000 * usize::from(keys < 20),
                more => usize::try_from(more).expect("small"),
            };
            let byte = u8::try_from(self.draw(256)).expect("a byte");
            let value = (self.draw(6) > 0).then(|| vec![byte; len]);
            changes.insert((namespace, key(self.draw(400))), value);
        }
        let accesses = changes.iter().map(|((namespace, key), value)| {
            Access::write(*key, value.clone().map(Value::from)).in_namespace(*namespace)
        });
        let session = self.db.session(SessionOptions::new().witness(false)).expect("a session");
        let mut block = session.finish(accesses).expect("finished");
        block.set_blob(self.draws.to_le_bytes().to_vec()).expect("short");
        let number = block.commit().expect("committed");
        for (at, value) in changes {
            match value {
                Some(value) => self.pairs.insert(at, value),
                None => self.pairs.remove(&at),
            };
        }
        self.record();
        number
    }

    /// Puts one value of so many bytes.
    pub(crate) fn put(&mut self, id: u64, len: usize) {
        let put = Access::write(key(id), Some(Value::from(vec![7; len])));
        let session = self.db.session(SessionOptions::new().witness(false)).expect("a session");
        session.finish(vec![put]).expect("finished").commit().expect("committed");
        self.pairs.insert((0, key(id)), vec![7; len]);
        self.record();
    }

    /// Adds a namespace, or drops one.
    pub(crate) fn namespace(&mut self, namespace: u8, adds: bool) {
        if adds {
            self.db.add_namespace(namespace).expect("added");
        } else {
            self.db.drop_namespace(namespace).expect("dropped");
            self.pairs.retain(|(of, _), _| *of != namespace);
        }
        self.record();
    }

    /// Goes back by so many commits.
    pub(crate) fn roll_back(&mut self, commits: u64) {
        let then = self.db.commit_number() - commits;
        self.db.rollback(commits).expect("rolled back");
        self.pairs = self.states[&then].1.clone();
        self.record();
    }

    /// Takes the newest state down.
    fn record(&mut self) {
        let state = (self.db.roots(), self.pairs.clone(), self.db.blob());
        self.states.insert(self.db.commit_number(), state);
    }
}

/// All pairs of the newest state.
pub(crate) fn pairs(db: &SimDb) -> Pairs {
    let session = db.snapshot().expect("a snapshot");
    let mut pairs = Pairs::new();
    let roots = session.roots().clone();
    let plain = roots.digests().map(|(namespace, _)| namespace);
    for number in roots.iter().map(|(namespace, _)| namespace).chain(plain) {
        for pair in session.namespace(number).expect("it exists").iter(..) {
            let (key, value) = pair.expect("read");
            pairs.insert((number, key), value.to_vec());
        }
    }
    pairs
}

/// Flips a bit of a page, or makes it unreadable.
pub(crate) fn damage(disk: &SimDisk, file: &str, page: u64, unreadable: bool) {
    let at = DamagedPage { file: file.to_owned(), page };
    let byte = u16::try_from(page * 37 % 4096).expect("in a page");
    disk.damage(&if unreadable {
        Damage::Unreadable(at)
    } else {
        Damage::Flip { at, byte, bit: 3 }
    });
}
