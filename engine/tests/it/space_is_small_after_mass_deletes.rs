//! A database that had a million keys and has a hundred left kept the index, the image and the files of a
//! million: regions were split and never joined, pages merged once and never again, and files only grew. Crashes beside that
//! are of `plans_follow_their_models`.

use std::path::Path;

use pleach::load::LoadOptions;
use pleach::{Access, Db, Options, SessionOptions, Value};
use pleach_core::Hasher;
use pleach_ops::{CheckOptions, check};

use crate::common::{Keys, Model, Rng, bytes, commit, key};

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

/// Waits until nothing is buffered and nothing is left to be made smaller; at most a minute.
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
