//! Appends, queries and unwinds of many keys are those of a map of sets, in a database that is closed and
//! opened again, and whatever the stored bytes are, nothing panics.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use pleach::{Db, Hasher, Key, Options, SessionOptions, Value};
use pleach_change_index::{ChangeIndex, Error, Source};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};

const NAMESPACE: u8 = 9;
type Map = BTreeMap<Key, BTreeSet<u64>>;

struct Rng(ChaCha8Rng);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }
}

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// All values of the index, as in a state.
#[derive(Default)]
struct Values {
    values: BTreeMap<Key, Value>,
    reads: Cell<u64>,
}

impl Source for Values {
    fn read_many(&self, keys: &[Key]) -> pleach::Result<Vec<Option<Value>>> {
        self.reads.set(self.reads.get() + keys.len() as u64);
        Ok(keys.iter().map(|key| self.values.get(key).cloned()).collect())
    }
}

impl Values {
    fn apply(&mut self, accesses: Vec<pleach::Access>) {
        for access in accesses {
            assert_eq!(access.namespace, NAMESPACE);
            match access.kind {
                pleach::AccessKind::Write(Some(value))
                | pleach::AccessKind::ReadWrite(Some(value)) => {
                    self.values.insert(access.key, value);
                }
                _ => {
                    // It may have come and gone within the batch.
                    self.values.remove(&access.key);
                }
            }
        }
    }
}

fn append(map: &mut Map, block: u64, keys: &[Key]) {
    for key in keys {
        map.entry(*key).or_default().insert(block);
    }
}

fn unwind(map: &mut Map, keys: &[Key], to: u64) {
    for key in keys {
        if let Some(set) = map.get_mut(key) {
            set.retain(|block| *block <= to);
        }
    }
}

/// All that the index says of a key around some blocks is what the set says.
fn compare(
    index: ChangeIndex,
    source: &impl Source,
    key: &Key,
    set: &BTreeSet<u64>,
    blocks: &[u64],
) {
    let all: Result<Vec<u64>, Error> = index.changes(source, key, ..).expect("read").collect();
    assert_eq!(all.expect("read"), set.iter().copied().collect::<Vec<_>>());
    for &block in blocks {
        let last = index.last_at(source, key, block).expect("read");
        assert_eq!(last, set.range(..=block).next_back().copied(), "at {block}");
        let next = index.first_after(source, key, block).expect("read");
        let after = (std::ops::Bound::Excluded(block), std::ops::Bound::Unbounded);
        assert_eq!(next, set.range(after).next().copied(), "after {block}");
        let count = index.count_at(source, key, block).expect("read");
        assert_eq!(count, set.range(..=block).count() as u64, "up to {block}");
        let to = block.saturating_add(40);
        let some: Result<Vec<u64>, Error> =
            index.changes(source, key, block..to).expect("read").collect();
        assert_eq!(some.expect("read"), set.range(block..to).copied().collect::<Vec<_>>());
    }
}

#[test]
fn appends_queries_and_unwinds_are_those_of_sets() {
    for (seed, shard) in [(1, 2), (2, 3), (3, 7), (4, 100), (5, u32::MAX)] {
        let index = ChangeIndex::new(NAMESPACE, shard).expect("long enough");
        let (mut random, mut map, mut values) = (Rng::new(seed), Map::new(), Values::default());
        let mut block = 0;
        for _ in 0..2500 {
            let mut stage = index.stage(&values);
            // Several blocks and unwinds in one batch see each other.
            for _ in 0..=random.below(3) {
                if random.below(40) == 0 {
                    // Mostly a few blocks, now and then half of them.
                    let deepest = if random.below(20) > 0 { 5 } else { 2000 };
                    let to = block - random.below(block / 2 + 1).min(deepest);
                    let keys: Vec<Key> = (0..6).map(key).collect();
                    stage.unwind(&keys, to).expect("read");
                    unwind(&mut map, &keys, to);
                    block = to;
                } else {
                    block += 1 + random.below(4);
                    // Key 0 changes at every block, key 5 rarely.
                    let keys: Vec<Key> =
                        (0..6).filter(|id| random.below(1 + id * id) == 0).map(key).collect();
                    stage.append(block, &keys).expect("read");
                    append(&mut map, block, &keys);
                }
            }
            let accesses = stage.into_accesses();
            values.apply(accesses);
            if random.below(50) == 0 {
                let blocks: Vec<u64> =
                    (0..4).map(|_| random.below(block + 3)).chain([0, block, u64::MAX]).collect();
                for (key, set) in &map {
                    compare(index, &values, key, set, &blocks);
                }
            }
        }
        assert!(map[&key(0)].len() > 500, "{}", map[&key(0)].len());
        // Nothing is left behind by unwinding everything.
        let mut stage = index.stage(&values);
        let keys: Vec<Key> = (0..6).map(key).collect();
        stage.unwind(&keys, 0).expect("read");
        let accesses = stage.into_accesses();
        values.apply(accesses);
        assert!(values.values.is_empty(), "{} values are left", values.values.len());
    }
}

#[test]
fn reads_do_not_grow_with_the_list() {
    let index = ChangeIndex::new(NAMESPACE, 2).expect("long enough");
    let (mut values, alice) = (Values::default(), key(1));
    let mut blocks = 0..;
    let mut worst = |values: &mut Values, numbers: u64| {
        for block in blocks.by_ref().take(usize::try_from(numbers).expect("small")) {
            let before = values.reads.get();
            let mut stage = index.stage(&*values);
            stage.append(block, &[alice]).expect("read");
            let accesses = stage.into_accesses();
            assert_eq!(values.reads.get() - before, 1, "an append reads the head alone");
            assert!(
                accesses.len() <= 4
                    && values.values.get(&alice).is_none_or(|head| head.len() < 1000)
            );
            values.apply(accesses);
        }
        let queries = (0..numbers).map(|block| {
            let before = values.reads.get();
            assert_eq!(index.last_at(&*values, &alice, block).expect("read"), Some(block));
            values.reads.get() - before
        });
        queries.max()
    };
    // One level of full nodes, then two, then three: a value more for 256 times the numbers.
    assert_eq!(worst(&mut values, 500), Some(2));
    assert_eq!(worst(&mut values, 100_000), Some(3));
    assert_eq!(worst(&mut values, 200_000), Some(4));
}

#[test]
fn a_database_keeps_the_index_with_its_state() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = || Options::new(folder.path()).create(true).small().history(20);
    let index = ChangeIndex::new(NAMESPACE, 10).expect("long enough");
    let mut map = Map::new();
    let check = |db: &Db, map: &Map| {
        let session = db.session(SessionOptions::new()).expect("a session");
        let namespace = session.namespace(NAMESPACE).expect("it was added");
        for (key, set) in map {
            compare(index, namespace, key, set, &[0, 1, 99, 100, 101, 250, 400]);
        }
    };
    {
        let db = Db::open(options()).expect("created");
        db.add_namespace(NAMESPACE).expect("added");
        for block in 1..=300 {
            let keys: Vec<Key> = (0..5).filter(|id| block % (id + 1) == 0).map(key).collect();
            let session = db.session(SessionOptions::new()).expect("a session");
            let namespace = session.namespace(NAMESPACE).expect("it was added");
            let mut stage = index.stage(namespace);
            stage.append(block, &keys).expect("read");
            let accesses = stage.into_accesses();
            session.finish(accesses).expect("finished").commit().expect("committed");
            append(&mut map, block, &keys);
        }
        check(&db, &map);
        db.close().expect("closed");
    }
    let db = Db::open(options()).expect("opened");
    check(&db, &map);
    // A rollback takes the index with it.
    db.rollback(15).expect("rolled back");
    let keys: Vec<Key> = (0..5).map(key).collect();
    unwind(&mut map, &keys, 285);
    check(&db, &map);
    // Farther than a history goes.
    let session = db.session(SessionOptions::new()).expect("a session");
    let namespace = session.namespace(NAMESPACE).expect("it was added");
    let mut stage = index.stage(namespace);
    stage.unwind(&keys, 100).expect("read");
    let accesses = stage.into_accesses();
    session.finish(accesses).expect("finished").commit().expect("committed");
    unwind(&mut map, &keys, 100);
    check(&db, &map);
    let other = ChangeIndex::new(NAMESPACE, 11).expect("long enough");
    let session = db.session(SessionOptions::new()).expect("a session");
    let namespace = session.namespace(NAMESPACE).expect("it was added");
    let refused = other.last_at(namespace, &key(0), 1);
    assert!(matches!(refused, Err(Error::OtherShards { stored: 10, asked: 11 })), "{refused:?}");
    let refused = index.stage(namespace).append(99, &keys[..1]);
    assert!(matches!(refused, Err(Error::NotAscending { block: 99, last: 100 })), "{refused:?}");
    assert!(matches!(ChangeIndex::new(NAMESPACE, 1), Err(Error::ShardTooSmall { shard: 1 })));
}

#[test]
fn damaged_values_are_errors_and_never_panics() {
    let index = ChangeIndex::new(NAMESPACE, 3).expect("long enough");
    let (mut random, alice) = (Rng::new(77), key(1));
    let mut sound = Values::default();
    let mut stage = index.stage(&sound);
    for block in 0..3000 {
        stage.append(block * 3, &[alice]).expect("no reads");
    }
    let accesses = stage.into_accesses();
    sound.apply(accesses);
    let keys: Vec<Key> = sound.values.keys().copied().collect();
    let (mut refused, mut others) = (0, 0);
    for round in 0..3000 {
        // The head every second time.
        let at = random.below(keys.len() as u64);
        let at = if round % 2 == 0 { alice } else { keys[usize::try_from(at).expect("small")] };
        let mut values = Values { values: sound.values.clone(), reads: Cell::new(0) };
        let mut bytes = values.values[&at].to_vec();
        let byte = usize::try_from(random.below(bytes.len() as u64)).expect("small");
        match random.below(4) {
            0 => bytes.truncate(byte),
            1 => bytes[byte] ^= 1 << random.below(8),
            2 => bytes.insert(byte, 0xff),
            _ => {
                bytes[byte] = 0xff;
                bytes.extend([0xff; 12]);
            }
        }
        values.values.insert(at, Value::from(bytes));
        let block = random.below(9000);
        let mut failed = index.last_at(&values, &alice, block).is_err();
        failed |= index.first_after(&values, &alice, block).is_err();
        failed |= match index.changes(&values, &alice, ..) {
            Ok(changes) => changes.take(100_000).any(|change| change.is_err()),
            Err(_) => true,
        };
        let mut stage = index.stage(&values);
        failed |= stage.append(u64::MAX, &[alice]).is_err();
        failed |= stage.unwind(&[alice], block).is_err();
        *(if failed { &mut refused } else { &mut others }) += 1;
    }
    assert!(refused > 1000, "{refused} refused, {others} not");
}

/// Values that cannot be read once.
struct Fails<'a> {
    values: &'a Values,
    /// Calls until then.
    left: Cell<u64>,
}

impl Source for Fails<'_> {
    fn read_many(&self, keys: &[Key]) -> pleach::Result<Vec<Option<Value>>> {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        if left == 0 { Err(pleach::Error::Closed) } else { self.values.read_many(keys) }
    }
}

/// An unwind of more nodes than are looked for at once, which fails at each of its reads in turn, is tried again on the same
/// stage.
#[test]
fn an_unwind_that_failed_is_tried_again() {
    let index = ChangeIndex::new(NAMESPACE, 2).expect("long enough");
    let mut values = Values::default();
    let mut stage = index.stage(&values);
    (0..2000).try_for_each(|block| stage.append(block, &[key(1)])).expect("staged");
    let accesses = stage.into_accesses();
    values.apply(accesses);
    let mut failed = 0;
    for left in 0.. {
        let fails = Fails { values: &values, left: Cell::new(left) };
        let mut stage = index.stage(&fails);
        if stage.unwind(&[key(1)], 6).is_ok() {
            break;
        }
        failed += 1;
        stage.unwind(&[key(1)], 6).expect("nothing is damaged");
        let mut after = Values { values: values.values.clone(), ..Values::default() };
        after.apply(stage.into_accesses());
        compare(index, &after, &key(1), &(0..=6).collect(), &[0, 3, 6, 7, 1000]);
        assert_eq!(after.values.len(), 4, "a head and three shards");
    }
    assert!(failed > 3, "{failed} reads");
}

/// A shard that begins below the one before it: no answer is on the wrong side of the block.
#[test]
fn a_shard_that_goes_back_is_damage() {
    let index = ChangeIndex::new(NAMESPACE, 2).expect("long enough");
    let mut values = Values::default();
    let mut stage = index.stage(&values);
    for block in [1, 2, 10, 11] {
        stage.append(block, &[key(1)]).expect("staged");
    }
    let accesses = stage.into_accesses();
    values.apply(accesses);
    let list = |numbers: [u64; 2]| {
        let mut bytes = Vec::new();
        pleach_change_index::internals::push(&mut bytes, None, numbers[0]);
        pleach_change_index::internals::push(&mut bytes, Some(numbers[0]), numbers[1]);
        bytes
    };
    let shard = values.values.values_mut().find(|value| ***value == list([10, 11])[..]);
    *shard.expect("it is there") = Value::from(list([0, 11]).as_slice());
    let next = index.first_after(&values, &key(1), 5);
    assert!(matches!(next, Err(Error::Damaged { .. })), "{next:?}");
}

const GOLDEN: &str = "tests/golden/index-1.txt";

/// What the golden index holds: four keys that change at some of 300 blocks, with nodes of four numbers.
fn golden() -> (ChangeIndex, Map) {
    let index = ChangeIndex::new(NAMESPACE, 4).expect("long enough");
    let mut map = Map::new();
    for block in (1..=300).map(|block| block * block * 7) {
        for id in (0..4).filter(|id| block % (id * 9 + 1) == 0) {
            map.entry(key(id)).or_default().insert(block);
        }
    }
    (index, map)
}

/// Version 0.1 wrote the values, a key and a value in hexadecimal digits a line. Every later version reads them.
#[test]
fn an_index_of_version_0_1_is_read() {
    let bytes = |digits: &str| -> Vec<u8> {
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
        (0..digits.len()).step_by(2).map(byte).collect()
    };
    let mut values = Values::default();
    for line in std::fs::read_to_string(GOLDEN).expect("there").lines() {
        let (key, value) = line.split_once(' ').expect("key and value");
        let key = bytes(key).try_into().expect("32 bytes");
        values.values.insert(key, Value::from(bytes(value)));
    }
    let (index, map) = golden();
    assert!(values.values.len() > 60, "inner nodes and leaves: {}", values.values.len());
    for (key, set) in &map {
        compare(index, &values, key, set, &[0, 7, 8, 63, 10_000, 629_999, 630_000, u64::MAX]);
    }
}

/// Writes the golden index: once, when its format gets a version.
#[test]
#[ignore = "writes a file of the repository"]
fn write_the_golden_index() {
    let (index, map) = golden();
    let mut values = Values::default();
    let blocks: BTreeSet<u64> = map.values().flatten().copied().collect();
    for block in blocks {
        let keys: Vec<Key> =
            map.iter().filter(|(_, set)| set.contains(&block)).map(|(key, _)| *key).collect();
        let mut stage = index.stage(&values);
        stage.append(block, &keys).expect("read");
        let accesses = stage.into_accesses();
        values.apply(accesses);
    }
    let hex =
        |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let line = |(key, value): (&Key, &Value)| format!("{} {}\n", hex(key), hex(value));
    std::fs::create_dir_all("tests/golden").expect("made");
    let lines: Vec<String> = values.values.iter().map(line).collect();
    std::fs::write(GOLDEN, lines.concat()).expect("written");
}
