//! What a database is held against: a map for each namespace, whose root is the one that `nomt-core` builds, and whose
//! proofs are those of the naive trie.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use nomt_core::hasher::{Blake3Hasher, NodeHasher, Sha2Hasher, ValueHasher};
use pleach::proof::{self, Lookup};
use pleach::{
    Access, AccessKind, Error, Hasher, Key, Namespace, Node, Roots, Session, Value, ValueHash,
};
use pleach_core::TERMINATOR;
use pleach_core::naive::NaiveTrie;

use crate::common::{Rng, ops};
use crate::place::complete;
use crate::plan::{NAMESPACES, Setup, is_plain};

/// Up to this many pairs and accesses, proofs are the naive trie's, byte by byte.
const NAIVE: usize = 4000;
/// Of more pairs than this, only some proofs are.
const MANY: usize = 300;

/// A hasher that `nomt-core` has, too.
pub trait Judged: NodeHasher + ValueHasher {
    const HASHER: Hasher;
}

impl Judged for Blake3Hasher {
    const HASHER: Hasher = Hasher::BLAKE3;
}

impl Judged for Sha2Hasher {
    const HASHER: Hasher = Hasher::SHA2_256;
}

fn root_of<H: Judged>(leaves: impl Iterator<Item = (Key, [u8; 32])>) -> Node {
    nomt_core::update::build_trie::<H>(0, leaves, |_| {}).into()
}

/// What a namespace has.
#[derive(Clone)]
pub struct Space {
    pub values: BTreeMap<Key, (Value, [u8; 32])>,
    /// Its root, or the digest of the plain one.
    pub root: Node,
}

impl Default for Space {
    fn default() -> Self {
        Self { values: BTreeMap::new(), root: TERMINATOR }
    }
}

/// The digest of a plain namespace, from the one before and the message of what has changed.
fn digest(before: &Node, message: &[u8]) -> Node {
    let message = [&before.to_bytes(), message].concat();
    pleach_core::hasher::keyed_blake3(b"pleach plain namespace digest v1", &message).into()
}

impl Space {
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.values.get(key).map(|value| &value.0)
    }

    fn said(&self, key: &Key) -> Lookup {
        self.values.get(key).map_or(Lookup::Absent, |value| Lookup::Present(value.1.into()))
    }

    /// Keys in a row, from a key on and on from the first one.
    pub fn row(&self, from: &Key, count: usize) -> Vec<Key> {
        let behind = self.values.range((Bound::Included(*from), Bound::Unbounded));
        let row = behind.chain(self.values.range(..*from)).map(|(key, _)| *key);
        row.take(count).collect()
    }

    /// The pairs in a range; none in one that is empty or inverted.
    pub fn pairs(&self, range: (Bound<Key>, Bound<Key>)) -> Vec<(Key, Value)> {
        let within = |key: &Key| std::ops::RangeBounds::contains(&range, key);
        let pairs = self.values.iter().filter(|(key, _)| within(key));
        pairs.map(|(key, value)| (*key, value.0.clone())).collect()
    }

    fn naive(&self) -> NaiveTrie {
        self.values.iter().map(|(key, (_, hash))| (*key, ValueHash::new(*hash))).collect()
    }

    fn merkle_root<H: Judged>(&self) -> Node {
        root_of::<H>(self.values.iter().map(|(key, (_, hash))| (*key, *hash)))
    }

    fn set<H: Judged>(&mut self, access: &Access) {
        match written(access) {
            Some(value) => {
                let hash = H::hash_value(value);
                self.values.insert(access.key, (value.clone(), hash));
            }
            None if is_write(access) => drop(self.values.remove(&access.key)),
            None => {}
        }
    }

    /// Pairs come that a load brings.
    fn load<H: Judged>(&mut self, number: u8, pairs: &BTreeMap<Key, Value>) {
        let hashed = |(key, value): (&Key, &Value)| (*key, (value.clone(), H::hash_value(value)));
        self.values = pairs.iter().map(hashed).collect();
        let root = self.merkle_root::<H>();
        self.root = if is_plain(number) { digest(&self.root, &root.to_bytes()) } else { root };
    }
}

/// One state of a database.
#[derive(Clone)]
pub struct State {
    pub spaces: BTreeMap<u8, Arc<Space>>,
    pub blob: Arc<[u8]>,
}

impl Default for State {
    fn default() -> Self {
        Self { spaces: BTreeMap::from([(0, Arc::default())]), blob: Arc::default() }
    }
}

pub fn of(accesses: &[Access], namespace: u8) -> Vec<Access> {
    accesses.iter().filter(|access| access.namespace == namespace).cloned().collect()
}

/// The value that an access writes; none where it deletes or reads.
fn written(access: &Access) -> Option<&Value> {
    match &access.kind {
        AccessKind::Read => None,
        AccessKind::Write(value) | AccessKind::ReadWrite(value) => value.as_ref(),
        _ => unreachable!("deletes of keys are in its place"),
    }
}

pub fn is_write(access: &Access) -> bool {
    access.kind != AccessKind::Read
}

/// What the digest of a plain namespace is made of: changes in the order of their keys.
fn message<H: Judged>(accesses: &[Access]) -> Vec<u8> {
    let mut changes: Vec<&Access> = accesses.iter().filter(|access| is_write(access)).collect();
    changes.sort_by_key(|access| access.key);
    let mut message = Vec::new();
    for access in changes {
        message.extend_from_slice(&access.key);
        match written(access) {
            Some(value) if value.len() > 1024 => {
                message.push(2);
                message.extend_from_slice(&H::hash_value(value));
            }
            Some(value) => {
                message.push(1);
                let len = u32::try_from(value.len()).expect("at most 1 KiB");
                message.extend_from_slice(&len.to_le_bytes());
                message.extend_from_slice(value);
            }
            None => message.push(0),
        }
    }
    message
}

impl State {
    /// What accesses mean: deletes of the keys that there are in the place of those of prefixes. What the batch reads came before the
    /// delete, what it writes comes after.
    pub fn meant(&self, accesses: &[Access]) -> Vec<Access> {
        let is_prefix = |access: &&Access| matches!(access.kind, AccessKind::DeletePrefix(_));
        let (prefixes, own): (Vec<&Access>, Vec<&Access>) = accesses.iter().partition(is_prefix);
        let known = own.iter().enumerate().map(|(at, one)| ((one.namespace, one.key), at));
        let mut known: BTreeMap<_, usize> = known.collect();
        let mut meant: Vec<Access> = own.into_iter().cloned().collect();
        for access in prefixes {
            let AccessKind::DeletePrefix(bytes) = access.kind else { continue };
            let prefix = &access.key[..usize::from(bytes)];
            let below = self.spaces[&access.namespace].values.keys();
            for key in below.filter(|key| key.starts_with(prefix)) {
                let at = *known.entry((access.namespace, *key)).or_insert(meant.len());
                match meant.get_mut(at) {
                    None => meant.push(Access::write(*key, None).in_namespace(access.namespace)),
                    Some(own) if own.kind == AccessKind::Read => {
                        own.kind = AccessKind::ReadWrite(None);
                    }
                    Some(_) => {}
                }
            }
        }
        meant
    }

    pub fn after<H: Judged>(&self, accesses: &[Access]) -> Self {
        let mut after = self.clone();
        for (namespace, space) in &mut after.spaces {
            let own = of(accesses, *namespace);
            if !own.iter().any(is_write) {
                continue;
            }
            let space = Arc::make_mut(space);
            for access in &own {
                space.set::<H>(access);
            }
            space.root = if is_plain(*namespace) {
                digest(&space.root, &message::<H>(&own))
            } else {
                space.merkle_root::<H>()
            };
        }
        after
    }

    pub fn loaded<H: Judged>(&self, namespace: u8, pairs: &BTreeMap<Key, Value>) -> Self {
        let mut after = self.clone();
        let space = after.spaces.get_mut(&namespace).expect("loaded into what exists");
        assert!(space.values.is_empty(), "loaded over values");
        Arc::make_mut(space).load::<H>(namespace, pairs);
        after
    }

    /// Roots and digests.
    pub fn roots(&self) -> Vec<(u8, Node)> {
        self.spaces.iter().map(|(namespace, space)| (*namespace, space.root)).collect()
    }

    /// True when the two states have equal roots, digests and blob.
    pub fn is_as(&self, other: &Self) -> bool {
        self.roots() == other.roots() && self.blob == other.blob
    }

    /// The trie of roots.
    fn naive_over_all(&self) -> NaiveTrie {
        let merkle = self.spaces.iter().filter(|(namespace, _)| !is_plain(**namespace));
        let leaf = |(namespace, space): (&u8, &Arc<Space>)| {
            (proof::roots::namespace_key(*namespace), space.root.to_bytes().into())
        };
        merkle.map(leaf).collect()
    }

    /// These are the state's roots and digests.
    pub fn assert_roots(&self, roots: &Roots, what: &str) {
        let mut found: Vec<(u8, Node)> = roots.iter().collect();
        found.extend(roots.digests().map(|(namespace, digest)| (namespace, digest.into())));
        found.sort_by_key(|(namespace, _)| *namespace);
        let roots = self.roots();
        assert!(found == roots, "{what} has the roots {found:?}, those of nomt-core are {roots:?}");
    }

    /// A witness of a namespace leads from this state to the one behind the accesses.
    pub fn assert_witness<H: Judged>(
        &self,
        after: &Self,
        namespace: u8,
        accesses: &[Access],
        witness: &[u8],
    ) {
        let [before, after] = [self, after].map(|state| &state.spaces[&namespace]);
        let verified = match proof::witness::verify(H::HASHER, witness, &before.root) {
            Ok(verified) => verified,
            Err(error) => panic!("the witness of namespace {namespace}: {error}"),
        };
        assert_eq!(*verified.new_root(), after.root, "the witness of namespace {namespace}");
        assert_eq!(verified.op_count(), accesses.len());
        for access in accesses {
            assert_eq!(verified.get(&access.key), before.said(&access.key));
        }
        if before.values.len() + accesses.len() <= NAIVE {
            let naive = before.naive().witness(H::HASHER, &ops(H::HASHER, accesses));
            assert!(
                naive.encode(H::HASHER).expect("encodes") == witness,
                "another witness than the naive trie's"
            );
        }
    }

    /// A session says what the state has, of keys that the seed draws; of `all` of them. Fails where it cannot be read.
    pub fn compare<H: Judged>(
        &self,
        session: &Session,
        setup: &Setup,
        rng: &mut Rng,
        all: bool,
    ) -> Result<(), Error> {
        self.assert_roots(session.roots(), "a session");
        assert!(*session.blob() == *self.blob, "a session has another blob");
        let (over_all, naive) = (session.roots().over_all(H::HASHER), self.naive_over_all());
        assert_eq!(over_all, naive.root(H::HASHER), "the root over all");
        for number in NAMESPACES {
            let proof = session.prove_namespace(number);
            let expected =
                naive.path(H::HASHER, &proof::roots::namespace_key(number)).encode(H::HASHER);
            assert!(proof == expected.expect("encodes").into(), "{number} in the root over all");
            match (session.namespace(number), self.spaces.get(&number)) {
                (Ok(namespace), Some(space)) => {
                    space.compare::<H>(namespace, setup, rng, all)?;
                }
                (Err(Error::Namespace(missing)), None) => assert_eq!(missing, number),
                (Err(error), Some(_)) => return Err(error),
                (found, None) => panic!("namespace {number} is there: {}", found.is_ok()),
            }
        }
        Ok(())
    }

    /// Proofs of change lead from one state to another.
    pub fn assert_change<H: Judged>(
        &self,
        session: &Session,
        (later, to): (&Self, &Session),
        setup: &Setup,
        rng: &mut Rng,
    ) {
        let mut ends = [setup.key(rng.below(setup.ids)), setup.key(rng.below(setup.ids))];
        ends.sort_unstable();
        let [first, last] = if rng.below(2) == 0 { ends } else { [[0; 32], [0xff; 32]] };
        for (number, before) in self.spaces.iter().filter(|(number, _)| !is_plain(**number)) {
            let Some(after) = later.spaces.get(number) else { continue };
            let namespaces = [session, to].map(|of| of.namespace(*number).expect("it exists"));
            let proof = namespaces[0].prove_change(namespaces[1], first..=last).expect("proven");
            let (roots, from) = ((before.root, after.root), H::HASHER);
            let verified = proof::change::verify(from, &proof, &roots.0, &roots.1, &first, &last);
            let changes =
                verified.expect("verifies").changes().map(|(key, ..)| key).collect::<Vec<_>>();
            let keys: BTreeSet<&Key> = before.values.keys().chain(after.values.keys()).collect();
            let within = keys.into_iter().filter(|key| (first..=last).contains(key));
            let differing = within.filter(|key| before.said(key) != after.said(key));
            assert!(changes.iter().eq(differing), "changes of namespace {number}");
            let many = before.values.len() + after.values.len();
            if many <= MANY || many <= NAIVE && rng.below(3) == 0 {
                let expected =
                    before.naive().change(H::HASHER, &after.naive(), &first, &last).into();
                assert!(proof == expected, "another proof of what changed in {number}");
            }
            if *number > 0 {
                let other = to.namespace(0).expect("it always exists");
                let mixed = namespaces[0].prove_change(other, first..=last);
                assert!(matches!(mixed, Err(Error::ForeignSession)), "namespaces mixed");
            }
        }
    }
}

impl Space {
    fn compare<H: Judged>(
        &self,
        session: &Namespace,
        setup: &Setup,
        rng: &mut Rng,
        all: bool,
    ) -> Result<(), Error> {
        let number = session.number();
        let count = [1, 2, 12, 60, 60, if rng.below(4) == 0 { 700 } else { 129 }][rng.index(6)];
        // In any order, some of them twice, and some that were never there.
        let mut keys: Vec<Key> = (0..count).map(|_| setup.key(rng.below(setup.ids))).collect();
        if rng.below(4) == 0 {
            keys[0][31] ^= 1;
        }
        match rng.below(4) {
            0 | 1 => session.prefetch(&keys),
            2 => keys.chunks(20).step_by(2).for_each(|some| session.prefetch(some)),
            _ => {}
        }
        for (at, key) in keys.iter().step_by(1 + rng.index(5)).take(40).enumerate() {
            let one =
                if at % 3 == 0 { complete(session.read_async(*key)) } else { session.read(key) }?;
            assert!(one.as_ref() == self.get(key), "{number} {key:02x?}: another value");
        }
        let values = session.read_many(&keys)?;
        for (key, value) in keys.iter().zip(&values) {
            assert!(value.as_ref() == self.get(key), "{number} {key:02x?}: another value");
        }
        self.compare_pairs(session, &keys, rng, all)?;
        if is_plain(number) {
            assert_eq!(session.digest(), Some(self.root.to_bytes()));
            let proofs = [
                session.prove(&keys[0]).map(drop),
                session.prove_many(&keys).map(drop),
                session.prove_range(keys[0]..=[0xff; 32]).map(drop),
                session.prove_change(session, keys[0]..=[0xff; 32]).map(drop),
            ];
            for refused in proofs {
                assert!(matches!(refused, Err(Error::Plain(found)) if found == number));
            }
            return Ok(());
        }
        assert_eq!(session.root(), Some(self.root));
        self.compare_proofs::<H>(session, &keys, rng)
    }

    /// Pairs of a range, from either end or from both in turns, to its end or not so far.
    fn compare_pairs(
        &self,
        session: &Namespace,
        keys: &[Key],
        rng: &mut Rng,
        all: bool,
    ) -> Result<(), Error> {
        let mut bound = || match rng.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(keys[rng.index(keys.len())]),
            _ => Bound::Excluded(keys[rng.index(keys.len())]),
        };
        let range = if all { (Bound::Unbounded, Bound::Unbounded) } else { (bound(), bound()) };
        let (expected, mut iter) = (self.pairs(range), session.iter(range));
        // The chance of a step from behind, of eight.
        let back = [0, 0, 8, 8, 1, 4][rng.index(6)];
        let enough = if all || rng.below(4) > 0 { usize::MAX } else { 50 };
        let (mut front, mut behind) = (Vec::new(), Vec::new());
        while front.len() + behind.len() < enough {
            let backwards = rng.below(8) < back;
            let pair = if backwards { iter.next_back() } else { iter.next() };
            let Some(pair) = pair else { break };
            if backwards { &mut behind } else { &mut front }.push(pair?);
        }
        behind.reverse();
        if front.len() + behind.len() < enough {
            assert!(iter.next().is_none() && iter.next_back().is_none(), "it has ended");
            front.append(&mut behind);
            assert!(front == expected, "pairs of namespace {} in {range:?}", session.number());
        } else {
            let (ahead, last) = (front.len(), expected.len() - behind.len());
            assert!(front == expected[..ahead] && behind == expected[last..], "pairs of both ends");
        }
        Ok(())
    }

    fn compare_proofs<H: Judged>(
        &self,
        session: &Namespace,
        keys: &[Key],
        rng: &mut Rng,
    ) -> Result<(), Error> {
        let hasher = H::HASHER;
        let many = self.values.len();
        // The naive trie hashes all of it again for each proof.
        let compares = many <= MANY || many <= NAIVE && rng.below(6) == 0;
        let naive = compares.then(|| self.naive());
        let proof = session.prove(&keys[0])?;
        let verified = proof::path::verify(hasher, &proof, &self.root).expect("verifies");
        assert_eq!(verified.get(&keys[0]), self.said(&keys[0]));
        if let Some(naive) = &naive {
            let expected = naive.path(hasher, &keys[0]).encode(hasher).expect("encodes");
            assert!(proof == expected.into(), "another path than the naive trie's");
        }
        let proof = session.prove_many(keys)?;
        let verified = proof::multi::verify(hasher, &proof, &self.root).expect("verifies");
        assert!(keys.iter().all(|key| verified.get(key) == self.said(key)), "keys that are proven");
        if let Some(naive) = &naive {
            let expected = naive.multi(hasher, keys).encode(hasher).expect("encodes");
            assert!(proof == expected.into(), "another multiproof than the naive trie's");
        }
        let mut ends = [keys[0], keys[keys.len() - 1]];
        ends.sort_unstable();
        let [first, last] = if rng.below(4) == 0 { [[0; 32], [0xff; 32]] } else { ends };
        let proof = session.prove_range(first..=last)?;
        let verified =
            proof::range::verify(hasher, &proof, &self.root, &first, &last).expect("verifies");
        let pairs = self.values.range(first..=last).map(|(key, value)| (*key, value.1.into()));
        assert!(verified.pairs().eq(pairs), "pairs that are proven");
        if let Some(naive) = &naive {
            let expected = naive.range(hasher, &first, &last).into();
            assert!(proof == expected, "another proof of a range than the naive trie's");
        }
        Ok(())
    }
}
