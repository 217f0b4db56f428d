//! The fold of a chunk: its regions, each from its accessed keys up to its own node; equal heights are hashed together.
//!
//! A region has about a hundred pages, of which a batch may access two: the nodes beside their paths come from the
//! lines of the region's tiling.

use std::ops::Deref;
use std::sync::Arc;

use pleach_beatree::RegionState;
use pleach_beatree::leaf_fold::{
    AccessResult, FoldedPage, KeyAccess, PageState, PartNode, fold_page, fold_parts,
    is_divided_by_treelet, needed_prefixes, needs_parts,
};
use pleach_beatree::region::Nodes;
use pleach_beatree::treelet::TreeletNodes;
use pleach_core::fold::{FoldValue, Folder, NO_HASH, Occupancy, SiblingPath, Subtrie, TilingPath};
use pleach_core::node::kind;
use pleach_core::{Key, Node, NodeKind, Prefix, ValueHash};

use super::chunk::{Batch, Chunk, FoldError, RegionTask};
use super::emit::{Fragment, encode_op};
use super::outcome::{ChunkOutcome, PageNode, RegionOutcome};
use super::scratch::{FoldScratch, UnhashedNodes};
use crate::error::Result;
use crate::read::key_batch::PAGES_AHEAD;
use crate::read::reader_pool::ReaderPool;
use crate::read::scan::{Direction, Scan, StoredRef};
use crate::state::TrieDb;
use crate::state::history::undo::KeyUpdate;
use crate::state::view::View;

/// Regions ahead of the one that is folded whose memory is prefetched.
const REGIONS_AHEAD: usize = 2;
/// Number of keys for which a worker keeps memory.
const KEPT: usize = 1 << 14;
/// About how many bytes an encoded operation takes: key, flags and a value's hash.
const OP_BYTES: usize = 72;

impl Chunk {
    /// Folds the chunk, whose pages are all in memory, into an empty `outcome`.
    pub(super) fn fold(
        &mut self,
        db: &TrieDb,
        batch: &Batch<'_>,
        scratch: &mut FoldScratch,
        mut outcome: ChunkOutcome,
    ) -> std::result::Result<ChunkOutcome, FoldError> {
        assert!(outcome.nodes.is_empty() && outcome.lines.is_empty(), "an empty outcome");
        scratch.folder.clear();
        scratch.results.clear();
        // Separate from the scratch; after an error a new one is made.
        let mut unhashed = std::mem::take(&mut scratch.unhashed);
        unhashed.clear();
        outcome.regions.reserve(self.regions.len());
        outcome.nodes.reserve(self.pages.len());
        for index in 0..self.regions.len() {
            self.prefetch_regions(index);
            self.fold_region(batch, index, scratch, (&mut outcome, &mut unhashed))?;
        }
        let view = batch.view;
        scratch.folder.name_leaves(|at| only_pair(db, view, at)).map_err(FoldError::Failed)?;
        scratch.folder.run();
        self.emit(batch, scratch, &unhashed.ends, &mut outcome);
        self.take_nodes(&scratch.folder, &mut unhashed, &mut outcome);
        scratch.unhashed = unhashed;
        let ChunkOutcome { siblings, treelets, lines, .. } = &mut outcome;
        scratch.folder.swap_results(siblings, treelets, lines);
        fold_proofs(&mut scratch.proofs, &mut outcome);
        if self.buffered.len() > KEPT {
            // A page with many buffered changes has taken memory that no other chunk needs.
            scratch.folder.shrink_to(KEPT);
        }
        Ok(outcome)
    }

    /// Adds the pages of a region to the fold. The region must be unchanged since it was gathered.
    fn fold_region(
        &self,
        batch: &Batch<'_>,
        index: usize,
        scratch: &mut FoldScratch,
        (outcome, unhashed): (&mut ChunkOutcome, &mut UnhashedNodes),
    ) -> std::result::Result<(), FoldError> {
        let task = &self.regions[index];
        let (first_node, first_line) = (outcome.nodes.len(), scratch.folder.kept_counts().1);
        let mut whole = None;
        for at in task.pages.clone() {
            self.prefetch_ahead(batch, at);
            let page = &self.pages[at];
            let subtrie = if let Some(known) = &page.known {
                scratch.folder.known_subtrie(known, &page.prefix)
            } else {
                scratch.folded += 1;
                let (folder, results) = (&mut scratch.folder, &mut scratch.results);
                self.put_page(batch, at, (folder, results), (&mut outcome.nodes, &mut *unhashed))
            };
            // Not locked while a page is added: commits and flushes wait for the lock, and readers behind them.
            let state = read_unchanged(task)?;
            let Nodes::Resident(tiling) = state.nodes() else { return Err(FoldError::Changed) };
            let next = (at + 1 < task.pages.end).then(|| self.pages[at + 1].child as usize);
            let mut span =
                scratch.folder.span_along(task.region.prefix().len(), TilingPath::new(tiling));
            whole = span.push_child(page.child as usize, &page.prefix, subtrie, next);
        }
        let state = read_unchanged(task)?;
        unhashed.ends.push(whole.map(|whole| scratch.folder.end_fold(whole, false)));
        let first_change = outcome.regions.last().map_or(0, |region| region.changes.end);
        let writes = writes_of(&batch.accesses[task.accesses.clone()]).count();
        outcome.regions.push(RegionOutcome {
            region: Arc::clone(&task.region),
            layout_version: task.layout_version,
            accessed: !task.accesses.is_empty(),
            node: *state.own_node(),
            old: Occupancy::Many,
            before: None,
            fragment: Fragment::default(),
            first_op: 0,
            nodes: first_node..outcome.nodes.len(),
            changes: first_change..first_change + writes,
            lines: first_line..scratch.folder.kept_counts().1,
        });
        Ok(())
    }

    /// Adds a page to the fold, and its node to the outcome.
    fn put_page(
        &self,
        batch: &Batch<'_>,
        at: usize,
        (folder, results): (&mut Folder, &mut Vec<AccessResult>),
        (nodes, unhashed): (&mut Vec<PageNode>, &mut UnhashedNodes),
    ) -> Subtrie {
        let page = &self.pages[at];
        let accesses = &batch.accesses[page.accesses.clone()];
        let buffered = &self.buffered[page.buffered.clone()];
        let leaf = page.page.as_ref().map(|page| page.view());
        let keeps = page.should_keep_nodes(batch);
        let from = folder.kept_counts().0;
        let mut fold = |treelet: Option<TreeletNodes<'_>>| {
            let mut state = PageState { at: &page.prefix, leaf: leaf.as_ref(), buffered, treelet };
            let (overlaid, all);
            if page.is_overlaid {
                overlaid = batch.view.merge_overlays(buffered, &needed_prefixes(&state, accesses));
                state.buffered = &overlaid;
            }
            if needs_parts(state.buffered.len() + accesses.len())
                && !is_divided_by_treelet(&state, accesses)
            {
                if page.is_overlaid {
                    // The page is folded without its treelet.
                    all = batch.view.merge_overlays(buffered, &[page.prefix]);
                    state.buffered = &all;
                }
                let known = self.parts.binary_search_by_key(&at, |(page, _)| *page);
                let known = known.ok().map(|found| self.parts[found].1.as_slice());
                return fold_parts(folder, &state, known, accesses, results);
            }
            fold_page(folder, &state, keeps, accesses, results)
        };
        let folded = match (&page.page, page.as_of) {
            (Some(cached), Some(as_of)) => cached.treelet(as_of, fold),
            _ => fold(None),
        };
        let FoldedPage { subtrie, columns, parts } = folded;
        if writes_of(accesses).next().is_some() {
            unhashed.nodes.push((at, folder.watch(&subtrie)));
            // However large the batch is: parts are few beside the buffered changes.
            if !parts.is_empty() && page.as_of.is_some() {
                unhashed.parts.push((nodes.len(), parts));
            }
            nodes.push(PageNode {
                child: page.child,
                prefix: page.prefix,
                node: Node::default(),
                as_of: page.as_of.unwrap_or_default(),
                treelet: from..folder.kept_counts().0,
                columns,
                is_flush_due: page.is_flush_due(batch),
                page: None,
            });
        }
        subtrie
    }

    /// Adds values found, changes, operations, and the regions' parts of the witness or proof to the outcome.
    fn emit(
        &self,
        batch: &Batch<'_>,
        scratch: &mut FoldScratch,
        ends: &[Option<usize>],
        outcome: &mut ChunkOutcome,
    ) {
        let folder = &scratch.folder;
        let accesses =
            || self.regions.iter().flat_map(|task| &batch.accesses[task.accesses.clone()]);
        // Overlays and undo may keep these lists: without spare capacity.
        let writes = accesses().filter(|access| access.writes.is_some()).count();
        let mut changes = Vec::with_capacity(writes);
        let gives_ops = batch.output.has_ops();
        outcome.ops.reserve(if gives_ops { accesses().count() * OP_BYTES } else { 0 });
        let mut results = scratch.results.drain(..).enumerate();
        for (index, task) in self.regions.iter().enumerate() {
            let region = &mut outcome.regions[index];
            region.first_op = outcome.ops.len();
            let accesses = &batch.accesses[task.accesses.clone()];
            for (access, (at, found)) in accesses.iter().zip(&mut results) {
                if gives_ops {
                    let put = (found.put != NO_HASH).then(|| *folder.value_hash(found.put));
                    encode_op(access, (&found, put), folder.is_first(at), &mut outcome.ops);
                }
                if let Some(new) = &access.writes {
                    let (key, new) = (access.key, new.clone());
                    changes.push(KeyUpdate { key, new, prior: found.prior });
                }
            }
            let Some(end) = ends[index] else { continue };
            (region.node, region.old) = (*folder.node(end), folder.occupancy(end));
            if region.accessed && region.old == Occupancy::Many {
                let from = outcome.terminals.len();
                let count = folder.terminals(end, &mut outcome.terminals, |_, _| {
                    unreachable!("pages are folded with their region")
                });
                let terminals = from..outcome.terminals.len();
                region.fragment = Fragment { terminals, count, siblings: folder.siblings_of(end) };
            }
        }
        drop(results);
        outcome.changes = changes.into();
    }

    /// Adds the nodes of pages and of their parts to the outcome. It holds only pages that learn.
    fn take_nodes(
        &mut self,
        folder: &Folder,
        unhashed: &mut UnhashedNodes,
        outcome: &mut ChunkOutcome,
    ) {
        for (node, (at, watched)) in outcome.nodes.iter_mut().zip(&unhashed.nodes) {
            node.node = *folder.watched(*watched);
            let task = &mut self.pages[*at];
            let page = task.page.take().filter(|_| !node.treelet.is_empty());
            node.page = task.at.zip(page);
        }
        for (at, parts) in unhashed.parts.drain(..) {
            let node = |part: &PartNode| match part {
                PartNode::Known(node) => *node,
                PartNode::Watched(number) => *folder.watched(*number),
            };
            // Parts that can go into a fold by their node.
            let nodes = parts.iter().map(|(prefix, part)| (*prefix, node(part)));
            let nodes = nodes.filter(|(_, node)| kind(node) == NodeKind::Internal).collect();
            outcome.parts.push((at, Arc::new(nodes)));
        }
        for page in &mut self.pages {
            page.page = None;
        }
    }

    /// Prefetches the memory of pages that are folded next: waiting for each would take longer than the fold.
    fn prefetch_ahead(&self, batch: &Batch<'_>, index: usize) {
        let page = |ahead| self.pages.get(index + ahead);
        if let Some(page) = page(2 * PAGES_AHEAD).and_then(|task| task.page.as_ref()) {
            page.cpu_prefetch_head();
        }
        if let Some(task) = page(PAGES_AHEAD)
            && let Some(page) = &task.page
        {
            for access in &batch.accesses[task.accesses.clone()] {
                page.cpu_prefetch_key(&access.key);
            }
        }
    }

    /// Prefetches the memory of the regions that are folded next.
    fn prefetch_regions(&self, index: usize) {
        if let Some(task) = self.regions.get(index + 2 * REGIONS_AHEAD) {
            task.region.cpu_prefetch();
        }
        if let Some(task) = self.regions.get(index + REGIONS_AHEAD)
            && let Some(state) = task.region.try_read()
        {
            for page in &self.pages[task.pages.clone()] {
                state.cpu_prefetch_nodes(page.child as usize);
            }
        }
    }
}

fn writes_of(accesses: &[KeyAccess]) -> impl Iterator<Item = &KeyAccess> {
    accesses.iter().filter(|access| access.writes.is_some())
}

/// The region, if it is unchanged since it was gathered.
fn read_unchanged(
    task: &RegionTask,
) -> std::result::Result<impl Deref<Target = RegionState>, FoldError> {
    let state = task.region.read();
    let same = state.layout_version() == task.layout_version
        && state.last_commit() == task.last_commit
        && !state.is_retired();
    if same { Ok(state) } else { Err(FoldError::Changed) }
}

/// The only pair below a prefix in a view. With a wrong node in memory there may be none, or a wrong one, which leads
/// to another root before the batch; the finish compares that.
pub(super) fn only_pair(db: &TrieDb, view: &View, at: &Prefix) -> Result<(Key, ValueHash)> {
    let mut scan = Scan::new(&ReaderPool::default(), &(*at.first_key()..=at.last_key()));
    let pair = scan.next(db, view, Direction::Forwards).transpose()?;
    let (key, value) = pair.unwrap_or((*at.first_key(), StoredRef::InPage(&[])));
    Ok((key, value.fold_value().unwrap_or(FoldValue::Bytes(&[])).hash(db.hasher)))
}

/// Computes the nodes before the batch to which the regions' parts of the multiproof lead.
fn fold_proofs(folder: &mut Folder, outcome: &mut ChunkOutcome) {
    let ChunkOutcome { regions, terminals, siblings, .. } = outcome;
    folder.clear();
    let mut folds = Vec::with_capacity(regions.len());
    let proven = |region: &&mut RegionOutcome| region.fragment.count > 0;
    for region in regions.iter_mut().filter(proven) {
        let floor = region.region.prefix().len();
        let mut span =
            folder.span_along(floor, SiblingPath::new(region.fragment.siblings(siblings)));
        span.push_terminals(region.fragment.terminals(terminals));
        match span.end_proof() {
            Some(fold) => folds.push(fold),
            // Found when the root before the batch is compared.
            None => return,
        }
    }
    folder.run();
    for (region, fold) in regions.iter_mut().filter(proven).zip(folds) {
        region.before = Some(*folder.node(fold));
    }
}
