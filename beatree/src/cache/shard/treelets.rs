//! Treelets of pages, whole and partial: which are kept, and their room.

use std::sync::Arc;

use pleach_core::cpu_prefetch;

use super::{Given, MAX_SPARE, Shard};
use crate::cache::page::{self, CachedPage};
use crate::page_no::PageNo;
use crate::treelet::{PartialTreelet, Treelet};

/// Treelets take at most this part of the budget, from what no page needs.
const TREELET_PART: usize = 3;
/// They take at most this part of the budget when pages have to leave for them.
const SOON_PART: usize = 16;
/// Partial treelets take at most this part of it.
const PARTIAL_PART: usize = 8;
/// How far in advance of its end a partial treelet's memory is prefetched.
const PARTIALS_AHEAD: usize = 4;
/// Room for notes of partial treelets is added in steps of this many.
const PARTIAL_STEP: usize = 64;

impl Shard {
    /// Hangs a treelet on a page, if the page is still there and there is room. Pages leave for it
    /// only when `soon` says that a flush will need it.
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
        // It may have been the one to leave.
        if self.holds(page_no, page) {
            fill(&mut treelet);
            if page.replace_treelet(Some(treelet)).is_none() {
                self.treelets += 1;
                self.page_bytes += page::TREELET_COST;
            }
        }
    }

    /// Hangs a partial treelet on a page for the current batch.
    pub(in crate::cache) fn attach_partial(
        &mut self,
        page_no: PageNo,
        page: &Arc<CachedPage>,
        treelet: &Treelet,
        bucket: u8,
    ) -> bool {
        if !self.holds(page_no, page) {
            return false;
        }
        // Two go for one that comes, so that those of an earlier batch do not stay.
        for _ in 0..2 {
            let ended = self.end_partial();
            self.spare_partials.extend(ended.filter(|_| self.spare_partials.len() < MAX_SPARE));
        }
        if self.partials.len() >= self.budget / PARTIAL_PART / page::PARTIAL_COST {
            return false;
        }
        let full = self.partials.len() == self.partials.capacity();
        let notes = if full { PARTIAL_STEP * size_of::<Given>() } else { 0 };
        let mut partial = self.spare_partials.pop().unwrap_or_else(PartialTreelet::empty);
        while self.bytes() + page::PARTIAL_COST + notes > self.budget {
            if self.evict().is_none() {
                return false;
            }
        }
        if full {
            self.partials.reserve_exact(PARTIAL_STEP);
        }
        // It may have been the one to leave.
        let Some(id) = self.find(page_no).filter(|_| self.holds(page_no, page)) else {
            return false;
        };
        partial.set(treelet, bucket);
        if page.replace_partial(Some(partial)).is_none() {
            self.page_bytes += page::PARTIAL_COST;
        }
        self.partials.push_back(Given { id, page_no, round: self.round, as_of: treelet.as_of() });
        true
    }

    /// Takes the oldest partial treelet off its page if it was given for an earlier batch, and forgets it
    /// if it has left with its page.
    fn end_partial(&mut self) -> Option<PartialTreelet> {
        let entry = |given: &Given| &self.entries[given.id as usize];
        if let Some(given) = self.partials.get(2 * PARTIALS_AHEAD) {
            cpu_prefetch(core::slice::from_ref(entry(given)));
        }
        if let Some(page) =
            self.partials.get(PARTIALS_AHEAD).and_then(|one| entry(one).page.as_ref())
        {
            page.cpu_prefetch_front();
        }
        let given = self.partials.front()?;
        let (entry, as_of) = (entry(given), Some(given.as_of));
        let page = entry.page.as_ref().filter(|_| entry.page_no == given.page_no);
        let page = page.filter(|page| page.partial_as_of() == as_of);
        if page.is_some() && given.round == self.round {
            return None;
        }
        self.partials.pop_front();
        let partial = page?.replace_partial(None)?;
        self.page_bytes -= page::PARTIAL_COST;
        Some(partial)
    }

    /// Keeps a treelet's memory for the next one.
    pub(super) fn keep_treelet(&mut self, treelet: Box<Treelet>) {
        if self.spare_treelets.len() < MAX_SPARE && self.bytes() + page::TREELET_COST <= self.budget
        {
            self.spare_treelets.push(treelet);
        }
    }

    /// Is this very page here?
    fn holds(&self, page_no: PageNo, page: &Arc<CachedPage>) -> bool {
        let entry = self.find(page_no).map(|id| &self.entries[id as usize]);
        entry.and_then(|entry| entry.page.as_ref()).is_some_and(|own| Arc::ptr_eq(own, page))
    }

    /// Takes a page's treelet off.
    pub(in crate::cache) fn detach(&mut self, page_no: PageNo) -> Option<Box<Treelet>> {
        let id = self.find(page_no)?;
        let treelet = self.entries[id as usize].page.as_ref()?.replace_treelet(None)?;
        self.treelets -= 1;
        self.page_bytes -= page::TREELET_COST;
        Some(treelet)
    }
}
