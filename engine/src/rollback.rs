//! Rollback: a commit that is made of undo.
//!
//! The changes are what commits since the wanted one have replaced; folded over the newest state they must
//! lead to the root that was recorded then, before anything is written. From there on it is a commit
//! like any other, and has no crash states of its own (rule `rollback-is-one-commit`). It is of all namespaces:
//! those that were added since are dropped, and those that were dropped since are restored.

use std::cell::Cell;

use pleach_beatree::Stored;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::stored::overflow_cell;
use pleach_core::{Hasher, Key};
use pleach_io::{Device, Runtime};

use crate::commit::{Target, commit};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::finish::outcome::TrieOutcome;
use crate::finish::{UnderWay, finish};
use crate::format::commit_body::EntryKind;
use crate::format::record::MAX_RECORD;
use crate::format::trie_kind::TrieKind;
use crate::roots::Roots;
use crate::state::{State, overflow};

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
    let (view, prev_roots) = db.commits.tip_view();
    let Some(wanted) = view.base.checked_sub(back) else {
        return Err(Error::SnapshotTooOld { commit: 0, oldest: db.commits.undo().from() });
    };
    let (then, roots) = db.commits.view_at(wanted)?;
    let blob = db.commits.commit_at(wanted)?.blob;
    let mut undone = Vec::with_capacity(roots.all().len());
    for (namespace, _) in roots.all() {
        undone.push((namespace, then.of(namespace).undone_all()?));
    }
    // Long values are in memory together until the commit has written them.
    let long = |prior: &Stored| match prior {
        Stored::Overflow(raw) => overflow_cell(raw).total_len(),
        _ => 0,
    };
    let bytes = undone.iter().flat_map(|(_, undone)| undone).map(|(_, prior)| long(prior)).sum();
    let limit = db.options.cache_bytes.max(MAX_RECORD);
    if bytes > limit {
        return Err(Error::BatchTooLarge { bytes, limit });
    }
    let mut accesses = Vec::new();
    for (namespace, undone) in undone {
        accesses.push((namespace, accesses_of::<H, D, R>(db, wanted, undone)?));
    }
    // Undo holds what later commits replaced only for as long as it may: all of it was there.
    then.check()?;
    if db.commits.published() != view.base {
        let tip = db.commits.published();
        return Err(Error::StaleParent { base: view.base, tip });
    }
    let mut outcomes = Vec::new();
    let mut fates = fates(&prev_roots, &roots);
    let count = accesses.iter().map(|(_, accesses)| accesses.len()).sum();
    let under_way = UnderWay::new(db, count);
    for (namespace, accesses) in accesses {
        let expected = roots.of(namespace).ok_or(Error::Namespace(namespace))?.node;
        // A namespace that was dropped since has the root that it had then, which the fold gives.
        let before = prev_roots.of(namespace).map_or(expected, |root| root.node);
        let (trie, view) = (engine.trie(namespace)?, view.of(namespace));
        let finished =
            finish(&trie, &engine.finisher, &under_way, (&view, &before), &accesses, false)?;
        if finished.root != expected {
            if trie.kind == TrieKind::Merkle {
                let found = finished.root;
                return Err(Contradiction::RollbackRoot { commit: wanted, expected, found }.into());
            }
            // A digest goes back with its state, and is made of nothing but what led to that.
            if prev_roots.of(namespace).is_some() {
                fates.push((namespace, EntryKind::Set));
            }
        }
        outcomes.push(TrieOutcome { namespace, chunks: finished.chunks });
    }
    fates.sort_unstable_by_key(|(namespace, _)| *namespace);
    let target = Target {
        view: &view,
        follows: view.base,
        prev_roots: &prev_roots,
        roots: &roots,
        fates: &fates,
        layers: &[],
        layouts: None,
        ticketed: &Cell::new(false),
    };
    let number = commit(engine, &target, &mut outcomes, Some(&blob))?;
    let end = db.commits.sequencer().lock().end();
    db.commits.sequencer().write_through(end, true).map_err(|error| {
        db.poison(&error);
        error.in_doubt()
    })?;
    Ok(number)
}

/// Writes of what keys had in the wanted commit.
fn accesses_of<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    wanted: u64,
    undone: Vec<(Key, Stored)>,
) -> Result<Vec<KeyAccess>> {
    let mut accesses = Vec::with_capacity(undone.len());
    for (key, prior) in undone {
        let prior = match prior {
            // A run has one owner: the page or the change that names it. So the value is written anew.
            Stored::Overflow(_) => {
                let value = overflow::value::<H, D, R>(db, wanted, prior, false)?;
                value.map_or(Stored::Absent, Stored::put::<H>)
            }
            other => other,
        };
        accesses.push(KeyAccess { key, reads: false, writes: Some(prior) });
    }
    Ok(accesses)
}

/// What becomes of the namespaces that only one of two states has.
fn fates(now: &Roots, then: &Roots) -> Vec<(u8, EntryKind)> {
    let only = |one: &Roots, other: &Roots, fate| -> Vec<(u8, EntryKind)> {
        let namespaces = one.all().map(|(namespace, _)| namespace);
        let gone = namespaces.filter(|namespace| other.of(*namespace).is_none());
        gone.map(|namespace| (namespace, fate)).collect()
    };
    let mut fates = only(now, then, EntryKind::Dropped);
    fates.extend(only(then, now, EntryKind::Restored));
    fates
}
