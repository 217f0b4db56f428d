//! Maintenance beside commits: scrubs of the newest state and verified backups.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pleach::Db;
use pleach::scrub::{ScrubOptions, scrub};
use pleach_ops::{BackupOptions, backup};

use crate::error::{Error, Result, of_engine, wrong};
use crate::job_context::JobContext;
use crate::measure::Times;

/// The shortest pause between two tasks, and the longest sleep between two looks at the stop flag.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(20);

/// What is done beside commits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Task {
    Scrub,
    Backup,
}

impl Task {
    /// Does it once. A backup goes to the folder `copy`, which is removed then.
    pub fn run(self, db: &Db, copy: &Path, stop: &Arc<AtomicBool>) -> Result<()> {
        if self == Self::Backup {
            backup(db, copy, &BackupOptions::new()).map_err(of_engine("pleach"))?;
            return std::fs::remove_dir_all(copy).map_err(Error::file(copy));
        }
        let session = db.snapshot().map_err(of_engine("pleach"))?;
        let options = ScrubOptions::new().stop(Some(stop.clone()));
        let report = scrub(&session, &options).map_err(of_engine("pleach"))?;
        if report.bad.is_empty() && (report.stopped || report.is_clean()) {
            return Ok(());
        }
        wrong(format!("a scrub: {report:?}"))
    }
}

/// Names of the figures of commits beside nothing and each task.
const CASES: [&str; 3] = ["beside no maintenance", "beside a scrub", "beside a backup"];

/// A thread that scrubs and backs up by turns, and rests after each as long as it took, so that one run has commits beside
/// each and beside neither.
pub struct Maintenance {
    thread: Option<JoinHandle<Result<u64>>>,
    shared: Arc<Shared>,
    /// The case at the end of the last batch.
    last: usize,
    times: [Times; CASES.len()],
}

#[derive(Default)]
struct Shared {
    stop: Arc<AtomicBool>,
    case: AtomicU8,
}

impl Maintenance {
    /// Starts it. `copy`: the folder of backups; what a killed run has left there is removed.
    pub fn start(db: &Db, copy: PathBuf) -> Result<Self> {
        if copy.exists() {
            std::fs::remove_dir_all(&copy).map_err(Error::file(&copy))?;
        }
        let shared = Arc::new(Shared::default());
        let (db, its) = (db.clone(), shared.clone());
        let thread = Some(std::thread::spawn(move || by_turns(&db, &copy, &its)));
        Ok(Self { thread, shared, last: 0, times: Default::default() })
    }

    /// A batch was committed; `time` is that of its finish and commit.
    ///
    /// # Errors
    /// Those of the tasks.
    pub fn committed(&mut self, time: Duration) -> Result<()> {
        let case = usize::from(self.shared.case.load(Ordering::Relaxed));
        // What one batch has of two cases belongs to neither.
        if case == self.last {
            self.times[case].record(time);
        }
        self.last = case;
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join()?;
        }
        Ok(())
    }

    /// Waits for the task at hand, for which background work must go on, and gives the figures.
    pub fn end(mut self, side: &JobContext) -> Result<()> {
        let done = self.join()?;
        for (case, times) in CASES.iter().zip(&self.times).filter(|(_, times)| times.count() > 0) {
            side.figure(times.latencies(case, "finish + commit").committed())?;
        }
        side.note(format!("{done} scrubs and backups, all of them clean"))
    }

    fn join(&mut self) -> Result<u64> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map_or(Ok(Ok(0)), JoinHandle::join);
        ended
            .unwrap_or_else(|_| Err(Error::Failed("the thread of maintenance panicked".to_owned())))
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

/// Tasks by turns until the stop flag is set; returns how many ended before that.
fn by_turns(db: &Db, copy: &Path, shared: &Shared) -> Result<u64> {
    let mut done = 0;
    for (case, task) in [(1, Task::Scrub), (2, Task::Backup)].into_iter().cycle() {
        let from = Instant::now();
        shared.case.store(case, Ordering::Relaxed);
        task.run(db, copy, &shared.stop)?;
        shared.case.store(0, Ordering::Relaxed);
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        done += 1;
        let until = Instant::now() + from.elapsed().max(LEAST_PAUSE);
        while Instant::now() < until && !shared.stop.load(Ordering::Relaxed) {
            std::thread::sleep(NAP);
        }
    }
    Ok(done)
}
