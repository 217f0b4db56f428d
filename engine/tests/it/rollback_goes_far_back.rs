//! A history of 1,500 commits, and rollbacks over as many of them as there are: states, roots and the history after them are the
//! model's, and after an open they still are.

use pleach_io::sim::SimDisk;
use pleach_ops::{CheckOptions, check_on};

use crate::common::{Rng, cases};
use crate::crash::check::{reads, state_of};
use crate::crash::workload::commit_one;
use crate::crash::{History, Promise, Setup, SimDb, unrecorded};

const COMMITS: u64 = 1500;

struct World {
    setup: Setup,
    disk: SimDisk,
    db: SimDb,
    rng: Rng,
    history: History,
}

impl World {
    /// A database of many commits, whose undo has this memory. One commit in seven goes back to any of those before it.
    fn new(seed: u64, history_bytes: u64) -> Self {
        let mut setup = Setup::draw(seed);
        (setup.history, setup.history_bytes, setup.ids) = (2 * COMMITS, history_bytes, 40);
        let disk = SimDisk::new(seed, unrecorded());
        let (db, runtime) = setup.open(&disk, seed).expect("created");
        let (mut rng, mut history) = (Rng::new(seed), History::default());
        for _ in 0..COMMITS {
            commit_one(&setup, &disk, &db, &runtime, &mut rng, &mut history).expect("committed");
            runtime.step_some(4);
        }
        Self { setup, disk, db, rng, history }
    }

    fn goes_back_to(&mut self, commit: u64) {
        self.history.push(self.history.model(commit).clone());
        let number = self.db.rollback_to(commit).expect("in the history");
        assert_eq!(self.db.rolled_back_to(number).expect("known"), Some(commit));
        self.is_as_the_model(&format!("back to {commit}"));
    }

    /// The newest state, and the begin, the end and some others of the history.
    fn is_as_the_model(&mut self, what: &str) {
        let newest = self.history.newest();
        state_of(&self.db, &self.history, Promise { least: newest, most: newest }, &what);
        reads(&self.setup, &self.db, self.history.model(newest), &what);
        assert_eq!(self.db.history(), 0..=newest, "{what}");
        let others = [self.rng.below(newest), self.rng.below(newest)];
        for commit in [0, 1, newest - 1, newest].into_iter().chain(others) {
            let session = self.db.at(commit).expect("in the history");
            assert_eq!(session.root(), self.history.root(commit), "{what}: commit {commit}");
            let pairs = session.iter(..).map(|pair| pair.expect("read"));
            let all = &self.history.model(commit).values;
            let all = all.iter().map(|(key, value)| (*key, value.clone()));
            assert!(pairs.eq(all), "{what}: the pairs of commit {commit}");
        }
    }

    /// Closed or not, it is opened with another memory for undo.
    fn opens_again(mut self, history_bytes: u64) -> Self {
        if self.rng.below(2) == 0 {
            self.db.close().expect("closed");
        }
        let Self { mut setup, disk, db, mut rng, history } = self;
        drop(db);
        setup.history_bytes = history_bytes;
        let (db, _) = setup.open(&disk, rng.next()).expect("opens");
        assert!(db.opened().lost.is_none(), "{:?}", db.opened());
        let mut again = Self { setup, disk, db, rng, history };
        again.is_as_the_model("opened again");
        again
    }
}

#[test]
fn a_rollback_over_a_thousand_commits_and_more_is_the_models() {
    for seed in 0..cases(1) {
        for memory in [1, 1 << 30] {
            let mut world = World::new(900 + seed, memory);
            world.is_as_the_model("at first");
            // To the empty state, out of it again, and to both ends of what lies between.
            for commit in [0, COMMITS, 1, COMMITS - 1, COMMITS / 2] {
                world.goes_back_to(commit);
            }
            let mut world = world.opens_again(if memory == 1 { 1 << 30 } else { 1 });
            let newest = world.history.newest();
            world.history.push(world.history.model(7).clone());
            assert_eq!(world.db.rollback(newest - 7).expect("in the history"), newest + 1);
            world.is_as_the_model("back over more than there were");
            for commit in [0, newest, 3] {
                world.goes_back_to(commit);
            }
            world.db.close().expect("closed");
            let report = check_on(&world.disk, CheckOptions::default()).expect("checked");
            assert!(report.findings.is_empty(), "{:?}", report.findings);
        }
    }
}
