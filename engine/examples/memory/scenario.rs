//! What is measured: a database under some load in a process of its own, and the memory of that process.

use std::collections::VecDeque;
use std::path::Path;

use pleach::load::LoadOptions;
use pleach::{
    Access, Db, Durability, Hasher, Key, Metrics, Options, Overlay, SessionOptions, Value,
};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What a process does with a database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// `Options::cache_mib`.
    pub(crate) budget_mib: u64,
    pub(crate) accounts: u64,
    pub(crate) commits: u64,
    /// Keys that a commit reads and writes.
    pub(crate) keys: u64,
    /// Bytes of a value.
    pub(crate) value: usize,
    /// True when a session is held open over the first commit.
    pub(crate) held: bool,
    /// Overlays that live above the newest commit.
    pub(crate) chain: usize,
}

/// 300 commits of 5,000 of 200,000 accounts, with values that need an allocation each.
const SMALL: Scenario = Scenario {
    name: "small",
    budget_mib: 64,
    accounts: 200_000,
    commits: 300,
    keys: 5_000,
    value: 40,
    held: false,
    chain: 0,
};

/// All that is measured.
pub(crate) const SCENARIOS: [Scenario; 5] = [
    SMALL,
    Scenario { name: "held", held: true, ..SMALL },
    Scenario { name: "chain", chain: 16, ..SMALL },
    Scenario { name: "large", accounts: 1 << 20, commits: 60, keys: 50_000, value: 8, ..SMALL },
    Scenario {
        name: "default",
        budget_mib: 1024,
        accounts: 1 << 22,
        commits: 60,
        keys: 50_000,
        value: 8,
        ..SMALL
    },
];

/// MiB that the process may take: the budget, a tenth of it, and 48.
pub(crate) fn promise(budget_mib: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let budget = budget_mib as f64;
    budget * 1.1 + 48.0
}

/// A field of `/proc/self/status`, in MiB.
pub(crate) fn resident(field: &str) -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(field)).ok_or("no such field")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no figure")?.parse()?;
    Ok(kib / 1024.0)
}

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// `count` different accounts.
fn ids(seed: u64, accounts: u64, count: u64) -> impl Iterator<Item = u64> {
    // Steps that have no factor in common with the number of accounts reach all of them.
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut step = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % accounts;
    while gcd(step, accounts) != 1 {
        step += 1;
    }
    (0..count).map(move |at| (at * step + seed) % accounts)
}

fn value(id: u64, commit: u64, bytes: usize) -> Value {
    let text = (id ^ commit << 40).to_be_bytes().repeat(bytes.div_ceil(8));
    Value::from(&text[..bytes])
}

impl Scenario {
    fn options(&self, folder: &Path) -> Options {
        let options = Options::new(folder).cache_mib(self.budget_mib);
        options.durability(Durability::None)
    }

    /// Loads the accounts.
    pub(crate) fn prepare(&self, folder: &Path) -> Result<()> {
        let db = Db::open(self.options(folder).create(true))?;
        let items = (0..self.accounts).map(|id| (key(id), value(id, 0, self.value)));
        db.bulk_load(items, &LoadOptions::default())?;
        Ok(db.close().map(drop)?)
    }

    /// Opens the database and does all commits; `each` sees the metrics after each of them.
    pub(crate) fn run(&self, folder: &Path, mut each: impl FnMut(u64, &Metrics)) -> Result<()> {
        let db = Db::open(self.options(folder))?;
        let held = if self.held { Some(db.session(SessionOptions::new())?) } else { None };
        let mut chain: VecDeque<Overlay> = VecDeque::new();
        for commit in 1..=self.commits {
            let ids = || ids(commit, self.accounts, self.keys);
            let keys: Vec<Key> = ids().map(key).collect();
            let options = SessionOptions::new();
            let session = match chain.back() {
                Some(newest) => db.session(options.over(newest))?,
                None => db.session(options)?,
            };
            session.prefetch(&keys);
            for key in &keys {
                session.read(key)?.ok_or("an account is missing")?;
            }
            let values = ids().map(|id| value(id, commit, self.value));
            let accesses = keys.iter().zip(values);
            let accesses = accesses.map(|(key, value)| Access::read_write(*key, Some(value)));
            let mut block = session.finish(accesses)?;
            let witness = block.take_witness().ok_or("a witness was asked for")?;
            if self.chain == 0 {
                block.commit()?;
            } else {
                chain.push_back(block.into_overlay());
                if chain.len() > self.chain {
                    chain.pop_front().ok_or("just pushed")?.commit()?;
                }
            }
            each(commit, &db.metrics());
            drop(witness);
        }
        drop((held, chain));
        Ok(db.close().map(drop)?)
    }
}
