//! Pages that come for announced keys are folded before the finish, which then has less to do and
//! says the same.
//!
//! On the simulated disk and executor: the prefetch task and the one that folds have done all that they
//! can when no task has a step left to take.

use pleach::{Access, Block, LoadOptions, Options, SessionOptions, Value};
use pleach_core::{Blake3, Key, Node};
use pleach_io::sim::{Image, SimDisk, SimRuntime};

use crate::common::uniform as key;
use crate::crash::{SimDb, unrecorded};

type Session = pleach::Session<Blake3, SimDisk, SimRuntime>;

const ACCOUNTS: u64 = 40_000;
const ROUNDS: u64 = 8;

struct Opened {
    db: SimDb,
    disk: SimDisk,
    runtime: SimRuntime,
}

impl Opened {
    /// A copy of the database in an image, with an empty cache.
    fn open(image: &Image, seed: u64) -> Self {
        let disk = SimDisk::from_image_with(image, seed, unrecorded());
        let runtime = SimRuntime::with_clock(seed, disk.clock(), 2);
        // A page is rewritten late, so that changes pend on many of them.
        let options =
            Options::new("sim").create(true).cache_mib(64).in_flight(16).flush_at(8).small();
        let db = SimDb::open_on(disk.clone(), runtime.clone(), options).expect("opened");
        Self { db, disk, runtime }
    }

    fn loaded(mut items: Vec<(Key, Value)>) -> Image {
        let opened = Self::open(&SimDisk::new(1, unrecorded()).image(), 1);
        items.sort_by_key(|item| item.0);
        opened.db.bulk_load(items.into_iter(), &LoadOptions::new()).expect("loaded");
        opened.close()
    }

    fn close(self) -> Image {
        self.db.close().expect("closed");
        self.disk.image()
    }

    fn session(&self) -> Session {
        self.db.session(SessionOptions::new()).expect("a session")
    }

    /// Announces keys and lets the tasks do what they can. Gives the pages that have come, and those
    /// of them that were folded.
    fn prefetch(&self, session: &Session, keys: &[Key]) -> (u64, u64) {
        let before = self.db.metrics();
        session.prefetch(keys);
        self.runtime.step_some(usize::MAX);
        let after = self.db.metrics();
        (
            after.cache_misses - before.cache_misses,
            after.pages_folded_ahead - before.pages_folded_ahead,
        )
    }

    /// A block, and the hash calls of its finish.
    fn finish(
        &self,
        session: Session,
        accesses: Vec<Access>,
    ) -> (Block<Blake3, SimDisk, SimRuntime>, u64) {
        let before = self.db.metrics().hashes;
        let block = session.finish(accesses).expect("finished");
        (block, self.db.metrics().hashes - before)
    }
}

fn said(block: &mut Block<Blake3, SimDisk, SimRuntime>) -> (Node, Vec<u8>) {
    (block.root(), block.take_witness().expect("asked for").into_vec())
}

fn accounts(count: u64) -> impl Iterator<Item = (Key, Value)> {
    (0..count).map(|id| (key(id), Value::from(&7u64.to_le_bytes())))
}

/// Accounts of a round: some pages come again.
fn keys(round: u64) -> Vec<Key> {
    let from = round % 3 * 1000 + round / ROUNDS * 20_000;
    (0..300).map(|at| key(from + at * (1 + round % 2))).collect()
}

/// Reads, changes and deletions; some of keys that were never there, and some not announced.
fn accesses(round: u64) -> Vec<Access> {
    let access = |(at, key): (usize, Key)| match at % 5 {
        0 => Access::read(key),
        1 => Access::write(key, None),
        _ => Access::read_write(key, Some(Value::from(&(round + at as u64).to_le_bytes()))),
    };
    let absent = (0..20).map(|id| key(ACCOUNTS + round * 50 + id));
    keys(round).into_iter().chain(absent).enumerate().map(access).collect()
}

#[test]
fn a_finish_says_the_same_with_fewer_hashes() {
    let mut image = Opened::loaded(accounts(ACCOUNTS).collect());
    let (mut plain, mut ahead) = (0, 0);
    for round in 0..ROUNDS {
        let (twin, opened) = (Opened::open(&image, 2 * round), Opened::open(&image, 2 * round + 1));
        let (mut block, hashes) = twin.finish(twin.session(), accesses(round));
        let expected = said(&mut block);
        plain += hashes;
        let announced = opened.session();
        let (came, folded) = opened.prefetch(&announced, &keys(round));
        // Each page, and again where a key of another bucket came when it was there.
        assert!(came > 150 && folded >= came, "round {round}: {folded} of {came} pages");
        let (mut block, hashes) = opened.finish(announced, accesses(round));
        assert!(expected == said(&mut block), "round {round}");
        ahead += hashes;
        // Sessions of an older commit than the one that pages are folded for.
        let (old, old_twin) = (opened.session(), twin.session());
        opened.prefetch(&old, &keys(round + ROUNDS));
        block.commit().expect("committed");
        opened.prefetch(&old, &keys(round + ROUNDS));
        let (mut old, _) = opened.finish(old, accesses(round + ROUNDS));
        let (mut old_twin, _) = twin.finish(old_twin, accesses(round + ROUNDS));
        assert!(said(&mut old) == said(&mut old_twin), "round {round}");
        drop((old, old_twin));
        image = opened.close();
    }
    assert!(ahead * 10 < plain * 7, "hash calls of finishes: {ahead} with, {plain} without");
}

/// Keys that share 251 bits, with long values: their pages lie too deep to have a treelet.
fn deep(at: u8) -> Key {
    let mut key = [0xa5; 32];
    key[31] = at;
    key
}

#[test]
fn pages_too_deep_for_a_treelet_leave_the_others_alone() {
    let long = |round: u64| Value::from(round.to_le_bytes().repeat(26));
    let items = accounts(ACCOUNTS).chain((0..32).map(|at| (deep(at), long(0))));
    let mut image = Opened::loaded(items.collect());
    for round in 1..8 {
        // Changes pend on pages of both kinds; then all pages are cold.
        let ids = (0..200).map(|at| (round * 31 + at * 97) % 20_000);
        let own: Vec<Key> = (0..32).map(deep).chain(ids.map(key)).collect();
        let write = |round: u64| {
            let value = |key: &Key| match key {
                [0xa5, 0xa5, ..] => long(round),
                _ => Value::from(&round.to_le_bytes()),
            };
            own.iter().map(|key| Access::read_write(*key, Some(value(key)))).collect::<Vec<_>>()
        };
        let opened = Opened::open(&image, round);
        let (block, _) = opened.finish(opened.session(), write(round));
        block.commit().expect("committed");
        image = opened.close();
        let (twin, opened) = (Opened::open(&image, 100 + round), Opened::open(&image, 200 + round));
        let announced = opened.session();
        let (came, folded) = opened.prefetch(&announced, &own);
        assert!(folded >= 100, "round {round}: {folded} of {came} pages");
        let (mut block, _) = opened.finish(announced, write(round + 100));
        let (mut expected, _) = twin.finish(twin.session(), write(round + 100));
        assert!(said(&mut expected) == said(&mut block), "round {round}");
    }
}
