//! Pages that are due: which of them a round takes.
//!
//! A finish holds the pages that its batch makes due in the cache through the next batch. A page that was evicted
//! before its turn is not read for the flush alone: it is due again when the next commit changes it. A quarantined page
//! is read: a page that contradicts the index is never cached, and only a flush releases it.

use pleach_beatree::cache::NO_BATCH;
use pleach_beatree::tree::{KEY_BATCH, LookupDepth};
use pleach_core::Prefix;

use crate::state::NamespaceDb;

/// Takes up to `limit` due pages of a trie, without those that were written or evicted since they became due.
pub(super) fn take_still_due(trie: &NamespaceDb, limit: usize, least: u8) -> Vec<Prefix> {
    let is_due = |prefix: &&Prefix| {
        trie.tree.with_region(prefix.first_key(), |_, state| {
            let child = state.children().find(prefix.first_key());
            state.changes_since_write(child) >= least
                && state.page_ref(child).is_none_or(|at| {
                    let suspect = trie.store.quarantine.contains(at.page);
                    suspect || trie.store.cache.hold(at.page, at.tag, NO_BATCH)
                })
        })
    };
    let keep = |taken: &[Prefix], prefixes: &mut Vec<Prefix>| {
        for keys in taken.chunks(KEY_BATCH) {
            trie.tree.cpu_prefetch(keys.iter().map(Prefix::first_key), LookupDepth::Page);
            prefixes.extend(keys.iter().filter(is_due));
        }
    };
    take_filtered(trie.tree.due_count(), limit, |count| trie.tree.take_due(count), keep)
}

/// Takes up to `limit` pages that `keep` accepts, of the `left` that are due now: more may become due meanwhile.
pub(super) fn take_filtered(
    mut left: usize,
    limit: usize,
    mut take: impl FnMut(usize) -> Vec<Prefix>,
    mut keep: impl FnMut(&[Prefix], &mut Vec<Prefix>),
) -> Vec<Prefix> {
    let mut prefixes = Vec::new();
    while left > 0 && prefixes.len() < limit {
        let taken = take(left.min(limit - prefixes.len()));
        if taken.is_empty() {
            // A commit that made other pages due has removed duplicates meanwhile.
            break;
        }
        left -= taken.len();
        keep(&taken, &mut prefixes);
    }
    prefixes
}

pub(super) fn sorted_prefixes(mut prefixes: Vec<Prefix>) -> Vec<Prefix> {
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes
}
