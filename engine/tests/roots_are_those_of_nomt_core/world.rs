//! A database beside its model, and what each step of a plan does to both.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use pleach::{
    Access, AccessKind, Block, Db, Durability, Error, Key, Overlay, Session, SessionOptions, Value,
};

use crate::common::{Rng, bytes};
use crate::model::{Judged, State, is_write, of};
use crate::place::Place;
use crate::plan::{NAMESPACES, Op, Opening, PLAIN, Plan, Setup, Shape, Step, Then};

/// Sessions and overlays that are kept at a time.
const KEPT: usize = 6;

/// Commits of a step, at most.
const COMMITS_A_STEP: u64 = 4;

/// Bytes of batches of which a small log still has whatever the history wants.
const LOGGED: usize = 1 << 20;

/// An overlay that was made at some time.
struct Known {
    parent: Option<usize>,
    before: State,
    after: State,
    /// The commit that has it.
    taken: Option<u64>,
}

struct World<H: Judged, P: Place> {
    hasher: PhantomData<H>,
    setup: Setup,
    place: P,
    opening: Opening,
    /// Absent only while it is opened again.
    db: Option<Db>,
    /// By number of the commit.
    commits: Vec<State>,
    /// The oldest commit of the history.
    from: u64,
    /// Bytes of all batches.
    logged: usize,
    /// The newest commit that is durable, whatever the mode.
    durable: u64,
    known: Vec<Known>,
    overlays: Vec<(Overlay, usize)>,
    sessions: Vec<(Session, State)>,
    /// Namespaces that were dropped at some time.
    dropped: BTreeSet<u8>,
    seen: Seen,
}

/// What plans have come across.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    commits: u64,
    stale: u64,
    restored_namespaces: u64,
    checkpoints: u64,
    pages_tidied: u64,
    regions_joined: u64,
    commits_lost: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.stale += other.stale;
        self.restored_namespaces += other.restored_namespaces;
        self.checkpoints += other.checkpoints;
        self.pages_tidied += other.pages_tidied;
        self.regions_joined += other.regions_joined;
        self.commits_lost += other.commits_lost;
    }

    pub fn is_everything(&self) -> bool {
        let Self { commits, stale, restored_namespaces, .. } = *self;
        let Self { checkpoints, pages_tidied, regions_joined, commits_lost, .. } = *self;
        let of_model = [commits, stale, restored_namespaces, commits_lost];
        of_model
            .into_iter()
            .chain([checkpoints, pages_tidied, regions_joined])
            .all(|count| count > 0)
    }
}

/// Plays a plan. Panics where the database is not what the model is.
pub fn play<H: Judged>(plan: &Plan, place: impl Place, note: &dyn Fn(&Step)) -> Seen {
    let mut world = World::<H, _>::new(plan, place);
    for step in &plan.steps {
        note(step);
        world.step(step);
    }
    world.end(plan.seed)
}

impl<H: Judged, P: Place> World<H, P> {
    fn new(plan: &Plan, mut place: P) -> Self {
        let opening = plan.setup.opening(place.path(), plan.seed);
        let db = place.open(&opening, plan.seed).expect("created");
        Self {
            hasher: PhantomData,
            setup: plan.setup,
            place,
            opening,
            db: Some(db),
            commits: vec![State::default()],
            from: 0,
            logged: 0,
            durable: 0,
            known: Vec::new(),
            overlays: Vec::new(),
            sessions: Vec::new(),
            dropped: BTreeSet::new(),
            seen: Seen::default(),
        }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open between steps")
    }

    fn number(&self) -> u64 {
        self.commits.len() as u64 - 1
    }

    fn at(&self, commit: u64) -> &State {
        &self.commits[usize::try_from(commit).expect("few commits")]
    }

    fn tip(&self) -> &State {
        self.at(self.number())
    }

    /// A step, while other threads read from the sessions that are kept, where there are threads.
    fn step(&mut self, step: &Step) {
        let needs_all = matches!(step.op, Op::LetGo | Op::Close | Op::Abandon | Op::PowerCut);
        if self.setup.simulated || needs_all {
            return self.take(step);
        }
        let (sessions, setup) = (std::mem::take(&mut self.sessions), self.setup);
        // Those that the step may put beyond the history are left out, where memory may not have their undo.
        let from = if self.opening.keeps_all { 0 } else { self.from + COMMITS_A_STEP };
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let (sessions, mut rng) = (&sessions, Rng::new(step.seed ^ reader));
                scope.spawn(move || {
                    for (session, state) in
                        sessions.iter().filter(|one| one.0.commit_number() >= from)
                    {
                        state.assert_says::<H>(session, &setup, &mut rng, false);
                    }
                });
            }
            self.take(step);
        });
        self.sessions.splice(0..0, sessions);
        self.sessions.truncate(KEPT);
        if !self.opening.keeps_all {
            self.let_go();
        }
    }

    fn take(&mut self, step: &Step) {
        let mut rng = Rng::new(step.seed);
        match step.op {
            Op::Batch { shape, size, over, then, witness } => {
                let over = over.filter(|_| !self.overlays.is_empty());
                let over = over.map(|over| self.overlay(over));
                self.batch(&mut rng, shape, size, over, then, witness);
            }
            Op::CommitOverlay(_) | Op::DropOverlay(_) if self.overlays.is_empty() => {}
            Op::CommitOverlay(one) => self.commit_overlay(self.overlay(one)),
            Op::DropOverlay(one) => drop(self.overlays.remove(self.overlay(one))),
            Op::DropOverlays => self.overlays.clear(),
            Op::Drain(most) => self.db().drain(most).expect("drained"),
            Op::Sync => {
                self.db().sync().expect("synced");
                self.durable = self.number();
            }
            Op::RollBack(commits) => self.roll_back(commits),
            Op::Past => self.look_back(&mut rng),
            Op::Look => {
                let (session, _, state) = self.session(&mut rng);
                state.assert_says::<H>(&session, &self.setup, &mut rng, false);
            }
            Op::Hold => self.hold(&mut rng),
            Op::LetGo if self.sessions.is_empty() => {}
            Op::LetGo => {
                let (session, state) = self.sessions.swap_remove(rng.index(self.sessions.len()));
                state.assert_says::<H>(&session, &self.setup, &mut rng, false);
                let again = session.fork().expect("it can be read");
                drop(session);
                state.assert_says::<H>(&again, &self.setup, &mut rng, false);
            }
            Op::Add => self.add(&mut rng),
            Op::DropNamespace => self.drop_namespace(&mut rng),
            Op::Close | Op::Abandon | Op::PowerCut => self.reopen(step.op, step.seed),
        }
        self.place.background(step.background);
        for (overlay, id) in &self.overlays {
            assert_eq!(overlay.commit_number(), self.known[*id].taken, "an overlay's commit");
        }
    }

    /// The place of one of the overlays, of which a smaller number means a newer one.
    fn overlay(&self, one: u64) -> usize {
        let count = self.overlays.len();
        count - 1 - usize::try_from(one).expect("small") % 1000 * count / 1000
    }

    /// A session on the tip or on an overlay.
    fn session(&self, rng: &mut Rng) -> (Session, Option<usize>, State) {
        let over = rng.index(self.overlays.len() + 1).checked_sub(1);
        let (session, state) = self.session_on(over, false);
        (session, over, state)
    }

    fn session_on(&self, over: Option<usize>, witness: bool) -> (Session, State) {
        let options = SessionOptions::new().witness(witness);
        let Some((overlay, id)) = over.map(|at| &self.overlays[at]) else {
            return (self.db().session(options).expect("a session"), self.tip().clone());
        };
        let session = self.db().session(options.over(overlay)).expect("a session");
        (session, self.known[*id].after.clone())
    }

    fn value(&self, rng: &mut Rng) -> Value {
        let len = match rng.below(24) {
            0 => 0,
            1..=4 => 8,
            5 => 22,
            6 => 23,
            7..=9 => rng.index(130),
            10 => 1000,
            11 => 1023 + rng.index(3),
            12 => 3000 + rng.index(2000),
            13 if rng.below(4) == 0 => 70_000,
            _ => self.setup.typical,
        };
        bytes(rng, len.min(self.setup.longest))
    }

    fn accesses(
        &self,
        rng: &mut Rng,
        shape: Shape,
        size: u64,
        state: &State,
        namespace: u8,
    ) -> Vec<Access> {
        let space = &state.0[&namespace];
        let count = usize::try_from(size).expect("small");
        let ids = self.setup.ids;
        let first = rng.below(ids);
        let from = self.setup.key(first);
        match shape {
            Shape::Mixed => {
                let mut seen = BTreeSet::new();
                let ids = (0..size).map(|_| rng.below(ids)).filter(|id| seen.insert(*id));
                let ids: Vec<u64> = ids.collect();
                let one = |id| {
                    let key = self.setup.key(id);
                    match rng.below(8) {
                        0 => Access::read(key),
                        1 | 2 => write(rng, key, None),
                        _ => {
                            let value = self.value(rng);
                            write(rng, key, Some(value))
                        }
                    }
                };
                ids.into_iter().map(one).collect()
            }
            Shape::Fill => {
                let one = |id| {
                    let value = self.value(rng);
                    write(rng, self.setup.key((first + id) % ids), Some(value))
                };
                (0..size.min(ids)).map(one).collect()
            }
            Shape::Wipe => {
                let row = space.row(&from, count);
                row.into_iter().map(|key| write(rng, key, None)).collect()
            }
            Shape::WipeAll => {
                let few = rng.index(3).min(space.values.len());
                let row = space.row(&from, space.values.len() - few);
                row.into_iter().map(|key| write(rng, key, None)).collect()
            }
            Shape::Thin => {
                let (every, at) = (2 + rng.index(10), rng.index(2));
                let keys = space.values.keys().enumerate();
                let keys = keys.filter(|(index, _)| index % every != at).map(|(_, key)| *key);
                keys.map(|key| write(rng, key, None)).collect()
            }
            Shape::Rewrite => {
                let one = |key| {
                    let old = space.get(&key).filter(|_| rng.below(2) == 0).cloned();
                    let value = old.unwrap_or_else(|| self.value(rng));
                    write(rng, key, Some(value))
                };
                space.row(&from, count).into_iter().map(one).collect()
            }
        }
    }

    fn batch(
        &mut self,
        rng: &mut Rng,
        shape: Shape,
        size: u64,
        over: Option<usize>,
        then: Then,
        witness: bool,
    ) {
        let (session, before) = self.session_on(over, witness);
        // Most of it in the first namespace, so that something adds up there.
        let others: Vec<u8> = before.0.keys().copied().skip(1).collect();
        let most =
            if others.is_empty() || rng.below(3) > 0 { 0 } else { others[rng.index(others.len())] };
        let mut accesses = Vec::new();
        for namespace in before.0.keys().copied() {
            let own = if namespace == most {
                self.accesses(rng, shape, size, &before, namespace)
            } else if rng.below(4) == 0 {
                self.accesses(rng, Shape::Mixed, size.min(5), &before, namespace)
            } else {
                continue;
            };
            accesses.extend(own.into_iter().map(|access| access.in_namespace(namespace)));
        }
        for at in (1..accesses.len()).rev() {
            accesses.swap(at, rng.index(at + 1));
        }
        if rng.below(3) == 0 {
            for access in &accesses {
                let namespace = session.namespace(access.namespace).expect("it exists");
                namespace.prefetch(&[access.key]);
            }
        }
        self.logged += accesses.iter().map(bytes_of).sum::<usize>();
        let session = refused(session, rng, &before, &accesses);
        let after = before.after::<H>(&accesses);
        let mut block = session.finish(accesses.clone()).expect("finished");
        check_block::<H>(&mut block, (&before, &after), &accesses, witness, rng);
        let parent = over.map(|at| self.overlays[at].1);
        match then {
            Then::Commit => {
                let untaken = self.untaken(parent);
                let committed = block.commit().map_err(pleach::CommitError::into_error);
                self.committed_if_fits(committed, &untaken, &before, after);
            }
            Then::Overlay | Then::CommitOverlay => {
                let overlay = block.into_overlay();
                after.assert_roots(overlay.roots(), "an overlay");
                assert_eq!(overlay.changes().count(), overlay.change_count());
                let below = overlay.parent().map(|below| below.roots().clone());
                assert_eq!(below.is_some(), parent.is_some(), "an overlay's parent");
                below.inspect(|below| before.assert_roots(below, "an overlay's parent"));
                self.overlays.push((overlay, self.known.len()));
                self.known.push(Known { parent, before, after, taken: None });
                if let Then::CommitOverlay = then {
                    self.commit_overlay(self.overlays.len() - 1);
                }
                if self.overlays.len() > KEPT {
                    self.overlays.remove(rng.index(KEPT));
                }
            }
            Then::Drop => drop(block),
        }
    }

    /// The overlays from `at` down that no commit has taken, newest first.
    fn untaken(&self, mut at: Option<usize>) -> Vec<usize> {
        let mut untaken = Vec::new();
        while let Some(id) = at.filter(|id| self.known[*id].taken.is_none()) {
            untaken.push(id);
            at = self.known[id].parent;
        }
        untaken
    }

    fn commit_overlay(&mut self, at: usize) {
        let (overlay, id) = (self.overlays[at].0.clone(), self.overlays[at].1);
        let Known { before, after, taken, .. } = &self.known[id];
        if let Some(number) = taken {
            assert_eq!(overlay.commit().expect("committed before"), *number);
            return;
        }
        let (before, after) = (before.clone(), after.clone());
        let untaken = self.untaken(Some(id));
        self.committed_if_fits(overlay.commit(), &untaken, &before, after);
    }

    /// What a commit has to come to: the newest commit is the state below the overlays that it takes, or below the
    /// block itself, or the parent is stale.
    fn committed_if_fits(
        &mut self,
        committed: Result<u64, Error>,
        untaken: &[usize],
        before: &State,
        after: State,
    ) {
        let below = untaken.last().map_or(before, |id| &self.known[*id].before);
        if below.roots() != self.tip().roots() {
            assert!(matches!(committed, Err(Error::StaleParent { .. })), "stale: {committed:?}");
            self.seen.stale += 1;
            return;
        }
        let number = committed.expect("its parent is the newest");
        for id in untaken {
            self.known[*id].taken = Some(number);
        }
        self.committed(number, after);
    }

    fn committed(&mut self, number: u64, after: State) {
        assert_eq!(number, self.number() + 1);
        self.commits.push(after);
        self.seen.commits += 1;
        if self.opening.durability == Durability::Commit {
            self.durable = number;
        }
        self.from = self.from.max(number.saturating_sub(self.opening.history));
        self.check_tip();
    }

    fn check_tip(&mut self) {
        assert_eq!(self.db().commit_number(), self.number());
        self.tip().assert_roots(&self.db().roots(), "the newest commit");
        assert_eq!(self.db().root(), self.tip().0[&0].root);
        let history = self.db().history();
        assert_eq!(*history.end(), self.number());
        // Where the log has too many bytes for it, the history is shorter.
        let is_short = *history.start() > self.from && self.logged > LOGGED;
        assert!(is_short || *history.start() == self.from, "{history:?}, not from {}", self.from);
        self.from = *history.start();
        if !self.opening.keeps_all {
            self.let_go();
        }
    }

    /// Lets go what is on states beyond the history, whose undo may not be in memory.
    fn let_go(&mut self) {
        let (from, db) = (self.from, self.db.as_ref().expect("open between steps"));
        self.sessions.retain(|(session, _)| session.commit_number() >= from);
        self.overlays.retain(|(overlay, _)| {
            let session = db.session(SessionOptions::new().over(overlay)).expect("a session");
            session.commit_number() >= from
        });
    }

    fn roll_back(&mut self, commits: u64) {
        let then = self.number().checked_sub(commits).filter(|then| *then >= self.from);
        let Some(then) = then else {
            let error = self.db().rollback(commits).expect_err("beyond the history");
            let is_told = match error {
                Error::TooFarBack { .. } => commits > self.number(),
                Error::SnapshotTooOld { .. } => commits <= self.number(),
                _ => false,
            };
            assert!(is_told, "{error}");
            return;
        };
        let number = self.db().rollback(commits).expect("in the history");
        let then = self.at(then).clone();
        let is_back = |number: &&u8| !self.tip().0.contains_key(number);
        self.seen.restored_namespaces += then.0.keys().filter(is_back).count() as u64;
        let was = self.tip().0.keys().copied().filter(|number| !then.0.contains_key(number));
        let gone: Vec<u8> = was.collect();
        self.dropped.extend(gone);
        self.committed(number, then);
        self.durable = number;
    }

    fn past(&self, rng: &mut Rng) -> (Session, State) {
        let commit = self.from + rng.below(self.number() - self.from + 1);
        (self.db().at(commit).expect("in the history"), self.at(commit).clone())
    }

    fn look_back(&self, rng: &mut Rng) {
        let (session, state) = self.past(rng);
        let commit = self.db().commit_at(session.commit_number()).expect("in the history");
        state.assert_roots(&commit.roots, "a commit of the history");
        state.assert_says::<H>(&session, &self.setup, rng, false);
        let (other, _, now) = self.session(rng);
        state.assert_change::<H>(&session, &now, &other);
    }

    fn hold(&mut self, rng: &mut Rng) {
        let kept = if rng.below(2) == 0 {
            let (session, _, state) = self.session(rng);
            (session, state)
        } else {
            self.past(rng)
        };
        self.sessions.push(kept);
        if self.sessions.len() > KEPT {
            self.sessions.remove(0);
        }
    }

    fn add(&mut self, rng: &mut Rng) {
        let namespace = NAMESPACES[rng.index(NAMESPACES.len())];
        let db = self.db();
        let added = if namespace == PLAIN {
            db.add_plain_namespace(namespace)
        } else {
            db.add_namespace(namespace)
        };
        let mut after = self.tip().clone();
        match added {
            Ok(number) => {
                let before = after.0.insert(namespace, std::sync::Arc::default());
                assert!(before.is_none(), "namespace {namespace} was there");
                self.committed(number, after);
            }
            Err(Error::NamespaceExists(found)) => {
                assert!(found == namespace && after.0.contains_key(&namespace));
            }
            Err(Error::NamespaceInUse { namespace: found, dropped }) => {
                assert!(found == namespace && self.dropped.contains(&namespace));
                assert!(dropped <= self.number());
            }
            Err(error) => panic!("an add: {error}"),
        }
    }

    fn drop_namespace(&mut self, rng: &mut Rng) {
        let namespace = NAMESPACES[rng.index(NAMESPACES.len())];
        let mut after = self.tip().clone();
        match self.db().drop_namespace(namespace) {
            Ok(number) => {
                assert!(namespace > 0 && after.0.remove(&namespace).is_some());
                self.dropped.insert(namespace);
                self.committed(number, after);
            }
            Err(Error::NamespaceExists(0)) => assert_eq!(namespace, 0),
            Err(Error::Namespace(found)) => {
                assert!(found == namespace && !after.0.contains_key(&namespace));
            }
            Err(error) => panic!("a drop: {error}"),
        }
    }

    fn reopen(&mut self, how: Op, seed: u64) {
        let survivor = match how {
            Op::PowerCut => self.place.after_power_cut(seed),
            _ => None,
        };
        self.sessions.clear();
        self.overlays.clear();
        self.known.clear();
        let db = self.db.take().expect("open between steps");
        let metrics = db.metrics();
        self.seen.checkpoints += metrics.checkpoints;
        self.seen.pages_tidied += metrics.pages_tidied;
        self.seen.regions_joined += metrics.regions_joined;
        if let Op::Close = how {
            db.close().expect("closed");
        }
        drop(db);
        let is_cut = survivor.is_some();
        if let Some(survivor) = survivor {
            self.place = survivor;
        }
        self.opening = self.setup.opening(self.place.path(), seed);
        let db = match self.place.open(&self.opening, seed) {
            Ok(db) => db,
            Err(error) => panic!("an open of what was acknowledged: {error}"),
        };
        let number = db.commit_number();
        assert!(number <= self.number() && number >= self.durable, "commit {number}, not lost");
        assert!(is_cut || number == self.number(), "commit {number} of {}", self.number());
        self.seen.commits_lost += self.number() - number;
        self.commits.truncate(usize::try_from(number).expect("few commits") + 1);
        self.durable = number;
        // A shorter history forgets, and a longer one may find again what no commit has overtaken.
        let (from, history) = (*db.history().start(), self.opening.history);
        assert!(from <= number && number - from <= history, "a history from {from}");
        let most = self.from.max(number.saturating_sub(history));
        assert!(from <= most || is_cut, "a history from {from}, not {most}");
        self.from = from;
        self.db = Some(db);
        self.check_tip();
        let mut rng = Rng::new(seed);
        let (session, state) = self.session_on(None, false);
        state.assert_says::<H>(&session, &self.setup, &mut rng, true);
    }

    fn end(mut self, seed: u64) -> Seen {
        let mut rng = Rng::new(seed);
        for (session, state) in std::mem::take(&mut self.sessions) {
            state.assert_says::<H>(&session, &self.setup, &mut rng, false);
        }
        self.overlays.clear();
        let overlays = self.db().metrics().overlay_bytes;
        assert_eq!(overlays, 0, "bytes of overlays that are gone");
        self.reopen(Op::Close, seed);
        // All that is left is deleted, over pages that were not read.
        self.batch(&mut rng, Shape::WipeAll, 0, None, Then::Commit, true);
        self.reopen(Op::Close, seed);
        self.seen
    }
}

fn write(rng: &mut Rng, key: Key, value: Option<Value>) -> Access {
    if rng.below(3) == 0 { Access::write(key, value) } else { Access::read_write(key, value) }
}

fn bytes_of(access: &Access) -> usize {
    match &access.kind {
        AccessKind::Write(Some(value)) | AccessKind::ReadWrite(Some(value)) => 64 + value.len(),
        _ => 64,
    }
}

/// An access in a namespace that is not there gives everything back.
fn refused(session: Session, rng: &mut Rng, before: &State, accesses: &[Access]) -> Session {
    let missing = NAMESPACES[rng.index(NAMESPACES.len())];
    if before.0.contains_key(&missing) || rng.below(4) > 0 {
        return session;
    }
    let mut more = accesses.to_vec();
    more.insert(rng.index(more.len() + 1), Access::read([7; 32]).in_namespace(missing));
    let Err(error) = session.finish(more.clone()) else { panic!("there is no such namespace") };
    assert!(matches!(error.error(), Error::Namespace(found) if *found == missing));
    let (session, back, _) = error.into_parts();
    assert!(back == more, "other accesses came back");
    session
}

fn check_block<H: Judged>(
    block: &mut Block,
    (before, after): (&State, &State),
    accesses: &[Access],
    witness: bool,
    rng: &mut Rng,
) {
    before.assert_roots(block.prev_roots(), "the state before a block");
    after.assert_roots(block.roots(), "a block");
    let first = if rng.below(2) == 0 { block.take_witness() } else { None };
    let mut witnesses = block.take_witnesses();
    if let Some(first) = first {
        witnesses.insert(0, (0, first));
    }
    assert!(block.take_witness().is_none() && block.take_witnesses().is_empty());
    let mut expected: BTreeSet<u8> = accesses.iter().map(|one| one.namespace).collect();
    if expected.is_empty() {
        expected.insert(0);
    }
    expected.remove(&PLAIN);
    expected.retain(|_| witness);
    for (namespace, witness) in &witnesses {
        before.assert_witness::<H>(after, *namespace, &of(accesses, *namespace), witness);
    }
    assert!(witnesses.iter().map(|one| one.0).eq(expected), "witnesses of other namespaces");
    let writes = accesses.iter().filter(|access| is_write(access)).count();
    assert_eq!((block.change_count(), block.changes().count()), (writes, writes));
    let at = |change: &pleach::Change<'_>| (change.namespace(), *change.key());
    assert!(block.changes().map(|one| at(&one)).is_sorted_by(|a, b| a < b));
    let every = 1 + writes / 40;
    for change in block.changes().step_by(every) {
        let (namespace, key) = at(&change);
        let value = |state: &State| state.0[&namespace].get(&key).cloned();
        assert!(change.prior().expect("read") == value(before), "{namespace} {key:02x?}: before");
        assert!(change.value().expect("read") == value(after), "{namespace} {key:02x?}: after");
    }
}
