//! Key batches: 32 keys that are looked up together, so that their waits for memory overlap.
//!
//! A lookup reads cold memory five times in a row: region, child table, the cache's table, its entry, the page. One
//! after the other these reads take longer than all else. Here each step is taken for a whole batch before the next
//! one. The results are not kept: a later lookup finds the memory in the processor's cache.

use pleach_core::Key;

use super::Tree;
use crate::cache::LookupStep;

/// Keys that are looked up together.
pub const KEY_BATCH: usize = 32;

/// Pages ahead of the current one whose memory is prefetched.
pub const PAGES_AHEAD: usize = 4;

/// How far a lookup goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupDepth {
    /// To the number of the key's page, and whether that is cached.
    Page,
    /// To the key's cell in a cached page.
    Cell,
    /// To all that a fold of the key's page and region reads.
    Fold,
}

impl Tree {
    /// Prefetches the memory that lookups of up to [`KEY_BATCH`] keys read. The caller holds a grace guard.
    pub fn cpu_prefetch<'a>(
        &self,
        keys: impl Iterator<Item = &'a Key> + Clone,
        depth: LookupDepth,
    ) {
        // To ask for the memory of a few keys takes longer than to wait for it.
        if keys.clone().nth(4).is_none() {
            return;
        }
        let regions = self.load();
        for key in keys.clone() {
            regions.region(key).cpu_prefetch();
        }
        for key in keys.clone() {
            regions.region(key).read().cpu_prefetch(key);
        }
        let mut pages = [None; KEY_BATCH];
        for (key, page) in keys.clone().zip(&mut pages) {
            let state = regions.region(key).read();
            *page = state.children().page(state.children().find(key));
            if depth == LookupDepth::Fold {
                state.cpu_prefetch_fold(key);
            }
            if let Some(page) = *page {
                self.store.cache.cpu_prefetch(page, LookupStep::Table);
            }
        }
        if depth == LookupDepth::Page {
            return;
        }
        for page in pages.into_iter().flatten() {
            self.store.cache.cpu_prefetch(page, LookupStep::Entry);
        }
        for (key, page) in keys.zip(pages) {
            if let Some(page) = page {
                self.store.cache.cpu_prefetch(page, LookupStep::Page(key));
            }
        }
    }
}
