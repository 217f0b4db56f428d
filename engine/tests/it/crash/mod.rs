//! What the crash and fault tests share: databases on the simulated disk, a workload from a
//! seed, and the check of what a crash has left against the history of commits.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod check;
pub mod workload;

use std::time::Duration;

use pleach::{Db, Durability, Error, Geometry, Hasher, Options};
use pleach_core::{Key, Node};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use crate::common::{Keys, Model, Rng, cases, key};

pub type SimDb = Db;

/// Mark of "commit `number` was begun".
pub fn begun(number: u64) -> u64 {
    3 * number
}

/// Mark of "commit `number` was acknowledged".
pub fn acknowledged(number: u64) -> u64 {
    3 * number + 1
}

/// Mark of "commit `number` is durable, whatever the mode": it was found by an open, or closed.
/// Commit 0 is the creation.
pub fn durable(number: u64) -> u64 {
    3 * number + 2
}

/// What the marks before a crash promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// At least this commit is there.
    pub least: u64,
    /// At most this one.
    pub most: u64,
}

impl Promise {
    /// With `synced`, an acknowledgement means durable.
    pub fn of(marks: &[u64], synced: bool) -> Self {
        let newest = |kinds: &[u64]| {
            marks
                .iter()
                .filter(|mark| kinds.contains(&(*mark % 3)))
                .map(|mark| mark / 3)
                .max()
                .unwrap_or(0)
        };
        Self { least: newest(if synced { &[1, 2] } else { &[2] }), most: newest(&[0]) }
    }
}

/// One way to run a database, drawn from a seed.
#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub keys: Keys,
    pub ids: u64,
    pub flush_at: u8,
    pub durability: Durability,
    pub cache_kib: u64,
    pub keeps_lines: bool,
    /// Regions that a checkpoint serialises in one step.
    pub checkpoint_regions: usize,
    /// Past commits that can be read.
    pub history: u64,
    /// Bytes of memory for undo.
    pub history_bytes: u64,
}

impl Setup {
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xc4a5);
        let kinds = [Keys::Uniform, Keys::Sequential, Keys::SharedPrefix];
        Self {
            seed,
            keys: kinds[rng.index(3)],
            ids: [3, 12, 40, 100][rng.index(4)],
            flush_at: [1, 2, 3][rng.index(3)],
            durability: Durability::Commit,
            cache_kib: [256, 512, 4096][rng.index(3)],
            keeps_lines: rng.below(2) == 0,
            // Few, so that commits and flushes fall between the regions of an image.
            checkpoint_regions: 1 + rng.index(4),
            history: 0,
            history_bytes: 64 << 20,
        }
    }

    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    pub fn options(&self) -> Options {
        Options::new("sim")
            .create(true)
            .cache_kib(self.cache_kib)
            .threads(1)
            .in_flight(4)
            .durability(self.durability)
            .tune(|tuning| tuning.flush_at = self.flush_at)
            .tune(|tuning| tuning.trie_cache = (!self.keeps_lines).then_some(0))
            .log_limit_bytes(64 << 10)
            .tune(|tuning| tuning.checkpoint_regions = self.checkpoint_regions)
            .history(self.history)
            .undo_memory_bytes(self.history_bytes)
            .geometry(Geometry::least())
    }

    /// Opens, or creates, the database on a disk.
    pub fn open(&self, disk: &SimDisk, seed: u64) -> Result<(SimDb, SimRuntime), Error> {
        let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
        Ok((Db::open_on(disk.clone(), runtime.clone(), self.options())?, runtime))
    }

    /// What the marks before a crash promise under this setup.
    pub fn promise(&self, marks: &[u64]) -> Promise {
        Promise::of(marks, self.durability == Durability::Commit)
    }

    pub fn key(&self, id: u64) -> Key {
        key(self.keys, id)
    }
}

/// Options of a disk that is only looked at, or worked on without looking at its crashes.
pub fn unrecorded() -> SimOptions {
    SimOptions { record: false, ..SimOptions::default() }
}

/// The states of a database, by commit number.
#[derive(Clone)]
pub struct History {
    states: Vec<(Node, Model)>,
}

impl Default for History {
    fn default() -> Self {
        Self { states: vec![(pleach_core::TERMINATOR, Model::default())] }
    }
}

impl History {
    pub fn push(&mut self, model: Model) {
        self.states.push((model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3), model));
    }

    /// Forgets the states from `number` on: their commits failed.
    pub fn truncate(&mut self, number: u64) {
        self.states.truncate(usize::try_from(number).expect("a small number"));
    }

    /// Number of the newest commit.
    pub fn newest(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    pub fn root(&self, number: u64) -> Node {
        self.states[usize::try_from(number).expect("a small number")].0
    }

    pub fn model(&self, number: u64) -> &Model {
        &self.states[usize::try_from(number).expect("a small number")].1
    }
}

/// The seeds of a test: `PLEACH_CASES` of them, from `first` on, or from `PLEACH_SEED` on.
pub fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let from =
        std::env::var("PLEACH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(first);
    from..from + cases(count)
}

/// A period that a periodic database's test waits out.
pub const PERIOD: Duration = Duration::from_millis(20);

/// Says how many schedules a test has looked at, and how fast.
pub fn report(name: &str, schedules: u64, since: std::time::Instant) {
    let seconds = since.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    let rate = schedules as f64 / seconds;
    println!("{name}: {schedules} schedules in {seconds:.1} s, {rate:.0} a second");
}

/// A value's hash, as proofs have it.
pub fn hash(value: &[u8]) -> pleach_core::ValueHash {
    Hasher::BLAKE3.hash(value).into()
}
