//! A database beside its model, and what each step of a plan does to both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::marker::PhantomData;

use pleach::{Db, Durability, Error, Iter, Key, Overlay, Session, SessionOptions, Value};

use crate::batches::Batch;
use crate::common::Rng;
use crate::model::{Judged, State};
use crate::place::Place;
use crate::plan::{Op, Opening, Plan, Setup, Shape, Step, Then};
use crate::readers::Readers;

/// Sessions and overlays that are kept at a time.
pub const KEPT: usize = 6;
/// Iterators that are kept at a time.
const RESTING: usize = 3;
/// Bytes of batches of which a small log still has whatever the history wants.
const LOGGED: usize = 1 << 20;

/// An overlay that was made at some time.
pub struct Known {
    pub parent: Option<usize>,
    pub before: State,
    pub after: State,
    /// The commit that has it.
    pub taken: Option<u64>,
}

/// A session that is kept.
pub struct Kept {
    pub session: Session,
    pub state: State,
    /// The overlay that it is over.
    pub over: Option<usize>,
}

/// An iterator that goes on a little behind each step.
pub struct Resting {
    iter: Iter,
    /// The pairs that it has not given yet.
    left: VecDeque<(Key, Value)>,
    commit: u64,
}

pub struct World<H: Judged, P: Place> {
    pub hasher: PhantomData<H>,
    pub setup: Setup,
    pub place: P,
    pub opening: Opening,
    /// Absent only while it is opened again.
    pub db: Option<Db>,
    /// By number of the commit.
    pub commits: Vec<State>,
    /// Where the history began when each commit was the newest.
    pub froms: Vec<u64>,
    /// The oldest commit of the history, and the newest that it may be once all records are read.
    pub from: u64,
    pub from_at_most: u64,
    /// The newest commit when it was opened: what was replaced before is in the log alone.
    pub opened: u64,
    /// Bytes of all batches.
    pub logged: usize,
    /// Bytes of the log that were appended by opens before this one.
    log_before: u64,
    /// Checkpoints of earlier opens.
    images_before: u64,
    /// The newest commit that is durable, whatever the mode.
    pub durable: u64,
    pub known: Vec<Known>,
    pub overlays: Vec<(Overlay, usize)>,
    pub sessions: Vec<Kept>,
    pub resting: Vec<Resting>,
    pub readers: Readers,
    /// Namespaces that were dropped, and that were written to, at some time.
    pub dropped: BTreeSet<u8>,
    pub written: BTreeSet<u8>,
    pub seen: Seen,
}

/// What plans have come across, and how often.
#[derive(Clone, Debug, Default)]
pub struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, times)| self.count(what, *times));
    }

    pub fn is_all_of(&self, wanted: &[&str]) -> bool {
        wanted.iter().all(|what| self.0.get(what).is_some_and(|times| *times > 0))
    }
}

/// Plays a plan to its end. Panics where the database is not what the model is.
pub fn play<H: Judged>(plan: &Plan, place: impl Place, note: &dyn Fn(&Step)) -> Seen {
    let mut world = World::<H, _>::new(plan, place);
    world.steps(plan, note);
    world.end(plan.seed)
}

impl<H: Judged, P: Place> World<H, P> {
    /// A new database.
    pub fn new(plan: &Plan, place: P) -> Self {
        let world = Self::on(plan.setup, place, plan.seed);
        world.place.mark(0);
        world
    }

    /// What is in a place, beside the model of a new database.
    fn on(setup: Setup, mut place: P, seed: u64) -> Self {
        let opening = setup.opening(place.path(), seed);
        let db = place.open(&opening, seed).expect("an open of what was acknowledged");
        Self {
            hasher: PhantomData,
            setup,
            place,
            opening,
            db: Some(db),
            commits: vec![State::default()],
            froms: vec![0],
            from: 0,
            from_at_most: 0,
            opened: 0,
            logged: 0,
            log_before: 0,
            images_before: 0,
            durable: 0,
            known: Vec::new(),
            overlays: Vec::new(),
            sessions: Vec::new(),
            resting: Vec::new(),
            readers: Readers::default(),
            dropped: BTreeSet::new(),
            written: BTreeSet::new(),
            seen: Seen::default(),
        }
    }

    /// What a power failure has left of this one, which had this commit at least, is opened.
    pub fn after_crash(&self, place: P, least: u64, seed: u64) -> Self {
        let mut world = Self::on(self.setup, place, seed);
        let (number, from) = (world.db().commit_number(), *world.db().history().start());
        assert!((least..=self.number()).contains(&number), "commit {number}, not {least} or later");
        let kept = usize::try_from(number).expect("few commits") + 1;
        let then = self.froms[kept - 1];
        assert!(from <= then || self.logged > LOGGED, "a history from {from}, not from {then}");
        world.commits = self.commits[..kept].to_vec();
        world.froms = self.froms[..kept].to_vec();
        (world.from, world.from_at_most) = (from, from.max(then));
        (world.opened, world.durable) = (number, number);
        (world.dropped, world.written) = (self.dropped.clone(), self.written.clone());
        world.logged = self.logged;
        world.seen.count("crashes", 1);
        world.seen.count("commits lost", self.number() - number);
        world.check_tip();
        world
    }

    pub fn steps(&mut self, plan: &Plan, note: &dyn Fn(&Step)) {
        for step in &plan.steps {
            note(step);
            self.step(step);
        }
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().expect("open between steps")
    }

    pub fn number(&self) -> u64 {
        self.commits.len() as u64 - 1
    }

    pub fn at(&self, commit: u64) -> &State {
        &self.commits[usize::try_from(commit).expect("few commits")]
    }

    pub fn tip(&self) -> &State {
        self.at(self.number())
    }

    /// A step, while other threads read from the sessions that are kept, where there are threads.
    pub fn step(&mut self, step: &Step) {
        let is_alone = matches!(
            step.op,
            Op::LetGo
                | Op::BatchBehind { .. }
                | Op::Load { .. }
                | Op::Close
                | Op::Abandon
                | Op::PowerCut
        );
        if self.setup.simulated || is_alone {
            return self.take(step);
        }
        let (sessions, setup) = (std::mem::take(&mut self.sessions), self.setup);
        let keeps_from = if self.opening.keeps_all { self.opened } else { u64::MAX };
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let (sessions, mut rng) = (&sessions, Rng::new(step.seed ^ reader));
                scope.spawn(move || {
                    for Kept { session, state, .. } in sessions {
                        let compared = state.compare::<H>(session, &setup, &mut rng, false);
                        let is_told = matches!(compared, Err(Error::SnapshotTooOld { .. }));
                        let is_told = is_told && session.commit_number() < keeps_from;
                        assert!(compared.is_ok() || is_told, "{compared:?}");
                    }
                });
            }
            self.take(step);
        });
        self.sessions.splice(0..0, sessions);
        self.sessions.truncate(KEPT);
    }

    fn take(&mut self, step: &Step) {
        let mut rng = Rng::new(step.seed);
        match step.op {
            Op::Batch { shape, size, over, then, witness } => {
                let over = over.filter(|_| !self.overlays.is_empty());
                let on = self.session_on(over.map(|over| self.overlay(over)), witness);
                self.batch(&mut rng, on, Batch { shape, size, then, witness });
            }
            Op::BatchBehind { size, held } => self.batch_behind(&mut rng, size, held),
            Op::CommitOverlay(_) | Op::DropOverlay(_) if self.overlays.is_empty() => {}
            Op::CommitOverlay(one) => self.commit_overlay(self.overlay(one)),
            Op::DropOverlay(one) => drop(self.overlays.remove(self.overlay(one))),
            Op::DropOverlays => self.overlays.clear(),
            Op::Drain(most) => self.db().drain(most).expect("drained"),
            Op::Sync => {
                self.db().sync().expect("synced");
                self.is_durable(self.number());
            }
            Op::RollBack(commits) => self.roll_back(commits, rng.below(2) == 0),
            Op::Past => self.look_back(&mut rng),
            Op::Look => {
                let Kept { session, state, .. } = self.session(&mut rng);
                self.says(&session, &state, &mut rng, false);
            }
            Op::Hold => self.hold(&mut rng),
            Op::LetGo if self.sessions.is_empty() => {}
            Op::LetGo => {
                let at = rng.index(self.sessions.len());
                let Kept { session, state, .. } = self.sessions.swap_remove(at);
                self.says(&session, &state, &mut rng, false);
                let Some(again) = self.or_too_old(session.commit_number(), session.fork()) else {
                    return;
                };
                drop(session);
                self.says(&again, &state, &mut rng, false);
            }
            Op::Rest => self.rest(&mut rng),
            Op::Add => self.add(&mut rng),
            Op::DropNamespace => self.drop_namespace(&mut rng),
            Op::Load { size, alone } => self.load(&mut rng, size, alone),
            Op::Reader(what) => self.read_only(what, step.seed, &mut rng),
            Op::Close | Op::Abandon | Op::PowerCut => self.reopen(step.op, step.seed),
        }
        let before = self.place.length();
        self.place.background(step.background);
        self.seen.count("files cut", u64::from(self.place.length() < before));
        for (overlay, id) in &self.overlays {
            assert_eq!(overlay.commit_number(), self.known[*id].taken, "an overlay's commit");
        }
        self.go_on(&mut rng);
        self.look_at_readers(&mut rng);
    }

    /// True when sessions on a commit may be too old: beyond the history, where memory has not all undo.
    pub fn may_end(&self, commit: u64) -> bool {
        let from = if self.opening.limited { self.number() } else { self.from };
        commit < from && !(self.opening.keeps_all && commit >= self.opened)
    }

    /// What was read of a commit: it may be too old, beyond the history, where memory has not all undo.
    pub fn or_too_old<T>(&self, commit: u64, read: Result<T, Error>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(Error::SnapshotTooOld { commit: told, .. }) => {
                assert_eq!(told, commit);
                assert!(self.may_end(commit), "commit {commit} is too old, from {}", self.from);
                None
            }
            Err(error) => panic!("commit {commit}: {error}"),
        }
    }

    /// A session says what its state has, or that it is too old, where it may. Says which.
    fn says(&self, session: &Session, state: &State, rng: &mut Rng, all: bool) -> bool {
        let compared = state.compare::<H>(session, &self.setup, rng, all);
        self.or_too_old(session.commit_number(), compared).is_some()
    }

    pub fn is_durable(&mut self, commit: u64) {
        self.durable = commit;
        self.place.mark(commit);
    }

    /// The place of one of the overlays, of which a smaller number means a newer one.
    fn overlay(&self, one: u64) -> usize {
        let count = self.overlays.len();
        count - 1 - usize::try_from(one).expect("small") % 1000 * count / 1000
    }

    /// A session on the tip or on an overlay.
    pub fn session(&self, rng: &mut Rng) -> Kept {
        let over = rng.index(self.overlays.len() + 1).checked_sub(1);
        self.session_on(over, true)
    }

    pub fn session_on(&self, over: Option<usize>, witness: bool) -> Kept {
        let options = SessionOptions::new().witness(witness);
        let over = over.map(|at| &self.overlays[at]);
        let (options, state) = match over {
            Some((overlay, id)) => (options.over(overlay), &self.known[*id].after),
            None => (options, self.tip()),
        };
        let session = self.db().session(options).expect("a session");
        Kept { session, state: state.clone(), over: over.map(|(_, id)| *id) }
    }

    /// The overlays from `at` down that no commit has taken, newest first.
    pub fn untaken(&self, mut at: Option<usize>) -> Vec<usize> {
        let mut untaken = Vec::new();
        while let Some(id) = at.filter(|id| self.known[*id].taken.is_none()) {
            untaken.push(id);
            at = self.known[id].parent;
        }
        untaken
    }

    pub fn commit_overlay(&mut self, at: usize) {
        let (overlay, id) = (self.overlays[at].0.clone(), self.overlays[at].1);
        let Known { before, after, taken, .. } = &self.known[id];
        if let Some(number) = taken {
            assert_eq!(overlay.commit().expect("committed before"), *number);
            return;
        }
        let (before, after) = (before.clone(), after.clone());
        let (untaken, base) = (self.untaken(Some(id)), self.number());
        self.committed_if_fits(overlay.commit(), (base, &untaken), &before, after);
    }

    /// What a commit has to come to: the newest commit has the state below the overlays that it takes, or below the
    /// block itself, or the parent is stale.
    pub fn committed_if_fits(
        &mut self,
        committed: Result<u64, Error>,
        (base, untaken): (u64, &[usize]),
        before: &State,
        after: State,
    ) {
        let below = untaken.last().map_or(before, |id| &self.known[*id].before);
        if !below.is_as(self.tip()) {
            assert!(matches!(committed, Err(Error::StaleParent { .. })), "stale: {committed:?}");
            self.seen.count("stale", 1);
            return;
        }
        let number = committed.expect("its parent is the newest");
        if untaken.is_empty() && base < self.number() {
            self.seen.count("states came back", 1);
        }
        for id in untaken {
            self.known[*id].taken = Some(number);
        }
        self.committed(number, after);
    }

    pub fn committed(&mut self, number: u64, after: State) {
        assert_eq!(number, self.number() + 1);
        self.commits.push(after);
        self.seen.count("commits", 1);
        if self.opening.durability == Durability::Commit {
            self.is_durable(number);
        }
        self.from = self.from.max(number.saturating_sub(self.opening.history));
        self.from_at_most = self.from_at_most.max(self.from);
        self.check_tip();
        self.froms.push(self.from_at_most);
    }

    fn check_tip(&mut self) {
        assert_eq!(self.db().commit_number(), self.number());
        self.tip().assert_roots(&self.db().roots(), "the newest commit");
        assert_eq!(self.db().root(), self.tip().spaces[&0].root);
        assert!(*self.db().blob() == *self.tip().blob, "another blob");
        let history = self.db().history();
        assert_eq!(*history.end(), self.number());
        // Where the log has too many bytes for it, the history is shorter.
        self.begins_at(*history.start());
        self.let_go();
    }

    /// Checkpoints until now.
    pub fn images(&self) -> u64 {
        self.images_before + self.db().metrics().checkpoints
    }

    /// Bytes that were appended to the log until now.
    pub fn log_bytes(&self) -> u64 {
        self.log_before + self.db().metrics().log_bytes
    }

    fn begins_at(&mut self, start: u64) {
        let is_limited = self.opening.limited || self.logged > LOGGED;
        let is_short = start > self.from && is_limited;
        let is_known = (self.from..=self.from_at_most).contains(&start);
        assert!(is_short || is_known, "from {start}, not {} to {}", self.from, self.from_at_most);
        (self.from, self.from_at_most) = (start, start.max(self.from_at_most));
    }

    /// The oldest commit that can be read. The first who asks has the records read that the open has left unread.
    fn oldest(&mut self) -> u64 {
        match self.db().at(self.from).map(drop) {
            Err(Error::SnapshotTooOld { oldest, .. }) => self.begins_at(oldest),
            read => read.expect("the oldest commit"),
        }
        self.from
    }

    /// Lets go overlays on states beyond the history, whose undo may not be in memory.
    pub fn let_go(&mut self) {
        let mut overlays = std::mem::take(&mut self.overlays);
        overlays.retain(|(overlay, _)| {
            let options = SessionOptions::new().over(overlay);
            !self.may_end(self.db().session(options).expect("a session").commit_number())
        });
        self.overlays = overlays;
    }

    fn roll_back(&mut self, commits: u64, by_number: bool) {
        let from = self.oldest();
        let then = self.number().checked_sub(commits).filter(|then| *then >= from);
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
        let db = self.db();
        let number = if by_number { db.rollback_to(then) } else { db.rollback(commits) };
        let (number, then) = (number.expect("in the history"), self.at(then).clone());
        let is_back = |number: &&u8| !self.tip().spaces.contains_key(number);
        let restored = then.spaces.keys().filter(is_back).count() as u64;
        self.seen.count("restored namespaces", restored);
        let was = self.tip().spaces.keys().copied();
        let gone: Vec<u8> = was.filter(|number| !then.spaces.contains_key(number)).collect();
        self.dropped.extend(gone);
        self.committed(number, then);
        self.is_durable(number);
    }

    pub fn past(&mut self, rng: &mut Rng) -> Kept {
        let from = self.oldest();
        let commit = from + rng.below(self.number() - from + 1);
        match self.or_too_old(commit, self.db().at(commit)) {
            Some(session) => Kept { session, state: self.at(commit).clone(), over: None },
            // The history has moved on, and ends with the newest commit.
            None => self.past(rng),
        }
    }

    fn look_back(&mut self, rng: &mut Rng) {
        let Kept { session, state, .. } = self.past(rng);
        self.look_at_commit(&session, rng);
        let now = self.session(rng);
        if !self.opening.limited {
            state.assert_change::<H>(&session, (&now.state, &now.session), &self.setup, rng);
        }
        // On either side of the history.
        if let Some(before) = self.from.checked_sub(1) {
            let old = self.db().at(before).map(drop);
            let is_told = matches!(old, Err(Error::SnapshotTooOld { commit, oldest })
                if commit == before && (oldest == self.from || self.opening.limited));
            assert!(is_told, "{old:?}");
        }
        let next = self.db().at(self.number() + 1).map(drop);
        assert!(matches!(next, Err(Error::NoSuchCommit { .. })), "{next:?}");
    }

    fn look_at_commit(&self, session: &Session, rng: &mut Rng) {
        let number = session.commit_number();
        let (state, found) = (self.at(number), self.db().commit_at(number));
        let Some(commit) = self.or_too_old(number, found) else { return };
        state.assert_roots(&commit.roots, "a commit of the history");
        assert!(commit.number == number && *commit.blob == *state.blob, "another blob than then");
        let is_kept = self.says(session, state, rng, false);
        assert!(is_kept || self.opening.limited, "in the history");
    }

    /// Each commit of the history is what it was.
    pub fn look_at_history(&mut self, rng: &mut Rng) {
        for commit in self.oldest()..=self.number() {
            let Some(session) = self.or_too_old(commit, self.db().at(commit)) else { continue };
            assert_eq!(session.commit_number(), commit);
            self.look_at_commit(&session, rng);
        }
    }

    fn hold(&mut self, rng: &mut Rng) {
        let kept = if rng.below(2) == 0 { self.session(rng) } else { self.past(rng) };
        if rng.below(3) == 0 {
            // What is announced now is read when commits have come in between.
            let keys: Vec<Key> =
                (0..self.setup.ids.min(600)).map(|id| self.setup.key(id)).collect();
            for namespace in kept.state.spaces.keys() {
                kept.session.namespace(*namespace).expect("it exists").prefetch(&keys);
            }
        }
        self.sessions.push(kept);
        if self.sessions.len() > KEPT {
            self.sessions.remove(0);
        }
    }

    /// Keeps an iterator over a namespace, or over its pairs from a key on.
    fn rest(&mut self, rng: &mut Rng) {
        let on = if rng.below(3) == 0 { self.past(rng) } else { self.session(rng) };
        let Kept { session, state, .. } = on;
        let namespaces: Vec<u8> = state.spaces.keys().copied().collect();
        let namespace = namespaces[rng.index(namespaces.len())];
        let space = &state.spaces[&namespace];
        let mut iter = session.namespace(namespace).expect("it exists").iter(..);
        let mut range = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        if rng.below(3) == 0 {
            let first = iter.next().transpose().expect("a new session can be read");
            assert!(first.as_ref().map(|pair| &pair.0) == space.values.keys().next());
            range.0 = std::ops::Bound::Included(self.setup.key(rng.below(self.setup.ids)));
            iter.seek(range);
        }
        let (left, commit) = (space.pairs(range).into(), session.commit_number());
        self.resting.push(Resting { iter, left, commit });
        if self.resting.len() > RESTING {
            self.resting.remove(0);
        }
    }

    /// Iterators that rest go on.
    fn go_on(&mut self, rng: &mut Rng) {
        for mut resting in std::mem::take(&mut self.resting) {
            let went_on = resting.go_on(rng);
            match self.or_too_old(resting.commit, went_on) {
                Some(true) => self.resting.push(resting),
                Some(false) => self.seen.count("iterators that rested", 1),
                None => self.seen.count("sessions too old", 1),
            }
        }
    }

    /// Lets go all that is open but the database itself.
    pub fn let_all_go(&mut self) {
        self.sessions.clear();
        self.overlays.clear();
        self.resting.clear();
        self.known.clear();
    }

    fn reopen(&mut self, how: Op, seed: u64) {
        let survivor = match how {
            Op::PowerCut => self.place.after_power_cut(seed),
            _ => None,
        };
        self.let_all_go();
        let db = self.db.take().expect("open between steps");
        self.count(&db);
        if let Op::Close = how {
            db.close().expect("closed");
        }
        self.log_before += db.metrics().log_bytes;
        self.images_before += db.metrics().checkpoints;
        drop(db);
        let is_cut = survivor.is_some();
        if is_cut {
            self.readers = Readers::default();
        }
        if let Some(survivor) = survivor {
            self.place = survivor;
        }
        if let (Op::Close, true) = (how, Rng::new(seed).below(3) == 0) {
            self.check();
        }
        let was_limited = self.opening.limited;
        self.opening = self.setup.opening(self.place.path(), seed);
        let db = match self.place.open(&self.opening, seed) {
            Ok(db) => db,
            Err(error) => panic!("an open of what was acknowledged: {error}"),
        };
        let number = db.commit_number();
        assert!(number <= self.number() && number >= self.durable, "commit {number}, not lost");
        assert!(is_cut || number == self.number(), "commit {number} of {}", self.number());
        self.seen.count("commits lost", self.number() - number);
        self.commits.truncate(usize::try_from(number).expect("few commits") + 1);
        self.froms.truncate(self.commits.len());
        self.is_durable(number);
        self.opened = number;
        // A shorter history forgets, and a longer one may find again what no commit has overtaken.
        let (from, history) = (*db.history().start(), self.opening.history);
        assert!(from <= number && number - from <= history, "a history from {from}");
        let most = self.from_at_most.max(number.saturating_sub(history));
        let is_limited = was_limited || self.opening.limited;
        assert!(from <= most || is_cut || is_limited, "a history from {from}, not {most}");
        (self.from, self.from_at_most) = (from, from.max(most.min(number)));
        self.db = Some(db);
        self.check_tip();
        let mut rng = Rng::new(seed);
        let Kept { session, state, .. } = self.session_on(None, false);
        assert!(self.says(&session, &state, &mut rng, true), "the newest commit");
        drop(session);
        if !self.setup.switches.pages && rng.below(2) == 0 {
            self.look_at_history(&mut rng);
        }
    }

    /// What the background of an open has done.
    pub fn count(&mut self, db: &Db) {
        let metrics = db.metrics();
        self.seen.count("checkpoints", metrics.checkpoints);
        self.seen.count("pages tidied", metrics.pages_tidied);
        self.seen.count("regions joined", metrics.regions_joined);
    }

    /// The checker finds nothing in the closed database.
    fn check(&self) {
        let mut report = self.place.check();
        // What a recycled file of the log had is told from a torn end only where it has headers.
        report.findings.retain(|finding| !finding.what.starts_with("the log ends torn"));
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(report.commit, self.number(), "the checker's commit");
    }

    fn end(mut self, seed: u64) -> Seen {
        let mut rng = Rng::new(seed);
        for Kept { session, state, .. } in std::mem::take(&mut self.sessions) {
            let was_read = self.says(&session, &state, &mut rng, false);
            self.seen.count("sessions too old", u64::from(!was_read));
        }
        self.let_all_go();
        self.end_readers();
        let metrics = self.db().metrics();
        assert_eq!(metrics.overlay_bytes, 0, "bytes of overlays that are gone");
        assert!(self.opening.history > 0 || metrics.undo_bytes == 0, "undo that nobody needs");
        assert!(self.db().pins().is_empty() && self.db().open_handles().is_empty());
        self.reopen(Op::Close, seed);
        // All that is left is deleted, over pages that were not read.
        let batch = Batch { shape: Shape::WipeAll, size: 0, then: Then::Commit, witness: true };
        let tip = self.session_on(None, true);
        self.batch(&mut rng, tip, batch);
        self.leave(true);
        self.seen
    }

    /// Closes the database, or drops it, and looks at it with the checker and with an open for reading alone.
    pub fn leave(&mut self, closes: bool) {
        self.let_all_go();
        let db = self.db.take().expect("open between steps");
        if closes {
            db.close().expect("closed");
        }
        self.count(&db);
        drop(db);
        self.check();
        let reader = self.place.open_reader(&self.opening, 1).expect("opens for reading alone");
        let session = reader.snapshot().expect("a snapshot");
        assert_eq!(session.commit_number(), self.number());
        self.says(&session, self.tip(), &mut Rng::new(self.number()), true);
    }
}

impl Resting {
    /// Gives some pairs from either end; says whether it has more.
    fn go_on(&mut self, rng: &mut Rng) -> Result<bool, Error> {
        for _ in 0..=self.left.len() / 8 + 2 {
            let (found, expected) = if rng.below(3) == 0 {
                (self.iter.next_back(), self.left.pop_back())
            } else {
                (self.iter.next(), self.left.pop_front())
            };
            let Some(found) = found else {
                assert!(expected.is_none(), "an iterator that rested has fewer pairs");
                return Ok(false);
            };
            assert!(Some(found?) == expected, "an iterator that rested gives another pair");
        }
        Ok(true)
    }
}
