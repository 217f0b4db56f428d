//! Pages that are used again hash the paths of the accessed keys, whatever is done to their keys, and not all of their pairs.

use std::collections::BTreeMap;

use pleach::load::LoadOptions;
use pleach::{Access, AccessKind, Options, SessionOptions, Value};
use pleach_core::naive::NaiveTrie;
use pleach_core::{Hasher, Key, Prefix};
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::uniform as key;
use crate::crash::{SimDb, unrecorded};

const ACCOUNTS: u64 = 20_000;
const BATCH: u64 = 1_500;

/// A database with these keys, as their load leaves it, or opened anew.
fn loaded(keys: impl Iterator<Item = Key>, opened: bool) -> SimDb {
    let disk = SimDisk::new(1, unrecorded());
    let open = |seed| {
        let runtime = SimRuntime::with_clock(seed, disk.clock(), 2);
        let options = Options::new("sim").create(true).cache_mib(64).small();
        SimDb::open_on(disk.clone(), runtime, options).expect("opened")
    };
    let db = open(1);
    let items = keys.map(|key| (key, Value::from(&[1; 8])));
    db.bulk_load(items, &LoadOptions::new()).expect("loaded");
    if opened {
        db.close().expect("closed");
        return open(2);
    }
    db
}

/// The hashes of each commit of accounts that were loaded.
fn hashes(opened: bool, rounds: u64) -> Vec<u64> {
    let mut keys: Vec<Key> = (0..ACCOUNTS).map(key).collect();
    keys.sort_unstable();
    let db = loaded(keys.into_iter(), opened);
    let mut counts = Vec::new();
    for round in 0..rounds {
        let before = db.metrics();
        let access = |at: u64| {
            // Some are absent: those of numbers behind the last, and those that an earlier round has deleted.
            let key = key((at * 7919 + round * 13) % (ACCOUNTS + ACCOUNTS / 10));
            match at % 8 {
                0 => Access::read(key),
                1 => Access::write(key, None),
                2 => Access::read_write(key, Some(Value::from(vec![7; 2_000]))),
                _ => Access::read_write(key, Some(Value::from(&round.to_le_bytes()))),
            }
        };
        let session = db.session(SessionOptions::new()).expect("a session");
        let block = session.finish((0..BATCH).map(access).collect::<Vec<_>>()).expect("finished");
        block.commit().expect("committed");
        let after = db.metrics();
        counts.push(after.hashes - before.hashes);
    }
    counts
}

#[test]
fn known_pages_hash_paths() {
    let counts = hashes(true, 8);
    // Sixteenths of a page are folded as a whole twice, and it learns its nodes the second time. In hashes, these bounds
    // are below a half of what pages with the nodes of eighths took the second time.
    assert!(counts[2] * 20 < counts[1] * 13, "{counts:?}");
    for hashes in &counts[3..] {
        assert!(hashes * 8 < counts[1] * 5, "{counts:?}");
    }
}

#[test]
fn the_first_commit_after_a_load_learns_nodes() {
    let (loaded, opened) = (hashes(false, 3), hashes(true, 3));
    assert_eq!(loaded[0], opened[0]);
    assert!(loaded[1] * 10 < opened[1] * 7, "{loaded:?}, {opened:?}");
}

/// A key as embedders have them: a table, then a name of four syllables, then zeros.
fn name(id: u64) -> Key {
    let number = id.wrapping_mul(0x2545_f491);
    let mut key = [0; 32];
    key[0] = 1;
    for (at, syllable) in key[1..9].as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let bits = usize::try_from(number >> (6 * at) & 63).unwrap();
        *syllable = [b"bdfghjklmnprstvz"[bits / 4], b"aeio"[bits % 4]];
    }
    key
}

const NAMES: u64 = 8_000;
const CHANGED: u64 = 250;

/// Letters have more bits than they need, so the levels of a treelet part at bits in which a page's names differ. Those
/// pages hash paths, too, and the roots are the slow trie's.
#[test]
fn pages_of_names_hash_paths() {
    let mut state: BTreeMap<Key, Vec<u8>> = (0..NAMES).map(|id| (name(id), vec![1; 8])).collect();
    let db = loaded(state.keys().copied(), true);
    let mut counts = Vec::new();
    for round in 0..30_u64 {
        let mut accesses = BTreeMap::new();
        for at in 0..CHANGED {
            let id = (at * 7919 + round * 13) % NAMES;
            let value = Some(Value::from(&round.to_le_bytes()));
            let mut key = name(id);
            // At first names get new values; then some come and go, and some are absent, near the others and far from
            // them.
            let access = match (round >= 12).then_some(at % 16) {
                Some(0) => Access::write(key, None),
                Some(1) => Access::read_write(name(NAMES + id), value),
                Some(2) => Access::read(name(2 * NAMES + id)),
                Some(at @ 3..6) => {
                    key[usize::try_from(at).unwrap()] ^= 0x90;
                    let is_new = round % 4 == 0 && at == 5;
                    if is_new { Access::read_write(key, value) } else { Access::read(key) }
                }
                _ => Access::read_write(key, value),
            };
            accesses.insert(access.key, access);
        }
        let before = db.metrics();
        let session = db.session(SessionOptions::new()).expect("a session");
        let block =
            session.finish(accesses.values().cloned().collect::<Vec<_>>()).expect("finished");
        block.commit().expect("committed");
        let after = db.metrics();
        counts.push(after.hashes - before.hashes);
        for (key, access) in accesses {
            match access.kind {
                AccessKind::Write(Some(value)) | AccessKind::ReadWrite(Some(value)) => {
                    state.insert(key, value.to_vec());
                }
                AccessKind::Write(None) | AccessKind::ReadWrite(None) => drop(state.remove(&key)),
                AccessKind::Read => {}
                _ => unreachable!("not made here"),
            }
        }
        let trie: NaiveTrie =
            state.iter().map(|(key, value)| (*key, Hasher::BLAKE3.hash(value).into())).collect();
        assert_eq!(db.root(), trie.node(Hasher::BLAKE3, &Prefix::ROOT), "round {round}");
    }
    for hashes in &counts[4..12] {
        assert!(hashes * 10 < counts[1] * 6, "{counts:?}");
    }
    // A name that is spelled otherwise makes its page begin anew: that is what few pages do.
    for hashes in &counts[12..] {
        assert!(hashes * 19 < counts[1] * 10, "{counts:?}");
    }
}
