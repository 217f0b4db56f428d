//! Adding and dropping namespaces: commits that change no key.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use pleach_journal::format::commit_body::EntryKind;
use pleach_journal::format::trie_kind::TrieKind;

use crate::commit::{CommitOptions, CommitTarget, StateTransition, commit, wait_for_publication};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::roots::TrieRoot;

/// Attempts before commits that come between are reported. An attempt folds nothing, so that little time passes between
/// reading the newest commit and its ticket.
const TRIES: u32 = 64;

/// The longest time that an add waits until the pages of a dropped trie without readers are reclaimed.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds an empty namespace of a kind; gives the number of the commit.
pub(crate) fn add(engine: &Engine, namespace: u8, kind: TrieKind) -> Result<u64> {
    retry_change(engine, namespace, Some(kind))
}

/// Drops a namespace; gives the number of the commit.
pub(crate) fn drop(engine: &Engine, namespace: u8) -> Result<u64> {
    if namespace == 0 {
        return Err(Error::NamespaceExists(0));
    }
    retry_change(engine, namespace, None)
}

fn retry_change(engine: &Engine, namespace: u8, added: Option<TrieKind>) -> Result<u64> {
    let mut tries = 1;
    loop {
        match try_change(engine, namespace, added) {
            Err(Error::StaleParent { .. }) if tries < TRIES => tries += 1,
            Err(Error::NamespaceInUse { dropped, .. })
                if tries < TRIES && wait_for_reclaim(engine, namespace, dropped) =>
            {
                tries += 1;
            }
            done => return done,
        }
    }
}

/// Waits for the background to reclaim the trie that commit `dropped` has dropped, unless somebody can still read it.
/// True when the add should be tried again, since the outcome may be another one now.
fn wait_for_reclaim(engine: &Engine, namespace: u8, dropped: u64) -> bool {
    let db = &engine.db;
    let undo = &db.commits.undo;
    if undo.oldest_held().min(undo.oldest_commit()) < dropped || db.pace.is_paused() {
        return false;
    }
    // The trie is reclaimed when a durable record says that nobody reads it.
    if engine.sync().is_err() {
        return true;
    }
    db.pace.wake();
    // Another thread may add a namespace of the same number before this looks again.
    let gone = || db.tries.get(namespace).and_then(|trie| trie.dropped) != Some(dropped);
    let ends = || db.commits.sequencer.lock().check_open().is_err();
    db.pace.wait(Some(RECLAIM_TIMEOUT), &mut || gone() || ends())
}

fn try_change(engine: &Engine, namespace: u8, added: Option<TrieKind>) -> Result<u64> {
    let db = &engine.db;
    let (view, _) = db.commits.tip_view();
    let newest = {
        let state = db.commits.sequencer.lock();
        state.check_open()?;
        state.newest.clone()
    };
    // The set of tries is known when all commits before the ticket are published.
    wait_for_publication(db, newest.number)?;
    let exists = newest.roots.of(namespace).is_some();
    match added {
        Some(_) if exists => return Err(Error::NamespaceExists(namespace)),
        None if !exists => return Err(Error::Namespace(namespace)),
        _ => {}
    }
    if added.is_some()
        && let Some(trie) = db.tries.get(namespace)
    {
        // A trie that is not dropped was added by somebody since.
        let stale = Error::StaleParent { base: newest.number, tip: db.commits.published() };
        let in_use = |dropped| Error::NamespaceInUse { namespace, dropped };
        return Err(trie.dropped.map_or(stale, in_use));
    }
    let root = added.map(TrieRoot::empty);
    let entry_kind = if added.is_some() { EntryKind::Added } else { EntryKind::Dropped };
    let roots = newest.roots.with([(namespace, root)]);
    let transition =
        StateTransition { roots, blob: Arc::clone(&newest.blob), prev: newest, layouts: None };
    let has_ticket = Cell::new(false);
    let target =
        CommitTarget::new(&transition, &view, CommitOptions::new().exact(true), &has_ticket);
    let entry_kinds = &[(namespace, entry_kind)];
    commit(engine, &CommitTarget { entry_kinds, ..target }, &mut [])
}

#[cfg(test)]
mod tests {
    use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

    use super::*;
    use crate::{Access, Db, Geometry, Options, SessionOptions, Value};

    /// An add that was prepared before others have added, filled and dropped the namespace: the roots are equal again,
    /// and the dropped trie still exists. The add's record made a database that did not open.
    #[test]
    fn an_add_over_a_dropped_namespace_has_a_stale_parent() {
        let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = Options::new("sim").create(true).geometry(Geometry::least());
        let db = Db::open_on(disk.clone(), runtime, options).expect("created");
        let engine = db.engine();
        let (view, _) = engine.db.commits.tip_view();
        let newest = engine.db.commits.tip();
        db.add_namespace(5).expect("added");
        let put = Access::write([7; 32], Some(Value::from([1; 9].as_slice()))).in_namespace(5);
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(vec![put]).expect("finished").commit().expect("committed");
        let dropped = db.drop_namespace(5).expect("dropped");
        assert_eq!(db.roots(), newest.roots, "as it was before");
        let roots = newest.roots.with([(5, Some(TrieRoot::empty(TrieKind::Merkle)))]);
        let transition = StateTransition {
            prev: newest.clone(),
            roots,
            blob: Arc::clone(&newest.blob),
            layouts: None,
        };
        let (has_ticket, exact) = (Cell::new(false), CommitOptions::new().exact(true));
        let target = CommitTarget::new(&transition, &view, exact, &has_ticket);
        let entry_kinds = &[(5, EntryKind::Added)];
        let late = commit(&engine, &CommitTarget { entry_kinds, ..target }, &mut []);
        assert!(matches!(late, Err(Error::StaleParent { .. })), "{late:?}");
        assert!(matches!(db.add_namespace(5), Err(Error::NamespaceInUse { namespace: 5, .. })));
        std::mem::drop((view, engine, db));
        let runtime = SimRuntime::with_clock(2, disk.clock(), 1);
        let options = Options::new("sim").geometry(Geometry::least());
        let db = Db::open_on(disk, runtime, options).expect("opens");
        assert_eq!((db.commit_number(), db.roots()), (dropped, newest.roots));
    }
}
