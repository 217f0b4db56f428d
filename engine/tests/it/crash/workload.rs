//! A run from a seed: commits of all kinds with background steps in between.

use pleach::{Access, AccessKind, Durability, Error, SessionOptions, Value};
use pleach_io::sim::{SimDisk, SimRuntime};

use super::{History, PERIOD, Setup, SimDb, acknowledged, begun, durable};
use crate::common::{Model, Rng, bytes};

/// What a run leaves behind.
pub struct Run {
    pub history: History,
    /// Newest commit that was acknowledged.
    pub acknowledged: u64,
    /// The first error that the engine gave, and after which commit.
    pub failed: Option<Error>,
    /// Images that commits or flushes fell into.
    pub overtaken: u64,
    /// Leaf pages at most.
    pub pages: u64,
}

/// A value: mostly small, some that fill a page, some beyond a page, few beyond a log record.
pub fn value(rng: &mut Rng) -> Value {
    let len = match rng.below(60) {
        0 => 100_000,
        1..=3 => 5000,
        4..=24 => 1000,
        25 => 0,
        _ => 8,
    };
    bytes(rng, len)
}

/// The accesses of one commit over the state `model`.
pub fn batch(rng: &mut Rng, setup: &Setup, model: &Model) -> Vec<Access> {
    match rng.below(12) {
        0 => return Vec::new(),
        1 => return model.values.keys().map(|key| Access::write(*key, None)).collect(),
        2 => {
            let same = |(key, value): (&_, &Value)| Access::read_write(*key, Some(value.clone()));
            return model.values.iter().take(4).map(same).collect();
        }
        _ => {}
    }
    let most = if rng.below(4) == 0 { setup.ids } else { 4 };
    let count = 1 + rng.below(most);
    let deletes = [0, 10, 60][rng.index(3)];
    let mut seen = std::collections::BTreeSet::new();
    let mut accesses = Vec::new();
    for _ in 0..count {
        let id = rng.below(setup.ids);
        if !seen.insert(id) {
            continue;
        }
        let new = if rng.below(100) < deletes { None } else { Some(value(rng)) };
        let kind = match rng.below(6) {
            0 => AccessKind::Read,
            1 | 2 => AccessKind::Write(new),
            _ => AccessKind::ReadWrite(new),
        };
        accesses.push(Access { namespace: 0, key: setup.key(id), kind });
    }
    accesses
}

/// Commits one batch, or rolls back; the marks say how far it came.
pub fn commit_one(
    setup: &Setup,
    disk: &SimDisk,
    db: &SimDb,
    runtime: &SimRuntime,
    rng: &mut Rng,
    history: &mut History,
) -> Result<(), Error> {
    let number = history.newest() + 1;
    if setup.history.min(history.newest()) > 0 && rng.below(6) == 0 {
        let back = 1 + rng.below(setup.history.min(history.newest()));
        history.push(history.model(history.newest() - back).clone());
        disk.mark(begun(number));
        assert_eq!(db.rollback(back)?, number);
        assert_eq!(db.root(), history.root(number), "root of the rollback {number}");
        // Whatever the mode.
        disk.mark(durable(number));
        return Ok(());
    }
    let accesses = batch(rng, setup, history.model(history.newest()));
    commit_batch((setup, disk), (db, runtime), rng, history, accesses)
}

/// Commits these accesses; the marks say how far it came.
pub fn commit_batch(
    (setup, disk): (&Setup, &SimDisk),
    (db, runtime): (&SimDb, &SimRuntime),
    rng: &mut Rng,
    history: &mut History,
    accesses: Vec<Access>,
) -> Result<(), Error> {
    let number = history.newest() + 1;
    let mut model = history.model(history.newest()).clone();
    let session = db.session(SessionOptions::new().witness(rng.below(2) == 0))?;
    let probe = setup.key(rng.below(setup.ids));
    assert_eq!(
        session.read(&probe)?,
        model.values.get(&probe).cloned(),
        "a read before commit {number}"
    );
    runtime.step_some(rng.index(4));
    model.apply(&accesses);
    let block = session.finish(accesses)?;
    runtime.step_some(rng.index(4));
    history.push(model);
    assert_eq!(block.root(), history.root(number), "root of commit {number}");
    disk.mark(begun(number));
    assert_eq!(block.commit()?, number);
    disk.mark(acknowledged(number));
    Ok(())
}

/// Creates a database and commits to it, `commits` times; sometimes it drains, or closes or
/// drops the database and opens it again. Ends at the first error.
pub fn run(setup: &Setup, disk: &SimDisk, commits: u64) -> Run {
    let history = History::default();
    let mut run = Run { history, acknowledged: 0, failed: None, overtaken: 0, pages: 0 };
    run.failed = go(setup, disk, commits, &mut run).err();
    run
}

fn go(setup: &Setup, disk: &SimDisk, commits: u64, run: &mut Run) -> Result<(), Error> {
    let mut rng = Rng::new(setup.seed);
    let (mut db, mut runtime) = setup.open(disk, setup.seed)?;
    disk.mark(durable(0));
    for _ in 0..commits {
        commit_one(setup, disk, &db, &runtime, &mut rng, &mut run.history)?;
        run.acknowledged = run.history.newest();
        let metrics = db.metrics();
        run.overtaken = run.overtaken.max(metrics.checkpoints_overtaken);
        run.pages = run.pages.max(metrics.leaf_pages);
        match rng.below(16) {
            0 => db.drain(0)?,
            1 => {
                if rng.below(2) == 0 {
                    db.close()?;
                } else {
                    drop(db);
                }
                (db, runtime) = setup.open(disk, rng.next())?;
                disk.mark(durable(run.history.newest()));
            }
            2 if matches!(setup.durability, Durability::Periodic(_)) => {
                // Everything runnable runs, the period passes, and the sync is due.
                runtime.step_some(1000);
                runtime.clock().advance(2 * PERIOD);
                runtime.step_some(1000);
                disk.mark(durable(run.history.newest()));
            }
            2..=8 => {
                runtime.step_some(rng.index(12));
            }
            _ => {}
        }
    }
    if rng.below(2) == 0 {
        db.close()?;
        disk.mark(durable(run.history.newest()));
    }
    Ok(())
}
