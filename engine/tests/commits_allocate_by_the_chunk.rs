//! A batch of short values allocates by the chunk, not by the key: its buffers come back. And the hundredth one
//! allocates as much as the tenth.
#![expect(unsafe_code, reason = "an allocator that counts has to be an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use pleach::load::LoadOptions;
use pleach::{Access, Db, Options, SessionOptions, Value};
use pleach_core::{Hasher, Key};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is handed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above; the block came from `System`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ACCOUNTS: u64 = 1 << 16;

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// Allocations of all threads while a batch of `size` keys is read, finished and committed.
fn allocations(db: &Db, size: u64, round: u64) -> u64 {
    let ids = (0..size).map(|at| (at * 13 + round * 7) % ACCOUNTS);
    let keys: Vec<Key> = ids.map(key).collect();
    let value = Value::from(&round.to_le_bytes());
    let accesses: Vec<_> =
        keys.iter().map(|key| Access::read_write(*key, Some(value.clone()))).collect();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let session = db.session(SessionOptions::new()).expect("a session");
    session.prefetch(&keys);
    for key in &keys {
        session.read(key).expect("read").expect("an account");
    }
    session.finish(accesses).expect("finished").commit().expect("committed");
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn a_commit_does_not_allocate_by_the_key() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).cache_mib(256).threads(2);
    let db = Db::open(options).expect("opened");
    let items = (0..ACCOUNTS).map(|id| (key(id), Value::from(&7u64.to_le_bytes())));
    db.bulk_load(items, &LoadOptions::new()).expect("loaded");
    // Rounds to fill the cache and to grow the buffers, flushes among them; then none.
    for round in 0..12 {
        allocations(&db, 8192, round);
    }
    db.drain(0).expect("drained");
    for round in 12..15 {
        allocations(&db, 8192, round);
    }
    db.pause_background();
    let (small, large) = (allocations(&db, 2048, 15), allocations(&db, 8192, 16));
    // Pages that had no buffered changes get room for some, and treelets go to pages that were moved: both are rare by
    // now. 96 chunks more, at five allocations each, are what is left.
    let more = large.saturating_sub(small);
    assert!(more < 6144 / 10, "{small} allocations for 2,048 keys, {large} for 8,192");
    assert!(large < 1000, "{large} allocations for 8,192 keys");
    do_not_grow(&db);
}

/// Equal batches, each in a state in which nothing is buffered: as many allocations in late ones as in early ones.
fn do_not_grow(db: &Db) {
    let mut series = Vec::new();
    for round in 17..97 {
        db.resume_background();
        db.drain(0).expect("drained");
        db.pause_background();
        series.push(allocations(db, 8192, round));
    }
    let median = |part: &[u64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    let (early, late) = (median(&series[10..30]), median(&series[60..80]));
    assert!(late <= early + early / 20, "{early} allocations at first, {late} later: {series:?}");
    let most = series.iter().max().expect("many");
    assert!(*most < 2000, "{series:?}");
}
