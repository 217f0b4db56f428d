//! Commit `wait`: commits wait while there are too many pending changes or too much log.

use crate::error::{Error, NoRoom, Result};
use crate::metrics::Counters;
use crate::state::State;

/// Waits while pending changes or the log are over their limits, until the background has made room or
/// says that it cannot; `at_once` gives an error instead.
pub(super) fn throttle(db: &State, at_once: bool) -> Result<()> {
    let pending_is_full = || db.budget.pending_is_full();
    let log_is_full = || db.budget.log_is_full(db.log_length());
    if !pending_is_full() && !log_is_full() {
        return Ok(());
    }
    if at_once {
        db.pace.wake();
        return refused(db, pending_is_full(), log_is_full()).and(Err(Error::WouldWait));
    }
    let since = db.pace.now();
    let mut outcome = Ok(());
    db.pace.wake();
    db.pace.wait(None, &mut || {
        let (pending, log) = (pending_is_full(), log_is_full());
        outcome = refused(db, pending, log);
        // While the caller holds the background back, waiting would never end.
        outcome.is_err() || db.pace.is_paused() || !(pending || log)
    });
    let waited = db.pace.now().saturating_sub(since);
    let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
    Counters::add(&db.counters.stalled_micros, waited);
    tracing::debug!(microseconds = waited, "a commit has waited for the background");
    outcome
}

/// The error of what no waiting helps against, if there is anything like that.
fn refused(db: &State, pending: bool, log: bool) -> Result<()> {
    db.commits.sequencer().lock().check_open()?;
    if pending {
        if db.pace.flush_is_full() {
            return Err(NoRoom::PendingChanges.into());
        }
        db.pace.flush_error(db.commits.published()).map_or(Ok(()), Err)?;
    }
    if log {
        db.pace.checkpoint_error().map_or(Ok(()), Err)?;
        if db.pace.checkpoint_is_full() {
            return Err(NoRoom::Checkpoint.into());
        }
    }
    Ok(())
}
