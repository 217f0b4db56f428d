//! A database that had a million keys and has a hundred left kept the index, the image and the files of a
//! million: regions were split and never joined, pages merged once and never again, and files only grew.

use std::path::Path;

use pleach::load::LoadOptions;
use pleach::tools::{CheckOptions, check, check_on};
use pleach::{Access, Db, Geometry, Options, SessionOptions, Value};
use pleach_core::Hasher;
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};
use pleach_io::{Device, OpenMode};

use crate::common::{Keys, Model, Rng, bytes, commit, key};
use crate::crash::{SimDb, only_boundary, seeds, unrecorded};

fn options(folder: &Path) -> Options {
    Options::new(folder).create(true).cache_mib(16).threads(2).in_flight(16).small()
}

fn len(folder: &Path, file: &str) -> u64 {
    std::fs::metadata(folder.join(file)).expect("a file").len()
}

/// Loads so many keys with values of 100 bytes.
fn loaded(db: &Db, kind: Keys, count: u64) -> Model {
    let mut rng = Rng::new(count);
    let mut model = Model::default();
    for id in 0..count {
        model.values.insert(key(kind, id), bytes(&mut rng, 100));
    }
    let pairs = model.values.clone().into_iter();
    db.bulk_load(pairs, &LoadOptions::new().memory_mib(8)).expect("loaded");
    model
}

/// Deletes all but every `kept`th key, in commits of `size`.
fn delete(db: &Db, model: &mut Model, kept: usize, size: usize) {
    let keys = model.values.keys().copied().enumerate();
    let gone: Vec<_> = keys.filter(|(at, _)| at % kept != 0).map(|(_, key)| key).collect();
    for some in gone.chunks(size) {
        let accesses: Vec<Access> = some.iter().map(|key| Access::write(*key, None)).collect();
        model.apply(&accesses);
        commit(db, accesses);
    }
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
}

/// Waits until nothing pends and nothing is left to be made smaller; at most a minute.
fn settle(db: &Db, small: impl Fn(&pleach::Metrics) -> bool) {
    db.drain(0).expect("drained");
    for _ in 0..6000 {
        if small(&db.metrics()) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{:#?}", db.metrics());
}

#[test]
fn index_image_and_files_fit_what_is_left() {
    const KEYS: u64 = 60_000;
    // Keys that share 230 bits hang on a chain of as many regions, whatever there is of them. An image's file is
    // cut when it has twice the room of the next image: of 240 regions that is 2.8 MiB.
    for (kind, regions, image) in [(Keys::Uniform, 1, 320 << 10), (Keys::Sequential, 240, 3 << 20)]
    {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path();
        let db = Db::open(options(path)).expect("created");
        let mut model = loaded(&db, kind, KEYS);
        let (full, leaf) = (db.metrics(), len(path, "leaf"));
        assert!(full.leaf_pages > 1500 && full.regions > 16, "{full:?}");
        delete(&db, &mut model, 600, 5000);
        // A hundred keys are six pages or more, of which no two siblings fit into one.
        settle(&db, |metrics| metrics.leaf_pages < 40 && metrics.regions <= regions);
        let root = db.root();
        db.close().expect("closed");
        // The image that a fresh open has named pages at the end of the file: the next close is free of it.
        let db = Db::open(options(path)).expect("opened");
        settle(&db, |_| true);
        commit(&db, Vec::new());
        db.close().expect("closed");
        let db = Db::open(options(path)).expect("opened");
        commit(&db, Vec::new());
        db.close().expect("closed");
        let small = len(path, "leaf");
        assert!(small * 8 < leaf && small <= 8 * (64 << 10), "{kind:?}: {small} of {leaf} bytes");
        for file in ["image-a", "image-b"] {
            assert!(len(path, file) <= image, "{} bytes of {file}", len(path, file));
        }
        let report = check(path, CheckOptions::default()).expect("checked");
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        // It is as good as new: read, and filled again.
        let db = Db::open(options(path)).expect("opened");
        assert_eq!(db.root(), root);
        let session = db.session(SessionOptions::new()).expect("a session");
        for id in 0..KEYS {
            let key = key(kind, id);
            if id % 7 == 0 || model.values.contains_key(&key) {
                assert_eq!(session.read(&key).expect("read"), model.values.get(&key).cloned());
            }
        }
        drop(session);
        for from in (0..KEYS).step_by(20_000) {
            let put = |id| Access::write(key(kind, id), Some(Value::from(&id.to_le_bytes()[..])));
            let accesses: Vec<Access> = (from..from + 20_000).map(put).collect();
            model.apply(&accesses);
            commit(&db, accesses);
        }
        assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
        db.close().expect("closed");
    }
}

/// Few keys whose values are three to a page, so that they have several regions.
fn crash_options() -> Options {
    Options::new("sim")
        .create(true)
        .cache_mib(8)
        .threads(1)
        .in_flight(4)
        .flush_at(1)
        .log_limit_bytes(64 << 10)
        .checkpoint_regions(1)
        .geometry(Geometry::least())
}

fn open_sim(disk: &SimDisk, seed: u64) -> (SimDb, SimRuntime) {
    let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
    (SimDb::open_on(disk.clone(), runtime.clone(), crash_options()).expect("opened"), runtime)
}

/// What a run with a shrink in it leaves: the states by commit number, and what it has seen.
struct Shrunk {
    states: Vec<Model>,
    joined: u64,
    lengths: [Vec<u64>; 2],
}

/// A load of 360 keys, deletes of almost all of them, and what becomes small then; then some puts, so that
/// files grow again. The marks are the numbers of commits that were acknowledged, after a bit that says that
/// they were begun.
fn shrinks(disk: &SimDisk, seed: u64) -> Shrunk {
    let (db, runtime) = open_sim(disk, seed);
    let mut rng = Rng::new(seed);
    let mut model = Model::default();
    for id in 0..360 {
        // Some are too long for a page: the overflow file shrinks, too.
        let len = if id % 5 == 0 { 20_000 } else { 1000 };
        model.values.insert(key(Keys::Uniform, id), bytes(&mut rng, len));
    }
    disk.mark(BEGUN);
    let pairs = model.values.clone().into_iter();
    db.bulk_load(pairs, &LoadOptions::new().memory_mib(8)).expect("loaded");
    disk.mark(1);
    let mut shrunk = Shrunk {
        states: vec![Model::default(), model.clone()],
        joined: 0,
        lengths: Default::default(),
    };
    let mut put = |db: &SimDb, model: &mut Model, accesses: Vec<Access>| {
        model.apply(&accesses);
        let number = shrunk.states.len() as u64;
        shrunk.states.push(model.clone());
        disk.mark(BEGUN | number);
        assert_eq!(commit(db, accesses), number);
        disk.mark(number);
        for (file, lengths) in ["leaf", "overflow"].into_iter().zip(&mut shrunk.lengths) {
            let file = disk.open(file, OpenMode::Read).expect("a file");
            lengths.push(disk.len(&file).expect("its length"));
        }
    };
    let keys: Vec<_> = model.values.keys().copied().collect();
    for some in keys[..352].chunks(60) {
        put(&db, &mut model, some.iter().map(|key| Access::write(*key, None)).collect());
        runtime.step_some(rng.index(20));
    }
    // Commits that fill the log, so that there are checkpoints.
    for round in 0..12 {
        runtime.step_some(rng.index(200));
        let key = keys[352 + round % 8];
        put(&db, &mut model, vec![Access::write(key, Some(bytes(&mut rng, 9000)))]);
    }
    for some in keys[..60].chunks(20) {
        let value = |_: &_| Some(bytes(&mut Rng::new(1), 1000));
        put(&db, &mut model, some.iter().map(|key| Access::write(*key, value(key))).collect());
        runtime.step_some(rng.index(20));
    }
    shrunk.joined = db.metrics().regions_joined;
    db.close().expect("closed");
    shrunk
}

const BEGUN: u64 = 1 << 32;

#[test]
fn a_crash_in_a_shrink_leaves_the_state_of_a_commit() {
    let (mut schedules, mut joined, mut shorter) = (0, 0, [0, 0]);
    for seed in seeds(9000, 4) {
        let disk = SimDisk::new(seed, SimOptions::default());
        let shrunk = shrinks(&disk, seed);
        joined += shrunk.joined;
        for (shorter, lengths) in shorter.iter_mut().zip(&shrunk.lengths) {
            *shorter += lengths.windows(2).filter(|pair| pair[0] > pair[1]).count();
        }
        let stride = 23;
        let trace = disk.trace();
        let points: Vec<_> = match only_boundary() {
            Some(boundary) => vec![trace.crash_point(boundary)],
            None => {
                trace.crash_points().skip(Rng::new(seed).index(stride)).step_by(stride).collect()
            }
        };
        for point in points {
            let marks = point.marks();
            let begun = marks.iter().filter(|mark| **mark & BEGUN != 0).max();
            let begun = begun.map_or(0, |mark| (mark & !BEGUN).max(1));
            let least = marks.iter().filter(|mark| **mark & BEGUN == 0).max().copied().unwrap_or(0);
            if marks.is_empty() {
                continue;
            }
            for outcome in point.outcomes(seed, 3) {
                let survivor = outcome.disk_with(unrecorded());
                let (db, _runtime) = open_sim(&survivor, seed);
                let number = db.commit_number();
                assert!(
                    (least..=begun).contains(&number),
                    "{outcome}: {number} of {least}..={begun}"
                );
                let mut model = shrunk.states[usize::try_from(number).expect("few")].clone();
                assert_eq!(
                    db.root(),
                    model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3),
                    "{outcome}"
                );
                let session = db.session(SessionOptions::new()).expect("a session");
                for id in 0..360 {
                    let key = key(Keys::Uniform, id);
                    let found = session.read(&key).expect("read");
                    assert_eq!(found, model.values.get(&key).cloned(), "{outcome}");
                }
                drop(session);
                // Further work, on files that may have been cut.
                let put = |id: u64| {
                    let value = Some(bytes(&mut Rng::new(id), 1000));
                    Access::write(key(Keys::Uniform, id), value)
                };
                let accesses: Vec<Access> = (0..30).map(put).collect();
                model.apply(&accesses);
                commit(&db, accesses);
                db.drain(0).expect("drained");
                assert_eq!(
                    db.root(),
                    model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3),
                    "{outcome}"
                );
                db.close().expect("closed");
                let report = check_on(&survivor, CheckOptions::default()).expect("checked");
                assert!(report.findings.is_empty(), "{outcome}: {:#?}", report.findings);
                schedules += 1;
            }
        }
    }
    println!("{schedules} schedules, {joined} regions joined, files cut {shorter:?} times");
    assert!(joined > 0 && shorter.iter().all(|times| *times > 0));
}
