//! Random work on several namespaces beside a map for each and commit: sessions on the newest state, on
//! overlays and on the past read, iterate, prove and finish batches over several of them; namespaces are
//! added, dropped, loaded and rolled back; the database is flushed, closed and opened again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pleach::load::LoadOptions;
use pleach::{
    Access, AccessKind, Error, Hasher, Node, Overlay, Roots, Session, SessionOptions, Value,
};
use pleach_core::Key;
use pleach_core::naive::Naive;
use pleach_io::Operation;
use pleach_io::sim::{Fault, Rule, SimDisk, SimRuntime, Times, code};

use crate::common::{Model, Rng, bytes, cases, ops};
use crate::crash::{Setup, SimDb, unrecorded};

type SimSession = Session;
type SimOverlay = Overlay;

/// The namespaces that a run uses: the first, neighbours, the last.
const NUMBERS: [u8; 5] = [0, 1, 2, 100, 255];

/// Are the namespaces of this number plain?
pub(crate) fn is_plain(number: u8) -> bool {
    number == 255
}

/// Adds a namespace of the kind that its number has.
pub(crate) fn add(db: &SimDb, number: u8) -> pleach::Result<u64> {
    if is_plain(number) { db.add_plain_namespace(number) } else { db.add_namespace(number) }
}

/// The state of all namespaces that exist.
#[derive(Clone)]
pub(crate) struct Many(pub(crate) BTreeMap<u8, Model>);

impl Default for Many {
    fn default() -> Self {
        Self(BTreeMap::from([(0, Model::default())]))
    }
}

impl Many {
    pub(crate) fn roots(&self) -> Vec<(u8, Node)> {
        let root = |model: &Model| model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3);
        let merkle = self.0.iter().filter(|(namespace, _)| !is_plain(**namespace));
        merkle.map(|(namespace, model)| (*namespace, root(model))).collect()
    }

    /// The small trie of roots, by plain recursion.
    pub(crate) fn over_all(&self) -> Naive {
        let leaf = |(namespace, root): (u8, Node)| {
            let mut key = [0; 32];
            key[0] = namespace;
            (key, root.to_bytes().into())
        };
        self.roots().into_iter().map(leaf).collect()
    }

    pub(crate) fn apply(&mut self, accesses: &[Access]) {
        for (namespace, model) in &mut self.0 {
            model.apply(&of(accesses, *namespace));
        }
    }
}

/// The accesses of one namespace.
fn of(accesses: &[Access], namespace: u8) -> Vec<Access> {
    accesses.iter().filter(|access| access.namespace == namespace).cloned().collect()
}

/// Accesses to some of the namespaces of a state, in no order.
pub(crate) fn batch(rng: &mut Rng, setup: &Setup, state: &Many) -> Vec<Access> {
    let mut accesses = Vec::new();
    for (namespace, model) in &state.0 {
        if rng.below(3) == 0 {
            continue;
        }
        let own = crate::crash::workload::batch(rng, setup, model);
        accesses.extend(own.into_iter().map(|access| access.in_namespace(*namespace)));
    }
    for at in (1..accesses.len()).rev() {
        accesses.swap(at, rng.index(at + 1));
    }
    accesses
}

/// All that a session says is what the state has.
pub(crate) fn assert_reads(setup: &Setup, session: &SimSession, state: &Many, what: &str) {
    let roots = state.roots();
    assert_eq!(session.roots().iter().collect::<Vec<_>>(), roots, "{what}");
    assert_eq!(session.root(), roots[0].1, "{what}");
    let over_all = state.over_all();
    assert_eq!(session.roots().over_all(Hasher::BLAKE3), over_all.root(Hasher::BLAKE3), "{what}");
    for number in NUMBERS {
        let proof = session.prove_namespace(number);
        let mut key = [0; 32];
        key[0] = number;
        let expected = over_all.path(Hasher::BLAKE3, &key).encode(Hasher::BLAKE3).expect("encodes");
        assert_eq!(proof, expected, "{what}: {number} in the root over all");
        let Some(model) = state.0.get(&number) else {
            let missing = session.namespace(number).map(drop);
            assert!(matches!(missing, Err(Error::Namespace(found)) if found == number), "{what}");
            continue;
        };
        let namespace = session.namespace(number).expect("it exists");
        let naive = model.naive(Hasher::BLAKE3);
        let root = (!is_plain(number)).then(|| naive.root(Hasher::BLAKE3));
        assert_eq!((namespace.number(), namespace.root()), (number, root));
        assert_eq!(namespace.digest().is_some(), is_plain(number), "{what}");
        let keys: Vec<Key> = (0..setup.ids).map(|id| setup.key(id)).collect();
        namespace.prefetch(&keys[..keys.len() / 2]);
        let values = namespace.read_many(&keys).expect("read");
        for (key, value) in keys.iter().zip(&values) {
            assert!(value.as_ref() == model.values.get(key), "{what}: {number} {key:02x?}");
        }
        let some = keys[keys.len() / 3];
        let one = namespace.read(&some).expect("read");
        assert!(one.as_ref() == model.values.get(&some), "{what}: {number} {some:02x?}");
        let expected = model.values.iter().map(|(key, value)| (*key, value.clone()));
        let pairs = namespace.iter(..).map(|pair| pair.expect("read"));
        assert!(pairs.eq(expected.clone()), "{what}: all pairs of {number}");
        let back = namespace.iter(..).rev().map(|pair| pair.expect("read"));
        assert!(back.eq(expected.rev()), "{what}: all pairs of {number} from behind");
        if is_plain(number) {
            let proofs = [
                namespace.prove(&some),
                namespace.prove_many(&keys),
                namespace.prove_range(&(some..=[255; 32])),
                namespace.prove_change(namespace, &(some..=[255; 32])),
            ];
            for refused in proofs {
                assert!(matches!(refused, Err(Error::Plain(found)) if found == number), "{what}");
            }
            continue;
        }
        let proof = namespace.prove_many(&keys).expect("proven");
        let expected = naive.multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3).expect("encodes");
        assert!(proof == expected, "{what}: another multiproof of {number}");
        let proof = namespace.prove(&some).expect("proven");
        let expected = naive.path(Hasher::BLAKE3, &some).encode(Hasher::BLAKE3).expect("encodes");
        assert!(proof == expected, "{what}: another path of {number}");
    }
}

/// A commit: its state, and its blob.
type Past = (Rc<Many>, Vec<u8>);

/// Plain namespaces and their digests.
type Digests = Vec<(u8, [u8; 32])>;

struct Layer {
    overlay: SimOverlay,
    before: Rc<Many>,
    state: Rc<Many>,
    /// State below the chain that it would be committed with.
    below: Rc<Many>,
    /// The blob of the state that it was made on.
    blob: Vec<u8>,
}

struct World {
    setup: Setup,
    rng: Rng,
    disk: SimDisk,
    db: SimDb,
    runtime: SimRuntime,
    past: Vec<Past>,
    /// The digests of each commit.
    digests: Vec<Digests>,
    /// The oldest commit that can be asked for.
    from: u64,
    sessions: Vec<(SimSession, Rc<Many>)>,
    layers: Vec<Layer>,
    /// Namespaces with a write at some time.
    written: BTreeSet<u8>,
    /// Namespaces that were dropped at some time.
    dropped: Vec<u8>,
    /// What happened, for the test's own sake.
    counts: Counts,
}

#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    adds: u64,
    drops: u64,
    in_use: u64,
    again: u64,
    loads: u64,
    over_drop: u64,
    overlays: u64,
    stale: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut setup = Setup::draw(seed);
        let mut rng = Rng::new(seed ^ 0x9a5e);
        setup.ids = [3, 12, 40, 150][rng.index(4)];
        setup.history = [0, 0, 2, 9][rng.index(4)];
        let disk = SimDisk::new(seed, unrecorded());
        let (db, runtime) = setup.open(&disk, seed).expect("created");
        Self {
            setup,
            rng,
            disk,
            db,
            runtime,
            past: vec![(Rc::default(), Vec::new())],
            digests: vec![Vec::new()],
            from: 0,
            sessions: Vec::new(),
            layers: Vec::new(),
            written: BTreeSet::new(),
            dropped: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn number(&self) -> u64 {
        self.past.len() as u64 - 1
    }

    fn tip(&self) -> Rc<Many> {
        Rc::clone(&self.past.last().expect("commit 0").0)
    }

    fn at(&self, commit: u64) -> &Past {
        &self.past[usize::try_from(commit).expect("few commits")]
    }

    fn committed(&mut self, number: u64, state: Many, blob: Option<Vec<u8>>) {
        assert_eq!(number, self.number() + 1);
        let blob = blob.unwrap_or_else(|| self.past.last().expect("commit 0").1.clone());
        self.past.push((Rc::new(state), blob));
        self.from = self.from.max(number.saturating_sub(self.setup.history));
        assert_eq!(self.db.roots().iter().collect::<Vec<_>>(), self.tip().roots());
        let digests: Digests = self.db.roots().digests().collect();
        let plain: Vec<u8> =
            self.tip().0.keys().copied().filter(|number| is_plain(*number)).collect();
        assert_eq!(digests.iter().map(|of| of.0).collect::<Vec<u8>>(), plain, "{}", self.what());
        self.digests.push(digests);
    }

    fn digests_at(&self, commit: u64) -> &Digests {
        &self.digests[usize::try_from(commit).expect("few commits")]
    }

    fn what(&self) -> String {
        format!("{:?}, commit {}", self.setup, self.number())
    }

    fn session(&mut self) -> (SimSession, Rc<Many>, Option<usize>) {
        let options = SessionOptions::new().witness(true);
        let choice = self.rng.index(self.layers.len() * 2 + 1);
        if let Some(Layer { overlay, state, .. }) = self.layers.get(choice) {
            let session = self.db.session(options.over(overlay)).expect("a session");
            return (session, Rc::clone(state), Some(choice));
        }
        (self.db.session(options).expect("a session"), self.tip(), None)
    }

    fn finish(&mut self) {
        let (session, before, over) = self.session();
        let accesses = batch(&mut self.rng, &self.setup, &before);
        let mut after = (*before).clone();
        after.apply(&accesses);
        self.written.extend(accesses.iter().map(|access| access.namespace));
        let what = self.what();
        let mut block = session.finish(accesses.clone()).expect("finished");
        let list = |roots: &Roots| roots.iter().collect::<Vec<_>>();
        assert_eq!(
            (list(block.prev_roots()), list(block.roots())),
            (before.roots(), after.roots())
        );
        let mut witnesses = block.take_witnesses();
        assert!(witnesses.is_sorted_by(|a, b| a.0 < b.0));
        for (number, model) in &before.0 {
            let own = of(&accesses, *number);
            if own.is_empty() || is_plain(*number) {
                continue;
            }
            let at = witnesses.iter().position(|witness| witness.0 == *number);
            let (_, witness) = witnesses.remove(at.expect("a witness for what was accessed"));
            let naive = model.naive(Hasher::BLAKE3);
            let expected =
                naive.witness(Hasher::BLAKE3, &ops(Hasher::BLAKE3, &own)).encode(Hasher::BLAKE3);
            assert!(*witness == *expected.expect("encodes"), "{what}: another witness of {number}");
        }
        assert!(witnesses.iter().all(|(number, _)| *number == 0), "{what}: no others");
        for (number, digest) in block.roots().digests() {
            let wrote = of(&accesses, number).iter().any(|one| one.kind != AccessKind::Read);
            let before = block.prev_roots().digest(number);
            assert_eq!(before != Some(digest), wrote, "{what}: the digest of {number}");
        }
        for change in block.changes() {
            let (before, after) = (&before.0[&change.namespace()], &after.0[&change.namespace()]);
            assert_eq!(change.prior().expect("read").as_ref(), before.values.get(change.key()));
            assert_eq!(change.value().expect("read").as_ref(), after.values.get(change.key()));
        }
        let changed: Vec<_> = block.changes().map(|one| (one.namespace(), *one.key())).collect();
        assert!(changed.is_sorted_by(|a, b| a < b), "by namespace and key");
        let blob = (self.rng.below(3) == 0).then(|| bytes(&mut self.rng, 5).to_vec());
        if let Some(blob) = &blob {
            block.set_blob(blob.clone()).expect("short");
        }
        if self.rng.below(3) > 0 && over.is_none() {
            let number = block.commit().expect("on the tip");
            return self.committed(number, after, blob);
        }
        // An overlay keeps no blob of the model's: it is committed without one.
        if blob.is_none() {
            let below = over.map_or_else(|| Rc::clone(&before), |at| self.below(at));
            let overlay = block.into_overlay();
            assert_eq!(list(overlay.roots()), after.roots());
            assert_eq!(list(overlay.prev_roots()), before.roots());
            self.counts.overlays += 1;
            let blob = over.map_or_else(
                || self.past.last().expect("commit 0").1.clone(),
                |at| self.layers[at].blob.clone(),
            );
            self.layers.push(Layer { overlay, before, state: Rc::new(after), below, blob });
        }
    }

    /// The state that the uncommitted overlays from this one down stand on.
    fn below(&self, at: usize) -> Rc<Many> {
        let layer = &self.layers[at];
        let committed = layer.overlay.is_committed();
        Rc::clone(if committed { &layer.state } else { &layer.below })
    }

    fn commit_overlay(&mut self) {
        if self.layers.is_empty() {
            return;
        }
        let at = self.rng.index(self.layers.len());
        let Layer { overlay, state, before, blob, .. } = &self.layers[at];
        if let Some(number) = overlay.commit_number() {
            assert_eq!(overlay.commit().expect("committed before"), number);
            return;
        }
        // Its parents may have been committed since it was made.
        let standing = overlay.parent().map_or_else(|| Rc::clone(before), |_| self.below(at));
        let (tip, state, blob) = (self.tip(), Rc::clone(state), blob.clone());
        let newest = self.past.last().expect("commit 0").1.clone();
        match overlay.commit() {
            Ok(number) => {
                let valid = [standing.roots(), before.roots()].contains(&tip.roots());
                assert!(valid && blob == newest, "{}: a stale overlay was committed", self.what());
                self.committed(number, (*state).clone(), Some(blob));
            }
            Err(Error::StaleParent { .. }) => {
                self.counts.stale += 1;
                let both = [standing.roots(), before.roots()];
                // Digests depend on more than the state.
                let plain = tip.0.keys().any(|number| is_plain(*number));
                let same = both.iter().all(|roots| *roots == tip.roots()) && blob == newest;
                assert!(plain || !same, "{}", self.what());
            }
            Err(other) => panic!("{}: {other}", self.what()),
        }
    }

    fn add(&mut self) {
        let number = NUMBERS[self.rng.index(NUMBERS.len())];
        let mut state = (*self.tip()).clone();
        match add(&self.db, number) {
            Ok(commit) => {
                assert!(state.0.insert(number, Model::default()).is_none(), "{}", self.what());
                self.counts.adds += 1;
                self.counts.again += u64::from(self.dropped.contains(&number));
                self.committed(commit, state, None);
            }
            Err(Error::NamespaceExists(found)) => {
                assert!(found == number && state.0.contains_key(&number), "{}", self.what());
            }
            Err(Error::NamespaceInUse { .. }) => {
                assert!(!state.0.contains_key(&number) && self.dropped.contains(&number));
                self.counts.in_use += 1;
            }
            Err(other) => panic!("{}: {other}", self.what()),
        }
    }

    fn drop_one(&mut self) {
        let number = NUMBERS[self.rng.index(NUMBERS.len())];
        let mut state = (*self.tip()).clone();
        if number == 0 {
            assert!(self.db.drop_namespace(0).is_err(), "namespace 0 always exists");
            return;
        }
        match self.db.drop_namespace(number) {
            Ok(commit) => {
                assert!(state.0.remove(&number).is_some(), "{}", self.what());
                self.counts.drops += 1;
                self.dropped.push(number);
                self.committed(commit, state, None);
            }
            Err(Error::Namespace(found)) => {
                assert!(found == number && !state.0.contains_key(&number), "{}", self.what());
            }
            Err(other) => panic!("{}: {other}", self.what()),
        }
        let write = Access::write([1; 32], None).in_namespace(number);
        let session = self.db.session(SessionOptions::new()).expect("a session");
        let refused = session.finish(vec![write]).expect_err("it is gone").into_error();
        assert!(matches!(refused, Error::Namespace(found) if found == number), "{refused}");
    }

    fn roll_back(&mut self) {
        if self.number() == self.from {
            return;
        }
        let back = 1 + self.rng.below(self.number() - self.from);
        let (then, blob) = self.at(self.number() - back).clone();
        let lost = then.0.keys().any(|namespace| !self.tip().0.contains_key(namespace));
        let then_digests = self.digests_at(self.number() - back).clone();
        let number = self.db.rollback(back).expect("in the history");
        assert_eq!(self.db.roots().digests().collect::<Digests>(), then_digests);
        self.counts.over_drop += u64::from(lost);
        let gone: Vec<u8> =
            self.tip().0.keys().filter(|number| !then.0.contains_key(number)).copied().collect();
        self.dropped.extend(gone);
        self.committed(number, (*then).clone(), Some(blob));
    }

    fn load(&mut self) {
        let number = NUMBERS[self.rng.index(NUMBERS.len())];
        let mut state = (*self.tip()).clone();
        let ids = 1 + self.rng.below(self.setup.ids);
        let pairs: BTreeMap<Key, Value> = (0..ids)
            .map(|id| (self.setup.key(id), crate::crash::workload::value(&mut self.rng)))
            .collect();
        if self.rng.below(2) == 0 {
            self.sessions.clear();
            self.layers.clear();
        }
        let options = LoadOptions::new().memory_mib(1).namespace(number);
        let before = self.digests_at(self.number()).iter().find(|of| of.0 == number).copied();
        let result = self.db.bulk_load(pairs.clone().into_iter(), &options);
        match result {
            Ok(report) => {
                let model = state.0.get_mut(&number).expect("loaded into what exists");
                assert!(model.values.is_empty(), "{}: loaded over values", self.what());
                model.values = pairs;
                self.written.insert(number);
                let mut root = model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3);
                if let Some((_, before)) = before {
                    let message = [before, root.to_bytes()].concat();
                    root = pleach_core::hasher::keyed_blake3(
                        b"pleach plain namespace digest v1",
                        &message,
                    )
                    .into();
                    assert_eq!(self.db.roots().digest(number), Some(root.to_bytes()));
                }
                assert_eq!(report.root, root, "{number}");
                self.counts.loads += 1;
                let commit = self.db.commit_number();
                self.committed(commit, state, None);
                self.from = commit;
            }
            Err(Error::Namespace(found)) => {
                assert!(found == number && !state.0.contains_key(&number), "{}", self.what());
            }
            Err(Error::NotEmpty(_)) => {
                // What was deleted may have pages still, and be pending, though it never was there.
                assert!(self.written.contains(&number), "{}", self.what());
            }
            Err(Error::InUse(_)) => {
                assert!(!self.sessions.is_empty() || !self.layers.is_empty(), "{}", self.what());
            }
            Err(other) => panic!("{}: {other}", self.what()),
        }
    }

    fn reopen(&mut self) {
        self.sessions.clear();
        self.layers.clear();
        if self.rng.below(2) == 0 {
            self.db.close().expect("closed");
        }
        let seed = self.rng.next();
        // The old one goes first: it holds the folder.
        let scratch = SimDisk::new(seed, unrecorded());
        let (other, _) = self.setup.open(&scratch, seed).expect("created");
        drop(std::mem::replace(&mut self.db, other));
        (self.db, self.runtime) = self.setup.open(&self.disk, seed).expect("opened again");
        assert_eq!(self.db.commit_number(), self.number());
        assert_eq!(self.db.blob(), self.past.last().expect("commit 0").1);
        let digests: Digests = self.db.roots().digests().collect();
        assert_eq!(digests, *self.digests_at(self.number()), "{}", self.what());
        let session = self.db.snapshot().expect("a snapshot");
        assert_reads(&self.setup, &session, &self.tip(), &self.what());
    }

    fn step(&mut self) {
        match self.rng.below(32) {
            0..=11 => self.finish(),
            12..=14 => self.commit_overlay(),
            15 | 16 => self.add(),
            17 => self.drop_one(),
            18 if self.from < self.number() => self.roll_back(),
            19 => self.load(),
            20 => self.reopen(),
            21 => self.db.drain(0).expect("drained"),
            22 if !self.layers.is_empty() => {
                let at = self.rng.index(self.layers.len());
                self.layers.swap_remove(at);
            }
            23 if !self.sessions.is_empty() => {
                let at = self.rng.index(self.sessions.len());
                let (session, state) = self.sessions.swap_remove(at);
                assert_reads(&self.setup, &session, &state, &self.what());
            }
            24 | 25 => {
                let (session, state, _) = self.session();
                self.sessions.push((session, state));
            }
            26 => {
                let commit = self.from + self.rng.below(self.number() - self.from + 1);
                let session = self.db.at(commit).expect("in the history");
                let (state, blob) = self.at(commit).clone();
                let found = self.db.commit_at(commit).expect("in the history");
                assert_eq!(found.roots.iter().collect::<Vec<_>>(), state.roots());
                let digests: Digests = found.roots.digests().collect();
                assert_eq!(digests, *self.digests_at(commit), "{}", self.what());
                assert_eq!((found.root, found.blob), (state.roots()[0].1, blob));
                assert_reads(&self.setup, &session, &state, &self.what());
            }
            _ => {
                self.runtime.step_some(self.rng.index(30));
            }
        }
    }
}

#[test]
fn random_work_on_several_namespaces_follows_their_maps() {
    let mut all = Counts::default();
    let first = std::env::var("PLEACH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + cases(24) {
        let mut world = World::new(seed);
        for _ in 0..140 {
            world.step();
        }
        for (session, state) in std::mem::take(&mut world.sessions) {
            assert_reads(&world.setup, &session, &state, &world.what());
        }
        world.reopen();
        world.db.drain(0).expect("drained");
        world.db.close().expect("closed");
        let options = pleach::tools::CheckOptions::default();
        let report = pleach::tools::check_on(&world.disk, options).expect("checked");
        assert!(report.findings.is_empty(), "{}: {:?}", world.what(), report.findings);
        let Counts { adds, drops, in_use, again, loads, over_drop, overlays, stale } = world.counts;
        all.adds += adds;
        all.drops += drops;
        all.in_use += in_use;
        all.again += again;
        all.loads += loads;
        all.over_drop += over_drop;
        all.overlays += overlays;
        all.stale += stale;
    }
    println!("{all:?}");
    let Counts { adds, drops, in_use, again, loads, over_drop, overlays, stale } = all;
    let least = [adds, drops, in_use, again, loads, over_drop, overlays, stale];
    assert!(least.iter().all(|count| *count > 0), "{all:?}");
}

/// What holds a dropped namespace back is named by an error; once nothing does, its number and its pages are
/// free again.
#[test]
fn a_dropped_namespace_gives_its_number_and_its_pages_back() {
    let mut setup = Setup::draw(5);
    (setup.ids, setup.history, setup.flush_at) = (100, 2, 1);
    let disk = SimDisk::new(5, unrecorded());
    let (db, runtime) = setup.open(&disk, 5).expect("created");
    let put = |namespace: u8, id: u64| {
        let value = Value::from([7; 900].as_slice());
        Access::write(crate::common::uniform(id), Some(value)).in_namespace(namespace)
    };
    let commit = |accesses: Vec<Access>| crate::common::commit(&db, accesses);
    db.add_namespace(9).expect("added");
    for id in 0..400 {
        commit(vec![put(9, id), put(0, id % 10)]);
    }
    db.drain(0).expect("drained");
    let full = db.metrics().leaf_pages;
    assert!(full > 60, "{full} pages");
    let old = db.snapshot().expect("a snapshot");
    db.drop_namespace(9).expect("dropped");
    for id in 0..10 {
        commit(vec![put(0, id)]);
        runtime.step_some(100);
    }
    let in_use = db.add_namespace(9);
    assert!(matches!(in_use, Err(Error::NamespaceInUse { .. })), "{in_use:?}");
    let values = old.namespace(9).expect("as of then").iter(..).count();
    assert_eq!(values, 400, "its session's state never changes");
    drop(old);
    let mut added = Err(Error::Closed);
    for id in 0..60 {
        commit(vec![put(0, id % 10)]);
        runtime.step_some(200);
        added = db.add_namespace(9);
        if added.is_ok() {
            break;
        }
    }
    added.expect("nobody holds it any more");
    assert!(db.metrics().leaf_pages < full / 4, "{} of {full} pages", db.metrics().leaf_pages);
    let session = db.snapshot().expect("a snapshot");
    assert_eq!(session.namespace(9).expect("it exists").iter(..).count(), 0);
    drop(session);
    // The pages are used again: as much once more takes hardly more room.
    let before = db.metrics().leaf_pages;
    for id in 0..400 {
        commit(vec![put(9, id)]);
    }
    db.drain(0).expect("drained");
    assert!(db.metrics().leaf_pages > before);
    db.close().expect("closed");
    let options = pleach::tools::CheckOptions::default();
    let report = pleach::tools::check_on(&disk, options).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// A read in a batch proves a key of its namespace, and the same key in two of them is no repetition.
#[test]
fn the_same_key_in_two_namespaces_is_two_keys() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = crate::common::open(folder.path(), 16);
    db.add_namespace(1).expect("added");
    let put = |namespace, byte: u8| {
        Access::write([5; 32], Some(Value::from([byte].as_slice()))).in_namespace(namespace)
    };
    let session = db.session(SessionOptions::new()).expect("a session");
    let block = session.finish(vec![put(1, 11), put(0, 10)]).expect("two keys");
    block.commit().expect("committed");
    let session = db.snapshot().expect("a snapshot");
    assert_eq!(session.read(&[5; 32]).expect("read").as_deref(), Some([10].as_slice()));
    let other = session.namespace(1).expect("it exists");
    assert_eq!(other.read(&[5; 32]).expect("read").as_deref(), Some([11].as_slice()));
    let session = db.session(SessionOptions::new()).expect("a session");
    let twice = session.finish(vec![put(1, 1), put(0, 1), put(1, 2)]).expect_err("twice");
    assert!(matches!(twice.into_error(), Error::RepeatedKey(key) if key == [5; 32]));
    let kind = AccessKind::Read;
    let missing = Access { namespace: 77, key: [5; 32], kind };
    let session = db.session(SessionOptions::new()).expect("a session");
    let refused = session.finish(vec![missing]).expect_err("no such namespace");
    assert!(matches!(refused.into_error(), Error::Namespace(77)));
}

/// A session may be the last that holds a dropped namespace, and nothing follows that would wake the flush.
#[test]
fn a_dropped_namespace_goes_from_an_idle_database() {
    for held in [false, true] {
        let setup = Setup::draw(8);
        let disk = SimDisk::new(8, unrecorded());
        let (db, runtime) = setup.open(&disk, 8).expect("created");
        db.add_namespace(9).expect("added");
        let put = |id| Access::write(setup.key(id), Some(Value::from([3; 50].as_slice())));
        crate::common::commit(&db, (0..3).map(|id| put(id).in_namespace(9)).collect());
        db.drain(0).expect("drained");
        let old = held.then(|| db.snapshot().expect("a snapshot"));
        db.drop_namespace(9).expect("dropped");
        let settle = || {
            runtime.step_some(1000);
            runtime.clock().advance(std::time::Duration::from_secs(1));
            runtime.step_some(1000);
        };
        settle();
        drop(old);
        settle();
        settle();
        assert_eq!(db.metrics().leaf_pages, 0, "its pages are given up");
        db.add_namespace(9).expect("its number is free");
    }
}

/// What cannot be read of a dropped namespace keeps it: it went with its pages, and its number was free, so that a
/// crash left a log that could not be replayed.
#[test]
fn a_dropped_namespace_that_cannot_be_read_waits() {
    let mut setup = Setup::draw(9);
    (setup.durability, setup.history, setup.cache_kib) = (pleach::Durability::Commit, 0, 4096);
    let disk = SimDisk::new(9, unrecorded());
    let (db, _) = setup.open(&disk, 9).expect("created");
    db.add_namespace(9).expect("added");
    let put = |id: u64, len: usize| {
        let value = Value::from(vec![u8::try_from(id).expect("few"); len]);
        Access::write(setup.key(id), Some(value))
    };
    // Long values, whose runs only the pages name.
    crate::common::commit(&db, (0..3).map(|id| put(id, 3000).in_namespace(9)).collect());
    crate::common::commit(&db, vec![put(0, 3000)]);
    db.drain(0).expect("drained");
    db.close().expect("closed");
    let (db, runtime) = setup.open(&disk, 10).expect("opened, and nothing is cached");
    disk.inject(Rule::nth(Operation::Read, "leaf", 1, Times::Forever, Fault::Errno(code::EIO)));
    db.drop_namespace(9).expect("dropped");
    for _ in 0..20 {
        runtime.step_some(300);
        runtime.clock().advance(std::time::Duration::from_secs(1));
    }
    let in_use = db.add_namespace(9);
    assert!(matches!(in_use, Err(Error::NamespaceInUse { .. })), "{in_use:?}");
    disk.heal();
    let mut added = Err(Error::Closed);
    for _ in 0..200 {
        runtime.step_some(300);
        runtime.clock().advance(std::time::Duration::from_secs(1));
        added = db.add_namespace(9);
        if added.is_ok() {
            break;
        }
    }
    added.expect("it could be read, and went");
    crate::common::commit(&db, vec![put(1, 9).in_namespace(9)]);
    drop(db);
    let (db, _) = setup.open(&disk, 11).expect("opened after a kill");
    let session = db.snapshot().expect("a snapshot");
    assert_eq!(session.namespace(9).expect("it exists").iter(..).count(), 1);
}

/// A dropped namespace that nobody can read any more is given up by the background, and an add waits for that. It was
/// `NamespaceInUse`, with nothing to close.
#[test]
fn a_namespace_is_added_again_right_after_its_drop() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = pleach::Options::new(folder.path()).create(true).cache_mib(16).threads(2).small();
    let db = pleach::Db::open(options).expect("created");
    for round in 0..10 {
        if round % 2 == 0 { db.add_namespace(5) } else { db.add_plain_namespace(5) }
            .expect("added");
        let value = Value::from([7; 900].as_slice());
        let put =
            |id| Access::write(crate::common::uniform(id), Some(value.clone())).in_namespace(5);
        crate::common::commit(&db, (0..50).map(put).collect());
        db.drop_namespace(5).expect("dropped");
    }
    let held = db.snapshot().expect("a snapshot");
    db.add_namespace(5).expect("the snapshot is of a state after the drop");
    drop(held);
    let held = db.snapshot().expect("a snapshot");
    db.drop_namespace(5).expect("dropped");
    assert!(matches!(db.add_namespace(5), Err(Error::NamespaceInUse { .. })), "it is read");
    drop(held);
    db.add_namespace(5).expect("added");
}
