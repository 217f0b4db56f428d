//! How many locks a batch takes, by what they guard, and how often somebody waits: counts of a debug build.
//!
//! ```text
//! cargo test -p pleach --test locks_are_few -- --nocapture
//! ```
#![cfg(debug_assertions)]

use pleach::load::LoadOptions;
use pleach::{Access, Db, Options, SessionOptions, Value};
use pleach_beatree::lock_order::{LockCount, counts};
use pleach_core::{Hasher, Key};

const ACCOUNTS: u64 = 1 << 16;
const KEYS: u64 = 8192;
const BATCHES: u64 = 4;

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// What has been counted since.
fn since(before: &[LockCount]) -> Vec<LockCount> {
    let of = |count: &LockCount| before.iter().find(|before| before.name == count.name).copied();
    let less = |now: LockCount| match of(&now) {
        Some(LockCount { taken, waited, .. }) => {
            LockCount { taken: now.taken - taken, waited: now.waited - waited, ..now }
        }
        None => now,
    };
    counts().into_iter().map(less).collect()
}

fn taken(counts: &[LockCount], name: &str) -> u64 {
    counts.iter().find(|count| count.name == name).map_or(0, |count| count.taken)
}

/// Reads, if asked to, and writes the keys of a batch.
fn batch(db: &Db, round: u64) -> [Vec<LockCount>; 3] {
    let keys: Vec<Key> = (0..KEYS).map(|at| key((at * 13 + round * 7) % ACCOUNTS)).collect();
    let value = Value::from(&round.to_le_bytes());
    let accesses: Vec<_> =
        keys.iter().map(|key| Access::read_write(*key, Some(value.clone()))).collect();
    let session = db.session(SessionOptions::new()).expect("a session");
    let before = counts();
    session.read_many(&keys).expect("read");
    let (read, before) = (since(&before), counts());
    let block = session.finish(accesses).expect("finished");
    let (finished, before) = (since(&before), counts());
    block.commit().expect("committed");
    [read, finished, since(&before)]
}

#[test]
fn a_batch_takes_few_locks_a_key() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).cache_mib(256).threads(2);
    let db = Db::open(options).expect("opened");
    let items = (0..ACCOUNTS).map(|id| (key(id), Value::from(&7u64.to_le_bytes())));
    db.bulk_load(items, &LoadOptions::new()).expect("loaded");
    for round in 0..8 {
        batch(&db, round);
    }
    db.drain(0).expect("drained");
    db.pause_background();
    let regions = db.metrics().regions;
    for round in 8..8 + BATCHES {
        let before = db.metrics().pages_folded;
        let [read, finish, commit] = batch(&db, round);
        let folded = db.metrics().pages_folded - before;
        for (step, counts) in [("read", &read), ("finish", &finish), ("commit", &commit)] {
            for LockCount { name, taken, waited } in counts.iter().filter(|count| count.taken > 0) {
                println!("{step:8} {name:20} {taken:7} taken, {waited:5} waited for");
            }
        }
        println!("{KEYS} keys, {regions} regions");
        // Of the pages: a look at each, some of which ask for the memory of those that come.
        assert!(taken(&read, "a cache shard") <= 5 * KEYS, "{read:?}");
        assert!(taken(&read, "a region") <= 3 * KEYS, "{read:?}");
        assert!(taken(&finish, "a cache shard") <= 5 * KEYS, "{finish:?}");
        // A region's lock is let go of between its pages.
        assert!(folded <= KEYS / 4, "{folded} pages of {KEYS} keys");
        assert!(taken(&finish, "a region") <= folded + 4 * regions, "{finish:?}");
        assert!(taken(&commit, "a cache shard") <= KEYS, "{commit:?}");
        assert!(taken(&commit, "a region") <= 4 * regions, "{commit:?}");
        for counts in [&read, &finish, &commit] {
            assert!(taken(counts, "the sequencer") <= 16, "{counts:?}");
            assert!(taken(counts, "the log writer") <= 2, "{counts:?}");
            assert!(taken(counts, "the tip") <= 8, "{counts:?}");
            assert!(taken(counts, "the batch gate") <= 8, "{counts:?}");
            assert!(taken(counts, "the structure") == 0, "{counts:?}");
        }
    }
}
