//! Random trees of overlays beside a map for each: made over the tip and over each other, committed by
//! themselves, merged, by blocks above them, refused where their parent's state is not the newest, dropped
//! in any order; while other threads read, pages are flushed and checkpoints are made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use pleach::{
    Access, Blake3, Error, Geometry, Node, Options, Pleach, Session, SessionOptions, Value,
};
use pleach_core::Key;

use crate::common::{Keys, Model, Rng, batch, cases, key};

/// What an overlay, a block or a session is to be.
#[derive(Clone)]
struct State {
    values: Arc<BTreeMap<Key, Value>>,
    root: Node,
}

impl State {
    fn after(&self, accesses: &[Access]) -> Self {
        let mut model = Model { values: (*self.values).clone() };
        model.apply(accesses);
        let root = model.naive::<Blake3>().root::<Blake3>();
        Self { values: Arc::new(model.values), root }
    }
}

/// An overlay with what is known of it.
struct Held {
    overlay: pleach::Overlay<Blake3>,
    id: usize,
}

struct Known {
    parent: Option<usize>,
    before: State,
    after: State,
    /// The commit that has it, and whether that is its own.
    taken: Option<(u64, bool)>,
}

struct World {
    db: Pleach,
    rng: Rng,
    kind: Keys,
    ids: u64,
    tip: State,
    number: u64,
    /// All overlays that ever were.
    known: Vec<Known>,
    held: Vec<Held>,
    sessions: Vec<(Session<Blake3>, State)>,
}

fn options(folder: &std::path::Path) -> Options {
    Options::new(folder)
        .create(true)
        .cache_mib(16)
        .threads(2)
        .in_flight(16)
        .flush_at(1)
        .geometry(Geometry::small())
        .log_limit_bytes(256 << 10)
}

impl World {
    fn new(folder: &std::path::Path, seed: u64) -> Self {
        let db = Pleach::open(options(folder)).expect("opened");
        let tip = State { values: Arc::default(), root: db.root() };
        Self {
            db,
            rng: Rng::new(seed),
            kind: [Keys::Uniform, Keys::SharedPrefix][(seed % 2) as usize],
            ids: [4, 60, 2000][(seed % 3) as usize],
            tip,
            number: 0,
            known: Vec::new(),
            held: Vec::new(),
            sessions: Vec::new(),
        }
    }

    /// The overlays from `at` down that no commit has taken, newest first, and the root below them.
    fn untaken(&self, mut at: Option<usize>, mut below: Node) -> (Vec<usize>, Node) {
        let mut untaken = Vec::new();
        while let Some(id) = at.filter(|id| self.known[*id].taken.is_none()) {
            untaken.push(id);
            (at, below) = (self.known[id].parent, self.known[id].before.root);
        }
        (untaken, below)
    }

    /// A session on the tip or on an overlay, and which overlay that is.
    fn session(&mut self) -> (Session<Blake3>, Option<usize>, State) {
        let options = SessionOptions::new().witness(false);
        // Mostly on the newest ones, so that chains grow long.
        let count = self.held.len();
        let choice = self.rng.index(count + 1).max(self.rng.index(count + 1));
        let Some(Held { overlay, id }) = choice.checked_sub(1).map(|at| &self.held[at]) else {
            return (self.db.session(options).expect("a session"), None, self.tip.clone());
        };
        let session = self.db.session(options.over(overlay)).expect("a session");
        (session, Some(*id), self.known[*id].after.clone())
    }

    fn finish(&mut self) {
        let (session, over, before) = self.session();
        let size = 1 + self.rng.below(80);
        let mut accesses = batch(&mut self.rng, self.kind, self.ids, size);
        if self.rng.below(12) == 0 {
            accesses.clear();
        }
        if self.rng.below(4) == 0 {
            // Long values, so that the log comes to its limit.
            let byte = [self.rng.next().to_be_bytes()[0]; 4000];
            for access in &mut accesses {
                *access = Access::read_write(access.key, Some(Value::from(&byte[..])));
            }
        }
        if self.rng.below(20) == 0 {
            // Everything goes.
            let all = before.values.keys();
            accesses = all.map(|key| Access::write(*key, None)).collect();
        }
        let after = before.after(&accesses);
        assert_eq!(session.root(), before.root);
        let block = session.finish(accesses).expect("finished");
        assert_eq!((block.prev_root(), block.root()), (before.root, after.root));
        for change in block.changes() {
            assert_eq!(change.prior().expect("read").as_ref(), before.values.get(change.key()));
            assert_eq!(change.value().expect("read").as_ref(), after.values.get(change.key()));
        }
        assert!(block.changes().map(|one| *one.key()).is_sorted_by(|a, b| a < b));
        if self.rng.below(4) == 0 {
            let (below, root) = self.untaken(over, before.root);
            let committed = block.commit().map_err(Error::from);
            self.committed(committed, root, &after, None, &below);
            return;
        }
        let id = self.known.len();
        let overlay = block.into_overlay();
        // The parent may have been dropped since: the session held it.
        assert_eq!(overlay.parent().map(|parent| parent.root()), over.map(|_| before.root));
        self.known.push(Known { parent: over, before, after, taken: None });
        self.held.push(Held { overlay, id });
    }

    fn commit(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.rng.index(self.held.len());
        let Held { overlay, id } = &self.held[at];
        let (id, committed) = (*id, overlay.commit());
        if let Some((number, _)) = self.known[id].taken {
            assert_eq!(committed.expect("committed before"), number);
            return;
        }
        let (mut chain, root) = self.untaken(Some(id), self.tip.root);
        let own = chain.remove(0);
        let after = self.known[id].after.clone();
        if self.committed(committed, root, &after, Some(own), &chain) {
            assert!(self.held[at].overlay.parent().is_none());
        }
    }

    /// What a commit over a state with this root came to. It takes one overlay as its own, if it is one's,
    /// and others with it.
    fn committed(
        &mut self,
        result: Result<u64, Error>,
        below: Node,
        after: &State,
        own: Option<usize>,
        merged: &[usize],
    ) -> bool {
        let valid = below == self.tip.root;
        match result {
            Ok(number) => {
                assert!(valid, "committed on another state than the newest");
                assert_eq!(number, self.number + 1);
                self.number = number;
                self.tip = after.clone();
                let own = own.into_iter().map(|id| (id, true));
                for (id, own) in own.chain(merged.iter().map(|id| (*id, false))) {
                    self.known[id].taken = Some((number, own));
                }
            }
            Err(Error::StaleParent { .. }) => assert!(!valid, "refused on the newest state"),
            Err(other) => panic!("a commit: {other}"),
        }
        assert_eq!((self.db.commit_number(), self.db.root()), (self.number, self.tip.root));
        valid
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..=6 => self.finish(),
            7..=11 => self.commit(),
            12..=14 if !self.held.is_empty() => {
                let at = self.rng.index(self.held.len());
                self.held.swap_remove(at);
            }
            15 => self.db.drain(0).expect("drained"),
            16 if !self.sessions.is_empty() => {
                let at = self.rng.index(self.sessions.len());
                self.sessions.swap_remove(at);
            }
            _ => {
                let (session, _, state) = self.session();
                self.sessions.push((session, state));
            }
        }
        for Held { overlay, id } in &self.held {
            let taken = self.known[*id].taken;
            assert_eq!(overlay.commit_number(), taken.map(|taken| taken.0));
            assert_eq!(overlay.is_committed(), taken.is_some());
        }
    }
}

/// Reads some keys of each session, one by one and together.
fn read(sessions: &[(Session<Blake3>, State)], kind: Keys, ids: u64, seed: u64) {
    let mut rng = Rng::new(seed);
    for (session, state) in sessions {
        let keys: Vec<Key> = (0..20).map(|_| key(kind, rng.below(ids))).collect();
        let values = session.read_many(&keys).expect("reads");
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(value.as_ref(), state.values.get(key));
            assert_eq!(session.read(key).expect("reads"), value);
        }
    }
}

#[test]
fn random_trees_of_overlays_follow_their_maps() {
    let (mut checkpoints, mut commits, mut bytes) = (0, 0, 0);
    for seed in 0..cases(9) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut world = World::new(folder.path(), seed);
        for round in 0..300 {
            let sessions = std::mem::take(&mut world.sessions);
            let (kind, ids) = (world.kind, world.ids);
            thread::scope(|scope| {
                for reader in 0..2 {
                    let sessions = &sessions;
                    scope
                        .spawn(move || read(sessions, kind, ids, seed << 32 | round << 1 | reader));
                }
                world.step();
            });
            world.sessions.extend(sessions);
            if world.sessions.len() > 8 {
                world.sessions.remove(0);
            }
        }
        let metrics = world.db.metrics();
        checkpoints += metrics.checkpoints;
        (commits, bytes) = (commits + metrics.commits, bytes + metrics.log_bytes);
        let World { db, tip, .. } = world;
        drop((world.held, world.sessions));
        assert_eq!(db.metrics().overlay_bytes, 0, "seed {seed}");
        drop(db);
        let db = Pleach::open(options(folder.path())).expect("opened");
        assert_eq!(db.root(), tip.root);
        let session = db.session(SessionOptions::new()).expect("a session");
        for (key, value) in tip.values.iter() {
            assert_eq!(session.read(key).expect("reads").as_ref(), Some(value), "seed {seed}");
        }
    }
    assert!(checkpoints > 0, "no run had one: {commits} commits, {bytes} bytes of log");
}
