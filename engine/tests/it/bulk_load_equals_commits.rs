//! A bulk load gives the root, the values and the pages that commits would, however many pairs there are and however little
//! memory it has, and survives reopening. Loads among other operations are of `plans_follow_their_models`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Keys, Model, Rng, bytes, cases, key};
use pleach::load::LoadOptions;
use pleach::status::Holder;
use pleach::{Db, Error, Hasher, Options, Progress, SessionOptions, Value};
use pleach_core::{Key, TERMINATOR};
use pleach_ops::BackupOptions;
use pleach_ops::{CheckOptions, check};

fn options(path: &std::path::Path) -> Options {
    Options::new(path)
        .create(true)
        .cache_mib(16)
        .threads(2)
        .in_flight(16)
        .small()
        .log_limit_bytes(256 << 10)
}

fn pairs(rng: &mut Rng, kind: Keys, count: u64) -> Vec<(Key, Value)> {
    let lengths = [0, 1, 8, 8, 8, 8, 8, 8, 100, 1000];
    (0..count)
        .map(|id| {
            let len = match id % 500 {
                77 => 1025,
                177 => 5000,
                277 if id < 1000 => 100_000,
                _ => lengths[usize::try_from(rng.below(lengths.len() as u64)).expect("small")],
            };
            (key(kind, id), bytes(rng, len))
        })
        .collect()
}

fn assert_holds(db: &Db, model: &Model) {
    let session = db.session(SessionOptions::new()).expect("a session");
    let keys: Vec<Key> = model.values.keys().copied().collect();
    let values = session.read_many(&keys).expect("read");
    for (key, value) in keys.iter().zip(values) {
        assert!(value.as_ref() == model.values.get(key), "the value of a loaded key");
    }
}

fn clean(path: &std::path::Path, model: &Model) {
    let report = check(path, CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!(report.keys, model.values.len() as u64);
}

fn run(seed: u64, kind: Keys, count: u64, sorted: bool, memory_mib: u64) -> u64 {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut rng = Rng::new(seed);
    let mut items = pairs(&mut rng, kind, count);
    if sorted {
        items.sort_by_key(|item| item.0);
    }
    let model = Model { values: items.iter().cloned().collect() };
    let root = model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3);
    let db = Db::open(options(folder.path())).expect("created");
    let report = db.bulk_load(items, &LoadOptions::new().memory_mib(memory_mib)).expect("loaded");
    assert_eq!((report.root, report.accounts, db.commit_number()), (root, count, 1));
    assert_eq!(db.root(), root);
    assert_holds(&db, &model);
    // What a kill right after the load leaves.
    drop(db);
    clean(folder.path(), &model);
    let db = Db::open(options(folder.path())).expect("reopened");
    assert_eq!((db.root(), db.commit_number()), (root, 1));
    assert_holds(&db, &model);
    db.close().expect("closed");
    clean(folder.path(), &model);
    report.spilled_bytes
}

#[test]
fn few_and_many_uniform_keys() {
    for (seed, count) in [0, 1, 2, 40, 3000, 20_000].into_iter().enumerate() {
        for sorted in [false, true] {
            run(seed as u64, Keys::Uniform, count, sorted, 64);
        }
    }
}

#[test]
fn pairs_that_do_not_fit_the_memory_wait_in_a_file() {
    for kind in [Keys::Uniform, Keys::Sequential, Keys::SharedPrefix] {
        let spilled = run(9, kind, 25_000, false, 1);
        assert!(spilled > 1 << 20, "{kind:?}: {spilled} bytes were spilled");
    }
}

/// Keys of whose leading bits a half are zeros, then a half of the next bits, and so on: one bucket has most of them at
/// each pass.
fn skewed(id: u64) -> Key {
    let mut key = key(Keys::Uniform, id);
    let zeros = usize::try_from(id % 29).expect("small");
    key[..zeros].fill(0);
    key
}

/// A bucket that was distributed again took 1,024 open blocks, and blocks that were nearly empty stayed in memory: 2^24
/// pairs took 1,260 MB of 64 MiB, and a load of 2^29 all memory.
#[test]
fn blocks_and_buffers_stay_within_the_memory() {
    type Shape = (&'static str, fn(u64) -> Key, u64, u64);
    // The same share of the memory, in a quarter of the time.
    let (count, mib) = if cases(0) > 1 { (1 << 20, 8) } else { (1 << 18, 2) };
    let shapes: [Shape; 5] = [
        ("uniform", |id| key(Keys::Uniform, id), count, mib),
        ("shared prefix", |id| key(Keys::SharedPrefix, id), 1 << 18, 1),
        ("sequential", |id| key(Keys::Sequential, id), 1 << 18, 2),
        ("skewed", skewed, 1 << 18, 3),
        ("skewed, much memory", skewed, 1 << 16, 64),
    ];
    for (shape, key, count, mib) in shapes {
        let load = |mib| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let db = Db::open(options(folder.path())).expect("created");
            let items = (0..count).map(|id| (key(id), Value::from(id.to_le_bytes())));
            db.bulk_load(items, &LoadOptions::new().memory_mib(mib)).expect("loaded")
        };
        let (report, roomy) = (load(mib), load(256));
        assert_eq!(report.root, roomy.root, "{shape}");
        assert_eq!((roomy.spilled_bytes, report.spilled_bytes > 0), (0, mib < 64), "{shape}");
        let most = (mib << 20) * 11 / 10;
        assert!(report.buffer_bytes <= most, "{shape}: {} of {most}", report.buffer_bytes);
        assert!(report.buffer_bytes > (mib.min(16) << 20) / 4, "{shape}: all are counted");
    }
}

#[test]
fn incremental_commits_give_the_same_root() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (loaded, committed) = (folder.path().join("a"), folder.path().join("b"));
    let mut rng = Rng::new(3);
    let items = pairs(&mut rng, Keys::Uniform, 4000);
    let db = Db::open(options(&loaded)).expect("created");
    db.bulk_load(items.iter().cloned(), &LoadOptions::new()).expect("loaded");
    let twin = Db::open(options(&committed)).expect("created");
    for chunk in items.chunks(500) {
        let accesses: Vec<_> = chunk
            .iter()
            .map(|(key, value)| pleach::Access::write(*key, Some(value.clone())))
            .collect();
        let session = twin.session(SessionOptions::new().witness(false)).expect("a session");
        session.finish(accesses).expect("finished").commit().expect("committed");
    }
    assert_eq!(db.root(), twin.root());
}

#[test]
fn a_repeated_key_is_refused_and_leaves_the_database_empty() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut rng = Rng::new(4);
    let mut items = pairs(&mut rng, Keys::Uniform, 3000);
    let twice = items[1234].0;
    items.push((twice, Value::from(b"again")));
    let db = Db::open(options(folder.path())).expect("created");
    let refused = db.bulk_load(items.iter().cloned(), &LoadOptions::new());
    assert!(matches!(refused, Err(Error::RepeatedKey(key)) if key == twice), "{refused:?}");
    assert_eq!((db.root(), db.commit_number()), (TERMINATOR, 0));
    items.pop();
    // The same many times, so that one bucket has nothing to be split by.
    let many = (0..40_000).map(|_| (twice, Value::from(&[0; 22])));
    let refused = db.bulk_load(many, &LoadOptions::new().memory_mib(1));
    assert!(matches!(refused, Err(Error::RepeatedKey(key)) if key == twice), "{refused:?}");
    let report = db.bulk_load(items, &LoadOptions::new()).expect("loaded after all");
    assert_eq!(db.root(), report.root);
    let again = db.bulk_load(std::iter::empty(), &LoadOptions::new());
    assert!(matches!(again, Err(Error::NotEmpty(1))), "{again:?}");
    db.close().expect("closed");
    assert!(!folder.path().join("load-spill").exists());
}

#[test]
fn an_open_session_or_a_commit_forbids_a_load() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path())).expect("created");
    let session = db.session(SessionOptions::new()).expect("a session");
    let refused = db.bulk_load(std::iter::empty(), &LoadOptions::new());
    assert!(matches!(refused, Err(Error::InUse(_))), "{refused:?}");
    let accesses = vec![pleach::Access::write([1; 32], Some(Value::from(b"one")))];
    session.finish(accesses).expect("finished").commit().expect("committed");
    let refused = db.bulk_load(std::iter::empty(), &LoadOptions::new());
    assert!(matches!(refused, Err(Error::NotEmpty(1))), "{refused:?}");
}

/// They were told that their parent was stale, with the same number for both, and to make their block again: whoever did that went
/// round until the load had ended.
#[test]
fn every_call_that_writes_beside_a_load_is_told_of_the_load() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path()).history(8)).expect("created");
    for namespace in 1..3 {
        db.add_namespace(namespace).expect("added");
    }
    let by_load = |what: &str, error: Error| {
        assert!(matches!(error, Error::InUse(Holder::Load)), "{what}: {error}");
        assert!(error.to_string().contains("try again when it has ended"), "{error}");
    };
    let write = || vec![pleach::Access::write([1; 32], Some(Value::from(b"one")))];
    let finished = || {
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(write()).expect("finished")
    };
    let items = pairs(&mut Rng::new(5), Keys::Uniform, 100).into_iter().inspect(|(key, _)| {
        if key[0] % 8 > 0 {
            return;
        }
        by_load("a block", finished().commit().expect_err("a load runs").into_error());
        let overlay = finished().into_overlay();
        by_load("an overlay", overlay.commit().expect_err("a load runs"));
        by_load("an add", db.add_namespace(7).expect_err("a load runs"));
        by_load("a drop", db.drop_namespace(2).expect_err("a load runs"));
        by_load("a rollback", db.rollback(1).expect_err("a load runs"));
        let other = db.bulk_load(std::iter::empty(), &LoadOptions::new().namespace(2));
        by_load("a load", other.expect_err("a load runs"));
    });
    let report = db.bulk_load(items, &LoadOptions::new()).expect("loaded");
    assert_eq!(db.root(), report.root);
    finished().commit().expect("the load has ended");
}

/// Reads all of a namespace's pairs and gives how many pages came from the device for it.
fn misses(db: &Db, namespace: u8, items: &[(Key, Value)]) -> u64 {
    let before = db.metrics().cache_misses;
    let session = db.session(SessionOptions::new()).expect("a session");
    let of = session.namespace(namespace).expect("it is there");
    for (key, value) in items {
        let found = of.read(key).expect("read");
        assert!(found.as_ref() == Some(value), "the value of a loaded key");
    }
    db.metrics().cache_misses - before
}

fn short_pairs(rng: &mut Rng, count: u64) -> Vec<(Key, Value)> {
    (0..count).map(|id| (key(Keys::Uniform, id), bytes(rng, 40))).collect()
}

#[test]
fn what_fits_is_in_the_cache_after_a_load_and_stays_there_beside_a_larger_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path())).expect("created");
    db.add_plain_namespace(1).expect("added");
    let mut rng = Rng::new(6);
    let (few, many) = (short_pairs(&mut rng, 20_000), short_pairs(&mut rng, 150_000));
    let load = |namespace, items: &[(Key, Value)]| {
        let options = LoadOptions::new().namespace(namespace);
        db.bulk_load(items.iter().cloned(), &options).expect("loaded").pages
    };
    let fits = load(1, &few);
    assert!(fits > 400 && misses(&db, 1, &few) == 0, "{fits} pages");
    let pages = load(0, &many);
    let metrics = db.metrics();
    assert!(metrics.leaf_cache_bytes <= metrics.leaf_cache_budget);
    let room = metrics.leaf_cache_budget / 4500;
    assert!(pages > 2 * room, "{pages} pages, room for {room}");
    assert_eq!(misses(&db, 1, &few), 0, "they have not left");
    let read = misses(&db, 0, &many[..100]);
    assert!(read < 90, "{read} of 100 pages are not there");
}

#[test]
fn a_load_that_fails_leaves_no_page_in_the_cache() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path())).expect("created");
    let items = short_pairs(&mut Rng::new(7), 40_000);
    let empty = db.metrics().leaf_cache_bytes;
    let other = LoadOptions::new().root(pleach_core::Node::new([9; 32]));
    let refused = db.bulk_load(items.iter().cloned(), &other);
    assert!(matches!(refused, Err(Error::OtherRoot { .. })), "{refused:?}");
    // The memory of some pages waits for the next ones.
    let kept = db.metrics().leaf_cache_bytes - empty;
    let pages = db.bulk_load(items.iter().cloned(), &LoadOptions::new()).expect("loaded").pages;
    assert!(3 * kept < 2 * pages * 4096, "{kept} bytes for none of {pages} pages");
    assert_eq!(misses(&db, 0, &items), 0);
}

#[test]
fn a_load_beside_a_backup_is_told_of_the_backup() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let target = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path())).expect("created");
    db.add_namespace(1).expect("added");
    let session = db.session(SessionOptions::new()).expect("a session");
    let accesses = vec![pleach::Access::write([1; 32], Some(Value::from(b"one")))];
    session.finish(accesses).expect("finished").commit().expect("committed");
    db.drain(0).expect("flushed");
    let (beside, told) = (db.clone(), Arc::new(AtomicU64::new(0)));
    let hears = Arc::clone(&told);
    let progress: Progress = Arc::new(move |_, _| {
        let refused = beside.bulk_load(std::iter::empty(), &LoadOptions::new().namespace(1));
        let error = refused.expect_err("a backup runs");
        assert!(matches!(error, Error::InUse(Holder::Backup)), "{error}");
        hears.fetch_add(1, Ordering::Relaxed);
    });
    let options = BackupOptions::new().progress(Some(progress));
    pleach_ops::backup(&db, target.path(), &options).expect("backed up");
    assert!(told.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_value_over_the_limit_is_refused_and_progress_reaches_the_count() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path())).expect("created");
    let large = vec![([3; 32], Value::from(vec![0; pleach::MAX_VALUE + 1]))];
    let refused = db.bulk_load(large, &LoadOptions::new());
    assert!(matches!(refused, Err(Error::ValueTooLarge { .. })), "{refused:?}");
    let told = Arc::new(AtomicU64::new(0));
    let hears = Arc::clone(&told);
    let progress: Progress = Arc::new(move |done, _| {
        hears.fetch_max(done, Ordering::Relaxed);
    });
    let mut rng = Rng::new(5);
    let items = pairs(&mut rng, Keys::Uniform, 999);
    db.bulk_load(items, &LoadOptions::new().progress(Some(progress))).expect("loaded");
    assert_eq!(told.load(Ordering::Relaxed), 999);
}

/// Pairs are taken some at a time: after the last of them the iterator was once asked again.
#[test]
fn an_iterator_is_not_asked_behind_its_end() {
    for count in [0, 1, 63, 64, 65, 128, 1000] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let db = Db::open(options(folder.path())).expect("created");
        let (mut next, mut ended) = (0_u64, false);
        let items = std::iter::from_fn(|| {
            assert!(!ended, "asked again");
            ended = next == count;
            next += 1;
            (!ended).then(|| (key(Keys::Uniform, next), Value::from(next.to_le_bytes())))
        });
        let report = db.bulk_load(items, &LoadOptions::new()).expect("loaded");
        assert_eq!(report.accounts, count);
    }
}
