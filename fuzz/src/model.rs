//! The oracle of a whole database: values in a map, the root by plain recursion; and batches cut
//! from the fuzzer's bytes.

use std::collections::{BTreeMap, BTreeSet};

use pleach::{
    Access, AccessKind, Block, Db, Error, Namespace, Session, SessionOptions, Value, Witness,
};
use pleach_core::naive::NaiveTrie;
use pleach_core::proof::{self, Op};
use pleach_core::{
    Hasher, Key, Node, TERMINATOR, ValueHash, keyed_blake3,
    proof::{Lookup, witness},
};
use pleach_io::sim::SimDisk;
use pleach_ops::{CheckOptions, Finding, check_on};

use crate::Input;
use crate::sim::reader;

/// Batches and loads of hundreds of keys that one input may have.
const HEAVY: u32 = 2;
/// Numbers of [`key`].
const KEYS: u8 = 64;
/// Bit of the numbers of keys that share 64 bits at most.
const SHALLOW: u8 = 16;

/// Namespaces that come and go, beside namespace 0.
pub const NAMESPACES: [u8; 3] = [1, 2, 255];
/// The one of them that is plain.
pub const PLAIN: u8 = 2;
/// One that never comes.
pub const NEVER: u8 = 77;

/// What a namespace has.
#[derive(Clone, Debug)]
struct Trie {
    values: BTreeMap<Key, (Value, ValueHash)>,
    /// Of the plain one, the digest.
    root: Node,
}

/// One state of a database.
#[derive(Clone, Debug)]
pub struct State {
    tries: BTreeMap<u8, Trie>,
}

impl Default for Trie {
    fn default() -> Self {
        Self { values: BTreeMap::new(), root: TERMINATOR }
    }
}

impl Default for State {
    fn default() -> Self {
        Self { tries: BTreeMap::from([(0, Trie::default())]) }
    }
}

impl FromIterator<(Key, Value)> for Trie {
    fn from_iter<I: IntoIterator<Item = (Key, Value)>>(pairs: I) -> Self {
        let mut trie = Self::default();
        pairs.into_iter().for_each(|(key, value)| trie.set(key, Some(value)));
        trie.fold();
        trie
    }
}

/// In namespace 0.
impl FromIterator<(Key, Value)> for State {
    fn from_iter<I: IntoIterator<Item = (Key, Value)>>(pairs: I) -> Self {
        Self { tries: BTreeMap::from([(0, pairs.into_iter().collect())]) }
    }
}

impl Trie {
    fn get(&self, key: &Key) -> Option<&Value> {
        self.values.get(key).map(|value| &value.0)
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        self.values.keys()
    }

    fn set(&mut self, key: Key, value: Option<Value>) {
        match value {
            Some(value) => {
                let hash = Hasher::BLAKE3.hash(&value).into();
                self.values.insert(key, (value, hash));
            }
            None => drop(self.values.remove(&key)),
        }
    }

    fn fold(&mut self) {
        self.root = self.naive().root(Hasher::BLAKE3);
    }

    fn naive(&self) -> NaiveTrie {
        self.values.iter().map(|(key, (_, hash))| (*key, *hash)).collect()
    }

    fn assert_read_by(&self, session: &Namespace) {
        let root = (session.number() != PLAIN).then_some(self.root);
        assert_eq!((session.root(), session.digest().is_some()), (root, root.is_none()));
        let named = (0..KEYS).map(key);
        let keys: BTreeSet<Key> = named.chain(self.keys().copied()).collect();
        let keys: Vec<Key> = keys.into_iter().collect();
        let values = session.read_many(&keys).expect("reads");
        for (key, value) in keys.iter().zip(values) {
            assert!(value.as_ref() == self.get(key), "key {key:02x?}");
        }
        // The same one by one, most of them announced.
        session.prefetch(&keys[keys.len() / 4..]);
        for key in &keys {
            let value = session.read(key).expect("reads");
            assert!(value.as_ref() == self.get(key), "announced key {key:02x?}");
        }
    }

    /// The witness of a batch over this trie is the naive one's, and leads to the trie behind.
    fn assert_witness(&self, bytes: &[u8], accesses: &[Access], after: &Self) {
        let wanted = self.naive().witness(Hasher::BLAKE3, &ops(accesses));
        assert!(wanted.encode(Hasher::BLAKE3).expect("small") == bytes, "the naive trie's witness");
        let verified = witness::verify(Hasher::BLAKE3, bytes, &self.root).expect("a valid witness");
        assert_eq!(*verified.new_root(), after.root);
        assert_eq!(verified.op_count(), accesses.len());
        for access in accesses {
            let hash = self.values.get(&access.key).map(|value| value.1);
            assert_eq!(verified.get(&access.key), hash.map_or(Lookup::Absent, Lookup::Present));
        }
    }
}

impl State {
    /// Of namespace 0.
    pub fn root(&self) -> Node {
        self.tries[&0].root
    }

    /// A namespace's pair of a key; none where there is none of that number.
    pub fn get_of(&self, namespace: u8, key: &Key) -> Option<&Value> {
        self.tries.get(&namespace)?.get(key)
    }

    /// A namespace's keys; none where there is none of that number.
    pub fn keys_of(&self, namespace: u8) -> impl Iterator<Item = &Key> {
        self.tries.get(&namespace).into_iter().flat_map(Trie::keys)
    }

    /// The root of each namespace that has one.
    pub fn roots(&self) -> Vec<(u8, Node)> {
        self.merkle().map(|(namespace, trie)| (*namespace, trie.root)).collect()
    }

    /// The digest of the plain namespace.
    pub fn digests(&self) -> Vec<(u8, [u8; 32])> {
        let plain = self.tries.get(&PLAIN);
        plain.map(|trie| (PLAIN, trie.root.to_bytes())).into_iter().collect()
    }

    /// What parents are compared by.
    pub fn is_parent_like(&self, other: &Self) -> bool {
        (self.roots(), self.digests()) == (other.roots(), other.digests())
    }

    fn merkle(&self) -> impl Iterator<Item = (&u8, &Trie)> {
        self.tries.iter().filter(|(namespace, _)| **namespace != PLAIN)
    }

    /// All namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = u8> {
        self.tries.keys().copied()
    }

    /// The root over all, by plain recursion.
    pub fn over_all(&self) -> Node {
        let leaf = |(namespace, trie): (&u8, &Trie)| {
            let mut key = [0; 32];
            key[0] = *namespace;
            (key, trie.root.to_bytes().into())
        };
        self.merkle().map(leaf).collect::<NaiveTrie>().root(Hasher::BLAKE3)
    }

    pub fn has(&self, namespace: u8) -> bool {
        self.tries.contains_key(&namespace)
    }

    /// True when the namespace has no pairs. False where there is no namespace of that number.
    pub fn is_bare(&self, namespace: u8) -> bool {
        self.tries.get(&namespace).is_some_and(|trie| trie.values.is_empty())
    }

    /// The state with these pairs in a namespace, added or loaded, and no others.
    #[must_use]
    pub fn with(&self, namespace: u8, pairs: impl IntoIterator<Item = (Key, Value)>) -> Self {
        let mut state = self.clone();
        let mut trie: Trie = pairs.into_iter().collect();
        if namespace == PLAIN
            && let Some(before) = self.tries.get(&PLAIN)
        {
            trie.root = loaded(before.root, trie.root);
        }
        state.tries.insert(namespace, trie);
        state
    }

    /// The state without a namespace.
    #[must_use]
    pub fn without(&self, namespace: u8) -> Self {
        let mut state = self.clone();
        state.tries.remove(&namespace);
        state
    }

    /// The state behind a batch.
    #[must_use]
    pub fn after(&self, accesses: &[Access]) -> Self {
        let mut state = self.clone();
        for access in accesses {
            if let AccessKind::Write(value) | AccessKind::ReadWrite(value) = &access.kind {
                let trie = state.tries.get_mut(&access.namespace).expect("it exists");
                trie.set(access.key, value.clone());
            }
        }
        for (namespace, trie) in &mut state.tries {
            if *namespace == PLAIN {
                trie.root = digest(trie.root, accesses);
            } else {
                trie.fold();
            }
        }
        state
    }

    /// Checks that a key has its value in all namespaces.
    pub fn assert_reads(&self, session: &Session, key: &Key, what: &str) {
        for (number, trie) in &self.tries {
            let namespace = session.namespace(*number).expect("it exists");
            let found = namespace.read(key).expect("reads");
            assert!(found.as_ref() == trie.get(key), "{what}: {number} {key:02x?}");
        }
    }

    /// The same for several keys at once.
    pub fn assert_reads_many(&self, session: &Session, keys: &[Key]) {
        for (number, trie) in &self.tries {
            let namespace = session.namespace(*number).expect("it exists");
            let values = namespace.read_many(keys).expect("reads");
            let wanted = keys.iter().map(|key| trie.get(key));
            assert!(values.iter().map(Option::as_ref).eq(wanted), "{number} {keys:02x?}");
        }
    }

    /// Every key that a batch can name, and every one that is there, has its value, in the namespaces that exist and
    /// no others.
    pub fn assert_read_by(&self, session: &Session) {
        assert!(session.roots().iter().eq(self.roots()));
        assert!(session.roots().digests().eq(self.digests()));
        assert_eq!(session.roots().over_all(Hasher::BLAKE3), self.over_all());
        assert_eq!(session.root(), self.root());
        for number in [0, NEVER].into_iter().chain(NAMESPACES) {
            match (session.namespace(number), self.tries.get(&number)) {
                (Ok(namespace), Some(trie)) => trie.assert_read_by(namespace),
                (Err(Error::Namespace(none)), None) => assert_eq!(none, number),
                (found, _) => panic!("namespace {number} is there: {}", found.is_ok()),
            }
        }
    }

    /// The tip of an open database is this state.
    pub fn assert_tip_of(&self, db: &Db, number: u64) {
        assert_eq!(db.commit_number(), number);
        assert_eq!(db.root(), self.root(), "root of commit {number}");
        assert!(db.roots().iter().eq(self.roots()), "roots of commit {number}");
        assert!(db.roots().digests().eq(self.digests()), "digests of commit {number}");
    }

    /// The closed database on a disk has no faults, and a scan of it gives this state.
    pub fn assert_on_disk(&self, disk: &SimDisk, number: u64) {
        self.assert_on_disk_but(disk, number, |_| false);
    }

    /// The same, but for faults that are to be expected.
    pub fn assert_on_disk_but(
        &self,
        disk: &SimDisk,
        number: u64,
        is_expected: impl Fn(&Finding) -> bool,
    ) {
        let report = check_on(disk, CheckOptions::default()).expect("can be checked");
        assert!(report.findings.iter().all(is_expected), "{:#?}", report.findings);
        assert_eq!((report.commit, report.root), (number, self.root()));
        assert_eq!(report.namespaces, self.tries.len() as u64);
        let keys: usize = self.tries.values().map(|trie| trie.values.len()).sum();
        // Those of a dropped namespace that is still kept are among them.
        assert!(report.keys >= keys as u64);
        let reader = reader(disk).expect("opens");
        let session = reader.snapshot().expect("a session");
        for (number, trie) in &self.tries {
            let mut wanted = trie.values.iter();
            for pair in session.namespace(*number).expect("there").iter(..) {
                let (key, value) = pair.expect("can be read");
                let next = wanted.next().expect("no more pairs than the model has");
                let same = *next.0 == key && *next.1.0 == *value;
                assert!(same, "{number}: key {key:02x?} where {:02x?}", next.0);
            }
            assert_eq!(wanted.next(), None, "a pair that the scan of {number} misses");
        }
    }

    /// The witnesses of a batch: one for each namespace that it accesses.
    pub fn assert_witnesses(&self, witnesses: &[(u8, Witness)], accesses: &[Access], after: &Self) {
        for (number, trie) in self.merkle() {
            let own = accesses.iter().filter(|access| access.namespace == *number);
            let own: Vec<Access> = own.cloned().collect();
            if !own.is_empty() {
                let found = witnesses.iter().find(|witness| witness.0 == *number);
                let (_, found) = found.expect("a witness for what was accessed");
                trie.assert_witness(found, &own, &after.tries[number]);
            }
        }
    }

    /// Finishes a batch over this state; its roots are the model's, and so are its witnesses, byte by
    /// byte, which also hold for a verifier that has nothing else.
    pub fn finish(&self, session: Session, accesses: &[Access], witnessed: bool) -> (Block, Self) {
        assert!(session.roots().iter().eq(self.roots()));
        let after = self.after(accesses);
        let mut block = session.finish(accesses.to_vec()).expect("a legal batch");
        assert_eq!((block.prev_root(), block.root()), (self.root(), after.root()));
        assert!(block.prev_roots().iter().eq(self.roots()));
        assert!(block.roots().iter().eq(after.roots()));
        assert!(block.roots().digests().eq(after.digests()));
        let witnesses = block.take_witnesses();
        assert!(witnessed || witnesses.is_empty());
        if witnessed {
            self.assert_witnesses(&witnesses, accesses, &after);
        }
        (block, after)
    }
}

/// The digest behind a load of pairs whose trie has this root.
fn loaded(before: Node, root: Node) -> Node {
    if root == TERMINATOR {
        return before;
    }
    let message = [before.to_bytes(), root.to_bytes()].concat();
    keyed_blake3(b"pleach plain namespace digest v1", &message).into()
}

/// The digest of the plain namespace after a batch.
fn digest(before: Node, accesses: &[Access]) -> Node {
    let mut changes = BTreeMap::new();
    for access in accesses.iter().filter(|access| access.namespace == PLAIN) {
        if let AccessKind::Write(value) | AccessKind::ReadWrite(value) = &access.kind {
            changes.insert(access.key, value.clone());
        }
    }
    let mut message = before.to_bytes().to_vec();
    for (key, value) in &changes {
        message.extend_from_slice(key);
        match value {
            None => message.push(0),
            Some(value) if value.len() <= 1024 => {
                message.push(1);
                message
                    .extend_from_slice(&u32::try_from(value.len()).expect("short").to_le_bytes());
                message.extend_from_slice(value);
            }
            Some(value) => {
                message.push(2);
                message.extend_from_slice(&Hasher::BLAKE3.hash(value));
            }
        }
    }
    if changes.is_empty() {
        return before;
    }
    keyed_blake3(b"pleach plain namespace digest v1", &message).into()
}

/// Adds a namespace.
pub fn add(db: &Db, namespace: u8) -> pleach::Result<u64> {
    if namespace == PLAIN { db.add_plain_namespace(namespace) } else { db.add_namespace(namespace) }
}

/// The same batch as the naive trie takes it.
fn ops(accesses: &[Access]) -> Vec<Op> {
    let hash =
        |value: &Option<Value>| value.as_ref().map(|value| Hasher::BLAKE3.hash(value).into());
    let op = |access: &Access| Op {
        key: access.key,
        access: match &access.kind {
            AccessKind::Read => proof::Access::Read,
            AccessKind::Write(value) => proof::Access::Write(hash(value)),
            AccessKind::ReadWrite(value) => proof::Access::ReadWrite(hash(value)),
            _ => unreachable!("not made here"),
        },
    };
    let mut ops: Vec<Op> = accesses.iter().map(op).collect();
    ops.sort_unstable_by_key(|op| op.key);
    ops
}

/// One of few keys: a quarter of them differ in their last bits only, a quarter from bit 60 on,
/// a quarter at places that climb through the key; the rest is spread evenly.
fn key(id: u8) -> Key {
    let (kind, id) = (id / 16 % 4, id % 16);
    let mut key = [0xa5; 32];
    match kind {
        0 => key[31] = id,
        1 => key[7] = 0xa0 | id,
        2 => key[usize::from(id) * 2] ^= 0x80 >> (id % 8),
        _ => match id {
            0 => key = [0; 32],
            1 => key = [0xff; 32],
            _ => key = wide(u16::from(id)),
        },
    }
    key
}

/// The keys that share 64 bits at most.
pub fn shallow_keys() -> impl Iterator<Item = Key> {
    (0..KEYS).filter(|id| id & SHALLOW != 0).map(key)
}

/// One of many keys that are spread evenly.
fn wide(id: u16) -> Key {
    Hasher::BLAKE3.hash(&id.to_le_bytes())
}

/// A value that hundreds of keys can have.
fn small(value: Value) -> Value {
    if value.len() > 1000 { Value::from(&value[..1000]) } else { value }
}

/// Cuts batches and loads from the input.
pub struct Draw<'a> {
    pub input: Input<'a>,
    /// Half of the keys share hundreds of bits, and so the index has hundreds of empty prefixes:
    /// everything is several times slower.
    deep: bool,
    heavy: u32,
}

impl<'a> Draw<'a> {
    /// The first byte says whether keys are deep.
    pub fn new(bytes: &'a [u8]) -> Self {
        let mut input = Input(bytes);
        let deep = input.u8() & 3 == 3;
        Self { input, deep, heavy: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.input.0.is_empty()
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.input.u8()) % bound
    }

    pub fn key(&mut self) -> Key {
        let id = self.input.u8() % KEYS;
        key(if self.deep { id } else { id | SHALLOW })
    }

    /// In a page, filling a page with few, out of the page at the flush, out of the log record.
    pub fn value(&mut self) -> Value {
        let (shape, fill) = (self.input.u8(), self.input.u8());
        let len = match shape % 32 {
            0..=2 => 0,
            3 => 1,
            4 => 1023,
            5 => 1024,
            6 => 1025,
            7..=10 => 5000,
            11 => 70_000,
            12..=19 => 1000,
            _ => 8,
        };
        Value::from(vec![fill; len])
    }

    fn new_value(&mut self) -> Option<Value> {
        (!self.input.u8().is_multiple_of(4)).then(|| self.value())
    }

    /// A namespace that comes and goes.
    pub fn namespace(&mut self) -> u8 {
        NAMESPACES[self.below(NAMESPACES.len())]
    }

    /// The accesses of one batch over a state, each key of a namespace once; of namespace 0, where there is no other
    /// one, else of some of them.
    pub fn batch(&mut self, state: &State) -> Vec<Access> {
        let some = if state.tries.len() > 1 { self.input.u8() } else { 1 };
        let mut accesses = Vec::new();
        for (at, (namespace, trie)) in state.tries.iter().enumerate() {
            if some >> at & 1 == 1 {
                let own = self.batch_of(trie).into_iter();
                accesses.extend(own.map(|access| access.in_namespace(*namespace)));
            }
        }
        accesses
    }

    fn batch_of(&mut self, state: &Trie) -> Vec<Access> {
        let shape = self.input.u8();
        match shape % 16 {
            0 => state.keys().map(|key| Access::write(*key, None)).collect(),
            1 => {
                let same = |key: &Key| Access::read_write(*key, state.get(key).cloned());
                state.keys().take(8).map(same).collect()
            }
            2 if self.heavy < HEAVY => self.many(),
            3 => shallow_keys().map(Access::read).collect(),
            _ => self.few(usize::from(shape / 16)),
        }
    }

    fn few(&mut self, count: usize) -> Vec<Access> {
        let mut seen = BTreeSet::new();
        let mut accesses = Vec::new();
        for _ in 0..count {
            let key = self.key();
            let access = match self.input.u8() % 4 {
                0 => Access::read(key),
                1 => Access::write(key, self.new_value()),
                _ => Access::read_write(key, self.new_value()),
            };
            if seen.insert(key) {
                accesses.push(access);
            }
        }
        accesses
    }

    /// Hundreds of keys, so that regions of the index split and merge.
    fn many(&mut self) -> Vec<Access> {
        self.heavy += 1;
        let (count, first, value) = (self.input.u8(), self.input.u8(), self.new_value().map(small));
        let ids = u16::from(first)..u16::from(first) + 2 * u16::from(count);
        ids.map(|id| Access::read_write(wide(id), value.clone())).collect()
    }

    /// The pairs of a bulk load, in some order.
    pub fn load(&mut self) -> Vec<(Key, Value)> {
        let shape = self.input.u8();
        let mut pairs: BTreeMap<Key, Value> =
            (0..shape % 32).map(|_| (self.key(), self.value())).collect();
        if shape & 0x80 != 0 && self.heavy < HEAVY {
            self.heavy += 1;
            let value = small(self.value());
            let more = 2 * u16::from(self.input.u8());
            pairs.extend((0..more).map(|id| (wide(id), value.clone())));
        }
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        if shape & 0x40 != 0 {
            pairs.reverse();
        }
        pairs
    }
}

/// A session on the tip whose finish gives a witness, or none.
pub fn session(db: &Db, witnessed: bool) -> Session {
    db.session(SessionOptions::new().witness(witnessed)).expect("a session")
}
