//! Reading undo back from the log, for states that the history has and memory has not.

use std::ops::ControlFlow;

use pleach_core::Hasher;

use crate::error::{Contradiction, Error, Result};
use crate::format::commit_body::CommitView;
use crate::format::position::LogPos;
use crate::format::record::{Kind, RecordView};
use crate::history::{Merges, Runs};
use crate::log::walk;
use crate::state::Shared;
use crate::state::logged::Stretch;
use crate::state::replaced::{Restored, restored, restored_run};
use crate::state::replica::Replica;
use crate::state::view::View;

/// Tries of an operation between which memory has moved on.
const TRIES: u32 = 8;

/// Runs `what` on a view with complete undo; retries up to eight times when commits evict undo meanwhile.
///
/// # Errors
/// [`Error::SnapshotTooOld`], those of reading the log, and those of `what`; [`IoError::Forked`](pleach_io::IoError::Forked) in
/// a process that was forked since the database was opened.
#[inline]
pub(crate) fn with<T>(db: &Shared, view: &View, what: impl FnMut(&View) -> Result<T>) -> Result<T> {
    db.home.check()?;
    match &db.replica {
        None => with_memory::<T>(db, view, what),
        Some(replica) => with_replica::<T>(db, replica, view, what),
    }
}

/// The same in a replica: once more where what it reads has moved.
#[cold]
fn with_replica<T>(
    db: &Shared,
    replica: &Replica,
    view: &View,
    mut what: impl FnMut(&View) -> Result<T>,
) -> Result<T> {
    replica.read(db, view.base, || with_memory::<T>(db, view, &mut what))
}

#[inline]
fn with_memory<T>(db: &Shared, view: &View, mut what: impl FnMut(&View) -> Result<T>) -> Result<T> {
    let done = if view.is_behind_memory() { None } else { Some(what(view)) };
    match done {
        Some(done) if done.is_ok() || !view.is_behind_memory() => done,
        _ => with_logged::<T>(db, view, what),
    }
}

fn with_logged<T>(db: &Shared, view: &View, mut what: impl FnMut(&View) -> Result<T>) -> Result<T> {
    let mut tries = 1;
    loop {
        let whole = with_undo(db, view)?;
        match what(&whole) {
            Err(Error::SnapshotTooOld { .. }) if tries < TRIES && whole.is_behind_memory() => {
                tries += 1;
            }
            done => return done,
        }
    }
}

/// A view of the same state with all undo that it needs at hand, read back where memory has no more of it.
///
/// # Errors
/// [`Error::SnapshotTooOld`], and those of reading the log.
pub(crate) fn with_undo(db: &Shared, view: &View) -> Result<View> {
    let mut has_read = false;
    let whole = view.with_undo(|stretch| {
        has_read = true;
        // The window may move on meanwhile: then the records may be gone.
        read(db, stretch).map_err(|error| match db.commits.undo().check(view.base) {
            Ok(()) => error,
            Err(too_old) => too_old,
        })
    });
    if has_read {
        db.fit_cache();
    }
    whole
}

/// The undo of the commits of a stretch, as their records have it.
fn read(db: &Shared, stretch: &Stretch) -> Result<Runs> {
    let (database, size) = (db.store.database(), db.images.newest().geometry.log_segment);
    let (mut runs, mut merges, mut last) = (Runs::default(), Merges::default(), stretch.after);
    walk(db.store.device(), database, size, stretch.start.into(), LogPos::MAX, |record| {
        if record.header.kind != Kind::Commit {
            return Ok(ControlFlow::Continue(()));
        }
        let all = replaced(db.hasher, record, &mut last)?;
        let (run, _) = restored_run(&runs, last, &all);
        merges.push(&mut runs, run);
        let is_last = last == stretch.through;
        Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })
    .map_err(|broken: crate::log::Broken<Error>| broken.error)?;
    Ok(runs)
}

/// What a commit, the one after `last`, has replaced.
fn replaced(hasher: Hasher, record: &RecordView<'_>, last: &mut u64) -> Result<Vec<Restored>> {
    let header = &record.header;
    if header.number != *last + 1 {
        return Err(Contradiction::CommitOrder { before: *last, found: header.number }.into());
    }
    *last = header.number;
    let bad = |error| Contradiction::Record { position: header.position, error };
    let namespaces = CommitView::parse(record.body).map_err(bad)?.namespaces();
    namespaces.map(|namespace| restored(hasher, &namespace.map_err(bad)?, header)).collect()
}
