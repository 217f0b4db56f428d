//! Trials of quarantined pages: a page that can be read is released.
//!
//! Called by the flush task before it gathers, so that a released page is part of the next round.

use pleach_beatree::pages::{LeafName, QuarantineReason};
use pleach_beatree::{PageNo, Result};
use pleach_core::Prefix;

use crate::state::NamespaceDb;

/// Tries some of the quarantined pages that are due.
pub(super) fn try_quarantined(db: &NamespaceDb) {
    let quarantine = &db.store.quarantine;
    for (leaf, why) in quarantine.begin_due_trials(db.pace.now()) {
        let LeafName { page, namespace, prefix } = leaf;
        if why == QuarantineReason::Contradicts {
            db.store.release_from_quarantine(namespace, prefix);
            continue;
        }
        let Some(trie) = db.other_trie(namespace) else {
            // The namespace was dropped, and nothing of it is left.
            quarantine.forget(page);
            continue;
        };
        if let Err(error) = try_leaf(&trie, page, &prefix) {
            db.store.quarantine_page(leaf, error, why);
        }
    }
}

fn try_leaf(db: &NamespaceDb, page: PageNo, prefix: &Prefix) -> Result<()> {
    let _guard = db.store.grace.enter();
    let at = db.tree.page_of(prefix.first_key()).filter(|at| at.page == page);
    if let Some(at) = at {
        // A good read releases the page by itself; a cached copy does so below.
        db.store.page(at)?;
        db.store.note_good_read(page);
    } else {
        db.store.quarantine.forget(page);
    }
    Ok(())
}
