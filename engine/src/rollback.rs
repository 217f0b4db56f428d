//! Rollback: a commit that is made of undo.
//!
//! The changes are what commits since the wanted one have replaced; folded over the newest state they must
//! lead to the root that was recorded then, before anything is written. From there on it is a commit
//! like any other, and has no crash states of its own (rule `rollback-is-one-commit`).

use std::cell::Cell;

use pleach_beatree::Stored;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::stored::overflow_cell;
use pleach_core::Hasher;
use pleach_io::{Device, Runtime};

use crate::commit::{Target, commit};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::finish::finish;
use crate::format::record::MAX_RECORD;
use crate::state::overflow;

/// Tries before commits that come between are reported.
const TRIES: u32 = 4;

/// Makes the state `back` commits before the newest one the newest; gives the number of the commit.
pub(crate) fn rollback<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    back: u64,
) -> Result<u64> {
    let mut tries = 1;
    loop {
        match attempt(engine, back) {
            Err(Error::StaleParent { .. }) if tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

fn attempt<H: Hasher, D: Device, R: Runtime>(engine: &Engine<H, D, R>, back: u64) -> Result<u64> {
    let db = &engine.state;
    let (view, prev_root) = db.commits.tip_view();
    let Some(wanted) = view.base.checked_sub(back) else {
        return Err(Error::SnapshotTooOld { commit: 0, oldest: db.commits.undo().from() });
    };
    let (then, root) = db.commits.view_at(wanted)?;
    let blob = db.commits.commit_at(wanted)?.blob;
    let undone = then.undone_all()?;
    // Long values are in memory together until the commit has written them.
    let long = |prior: &Stored| match prior {
        Stored::Overflow(raw) => overflow_cell(raw).total_len(),
        _ => 0,
    };
    let bytes = undone.iter().map(|(_, prior)| long(prior)).sum();
    let limit = db.options.cache_bytes.max(MAX_RECORD);
    if bytes > limit {
        return Err(Error::BatchTooLarge { bytes, limit });
    }
    let mut accesses = Vec::new();
    for (key, prior) in undone {
        let prior = match prior {
            // A run has one owner: the page or the change that names it. So the value is written anew.
            Stored::Overflow(_) => {
                overflow::value::<H, D, R>(db, prior)?.map_or(Stored::Absent, Stored::put::<H>)
            }
            other => other,
        };
        accesses.push(KeyAccess { key, reads: false, writes: Some(prior) });
    }
    // Undo holds what later commits replaced only for as long as it may: all of it was there.
    then.check()?;
    if db.commits.published() != view.base {
        let tip = db.commits.published();
        return Err(Error::StaleParent { base: view.base, tip });
    }
    let mut finished = finish(db, &engine.finisher, &view, &prev_root, &accesses, false)?;
    if finished.root != root {
        let (expected, found) = (root, finished.root);
        return Err(Contradiction::RollbackRoot { commit: wanted, expected, found }.into());
    }
    let (prev_root, root, ticketed) = (&prev_root, &root, &Cell::new(false));
    let follows = view.base;
    let target = Target { view: &view, follows, prev_root, root, layers: &[], ticketed };
    let number = commit(engine, &target, &mut finished.chunks, Some(&blob))?;
    let end = db.commits.sequencer().lock().end();
    db.commits.sequencer().write_through(end, true).map_err(|error| {
        db.poison(&error);
        error.in_doubt()
    })?;
    Ok(number)
}
