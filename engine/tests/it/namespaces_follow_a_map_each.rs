//! Namespaces beside a map for each, per commit and overlay: batches over several of them, overlays that are
//! stacked, committed and merged, rollbacks, namespaces that are added, dropped and restored, and sessions
//! on all of these states, which go on seeing what they saw.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach::{
    Access, Blake3, Error, Node, Options, Overlay, Pleach, Session, SessionOptions, Value,
};
use pleach_core::Key;
use pleach_core::naive::Naive;
use pleach_core::proof::{Lookup, change, multi, path, range, roots as proof_roots, witness};

use crate::common::{Keys, Model, Rng, batch, cases, key, ops};

/// Namespaces that are drawn.
const NAMESPACES: [u8; 6] = [0, 1, 2, 63, 200, 255];
const HISTORY: u64 = 12;

type Space = Arc<(BTreeMap<Key, Value>, Node)>;

/// What a commit, an overlay or a session is to be: what each namespace has, and its root.
#[derive(Clone, Default)]
struct State(BTreeMap<u8, Space>);

fn space(values: BTreeMap<Key, Value>) -> Space {
    let model = Model { values };
    let root = model.naive::<Blake3>().root::<Blake3>();
    Arc::new((model.values, root))
}

fn of(accesses: &[Access], namespace: u8) -> Vec<Access> {
    accesses.iter().filter(|access| access.namespace == namespace).cloned().collect()
}

impl State {
    fn new() -> Self {
        Self(BTreeMap::from([(0, space(BTreeMap::new()))]))
    }

    fn after(&self, accesses: &[Access]) -> Self {
        let mut after = self.clone();
        for (namespace, before) in &self.0 {
            let own = of(accesses, *namespace);
            if !own.is_empty() {
                let mut model = Model { values: before.0.clone() };
                model.apply(&own);
                after.0.insert(*namespace, space(model.values));
            }
        }
        after
    }

    fn roots(&self) -> Vec<(u8, Node)> {
        self.0.iter().map(|(namespace, space)| (*namespace, space.1)).collect()
    }

    fn value(&self, namespace: u8, key: &Key) -> Option<&Value> {
        self.0[&namespace].0.get(key)
    }
}

/// The root over all, of a naive trie whose keys are namespaces.
fn over_all_of(state: &State) -> Node {
    let leaf = |(namespace, space): (&u8, &Space)| {
        let mut key = [0; 32];
        key[0] = *namespace;
        (key, <[u8; 32]>::from(space.1).into())
    };
    state.0.iter().map(leaf).collect::<Naive>().root::<Blake3>()
}

fn roots(roots: &pleach::Roots) -> Vec<(u8, Node)> {
    roots.iter().collect()
}

struct Known {
    parent: Option<usize>,
    before: State,
    after: State,
    /// Is it part of a commit?
    taken: bool,
}

struct World {
    db: Pleach,
    rng: Rng,
    kind: Keys,
    ids: u64,
    /// By number of the commit.
    commits: Vec<State>,
    known: Vec<Known>,
    held: Vec<(Overlay<Blake3>, usize)>,
    sessions: Vec<(Session<Blake3>, State)>,
    /// Namespaces that were dropped and not restored since.
    dropped: BTreeSet<u8>,
    counts: [u32; 6],
}

impl World {
    fn new(folder: &std::path::Path, seed: u64) -> Self {
        let options = Options::new(folder).create(true).cache_mib(32).threads(2).in_flight(16);
        let history = [HISTORY, 0][usize::from(seed % 4 == 3)];
        let db = Pleach::open(options.history(history).history_bytes(1 << 30)).expect("opened");
        Self {
            db,
            rng: Rng::new(seed),
            kind: [Keys::Uniform, Keys::SharedPrefix][(seed % 2) as usize],
            ids: [4, 60, 1000][(seed % 3) as usize],
            commits: vec![State::new()],
            known: Vec::new(),
            held: Vec::new(),
            sessions: Vec::new(),
            dropped: BTreeSet::new(),
            counts: [0; 6],
        }
    }

    fn tip(&self) -> &State {
        self.commits.last().expect("one at least")
    }

    fn committed(&mut self, number: u64, after: State) {
        assert_eq!(number, self.commits.len() as u64);
        assert_eq!(roots(&self.db.roots()), after.roots());
        assert_eq!(self.db.root(), after.0[&0].1);
        let commit = self.db.commit_at(number).expect("the newest");
        assert_eq!((roots(&commit.roots), commit.root), (after.roots(), after.0[&0].1));
        self.commits.push(after);
    }

    fn namespace(&mut self) -> u8 {
        NAMESPACES[self.rng.index(NAMESPACES.len())]
    }

    fn session(&mut self) -> (Session<Blake3>, Option<usize>, State) {
        let options = SessionOptions::new();
        let count = self.held.len();
        let choice = self.rng.index(count + 1).max(self.rng.index(count + 1));
        let Some((overlay, id)) = choice.checked_sub(1).map(|at| &self.held[at]) else {
            return (self.db.session(options).expect("a session"), None, self.tip().clone());
        };
        let session = self.db.session(options.over(overlay)).expect("a session");
        (session, Some(*id), self.known[*id].after.clone())
    }

    /// Accesses of some of the state's namespaces, mixed.
    fn batch(&mut self, before: &State) -> Vec<Access> {
        let mut accesses = Vec::new();
        for namespace in before.0.keys() {
            if self.rng.below(2) == 0 {
                let size = 1 + [3, 40, 400][self.rng.index(3)];
                let own = batch(&mut self.rng, self.kind, self.ids, size);
                accesses.extend(own.into_iter().map(|access| access.in_namespace(*namespace)));
            }
        }
        for at in (1..accesses.len()).rev() {
            let other = self.rng.index(at + 1);
            accesses.swap(at, other);
        }
        accesses
    }

    fn finish(&mut self) {
        let (session, over, before) = self.session();
        let accesses = self.batch(&before);
        if self.rng.below(3) == 0 {
            for access in &accesses {
                let namespace = session.namespace(access.namespace).expect("it exists");
                namespace.prefetch(&[access.key]);
            }
        }
        let session = self.refused(session, &before, &accesses);
        let after = before.after(&accesses);
        let mut block = session.finish(accesses.clone()).expect("finished");
        assert_eq!(roots(block.prev_roots()), before.roots());
        assert_eq!(roots(block.roots()), after.roots());
        assert_eq!((block.prev_root(), block.root()), (before.0[&0].1, after.0[&0].1));
        let at = |change: &pleach::Change<'_>| (change.namespace(), *change.key());
        assert!(block.changes().map(|one| at(&one)).is_sorted_by(|a, b| a < b));
        let writes = accesses.iter().filter(|one| !matches!(one.kind, pleach::AccessKind::Read));
        assert_eq!(block.changes().count(), writes.count());
        for change in block.changes() {
            let (namespace, key) = at(&change);
            assert_eq!(change.prior().expect("read").as_ref(), before.value(namespace, &key));
            assert_eq!(change.value().expect("read").as_ref(), after.value(namespace, &key));
        }
        self.check_witnesses(&mut block, &accesses, &before, &after);
        let untaken = self.untaken(over);
        if self.rng.below(2) == 0 {
            let fits = self.fits(&untaken, &before);
            self.commits_or_is_stale(block.commit().map_err(Error::from), fits, &untaken, after);
            return;
        }
        let overlay = block.into_overlay();
        assert_eq!(roots(overlay.roots()), after.roots());
        assert_eq!(overlay.changes().count(), overlay.change_count());
        self.held.push((overlay, self.known.len()));
        self.known.push(Known { parent: over, before, after, taken: false });
    }

    /// An access in a namespace that is not there gives everything back.
    fn refused(
        &mut self,
        session: Session<Blake3>,
        before: &State,
        accesses: &[Access],
    ) -> Session<Blake3> {
        let missing = self.namespace();
        if before.0.contains_key(&missing) {
            return session;
        }
        let mut more = accesses.to_vec();
        let at = self.rng.index(more.len() + 1);
        more.insert(at, Access::read([7; 32]).in_namespace(missing));
        let error = session.finish(more.clone()).expect_err("there is no such namespace");
        assert!(matches!(error.error(), Error::Namespace(found) if *found == missing));
        let (session, back, _) = error.into_parts();
        assert_eq!(back, more);
        session
    }

    fn check_witnesses(
        &mut self,
        block: &mut pleach::Block<Blake3>,
        accesses: &[Access],
        before: &State,
        after: &State,
    ) {
        let first = if self.rng.below(2) == 0 { block.take_witness() } else { None };
        let mut witnesses = block.take_witnesses();
        assert!(block.take_witness().is_none() && block.take_witnesses().is_empty());
        if let Some(first) = first {
            witnesses.insert(0, (0, first));
        }
        let mut expected: BTreeSet<u8> = accesses.iter().map(|one| one.namespace).collect();
        if expected.is_empty() {
            expected.insert(0);
        }
        assert!(witnesses.iter().map(|(namespace, _)| *namespace).eq(expected));
        for (namespace, witness) in witnesses {
            let [before, after] = [before, after].map(|state| state.0[&namespace].1);
            let verified = witness::verify::<Blake3>(&witness, &before).expect("verified");
            assert_eq!(verified.new_root(), &after);
            let expected = ops::<Blake3>(&of(accesses, namespace));
            let found: Vec<Key> = verified.ops().map(|one| one.key).collect();
            assert_eq!(found, expected.iter().map(|one| one.key).collect::<Vec<_>>());
        }
    }

    /// The overlays from `at` down that no commit has taken, newest first.
    fn untaken(&self, mut at: Option<usize>) -> Vec<usize> {
        let mut untaken = Vec::new();
        while let Some(id) = at.filter(|id| !self.known[*id].taken) {
            untaken.push(id);
            at = self.known[id].parent;
        }
        untaken
    }

    /// Is the newest commit the state below these overlays, or below one on `before` when there are none?
    fn fits(&self, untaken: &[usize], before: &State) -> bool {
        let below = untaken.last().map_or(before, |id| &self.known[*id].before);
        below.roots() == self.tip().roots()
    }

    fn commits_or_is_stale(
        &mut self,
        committed: Result<u64, Error>,
        fits: bool,
        untaken: &[usize],
        after: State,
    ) {
        if fits {
            self.committed(committed.expect("its parent is the newest"), after);
            for id in untaken {
                self.known[*id].taken = true;
            }
            self.counts[0] += 1;
        } else {
            let stale = matches!(committed, Err(Error::StaleParent { .. }));
            assert!(stale, "{committed:?}");
            self.counts[1] += 1;
        }
    }

    fn commit_overlay(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.rng.index(self.held.len());
        let (overlay, id) = self.held[at].clone();
        if self.known[id].taken {
            assert!(overlay.is_committed() && overlay.commit().is_ok());
            return;
        }
        let untaken = self.untaken(Some(id));
        let (before, after) = (self.known[id].before.clone(), self.known[id].after.clone());
        let fits = self.fits(&untaken, &before);
        let merged = fits && untaken.len() > 1;
        self.commits_or_is_stale(overlay.commit(), fits, &untaken, after);
        self.counts[2] += u32::from(merged);
    }

    fn add(&mut self) {
        let namespace = self.namespace();
        let mut after = self.tip().clone();
        match self.db.add_namespace(namespace) {
            Ok(number) => {
                assert!(after.0.insert(namespace, space(BTreeMap::new())).is_none());
                self.dropped.remove(&namespace);
                self.committed(number, after);
                self.counts[3] += 1;
            }
            Err(Error::NamespaceExists(found)) => {
                assert!(found == namespace && after.0.contains_key(&namespace));
            }
            Err(Error::NamespaceInUse { namespace: found, dropped }) => {
                assert!(found == namespace && self.dropped.contains(&namespace));
                assert!(dropped < self.commits.len() as u64);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn drop_namespace(&mut self) {
        let namespace = self.namespace();
        let mut after = self.tip().clone();
        match self.db.drop_namespace(namespace) {
            Ok(number) => {
                assert!(namespace > 0 && after.0.remove(&namespace).is_some());
                self.dropped.insert(namespace);
                self.committed(number, after);
                self.counts[4] += 1;
            }
            Err(Error::NamespaceExists(0)) => assert_eq!(namespace, 0),
            Err(Error::Namespace(found)) => {
                assert!(found == namespace && !after.0.contains_key(&namespace));
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn rollback(&mut self) {
        let back = 1 + self.rng.below(HISTORY + 2);
        let newest = self.commits.len() as u64 - 1;
        let wanted = newest.checked_sub(back).filter(|wanted| self.db.history().contains(wanted));
        let committed = self.db.rollback(back);
        let Some(wanted) = wanted else {
            let told = match committed {
                Err(Error::TooFarBack { .. }) => back > newest,
                Err(Error::SnapshotTooOld { .. }) => back <= newest,
                _ => false,
            };
            assert!(told, "{committed:?}");
            return;
        };
        let then = self.commits[usize::try_from(wanted).expect("few")].clone();
        let gone = self.tip().0.keys().filter(|namespace| !then.0.contains_key(namespace));
        self.dropped.extend(gone.copied().collect::<Vec<_>>());
        self.dropped.retain(|namespace| !then.0.contains_key(namespace));
        let restores = then.0.keys().any(|namespace| !self.tip().0.contains_key(namespace));
        self.counts[5] += u32::from(restores);
        self.committed(committed.expect("in the history"), then);
    }

    /// A session on a past commit, or one that is kept.
    fn look(&mut self) {
        let history = self.db.history();
        let span = history.end() - history.start() + 1;
        let commit = history.start() + self.rng.below(span);
        let state = self.commits[usize::try_from(commit).expect("few")].clone();
        let session = self.db.at(commit).expect("in the history");
        let (other, _, known) = self.session();
        self.check(&session, &state);
        self.check(&other, &known);
        check_change((&session, &state), (&other, &known));
        self.sessions.push((session, state));
        self.sessions.push((other, known));
        let at = self.rng.index(self.sessions.len());
        let (session, state) = self.sessions.swap_remove(at);
        self.check(&session, &state);
        let again = session.fork().expect("it can be read");
        drop(session);
        self.check(&again, &state);
        if self.sessions.len() < 6 {
            self.sessions.push((again, state));
        }
    }

    fn check(&mut self, session: &Session<Blake3>, state: &State) {
        assert_eq!(roots(session.roots()), state.roots());
        assert_eq!(session.root(), state.0[&0].1);
        let over_all = session.roots().over_all::<Blake3>();
        assert_eq!(over_all, over_all_of(state));
        for namespace in NAMESPACES {
            let proof = session.prove_namespace(namespace);
            let verified = path::verify::<Blake3>(&proof, &over_all).expect("verified");
            let said = state
                .0
                .get(&namespace)
                .map_or(Lookup::Absent, |space| Lookup::Present(<[u8; 32]>::from(space.1).into()));
            assert_eq!(verified.get(&proof_roots::key(namespace)), said);
            let found = session.namespace(namespace);
            let Some(space) = state.0.get(&namespace) else {
                assert!(matches!(found, Err(Error::Namespace(missing)) if missing == namespace));
                continue;
            };
            let found = found.expect("it exists");
            assert_eq!((found.number(), found.root()), (namespace, Some(space.1)));
            let count = [1, 20, 150][self.rng.index(3)];
            let keys: Vec<Key> =
                (0..count).map(|_| key(self.kind, self.rng.below(self.ids))).collect();
            if self.rng.below(2) == 0 {
                found.prefetch(&keys);
            }
            let expected: Vec<Option<Value>> =
                keys.iter().map(|key| space.0.get(key).cloned()).collect();
            assert_eq!(found.read_many(&keys).expect("read"), expected, "{namespace}");
            for (key, expected) in keys.iter().zip(&expected) {
                assert_eq!(&found.read(key).expect("read"), expected, "{namespace}");
            }
            let said = |value: &Option<Value>| match value {
                Some(value) => Lookup::Present(pleach_core::node::value_hash::<Blake3>(value)),
                None => Lookup::Absent,
            };
            let proof = found.prove_many(&keys).expect("proven");
            let verified = multi::verify::<Blake3>(&proof, &space.1).expect("verified");
            assert!(keys.iter().zip(&expected).all(|(key, one)| verified.get(key) == said(one)));
            let proof = found.prove(&keys[0]).expect("proven");
            let verified = path::verify::<Blake3>(&proof, &space.1).expect("verified");
            assert_eq!(verified.get(&keys[0]), said(&expected[0]));
            let pairs: Result<Vec<(Key, Value)>, Error> = found.iter(..).collect();
            assert!(pairs.expect("read").into_iter().eq(space.0.clone()), "{namespace}");
            let whole = [0; 32]..=[0xff; 32];
            let proof = found.prove_range(&whole).expect("proven");
            let verified =
                range::verify::<Blake3>(&proof, &space.1, &[0; 32], &[0xff; 32]).expect("verified");
            assert!(verified.pairs().map(|(key, _)| key).eq(space.0.keys().copied()));
        }
    }
}

fn check_change(
    (from, before): (&Session<Blake3>, &State),
    (to, after): (&Session<Blake3>, &State),
) {
    for namespace in NAMESPACES {
        let (Ok(from), Ok(to)) = (from.namespace(namespace), to.namespace(namespace)) else {
            continue;
        };
        let whole = [0; 32]..=[0xff; 32];
        let proof = from.prove_change(&to, &whole).expect("proven");
        let [before, after] = [before, after].map(|state| &*state.0[&namespace]);
        let verified =
            change::verify::<Blake3>(&proof, &before.1, &after.1, whole.start(), whole.end())
                .expect("verified");
        let keys: BTreeSet<&Key> = before.0.keys().chain(after.0.keys()).collect();
        let differing = keys.into_iter().filter(|key| before.0.get(*key) != after.0.get(*key));
        assert!(verified.changes().map(|(key, ..)| key).eq(differing.copied()));
    }
    if let (Ok(one), Ok(other)) = (from.namespace(0), to.namespace(1)) {
        let mixed = one.prove_change(&other, &([0; 32]..=[0xff; 32]));
        assert!(matches!(mixed, Err(Error::ForeignSession)));
    }
}

#[test]
fn over_sessions_overlays_rollbacks_adds_and_drops() {
    let mut counts = [0; 6];
    for seed in 0..cases(12) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut world = World::new(folder.path(), seed);
        for _ in 0..70 {
            match world.rng.below(20) {
                0..8 => world.finish(),
                8..11 => world.commit_overlay(),
                11..13 => world.add(),
                13 => world.drop_namespace(),
                14..16 => world.rollback(),
                16..18 => world.look(),
                _ => {
                    let count = world.held.len();
                    if count > 0 {
                        let at = world.rng.index(count);
                        world.held.remove(at);
                    }
                }
            }
        }
        for (session, state) in std::mem::take(&mut world.sessions) {
            world.check(&session, &state);
        }
        counts = std::array::from_fn(|at| counts[at] + world.counts[at]);
    }
    // Commits, stale ones, merged ones, added and dropped namespaces, restored ones.
    assert!(counts.iter().all(|count| *count >= 3), "{counts:?}");
}

/// The least that 256 namespaces are, on one machine with one log.
#[test]
fn all_256_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options::new(folder.path()).create(true).cache_mib(32).threads(2);
    let db = Pleach::open(options.history(8)).expect("opened");
    for namespace in 1..=255 {
        assert_eq!(db.add_namespace(namespace).expect("added"), u64::from(namespace));
    }
    let before = db.metrics();
    let key =
        |namespace: u8, id: u8| key(Keys::Uniform, u64::from(namespace) * 1000 + u64::from(id));
    let accesses = (0..=255_u8).flat_map(|namespace| {
        (0..4).map(move |id| {
            let value = Value::from(&[namespace, id]);
            Access::write(key(namespace, id), Some(value)).in_namespace(namespace)
        })
    });
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut block = session.finish(accesses.collect()).expect("finished");
    assert_eq!(block.take_witnesses().len(), 256);
    assert_eq!(block.commit().expect("committed"), 256);
    let after = db.metrics();
    assert_eq!(after.commits - before.commits, 1, "one record and one ticket");
    assert_eq!(after.changes - before.changes, 1024);
    // Lists and nodes of the changes, and of each namespace a few shards: not four thousand.
    assert!(after.undo_bytes < 4 << 20, "{}", after.undo_bytes);
    let session = db.snapshot().expect("a session");
    for namespace in 0..=255_u8 {
        let found = session.namespace(namespace).expect("it exists");
        for other in [namespace, namespace.wrapping_add(1)] {
            let expected = (other == namespace).then(|| Value::from(&[namespace, 3]));
            assert_eq!(found.read(&key(other, 3)).expect("read"), expected);
        }
    }
    db.rollback(1).expect("rolled back");
    let empty = db.session(SessionOptions::new()).expect("a session");
    assert!(empty.roots().iter().all(|(_, root)| root == pleach_core::TERMINATOR));
}
