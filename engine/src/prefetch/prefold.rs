//! Prefolding: nodes that a finish will need are computed while others wait for the device.
//!
//! A page that was just read knows eight nodes, those that it stores, and changes that pend on it make
//! some of these old. Its first fold hashes all of that, though nothing of it depends on the batch. So
//! pages that are read for prefetch requests are folded as of now, each with the bucket of its key, by a
//! task of its own. The nodes stay with the page as a partial treelet
//! ([`pleach_beatree::treelet::PartialTreelet`]) until the batch is over, and the finish folds what is
//! accessed only.
//!
//! Nothing depends on it. Pages come through a queue of fixed length; those that find no room, or come
//! while a finish needs the processors, are left to the finish. A partial treelet is as of a commit: one
//! that comes too late is not used.

use std::sync::Arc;

use pleach_beatree::leaf_fold::{
    AccessResult, KeyAccess, PageState, PendingChange, columns_of, fold_leaf,
};
use pleach_beatree::treelet::Treelet;
use pleach_beatree::treelet::capture_levels;
use pleach_core::fold::BatchFolder;
use pleach_core::{Hasher, Node, Prefix};
use pleach_io::{Device, Runtime, Step};

use super::requests::{Prefetching, PrefoldRequest};
use super::trie;
use crate::metrics::Counters;
use crate::read::key_batch::{KEY_BATCH, PAGES_AHEAD, Reach, cpu_prefetch};
use crate::state::State;
use crate::state::beats::Task;

/// A page that is folded with others.
struct Gathered {
    request: PrefoldRequest,
    prefix: Prefix,
    /// The commit that its nodes will be as of.
    as_of: u64,
    /// The node that the region has for it, when nodes are in memory.
    node: Option<Node>,
    /// Where its pending changes end in the list of all.
    pending_end: usize,
}

/// The prefold task.
pub(crate) struct Prefolder<H: Hasher, D: Device, R: Runtime> {
    db: Arc<State<D, R>>,
    prefetching: Arc<Prefetching<R>>,
    folder: BatchFolder<H>,
    requests: Vec<PrefoldRequest>,
    pages: Vec<Gathered>,
    pending: Vec<PendingChange>,
    results: Vec<AccessResult>,
    treelet: Box<Treelet>,
}

impl<H: Hasher, D: Device, R: Runtime> Prefolder<H, D, R> {
    pub(crate) fn new(db: Arc<State<D, R>>, prefetching: Arc<Prefetching<R>>) -> Self {
        Self {
            db,
            prefetching,
            folder: BatchFolder::new(),
            requests: Vec::with_capacity(KEY_BATCH),
            pages: Vec::with_capacity(KEY_BATCH),
            pending: Vec::new(),
            results: Vec::new(),
            treelet: Box::new(Treelet::empty()),
        }
    }

    /// One step: a batch of pages.
    pub(crate) fn step(&mut self) -> Step {
        let (db, prefetching) = (Arc::clone(&self.db), Arc::clone(&self.prefetching));
        if db.pace.is_closing() {
            return Step::Done;
        }
        let queue = prefetching.prefolds();
        self.pages.clear();
        self.pending.clear();
        let mut requests = std::mem::take(&mut self.requests);
        queue.take(&mut requests);
        let came = !requests.is_empty();
        if came && !db.pace.foreground().is_finishing() {
            db.pace.enters(Task::Prefold, "folding pages");
            db.pace.comes_further(Task::Prefold);
            let _guard = db.store.enter();
            self.gather_all(&db, &mut requests);
            self.fold();
        }
        requests.clear();
        self.requests = requests;
        if !came && queue.sleeps() { Step::Idle } else { Step::Again }
    }

    /// Gathers the pages of these requests, those of one trie after those of another as they come.
    fn gather_all(&mut self, first: &Arc<State<D, R>>, requests: &mut Vec<PrefoldRequest>) {
        for of_trie in requests.chunk_by(|a, b| a.namespace == b.namespace) {
            if let Some(db) = trie(first, of_trie[0].namespace) {
                cpu_prefetch(&db, of_trie.iter().map(|request| &request.key), Reach::Region);
            }
        }
        let mut of: Option<Arc<State<D, R>>> = None;
        for request in requests.drain(..) {
            if of.as_ref().is_none_or(|db| db.namespace != request.namespace) {
                of = trie(first, request.namespace);
            }
            if let Some(db) = &of {
                self.gather(db, request);
            }
        }
    }

    /// Copies the state of a page, unless it has moved or its nodes are known.
    fn gather(&mut self, db: &State<D, R>, request: PrefoldRequest) {
        let pending = &mut self.pending;
        let found = db.index.in_region(&request.key, |_, state| {
            let child = state.children().find(&request.key);
            let here = state.children().page(child) == Some(request.at.page)
                && state.children().tag(child) == request.at.tag;
            let as_of = state.changed_at(child);
            let prefix = state.children().prefix(child);
            if !here
                || state.is_plain()
                || capture_levels(&prefix) == 0
                || request.page.knows(as_of)
            {
                return None;
            }
            state.copy_pending(&prefix, pending);
            Some((prefix, as_of, state.node(child).copied()))
        });
        let Some((prefix, as_of, node)) = found else { return };
        let pending_end = self.pending.len();
        self.pages.push(Gathered { request, prefix, as_of, node, pending_end });
    }

    /// Folds the gathered pages, each with a read of its key, and gives them their nodes.
    fn fold(&mut self) {
        let hashed = self.folder.hashed();
        self.fold_pages();
        Counters::add(&self.db.counters.hashes, self.folder.hashed() - hashed);
        self.give_nodes();
        self.pages.clear();
    }

    fn fold_pages(&mut self) {
        self.folder.clear();
        self.results.clear();
        let mut from = 0;
        for (at, gathered) in self.pages.iter().enumerate() {
            let next = |ahead: usize| self.pages.get(at + ahead).map(|next| &next.request);
            if let Some(request) = next(2 * PAGES_AHEAD) {
                request.page.cpu_prefetch_head();
            }
            if let Some(request) = next(PAGES_AHEAD) {
                request.page.cpu_prefetch_key(&request.key);
            }
            let leaf = gathered.request.page.view();
            let pending = &self.pending[from..gathered.pending_end];
            let page =
                PageState { at: &gathered.prefix, leaf: Some(&leaf), pending, treelet: None };
            let capture = capture_levels(&gathered.prefix);
            let access = [KeyAccess { key: gathered.request.key, reads: true, writes: None }];
            let columns = columns_of(&page, &access);
            self.folder.begin_with_columns(gathered.prefix.len(), capture, columns);
            fold_leaf(&mut self.folder, &page, capture, &access, &mut self.results);
            self.folder.end().expect("a page's buckets of one key are given by key");
            from = gathered.pending_end;
        }
        self.folder.run();
    }

    /// Gives the folded pages what their folds have captured, as partial treelets.
    fn give_nodes(&mut self) {
        let mut captured = self.folder.captured().to_vec();
        captured.sort_by_key(|one| one.fold);
        let mut captured = captured.as_slice();
        for (fold, gathered) in self.pages.iter().enumerate() {
            let own = captured.partition_point(|one| one.fold as usize <= fold);
            let (nodes, rest) = captured.split_at(own);
            captured = rest;
            let node = self.folder.node(fold);
            let agrees = gathered.node.is_none_or(|known| known == node);
            debug_assert!(agrees, "{:?}: its node is that of page and changes", gathered.prefix);
            if !agrees {
                // The finish will look for itself.
                tracing::error!(prefix = ?gathered.prefix, "a page does not fold to its node");
                continue;
            }
            self.treelet.forget();
            let nodes = nodes.iter().map(|one| (one.index, one.node));
            let columns = self.folder.columns(fold);
            self.treelet.advance((0, gathered.as_of), columns, &node, nodes);
            let PrefoldRequest { page, at, key, .. } = &gathered.request;
            let bucket = page.bucket(key, columns);
            if self.db.store.cache().give_partial_treelet(at.page, page, &self.treelet, bucket) {
                Counters::add(&self.db.counters.pages_folded_ahead, 1);
            }
        }
    }
}
