//! Which pages a flush takes when none are due, but room for buffered changes runs out or somebody drains them.

use pleach_core::{Key, Prefix};

use crate::state::Database;

/// Namespaces and prefixes of up to `count` pages of all tries that have buffered changes, those with the most first.
/// Quarantined pages are left out.
pub(super) fn fullest_pages(db: &Database, count: usize) -> Vec<(u8, Prefix)> {
    let mut pages: Vec<(usize, u8, Prefix)> = Vec::new();
    for trie in db.tries.list().iter() {
        let mut key: Option<Key> = Some([0; 32]);
        while let Some(at) = key {
            key = trie.tree.with_region(&at, |region, state| {
                let next = region.prefix().next().map(|next| *next.first_key());
                let mut from = 0;
                while from < state.buffered().len() {
                    let child = state.children().find(&state.buffered()[from].key);
                    let prefix = state.children().prefix(child);
                    let end = state.buffered_range(&prefix).end;
                    if !db.store.is_page_quarantined(state, child) {
                        pages.push((end - from, trie.namespace, prefix));
                    }
                    from = end;
                }
                next
            });
        }
    }
    if pages.len() > count {
        pages.select_nth_unstable_by(count, |a, b| b.0.cmp(&a.0));
        pages.truncate(count);
    }
    pages.into_iter().map(|(_, namespace, prefix)| (namespace, prefix)).collect()
}
