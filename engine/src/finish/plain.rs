//! The finish of a plain namespace: the values before what is written, and the digest after. Nothing is folded.
//!
//! It gives one chunk, with changes alone: neither regions nor nodes, so that no flush makes it stale. A commit finds
//! the regions when it is published. They are of one chunk because a region takes a commit at once.

use std::sync::Arc;

use pleach_beatree::leaf_fold::KeyAccess;
use pleach_core::{Key, Node};
use pleach_io::{Device, Runtime};

use super::outcome::{ChunkOutcome, Finished};
use crate::digest;
use crate::error::Result;
use crate::read::key_batch::{KEY_BATCH, Reach, cpu_prefetch};
use crate::read::many::{self, Brought, For};
use crate::read::point;
use crate::read::spare::PageReaders;
use crate::state::State;
use crate::state::index::Located;
use crate::state::undo::Changed;
use crate::state::view::View;

/// Finishes sorted accesses over a view whose digest is `before`. Those that only read have no part in it.
pub(super) fn finish<D: Device, R: Runtime>(
    db: &State<D, R>,
    readers: &PageReaders<D, R>,
    (view, before): (&View, &Node),
    accesses: &[KeyAccess],
) -> Result<Finished> {
    let is_write = |access: &&KeyAccess| access.writes.is_some();
    let mut changes = Vec::with_capacity(accesses.iter().filter(is_write).count());
    // As many pages are held at a time as a chunk has.
    for slice in accesses.chunks(db.budget.chunk_accesses()) {
        let mut brought = Brought::new();
        if !db.all_is_here() {
            let keys: Vec<Key> = slice.iter().filter(is_write).map(|access| access.key).collect();
            // What one key needs is read as it comes.
            if keys.len() > 1 {
                brought = many::bring_and_hold(db, readers, For::Values(view), &keys)?;
            }
        }
        let held = |at: Located| {
            let (_, page) = brought.get(&at.page).filter(|(tag, _)| *tag == at.tag)?;
            Some(Arc::clone(page))
        };
        for batch in slice.chunks(KEY_BATCH) {
            {
                let _guard = db.store.enter();
                cpu_prefetch(db, batch.iter().map(|access| &access.key), Reach::Cell);
            }
            for access in batch {
                if let Some(new) = &access.writes {
                    let prior = point::stored_with(db, view, &access.key, held)?;
                    changes.push(Changed { key: access.key, new: new.clone(), prior });
                }
            }
        }
    }
    // Undo that went meanwhile may have made anything of it.
    view.check()?;
    let of = changes.iter().map(|changed: &Changed| (&changed.key, &changed.new));
    let root = digest::after(before, of);
    let chunk = ChunkOutcome { changes: changes.into(), ..ChunkOutcome::default() };
    Ok(Finished { root, chunks: vec![chunk], witness: None })
}
