//! Commit `wait`: commits wait while there are too many buffered changes, too much log or undo that is not on the device,
//! or too little room on the device.

use std::time::Duration;

use pleach_beatree::Stored;
use pleach_beatree::page_no::page_offset;
use pleach_beatree::pages::SpaceDemand;
use pleach_core::page::stream::PAYLOAD;

use super::is_written_before_record;
use crate::error::{Error, NoRoom, Result};
use crate::finish::outcome::TrieOutcome;
use crate::metrics::Counters;
use crate::state::NamespaceDb;

/// The longest time that a commit waits for room on the device.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that a change takes beside its value: key, lengths, nodes.
const CHANGE: usize = 64;

/// Waits while buffered changes or the log are over their limits, or the device has too little room for these outcomes,
/// until the background has made room or reports that it cannot; with `no_wait` gives an error instead.
pub(super) fn throttle(db: &NamespaceDb, outcomes: &[TrieOutcome], no_wait: bool) -> Result<()> {
    let wanted = space_demand(db, outcomes);
    let pending_is_full = || db.budget.is_buffered_over_limit();
    let undo = &db.commits.undo;
    let log_is_full = || db.budget.is_log_full(db.log_length()) || undo.needs_writing(1);
    let mut room = db.admit(wanted);
    if !pending_is_full() && !log_is_full() && room.is_ok() {
        return Ok(());
    }
    if no_wait {
        db.pace.wake();
        return check_waiting_helps(db, pending_is_full(), log_is_full(), wanted, &mut room)
            .and(Err(Error::WouldWait));
    }
    let since = db.pace.now();
    let mut outcome = Ok(());
    // Buffered changes take room in the log and, for their pages, on the device.
    let draining = room.is_err().then(|| db.pace.begin_drain());
    db.pace.wake();
    let is_over = db.pace.wait(draining.as_ref().map(|_| ROOM_TIMEOUT), &mut || {
        let (buffered, log) = (pending_is_full(), log_is_full());
        if draining.is_some() {
            room = db.admit(wanted);
        }
        outcome = check_waiting_helps(db, buffered, log, wanted, &mut room);
        // While the caller pauses the background, waiting would never end.
        outcome.is_err() || db.pace.is_paused() || !(buffered || log || room.is_err())
    });
    let waited = db.pace.now().saturating_sub(since);
    let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
    Counters::add(&db.counters.stalled_micros, waited);
    tracing::debug!(microseconds = waited, "a commit has waited for the background");
    if !is_over && room.is_ok() {
        // The device has room now: the other limits are waited for without a timeout.
        return throttle(db, outcomes, no_wait);
    }
    outcome.and(room)
}

/// The space on the device that these outcomes need.
fn space_demand(db: &NamespaceDb, outcomes: &[TrieOutcome]) -> SpaceDemand {
    let mut wanted = SpaceDemand::default();
    let keeps_history = db.commits.undo.has_history();
    let chunks = outcomes.iter().flat_map(|trie| &trie.chunks);
    for changed in chunks.flat_map(|chunk| &*chunk.changes) {
        // Longer values are in the overflow file when the record is written.
        let own = if is_written_before_record(&changed.new) { 0 } else { changed.new.heap_bytes() };
        let prior = if keeps_history { changed.prior.heap_bytes() } else { 0 };
        wanted.log += (CHANGE + own + prior) as u64;
        match &changed.new {
            Stored::Absent => {}
            Stored::Long(large) => {
                wanted.leaf += CHANGE as u64;
                wanted.overflow += page_offset(large.bytes.len().div_ceil(PAYLOAD) as u64);
            }
            new => wanted.leaf += (CHANGE + new.heap_bytes()) as u64,
        }
    }
    wanted
}

/// The error of a condition that waiting does not end, if there is one.
fn check_waiting_helps(
    db: &NamespaceDb,
    buffered: bool,
    log: bool,
    wanted: SpaceDemand,
    room: &mut Result<()>,
) -> Result<()> {
    db.commits.sequencer.lock().check_open()?;
    if let Err(error) = room {
        // A checkpoint names a shorter log before it deletes files: one that is still being made may free room, too.
        let shortens = (db.can_checkpoint_free_room() || db.images.is_image_in_progress())
            && !db.pace.is_checkpoint_full.get()
            && db.pace.checkpoint_error().is_none();
        // Pages that a flush has replaced become free when its record is durable and no reader uses them.
        let frees = db.space.has_retired_leaves() || db.can_release_extents();
        if !matches!(error, Error::Full(_)) || !(db.is_being_drained() || shortens || frees) {
            // The background may have made room since that was looked at.
            *room = db.admit(wanted);
            room.clone()?;
        }
    }
    if buffered {
        if db.pace.is_flush_full.get() {
            return Err(NoRoom::PendingChanges.into());
        }
        db.pace.flush_error(db.commits.published()).map_or(Ok(()), Err)?;
    }
    if log {
        db.pace.checkpoint_error().map_or(Ok(()), Err)?;
        if db.pace.is_checkpoint_full.get() {
            return Err(NoRoom::Checkpoint.into());
        }
    }
    Ok(())
}
