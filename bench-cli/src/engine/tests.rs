//! Each engine of a build behaves as the trait says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::Parser as _;
use pleach_core::Hasher;
use pleach_core::node::value_hash;

use super::kind::Caps;
use super::*;
use crate::cli::Cli;
use crate::draw::Draws;
use crate::flags::Durability;
use crate::machine::Level;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn flags(durability: Durability, more: &[&str]) -> Flags {
    let given =
        ["", "auth", "--threads", "2", "--io", "blocking", "--peer-arg", "nomt.buckets=4000"];
    let parsed = Cli::parse_from(given.iter().chain(more));
    Flags { durability, ..parsed.flags }
}

fn opened(kind: EngineKind, folder: &Path, flags: &Flags) -> Box<dyn Engine> {
    let folder = folder.to_owned();
    let setup = Setup { folder, flags, keys: 1000, cache_mib: 64 };
    open(kind, &setup).expect("opened")
}

/// What a test opens, in a folder of its own.
type Open<'a> = dyn Fn() -> Box<dyn Engine> + 'a;

fn on(kinds: impl Fn(Caps) -> bool, test: impl Fn(EngineKind, &Open<'_>)) {
    for kind in EngineKind::all().filter(|kind| kinds(kind.caps())) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let flags = flags(Durability::Commit, &[]);
        test(kind, &|| opened(kind, folder.path(), &flags));
    }
}

fn draws(stream: u64) -> Draws {
    Draws::new(7, b"pleach-bench tests    v1", stream)
}

fn byte(random: &mut Draws, below: u64) -> u8 {
    u8::try_from(random.below(below)).expect("small")
}

/// A short key; some are prefixes of others and end in zeros.
fn short(random: &mut Draws) -> Vec<u8> {
    (0..=random.below(4)).map(|_| byte(random, 3) * 127).collect()
}

fn put(engine: &mut dyn Engine, sync: bool, pairs: &[(&[u8], Option<&[u8]>)]) {
    let mut work = |tx: &mut dyn Tx| pairs.iter().try_for_each(|(key, value)| tx.put(key, *value));
    engine.transact(sync, &mut work).expect("a transaction");
}

/// The values of keys, by a transaction.
fn got(engine: &mut dyn Engine, keys: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
    let mut all = Vec::new();
    let read = |tx: &mut dyn Tx| {
        for key in keys {
            let mut value = vec![1, 2, 3];
            let found = tx.get(key, &mut value)?;
            assert!(found || value.is_empty(), "a value that is absent");
            all.push(found.then_some(value));
        }
        Ok(())
    };
    engine.transact(false, &mut { read }).expect("a transaction");
    all
}

fn scanned(view: &dyn View, from: &[u8], most: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let mut each = |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        found.len() < most
    };
    view.scan(from, &mut each).expect("scanned");
    found
}

#[test]
fn transactions_views_and_scans_are_those_of_a_map() {
    on(
        |_| true,
        |kind, open| {
            let (mut random, mut engine, mut map) = (draws(0), open(), Map::new());
            for number in 0..60_u64 {
                let mut newest = map.clone();
                let mut work = |tx: &mut dyn Tx| {
                    for _ in 0..random.below(30) {
                        let (key, mut value) = (short(&mut random), vec![1, 2, 3]);
                        let found = tx.get(&key, &mut value)?;
                        assert_eq!(found.then_some(&value), newest.get(&key), "{kind:?}");
                        if random.below(3) > 0 {
                            value = vec![byte(&mut random, 256); random.index(33)];
                            tx.put(&key, Some(&value))?;
                            newest.insert(key, value);
                        } else {
                            tx.put(&key, None)?;
                            newest.remove(&key);
                        }
                    }
                    if number % 7 == 3 { usage("not this one") } else { Ok(()) }
                };
                let done = engine.transact(number % 10 == 0, &mut work);
                assert_eq!(done.is_err(), number % 7 == 3, "{kind:?}: {done:?}");
                if done.is_ok() {
                    map = newest;
                }
                let asked = short(&mut random);
                assert_eq!(got(&mut *engine, &[&asked]), [map.get(&asked).cloned()], "{kind:?}");
                if kind.caps().views {
                    let rest: Vec<_> = map.range(asked.clone()..).collect();
                    let mut check = |view: &dyn View| {
                        let found = scanned(view, &asked, usize::MAX);
                        assert!(
                            found.iter().map(|(k, v)| (k, v)).eq(rest.iter().copied()),
                            "{kind:?}"
                        );
                        let mut value = vec![1];
                        let found = view.get(&asked, &mut value)?;
                        assert_eq!(found.then_some(&value), map.get(&asked), "{kind:?}");
                        Ok(())
                    };
                    engine.reader().and_then(|mut reader| reader.view(&mut check)).expect("a view");
                }
            }
            engine.sync().expect("synced");
            engine.close().expect("closed");
        },
    );
}

#[test]
fn a_view_stays_what_it_was_and_works_on_another_thread() {
    on(
        |caps| caps.views,
        |kind, open| {
            let mut engine = open();
            let pair = |id: u8| (PlainKey::from_iter([id + 1; 3]), Value::from(&[id]));
            engine.load(&mut (0..100).map(pair)).expect("loaded");
            let mut reader = engine.reader().expect("a reader");
            let mut check = |view: &dyn View| {
                let changes: [(&[u8], Option<&[u8]>); 3] =
                    [(&[1; 3], Some(&[9])), (&[2; 3], None), (&[2; 4], Some(&[7]))];
                put(&mut *engine, false, &changes);
                let mut value = Vec::new();
                assert!(view.get(&[1; 3], &mut value)? && value == [0], "{kind:?}");
                assert!(!view.get(&[2; 4], &mut value)? && value.is_empty(), "{kind:?}");
                let old: Vec<_> = (1..4_u8).map(|id| (vec![id + 1; 3], vec![id])).collect();
                assert_eq!(scanned(view, &[2], 3), old, "{kind:?}");
                Ok(())
            };
            reader.view(&mut check).expect("a view");
            let mut check = |view: &dyn View| {
                assert_eq!(scanned(view, &[], 2), [(vec![1; 3], vec![9]), (vec![2; 4], vec![7])]);
                Ok(())
            };
            let read = || std::thread::spawn(move || reader.view(&mut check)).join();
            read().expect("no panic").expect("a view");
            engine.close().expect("closed");
        },
    );
}

#[test]
fn what_was_closed_is_there_again() {
    on(
        |caps| caps.files,
        |kind, open| {
            let mut engine = open();
            let pairs = (1..50_u8).map(|id| (PlainKey::from_iter([id]), Value::from(&[id; 30])));
            engine.load(&mut { pairs }).expect("loaded");
            put(&mut *engine, true, &[(&[200], Some(b"new")), (&[7], None)]);
            let root = engine.root();
            assert_eq!(root.is_some(), kind.caps().merkle, "{kind:?}");
            engine.close().expect("closed");
            let mut again = open();
            assert_eq!(again.root(), root, "{kind:?}");
            let expected = [Some(b"new".to_vec()), None, Some(vec![49; 30])];
            assert_eq!(got(&mut *again, &[&[200], &[7], &[49]]), expected, "{kind:?}");
            assert!(
                again.settings().iter().all(|(name, text)| !name.is_empty() && !text.is_empty())
            );
            again.close().expect("closed");
        },
    );
}

#[test]
fn a_setting_that_does_not_exist_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder").path().join("a");
    for kind in EngineKind::all() {
        let flags = flags(Durability::Commit, &["--peer-arg", &format!("{}.no=1", kind.name())]);
        let setup = Setup { folder: folder.clone(), flags: &flags, keys: 1, cache_mib: 8 };
        assert_eq!(open(kind, &setup).err().map(|error| error.code()), Some(2), "{kind:?}");
    }
}

/// All files of a folder, copied while they are open.
fn copy(from: &Path, to: &Path) {
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

/// The files as a killed process leaves them. The copy comes through the system's page cache: whether synced data
/// reaches the device is a matter of the sync calls, which the test below counts.
#[test]
fn a_commit_survives_a_kill_or_not_as_is_said() {
    for kind in EngineKind::all().filter(|kind| kind.caps().files) {
        for durability in [Durability::Commit, Durability::None] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (at, flags) = (folder.path().join("open"), flags(durability, &[]));
            std::fs::create_dir(&at).expect("a folder");
            let sync = durability == Durability::Commit;
            let mut engine = opened(kind, &at, &flags);
            put(&mut *engine, sync, &[(b"first", Some(b"1")), (b"gone", Some(b"2"))]);
            if !sync {
                engine.sync().expect("synced");
            }
            put(&mut *engine, sync, &[(b"second", Some(b"3")), (b"gone", None)]);
            copy(&at, &folder.path().join("killed"));
            engine.close().expect("closed");
            let mut killed = opened(kind, &folder.path().join("killed"), &flags);
            let survives = kind.level(durability) > Level::Nothing;
            let expected =
                if survives { [Some(b"3".to_vec()), None] } else { [None, Some(b"2".to_vec())] };
            let found = got(&mut *killed, &[b"first", b"second", b"gone"]);
            assert_eq!(found[0].as_deref(), Some(&b"1"[..]), "{kind:?}, {durability}");
            assert_eq!(found[1..], expected, "{kind:?}, {durability}");
            killed.close().expect("closed");
        }
    }
}

/// What the tests below run under strace: `ENGINE COMMITS DURABILITY`, and `refused` for transactions that put nothing.
const COUNTED: &str = "PLEACH_BENCH_COUNTED";

#[test]
fn commits_whose_syncs_are_counted() {
    let Ok(what) = std::env::var(COUNTED) else { return };
    let words: Vec<&str> = what.split(' ').collect();
    let kind = EngineKind::parse(words[0]).expect("an engine");
    let flags = flags(words[2].parse().expect("a durability"), &[]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut engine = opened(kind, folder.path(), &flags);
    for number in 0..words[1].parse::<u32>().expect("a number") {
        if words.len() > 3 {
            let read = |tx: &mut dyn Tx| tx.get(b"key", &mut Vec::new()).map(drop);
            engine.transact(true, &mut { read }).expect("refused");
            continue;
        }
        let mut key = [0; 32];
        key[..4].copy_from_slice(&(number % 1000).to_be_bytes());
        engine.begin(false).expect("begun");
        let value = Value::from(&number.to_be_bytes().repeat(8)[..]);
        engine.finish(vec![StateAccess::write(key, value)]).expect("finished");
        engine.commit().expect("committed");
    }
    engine.close().expect("closed");
}

/// Calls of a process that wait for the device.
fn syncs(kind: EngineKind, commits: u64, what: impl std::fmt::Display) -> Option<u64> {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let output = std::process::Command::new("strace")
        .args([
            "-f",
            "--seccomp-bpf",
            "-e",
            "trace=fsync,fdatasync,msync,sync_file_range,syncfs,sync",
        ])
        .arg("-o")
        .arg(log.path())
        .arg(std::env::current_exe().expect("its path"))
        .args(["--exact", "engine::tests::commits_whose_syncs_are_counted"])
        .env(COUNTED, format!("{} {commits} {what}", kind.name()))
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    let text = std::fs::read_to_string(log.path()).expect("the log");
    // A call that another thread came between has a second line; an asynchronous one waits for nothing.
    let waits = |line: &&str| {
        line.contains("sync")
            && line.contains('(')
            && !line.contains("resumed>")
            && !line.contains("MS_ASYNC")
    };
    Some(text.lines().filter(waits).count() as u64)
}

#[test]
fn an_engine_syncs_each_commit_or_none() {
    if syncs(EngineKind::Model, 1, Durability::None).is_none() {
        eprintln!("SKIPPED: strace is not installed here, or may not trace");
        return;
    }
    let (few, many) = (30, 530);
    for kind in EngineKind::all().filter(|kind| kind.caps().files) {
        for durability in [Durability::Commit, Durability::None] {
            let count = |commits| syncs(kind, commits, durability).expect("as before");
            let counted = count(many).saturating_sub(count(few));
            eprintln!("{}, {durability}: {counted} syncs of {} commits", kind.name(), many - few);
            if kind.level(durability) == Level::PowerCut {
                assert!(counted >= many - few, "{kind:?}: {counted}");
            } else {
                // What an engine syncs in the background, or when its log is full.
                let ours = matches!(kind, EngineKind::Pleach | EngineKind::PleachPlain);
                assert!(counted <= if ours { 125 } else { 10 }, "{kind:?}: {counted}");
            }
        }
    }
}

/// redb paid a sync for each transfer that `bank` refused.
#[test]
fn a_transaction_that_puts_nothing_syncs_nothing() {
    if syncs(EngineKind::Model, 1, Durability::None).is_none() {
        eprintln!("SKIPPED: strace is not installed here, or may not trace");
        return;
    }
    for kind in EngineKind::all().filter(|kind| kind.caps().files) {
        for what in ["commit refused", "none refused"] {
            let count = |commits| syncs(kind, commits, what).expect("as before");
            let counted = count(230).saturating_sub(count(30));
            assert!(counted <= 10, "{kind:?}, {what}: {counted} syncs of 200 transactions");
        }
    }
}

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

type State = BTreeMap<Key, Value>;

/// Some writes of few keys, so that they meet again, and reads; each key once.
fn block(kind: EngineKind, random: &mut Draws) -> Vec<StateAccess> {
    // Lengths on both sides of what a trie keeps inside of a leaf, if it has longer values.
    let lengths = if kind == EngineKind::Qmdb { 33 } else { 80 };
    let ids: BTreeSet<u64> = (0..=random.below(40)).map(|_| random.below(220)).collect();
    let access = |id| {
        let value = Value::from(&vec![byte(random, 3); random.index(lengths)][..]);
        let value = (random.below(4) > 0).then_some(value);
        let op = match random.below(3) {
            0 => Op::Read,
            1 => Op::Write(value),
            _ => Op::ReadWrite(value),
        };
        StateAccess { space: 0, key: key(id), op }
    };
    ids.into_iter().rev().map(access).collect()
}

fn apply(state: &mut State, block: &[StateAccess]) {
    for access in block {
        match access.op.written() {
            Some(Some(value)) => state.insert(access.key, value.clone()),
            Some(None) => state.remove(&access.key),
            None => None,
        };
    }
}

/// The reads of the block that was begun agree with a state.
fn reads(engine: &mut dyn Engine, keys: &[Key], state: &State, what: &str) {
    let mut found = Vec::new();
    let mut see = |at, value: Option<&[u8]>| found.push((at, value.map(Value::from)));
    engine.read(0, keys, &mut see).expect("read");
    found.sort_unstable();
    let expected = keys.iter().map(|key| state.get(key).cloned()).enumerate();
    assert_eq!(found, expected.collect::<Vec<_>>(), "{what}");
}

fn load(engine: &mut dyn Engine, state: &State) {
    let pair = |(key, value): (&Key, &Value)| (PlainKey::from(*key), value.clone());
    engine.load(&mut state.iter().map(pair)).expect("loaded");
}

/// The root of the same pairs, by a load of an empty database.
fn root_of(kind: EngineKind, state: &State) -> Option<Root> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut engine = opened(kind, folder.path(), &flags(Durability::Commit, &[]));
    load(&mut *engine, state);
    let root = engine.root();
    engine.close().expect("closed");
    root
}

#[test]
fn blocks_in_memory_and_committed_ones_are_those_of_a_map() {
    on(
        |_| true,
        |kind, open| {
            let (name, caps, mut random) = (kind.name(), kind.caps(), draws(1));
            let keys: Vec<Key> = (0..220).map(key).collect();
            let mut committed: State = (0..50).map(|id| (key(id), Value::from(&[7; 20]))).collect();
            let mut engine = open();
            load(&mut *engine, &committed);
            for round in 0..12_u64 {
                let root = engine.root();
                let (mut newest, mut states) = (committed.clone(), Vec::new());
                for _ in 0..if caps.overlays { 1 + random.below(4) } else { 1 } {
                    let block = block(kind, &mut random);
                    engine.begin(false).expect("begun");
                    if round % 2 == 0 {
                        engine.announce(0, &keys).expect("announced");
                    }
                    let seen = if caps.overlays { &newest } else { &committed };
                    reads(&mut *engine, &keys, seen, name);
                    apply(&mut newest, &block);
                    assert!(engine.finish(block).expect("finished").is_none(), "{name}");
                    states.push(newest.clone());
                }
                if round % 4 == 3 {
                    engine.discard().expect("discarded");
                    assert_eq!(engine.root(), root, "{name}: discarded");
                    continue;
                }
                let promised = engine.root();
                for state in states {
                    engine.commit().expect("committed");
                    committed = state;
                    assert_eq!(engine.root(), promised, "{name}: a commit changes no root");
                }
            }
            let root = engine.root();
            // The root of a log is that of all that was done.
            if kind != EngineKind::Qmdb {
                assert_eq!(root, root_of(kind, &committed), "{name}: the order of blocks");
            }
            if caps.our_root {
                assert_eq!(root, root_of(EngineKind::Pleach, &committed), "{name}");
            }
            engine.close().expect("closed");
            let mut again = open();
            assert_eq!(again.root(), root, "{name}: opened again");
            again.begin(false).expect("begun");
            reads(&mut *again, &keys, &committed, name);
            again.discard().expect("discarded");
            again.close().expect("closed");
        },
    );
}

#[test]
fn a_witness_proves_the_block_that_made_it() {
    on(
        |caps| caps.witness,
        |kind, open| {
            let (name, mut random, mut engine) = (kind.name(), draws(2), open());
            let mut state: State = (0..100).map(|id| (key(id), Value::from(&[3; 32]))).collect();
            load(&mut *engine, &state);
            for _ in 0..8 {
                let before = engine.root().expect("a root");
                let block = block(kind, &mut random);
                let read = block.iter().filter(|access| !matches!(access.op, super::Op::Write(_)));
                let read: Vec<Key> = read.map(|access| access.key).collect();
                engine.begin(true).expect("begun");
                engine.announce(0, &read).expect("announced");
                reads(&mut *engine, &read, &state, name);
                let witness = engine.finish(block.clone()).expect("finished").expect("asked for");
                let proven = witness.verify(&before).expect("it proves");
                assert_eq!(Some(proven.root), engine.root(), "{name}");
                let hash =
                    |value: Option<&Value>| value.map(|value| value_hash(Hasher::BLAKE3, value));
                let read: BTreeMap<_, _> =
                    read.iter().map(|key| (*key, hash(state.get(key)))).collect();
                assert_eq!(proven.reads.into_iter().collect::<BTreeMap<_, _>>(), read, "{name}");
                let written = block
                    .iter()
                    .filter_map(|access| Some((access.key, hash(access.op.written()?))));
                let proven: BTreeMap<_, _> = proven.writes.into_iter().collect();
                assert_eq!(proven, written.collect::<BTreeMap<_, _>>(), "{name}");
                assert!(witness.bytes() > 0);
                let mut other = before;
                other[5] ^= 1;
                assert!(witness.verify(&other).is_err(), "{name}: another root");
                engine.commit().expect("committed");
                apply(&mut state, &block);
            }
            engine.close().expect("closed");
        },
    );
}
