//! Many states of one database at the same time, each with its model: the tip, chains of overlays, and
//! sessions that are kept while commits, flushes, checkpoints and reopens go on. On the simulated disk,
//! from a seed.

use pleach::{Db, Geometry, Options, Overlay, Session, SessionOptions};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use super::{Keys, Model, Rng, batch, key};

type SimDb = Db;
type SimOverlay = Overlay;
pub type SimSession = Session;

/// Sessions that are kept at a time.
const KEPT: usize = 6;

pub struct States {
    pub rng: Rng,
    pub kind: Keys,
    pub ids: u64,
    /// Sessions with what they must say.
    pub kept: Vec<(SimSession, Model)>,
    chain: Vec<(SimOverlay, Model)>,
    tip: Model,
    db: Option<SimDb>,
    runtime: SimRuntime,
    disk: SimDisk,
    seed: u64,
}

impl States {
    pub fn new(seed: u64) -> Self {
        let kinds = [Keys::Uniform, Keys::SharedPrefix, Keys::Sequential];
        let disk = SimDisk::new(seed, SimOptions { record: false, ..SimOptions::default() });
        let mut states = Self {
            rng: Rng::new(seed),
            kind: kinds[usize::try_from(seed % 3).expect("below 3")],
            ids: [3, 60, 2000, 9000][usize::try_from(seed / 3 % 4).expect("below 4")],
            kept: Vec::new(),
            chain: Vec::new(),
            tip: Model::default(),
            db: None,
            runtime: SimRuntime::with_clock(seed, disk.clock(), 2),
            disk,
            seed,
        };
        states.reopen();
        states
    }

    pub fn db(&self) -> &SimDb {
        self.db.as_ref().expect("open")
    }

    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// A key of the database, or one that is not there.
    pub fn key(&mut self) -> pleach::Key {
        let id = self.rng.below(self.ids + self.ids / 4 + 1);
        let mut key = key(self.kind, id);
        if self.rng.below(8) == 0 {
            key[31] ^= 1;
        }
        key
    }

    /// Lets background tasks take some steps.
    pub fn step(&mut self) {
        let steps = self.rng.index(30);
        self.runtime.step_some(steps);
    }

    /// One thing happens, and a session on the newest state or on another one is kept.
    pub fn next(&mut self) {
        if self.rng.below(20) == 0 {
            self.reopen();
        }
        self.next_without_reopen();
    }

    /// The same, but the database stays open.
    pub fn next_without_reopen(&mut self) {
        match self.rng.below(9) {
            0..=3 if self.chain.is_empty() => self.commit(),
            0..=5 => self.overlay(),
            6 if !self.chain.is_empty() => {
                let at = self.rng.index(self.chain.len());
                self.chain[at].0.commit().expect("committed");
                self.tip = self.chain[at].1.clone();
                self.chain.drain(..=at);
                if !self.chain.is_empty() && self.rng.below(2) == 0 {
                    self.chain.clear();
                }
            }
            7 => self.db().drain(0).expect("drained"),
            _ => self.step(),
        }
        self.step();
        self.keep();
    }

    fn accesses(&mut self) -> Vec<pleach::Access> {
        let size = [3, 40, 600][self.rng.index(3)];
        batch(&mut self.rng, self.kind, self.ids, size)
    }

    fn commit(&mut self) {
        let accesses = self.accesses();
        self.tip.apply(&accesses);
        super::commit(self.db(), accesses);
    }

    fn overlay(&mut self) {
        let accesses = self.accesses();
        let options = match self.chain.last() {
            Some((overlay, _)) => SessionOptions::new().over(overlay),
            None => SessionOptions::new(),
        };
        let mut model = self.chain.last().map_or(&self.tip, |(_, model)| model).clone();
        model.apply(&accesses);
        let session = self.db().session(options).expect("a session");
        let overlay = session.finish(accesses).expect("finished").into_overlay();
        self.chain.push((overlay, model));
        if self.chain.len() > 5 {
            self.chain.clear();
        }
    }

    fn keep(&mut self) {
        let at = self.rng.index(self.chain.len() + 1);
        let (options, model) = match self.chain.get(at) {
            Some((overlay, model)) => (SessionOptions::new().over(overlay), model),
            None => (SessionOptions::new(), &self.tip),
        };
        let kept = (self.db().session(options).expect("a session"), model.clone());
        self.kept.push(kept);
        if self.kept.len() > KEPT {
            let at = self.rng.index(self.kept.len());
            self.kept.swap_remove(at);
        }
    }

    /// Closes the database, or drops it, and opens it again: nothing is cached any more.
    pub fn reopen(&mut self) {
        self.kept.clear();
        self.chain.clear();
        if let Some(db) = self.db.take()
            && self.rng.below(2) == 0
        {
            db.close().expect("closed");
        }
        let options = Options::new("sim")
            .create(true)
            .cache_kib([1024, 16 << 10][self.rng.index(2)])
            // Whatever is kept can be read, however small the cache is.
            .history_bytes(4 << 20)
            .in_flight(8)
            .flush_at(1 + u8::try_from(self.seed % 3).expect("below 3"))
            .trie_cache_kib((self.seed % 4 == 3).then_some(0))
            .log_limit_bytes(64 << 10)
            .checkpoint_regions(1 + self.rng.index(4))
            .geometry(Geometry { segment_pages: 16, log_segment: 16 << 10, size_factor: 150 });
        let seed = self.rng.next();
        self.runtime = SimRuntime::with_clock(seed, self.disk.clock(), 2);
        let db = SimDb::open_on(self.disk.clone(), self.runtime.clone(), options);
        self.db = Some(db.expect("opened"));
    }
}
