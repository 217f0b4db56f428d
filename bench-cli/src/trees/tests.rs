//! What each state of a build does as the trait says.

use std::collections::BTreeMap;

use pleach_core::{Blake3, Hasher as _, Key};

use super::{Change, Ground, Tree, open};
use crate::draws::Draws;
use crate::stores::{Engine, StoreOptions};

type Map = BTreeMap<Key, Vec<u8>>;

fn options(folder: &std::path::Path) -> StoreOptions {
    StoreOptions::of_test(&folder.join("state"))
}

fn key(id: u64) -> Key {
    Blake3::hash(&id.to_be_bytes())
}

/// Some changes of few keys, so that they meet again; each key once.
fn block(random: &mut Draws) -> Vec<Change> {
    let changes: BTreeMap<u64, Option<Vec<u8>>> = (0..=random.below(40))
        .map(|_| {
            // Lengths on both sides of what a trie keeps inside of a leaf.
            let length = usize::try_from(random.below(80)).expect("small");
            let byte = u8::try_from(random.below(3)).expect("small");
            (random.below(200), (random.below(4) > 0).then(|| vec![byte; length]))
        })
        .collect();
    changes.into_iter().rev().map(|(id, value)| (key(id), value)).collect()
}

fn apply(map: &mut Map, changes: &[Change]) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(*key, value.clone()),
            None => map.remove(key),
        };
    }
}

fn is(tree: &mut dyn Tree, map: &Map, what: &str) {
    let keys: Vec<Key> = (0..200).map(key).collect();
    let found = tree.read(&keys).expect("read");
    let expected: Vec<_> = keys.iter().map(|key| map.get(key).cloned()).collect();
    assert_eq!(found, expected, "{what}");
}

/// The root of the same pairs, by a load of an empty state.
fn root_of(ground: Ground, map: &Map) -> Option<[u8; 32]> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut tree = open(ground, &options(folder.path())).expect("opened");
    tree.load(&mut map.iter().map(|(key, value)| (*key, value.clone()))).expect("loaded");
    let root = tree.root();
    tree.close().expect("closed");
    root
}

#[test]
fn blocks_in_memory_and_committed_ones_are_those_of_a_map() {
    for ground in Ground::all() {
        let name = ground.name();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut tree = open(ground, &options(folder.path())).expect("opened");
        let mut random = Draws::new(9, b"pleach-bench tests    v1", 1);
        let mut committed = Map::new();
        let first: Vec<_> = (0..50).map(|id| (key(id), vec![7; 20])).collect();
        committed.extend(first.iter().cloned());
        tree.load(&mut first.into_iter()).expect("loaded");
        for round in 0..12_u64 {
            let root = tree.root();
            let mut newest = committed.clone();
            let most = if ground.is_merkle() { 1 + random.below(4) } else { 1 };
            let mut states = Vec::new();
            for _ in 0..most {
                let changes = block(&mut random);
                tree.begin().expect("begun");
                is(&mut *tree, &newest, name);
                apply(&mut newest, &changes);
                let made = tree.finish(changes).expect("finished");
                assert_eq!(made.root, tree.root(), "{name}");
                assert_eq!(made.root.is_some(), ground.is_merkle(), "{name}");
                states.push(newest.clone());
            }
            if round % 4 == 3 {
                tree.discard().expect("discarded");
                assert_eq!(tree.root(), root, "{name}: discarded");
                is(&mut *tree, &committed, name);
                continue;
            }
            let promised = tree.root();
            for state in states {
                tree.commit().expect("committed");
                committed = state;
                assert_eq!(tree.root(), promised, "{name}: a commit changes no root");
                if ground.is_merkle() {
                    is(&mut *tree, &newest, name);
                }
            }
            is(&mut *tree, &committed, name);
        }
        let root = tree.root();
        assert_eq!(root, root_of(ground, &committed), "{name}: the order of blocks");
        if ground.has_our_roots() {
            assert_eq!(root, root_of(Ground::Pleach, &committed), "{name}");
        }
        tree.close().expect("closed");
        if ground != Ground::Flat(Engine::BTreeMap) {
            let mut again = open(ground, &options(folder.path())).expect("opened");
            assert_eq!(again.root(), root, "{name}: opened again");
            is(&mut *again, &committed, name);
            again.close().expect("closed");
        }
    }
}

#[test]
fn a_witness_proves_the_block_that_made_it() {
    for ground in Ground::MERKLE.iter().copied().filter(|ground| ground.makes_witnesses()) {
        let name = ground.name();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut tree = open(ground, &StoreOptions { witness: true, ..options(folder.path()) })
            .expect("opened");
        tree.load(&mut (0..100).map(|id| (key(id), vec![3; 40]))).expect("loaded");
        let mut random = Draws::new(3, b"pleach-bench tests    v1", 2);
        for _ in 0..8 {
            let before = tree.root().expect("a root");
            let changes = block(&mut random);
            let mut keys: Vec<Key> = changes.iter().map(|change| change.0).collect();
            keys.extend([key(1000), key(1001)]);
            tree.begin_witnessed().expect("begun");
            let values = tree.read(&keys).expect("read");
            let made = tree.finish(changes.clone()).expect("finished");
            let witness = made.witness.expect("asked for");
            let proven = witness.verify(&before).expect("it proves");
            assert_eq!(Some(proven.new_root), made.root, "{name}");
            let hash = |value: Option<&Vec<u8>>| value.map(|value| Blake3::hash(value).into());
            let reads = keys.iter().zip(&values).map(|(key, value)| (*key, hash(value.as_ref())));
            assert_eq!(sorted(proven.reads), sorted(reads.collect()), "{name}");
            let writes = changes.iter().map(|(key, value)| (*key, hash(value.as_ref())));
            assert_eq!(sorted(proven.writes), sorted(writes.collect()), "{name}");
            assert!(witness.bytes() > 0);
            let mut other = before;
            other[5] ^= 1;
            assert!(witness.verify(&other).is_err(), "{name}: another root");
            tree.commit().expect("committed");
        }
        tree.close().expect("closed");
    }
}

fn sorted<T: Ord>(mut of: Vec<T>) -> Vec<T> {
    of.sort_unstable();
    of
}

#[test]
fn names_are_parsed_and_settings_that_do_not_exist_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for ground in Ground::all() {
        let name = ground.name().to_owned();
        assert_eq!(Ground::chosen(std::slice::from_ref(&name)).expect("its name"), [ground]);
        assert!(Ground::chosen(&[name.clone(), name.clone()]).is_err(), "{name} twice");
        let mut options = options(&folder.path().join(&name));
        options.peer_args = vec![(format!("{name}.nonsense"), "1".to_owned())];
        assert_eq!(open(ground, &options).err().map(|error| error.code()), Some(2), "{name}");
    }
    assert!(Ground::chosen(&["none".to_owned()]).is_err());
}
