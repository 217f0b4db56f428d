//! Threads beside one ledger that cannot be wrong.
//!
//! Eight threads draw operations: sessions on the newest state, on the past and on overlays; blocks, at once or
//! late; overlays that several threads commit; rollbacks by number and by count; namespaces of both kinds that are
//! added and dropped; loads; closes beside all that, and reopenings.
//!
//! The ledger has the content of each root and digest, registered before it can be committed: two contents under one
//! are a failure, and so is a session with a root that is not registered. It has roots and blob of each number, as
//! commits, sessions and `commit_at` say them: they must agree. Each read, iterator and proof of a session is held against
//! the content of its roots.
//!
//! A seed draws the setup and each thread's operations; which thread comes first is the machine's. `PLEACH_SECONDS`
//! says how long to go on from seed to seed (5), `PLEACH_SEED` is the first one (0).

#[path = "it/common/mod.rs"]
mod common;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Model, Rng, bytes, uniform};
use parking_lot::{Mutex, RwLock};
use pleach::load::LoadOptions;
use pleach::{
    Access, Block, Db, Durability, Error, Geometry, Hasher, Key, Options, Overlay, Roots, Session,
    SessionOptions, Value,
};
use pleach_ops::{CheckOptions, check};

const THREADS: u64 = 8;
/// Operations of a thread in a round, at most.
const OPERATIONS: u64 = 4000;
/// A round of one seed ends after this time.
const ROUND: Duration = Duration::from_secs(2);
/// Handles that are kept for whichever thread takes them.
const KEPT: usize = 24;

#[derive(Clone, Debug)]
struct Setup {
    seed: u64,
    /// Keys of a namespace, but one.
    ids: u64,
    history: u64,
    durability: Durability,
    /// Namespaces besides the first; odd ones are plain.
    namespaces: u64,
    /// Threads mostly roll back, drop and write to one namespace, so that states come back and it is restored.
    returns: bool,
}

impl Setup {
    fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        if seed % 3 != 1 {
            let (ids, namespaces) = (rng.below(2), 1 + rng.below(2));
            let (history, durability, returns) = (40, Durability::None, true);
            return Self { seed, ids, history, durability, namespaces, returns };
        }
        Self {
            seed,
            ids: [0, 1, 6, 40][rng.index(4)],
            history: [0, 6, 30, 200][rng.index(4)],
            durability: [Durability::None, Durability::None, Durability::Commit][rng.index(3)],
            namespaces: 4,
            returns: false,
        }
    }

    fn open(&self, folder: &Path) -> Db {
        let options = Options::new(folder)
            .create(true)
            .cache_mib(16)
            .threads(2)
            .in_flight(8)
            .tune(|tuning| tuning.flush_at = 1)
            .history(self.history)
            .durability(self.durability)
            .geometry(Geometry::small());
        Db::open(options).expect("opened")
    }
}

/// What a namespace is known by: whether it is plain, and its root or digest.
type Name = (bool, [u8; 32]);

#[derive(Default)]
struct Ledger {
    contents: HashMap<Name, Model>,
    /// Roots and, where it is known, the blob of each commit.
    commits: HashMap<u64, (Roots, Option<Vec<u8>>)>,
    /// Commits that were acknowledged, and whether they may be acknowledged again: overlays may.
    acknowledged: HashMap<u64, bool>,
    /// Loads that were acknowledged beside other threads. They do not say their numbers.
    loads: usize,
}

impl Ledger {
    fn register(&mut self, name: Name, content: &Model) {
        let known = self.contents.entry(name).or_insert_with(|| content.clone());
        assert!(known.values == content.values, "two contents under {name:02x?}");
    }

    fn content(&self, name: &Name) -> Model {
        if name.1 == [0; 32] {
            return Model::default();
        }
        self.contents.get(name).unwrap_or_else(|| panic!("nobody made {name:02x?}")).clone()
    }

    /// Somebody says what a commit is.
    fn says(&mut self, number: u64, roots: &Roots, blob: Option<&Vec<u8>>) {
        let known = self.commits.entry(number).or_insert_with(|| (roots.clone(), None));
        assert!(known.0 == *roots, "commit {number}: {:?}, now {roots:?}", known.0);
        if let Some(blob) = blob {
            let known = known.1.get_or_insert_with(|| blob.clone());
            assert!(known == blob, "commit {number}: the blob {known:?}, now {blob:?}");
        }
    }

    fn acknowledge(&mut self, number: u64, again: bool) {
        let before = self.acknowledged.insert(number, again);
        assert!(before.is_none_or(|before| before && again), "commit {number} is two commits");
    }
}

/// Namespaces of a state, with what they are known by.
fn names(roots: &Roots) -> BTreeMap<u8, Name> {
    let merkle = roots.iter().map(|(namespace, root)| (namespace, (false, root.to_bytes())));
    let plain = roots.digests().map(|(namespace, digest)| (namespace, (true, digest)));
    merkle.chain(plain).collect()
}

enum Held {
    Session(Session, bool),
    /// Whether it is over an overlay; and its blob, where it is known.
    Block(Box<Block>, bool, Option<Vec<u8>>),
    Overlay(Overlay, Option<Vec<u8>>),
}

struct World<'a> {
    setup: Setup,
    folder: &'a Path,
    ledger: Mutex<Ledger>,
    /// Held for reading by an operation, for writing by one that is alone.
    open: RwLock<Option<Db>>,
    kept: Mutex<Vec<Held>>,
    stop: AtomicBool,
    until: Instant,
    done: [AtomicU64; 12],
}

/// Stops the other threads when one fails.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// What may be said to a caller beside others; all else is a failure.
fn allowed(error: &Error) {
    let ok = matches!(
        error,
        Error::StaleParent { .. }
            | Error::SnapshotTooOld { .. }
            | Error::NoSuchCommit { .. }
            | Error::TooFarBack { .. }
            | Error::Namespace(_)
            | Error::NamespaceExists(_)
            | Error::NamespaceInUse { .. }
            | Error::InUse(_)
            | Error::NotEmpty(_)
            | Error::Closed
    );
    assert!(ok, "{error}");
}

/// What an operation of another thread refuses ends this one.
fn or_refused<T>(result: Result<T, Error>) -> Option<T> {
    result.inspect_err(allowed).ok()
}

impl World<'_> {
    fn key(&self, rng: &mut Rng) -> Key {
        uniform(rng.below(self.setup.ids + 1))
    }

    /// Few values, so that states come back; and some that are new and long.
    fn value(rng: &mut Rng) -> Option<Value> {
        match rng.below(12) {
            0..=2 => None,
            3 => {
                let len = [40, 900, 3000, 70_000][rng.index(4)];
                Some(bytes(rng, len))
            }
            _ => Some(Value::from([u8::try_from(rng.below(3)).expect("few"); 9].as_slice())),
        }
    }

    /// Asks for a commit by its number.
    fn ask(&self, db: &Db, number: u64) -> Option<(Roots, Vec<u8>)> {
        let commit = or_refused(db.commit_at(number))?;
        assert_eq!(commit.number, number);
        self.ledger.lock().says(number, &commit.roots, Some(&commit.blob));
        Some((commit.roots, commit.blob))
    }

    /// Roots and blob of a commit, if somebody has said them, or says them now.
    fn commit(&self, db: &Db, number: u64) -> Option<(Roots, Option<Vec<u8>>)> {
        let known = self.ledger.lock().commits.get(&number).cloned();
        match known {
            Some(known) if known.1.is_some() => Some(known),
            known => self.ask(db, number).map(|(roots, blob)| (roots, Some(blob))).or(known),
        }
    }

    fn count(&self, what: usize) {
        self.done[what].fetch_add(1, Ordering::Relaxed);
    }

    /// Holds a session against the contents of its roots, in part or as a whole.
    fn judge(&self, session: &Session, over: bool, rng: &mut Rng, whole: bool) {
        if !over {
            self.ledger.lock().says(session.commit_number(), session.roots(), None);
        }
        for (number, name) in names(session.roots()) {
            if !whole && rng.below(2) == 0 {
                continue;
            }
            let content = self.ledger.lock().content(&name);
            let Some(namespace) = or_refused(session.namespace(number)) else { return };
            let keys: Vec<Key> = (0..=self.setup.ids).map(uniform).collect();
            let what = || format!("namespace {number} of commit {}", session.commit_number());
            match if whole { 2 } else { rng.below(5) } {
                0 => {
                    let key = self.key(rng);
                    let Some(found) = or_refused(namespace.read(&key)) else { return };
                    assert!(found.as_ref() == content.values.get(&key), "{}", what());
                }
                1 => {
                    if rng.below(2) == 0 {
                        namespace.prefetch(&keys);
                    }
                    let Some(found) = or_refused(namespace.read_many(&keys)) else { return };
                    for (key, found) in keys.iter().zip(&found) {
                        assert!(found.as_ref() == content.values.get(key), "{}", what());
                    }
                }
                2 | 3 => {
                    let from = if whole { [0; 32] } else { self.key(rng) };
                    let pairs: Result<Vec<(Key, Value)>, Error> = match rng.below(2) {
                        0 => namespace.iter(from..).collect(),
                        _ => namespace.iter(from..).rev().collect(),
                    };
                    let Some(mut pairs) = or_refused(pairs) else { return };
                    pairs.sort_unstable_by_key(|pair| pair.0);
                    let expected = content.values.range(from..);
                    assert!(
                        pairs.iter().map(|(key, value)| (key, value)).eq(expected),
                        "{}",
                        what()
                    );
                }
                _ if name.0 => {
                    assert!(matches!(namespace.prove_many(&keys), Err(Error::Plain(_))));
                }
                _ => {
                    let Some(proof) = or_refused(namespace.prove_many(&keys)) else { return };
                    let naive = content.naive(Hasher::BLAKE3);
                    assert_eq!(naive.root(Hasher::BLAKE3).to_bytes(), name.1, "{}", what());
                    let expected = naive.multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3);
                    assert!(proof == expected.expect("encodes").into(), "{}: a proof", what());
                }
            }
        }
        self.count(0);
    }

    /// Finishes a batch over a session, and registers what comes of it.
    fn finish(&self, session: Session, rng: &mut Rng) -> Option<Block> {
        let before = names(session.roots());
        let mut accesses: BTreeMap<(u8, Key), Access> = BTreeMap::new();
        if rng.below(8) > 0 {
            for _ in 0..=rng.below(4) {
                let mut of: Vec<u8> = before.keys().copied().collect();
                if self.setup.returns {
                    // Where they are dropped, rollbacks alone go on, which restore them.
                    of.remove(0);
                }
                if of.is_empty() {
                    return None;
                }
                let namespace = of[rng.index(of.len())];
                let key = self.key(rng);
                let write = Access::write(key, Self::value(rng)).in_namespace(namespace);
                accesses.insert((namespace, key), write);
            }
        }
        let accesses: Vec<Access> = accesses.into_values().collect();
        let finished = session.finish(accesses.clone()).map_err(pleach::FinishError::into_error);
        let block = or_refused(finished)?;
        let after = names(block.roots());
        let mut ledger = self.ledger.lock();
        assert_eq!(names(block.prev_roots()), before);
        for ((namespace, name), (_, before)) in after.iter().zip(&before) {
            let own: Vec<Access> =
                accesses.iter().filter(|access| access.namespace == *namespace).cloned().collect();
            let mut content = ledger.content(before);
            content.apply(&own);
            if own.is_empty() {
                assert_eq!(name, before, "nothing was changed");
            } else if name.1 != [0; 32] {
                ledger.register(*name, &content);
            } else {
                assert!(content.values.is_empty(), "an empty root");
            }
        }
        Some(block)
    }

    fn keep(&self, held: Held, rng: &mut Rng) {
        let mut kept = self.kept.lock();
        kept.push(held);
        let gone = (kept.len() > KEPT).then(|| {
            let at = rng.index(KEPT);
            kept.swap_remove(at)
        });
        drop(kept);
        drop(gone);
    }

    fn take(&self, rng: &mut Rng) -> Option<Held> {
        let mut kept = self.kept.lock();
        let at = rng.index(kept.len().max(1));
        (at < kept.len()).then(|| kept.swap_remove(at))
    }

    /// A session of some kind; is it over an overlay, and the blob of its state, where that is known.
    fn session(&self, db: &Db, rng: &mut Rng) -> Option<(Session, bool, Option<Vec<u8>>)> {
        let session = match rng.below(8) {
            0 => {
                let history = db.history();
                let number = history.start() + rng.below(history.end() - history.start() + 1);
                or_refused(db.at(number))?
            }
            1 => or_refused(db.snapshot())?,
            _ => or_refused(db.session(SessionOptions::new().witness(rng.below(2) == 0)))?,
        };
        let blob = self.commit(db, session.commit_number()).and_then(|commit| commit.1);
        Some((session, false, blob))
    }

    fn write(&self, db: &Db, rng: &mut Rng) {
        let Some((session, over, blob)) = self.session(db, rng) else { return };
        if rng.below(4) == 0 {
            self.judge(&session, over, rng, false);
        }
        self.made(db, session, (over, blob), rng);
    }

    /// A block of a session is committed at once, kept, or becomes an overlay.
    fn made(
        &self,
        db: &Db,
        session: Session,
        (over, mut blob): (bool, Option<Vec<u8>>),
        rng: &mut Rng,
    ) {
        let Some(mut block) = self.finish(session, rng) else { return };
        if rng.below(2) == 0 {
            let own = rng.next().to_le_bytes()[..3].to_vec();
            block.set_blob(own.clone()).expect("short");
            blob = Some(own);
        }
        match rng.below(6) {
            0 => self.keep(Held::Block(Box::new(block), over, blob), rng),
            1 | 2 => self.keep(Held::Overlay(block.into_overlay(), blob), rng),
            _ => self.commit_block(db, block, (over, blob), rng),
        }
    }

    fn commit_block(
        &self,
        db: &Db,
        block: Block,
        (over, blob): (bool, Option<Vec<u8>>),
        rng: &mut Rng,
    ) {
        let (before, after) = (block.prev_roots().clone(), block.roots().clone());
        match block.commit() {
            Ok(number) => {
                let mut ledger = self.ledger.lock();
                ledger.says(number, &after, blob.as_ref());
                // An overlay that was merged with it may be committed again.
                ledger.acknowledge(number, over);
                drop(ledger);
                self.count(1);
                if rng.below(2) == 0 {
                    self.ask(db, number);
                }
            }
            Err(refused) => {
                allowed(refused.error());
                if rng.below(4) == 0 {
                    assert!(
                        (refused.block().prev_roots(), refused.block().roots())
                            == (&before, &after)
                    );
                    self.keep(Held::Block(Box::new(refused.into_block()), over, blob), rng);
                }
            }
        }
    }

    /// Does something with a handle that some thread has kept.
    fn held(&self, db: &Db, rng: &mut Rng) {
        match self.take(rng) {
            None => {}
            Some(Held::Session(session, over)) => {
                self.judge(&session, over, rng, false);
                match rng.below(3) {
                    0 => self.made(db, session, (over, None), rng),
                    _ => self.keep(Held::Session(session, over), rng),
                }
            }
            Some(Held::Block(block, over, blob)) => {
                self.commit_block(db, *block, (over, blob), rng);
            }
            Some(Held::Overlay(overlay, blob)) => {
                if rng.below(2) == 0 {
                    self.keep(Held::Overlay(overlay.clone(), blob.clone()), rng);
                }
                if rng.below(2) == 0 {
                    let options = SessionOptions::new().over(&overlay);
                    let Some(session) = or_refused(db.session(options)) else { return };
                    assert!(session.roots() == overlay.roots());
                    self.judge(&session, true, rng, false);
                    match rng.below(3) {
                        0 => self.keep(Held::Session(session, true), rng),
                        _ => self.made(db, session, (true, blob), rng),
                    }
                } else if let Some(number) = or_refused(overlay.commit()) {
                    assert_eq!(overlay.commit_number(), Some(number));
                    self.ledger.lock().acknowledge(number, true);
                    self.count(2);
                    self.ask(db, number);
                }
            }
        }
    }

    fn roll_back(&self, db: &Db, rng: &mut Rng) {
        let (number, wanted) = if rng.below(2) == 0 {
            let back = 1 + rng.below(4);
            let Some(number) = or_refused(db.rollback(back)) else { return };
            (number, number - 1 - back)
        } else {
            let history = db.history();
            let least = history.end().saturating_sub(20).max(*history.start());
            let mut wanted = least + rng.below(history.end() - least + 1);
            if self.setup.returns {
                // Rather to a state whose namespaces were dropped since.
                let ledger = self.ledger.lock();
                let count = |number: &u64| {
                    ledger.commits.get(number).map_or(0, |commit| names(&commit.0).len())
                };
                wanted = (wanted..=*history.end()).max_by_key(count).unwrap_or(wanted);
            }
            let Some(number) = or_refused(db.rollback_to(wanted)) else { return };
            if number == wanted {
                return;
            }
            (number, wanted)
        };
        self.ledger.lock().acknowledge(number, false);
        self.count(3);
        let Some((roots, blob)) = self.commit(db, wanted) else { return };
        self.ledger.lock().says(number, &roots, blob.as_ref());
        self.ask(db, number);
    }

    fn add_or_drop(&self, db: &Db, rng: &mut Rng) {
        let namespace = u8::try_from(1 + rng.below(self.setup.namespaces)).expect("few");
        let adds = rng.below(if self.setup.returns { 8 } else { 2 }) == 0;
        let result = match (adds, namespace % 2) {
            (true, 0) => db.add_namespace(namespace),
            (true, _) => db.add_plain_namespace(namespace),
            (false, _) => db.drop_namespace(namespace),
        };
        let Some(number) = or_refused(result) else { return };
        self.ledger.lock().acknowledge(number, false);
        self.count(if adds { 4 } else { 5 });
        let (Some(mut before), Some(after)) = (
            self.commit(db, number - 1).map(|commit| names(&commit.0)),
            self.commit(db, number).map(|commit| names(&commit.0)),
        ) else {
            return;
        };
        let is_new = if adds {
            before.insert(namespace, (namespace % 2 == 1, [0; 32])).is_none()
        } else {
            before.remove(&namespace).is_some()
        };
        assert!(is_new && before == after, "commit {number}: {before:02x?}, {after:02x?}");
    }

    fn pairs(&self, rng: &mut Rng) -> Model {
        let ids = 0..=rng.below(self.setup.ids + 1);
        Model { values: ids.map(|id| (uniform(id), bytes(rng, 20))).collect() }
    }

    /// A load beside others: it is refused while anybody reads.
    fn load(&self, db: &Db, rng: &mut Rng) {
        let roots = db.roots();
        let Some((namespace, _)) = roots.iter().rfind(|(_, root)| root.to_bytes() == [0; 32])
        else {
            return;
        };
        let content = self.pairs(rng);
        let root = content.naive(Hasher::BLAKE3).root(Hasher::BLAKE3);
        self.ledger.lock().register((false, root.to_bytes()), &content);
        let options = LoadOptions::new().namespace(namespace).memory_mib(1);
        let Some(report) = or_refused(db.bulk_load(content.values, &options)) else {
            return;
        };
        assert_eq!(report.root, root);
        self.ledger.lock().loads += 1;
        self.count(6);
    }

    /// All other threads are between two operations. Gives the database that is open next.
    fn alone(&self, db: Db, rng: &mut Rng) -> Db {
        self.kept.lock().clear();
        let (number, roots, blob) = (db.commit_number(), db.roots(), db.blob());
        let mut ledger = self.ledger.lock();
        ledger.says(number, &roots, Some(&blob));
        let acknowledged = ledger.acknowledged.len() + ledger.loads;
        assert_eq!(number, acknowledged as u64, "each commit was acknowledged, once");
        drop(ledger);
        let closed = match rng.below(3) {
            0 => Ok(()),
            _ => db.close().map(drop),
        };
        assert!(matches!(closed, Ok(()) | Err(Error::Closed)), "{closed:?}");
        drop(db);
        let db = self.setup.open(self.folder);
        assert_eq!((db.commit_number(), db.roots(), db.blob()), (number, roots, blob));
        self.count(7);
        if rng.below(2) == 0 {
            self.load_alone(&db, rng);
        }
        db
    }

    /// Loads an empty namespace of either kind while nobody reads.
    fn load_alone(&self, db: &Db, rng: &mut Rng) {
        let roots = db.roots();
        let empty = names(&roots).into_iter().filter(|(_, name)| name.1 == [0; 32]);
        let empty: Vec<(u8, Name)> = empty.collect();
        if empty.is_empty() {
            return;
        }
        let (namespace, (plain, _)) = empty[rng.index(empty.len())];
        let content = self.pairs(rng);
        let options = LoadOptions::new().namespace(namespace).memory_mib(1);
        let Some(report) = or_refused(db.bulk_load(content.values.clone(), &options)) else {
            return;
        };
        let mut ledger = self.ledger.lock();
        ledger.register((plain, report.root.to_bytes()), &content);
        ledger.says(db.commit_number(), &db.roots(), Some(&db.blob()));
        ledger.acknowledge(db.commit_number(), false);
        drop(ledger);
        self.count(8);
        let session = db.snapshot().expect("a snapshot");
        self.judge(&session, false, rng, true);
    }

    fn operate(&self, rng: &mut Rng) {
        let open = self.open.read();
        let db = open.as_ref().expect("open between two operations").clone();
        match rng.below(if self.setup.returns { 16 } else { 33 }) {
            0..=4 if self.setup.returns || rng.below(2) == 0 => self.roll_back(&db, rng),
            5..=7 => self.add_or_drop(&db, rng),
            0..=20 => self.write(&db, rng),
            21..=27 => self.held(&db, rng),
            28..=30 => {
                let Some((session, over, _)) = self.session(&db, rng) else { return };
                self.judge(&session, over, rng, false);
                self.keep(Held::Session(session, over), rng);
            }
            31 => self.load(&db, rng),
            _ if rng.below(20) == 0 => {
                if rng.below(2) == 0 && or_refused(db.close()).is_some() {
                    // Beside all others, who are told so.
                    self.count(9);
                }
                drop((db, open));
                let mut open = self.open.write();
                let db = open.take().expect("open between two operations");
                *open = Some(self.alone(db, rng));
            }
            _ => {}
        }
    }

    fn work(&self, thread: u64) {
        let _stop = StopOnPanic(&self.stop);
        let mut rng = Rng::new(self.setup.seed * THREADS + thread);
        for _ in 0..OPERATIONS {
            if self.stop.load(Ordering::Relaxed) || Instant::now() > self.until {
                return;
            }
            self.operate(&mut rng);
        }
    }

    /// Nobody works any more: the checker finds nothing, and each commit of the history is what the ledger has.
    fn end(&self) {
        let mut rng = Rng::new(self.setup.seed);
        let mut open = self.open.write();
        let db = open.take().expect("open between two operations");
        drop(self.alone(db, &mut rng));
        let report = check(self.folder, CheckOptions::default()).expect("checked");
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let db = self.setup.open(self.folder);
        let numbers: HashSet<u64> = db.history().collect();
        for number in numbers {
            self.ask(&db, number).expect("in the history");
            let session = db.at(number).expect("in the history");
            self.judge(&session, false, &mut rng, true);
        }
    }
}

fn round(seed: u64, until: Instant) {
    // In memory where there is such a folder: rollbacks are synced, and what comes between them is what counts.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.expect("a temporary folder");
    let setup = Setup::draw(seed);
    println!("{setup:?}");
    let world = World {
        open: RwLock::new(Some(setup.open(folder.path()))),
        setup,
        folder: folder.path(),
        ledger: Mutex::default(),
        kept: Mutex::default(),
        stop: AtomicBool::new(false),
        until,
        done: std::array::from_fn(|_| AtomicU64::new(0)),
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let world = &world;
            scope.spawn(move || world.work(thread));
        }
    });
    world.end();
    let done: Vec<u64> = world.done.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    println!(
        "sessions {}, commits {}, of overlays {}, rollbacks {}, adds {}, drops {}, loads {} and alone {}, reopenings {}, \
         closes beside others {}",
        done[0], done[1], done[2], done[3], done[4], done[5], done[6], done[8], done[7], done[9]
    );
}

#[test]
fn every_read_is_what_the_ledger_has() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let end = Instant::now() + Duration::from_secs(number("PLEACH_SECONDS").unwrap_or(5));
    // Each round does some work, so that they end whatever the clock does.
    let first = number("PLEACH_SEED").unwrap_or(0);
    for seed in first..first + 100_000 {
        round(seed, end.min(Instant::now() + ROUND));
        if Instant::now() > end {
            break;
        }
    }
}
