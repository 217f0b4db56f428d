//! A database with random commits, and what each of its commits has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::local::LocalFileSystem;
use pleach::load::LoadOptions;
use pleach::{Access, Db, Error, Options, Session, SessionOptions, Value};
use pleach_archive::{Archive, RestoreOptions, RestoreReport, restore};
use pleach_ops::{CheckOptions, check};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use tempfile::TempDir;

pub(crate) type Key = [u8; 32];

/// A namespace: is it plain, and its pairs.
pub(crate) type Pairs = (bool, BTreeMap<Key, Vec<u8>>);

/// What a commit has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) namespaces: BTreeMap<u8, Pairs>,
    pub(crate) blob: Vec<u8>,
}

/// A database, its model, and a folder for all that a test makes.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) db: Db,
    pub(crate) rng: ChaCha8Rng,
    /// By commit.
    pub(crate) states: BTreeMap<u64, State>,
    /// Whether namespaces are loaded, which ends the history.
    pub(crate) loads: bool,
    history: u64,
    folders: u64,
}

pub(crate) fn key(id: u64) -> Key {
    let mut key = [0; 32];
    ChaCha8Rng::seed_from_u64(id).fill_bytes(&mut key);
    key
}

pub(crate) fn put(namespace: u8, id: u64, value: Option<Vec<u8>>) -> Access {
    Access::write(key(id), value.map(Value::from)).in_namespace(namespace)
}

/// Commits accesses.
pub(crate) fn commit(db: &Db, accesses: Vec<Access>, blob: Option<Vec<u8>>) -> u64 {
    let session = db.session(SessionOptions::new().witness(false)).expect("a session");
    let mut block = session.finish(accesses).expect("finished");
    if let Some(blob) = blob {
        block.set_blob(blob).expect("short");
    }
    block.commit().expect("committed")
}

impl World {
    pub(crate) fn new(seed: u64, history: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let db = open(&folder.path().join("state"), history);
        let namespaces = BTreeMap::from([(0, Pairs::default())]);
        let states = BTreeMap::from([(0, State { namespaces, blob: Vec::new() })]);
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { folder, db, rng, states, loads: true, history, folders: 0 }
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.rng.next_u64() % limit
    }

    /// A new name in the folder.
    pub(crate) fn path(&mut self, name: &str) -> PathBuf {
        self.folders += 1;
        self.folder.path().join(format!("{name}-{}", self.folders))
    }

    /// The archive in the folder.
    pub(crate) fn archive(&self) -> Archive {
        let place = self.folder.path().join("archive");
        Archive::create(place.to_str().expect("a name")).expect("an archive")
    }

    pub(crate) fn newest(&self) -> State {
        self.states.last_key_value().expect("commit 0 at least").1.clone()
    }

    fn keep(&mut self, state: State) {
        let number = self.db.commit_number();
        assert!(self.states.insert(number, state).is_none(), "commit {number} is a new one");
    }

    pub(crate) fn reopen(&mut self) {
        self.db.close().expect("closed");
        self.db = open(&self.folder.path().join("state"), self.history);
    }

    /// One commit of any kind. What cannot be done at the moment is left out.
    pub(crate) fn commit_anything(&mut self) {
        let mut state = self.newest();
        match self.below(12) {
            0 => {
                let (number, plain) = (self.one_of(1, 6), self.below(2) == 0);
                let add = if plain { Db::add_plain_namespace } else { Db::add_namespace };
                let added = add(&self.db, number);
                match added {
                    Ok(_) => drop(state.namespaces.insert(number, (plain, BTreeMap::new()))),
                    Err(Error::NamespaceExists(_) | Error::NamespaceInUse { .. }) => return,
                    Err(error) => panic!("{error}"),
                }
            }
            1 => {
                let number = self.one_of(1, 6);
                if state.namespaces.remove(&number).is_none() {
                    return;
                }
                self.db.drop_namespace(number).expect("dropped");
            }
            2 => {
                let history = self.db.history();
                let back = self.below(history.end() - history.start() + 1);
                let wanted = history.end() - back;
                if back == 0 {
                    return;
                }
                self.db.rollback_to(wanted).expect("rolled back");
                state = self.states[&wanted].clone();
            }
            3 if self.loads && self.below(4) == 0 => {
                let number = self.one_of(10, 12);
                if state.namespaces.contains_key(&number) || self.db.add_namespace(number).is_err()
                {
                    return;
                }
                state.namespaces.insert(number, Pairs::default());
                self.keep(state.clone());
                let pairs: BTreeMap<Key, Vec<u8>> =
                    (0..40).map(|id| (key(id), vec![9; 12])).collect();
                let items = pairs.iter().map(|(key, value)| (*key, Value::from(value.as_slice())));
                let load = LoadOptions::new().namespace(number);
                self.db.bulk_load(items, &load).expect("loaded");
                state.namespaces.insert(number, (false, pairs));
            }
            _ => return self.commit_pairs(),
        }
        self.keep(state);
    }

    /// A commit of random pairs.
    pub(crate) fn commit_pairs(&mut self) {
        let mut state = self.newest();
        let mut accesses = BTreeMap::new();
        let numbers: Vec<u8> = state.namespaces.keys().copied().collect();
        for _ in 0..self.below(40) {
            let number = numbers[usize::try_from(self.below(numbers.len() as u64)).expect("few")];
            let (id, fill) = (self.below(60), u8::try_from(self.below(250)).expect("small"));
            let len = match self.below(16) {
                0 => Some(0),
                1 => Some(1_025 + self.below(3_000)),
                2 => Some(66_000 + self.below(3_000)),
                3..7 => None,
                _ => Some(self.below(300)),
            };
            let value = len.map(|len| vec![fill; usize::try_from(len).expect("short")]);
            let pairs = &mut state.namespaces.get_mut(&number).expect("it exists").1;
            match &value {
                Some(value) => drop(pairs.insert(key(id), value.clone())),
                None => drop(pairs.remove(&key(id))),
            }
            accesses.insert((number, id), put(number, id, value));
        }
        let blob =
            (self.below(3) == 0).then(|| vec![7; usize::try_from(self.below(90)).expect("few")]);
        if let Some(blob) = &blob {
            state.blob.clone_from(blob);
        }
        commit(&self.db, accesses.into_values().collect(), blob);
        self.keep(state);
    }

    /// Restores a commit into a new folder, and compares all of it with the model.
    pub(crate) fn restore_and_compare(&mut self, archive: &Archive, commit: u64) -> RestoreReport {
        let folder = self.path("restored");
        let options = options().commit(Some(commit));
        let report = restore(archive, &folder, &options).expect("restored");
        assert_eq!(report.archived_commit, commit);
        self.compare(&folder, commit);
        report
    }

    /// Compares the database of a folder with a commit.
    pub(crate) fn compare(&self, folder: &Path, commit: u64) {
        let db = open(folder, 0);
        assert!(state_of(&db) == self.states[&commit], "commit {commit}");
        if let Ok(there) = self.db.commit_at(commit) {
            assert!(db.roots().iter().eq(there.roots.iter()), "roots of commit {commit}");
        }
        db.close().expect("closed");
        let report = check(folder, CheckOptions::default()).expect("checked");
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        std::fs::remove_dir_all(folder).expect("removed");
    }
}

impl World {
    fn one_of(&mut self, first: u64, last: u64) -> u8 {
        u8::try_from(first + self.below(last - first + 1)).expect("a byte")
    }
}

/// Restores with small databases.
pub(crate) fn options() -> RestoreOptions {
    RestoreOptions::new().memory_mib(1).database(|options| options.small().cache_mib(8))
}

pub(crate) fn open(folder: &Path, history: u64) -> Db {
    let options = Options::new(folder).create(true).small().cache_mib(8).history(history);
    Db::open(options).expect("opened")
}

/// All of the newest commit.
pub(crate) fn state_of(db: &Db) -> State {
    state_of_session(&db.snapshot().expect("a snapshot"))
}

/// All of a session's state.
pub(crate) fn state_of_session(session: &Session) -> State {
    let roots = session.roots();
    let merkle = roots.iter().map(|(number, _)| (number, false));
    let numbers: BTreeMap<u8, bool> =
        merkle.chain(roots.digests().map(|(number, _)| (number, true))).collect();
    let pairs = |number: u8| {
        let namespace = session.namespace(number).expect("it exists");
        let pairs = namespace.iter(..).map(|pair| pair.expect("read"));
        pairs.map(|(key, value)| (key, value.to_vec())).collect()
    };
    let namespaces = numbers.into_iter().map(|(number, plain)| (number, (plain, pairs(number))));
    State { namespaces: namespaces.collect(), blob: session.blob().to_vec() }
}

/// The objects of a folder, by name.
pub(crate) fn objects(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let named = entries.map(|entry| {
        let name = entry.file_name().into_string().expect("a name");
        (name, std::fs::read(entry.path()).expect("a file"))
    });
    named.collect()
}

/// A store of a folder, to be wrapped.
pub(crate) fn store(folder: &Path) -> Arc<LocalFileSystem> {
    std::fs::create_dir_all(folder).expect("made");
    Arc::new(LocalFileSystem::new_with_prefix(folder).expect("a store"))
}
