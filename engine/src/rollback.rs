//! Rollback: a commit whose changes are made from undo.
//!
//! The changes are the values that commits since the wanted one have replaced; folded over the newest state they must
//! lead to the root that was recorded then, before anything is written. From there on it is a commit like any other,
//! and has no crash states of its own (rule `rollback-is-one-commit`). It covers all namespaces: those that were added
//! since are dropped, and those that were dropped since are restored.

use std::cell::Cell;

use pleach_beatree::Stored;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::stored::overflow_cell;
use pleach_core::{Key, Node, Prefix};
use pleach_journal::format::commit_body::EntryKind;
use pleach_journal::format::record::MAX_RECORD;
use pleach_journal::format::trie_kind::TrieKind;

use crate::commit::{CommitOptions, CommitTarget, StateTransition, commit};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::finish::outcome::TrieOutcome;
use crate::finish::{BatchReservation, finish};
use crate::roots::Roots;
use crate::state::commits::CommitState;
use crate::state::values;
use crate::state::view::View;
use crate::state::{Database, NamespaceDb};

/// Attempts before commits that come between are reported.
const TRIES: u32 = 4;

/// Undoes exactly the newest `back` commits; gives the number of the new commit.
pub(crate) fn rollback(engine: &Engine, back: u64) -> Result<u64> {
    let commits = &engine.db.commits;
    let tip = commits.published();
    let far =
        || Error::TooFarBack { commits: back, most: tip - commits.undo.oldest_commit().min(tip) };
    let wanted = tip.checked_sub(back).ok_or_else(far)?;
    try_rollback(engine, wanted, Some(tip))
}

/// Makes the state of commit `wanted` the newest one; gives the number of the new commit.
pub(crate) fn rollback_to(engine: &Engine, wanted: u64) -> Result<u64> {
    let mut tries = 1;
    loop {
        match try_rollback(engine, wanted, None) {
            Err(Error::StaleParent { .. }) if tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

/// Goes back to commit `wanted`, from `base` if one is given, else from the newest commit.
fn try_rollback(engine: &Engine, wanted: u64, base: Option<u64>) -> Result<u64> {
    engine.db.commits.sequencer.lock().check_open()?;
    let (view, prev) = engine.db.commits.tip_view();
    let newest = view.base;
    let base = base.unwrap_or(newest);
    if newest != base {
        return Err(Error::StaleParent { base, tip: newest });
    }
    if wanted > newest {
        return Err(Error::NoSuchCommit { commit: wanted, tip: newest });
    }
    let number =
        if wanted < newest { prepare(engine, view, prev, wanted)?.commit(engine)? } else { newest };
    engine.sync()?;
    Ok(number)
}

/// A rollback that is not committed yet.
struct PreparedRollback {
    /// The newest commit, which the rollback is based on.
    view: View,
    /// The commit to go back to, pinned.
    wanted: View,
    transition: StateTransition,
    entry_kinds: Vec<(u8, EntryKind)>,
    outcomes: Vec<TrieOutcome>,
}

/// Prepares the rollback to commit `wanted` on a view of the newest one.
fn prepare(
    engine: &Engine,
    view: View,
    prev: CommitState,
    wanted: u64,
) -> Result<PreparedRollback> {
    let db = &engine.db;
    let (then, CommitState { roots, blob, .. }) = db.commits.view_at(wanted)?;
    let undone = db.run_read(wanted, || {
        let of = |namespace| {
            Ok((namespace, then.for_namespace(namespace).all_changes_below(&Prefix::ROOT)?))
        };
        roots.all().map(|(namespace, _)| of(namespace)).collect::<Result<Vec<_>>>()
    })?;
    // All long values are in memory together until the commit has written them.
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
        accesses.push((namespace, accesses_of(db, wanted, undone)?));
    }
    // The history may have removed replaced values meanwhile: checks that all of them were there.
    db.commits.undo.check_readable(wanted)?;
    if db.commits.published() != view.base {
        let tip = db.commits.published();
        return Err(Error::StaleParent { base: view.base, tip });
    }
    let mut outcomes = Vec::new();
    let mut entry_kinds = entry_kinds(&prev.roots, &roots);
    let count = accesses.iter().map(|(_, accesses)| accesses.len()).sum();
    let reservation = BatchReservation::new(db, count);
    for (namespace, accesses) in accesses {
        let expected = roots.of(namespace).ok_or(Error::Namespace(namespace))?.node;
        let before = match prev.roots.of(namespace) {
            Some(root) => root.node,
            None => root_when_dropped(db, namespace, view.base)?.unwrap_or(expected),
        };
        let (trie, view) = (engine.trie(namespace)?, view.for_namespace(namespace));
        let finished =
            finish(&trie, &engine.finisher, &reservation, (&view, &before), &accesses, false)?;
        if finished.root != expected {
            if trie.kind == TrieKind::Merkle {
                let found = finished.root;
                return Err(Contradiction::RollbackRoot { commit: wanted, expected, found }.into());
            }
            // A digest goes back with its state: it is computed from the changes that led to that state alone.
            if prev.roots.of(namespace).is_some() {
                entry_kinds.push((namespace, EntryKind::Set));
            }
        }
        outcomes.push(TrieOutcome { namespace, chunks: finished.chunks });
    }
    entry_kinds.sort_unstable_by_key(|(namespace, _)| *namespace);
    let transition = StateTransition { prev, roots, blob, layouts: None };
    Ok(PreparedRollback { view, wanted: then, transition, entry_kinds, outcomes })
}

/// The root of a dropped Merkle namespace that commit `base` does not have: its root before the drop. Other threads may
/// have restored it since, and dropped it again.
fn root_when_dropped(db: &Database, namespace: u8, base: u64) -> Result<Option<Node>> {
    let dropped = db.tries.get(namespace).and_then(|trie| trie.dropped);
    let Some(dropped) = dropped.filter(|dropped| *dropped <= base) else {
        return Err(Error::StaleParent { base, tip: db.commits.published() });
    };
    Ok(db.commits.commit_at(dropped - 1)?.roots.get(namespace))
}

impl PreparedRollback {
    fn target<'a>(&'a self, ticketed: &'a Cell<bool>) -> CommitTarget<'a> {
        let options =
            CommitOptions { exact: true, no_wait: false, back_to: Some(self.wanted.base) };
        let target = CommitTarget::new(&self.transition, &self.view, options, ticketed);
        CommitTarget { entry_kinds: &self.entry_kinds, ..target }
    }

    fn commit(mut self, engine: &Engine) -> Result<u64> {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let ticketed = Cell::new(false);
        commit(engine, &self.target(&ticketed), &mut outcomes)
    }
}

/// Writes of the values that keys had in the wanted commit.
fn accesses_of(
    db: &NamespaceDb,
    wanted: u64,
    undone: Vec<(Key, Stored)>,
) -> Result<Vec<KeyAccess>> {
    let mut accesses = Vec::with_capacity(undone.len());
    for (key, prior) in undone {
        let prior = match prior {
            // A run has one owner: the page or the change that names it. So the value is written anew.
            Stored::Overflow(_) => {
                let value = values::value(db, wanted, prior, false)?;
                value.map_or(Stored::Absent, |value| Stored::from_value(db.hasher, value))
            }
            other => other,
        };
        accesses.push(KeyAccess { key, reads: false, writes: Some(prior) });
    }
    Ok(accesses)
}

/// The entry kinds of namespaces that only one of two states has.
fn entry_kinds(now: &Roots, then: &Roots) -> Vec<(u8, EntryKind)> {
    let only = |one: &Roots, other: &Roots, entry_kind| -> Vec<(u8, EntryKind)> {
        let namespaces = one.all().map(|(namespace, _)| namespace);
        let gone = namespaces.filter(|namespace| other.of(*namespace).is_none());
        gone.map(|namespace| (namespace, entry_kind)).collect()
    };
    let mut entry_kinds = only(now, then, EntryKind::Dropped);
    entry_kinds.extend(only(then, now, EntryKind::Restored));
    entry_kinds
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

    use super::*;
    use crate::{Access, Db, Geometry, Options, SessionOptions, Value};
    use pleach_ops::{CheckOptions, check_on};

    type SimDb = Db;

    fn open(disk: &SimDisk) -> SimDb {
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = Options::new("sim").create(true).geometry(Geometry::least()).history(20);
        SimDb::open_on(disk.clone(), runtime, options).expect("opened")
    }

    fn put(db: &SimDb, value: u8) {
        let value = Value::from([value; 9].as_slice());
        let write = Access::write([7; 32], Some(value)).in_namespace(5);
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(vec![write]).expect("finished").commit().expect("committed");
    }

    fn value(db: &SimDb) -> Option<u8> {
        let session = db.session(SessionOptions::new()).expect("a session");
        let namespace = session.namespace(5).expect("it exists");
        namespace.read(&[7; 32]).expect("read").map(|value| value[0])
    }

    /// Restores namespace 5 as of commit 2 behind the back of others, who have written to it since: gives the database,
    /// its engine, and the rollback that was prepared before.
    fn overtaken(disk: &SimDisk, plain: bool) -> (SimDb, Arc<Engine>, PreparedRollback) {
        let db = open(disk);
        if plain { db.add_plain_namespace(5) } else { db.add_namespace(5) }.expect("added");
        put(&db, 1);
        assert_eq!(db.drop_namespace(5).expect("dropped"), 3);
        let engine = db.engine();
        let (view, prev) = engine.db.commits.tip_view();
        let late = prepare(&engine, view, prev, 2).expect("made");
        db.rollback(1).expect("restored");
        put(&db, 2);
        assert_eq!(db.rollback(2).expect("gone again"), 6);
        assert_eq!(db.roots(), db.commit_at(3).expect("in the history").roots);
        (db, engine, late)
    }

    /// A rollback that restores a namespace is prepared; then others restore it, write to it and go back, so that the
    /// roots are equal and the dropped trie has other values. It was committed, with the roots of commit 2 and the
    /// values of commit 5: a Merkle namespace did not open again, a plain one had wrong values.
    #[test]
    fn a_rollback_over_a_dropped_namespace_has_a_stale_parent() {
        for plain in [false, true] {
            let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
            let (db, engine, late) = overtaken(&disk, plain);
            let stale = late.commit(&engine);
            assert!(matches!(stale, Err(Error::StaleParent { base: 3, tip: 6 })), "{stale:?}");
            db.rollback(4).expect("restored");
            assert_eq!(value(&db), Some(1));
            drop((engine, db));
            assert_eq!(value(&open(&disk)), Some(1));
        }
    }
    /// The checker finds past states whose pairs do not have their roots or digests.
    #[test]
    fn check_finds_a_past_with_other_pairs() {
        for plain in [false, true] {
            let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
            let (db, engine, mut late) = overtaken(&disk, plain);
            let mut outcomes = std::mem::take(&mut late.outcomes);
            let ticketed = Cell::new(false);
            let wrong = CommitTarget { options: CommitOptions::new(), ..late.target(&ticketed) };
            commit(&engine, &wrong, &mut outcomes).expect("committed");
            if plain {
                put(&db, 3);
            } else {
                let session = db.session(SessionOptions::new()).expect("a session");
                let write = Access::write([7; 32], None).in_namespace(5);
                let refused = session.finish(vec![write]).expect_err("its nodes lead elsewhere");
                let is_told = |error: &Error| {
                    matches!(error, Error::Corrupt(Contradiction::NodesInMemory { .. }))
                };
                assert!(is_told(refused.error()), "{refused}");
            }
            drop((outcomes, late, engine, db));
            let report = check_on(&disk, CheckOptions::default()).expect("checked");
            let found: Vec<&str> = report.findings.iter().map(|one| one.what.as_str()).collect();
            if plain {
                let same = |commit: u64| {
                    format!(
                        "namespace 5: commits {commit} and 7 have the same digest and other pairs"
                    )
                };
                assert_eq!(found, [same(4), same(2)]);
            } else {
                assert!(found[0].contains("commit 7 has recorded the root"), "{found:?}");
            }
        }
    }
}
