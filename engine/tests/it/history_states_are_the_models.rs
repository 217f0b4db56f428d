//! Every state that a history keeps, whatever its length, beside a model that keeps them all: values, iteration both ways, roots
//! (by `nomt-core`) and proofs of three namespaces, and which commits changed a key, with overlays, rollbacks and opens in
//! between.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use nomt_core::hasher::Blake3Hasher;
use pleach::{Access, Db, Hasher, Node, Options, Session, SessionOptions, Value};
use pleach_core::Key;

use crate::common::{Keys, Model, Rng, cases, key, value};

const MERKLE: u8 = 5;
const PLAIN: u8 = 9;
const NAMESPACES: [u8; 3] = [0, MERKLE, PLAIN];
const IDS: u64 = 90;

/// The values of all namespaces.
type State = [Model; 3];

/// Namespaces, and keys of them.
type Written = BTreeSet<(u8, Key)>;

fn written(accesses: &[Access]) -> Written {
    accesses.iter().map(|access| (access.namespace, access.key)).collect()
}

struct World {
    db: Db,
    rng: Rng,
    keys: Keys,
    history: u64,
    /// The newest states, the oldest first, with the number of the first.
    states: VecDeque<State>,
    first: u64,
    /// What each commit has written, those of `states` and some before.
    written: BTreeMap<u64, Written>,
}

fn open(folder: &Path, keys: Keys, history: u64) -> Db {
    let options = Options::new(folder).create(true).cache_mib(16).threads(2).in_flight(16).small();
    let options =
        options.tune(|tuning| tuning.flush_at = 1).log_limit_bytes(256 << 10).history(history);
    // With one byte of memory what is on the device is read from there.
    let in_memory = matches!(keys, Keys::Sequential);
    Db::open(options.undo_memory_bytes(if in_memory { 1 << 30 } else { 1 })).expect("opened")
}

impl World {
    fn tip(&self) -> u64 {
        self.first + self.states.len() as u64 - 1
    }

    /// A commit has come.
    fn push(&mut self, state: State, written: Written) {
        self.states.push_back(state);
        assert_eq!(self.db.commit_number(), self.tip());
        self.written.insert(self.tip(), written);
        self.forget();
    }

    /// States beyond the history.
    fn forget(&mut self) {
        while self.states.len() as u64 > self.history + 1 {
            self.states.pop_front();
            self.first += 1;
            self.written.remove(&self.first);
        }
    }

    /// Some changes, and the state after them.
    fn batch(&mut self, before: &State) -> (Vec<Access>, State) {
        let (mut accesses, mut state) = (Vec::new(), before.clone());
        for (at, namespace) in NAMESPACES.into_iter().enumerate() {
            let ids: std::collections::BTreeSet<u64> =
                (0..self.rng.below(7)).map(|_| self.rng.below(IDS)).collect();
            let own: Vec<Access> = ids
                .into_iter()
                .map(|id| {
                    let new =
                        if self.rng.below(4) == 0 { None } else { Some(value(&mut self.rng)) };
                    Access::write(key(self.keys, id), new)
                })
                .collect();
            state[at].apply(&own);
            accesses.extend(own.into_iter().map(|access| access.in_namespace(namespace)));
        }
        (accesses, state)
    }

    fn step(&mut self) {
        let newest = self.states.back().expect("the newest").clone();
        match self.rng.below(20) {
            // A chain of overlays becomes one commit.
            0 => {
                let (first, between) = self.batch(&newest);
                let (second, after) = self.batch(&between);
                let both = written(&first).into_iter().chain(written(&second)).collect();
                let session = self.db.session(SessionOptions::new()).expect("a session");
                let below = session.finish(first).expect("finished").into_overlay();
                let over = SessionOptions::new().over(&below);
                let session = self.db.session(over).expect("a session");
                let above = session.finish(second).expect("finished").into_overlay();
                above.commit().expect("committed");
                self.push(after, both);
            }
            1 if self.states.len() > 1 => {
                let at = self.rng.index(self.states.len() - 1);
                let to = self.first + at as u64;
                if self.db.rollback_to(to).expect("in the history") > self.tip() {
                    let state = self.states[at].clone();
                    let undone = self.written.range(to + 1..).flat_map(|(_, keys)| keys);
                    let undone = undone.copied().collect();
                    self.push(state, undone);
                }
            }
            _ => {
                let (accesses, after) = self.batch(&newest);
                let written = written(&accesses);
                let session = self.db.session(SessionOptions::new()).expect("a session");
                session.finish(accesses).expect("finished").commit().expect("committed");
                self.push(after, written);
            }
        }
    }

    fn check(&mut self) {
        assert_eq!(self.db.history(), self.first..=self.tip());
        for (number, state) in (self.first..).zip(&self.states) {
            let session = self.db.at(number).expect("in the history");
            for (at, namespace) in NAMESPACES.into_iter().enumerate() {
                let id = self.rng.below(IDS);
                check_state(&session, namespace, &state[at], key(self.keys, id));
            }
        }
        for namespace in NAMESPACES {
            for id in [0, 1, IDS - 1, IDS] {
                self.check_changes(namespace, key(self.keys, id));
            }
        }
    }

    /// Which commits changed a key: of the whole history and of a part, from both ends.
    fn check_changes(&mut self, namespace: u8, key: Key) {
        let (first, tip) = (self.first + 1, self.tip());
        let one = first + self.rng.below((tip + 1 - first).max(1));
        let changes = |from: u64, to: u64| -> Vec<u64> {
            let own = self.written.iter().filter(|(_, keys)| keys.contains(&(namespace, key)));
            own.map(|one| *one.0).filter(|commit| (from..=to).contains(commit)).collect()
        };
        let all = self.db.changes_of(namespace, &key, ..);
        let found: Vec<u64> = all.collect::<pleach::Result<_>>().expect("in the history");
        assert_eq!(found, changes(first, tip), "namespace {namespace}");
        // Of the oldest commit only the state is known, so that the range of the history was an error.
        let all = self.db.changes_of(namespace, &key, self.db.history());
        assert_eq!(all.collect::<pleach::Result<Vec<_>>>().expect("in the history"), found);
        let some = self.db.changes_of(namespace, &key, first..=one).rev();
        let mut found: Vec<u64> = some.collect::<pleach::Result<_>>().expect("in the history");
        found.reverse();
        assert_eq!(found, changes(first, one), "namespace {namespace} through {one}");
        // From both ends in turns.
        let (mut left, mut front, mut back) =
            (self.db.changes_of(namespace, &key, one..), vec![], vec![]);
        while let Some(commit) = left.next() {
            front.push(commit.expect("in the history"));
            back.extend(left.next_back().transpose().expect("in the history"));
        }
        front.extend(back.into_iter().rev());
        assert_eq!(front, changes(one, tip), "namespace {namespace} from {one}");
    }
}

/// The root of a trie, as `nomt-core` makes it.
fn root(model: &Model) -> Node {
    let leaves = model.values.iter().map(|(key, value)| (*key, Hasher::BLAKE3.hash(value)));
    nomt_core::update::build_trie::<Blake3Hasher>(0, leaves, |_| {}).into()
}

/// One namespace of a state beside the model; with the proof of one key.
fn check_state(session: &Session, namespace: u8, model: &Model, proven: Key) {
    let number = session.commit_number();
    let trie = session.namespace(namespace).expect("it exists");
    let keys: Vec<Key> = [Keys::Uniform, Keys::Sequential, Keys::SharedPrefix]
        .into_iter()
        .flat_map(|kind| (0..IDS).map(move |id| key(kind, id)))
        .collect();
    let found = trie.read_many(&keys).expect("read");
    let expected: Vec<Option<Value>> =
        keys.iter().map(|key| model.values.get(key).cloned()).collect();
    assert_eq!(found, expected, "namespace {namespace} as of {number}");
    assert_eq!(trie.read(&proven).expect("read"), model.values.get(&proven).cloned());
    let all: BTreeMap<Key, Value> = trie.iter(..).collect::<pleach::Result<_>>().expect("iterated");
    assert_eq!(all, model.values, "namespace {namespace} as of {number}");
    let back: Vec<Key> = trie.iter(..).rev().map(|pair| pair.expect("iterated").0).collect();
    assert!(back.iter().rev().eq(model.values.keys()), "namespace {namespace} as of {number}");
    if namespace != PLAIN {
        let own = root(model);
        assert_eq!(trie.root().expect("a Merkle trie"), own, "as of {number}");
        let proof = trie.prove(&proven).expect("proven");
        let read = pleach::proof::path::verify(Hasher::BLAKE3, &proof, &own);
        assert!(read.is_ok(), "namespace {namespace} as of {number}: {read:?}");
    }
}

fn run(keys: Keys, history: u64, commits: u64, seed: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), keys, history);
    db.add_namespace(MERKLE).expect("added");
    db.add_plain_namespace(PLAIN).expect("added");
    let first = db.commit_number();
    let states = VecDeque::from([State::default()]);
    let (rng, written) = (Rng::new(seed), BTreeMap::new());
    let mut world = World { db, rng, keys, history, states, first, written };
    // The history begins with the commit that all namespaces exist in.
    for _ in 0..history {
        world.step();
    }
    let each = (commits / 4).max(1);
    for number in 0..commits {
        world.step();
        if number % each == each - 1 {
            world.check();
        }
        if number == commits / 2 {
            // Runs on the device, and the log behind them, have brought the history back.
            world.db.clone().close().expect("closed");
            world.db = open(folder.path(), keys, history);
        }
    }
}

#[test]
fn each_state_of_a_history_of_any_length() {
    let all = cases(1) > 1;
    for seed in 0..cases(1) {
        for (at, keys) in
            [Keys::Uniform, Keys::Sequential, Keys::SharedPrefix].into_iter().enumerate()
        {
            let windows = [(2, 40), (5, 40), (17, 60), (64, 90), (150, 120)];
            // Each with one kind of keys.
            for (number, (history, commits)) in windows.into_iter().enumerate() {
                if all || number % 3 == at {
                    run(keys, history, commits, seed * 100 + history);
                }
            }
        }
        run(Keys::Uniform, 300, 100, seed);
    }
    // Minutes.
    if all {
        run(Keys::Uniform, 1000, 300, 7);
    }
}

/// Opens with other lengths, 0 among them: what a longer history finds is what the shorter one before had.
#[test]
fn a_window_that_is_shortened_and_lengthened_has_what_was_never_given_up() {
    for keys in [Keys::Uniform, Keys::Sequential] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let db = open(folder.path(), keys, 100);
        db.add_namespace(MERKLE).expect("added");
        db.add_plain_namespace(PLAIN).expect("added");
        let (first, states) = (db.commit_number(), VecDeque::from([State::default()]));
        let (rng, written) = (Rng::new(17), BTreeMap::new());
        let mut world = World { db, rng, keys, history: 100, states, first, written };
        // The history from before the namespaces is discarded first.
        (0..100).for_each(|_| world.step());
        for open_number in 0..30 {
            world.db.clone().close().expect("closed");
            world.history = [100, 3, 40, 0, 100, 1, 12][open_number % 7];
            world.db = open(folder.path(), keys, world.history);
            world.forget();
            world.check();
            // The record of a commit says where the history begins from then on.
            (0..=world.rng.below(12)).for_each(|_| world.step());
            world.check();
        }
    }
}
