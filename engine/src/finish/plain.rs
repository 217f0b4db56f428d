//! The finish of a plain namespace: the values before the writes, and the digest after. Nothing is folded.
//!
//! Its chunks have changes alone, without regions and nodes, so that no flush makes one stale. A commit finds the
//! regions when it is published; a region with changes of several chunks takes them at once ([`apply`](crate::commit)).
//! A large batch's chunks are made by all workers.

use std::collections::HashMap;

use parking_lot::Mutex;
use pleach_beatree::PageRef;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::pages::PageReaderPool;
use pleach_beatree::tree::{KEY_BATCH, LookupDepth};
use pleach_core::Key;

use super::outcome::{ChunkOutcome, FinishedTrie};
use super::worker::chunk_accesses;
use crate::digest;
use crate::error::Result;
use crate::phase::Phase;
use crate::read::many::{self, FetchPurpose};
use crate::read::point::{self, PointLookup};
use crate::state::NamespaceDb;
use crate::state::undo::changes::KeyUpdate;
use crate::state::view::{RootedView, View};

/// Fewer accesses are done by one worker: waking several would take longer.
const PARALLEL: usize = 2048;

/// Finishes sorted accesses over a state. Accesses that only read are ignored.
pub(super) fn finish(
    db: &NamespaceDb,
    readers: &PageReaderPool,
    RootedView { view, root }: RootedView<'_>,
    accesses: &[KeyAccess],
) -> Result<FinishedTrie> {
    let most = if accesses.len() < PARALLEL { 1 } else { db.runtime.workers() };
    let most = most.min(db.budget.workers());
    // As many pages are held at a time as a fold's chunks have.
    let slices: Vec<_> = accesses.chunks(chunk_accesses(accesses.len(), most)).collect();
    let lists: Vec<Mutex<Result<Vec<KeyUpdate>>>> =
        slices.iter().map(|_| Mutex::new(Ok(Vec::new()))).collect();
    let tasks = db.timings.begin_tasks(Some(Phase::Fold), slices.len());
    let make = |_: usize| {
        tasks.run_tasks(|at| *lists[at].lock() = find_changes(db, readers, view, slices[at]));
    };
    db.runtime.inline_or_fork_join(most.min(slices.len()), &make);
    let lists = lists.into_iter().map(Mutex::into_inner).collect::<Result<Vec<_>>>()?;
    let of = lists.iter().flatten().map(|changed| (&changed.key, &changed.new));
    let root = digest::after_changes(root, of);
    let chunk =
        |list: Vec<KeyUpdate>| ChunkOutcome { changes: list.into(), ..ChunkOutcome::default() };
    Ok(FinishedTrie { root, chunks: lists.into_iter().map(chunk).collect(), witness: None })
}

/// The changes that some of the accesses make.
fn find_changes(
    db: &NamespaceDb,
    readers: &PageReaderPool,
    view: &View,
    accesses: &[KeyAccess],
) -> Result<Vec<KeyUpdate>> {
    let is_write = |access: &&KeyAccess| access.writes.is_some();
    let mut changes = Vec::with_capacity(accesses.iter().filter(is_write).count());
    // Pages that were read, by number, with their tags.
    let (mut brought, mut is_brought) = (HashMap::new(), false);
    for (index, access) in accesses.iter().enumerate() {
        let behind = &accesses[index..];
        if index.is_multiple_of(KEY_BATCH) {
            let _guard = db.store.grace.enter();
            db.tree.cpu_prefetch(
                behind.iter().take(KEY_BATCH).map(|access| &access.key),
                LookupDepth::Cell,
            );
        }
        let Some(new) = &access.writes else { continue };
        let prior = match point::look_up(db, view, &access.key)? {
            PointLookup::Stored(stored) => stored,
            PointLookup::InPage(at, _guard) => {
                // At the first missing page, those of all later keys are read together. A single key's page is read
                // alone.
                if !std::mem::replace(&mut is_brought, true) && behind.len() > 1 {
                    let keys: Vec<Key> =
                        behind.iter().filter(is_write).map(|access| access.key).collect();
                    let mut hold =
                        |at: PageRef, page| drop(brought.insert(at.page, (at.tag, page)));
                    many::fetch_pages_with(
                        db,
                        readers,
                        FetchPurpose::Values(view),
                        &keys,
                        &mut hold,
                    )?;
                }
                match brought.get(&at.page).filter(|(tag, _)| *tag == at.tag) {
                    Some((_, page)) => page.stored(&access.key),
                    None => db.store.page(at)?.stored(&access.key),
                }
            }
        };
        changes.push(KeyUpdate { key: access.key, new: new.clone(), prior });
    }
    Ok(changes)
}
