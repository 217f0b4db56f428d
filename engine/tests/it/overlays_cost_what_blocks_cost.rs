//! A finish over overlays hashes what one over commits hashes: paths of known pages, not whole pages. Counted in hash calls, on
//! two databases that do the same, one of which keeps its newest blocks as overlays.

use std::collections::{BTreeMap, VecDeque};

use pleach::load::LoadOptions;
use pleach::{Access, AccessKind, Options, Overlay, SessionOptions, Value};
use pleach_core::naive::NaiveTrie;
use pleach_core::{Hasher, Key, Prefix};
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::uniform as key;
use crate::crash::{SimDb, unrecorded};

const ACCOUNTS: u64 = 20_000;
const BATCH: u64 = 1_500;
const WINDOW: usize = 5;

fn open(seed: u64) -> (SimDb, SimRuntime) {
    let disk = SimDisk::new(seed, unrecorded());
    let runtime = SimRuntime::with_clock(seed, disk.clock(), 2);
    let options = Options::new("sim").create(true).cache_mib(64).small();
    let db = SimDb::open_on(disk, runtime.clone(), options).expect("opened");
    let mut items: Vec<_> = (0..ACCOUNTS).map(|id| (key(id), Value::from(&[1; 8]))).collect();
    items.sort_by_key(|item| item.0);
    db.bulk_load(items, &LoadOptions::new()).expect("loaded");
    (db, runtime)
}

/// Some keys are read, put, deleted and put again, and some are absent.
fn batch(round: u64) -> Vec<Access> {
    let access = |at: u64| {
        let key = key((at * 7919 + round * 13) % (ACCOUNTS + ACCOUNTS / 10));
        match at % 8 {
            0 => Access::read(key),
            1 if round.is_multiple_of(2) => Access::write(key, None),
            _ => Access::read_write(key, Some(Value::from(&(round ^ at).to_le_bytes()))),
        }
    };
    (0..BATCH).map(access).collect()
}

type Chain = VecDeque<Overlay>;

fn finish_over(db: &SimDb, chain: &mut Chain, round: u64) -> pleach::Node {
    let options = match chain.back() {
        Some(newest) => SessionOptions::new().over(newest),
        None => SessionOptions::new(),
    };
    let block = db.session(options).expect("a session").finish(batch(round)).expect("finished");
    chain.push_back(block.into_overlay());
    chain.back().expect("just pushed").root()
}

#[test]
fn a_finish_over_overlays_hashes_what_one_over_commits_does() {
    let ((direct, _), (stacked, _)) = (open(1), open(2));
    let mut chain = Chain::new();
    let mut hashes = [0, 0];
    for round in 0..24 {
        let before = [direct.metrics().hashes, stacked.metrics().hashes];
        let session = direct.session(SessionOptions::new()).expect("a session");
        let block = session.finish(batch(round)).expect("finished");
        assert_eq!(finish_over(&stacked, &mut chain, round), block.root(), "round {round}");
        block.commit().expect("committed");
        if chain.len() > WINDOW {
            chain.pop_front().expect("the oldest").commit().expect("committed");
        } else {
            let metrics = stacked.metrics();
            let memory: usize = chain.iter().map(Overlay::memory).sum();
            let counted = metrics.overlay_bytes + metrics.batch_bytes;
            assert_eq!(memory as u64, counted, "all of it is counted");
        }
        // A page learns its nodes when it is folded the second time.
        if round >= 8 {
            let after = [direct.metrics().hashes, stacked.metrics().hashes];
            hashes
                .iter_mut()
                .zip(after)
                .zip(before)
                .for_each(|((sum, after), before)| *sum += after - before);
        }
    }
    let [direct, stacked] = hashes;
    assert!(
        direct > 0 && stacked < direct * 5 / 4,
        "{stacked} over overlays, {direct} over commits"
    );
}

/// Hashes of a finish over a window of overlays, when it is full.
fn hashes_over(window: usize) -> u64 {
    const MEASURED: u64 = 16;
    let (db, _runtime) = open(4);
    let (mut chain, mut hashes) = (Chain::new(), 0);
    let rounds = window as u64 + 16 + MEASURED;
    for round in 0..rounds {
        let before = db.metrics().hashes;
        finish_over(&db, &mut chain, round);
        if round + MEASURED >= rounds {
            hashes += db.metrics().hashes - before;
        }
        if chain.len() > window {
            chain.pop_front().expect("the oldest").commit().expect("committed");
        }
    }
    hashes / MEASURED
}

/// However many overlays there are, and whatever they take: pages keep what folds have found, and nothing is folded again
/// that overlays have changed before. With many overlays each page was hashed whole.
#[test]
fn many_overlays_hash_what_few_do() {
    let [few, many] = [2, 128].map(hashes_over);
    assert!(few > 0 && many < few * 9 / 8, "{many} over 128 overlays, {few} over 2");
}

/// A key of letters, or one that is spread.
fn shaped(id: u64) -> Key {
    let mut key = key(id);
    if id.is_multiple_of(2) {
        key[..16].iter_mut().for_each(|byte| *byte = b"abcdefgh"[usize::from(*byte % 8)]);
    }
    key
}

/// Chains of forty overlays of a few changes each, with deletes and absent keys, while their oldest are committed and flushed:
/// all roots are the slow trie's.
#[test]
fn deep_chains_have_the_roots_of_the_naive_trie() {
    const IDS: u64 = 3_000;
    let (db, _runtime) = open(5);
    let value = |stored: &[u8]| Hasher::BLAKE3.hash(stored).into();
    let mut state: NaiveTrie = (0..ACCOUNTS).map(|id| (key(id), value(&[1; 8]))).collect();
    let mut chain = Chain::new();
    for round in 0..90_u64 {
        let mut accesses = BTreeMap::new();
        for at in 0..200 {
            let key = shaped((at * 7919 + round * 13) % IDS);
            let new = || Some(Value::from(&(round * 1000 + at).to_le_bytes()));
            accesses.insert(
                key,
                match (at + round) % 5 {
                    0 => Access::read(key),
                    1 => Access::write(key, None),
                    2 => Access::read_write(key, None),
                    _ => Access::read_write(key, new()),
                },
            );
        }
        for (key, access) in &accesses {
            match &access.kind {
                AccessKind::Write(new) | AccessKind::ReadWrite(new) => {
                    state.set(*key, new.as_deref().map(value));
                }
                _ => {}
            }
        }
        let options = SessionOptions::new();
        let options = chain.back().map_or(options.clone(), |newest| options.over(newest));
        let session = db.session(options).expect("a session");
        let block = session.finish(accesses.into_values().collect::<Vec<_>>()).expect("finished");
        if round % 6 == 5 {
            let root = state.node(Hasher::BLAKE3, &Prefix::ROOT);
            assert_eq!(block.root(), root, "round {round}");
        }
        chain.push_back(block.into_overlay());
        if chain.len() > 40 {
            chain.pop_front().expect("the oldest").commit().expect("committed");
        }
    }
}

/// Pages split below a chain of overlays: a commit keeps the nodes of all other pages.
#[test]
fn a_commit_after_splits_hashes_few_pages() {
    let (db, _runtime) = open(3);
    let mut chain = Chain::new();
    for round in 0..12 {
        finish_over(&db, &mut chain, round);
        if chain.len() > WINDOW {
            chain.pop_front().expect("the oldest").commit().expect("committed");
        }
    }
    // Enough new keys below one prefix that its pages split when they are written.
    let grown = chain.pop_front().expect("the oldest");
    grown.commit().expect("committed");
    let new = |id: u64| {
        let mut key = key(1 << 40 | id);
        key[0] = 0x5a;
        Access::write(key, Some(Value::from(&[3; 60])))
    };
    while let Some(overlay) = chain.pop_front() {
        overlay.commit().expect("committed");
    }
    let session = db.session(SessionOptions::new()).expect("a session");
    session
        .finish((0..400).map(new).collect::<Vec<_>>())
        .expect("finished")
        .commit()
        .expect("committed");
    for round in 20..23 {
        finish_over(&db, &mut chain, round);
    }
    let before = db.metrics();
    db.drain(0).expect("room");
    let roots: Vec<_> = chain.iter().map(Overlay::root).collect();
    for (overlay, root) in chain.into_iter().zip(roots) {
        overlay.commit().expect("committed");
        assert_eq!(db.root(), root);
    }
    let after = db.metrics();
    assert!(after.refolds > before.refolds, "layouts have changed");
    let hashed = (after.hashes - before.hashes) / 3;
    assert!(hashed < BATCH * 8, "{hashed} hashes for each commit of {BATCH} changes");
}
