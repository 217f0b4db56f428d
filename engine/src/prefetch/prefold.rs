//! Folding ahead: what a finish will find is computed while the device is waited for.
//!
//! A page that comes from the device knows eight nodes, those that it stores, and the changes that
//! pend on it make some of these old. Its first fold hashes all of that, though nothing of it
//! depends on the batch. So pages that arrive for announced keys are folded as they stand, each
//! with the group of its key, by a task of its own; the nodes hang on the page as an
//! excerpt ([`pleach_beatree::treelet::PartialTreelet`]) until the batch is over, and the finish folds a
//! tile.
//!
//! Nothing depends on it. Pages come through a queue of fixed length, and what does not fit, or
//! comes when a finish wants the processors, is left to the finish. An excerpt is given for the
//! commit that it stands at: one that comes too late counts for nothing.

use std::sync::Arc;

use pleach_beatree::leaf_fold::{
    AccessResult, KeyAccess, PageState, PendingChange, capture_levels, fold_leaf,
};
use pleach_beatree::treelet::Treelet;
use pleach_core::fold::BatchFolder;
use pleach_core::{Hasher, Node, Prefix};
use pleach_io::{Device, Runtime, Step};

use super::requests::{Arrived, Prefetching};
use crate::metrics::Counters;
use crate::read::key_batch::{KEY_BATCH, PAGES_AHEAD, Reach, cpu_prefetch};
use crate::state::State;
use crate::state::beats::Task;

/// A page of a group that is folded.
struct Waiting {
    arrived: Arrived,
    prefix: Prefix,
    /// The commit that it stands at.
    as_of: u64,
    /// The node that the region has for it, when nodes are in memory.
    node: Option<Node>,
    /// Where its patches end.
    patches_end: usize,
}

/// The task.
pub(crate) struct Prefolder<H: Hasher, D: Device, R: Runtime> {
    db: Arc<State<D, R>>,
    prefetching: Arc<Prefetching<R>>,
    folder: BatchFolder<H>,
    group: Vec<Arrived>,
    tasks: Vec<Waiting>,
    patches: Vec<PendingChange>,
    seen: Vec<AccessResult>,
    treelet: Box<Treelet>,
}

impl<H: Hasher, D: Device, R: Runtime> Prefolder<H, D, R> {
    pub(crate) fn new(db: Arc<State<D, R>>, prefetching: Arc<Prefetching<R>>) -> Self {
        Self {
            db,
            prefetching,
            folder: BatchFolder::new(),
            group: Vec::with_capacity(KEY_BATCH),
            tasks: Vec::with_capacity(KEY_BATCH),
            patches: Vec::new(),
            seen: Vec::new(),
            treelet: Box::new(Treelet::empty()),
        }
    }

    /// One step: a batch of pages.
    pub(crate) fn step(&mut self) -> Step {
        let (db, prefetching) = (Arc::clone(&self.db), Arc::clone(&self.prefetching));
        if db.pace.is_closing() {
            return Step::Done;
        }
        let arrivals = prefetching.arrivals();
        self.tasks.clear();
        self.patches.clear();
        let mut group = std::mem::take(&mut self.group);
        arrivals.take(&mut group);
        let came = !group.is_empty();
        if came && !db.pace.foreground().is_finishing() {
            db.pace.enters(Task::Prefold, "folding pages");
            db.pace.comes_further(Task::Prefold);
            let _guard = db.store.enter();
            cpu_prefetch(&db, group.iter().map(|arrived| &arrived.key), Reach::Region);
            group.drain(..).for_each(|arrived| self.gather(arrived));
            self.fold();
        }
        group.clear();
        self.group = group;
        if !came && arrivals.sleeps() { Step::Idle } else { Step::Again }
    }

    /// Takes down how a page stands, unless it has moved or its nodes are known.
    fn gather(&mut self, arrived: Arrived) {
        let patches = &mut self.patches;
        let found = self.db.index.in_region(&arrived.key, |_, state| {
            let child = state.children().find(&arrived.key);
            let here = state.children().page(child) == Some(arrived.at.page)
                && state.children().tag(child) == arrived.at.tag;
            let as_of = state.changed_at(child);
            let prefix = state.children().prefix(child);
            if !here || capture_levels(&prefix) == 0 || arrived.page.knows(as_of) {
                return None;
            }
            state.copy_pending(&prefix, patches);
            Some((prefix, as_of, state.node(child).copied()))
        });
        let Some((prefix, as_of, node)) = found else { return };
        self.tasks.push(Waiting { arrived, prefix, as_of, node, patches_end: self.patches.len() });
    }

    /// Folds the gathered pages, each with its key read, and hangs their nodes on them.
    fn fold(&mut self) {
        self.folder.clear();
        self.seen.clear();
        let hashed = self.folder.hashed();
        let mut from = 0;
        for (at, task) in self.tasks.iter().enumerate() {
            let page = |ahead: usize| self.tasks.get(at + ahead).map(|task| &task.arrived);
            if let Some(arrived) = page(2 * PAGES_AHEAD) {
                arrived.page.cpu_prefetch_head();
            }
            if let Some(arrived) = page(PAGES_AHEAD) {
                arrived.page.cpu_prefetch_key(&arrived.key);
            }
            let leaf = task.arrived.page.view();
            let patches = &self.patches[from..task.patches_end];
            let standing =
                PageState { at: &task.prefix, leaf: Some(&leaf), pending: patches, treelet: None };
            let capture = capture_levels(&task.prefix);
            let touch = [KeyAccess { key: task.arrived.key, reads: true, writes: None }];
            self.folder.begin_capturing(task.prefix.len(), capture);
            fold_leaf(&mut self.folder, &standing, capture, &touch, &mut self.seen);
            self.folder.end().expect("a page's groups of one key are given by key");
            from = task.patches_end;
        }
        self.folder.run();
        Counters::add(&self.db.counters.hashes, self.folder.hashed() - hashed);
        let mut captured = self.folder.captured().to_vec();
        captured.sort_by_key(|one| one.fold);
        let mut captured = captured.as_slice();
        for (fold, task) in self.tasks.iter().enumerate() {
            let own = captured.partition_point(|one| one.fold as usize <= fold);
            let (nodes, rest) = captured.split_at(own);
            captured = rest;
            let node = self.folder.node(fold);
            let agrees = task.node.is_none_or(|known| known == node);
            debug_assert!(agrees, "{:?}: its node is that of page and changes", task.prefix);
            if !agrees {
                // The finish will look for itself.
                tracing::error!(prefix = ?task.prefix, "a page does not fold to its node");
                continue;
            }
            self.treelet.forget();
            let nodes = nodes.iter().map(|one| (one.index, one.node));
            self.treelet.advance(0, task.as_of, &node, nodes);
            let Arrived { page, at, key } = &task.arrived;
            let group = page.bucket(key);
            if self.db.store.cache().give_partial_treelet(at.page, page, &self.treelet, group) {
                Counters::add(&self.db.counters.pages_folded_ahead, 1);
            }
        }
        self.tasks.clear();
    }
}
