//! Adding and dropping namespaces: commits that change no key.

use std::cell::Cell;

use pleach_core::{Hasher, TERMINATOR};
use pleach_io::{Device, Runtime};

use crate::commit::{Target, commit};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::format::commit_body::EntryKind;

/// Tries before commits that come between are reported. Nothing is folded for one, so that between its look at
/// the newest commit and its ticket there is little time.
const TRIES: u32 = 64;

/// Adds an empty namespace; gives the number of the commit.
pub(crate) fn add<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    namespace: u8,
) -> Result<u64> {
    attempts(engine, namespace, EntryKind::Added)
}

/// Drops a namespace; gives the number of the commit.
pub(crate) fn drop<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    namespace: u8,
) -> Result<u64> {
    if namespace == 0 {
        return Err(Error::NamespaceExists(0));
    }
    attempts(engine, namespace, EntryKind::Dropped)
}

fn attempts<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    namespace: u8,
    fate: EntryKind,
) -> Result<u64> {
    let mut tries = 1;
    loop {
        match attempt(engine, namespace, fate) {
            Err(Error::StaleParent { .. }) if tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

fn attempt<H: Hasher, D: Device, R: Runtime>(
    engine: &Engine<H, D, R>,
    namespace: u8,
    fate: EntryKind,
) -> Result<u64> {
    let db = &engine.state;
    let (view, _) = db.commits.tip_view();
    let newest = {
        let state = db.commits.sequencer().lock();
        state.check_open()?;
        state.newest.clone()
    };
    let exists = newest.roots.get(namespace).is_some();
    match fate {
        EntryKind::Added if exists => return Err(Error::NamespaceExists(namespace)),
        EntryKind::Dropped if !exists => return Err(Error::Namespace(namespace)),
        _ => {}
    }
    if fate == EntryKind::Added
        && let Some(trie) = db.tries.get(namespace)
    {
        // One that is about to be dropped is marked at the publication.
        let dropped = trie.dropped.unwrap_or(newest.number);
        return Err(Error::NamespaceInUse { namespace, dropped });
    }
    let root = (fate == EntryKind::Added).then_some(TERMINATOR);
    let target = Target {
        view: &view,
        follows: newest.number,
        prev_roots: &newest.roots,
        roots: &newest.roots.with([(namespace, root)]),
        fates: &[(namespace, fate)],
        layers: &[],
        ticketed: &Cell::new(false),
    };
    commit(engine, &target, &mut [], None)
}
