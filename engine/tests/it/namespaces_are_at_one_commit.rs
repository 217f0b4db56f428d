//! A crash at the boundaries of a run over several namespaces leaves all of them at one commit: batches over
//! several, namespaces that come and go, loads, rollbacks, flushes and images in between.

use std::fmt::Display;
use std::time::Instant;

use pleach::load::LoadOptions;
use pleach::{Access, Durability, Error, SessionOptions};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use crate::common::Rng;
use crate::crash::{
    Promise, Setup, SimDb, acknowledged, begun, durable, only_boundary, report, seeds, unrecorded,
};
use crate::namespaces_under_all_operations::{Many, add, assert_reads, batch};

const NUMBERS: [u8; 3] = [1, 2, 255];

/// The states by commit, and the oldest one that a history may reach back to from each.
#[derive(Clone)]
struct Story {
    states: Vec<Many>,
    from: Vec<u64>,
}

impl Story {
    fn newest(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn at(&self, commit: u64) -> &Many {
        &self.states[usize::try_from(commit).expect("few commits")]
    }

    fn had_pairs(&self, namespace: u8) -> bool {
        let has = |state: &Many| state.0.get(&namespace).is_some_and(|one| !one.values.is_empty());
        self.states.iter().any(has)
    }

    fn from(&self, commit: u64) -> u64 {
        self.from[usize::try_from(commit).expect("few commits")]
    }

    fn push(&mut self, setup: &Setup, state: Many, barrier: bool) {
        let number = self.newest() + 1;
        let before = *self.from.last().expect("commit 0");
        let from = if barrier { number } else { before.max(number.saturating_sub(setup.history)) };
        self.states.push(state);
        self.from.push(from);
    }
}

/// One commit of some kind; the marks say how far it came.
fn commit_one(
    setup: &Setup,
    disk: &SimDisk,
    (db, runtime): (&SimDb, &SimRuntime),
    rng: &mut Rng,
    story: &mut Story,
) -> Result<(), Error> {
    let newest = story.newest();
    let number = newest + 1;
    let mut state = story.at(newest).clone();
    let one = NUMBERS[rng.index(NUMBERS.len())];
    let (mut barrier, mut whatever) = (false, true);
    let result = match rng.below(12) {
        0..=2 if !state.0.contains_key(&one) => {
            state.0.insert(one, crate::common::Model::default());
            disk.mark(begun(number));
            match add(db, one) {
                // Its dropped trie is still there, and nothing happened.
                Err(Error::NamespaceInUse { .. }) => return Ok(()),
                result => result,
            }
        }
        0 => {
            state.0.remove(&one);
            disk.mark(begun(number));
            db.drop_namespace(one)
        }
        1 if story.from(newest) < newest => {
            let back = 1 + rng.below(newest - story.from(newest));
            state = story.at(newest - back).clone();
            disk.mark(begun(number));
            db.rollback(back)
        }
        2 if state.0.get(&one).is_some_and(|model| model.values.is_empty()) => {
            let pairs: Vec<_> =
                (0..setup.ids).map(|id| (setup.key(id), crate::common::value(rng))).collect();
            let model = state.0.get_mut(&one).expect("it exists");
            model.values = pairs.iter().cloned().collect();
            barrier = true;
            disk.mark(begun(number));
            let options = LoadOptions::new().memory_mib(1).namespace(one);
            match db.bulk_load(pairs.into_iter(), &options) {
                // It had pairs, whose pages are still there, and nothing happened.
                Err(Error::NotEmpty(_)) if story.had_pairs(one) => return Ok(()),
                result => result.map(|_| number),
            }
        }
        _ => {
            whatever = false;
            let session = db.session(SessionOptions::new().witness(rng.below(2) == 0))?;
            let accesses: Vec<Access> = batch(rng, setup, &state);
            runtime.step_some(rng.index(4));
            state.apply(&accesses);
            let block = session.finish(accesses).map_err(pleach::FinishError::into_error)?;
            runtime.step_some(rng.index(4));
            disk.mark(begun(number));
            block.commit().map_err(pleach::CommitError::into_error)
        }
    };
    // Before the result is looked at: what failed may be there all the same.
    story.push(setup, state, barrier);
    assert_eq!(result?, number);
    disk.mark(if whatever && barrier { durable(number) } else { acknowledged(number) });
    assert_eq!(db.roots().iter().collect::<Vec<_>>(), story.at(number).roots());
    Ok(())
}

fn run(setup: &Setup, disk: &SimDisk, commits: u64) -> Story {
    let mut rng = Rng::new(setup.seed);
    let mut story = Story { states: vec![Many::default()], from: vec![0] };
    let (mut db, mut runtime) = setup.open(disk, setup.seed).expect("created");
    disk.mark(durable(0));
    while story.newest() < commits {
        commit_one(setup, disk, (&db, &runtime), &mut rng, &mut story).expect("no faults here");
        match rng.below(16) {
            0 => db.drain(0).expect("drained"),
            1 => {
                if rng.below(2) == 0 {
                    db.close().expect("closed");
                } else {
                    drop(db);
                }
                (db, runtime) = setup.open(disk, rng.next()).expect("opened again");
                disk.mark(durable(story.newest()));
            }
            2..=9 => {
                runtime.step_some(rng.index(20));
            }
            _ => {}
        }
    }
    story
}

/// All that can be seen of a database is one commit's, and its history's.
fn assert_is(
    setup: &Setup,
    db: &SimDb,
    story: &Story,
    promise: Promise,
    what: &dyn Display,
) -> u64 {
    let found = db.commit_number();
    let promised = promise.least..=promise.most;
    assert!(promised.contains(&found), "{what}: commit {found} was found, {promise:?}");
    assert_eq!(db.roots().iter().collect::<Vec<_>>(), story.at(found).roots(), "{what}");
    assert_eq!(db.history(), story.from(found)..=found, "{what}: the history");
    for commit in story.from(found)..=found {
        let session = db.at(commit).unwrap_or_else(|error| panic!("{what}: {commit}: {error}"));
        assert_reads(setup, &session, story.at(commit), &format!("{what}, as of {commit}"));
    }
    found
}

fn check(setup: &Setup, disk: &SimDisk, story: &Story, promise: Promise, what: &dyn Display) {
    let (db, runtime) =
        setup.open(disk, 1).unwrap_or_else(|error| panic!("{what}: does not open: {error}"));
    let found = assert_is(setup, &db, story, promise, what);
    let mut story = story.clone();
    let kept = usize::try_from(found).expect("few commits") + 1;
    story.states.truncate(kept);
    story.from.truncate(kept);
    let mut rng = Rng::new(setup.seed ^ found);
    for _ in 0..3 {
        commit_one(setup, disk, (&db, &runtime), &mut rng, &mut story)
            .unwrap_or_else(|error| panic!("{what}: a commit after the crash: {error}"));
    }
    if rng.below(2) == 0 {
        db.close().unwrap_or_else(|error| panic!("{what}: closing: {error}"));
    } else {
        drop(db);
    }
    let (db, _) =
        setup.open(disk, 2).unwrap_or_else(|error| panic!("{what}: does not open again: {error}"));
    let all = Promise { least: story.newest(), most: story.newest() };
    assert_is(setup, &db, &story, all, what);
    db.close().unwrap_or_else(|error| panic!("{what}: closing: {error}"));
    let report = pleach::tools::check_on(disk, pleach::tools::CheckOptions::default())
        .unwrap_or_else(|error| panic!("{what}: checking: {error}"));
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
}

fn walk(setup: &Setup, commits: u64, stride: usize, outcomes: usize) -> u64 {
    let disk = SimDisk::new(setup.seed, SimOptions::default());
    let story = run(setup, &disk, commits);
    let trace = disk.trace();
    let offset = usize::try_from(setup.seed).unwrap_or(0) % stride;
    let points: Vec<_> = match only_boundary() {
        Some(boundary) => vec![trace.crash_point(boundary)],
        None => trace.crash_points().skip(offset).step_by(stride).collect(),
    };
    let mut schedules = 0;
    for point in points {
        let promise = setup.promise(point.marks());
        for outcome in point.outcomes(setup.seed, outcomes) {
            let what = format!("{setup:?}, {outcome}");
            check(setup, &outcome.disk_with(unrecorded()), &story, promise, &what);
            schedules += 1;
        }
    }
    schedules
}

#[test]
fn all_namespaces_are_at_one_commit_after_a_crash() {
    let since = Instant::now();
    let mut schedules = 0;
    for seed in seeds(0, 10) {
        let mut setup = Setup::draw(seed);
        setup.ids = setup.ids.min(40);
        schedules += walk(&setup, 16, 7, 3);
    }
    for seed in seeds(100, 4) {
        let mut setup = Setup::draw(seed).durability(Durability::None);
        setup.ids = setup.ids.min(40);
        schedules += walk(&setup, 16, 11, 3);
    }
    report("several namespaces", schedules, since);
}

#[test]
fn their_history_survives_with_them() {
    let since = Instant::now();
    let mut schedules = 0;
    for seed in seeds(200, 8) {
        let mut setup = Setup::draw(seed);
        setup.ids = setup.ids.min(40);
        setup.history = 1 + seed % 6;
        schedules += walk(&setup, 20, 13, 3);
    }
    report("a history of several namespaces", schedules, since);
}

/// Regions split, images are overtaken, and dropped tries go while it happens.
#[test]
fn large_namespaces_come_and_go() {
    let since = Instant::now();
    let mut schedules = 0;
    for seed in seeds(300, 3) {
        let mut setup = Setup::draw(seed);
        (setup.checkpoint_regions, setup.ids, setup.flush_at) = (1, 300, 1);
        setup.history = seed % 2 * 2;
        schedules += walk(&setup, 30, 97, 2);
    }
    report("large namespaces", schedules, since);
}
