//! What a database is held against: a map for each namespace, whose root is the one that `nomt-core` builds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use nomt_core::hasher::{Blake3Hasher, NodeHasher, Sha2Hasher, ValueHasher};
use pleach::proof::{self, Lookup};
use pleach::{
    Access, AccessKind, Error, Hasher, Key, Namespace, Node, Roots, Session, Value, ValueHash,
};
use pleach_core::TERMINATOR;
use pleach_core::naive::Naive;

use crate::common::{Rng, ops};
use crate::plan::{NAMESPACES, PLAIN, Setup};

/// Up to this many pairs and accesses, a witness is the naive trie's, byte by byte.
const NAIVE: usize = 4000;

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

    fn naive(&self) -> Naive {
        self.values.iter().map(|(key, (_, hash))| (*key, ValueHash::new(*hash))).collect()
    }

    fn set<H: Judged>(&mut self, access: &Access) {
        match &access.kind {
            AccessKind::Read => {}
            AccessKind::Write(None) | AccessKind::ReadWrite(None) => {
                self.values.remove(&access.key);
            }
            AccessKind::Write(Some(value)) | AccessKind::ReadWrite(Some(value)) => {
                let hash = H::hash_value(value);
                self.values.insert(access.key, (value.clone(), hash));
            }
            _ => unreachable!("not made here"),
        }
    }
}

/// One state of a database.
#[derive(Clone)]
pub struct State(pub BTreeMap<u8, Arc<Space>>);

impl Default for State {
    fn default() -> Self {
        Self(BTreeMap::from([(0, Arc::default())]))
    }
}

pub fn of(accesses: &[Access], namespace: u8) -> Vec<Access> {
    accesses.iter().filter(|access| access.namespace == namespace).cloned().collect()
}

pub fn is_write(access: &Access) -> bool {
    access.kind != AccessKind::Read
}

/// The digest of a plain namespace behind a batch.
fn digest<H: Judged>(before: Node, accesses: &[Access]) -> Node {
    let mut changes: Vec<&Access> = accesses.iter().filter(|access| is_write(access)).collect();
    if changes.is_empty() {
        return before;
    }
    changes.sort_by_key(|access| access.key);
    let mut message = before.to_bytes().to_vec();
    for access in changes {
        message.extend_from_slice(&access.key);
        match &access.kind {
            AccessKind::Write(Some(value)) | AccessKind::ReadWrite(Some(value))
                if value.len() > 1024 =>
            {
                message.push(2);
                message.extend_from_slice(&H::hash_value(value));
            }
            AccessKind::Write(Some(value)) | AccessKind::ReadWrite(Some(value)) => {
                message.push(1);
                let len = u32::try_from(value.len()).expect("at most 1 KiB");
                message.extend_from_slice(&len.to_le_bytes());
                message.extend_from_slice(value);
            }
            _ => message.push(0),
        }
    }
    pleach_core::hasher::keyed_blake3(b"pleach plain namespace digest v1", &message).into()
}

impl State {
    pub fn after<H: Judged>(&self, accesses: &[Access]) -> Self {
        let mut after = self.clone();
        for (namespace, space) in &mut after.0 {
            let own = of(accesses, *namespace);
            if !own.iter().any(is_write) {
                continue;
            }
            let space = Arc::make_mut(space);
            for access in &own {
                space.set::<H>(access);
            }
            space.root = if *namespace == PLAIN {
                digest::<H>(space.root, &own)
            } else {
                root_of::<H>(space.values.iter().map(|(key, (_, hash))| (*key, *hash)))
            };
        }
        after
    }

    /// Roots and digests.
    pub fn roots(&self) -> Vec<(u8, Node)> {
        self.0.iter().map(|(namespace, space)| (*namespace, space.root)).collect()
    }

    fn over_all<H: Judged>(&self) -> Node {
        let merkle = self.0.iter().filter(|(namespace, _)| **namespace != PLAIN);
        root_of::<H>(
            merkle.map(|(namespace, space)| (proof::roots::key(*namespace), space.root.to_bytes())),
        )
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
        let [before, after] = [self, after].map(|state| &state.0[&namespace]);
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

    /// A session says what the state has, of keys that the seed draws; `all` of them.
    pub fn assert_says<H: Judged>(
        &self,
        session: &Session,
        setup: &Setup,
        rng: &mut Rng,
        all: bool,
    ) {
        self.assert_roots(session.roots(), "a session");
        let over_all = session.roots().over_all(H::HASHER);
        assert_eq!(over_all, self.over_all::<H>(), "the root over all");
        for number in NAMESPACES {
            let space = self.0.get(&number);
            let proof = session.prove_namespace(number);
            let verified = proof::path::verify(H::HASHER, &proof, &over_all).expect("verifies");
            let said = space.filter(|_| number != PLAIN).map(|space| space.root.to_bytes().into());
            let said = said.map_or(Lookup::Absent, Lookup::Present);
            assert_eq!(verified.get(&proof::roots::key(number)), said);
            match (session.namespace(number), space) {
                (Ok(namespace), Some(space)) => space.assert_says::<H>(namespace, setup, rng, all),
                (Err(Error::Namespace(missing)), None) => assert_eq!(missing, number),
                (found, _) => panic!("namespace {number} is there: {}", found.is_ok()),
            }
        }
    }

    /// Proofs of change lead from one state to another.
    pub fn assert_change<H: Judged>(&self, session: &Session, later: &Self, to: &Session) {
        let whole = [0; 32]..=[0xff; 32];
        for (number, before) in self.0.iter().filter(|(number, _)| **number != PLAIN) {
            let Some(after) = later.0.get(number) else { continue };
            let namespaces = [session, to].map(|of| of.namespace(*number).expect("it exists"));
            let proof = namespaces[0].prove_change(namespaces[1], &whole).expect("proven");
            let verified = proof::change::verify(
                H::HASHER,
                &proof,
                &before.root,
                &after.root,
                whole.start(),
                whole.end(),
            );
            let changes =
                verified.expect("verifies").changes().map(|(key, ..)| key).collect::<Vec<_>>();
            let keys: BTreeSet<&Key> = before.values.keys().chain(after.values.keys()).collect();
            let differing = keys.into_iter().filter(|key| before.said(key) != after.said(key));
            assert!(changes.iter().eq(differing), "changes of namespace {number}");
            if *number > 0 {
                let first = to.namespace(0).expect("it always exists");
                let mixed = namespaces[0].prove_change(first, &whole);
                assert!(matches!(mixed, Err(Error::ForeignSession)), "namespaces mixed");
            }
        }
    }
}

impl Space {
    fn assert_says<H: Judged>(&self, session: &Namespace, setup: &Setup, rng: &mut Rng, all: bool) {
        let number = session.number();
        let count = [1, 12, 60][rng.index(3)];
        let mut keys: Vec<Key> = (0..count).map(|_| setup.key(rng.below(setup.ids))).collect();
        if rng.below(4) == 0 {
            keys[0][31] ^= 1;
        }
        if rng.below(2) == 0 {
            session.prefetch(&keys);
        }
        let values = session.read_many(&keys).expect("read");
        for (key, value) in keys.iter().zip(&values) {
            assert!(value.as_ref() == self.get(key), "{number} {key:02x?}: another value");
        }
        let one = session.read(&keys[0]).expect("read");
        assert!(one.as_ref() == self.get(&keys[0]), "{number} {:02x?}: another value", keys[0]);
        let mut range = [keys[0], keys[count - 1]];
        range.sort_unstable();
        if all {
            range = [[0; 32], [0xff; 32]];
        }
        let [first, last] = range;
        let pairs = || self.values.range(first..=last);
        let expected = pairs().map(|(key, value)| (*key, value.0.clone()));
        let back = rng.below(3) == 0;
        let found = session.iter(first..=last).map(|pair| pair.expect("read"));
        let is_same = if back { found.rev().eq(expected.rev()) } else { found.eq(expected) };
        assert!(is_same, "pairs of namespace {number}, from behind: {back}");
        if number == PLAIN {
            assert!(matches!(session.prove(&first), Err(Error::Plain(PLAIN))));
            return;
        }
        let proof = session.prove(&keys[0]).expect("proven");
        let verified = proof::path::verify(H::HASHER, &proof, &self.root).expect("verifies");
        assert_eq!(verified.get(&keys[0]), self.said(&keys[0]));
        let proof = session.prove_many(&keys).expect("proven");
        let verified = proof::multi::verify(H::HASHER, &proof, &self.root).expect("verifies");
        assert!(keys.iter().all(|key| verified.get(key) == self.said(key)), "proof of {number}");
        let proof = session.prove_range(&(first..=last)).expect("proven");
        let verified =
            proof::range::verify(H::HASHER, &proof, &self.root, &first, &last).expect("verifies");
        assert!(verified.pairs().eq(pairs().map(|(key, value)| (*key, value.1.into()))));
    }
}
