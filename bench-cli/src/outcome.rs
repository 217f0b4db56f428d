//! What a subcommand came to, before it is printed.

use crate::backend::{Kind, Root};
use crate::child::{CheckResult, LoadResult, RunResult};
use crate::measure::Phase;

/// Everything about one backend's run.
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) load: LoadResult,
    /// Was it loaded by this command?
    pub(crate) loaded_now: bool,
    pub(crate) run: RunResult,
    /// Absent when a signal came before its end.
    pub(crate) check: Option<CheckResult>,
    /// Was the system's page cache dropped before the run?
    pub(crate) dropped_caches: bool,
}

/// How the backends' roots were compared.
pub(crate) struct Compared {
    /// States (the load and each batch) that all backends have a root for.
    pub(crate) states: u64,
}

/// What a backend's cycles came to.
pub(crate) struct Recovered {
    pub(crate) kind: Kind,
    pub(crate) kills: u32,
    /// Reopened at the last acknowledged batch.
    pub(crate) at_acknowledged: u32,
    /// Reopened at the one whose commit was interrupted.
    pub(crate) at_interrupted: u32,
    /// Offline checks that found nothing; 0 where there is no checker.
    pub(crate) clean_checks: u32,
    pub(crate) open_after_kill: Phase,
    pub(crate) open_after_close: Phase,
    /// Absent after a signal.
    pub(crate) check: Option<CheckResult>,
    pub(crate) root: Root,
    pub(crate) seconds: f64,
}
