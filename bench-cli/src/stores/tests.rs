//! What each store of a build does as the trait says.

use std::collections::BTreeMap;

use super::{Engine, Store, StoreOptions, open};
use crate::draws::Draws;

fn on_all(test: impl Fn(Engine, &dyn Fn() -> Box<dyn Store>)) {
    for &engine in Engine::ALL {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = StoreOptions::of_test(&folder.path().join("store"));
        std::fs::create_dir(&options.folder).expect("a folder");
        test(engine, &|| open(engine, &options).expect("opened"));
    }
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys that are prefixes of each other and end in zeros, too.
fn key(random: &mut Draws) -> Vec<u8> {
    let length = 1 + random.below(4);
    (0..length).map(|_| u8::try_from(random.below(3)).expect("small") * 127).collect()
}

fn all(store: &dyn Store, from: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let view = store.view().expect("a view").expect("it has views");
    let mut each = |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        true
    };
    view.scan(from, &mut each).expect("scanned");
    found
}

#[test]
fn batches_reads_and_scans_are_those_of_a_map() {
    on_all(|engine, open| {
        let mut random = Draws::new(7, b"pleach-bench tests    v1", 0);
        let store = open();
        let mut map = Map::new();
        for number in 0..60_u64 {
            let batch: BTreeMap<Vec<u8>, Option<Vec<u8>>> = (0..random.below(20))
                .map(|at| {
                    let long = usize::try_from(random.below(40)).expect("small");
                    let value =
                        (random.below(3) > 0).then(|| vec![u8::try_from(at).expect("small"); long]);
                    (key(&mut random), value)
                })
                .collect();
            // Backwards: batches come in any order.
            let changes: Vec<_> =
                batch.iter().rev().map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
            store.write(&changes, number % 10 == 0).expect("written");
            for (key, value) in batch {
                match value {
                    Some(value) => map.insert(key, value),
                    None => map.remove(&key),
                };
            }
            let (asked, mut value) = (key(&mut random), vec![1, 2, 3]);
            let found = store.get(&asked, &mut value).expect("read");
            assert_eq!(found.then_some(&value), map.get(&asked), "{engine:?}, batch {number}");
            assert!(found || value.is_empty(), "{engine:?}: a value that is absent");
            let expected: Vec<_> =
                map.range(asked.clone()..).map(|(k, v)| (k.clone(), v.clone())).collect();
            assert_eq!(
                all(&*store, &asked),
                expected,
                "{engine:?}, batch {number}, from {asked:?}"
            );
        }
        let expected: Vec<_> = map.clone().into_iter().collect();
        assert_eq!(all(&*store, &[]), expected, "{engine:?}");
        store.sync().expect("synced");
        store.close().expect("closed");
    });
}

#[test]
fn a_view_stays_what_it_was_and_ends_when_told() {
    on_all(|engine, open| {
        let store = open();
        let pairs = (0..100_u8).map(|id| (vec![id + 1; 3], vec![id]));
        store.load(&mut pairs.into_iter()).expect("loaded");
        let Some(view) = store.view().expect("a view") else { return };
        store
            .write(&[(&[1; 3], Some(&[9])), (&[2; 3], None), (&[2; 4], Some(&[7]))], false)
            .expect("written");
        let mut value = Vec::new();
        assert!(view.get(&[1; 3], &mut value).expect("read"), "{engine:?}");
        assert_eq!(value, [0], "{engine:?}");
        assert!(!view.get(&[2; 4], &mut value).expect("read"), "{engine:?}");
        let mut found = Vec::new();
        let mut each = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            found.len() < 3
        };
        view.scan(&[2], &mut each).expect("scanned");
        let expected: Vec<_> = (1..4_u8).map(|id| (vec![id + 1; 3], vec![id])).collect();
        assert_eq!(found, expected, "{engine:?}");
        drop(view);
        assert!(store.get(&[2; 4], &mut value).expect("read") && value == [7], "{engine:?}");
        store.close().expect("closed");
    });
}

#[test]
fn what_was_closed_is_there_again() {
    on_all(|engine, open| {
        if !engine.has_files() {
            return;
        }
        let store = open();
        store.load(&mut (1..50_u8).map(|id| (vec![id], vec![id; 30]))).expect("loaded");
        store.write(&[(&[200], Some(b"new")), (&[7], None)], true).expect("written");
        let root = store.root().expect("a root");
        store.close().expect("closed");
        let again = open();
        assert_eq!(again.root().expect("a root"), root, "{engine:?}");
        let mut value = Vec::new();
        assert!(again.get(&[200], &mut value).expect("read") && value == b"new", "{engine:?}");
        assert!(!again.get(&[7], &mut value).expect("read"), "{engine:?}");
        assert_eq!(all(&*again, &[]).len(), 49, "{engine:?}");
        again.close().expect("closed");
    });
}

#[test]
fn a_load_is_for_an_empty_store_and_settings_have_names() {
    on_all(|engine, open| {
        let store = open();
        store.write(&[(b"a", Some(b"b"))], false).expect("written");
        assert!(store.load(&mut std::iter::once((vec![1], vec![2]))).is_err(), "{engine:?}");
        assert!(store.settings().iter().all(|(name, value)| !name.is_empty() && !value.is_empty()));
        store.close().expect("closed");
    });
    let folder = tempfile::tempdir().expect("a temporary folder");
    for &engine in Engine::ALL {
        assert_eq!(Engine::parse(engine.name()).expect("its name"), engine);
        let peer_args = vec![(format!("{}.nonsense", engine.name()), "1".to_owned())];
        let options = StoreOptions { peer_args, ..StoreOptions::of_test(folder.path()) };
        assert_eq!(open(engine, &options).err().map(|error| error.code()), Some(2), "{engine:?}");
    }
    assert_eq!(Engine::parse("none").err().map(|error| error.code()), Some(2));
}

/// All files of a folder, copied while the store is open.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).expect("copied");
        }
    }
}

/// The files as a process that is killed leaves them. The copies come through the system's page cache: what has to
/// survive the system itself is in the test below.
#[test]
fn what_was_acknowledged_survives_the_process() {
    for &engine in Engine::ALL {
        if !engine.has_files() {
            continue;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = |name: &str| StoreOptions::of_test(&folder.path().join(name));
        std::fs::create_dir(folder.path().join("open")).expect("a folder");
        let store = open(engine, &options("open")).expect("opened");
        store.write(&[(b"first", Some(b"1")), (b"second", Some(b"2"))], true).expect("written");
        copy(&options("open").folder, &options("batch").folder);
        store.write(&[(b"first", None), (b"third", Some(b"3"))], false).expect("written");
        store.write(&[(b"fourth", Some(b"4"))], false).expect("written");
        store.sync().expect("synced");
        copy(&options("open").folder, &options("sync").folder);
        store.close().expect("closed");
        let pair = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
        let batch = vec![pair(b"first", b"1"), pair(b"second", b"2")];
        let sync = vec![pair(b"fourth", b"4"), pair(b"second", b"2"), pair(b"third", b"3")];
        for (name, expected) in [("batch", batch), ("sync", sync)] {
            let copied = open(engine, &options(name)).expect("opened");
            assert_eq!(all(&*copied, &[]), expected, "{engine:?}, {name}");
            copied.close().expect("closed");
        }
    }
}

/// What is said of commits that nobody syncs.
#[test]
fn an_unsynced_commit_survives_the_process_or_not_as_its_engine_says() {
    for &engine in Engine::ALL.iter().filter(|engine| engine.has_files()) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = |name: &str| {
            let of_test = StoreOptions::of_test(&folder.path().join(name));
            StoreOptions { durable: false, ..of_test }
        };
        std::fs::create_dir(folder.path().join("open")).expect("a folder");
        let store = open(engine, &options("open")).expect("opened");
        store.write(&[(b"synced", Some(b"1"))], false).expect("written");
        store.sync().expect("synced");
        store.write(&[(b"unsynced", Some(b"2"))], false).expect("written");
        copy(&options("open").folder, &options("killed").folder);
        store.close().expect("closed");
        let copied = open(engine, &options("killed")).expect("opened");
        let mut value = Vec::new();
        assert!(copied.get(b"synced", &mut value).expect("read"), "{engine:?}");
        let survived = copied.get(b"unsynced", &mut value).expect("read");
        assert_eq!(survived, engine.survives_a_kill(), "{engine:?}");
        copied.close().expect("closed");
    }
}

/// What the test below runs under strace: `ENGINE BATCHES durable|relaxed`.
const COUNTED: &str = "PLEACH_BENCH_COUNTED";

#[test]
fn batches_whose_syncs_are_counted() {
    let Ok(what) = std::env::var(COUNTED) else { return };
    let words: Vec<&str> = what.split(' ').collect();
    let (engine, durable) = (Engine::parse(words[0]).expect("an engine"), words[2] == "durable");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = StoreOptions { durable, ..StoreOptions::of_test(&folder.path().join("store")) };
    std::fs::create_dir(&options.folder).expect("a folder");
    let store = open(engine, &options).expect("opened");
    for number in 0..words[1].parse::<u32>().expect("a number") {
        let (key, value) = ((number % 1000).to_be_bytes(), number.to_be_bytes().repeat(25));
        store.write(&[(&key, Some(&value))], durable).expect("written");
    }
    store.close().expect("closed");
}

/// Calls of a process that wait until the device has something.
fn syncs(engine: Engine, batches: u64, level: &str) -> Option<u64> {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let traced = "trace=fsync,fdatasync,msync,sync_file_range,syncfs,sync";
    let output = std::process::Command::new("strace")
        .args(["-f", "-e", traced, "-o"])
        .arg(log.path())
        .arg(std::env::current_exe().expect("its path"))
        .args(["--exact", "stores::tests::batches_whose_syncs_are_counted"])
        .env(COUNTED, format!("{} {batches} {level}", engine.name()))
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    let text = std::fs::read_to_string(log.path()).expect("the log");
    let calls = text.lines().filter(|line| line.contains("sync") && line.contains('('));
    // A call that another thread came between has a second line; an asynchronous one waits for nothing.
    Some(calls.filter(|line| !line.contains("resumed>") && !line.contains("MS_ASYNC")).count()
        as u64)
}

/// A store that nobody asks for a sync makes none for a commit. MDBX once did for nearly all, and SQLite for many.
#[test]
fn a_store_syncs_each_commit_or_none() {
    if syncs(Engine::BTreeMap, 1, "relaxed").is_none() {
        eprintln!("SKIPPED: strace is not installed here, or may not trace");
        return;
    }
    for &engine in Engine::ALL.iter().filter(|engine| engine.has_files()) {
        let count = |batches, level| syncs(engine, batches, level).expect("as before");
        let (few, many) = (100, 2100);
        let relaxed = count(many, "relaxed").saturating_sub(count(few, "relaxed"));
        let durable = count(many, "durable") - count(few, "durable");
        eprintln!(
            "{}: {relaxed} syncs of 2,000 relaxed commits, {durable} of durable ones",
            engine.name()
        );
        // What an engine syncs in the background, or when its log is full.
        assert!(relaxed <= if engine.is_ours() { 500 } else { 10 }, "{engine:?}: {relaxed}");
        assert!(durable >= 2000, "{engine:?}: {durable}");
    }
}

/// Bytes of this thread's writes that were still to be written to the device when their file was cut: pages that no
/// sync has cleaned.
fn cancelled() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").expect("counted by this system");
    let line = io.lines().find_map(|line| line.strip_prefix("cancelled_write_bytes: "));
    line.expect("counted").parse().expect("a number")
}

/// Cuts all files of a folder but those that hold nothing of the state, and gives the bytes that were not yet on their
/// way to the device.
fn dirty(folder: &std::path::Path) -> u64 {
    let before = cancelled();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, name) = (entry.path(), entry.file_name().into_string().expect("a name"));
        if path.is_dir() {
            dirty(&path);
        } else if !["LOG", "LOCK", "mdbx.lck"].contains(&&*name) && !name.ends_with("-shm") {
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file");
            file.set_len(0).expect("cut");
        }
    }
    cancelled() - before
}

/// A batch that is to be durable, and a sync, leave no page of the files dirty. That the device was told to flush
/// what it caches is not seen from here.
#[test]
fn what_is_durable_has_left_the_page_cache() {
    let control = tempfile::tempdir().expect("a temporary folder");
    let file = control.path().join("file");
    let written = |sync: bool| {
        std::fs::write(&file, [1; 3 * 4096]).expect("written");
        if sync {
            std::fs::File::open(&file).and_then(|file| file.sync_data()).expect("synced");
        }
        dirty(control.path())
    };
    let (unsynced, synced) = (written(false), written(true));
    assert_eq!(synced, 0);
    // Others may have written some of it meanwhile.
    if unsynced < 3 * 4096 {
        eprintln!("SKIPPED: the file system of temporary folders does not count dirty pages");
        return;
    }
    for &engine in Engine::ALL {
        if !engine.has_files() {
            continue;
        }
        for (durable, by_batch) in [(true, true), (true, false), (false, false)] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let of_test = StoreOptions::of_test(&folder.path().join("store"));
            let options = StoreOptions { durable, ..of_test };
            std::fs::create_dir(&options.folder).expect("a folder");
            let store = open(engine, &options).expect("opened");
            store.write(&[(b"first", Some(b"1"))], by_batch).expect("written");
            store.write(&[(b"second", Some(&[2; 10_000]))], by_batch).expect("written");
            if !by_batch {
                store.sync().expect("synced");
            }
            let left = dirty(&options.folder);
            // What it would do on closing is of no use, and may look at what was cut.
            std::mem::forget(store);
            assert_eq!(left, 0, "{engine:?}, by a batch: {by_batch}, durable: {durable}");
        }
    }
}
