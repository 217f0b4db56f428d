//! Pages that are due: which of them a round takes, and how they stay cached until then.

use pleach_core::Prefix;

use crate::read::key_batch::{KEY_BATCH, Reach, cpu_prefetch};
use crate::state::State;

/// Pages of all namespaces that are due stay cached through `batch`.
pub(super) fn hold(db: &State, batch: u64) {
    let tries = db.tries.list();
    let here = tries.iter().filter(|trie| trie.dropped.is_none());
    for trie in here.filter(|trie| trie.index.has_due()) {
        let Some(trie) = db.other(trie.namespace) else { continue };
        for prefixes in trie.index.due().chunks(KEY_BATCH) {
            cpu_prefetch(&trie, prefixes.iter().map(Prefix::first_key), Reach::Page);
            for prefix in prefixes {
                if let Some(at) = trie.index.locate(prefix.first_key()) {
                    db.store.cache().hold(at.page, at.tag, batch);
                }
            }
        }
    }
}

/// Takes up to `limit` pages of a trie that are due, and leaves those out that were written since.
pub(super) fn still_due(trie: &State, limit: usize, least: u8) -> Vec<Prefix> {
    let is_due = |prefix: &&Prefix| {
        trie.index.in_region(prefix.first_key(), |_, state| {
            let child = state.children().find(prefix.first_key());
            state.commits_since_write(child) >= least
        })
    };
    let keep = |taken: &[Prefix], prefixes: &mut Vec<Prefix>| {
        for keys in taken.chunks(KEY_BATCH) {
            cpu_prefetch(trie, keys.iter().map(Prefix::first_key), Reach::Page);
            prefixes.extend(keys.iter().filter(is_due));
        }
    };
    take_kept(trie.index.due_count(), limit, |count| trie.index.take_due(count), keep)
}

/// Takes up to `limit` that are kept, of the `left` that are there: others come meanwhile.
pub(super) fn take_kept(
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

pub(super) fn in_order(mut prefixes: Vec<Prefix>) -> Vec<Prefix> {
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes
}
