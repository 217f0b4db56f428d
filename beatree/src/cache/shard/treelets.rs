//! Treelets of pages: which are kept, and in how much memory.

use std::sync::Arc;

use super::{MAX_SPARE, NO_BATCH, Shard};
use crate::cache::page::{self, CachedPage};
use crate::page_no::PageNo;
use crate::treelet::Treelet;

/// Treelets take at most this part of the budget, from what no page needs.
const TREELET_PART: usize = 3;
/// Treelets take at most this part of the budget when pages are evicted for them.
const SOON_PART: usize = 16;

impl Shard {
    /// Attaches a treelet to a page, if the page is still cached and there is room. Pages are evicted for it only with
    /// `soon`: a flush will need it.
    pub(in crate::cache) fn attach(
        &mut self,
        page_no: PageNo,
        page: &Arc<CachedPage>,
        treelet: Option<Box<Treelet>>,
        soon: bool,
        fill: impl FnOnce(&mut Treelet),
    ) {
        let part = if soon { SOON_PART } else { TREELET_PART };
        let limit = self.budget / part / page::TREELET_COST;
        if !self.holds(page_no, page) || self.treelets >= limit {
            return;
        }
        let spare = || self.spare_treelets.pop();
        let mut treelet = treelet.or_else(spare).unwrap_or_else(|| Box::new(Treelet::empty()));
        while self.bytes() + page::TREELET_COST > self.budget {
            if !soon || self.evict().is_none() {
                self.keep_treelet(treelet);
                return;
            }
        }
        // The page itself may have been evicted for the room.
        if self.holds(page_no, page) {
            fill(&mut treelet);
            if page.replace_treelet(Some(treelet)).is_none() {
                self.treelets += 1;
                self.page_bytes += page::TREELET_COST;
            }
        }
    }

    /// Keeps a treelet's memory for the next one.
    pub(super) fn keep_treelet(&mut self, treelet: Box<Treelet>) {
        if self.spare_treelets.len() < MAX_SPARE && self.bytes() + page::TREELET_COST <= self.budget
        {
            self.spare_treelets.push(treelet);
        }
    }

    /// True when exactly this page is cached.
    fn holds(&self, page_no: PageNo, page: &Arc<CachedPage>) -> bool {
        let entry = self.find(page_no).map(|id| &self.entries[id as usize]);
        entry.and_then(|entry| entry.page.as_ref()).is_some_and(|own| Arc::ptr_eq(own, page))
    }

    /// Detaches a page's treelet and ends the page's hold; returns the batch that it was held through, and the treelet.
    pub(in crate::cache) fn detach(&mut self, page_no: PageNo) -> (u64, Option<Box<Treelet>>) {
        let Some(id) = self.find(page_no) else { return (NO_BATCH, None) };
        let entry = &self.entries[id as usize];
        let treelet = entry.page.as_ref().and_then(|page| page.replace_treelet(None));
        if treelet.is_some() {
            self.treelets -= 1;
            self.page_bytes -= page::TREELET_COST;
        }
        let until = entry.until;
        self.set_hold(id, NO_BATCH);
        (until, treelet)
    }
}
