//! Random commits over several namespaces, which come and go, are rolled back, loaded, flushed and written to
//! images meanwhile. Whatever part a power failure keeps, the database opens at a commit between the last
//! acknowledged and the last begun: each namespace with its root and all its pairs, those that were dropped gone,
//! and the past of the history readable. On the simulated disk.

use std::collections::BTreeMap;

use crate::common::{Keys, Rng, bytes, cases, key};
use pleach::internals::names::parse_segment_name;
use pleach::load::LoadOptions;
use pleach::tools::{CheckOptions, check_on};
use pleach::{Access, Db, Geometry, Hasher, Options, SessionOptions};
use pleach_core::fold::{BatchFolder, FoldValue};
use pleach_core::{Key, Node};
use pleach_io::sim::{Damage, PageOf, SimDisk, SimOptions, SimRuntime};

type SimDb = Db;
/// The pairs of each namespace that exists.
type Model = BTreeMap<u8, BTreeMap<Key, Vec<u8>>>;

/// The namespaces that come and go.
const NAMESPACES: [u8; 4] = [1, 2, 77, 255];
const HISTORY: u64 = 3;
/// Those of them that are plain.
const PLAIN: [u8; 2] = [2, 77];

fn options(history: u64) -> Options {
    let options = Options::new("simulated").create(true).cache_mib(8).threads(1).in_flight(16);
    options.small().log_limit_bytes(256 << 10).flush_at(2).history(history)
}

fn open(disk: &SimDisk, seed: u64, history: u64) -> pleach::Result<(SimDb, SimRuntime)> {
    let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
    Ok((SimDb::open_on(disk.clone(), runtime.clone(), options(history))?, runtime))
}

fn root_of(pairs: &BTreeMap<Key, Vec<u8>>) -> Node {
    let mut folder = BatchFolder::new(Hasher::BLAKE3);
    folder.begin(0);
    for (key, value) in pairs {
        folder.unaccessed(key, FoldValue::Bytes(value));
    }
    let fold = folder.end().expect("no terminal is placed here");
    folder.run();
    folder.node(fold)
}

fn roots_of(model: &Model) -> Vec<(u8, Node)> {
    let merkle = model.iter().filter(|(namespace, _)| !PLAIN.contains(namespace));
    merkle.map(|(namespace, pairs)| (*namespace, root_of(pairs))).collect()
}

/// The state after each commit.
type States = BTreeMap<u64, Model>;

struct Run {
    disk: SimDisk,
    runtime: SimRuntime,
    db: SimDb,
    rng: Rng,
    states: States,
}

impl Run {
    fn new(seed: u64, history: u64) -> Self {
        let disk = SimDisk::new(seed, SimOptions::default());
        let (db, runtime) = open(&disk, seed, history).expect("created");
        let states = States::from([(0, Model::from([(0, BTreeMap::new())]))]);
        Self { disk, runtime, db, rng: Rng::new(seed), states }
    }

    fn newest(&self) -> &Model {
        self.states.last_key_value().expect("there is one").1
    }

    /// The next state, which a commit is about to make: `make` changes the database.
    fn next(&mut self, model: Model, make: impl FnOnce(&SimDb)) {
        let number = self.states.last_key_value().expect("there is one").0 + 1;
        self.states.insert(number, model);
        make(&self.db);
        assert_eq!(self.db.commit_number(), number);
        self.disk.mark(number);
        self.runtime.step_some(self.rng.index(40));
    }

    fn changes(&mut self) {
        let mut model = self.newest().clone();
        let mut accesses = Vec::new();
        for (namespace, pairs) in &mut model {
            if self.rng.below(3) == 0 {
                continue;
            }
            let from = self.rng.below(200);
            for id in from..from + self.rng.below(120) {
                let key = key(Keys::Uniform, id);
                let len = if id % 50 == 9 { 5000 } else { 60 };
                let value = (self.rng.below(4) > 0).then(|| bytes(&mut self.rng, len));
                match &value {
                    Some(value) => drop(pairs.insert(key, value.to_vec())),
                    None => drop(pairs.remove(&key)),
                }
                accesses.push(Access::write(key, value).in_namespace(*namespace));
            }
        }
        self.next(model, |db| {
            let session = db.session(SessionOptions::new()).expect("a session");
            session.finish(accesses).expect("finished").commit().expect("committed");
        });
    }

    fn comes_or_goes(&mut self) {
        let namespace = NAMESPACES[self.rng.index(4)];
        let mut model = self.newest().clone();
        if model.remove(&namespace).is_some() {
            self.next(model, |db| _ = db.drop_namespace(namespace).expect("dropped"));
            return;
        }
        model.insert(namespace, BTreeMap::new());
        // One that was dropped may still be there, for the history.
        let before = self.db.commit_number();
        let added = if PLAIN.contains(&namespace) {
            self.db.add_plain_namespace(namespace)
        } else {
            self.db.add_namespace(namespace)
        };
        match added {
            Ok(number) => {
                assert_eq!(number, before + 1);
                self.next(model, |_| ());
            }
            Err(pleach::Error::NamespaceInUse { .. }) => self.work(),
            Err(error) => panic!("{error}"),
        }
    }

    fn goes_back(&mut self) {
        let tip = self.db.commit_number();
        let most = tip - self.db.history().start();
        if most == 0 {
            return;
        }
        let back = 1 + self.rng.below(most);
        let Some(model) = self.states.get(&(tip - back)).cloned() else { return };
        self.next(model, |db| _ = db.rollback(back).expect("rolled back"));
    }

    fn load(&mut self) {
        let mut model = self.newest().clone();
        let never = |namespace: &u8| {
            !self
                .states
                .values()
                .any(|model| model.get(namespace).is_some_and(|pairs| !pairs.is_empty()))
        };
        let Some(namespace) = model.keys().copied().find(never) else { return };
        let pairs: Vec<(Key, pleach::Value)> =
            (0..300).map(|id| (key(Keys::Uniform, id), bytes(&mut self.rng, 80))).collect();
        model.insert(namespace, pairs.iter().map(|(key, value)| (*key, value.to_vec())).collect());
        let options = LoadOptions::new().memory_mib(1).namespace(namespace);
        self.next(model, |db| _ = db.bulk_load(pairs.into_iter(), &options).expect("loaded"));
    }

    /// Lets the background work for a while.
    fn work(&self) {
        for _ in 0..20 {
            self.runtime.step_some(60);
            self.runtime.clock().advance(std::time::Duration::from_millis(30));
        }
    }

    fn go(&mut self, commits: u64) {
        for _ in 0..commits {
            match self.rng.below(12) {
                0..=2 => self.comes_or_goes(),
                3 => self.goes_back(),
                4 => self.work(),
                5 => self.load(),
                6 => self.db.drain(0).expect("flushed"),
                _ => self.changes(),
            }
        }
    }
}

/// What is on the disk is one of the states, and works.
fn is_one_of(states: &States, disk: &SimDisk, least: u64, history: u64, says: &str) {
    let (db, _) = open(disk, 9, history).unwrap_or_else(|error| panic!("{says}: {error}"));
    let number = db.commit_number();
    assert!(number >= least, "{says}: {number} after {least}");
    let model = &states[&number];
    assert_eq!(db.roots().iter().collect::<Vec<_>>(), roots_of(model), "{says}");
    for past in *db.history().start()..number {
        let session = db.at(past).expect("in the history");
        assert_eq!(session.roots().iter().collect::<Vec<_>>(), roots_of(&states[&past]), "{says}");
        for (namespace, pairs) in &states[&past] {
            let view = session.namespace(*namespace).expect("it existed then");
            for (key, value) in pairs.iter().step_by(17) {
                let found = view.read(key).expect("read");
                assert_eq!(found.as_deref(), Some(value.as_slice()), "{says}");
            }
        }
    }
    let back = number - db.history().start();
    let mut now = number;
    if back > 0 {
        db.rollback(back).expect("rolled back");
        assert_eq!(db.roots().iter().collect::<Vec<_>>(), roots_of(&states[&(number - back)]));
        now = number - back;
    }
    drop(db);
    let mut report = check_on(disk, CheckOptions::default()).expect("checked");
    // What a recycled file of the log had is told from a torn end only where it has headers.
    report.findings.retain(|finding| !finding.what.starts_with("the log ends torn"));
    assert!(report.findings.is_empty(), "{says}: {:?}", report.findings);
    let options = Options::new("sim").cache_kib(256).geometry(Geometry::least()).read_only(true);
    let reader = SimDb::open_on(disk.clone(), SimRuntime::new(1), options).expect("opens");
    for (namespace, pairs) in &states[&now] {
        let session = reader.snapshot().expect("a session");
        let there = session.namespace(*namespace).expect("there").iter(..);
        let there = there.map(|pair| pair.map(|(key, value)| (key, value.to_vec())));
        let found: BTreeMap<_, _> = there.collect::<Result<_, _>>().expect("read");
        assert!(found == *pairs, "{says}: namespace {namespace} has {} pairs", found.len());
    }
}

fn crashes(seed: u64, history: u64) {
    let mut run = Run::new(seed, history);
    run.go(45);
    run.work();
    let trace = run.disk.trace();
    let points: Vec<_> = trace.crash_points().collect();
    // About a hundred of them; which, depends on the seed.
    let step = points.len() / 100 + 1;
    let mut looked = 0;
    let first = run.rng.index(step);
    for point in points.iter().skip(first).step_by(step) {
        let Some(least) = point.marks().iter().max().copied() else { continue };
        for outcome in point.outcomes(seed, 1) {
            let says = format!("seed {seed}, history {history}, {outcome}");
            is_one_of(&run.states, &outcome.disk(), least, history, &says);
            looked += 1;
        }
    }
    assert!(looked > 20, "{looked}");
}

#[test]
fn power_failures_leave_whole_states_of_all_namespaces() {
    for seed in 0..cases(4) {
        crashes(seed, if seed % 2 == 0 { 0 } else { HISTORY });
    }
}

/// The older image serves for any page of the newest one, of whichever namespace it is.
#[test]
fn the_older_image_serves_for_all_namespaces() {
    for seed in 0..cases(2) {
        let mut run = Run::new(seed, 0);
        run.go(25);
        let newest = *run.states.last_key_value().expect("there is one").0;
        run.db.close().expect("closed");
        let image = run.disk.image();
        let mut fell_back = 0;
        for file in ["image-a", "image-b"] {
            let pages = image.file(file).expect("it is there").pages();
            for page in 0..pages {
                let disk = SimDisk::from_image(&image, seed);
                let page = PageOf { file: file.to_owned(), page };
                if !disk.damage(&Damage::Zero(page)) {
                    continue;
                }
                let (db, _) = open(&disk, seed, 0).expect("the other image serves");
                fell_back += u64::from(db.opened().fell_back.is_some());
                assert_eq!(db.commit_number(), newest);
                assert_eq!(db.roots().iter().collect::<Vec<_>>(), roots_of(&run.states[&newest]));
            }
        }
        // A branch page, the map and the table at least.
        assert!(fell_back >= 3, "{fell_back}");
    }
}

/// A history that is damaged may be there again for the next open, so a dropped namespace is not given up for its
/// lack, until a record says that it is gone.
#[test]
fn a_history_that_cannot_be_read_gives_nothing_up() {
    const HISTORY: u64 = 50;
    let disk = SimDisk::new(1, SimOptions::default());
    let (db, _) = open(&disk, 1, HISTORY).expect("created");
    let pairs = |namespace: u8, byte: u8| -> Vec<Access> {
        let value = pleach::Value::from(vec![byte; 90]);
        let write = |id| Access::write(key(Keys::Uniform, id), Some(value.clone()));
        (0..300).map(|id| write(id).in_namespace(namespace)).collect()
    };
    db.add_namespace(7).expect("added");
    crate::common::commit(&db, pairs(7, 1));
    crate::common::commit(&db, pairs(0, 2));
    db.drain(0).expect("flushed");
    let then = db.roots();
    db.drop_namespace(7).expect("dropped");
    crate::common::commit(&db, pairs(0, 3));
    db.close().expect("closed");
    drop(db);
    let image = disk.image();
    let written =
        image.names().filter(|name| parse_segment_name(name).is_some()).flat_map(|name| {
            let bytes = image.file(name).expect("listed").to_vec();
            let pages = bytes.chunks(4096).map(|page| page.iter().any(|byte| *byte != 0));
            let pages: Vec<bool> = pages.collect();
            let written = (0..).zip(pages).filter(|(_, written)| *written);
            written.map(|(page, _)| PageOf { file: name.to_owned(), page }).collect::<Vec<_>>()
        });
    let mut lost = 0;
    for (nth, at) in (1..).zip(written) {
        let rot = Damage::Flip { at, byte: 70, bit: 3 };
        let disk = SimDisk::from_image(&image, nth);
        disk.damage(&rot);
        let Ok((db, runtime)) = open(&disk, nth, HISTORY) else { continue };
        let start = *db.history().start();
        // The drop is in what is lost.
        if start < 4 {
            continue;
        }
        lost += 1;
        let work = || {
            for _ in 0..20 {
                runtime.step_some(60);
                runtime.clock().advance(std::time::Duration::from_millis(30));
            }
        };
        let pages = db.metrics().leaf_pages;
        db.drain(0).expect("flushed");
        work();
        assert_eq!(db.metrics().leaf_pages, pages, "{rot:?}: nothing is given up");
        let survivor = SimDisk::from_image(&disk.image(), nth);
        survivor.damage(&rot);
        let (again, _) = open(&survivor, nth, HISTORY).expect("opened");
        assert_eq!((*again.history().start(), again.commit_number()), (0, 5), "{rot:?}");
        let past = again.at(3).expect("in the history");
        assert_eq!(*past.roots(), then);
        let view = past.namespace(7).expect("it existed then");
        let found = view.read(&key(Keys::Uniform, 17)).expect("read");
        assert_eq!(found.as_deref(), Some([1; 90].as_slice()));
        // The next commit's record says that the history is gone.
        crate::common::commit(&db, pairs(0, 4));
        db.drain(0).expect("flushed");
        work();
        assert!(db.metrics().leaf_pages < pages, "{rot:?}: it is given up");
        let survivor = SimDisk::from_image(&disk.image(), nth);
        let (again, _) = open(&survivor, nth, HISTORY).expect("opened");
        assert_eq!((*again.history().start(), again.commit_number()), (start, 6), "{rot:?}");
    }
    assert!(lost > 0, "no damage has cost the history");
}
