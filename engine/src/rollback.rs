//! Rollback: a commit that is made of undo.
//!
//! The changes are what commits since the wanted one have replaced; folded over the newest state they must
//! lead to the root that was recorded then, before anything is written. From there on it is a commit
//! like any other, and has no crash states of its own (rule `rollback-is-one-commit`).

use pleach_beatree::Stored;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_core::Hasher;
use pleach_io::{Device, Runtime};

use crate::commit::{Target, commit};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::finish::finish;
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
    let mut accesses = Vec::new();
    for (key, prior) in then.undone_all()? {
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
    let (follows, layers) = (view.base, &[]);
    let target = Target { view: &view, follows, prev_root: &prev_root, root: &root, layers };
    let number = commit(engine, &target, &mut finished.chunks, Some(&blob))?;
    let end = db.commits.sequencer().lock().end();
    db.commits.sequencer().write_through(end, true).map_err(|error| error.in_doubt())?;
    Ok(number)
}
