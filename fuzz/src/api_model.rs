//! The embedding API against a model: namespaces added and dropped, sessions, blocks and overlays over several of them,
//! rollbacks, loads, closes and opens with other options, in any order, on a simulated disk without faults. After each
//! operation roots, number, blob and values are the model's, a map for each namespace and commit; at the end so are the
//! files, in which the checker finds nothing.
//!
//! Input: a byte for the kind of keys, two of options, one of the executor's seed, then operations.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::model::{Draw, NEVER, State, add, session};
use crate::sim::{Setup, unrecorded};
use pleach::load::LoadOptions;
use pleach::{Access, Block, Db, Error, Overlay, Session, SessionOptions};
use pleach_core::Key;
use pleach_io::sim::{SimDisk, SimRuntime};

/// Operations of one input.
const OPERATIONS: usize = 48;
/// Handles of each kind that are held.
const HELD: usize = 4;

/// One input.
pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut world = World::new(&mut draw);
    for _ in 0..OPERATIONS {
        if draw.is_empty() {
            break;
        }
        world.operate(&mut draw);
        world.compare(&mut draw);
    }
    world.end(&mut draw);
}

/// The state that a session, block or overlay is based on.
#[derive(Clone)]
struct Base {
    over: Option<Rc<Layer>>,
    /// The commit, for a chain of overlays the one below it.
    commit: u64,
    blob: Vec<u8>,
}

/// The model of an overlay.
struct Layer {
    base: RefCell<Base>,
    /// The state that it was made on, and its own.
    before: Rc<State>,
    state: Rc<State>,
    blob: Vec<u8>,
    /// The commit that has it, and whether the commit's state is its own.
    taken: Cell<Option<(u64, bool)>>,
}

/// The overlays that would be committed together.
struct Chain {
    /// The overlays that no commit has, newest first.
    layers: Vec<Rc<Layer>>,
    /// The commit that they stand on.
    base: u64,
}

impl Layer {
    /// The overlays from this one down that no commit has.
    fn chain(self: &Rc<Self>) -> Chain {
        let mut chain = Chain { layers: Vec::new(), base: 0 };
        let mut at = Rc::clone(self);
        loop {
            let base = at.base.borrow().clone();
            chain.base = base.commit;
            if let Some((number, own)) = at.taken.get() {
                if own {
                    chain.base = number;
                }
                return chain;
            }
            chain.layers.push(at);
            match base.over {
                Some(below) => at = below,
                None => return chain,
            }
        }
    }

    fn take(&self, number: u64, own: bool) {
        self.taken.set(Some((number, own)));
    }
}

struct HeldSession {
    session: Session,
    base: Base,
    state: Rc<State>,
    witness: bool,
}

struct HeldBlock {
    block: Block,
    base: Base,
    before: Rc<State>,
    state: Rc<State>,
    blob: Vec<u8>,
}

struct HeldOverlay {
    overlay: Overlay,
    layer: Rc<Layer>,
}

struct World {
    disk: SimDisk,
    setup: Setup,
    /// Absent only while it is opened again.
    db: Option<Db>,
    runtime: SimRuntime,
    tip: Rc<State>,
    number: u64,
    blob: Vec<u8>,
    /// State and blob of each commit, and the oldest that can be read.
    past: Vec<(Rc<State>, Vec<u8>)>,
    from: u64,
    sessions: Vec<HeldSession>,
    blocks: Vec<HeldBlock>,
    overlays: Vec<HeldOverlay>,
    /// Namespaces that were dropped at some time, and those with a write.
    dropped: BTreeSet<u8>,
    written: BTreeSet<u8>,
}

impl World {
    fn new(draw: &mut Draw<'_>) -> Self {
        let setup = Setup::draw(&mut draw.input);
        let seed = draw.input.u8().into();
        let disk = SimDisk::new(seed, unrecorded());
        let (db, runtime) = setup.open(&disk, seed).expect("created");
        Self {
            disk,
            setup,
            db: Some(db),
            runtime,
            tip: Rc::default(),
            number: 0,
            blob: Vec::new(),
            past: vec![Default::default()],
            from: 0,
            sessions: Vec::new(),
            blocks: Vec::new(),
            overlays: Vec::new(),
            dropped: BTreeSet::new(),
            written: BTreeSet::new(),
        }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open between operations")
    }

    fn operate(&mut self, draw: &mut Draw<'_>) {
        match draw.input.u8() % 40 {
            0..=4 => self.commit_batch(draw),
            5 => self.roll_back(draw),
            6 | 7 => {
                let session = self.session(draw);
                keep(&mut self.sessions, session);
            }
            8 => {
                if let Some(session) = take(&mut self.sessions, draw) {
                    self.finish(session, draw);
                }
            }
            9..=12 => {
                let session = self.session(draw);
                self.finish(session, draw);
            }
            13 | 14 => self.commit_overlay(draw),
            15 => {
                if let Some(block) = take(&mut self.blocks, draw) {
                    self.commit_block(block);
                }
            }
            16 => match draw.below(3) {
                0 => drop(take(&mut self.sessions, draw)),
                1 => drop(take(&mut self.blocks, draw)),
                _ => drop(take(&mut self.overlays, draw)),
            },
            17 | 18 => self.read_many(draw),
            19 => {
                let keys: Vec<Key> = (0..draw.below(8)).map(|_| draw.key()).collect();
                session(self.db(), false).prefetch(&keys);
            }
            20 => {
                self.db().resume_background();
                let level = u64::from(draw.input.u8() / 4);
                self.db().drain(level).expect("the disk has room");
                assert!(self.db().metrics().pending_entries <= level);
            }
            21 | 22 => {
                let steps = draw.input.u8().into();
                self.runtime.step_some(steps);
            }
            23 => self.db().pause_background(),
            24 => self.db().resume_background(),
            25 => self.refused(draw),
            26 | 27 => self.load(draw),
            28 => {
                self.close_under_handles(draw);
                self.reopen(draw);
            }
            29 => self.close(draw),
            32..=36 => self.add_namespace(draw),
            37 | 38 => self.drop_namespace(draw),
            39 => self.roll_back(draw),
            _ => {
                self.close(draw);
                self.setup = Setup::draw(&mut draw.input);
            }
        }
        if self.db.is_none() {
            self.reopen(draw);
        }
        self.remember();
    }

    /// An operation makes one commit at most.
    fn remember(&mut self) {
        if self.past.len() as u64 == self.number {
            self.past.push((Rc::clone(&self.tip), self.blob.clone()));
        }
        assert_eq!(self.past.len() as u64, self.number + 1);
        self.from = self.from.max(self.number.saturating_sub(self.setup.history));
    }

    fn add_namespace(&mut self, draw: &mut Draw<'_>) {
        let namespace = draw.namespace();
        let exists = self.tip.has(namespace);
        match add(self.db(), namespace) {
            Ok(number) => {
                assert!(!exists, "{namespace} was there");
                self.tip = Rc::new(self.tip.with(namespace, []));
                self.next(number);
            }
            Err(Error::NamespaceExists(found)) => assert!(found == namespace && exists),
            Err(Error::NamespaceInUse { namespace: found, .. }) => {
                assert!(found == namespace && !exists && self.dropped.contains(&namespace));
            }
            Err(other) => panic!("an add: {other}"),
        }
    }

    fn drop_namespace(&mut self, draw: &mut Draw<'_>) {
        let namespace = draw.namespace();
        let exists = self.tip.has(namespace);
        match self.db().drop_namespace(namespace) {
            Ok(number) => {
                assert!(exists, "{namespace} was not there");
                self.tip = Rc::new(self.tip.without(namespace));
                self.dropped.insert(namespace);
                self.next(number);
            }
            Err(Error::Namespace(found)) => assert!(found == namespace && !exists),
            Err(other) => panic!("a drop: {other}"),
        }
    }

    fn next(&mut self, number: u64) {
        assert_eq!(number, self.number + 1);
        self.number = number;
    }

    fn roll_back(&mut self, draw: &mut Draw<'_>) {
        let back = u64::from(draw.input.u8()) % (self.number - self.from + 1);
        let number = self.db().rollback(back).expect("in the history");
        if back == 0 {
            return assert_eq!(number, self.number, "nothing to do");
        }
        let (then, blob) = self.past[(self.number - back) as usize].clone();
        let gone = self.tip.namespaces();
        self.dropped.extend(gone.filter(|namespace| !then.has(*namespace)));
        (self.tip, self.blob) = (then, blob);
        self.next(number);
    }

    /// The tip is the model's; a key of the tip, and of a session that has been held for a while, has the model's
    /// value.
    fn compare(&self, draw: &mut Draw<'_>) {
        self.tip.assert_tip_of(self.db(), self.number);
        assert_eq!(self.db().blob(), self.blob);
        let key = draw.key();
        assert_eq!(self.db().history(), self.from..=self.number);
        let commit = self.from + u64::from(draw.input.u8()) % (self.number - self.from + 1);
        let (state, blob) = &self.past[commit as usize];
        let then = self.db().at(commit).expect("in the history");
        assert_eq!(then.commit_number(), commit);
        assert!(then.roots().iter().eq(state.roots()));
        state.assert_reads(&then, &key, "then");
        let found = self.db().commit_at(commit).expect("in the history");
        assert_eq!((found.root, &found.blob), (state.root(), blob));
        assert!(found.roots.iter().eq(state.roots()));
        self.tip.assert_reads(&session(self.db(), false), &key, "now");
        for held in &self.sessions {
            held.state.assert_reads(&held.session, &key, "an old session");
        }
        for held in &self.overlays {
            assert!(held.overlay.roots().iter().eq(held.layer.state.roots()));
            let taken = held.layer.taken.get().map(|(number, _)| number);
            assert_eq!(held.overlay.commit_number(), taken);
            assert_eq!(held.overlay.is_committed(), taken.is_some());
        }
    }

    /// A session on the tip, or on an overlay.
    fn session(&self, draw: &mut Draw<'_>) -> HeldSession {
        let choice = draw.input.u8();
        let witness = choice & 1 == 0;
        let options = SessionOptions::new().witness(witness);
        let over = match self.overlays.len() {
            0 => None,
            count => (choice & 6 != 0).then(|| &self.overlays[usize::from(choice >> 3) % count]),
        };
        let Some(HeldOverlay { overlay, layer }) = over else {
            let session = self.db().session(options).expect("a session");
            let base = Base { over: None, commit: self.number, blob: self.blob.clone() };
            return HeldSession { session, base, state: Rc::clone(&self.tip), witness };
        };
        let session = self.db().session(options.over(overlay)).expect("a session");
        let (commit, blob) = (layer.chain().base, layer.blob.clone());
        let base = Base { over: Some(Rc::clone(layer)), commit, blob };
        HeldSession { session, base, state: Rc::clone(&layer.state), witness }
    }

    /// A batch over a session; the block is kept, or becomes an overlay.
    fn finish(&mut self, held: HeldSession, draw: &mut Draw<'_>) {
        let accesses = draw.batch(&held.state);
        self.written.extend(accesses.iter().map(|access| access.namespace));
        let before = Rc::clone(&held.state);
        let (mut block, after) = held.state.finish(held.session, &accesses, held.witness);
        let choice = draw.input.u8();
        let blob = (choice & 0xf0 == 0xf0).then(|| vec![choice; usize::from(choice & 7)]);
        if let Some(blob) = &blob {
            block.set_blob(blob.clone()).expect("a short blob");
        }
        let (base, state) = (held.base, Rc::new(after));
        let blob = blob.unwrap_or_else(|| base.blob.clone());
        if choice & 3 == 0 {
            keep(&mut self.blocks, HeldBlock { block, base, before, state, blob });
        } else {
            let base = RefCell::new(base);
            let layer = Layer { base, before, state, blob, taken: Cell::new(None) };
            let overlay = block.into_overlay();
            keep(&mut self.overlays, HeldOverlay { overlay, layer: Rc::new(layer) });
        }
    }

    fn commit_batch(&mut self, draw: &mut Draw<'_>) {
        let witness = draw.input.u8().is_multiple_of(2);
        let accesses = draw.batch(&self.tip);
        self.written.extend(accesses.iter().map(|access| access.namespace));
        let (block, after) = self.tip.finish(session(self.db(), witness), &accesses, witness);
        assert_eq!(block.commit().expect("on the tip"), self.number + 1);
        (self.number, self.tip) = (self.number + 1, Rc::new(after));
        let fresh = session(self.db(), false);
        for Access { key, .. } in accesses {
            self.tip.assert_reads(&fresh, &key, "of the batch");
        }
    }

    fn commit_block(&mut self, held: HeldBlock) {
        let none = || Chain { layers: Vec::new(), base: held.base.commit };
        let chain = held.base.over.as_ref().map_or_else(none, Layer::chain);
        let (before, blob) = match chain.layers.last() {
            Some(lowest) => (&lowest.before, lowest.base.borrow().blob.clone()),
            None => (&held.before, held.base.blob.clone()),
        };
        let result = held.block.commit().map_err(pleach::CommitError::into_error);
        if !self.committed((before, &blob), chain.base, result) {
            return;
        }
        chain.layers.iter().for_each(|layer| layer.take(self.number, false));
        self.tip = held.state;
        self.blob = held.blob;
    }

    fn commit_overlay(&mut self, draw: &mut Draw<'_>) {
        if self.overlays.is_empty() {
            return;
        }
        let HeldOverlay { overlay, layer } = &self.overlays[draw.below(self.overlays.len())];
        let (overlay, layer) = (overlay.clone(), Rc::clone(layer));
        if let Some((number, _)) = layer.taken.get() {
            assert_eq!(overlay.commit().expect("committed before"), number);
            return;
        }
        let chain = layer.chain();
        let lowest = chain.layers.last().expect("no commit has it");
        let blob = lowest.base.borrow().blob.clone();
        if !self.committed((&lowest.before, &blob), chain.base, overlay.commit()) {
            return;
        }
        chain.layers.iter().for_each(|layer| layer.take(self.number, false));
        layer.take(self.number, true);
        self.tip = Rc::clone(&layer.state);
        self.blob.clone_from(&layer.blob);
    }

    /// What a commit over a state, which commit `base` had, must have come to; true when it succeeded.
    fn committed(
        &mut self,
        (before, blob): (&State, &[u8]),
        base: u64,
        result: Result<u64, Error>,
    ) -> bool {
        let is_parent = before.is_parent_like(&self.tip) && *blob == self.blob;
        match result {
            Ok(number) => {
                assert!(is_parent, "a commit on a stale parent");
                self.next(number);
                true
            }
            Err(Error::StaleParent { base: told, tip }) => {
                assert!(!is_parent, "the parent has the newest state");
                assert_eq!((told, tip), (base, self.number));
                false
            }
            Err(other) => panic!("a commit: {other}"),
        }
    }

    fn read_many(&self, draw: &mut Draw<'_>) {
        let on_tip = session(self.db(), false);
        let (session, state) = match self.sessions.len() {
            0 => (&on_tip, &self.tip),
            count => {
                let held = &self.sessions[draw.below(count)];
                (&held.session, &held.state)
            }
        };
        if draw.below(4) == 0 {
            return state.assert_read_by(session);
        }
        let keys: Vec<Key> = (0..draw.below(12)).map(|_| draw.key()).collect();
        state.assert_reads_many(session, &keys);
    }

    /// Refused calls change nothing.
    fn refused(&self, draw: &mut Draw<'_>) {
        let key = draw.key();
        let access = Access::write(key, Some(draw.value()));
        let refused = |accesses: Vec<Access>| {
            session(self.db(), true).finish(accesses).expect_err("refused").into_error()
        };
        let twice = refused(vec![Access::read(key), access.clone()]);
        assert!(matches!(twice, Error::RepeatedKey(found) if found == key));
        let elsewhere = refused(vec![access.in_namespace(NEVER)]);
        assert!(matches!(elsewhere, Error::Namespace(NEVER)));
        let first = self.db().drop_namespace(0);
        assert!(first.is_err(), "namespace 0 always exists");
    }

    fn load(&mut self, draw: &mut Draw<'_>) {
        let mut pairs = draw.load();
        let choice = draw.input.u8();
        if choice & 3 == 0 {
            self.drop_handles();
        }
        let twice = if choice & 0x30 == 0x30 { pairs.first().cloned() } else { None };
        pairs.extend(twice.clone());
        let namespace = if choice & 0xc0 == 0 { 0 } else { draw.namespace() };
        let options = LoadOptions::new().memory_mib(1).namespace(namespace);
        let result = self.db().bulk_load(pairs.iter().cloned(), &options);
        let is_used =
            !(self.sessions.is_empty() && self.blocks.is_empty() && self.overlays.is_empty());
        match result {
            Ok(report) => {
                assert!(self.tip.is_bare(namespace), "loaded over pairs");
                assert!(!is_used && twice.is_none(), "an illegal load");
                self.tip = Rc::new(self.tip.with(namespace, pairs));
                self.next(self.number + 1);
                self.from = self.number;
                self.written.insert(namespace);
                let root = report.root.to_bytes();
                let digest = self.tip.digests().contains(&(namespace, root));
                assert!(digest || self.tip.roots().contains(&(namespace, report.root)));
            }
            Err(Error::Namespace(none)) => {
                assert!(none == namespace && !self.tip.has(namespace), "{none} exists");
            }
            // A deleted key may still have a page or a buffered delete, even if it was never put.
            Err(Error::NotEmpty(_)) => assert!(self.written.contains(&namespace), "never written"),
            Err(Error::InUse(_)) => assert!(is_used, "nothing is open"),
            Err(Error::RepeatedKey(key)) => {
                assert_eq!(Some(key), twice.map(|pair| pair.0));
                assert!(self.tip.is_bare(namespace) && !is_used, "another error goes before");
            }
            Err(other) => panic!("a load: {other}"),
        }
    }

    fn drop_handles(&mut self) {
        self.sessions.clear();
        self.blocks.clear();
        self.overlays.clear();
    }

    /// Closes or drops the database, with all that stands on it.
    fn close(&mut self, draw: &mut Draw<'_>) {
        self.drop_handles();
        let db = self.db.take().expect("open between operations");
        if draw.input.u8().is_multiple_of(2) {
            db.close().expect("the disk has room");
        } else {
            drop(db);
        }
    }

    /// What outlives the database reads on, commits nothing and keeps others out.
    fn close_under_handles(&mut self, draw: &mut Draw<'_>) {
        let session = self.session(draw);
        keep(&mut self.sessions, session);
        let closed = self.db.take().expect("open between operations").close();
        let open = closed.expect("the disk has room");
        assert_eq!((open.sessions, open.blocks), (self.sessions.len(), self.blocks.len()));
        assert!(open.overlays >= self.overlays.len(), "parents count, too");
        let Err(locked) = self.setup.open(&self.disk, 0) else { panic!("its lock is held") };
        assert!(matches!(locked, Error::Io(pleach_io::IoError::Locked { .. })), "{locked}");
        for held in &self.sessions {
            held.state.assert_read_by(&held.session);
        }
        let is_refused = |result: Result<u64, Error>| {
            matches!(result, Err(Error::Closed | Error::StaleParent { .. }))
        };
        for held in self.overlays.drain(..) {
            if held.layer.taken.get().is_none() {
                assert!(is_refused(held.overlay.commit()), "a commit into a closed database");
            }
        }
        for held in self.blocks.drain(..) {
            assert!(
                is_refused(held.block.commit().map_err(pleach::CommitError::into_error)),
                "a commit into a closed database"
            );
        }
        for held in self.sessions.drain(..) {
            let accesses = draw.batch(&held.state);
            let (block, _) = held.state.finish(held.session, &accesses, held.witness);
            assert!(
                is_refused(block.commit().map_err(pleach::CommitError::into_error)),
                "a commit into a closed database"
            );
        }
    }

    fn reopen(&mut self, draw: &mut Draw<'_>) {
        let seed = draw.input.u8().into();
        let (db, runtime) = self.setup.open(&self.disk, seed).expect("opens again");
        let from = *db.history().start();
        // What an open with a shorter history has not overtaken by a commit, one with a longer one finds again.
        let most = self.from.max(self.number.saturating_sub(self.setup.history));
        assert!(
            from <= most && self.number - from <= self.setup.history,
            "the history from {from}"
        );
        self.from = from;
        (self.db, self.runtime) = (Some(db), runtime);
    }

    /// Everything kept is still right; so are the files, and an open of them.
    fn end(mut self, draw: &mut Draw<'_>) {
        for held in &self.sessions {
            held.state.assert_read_by(&held.session);
        }
        self.tip.assert_read_by(&session(self.db(), false));
        self.close(draw);
        self.tip.assert_on_disk(&self.disk, self.number);
        self.reopen(draw);
        self.tip.assert_tip_of(self.db(), self.number);
        assert_eq!(self.db().blob(), self.blob);
        self.tip.assert_read_by(&session(self.db(), false));
    }
}

fn keep<T>(held: &mut Vec<T>, new: T) {
    if held.len() == HELD {
        held.remove(0);
    }
    held.push(new);
}

fn take<T>(held: &mut Vec<T>, draw: &mut Draw<'_>) -> Option<T> {
    let count = held.len();
    (count > 0).then(|| held.remove(draw.below(count)))
}
