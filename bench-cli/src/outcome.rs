//! The outcomes of subcommands, before they are printed.

use crate::backend::{Kind, Root};
use crate::child::{CheckResult, LoadResult, RunResult};
use crate::measure::Phase;

/// Everything about one backend's run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) load: LoadResult,
    /// Was it loaded by this command?
    pub(crate) loaded_now: bool,
    pub(crate) run: RunResult,
    /// Absent if a signal came before it ended.
    pub(crate) check: Option<CheckResult>,
    /// Was the system's page cache dropped before the run?
    pub(crate) dropped_caches: bool,
}

/// How the backends' roots were compared.
#[derive(Debug)]
pub(crate) struct Compared {
    /// Backends whose roots are the same for the same pairs.
    pub(crate) backends: usize,
    /// Number of states (the load and each batch) for which all of these have a root.
    pub(crate) states: u64,
}

/// The outcome of a backend's kills.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) kind: Kind,
    pub(crate) kills: u32,
    /// Reopened at the last acknowledged batch.
    pub(crate) at_acknowledged: u32,
    /// Reopened at the batch whose commit was interrupted.
    pub(crate) at_interrupted: u32,
    /// Offline checks that found nothing; 0 if the engine has no checker.
    pub(crate) clean_checks: u32,
    pub(crate) open_after_kill: Phase,
    pub(crate) open_after_close: Phase,
    /// Absent after a signal.
    pub(crate) check: Option<CheckResult>,
    pub(crate) root: Root,
    pub(crate) seconds: f64,
}
