//! Pages that are due: which of them a round takes.
//!
//! A finish holds the pages that its batch makes due in the cache through the next batch. One that has left before its turn
//! came is not read for the flush alone: it is due again when a commit has changed it the next time. A page that may be bad
//! is read: one that contradicts the index is never cached, and a flush alone brings it back.

use pleach_beatree::cache::NO_BATCH;
use pleach_core::Prefix;
use pleach_journal::format::names::LEAF_FILE;

use crate::read::key_batch::{KEY_BATCH, LookupDepth, cpu_prefetch};
use crate::state::TrieDb;
use crate::state::pages::index::child_page;

/// Takes up to `limit` pages of a trie that are due, and leaves those out that were written or have left the cache since.
pub(super) fn take_still_due(trie: &TrieDb, limit: usize, least: u8) -> Vec<Prefix> {
    let is_due = |prefix: &&Prefix| {
        trie.index.with_region(prefix.first_key(), |_, state| {
            let child = state.children().find(prefix.first_key());
            state.changes_since_write(child) >= least
                && child_page(state, child).is_none_or(|at| {
                    let suspect = trie.store.quarantine.contains(LEAF_FILE, at.page.into());
                    suspect || trie.store.cache.hold(at.page, at.tag, NO_BATCH)
                })
        })
    };
    let keep = |taken: &[Prefix], prefixes: &mut Vec<Prefix>| {
        for keys in taken.chunks(KEY_BATCH) {
            cpu_prefetch(trie, keys.iter().map(Prefix::first_key), LookupDepth::Page);
            prefixes.extend(keys.iter().filter(is_due));
        }
    };
    take_filtered(trie.index.due_count(), limit, |count| trie.index.take_due(count), keep)
}

/// Takes up to `limit` that are kept, of the `left` that are there: others come meanwhile.
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
            // A commit that made others due has left out meanwhile what was there twice.
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
