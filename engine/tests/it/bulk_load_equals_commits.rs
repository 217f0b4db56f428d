//! A bulk load gives the root, the values and the pages that commits would, however many pairs there are and however little
//! memory it has, and survives reopening. Loads among other operations are of `plans_follow_their_models`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Keys, Model, Rng, bytes, key};
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
