//! Trials of quarantined pages: a page that can be read is released.
//!
//! Called by the flush task before it gathers, so that a released page is part of the next round.

use pleach_core::Prefix;
use pleach_journal::format::names::LEAF_FILE;

use crate::error::Result;
use crate::state::NamespaceDb;
use crate::state::pages::quarantine::{PageName, QuarantineReason, Quarantined};

/// Tries some of the quarantined pages that are due.
pub(super) fn try_quarantined(db: &NamespaceDb) {
    let quarantine = &db.store.quarantine;
    for (listed, why) in quarantine.begin_due_trials(db.pace.now()) {
        let Quarantined { file, page, namespace, prefix, .. } = listed;
        if why == QuarantineReason::Contradicts {
            db.store.release_from_quarantine(file, namespace, prefix);
            continue;
        }
        let Some(trie) = db.other_trie(namespace) else {
            // The namespace was dropped, and nothing of it is left.
            quarantine.forget(file, page);
            continue;
        };
        if let Err(error) = try_leaf(&trie, page, &prefix) {
            db.store.quarantine_page(PageName { file, page, namespace, prefix }, error, why);
        }
    }
}

fn try_leaf(db: &NamespaceDb, page: u64, prefix: &Prefix) -> Result<()> {
    let _guard = db.store.grace_guard();
    let at = db.index.page_of(prefix.first_key()).filter(|at| u64::from(at.page) == page);
    if let Some(at) = at {
        // A good read releases the page by itself; a cached copy does so below.
        db.store.page(at)?;
        db.store.note_good_read(LEAF_FILE, page);
    } else {
        db.store.quarantine.forget(LEAF_FILE, page);
    }
    Ok(())
}
