//! A few commits over namespaces that come and go, a power cut somewhere among them, an open, and on, up to three times
//! over: what is found is a commit between the last one acknowledged and the last one begun, with its root, values and
//! files. Some cuts fall into the recovery from the one before.
//!
//! Input: a byte for the kind of keys, two of options, one each of durability and seed; then rounds,
//! each of steps and of where the power is cut and what it leaves.

use std::ops::Range;

use crate::model::{Draw, State, add, session};
use crate::sim::{PERIOD, Setup};
use pleach::{Db, Durability, Error};
use pleach_io::sim::{CrashMode, CrashPoint, SimDisk, SimOptions, SimRuntime};
use pleach_ops::{CheckOptions, Finding, Severity, check_on};

/// Power cuts of one input.
const CUTS: usize = 3;
/// Steps between two of them.
const STEPS: usize = 8;

/// One input.
pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut world = CrashWorld::new(&mut draw);
    for round in 0..=CUTS as u64 {
        world.open(&mut draw, round);
        world.floor = world.newest();
        let opened = world.disk.trace().len();
        for _ in 0..draw.below(STEPS + 1) {
            world.step(&mut draw);
        }
        if round == CUTS as u64 || draw.is_empty() {
            break;
        }
        world.close_perhaps(&mut draw);
        world.cut(&mut draw, opened);
    }
    world.end(&mut draw);
}

/// Records that were being written when the power was cut: the next open cuts them off.
fn is_of_the_logs_end(found: &Finding) -> bool {
    found.severity == Severity::Survived && found.what.starts_with("the log ends torn at")
}

/// Noise that a cut has left in the log: an open cuts it off, and as long as no commit writes over it the next one,
/// which cannot know it from a torn record, does so again.
fn is_of_noise(found: &Finding) -> bool {
    is_of_the_logs_end(found) && found.what.contains("no record there can be recognised")
}

/// A slot that was being written when the power was cut. The next checkpoint writes it.
fn is_of_a_slot(found: &Finding) -> bool {
    found.severity == Severity::Survived && found.what.starts_with("super: slot ")
}

/// A cut in the middle of an open, and nowhere else, leaves a spare file without its mark, or none. The
/// checker says so, and the next open makes a new one: in the end there is no finding.
fn is_of_a_spare(found: &Finding) -> bool {
    found.severity == Severity::Survived && found.what.contains(".spare: ")
}

/// Marks in the trace: what was begun, acknowledged, or is durable whatever the mode.
#[derive(Clone, Copy)]
enum Mark {
    Begun(u64),
    Acknowledged(u64),
    Durable(u64),
}

impl Mark {
    fn put(self, disk: &SimDisk) {
        disk.mark(match self {
            Self::Begun(number) => 3 * number,
            Self::Acknowledged(number) => 3 * number + 1,
            Self::Durable(number) => 3 * number + 2,
        });
    }

    fn of(mark: u64) -> Self {
        [Self::Begun, Self::Acknowledged, Self::Durable][(mark % 3) as usize](mark / 3)
    }
}

struct CrashWorld {
    disk: SimDisk,
    setup: Setup,
    /// Absent only between a close or a cut and the next open.
    db: Option<(Db, SimRuntime)>,
    /// Where the opens on this disk stand in its trace.
    opens: Vec<Range<usize>>,
    /// The states that may be there, by commit number.
    states: Vec<State>,
    /// The commit that was found on this disk first.
    floor: u64,
    /// Commits that the next open may find, at least and at most.
    least: u64,
    most: u64,
}

impl CrashWorld {
    fn new(draw: &mut Draw<'_>) -> Self {
        let mut setup = Setup::draw(&mut draw.input);
        setup.durability = match draw.input.u8() % 6 {
            0 => Durability::None,
            1 => Durability::Periodic(PERIOD),
            _ => Durability::Commit,
        };
        let disk = SimDisk::new(draw.input.u8().into(), SimOptions::default());
        Self {
            disk,
            setup,
            db: None,
            opens: vec![],
            states: vec![State::default()],
            floor: 0,
            least: 0,
            most: 0,
        }
    }

    fn newest(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn db(&self) -> &Db {
        &self.db.as_ref().expect("open").0
    }

    fn runtime(&self) -> &SimRuntime {
        &self.db.as_ref().expect("open").1
    }

    /// Opens, or creates, and checks everything.
    fn open(&mut self, draw: &mut Draw<'_>, round: u64) {
        let seed = u64::from(draw.input.u8()) << 8 | round;
        let begun = self.disk.trace().len();
        let (db, runtime) = self.setup.open(&self.disk, seed).expect("opens after a power cut");
        self.opens.push(begun..self.disk.trace().len());
        let found = db.commit_number();
        let promised = self.least..=self.most;
        assert!(promised.contains(&found), "commit {found} was found, {promised:?} promised");
        self.states.truncate(found as usize + 1);
        self.states[found as usize].assert_tip_of(&db, found);
        Mark::Durable(found).put(&self.disk);
        self.states[found as usize].assert_read_by(&session(&db, false));
        let from = found.saturating_sub(self.setup.history);
        assert_eq!(db.history(), from..=found, "the history");
        for commit in from..found {
            let session = db.at(commit).expect("in the history");
            self.states[commit as usize].assert_read_by(&session);
        }
        (self.least, self.most) = (found, found);
        self.db = Some((db, runtime));
    }

    fn step(&mut self, draw: &mut Draw<'_>) {
        match draw.input.u8() % 16 {
            0 => self.db().drain(draw.input.u8().into()).expect("the disk has room"),
            1 => {
                let _ = self.close(draw);
                (self.least, self.most) = (self.newest(), self.newest());
                self.open(draw, 0xff);
            }
            2 | 3 => {
                let steps = draw.input.u8().into();
                self.runtime().step_some(steps);
            }
            4 => self.let_the_period_pass(),
            5 => self.roll_back(draw),
            6 => self.add_namespace(draw),
            7 => self.drop_namespace(draw),
            _ => self.commit(draw),
        }
    }

    fn commit(&mut self, draw: &mut Draw<'_>) {
        let choice = draw.input.u8();
        let number = self.newest() + 1;
        let state = &self.states[self.newest() as usize];
        let accesses = draw.batch(state);
        let witnessed = choice & 1 == 0;
        let (block, after) = state.finish(session(self.db(), witnessed), &accesses, witnessed);
        self.runtime().step_some(usize::from(choice >> 1 & 7));
        self.states.push(after);
        Mark::Begun(number).put(&self.disk);
        assert_eq!(block.commit().expect("on the tip"), number);
        Mark::Acknowledged(number).put(&self.disk);
        self.runtime().step_some(usize::from(choice >> 4));
    }

    /// A commit that a dropped namespace of that number may keep from being made.
    fn add_namespace(&mut self, draw: &mut Draw<'_>) {
        let (number, namespace) = (self.newest() + 1, draw.namespace());
        let tip = &self.states[self.newest() as usize];
        let (exists, after) = (tip.has(namespace), tip.with(namespace, []));
        Mark::Begun(number).put(&self.disk);
        match add(self.db(), namespace) {
            Ok(found) => {
                assert!(found == number && !exists);
                self.states.push(after);
                Mark::Acknowledged(number).put(&self.disk);
            }
            Err(Error::NamespaceExists(_)) => assert!(exists),
            Err(Error::NamespaceInUse { .. }) => assert!(!exists),
            Err(other) => panic!("an add: {other}"),
        }
    }

    fn drop_namespace(&mut self, draw: &mut Draw<'_>) {
        let (number, namespace) = (self.newest() + 1, draw.namespace());
        let tip = &self.states[self.newest() as usize];
        if tip.has(namespace) {
            self.states.push(tip.without(namespace));
            Mark::Begun(number).put(&self.disk);
            assert_eq!(self.db().drop_namespace(namespace).expect("it exists"), number);
            Mark::Acknowledged(number).put(&self.disk);
        }
    }

    fn roll_back(&mut self, draw: &mut Draw<'_>) {
        let number = self.newest() + 1;
        let back = u64::from(draw.input.u8()) % (self.setup.history.min(self.newest()) + 1);
        if back == 0 {
            assert_eq!(self.db().rollback(0).expect("nothing to do"), self.newest());
            Mark::Durable(self.newest()).put(&self.disk);
            return;
        }
        self.states.push(self.states[(self.newest() - back) as usize].clone());
        Mark::Begun(number).put(&self.disk);
        assert_eq!(self.db().rollback(back).expect("in the history"), number);
        Mark::Durable(number).put(&self.disk);
        self.states[number as usize].assert_tip_of(self.db(), number);
    }

    fn let_the_period_pass(&self) {
        self.runtime().step_some(1000);
        self.runtime().clock().advance(2 * PERIOD);
        self.runtime().step_some(1000);
        if matches!(self.setup.durability, Durability::Periodic(_)) {
            Mark::Durable(self.newest()).put(&self.disk);
        }
    }

    /// Closes or drops the database; says whether it was closed.
    fn close(&mut self, draw: &mut Draw<'_>) -> bool {
        let (db, _runtime) = self.db.take().expect("open");
        let is_clean = draw.input.u8().is_multiple_of(2);
        if is_clean {
            db.close().expect("the disk has room");
            Mark::Durable(self.newest()).put(&self.disk);
        }
        is_clean
    }

    fn close_perhaps(&mut self, draw: &mut Draw<'_>) {
        if draw.below(4) == 0 {
            let _ = self.close(draw);
        }
    }

    /// Cuts the power somewhere since the disk was new; `opened` events were there when the
    /// database was first opened on it.
    fn cut(&mut self, draw: &mut Draw<'_>, opened: usize) {
        // Whatever the dropping of an open database does comes behind the cut.
        let trace = self.disk.trace();
        self.db = None;
        let mut boundaries = trace.boundaries();
        let place = draw.input.u16();
        if place & 7 == 0 {
            boundaries.retain(|boundary| *boundary <= opened);
        }
        let boundary = boundaries[usize::from(place >> 3) % boundaries.len()];
        let point = trace.crash_point(boundary);
        self.promise(point.marks());
        // Before the first open on this disk there is what an open before it may have left.
        let in_first = self.opens.first().is_some_and(|open| boundary < open.end);
        let in_any = self.opens.drain(..).any(|open| open.start < boundary && boundary < open.end);
        let outcome = point.outcome(mode(draw, &point));
        self.disk = outcome.disk();
        self.look(in_first || in_any);
    }

    /// What is promised by the marks before a cut. What an open has found, another one finds: a cut
    /// during an open leaves what there was.
    fn promise(&mut self, marks: &[u64]) {
        (self.least, self.most) = (self.floor, self.floor);
        let synced = self.setup.durability == Durability::Commit;
        for mark in marks {
            match Mark::of(*mark) {
                Mark::Begun(number) => self.most = self.most.max(number),
                Mark::Acknowledged(number) if synced => self.least = self.least.max(number),
                Mark::Acknowledged(_) => {}
                Mark::Durable(number) => self.least = self.least.max(number),
            }
        }
        self.most = self.most.max(self.least);
    }

    /// The checker, which writes nothing, finds what an open will find. A creation that was cut
    /// short is not a database yet.
    fn look(&mut self, in_open: bool) {
        let report = match check_on(&self.disk, CheckOptions::default()) {
            Ok(report) => report,
            Err(Error::Missing { .. }) if self.most == 0 => return,
            Err(error) => panic!("the checker after a power cut: {error}"),
        };
        let sound = |found: &Finding| {
            is_of_the_logs_end(found) || is_of_a_slot(found) || in_open && is_of_a_spare(found)
        };
        let sound = report.findings.iter().all(sound);
        assert!(sound, "{:#?}", report.findings);
        let promised = self.least..=self.most;
        assert!(promised.contains(&report.commit), "{} of {promised:?}", report.commit);
        (self.least, self.most) = (report.commit, report.commit);
    }

    /// Work continues, and the files are right in the end.
    fn end(mut self, draw: &mut Draw<'_>) {
        for _ in 0..2 {
            self.commit(draw);
        }
        let is_clean = self.close(draw);
        let newest = self.newest();
        let state = &self.states[newest as usize];
        state.assert_on_disk_but(&self.disk, newest, |found| {
            !is_clean && (is_of_noise(found) || is_of_a_slot(found))
        });
    }
}

/// The fate of the writes that were pending at a cut.
fn mode(draw: &mut Draw<'_>, point: &CrashPoint) -> CrashMode {
    let choice = draw.input.u8();
    let one = usize::from(draw.input.u8()) % point.pending().max(1);
    match choice % 8 {
        0 => CrashMode::Dropped,
        1 => CrashMode::Kept,
        2 => CrashMode::AllBut(one),
        3 => CrashMode::Only(one),
        4 => CrashMode::Prefix(one),
        _ => CrashMode::Random(draw.input.u16().into()),
    }
}
