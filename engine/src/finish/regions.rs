//! The fold of a chunk: its regions, each from its accessed keys up to its own node; equal heights are hashed together.
//!
//! A region has about a hundred pages, of which a batch may access two: the nodes beside their paths come from the
//! lines of the region's tiling.

use std::ops::Deref;
use std::sync::Arc;

use pleach_beatree::RegionState;
use pleach_beatree::leaf_fold::{
    FoldedPage, KeyAccess, PageState, PartNode, fold_page, fold_parts, is_divided_by_treelet,
    needed_prefixes, needs_parts,
};
use pleach_beatree::pages::ReaderPool;
use pleach_beatree::tree::PAGES_AHEAD;
use pleach_beatree::treelet::TreeletNodes;
use pleach_core::fold::{FoldValue, NO_HASH, Occupancy, SiblingPath, Subtrie, TilingPath};
use pleach_core::node::kind;
use pleach_core::tree::Tiling;
use pleach_core::{Key, NodeKind, Prefix, ValueHash};

use super::chunk::{Batch, Chunk, FoldError, RegionTask};
use super::emit::{Fragment, encode_op};
use super::outcome::{ChunkOutcome, PageNode, RegionOutcome};
use super::scratch::{FoldScratch, PageFold, RegionFold};
use crate::error::Result;
use crate::read::scan::{Direction, Scan, StoredRef};
use crate::state::undo::changes::KeyUpdate;

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
        batch: &Batch<'_>,
        scratch: &mut FoldScratch,
        mut outcome: ChunkOutcome,
    ) -> std::result::Result<ChunkOutcome, FoldError> {
        assert!(outcome.nodes.is_empty() && outcome.lines.is_empty(), "an empty outcome");
        scratch.folder.clear();
        scratch.results.clear();
        scratch.unhashed.clear();
        for index in 0..self.regions.len() {
            self.prefetch_regions(index);
            self.fold_region(batch, index, scratch)?;
        }
        scratch.folder.name_leaves(|at| only_pair(batch, at)).map_err(FoldError::Failed)?;
        scratch.folder.run();
        let ChunkOutcome { siblings, treelets, lines, .. } = &mut outcome;
        scratch.folder.swap_results(siblings, treelets, lines);
        self.emit(batch, scratch, &mut outcome);
        self.take_nodes(batch, scratch, &mut outcome);
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
    ) -> std::result::Result<(), FoldError> {
        let task = &self.regions[index];
        let first_node = scratch.unhashed.pages.len();
        let first_line = scratch.folder.kept_counts().1;
        let (mut whole, own_lines) = (None, lines_of(batch, task)?);
        for at in task.pages.clone() {
            self.prefetch_ahead(batch, at);
            let page = &self.pages[at];
            let subtrie = if let Some(known) = &page.in_view.known {
                scratch.folder.known_subtrie(known, &page.prefix)
            } else {
                self.put_page(batch, at, scratch)
            };
            // Not locked while a page is added: commits and flushes wait for the lock, and readers behind them.
            let state = read_unchanged(task)?;
            let lines = own_lines.as_ref().or(state.lines()).ok_or(FoldError::Changed)?;
            let next = (at + 1 < task.pages.end).then(|| self.pages[at + 1].child as usize);
            let mut span =
                scratch.folder.span_along(task.region.prefix().len(), TilingPath::new(lines));
            whole = span.push_child(page.child as usize, &page.prefix, subtrie, next);
        }
        let state = read_unchanged(task)?;
        let unhashed = &mut scratch.unhashed;
        let first_change = unhashed.regions.last().map_or(0, |region| region.changes.end);
        let writes = writes_of(&batch.accesses[task.accesses.clone()]).count();
        unhashed.regions.push(RegionFold {
            end: whole.map(|whole| scratch.folder.end_fold(whole, false)),
            own_node: *state.own_node(),
            nodes: first_node..unhashed.pages.len(),
            changes: first_change..first_change + writes,
            lines: first_line..scratch.folder.kept_counts().1,
        });
        Ok(())
    }

    /// Adds a page to the fold.
    fn put_page(&self, batch: &Batch<'_>, at: usize, scratch: &mut FoldScratch) -> Subtrie {
        let FoldScratch { folder, results, unhashed, folded, .. } = scratch;
        *folded += 1;
        let page = &self.pages[at];
        let accesses = &batch.accesses[page.accesses.clone()];
        let buffered = &self.buffered[page.buffered.clone()];
        let leaf = page.page.as_ref().map(|page| page.view());
        let keeps = page.should_keep_nodes(batch);
        let from = folder.kept_counts().0;
        let mut fold = |treelet: Option<TreeletNodes<'_>>| {
            let mut state = PageState { at: &page.prefix, leaf: leaf.as_ref(), buffered, treelet };
            let (overlaid, all);
            if page.in_view.is_overlaid {
                overlaid = batch.view.merge_overlays(buffered, &needed_prefixes(&state, accesses));
                state.buffered = &overlaid;
            }
            if needs_parts(state.buffered.len() + accesses.len())
                && !is_divided_by_treelet(&state, accesses)
            {
                if page.in_view.is_overlaid {
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
        let FoldedPage { subtrie, columns, parts } = match (&page.page, page.in_view.as_of) {
            (Some(cached), Some(as_of)) => cached.treelet(as_of, fold),
            _ => fold(None),
        };
        if writes_of(accesses).next().is_some() {
            // However large the batch is: parts are few beside the buffered changes.
            if !parts.is_empty() && page.in_view.as_of.is_some() {
                unhashed.parts.push((unhashed.pages.len(), parts));
            }
            let (node, treelet) = (folder.watch(&subtrie), from..folder.kept_counts().0);
            unhashed.pages.push(PageFold { page: at, node, treelet, columns });
        }
        subtrie
    }

    /// Adds the regions to the outcome: with values found, changes, operations, and their parts of the witness or proof.
    fn emit(&self, batch: &Batch<'_>, scratch: &mut FoldScratch, outcome: &mut ChunkOutcome) {
        let FoldScratch { folder, proofs, results, unhashed, .. } = scratch;
        // Overlays and undo may keep this list: without spare capacity.
        let writes = unhashed.regions.last().map_or(0, |region| region.changes.end);
        let mut changes = Vec::with_capacity(writes);
        let gives_ops = batch.output.has_ops();
        outcome.ops.reserve(if gives_ops { results.len() * OP_BYTES } else { 0 });
        let mut emitted = Vec::with_capacity(self.regions.len());
        let mut results = results.drain(..).enumerate();
        for (task, fold) in self.regions.iter().zip(&unhashed.regions) {
            let first_op = outcome.ops.len();
            let accesses = &batch.accesses[task.accesses.clone()];
            for (access, (at, found)) in accesses.iter().zip(&mut results) {
                if gives_ops {
                    let put = (found.put != NO_HASH).then(|| *folder.value_hash(found.put));
                    let found = found.prior.is_present();
                    encode_op(access, found, put, folder.is_first(at), &mut outcome.ops);
                }
                if let Some(new) = &access.writes {
                    let (key, new) = (access.key, new.clone());
                    changes.push(KeyUpdate { key, new, prior: found.prior });
                }
            }
            let mut fragment = Fragment::default();
            if let Some(end) = fold.end
                && !accesses.is_empty()
                && folder.occupancy(end) == Occupancy::Many
            {
                let from = outcome.terminals.len();
                let count = folder.terminals(end, &mut outcome.terminals, |_, _| {
                    unreachable!("pages are folded with their region")
                });
                let terminals = from..outcome.terminals.len();
                fragment = Fragment { terminals, count, siblings: folder.siblings_of(end) };
            }
            emitted.push((first_op, fragment));
        }
        outcome.changes = changes.into();
        // The nodes before the batch: one fold for each fragment, in order.
        proofs.clear();
        let mut fragments =
            self.regions.iter().zip(&emitted).filter(|(_, (_, fragment))| fragment.count > 0);
        let is_proven = fragments.all(|(task, (_, fragment))| {
            let siblings = SiblingPath::new(fragment.siblings(&outcome.siblings));
            let mut span = proofs.span_along(task.region.prefix().len(), siblings);
            span.push_terminals(fragment.terminals(&outcome.terminals));
            span.end_proof().is_some()
        });
        // Otherwise the root before the batch is found to be wrong.
        if is_proven {
            proofs.run();
        }
        let mut proven = 0..;
        outcome.regions.reserve(self.regions.len());
        let folds = unhashed.regions.drain(..).zip(emitted);
        for (task, (fold, (first_op, fragment))) in self.regions.iter().zip(folds) {
            let proof = if is_proven && fragment.count > 0 { proven.next() } else { None };
            outcome.regions.push(RegionOutcome {
                region: Arc::clone(&task.region),
                layout_version: task.layout_version,
                node: fold.end.map_or(fold.own_node, |end| *folder.node(end)),
                old: fold.end.map_or(Occupancy::Many, |end| folder.occupancy(end)),
                before: proof.map(|proof| *proofs.node(proof)),
                fragment,
                first_op,
                nodes: fold.nodes,
                changes: fold.changes,
                lines: fold.lines,
            });
        }
    }

    /// Adds the nodes of pages and of their parts to the outcome. It holds only pages that learn.
    fn take_nodes(&mut self, batch: &Batch<'_>, scratch: &mut FoldScratch, out: &mut ChunkOutcome) {
        let FoldScratch { folder, unhashed, .. } = scratch;
        out.nodes.reserve(unhashed.pages.len());
        for PageFold { page, node, treelet, columns } in unhashed.pages.drain(..) {
            let task = &mut self.pages[page];
            let page = task.page.take().filter(|_| !treelet.is_empty());
            out.nodes.push(PageNode {
                child: task.child,
                prefix: task.prefix,
                node: *folder.watched(node),
                as_of: task.in_view.as_of.unwrap_or_default(),
                treelet,
                columns,
                is_flush_due: task.is_flush_due(batch),
                page: task.at.zip(page),
            });
        }
        for (at, parts) in unhashed.parts.drain(..) {
            let node = |part: &PartNode| match part {
                PartNode::Known(node) => *node,
                PartNode::Watched(number) => *folder.watched(*number),
            };
            // Parts that can go into a fold by their node.
            let nodes = parts.iter().map(|(prefix, part)| (*prefix, node(part)));
            let nodes = nodes.filter(|(_, node)| kind(node) == NodeKind::Internal).collect();
            out.parts.push((at, Arc::new(nodes)));
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

/// The lines of a region that does not keep them. It keeps them from now on where there is room; then, and where it kept
/// them before, there are none to return.
fn lines_of(
    batch: &Batch<'_>,
    task: &RegionTask,
) -> std::result::Result<Option<Tiling>, FoldError> {
    let state = read_unchanged(task)?;
    if state.lines().is_some() {
        return Ok(None);
    }
    let children = state.children().len();
    let lines = state.computed_lines(batch.db.hasher).into_owned();
    drop(state);
    let Some(room) = batch.db.budget.lines.take(children) else { return Ok(Some(lines)) };
    let mut state = task.region.write();
    if state.lines().is_none() && is_unchanged(task, &state) {
        state.keep_lines(lines, room);
    }
    // Otherwise the fold of the region finds the change.
    Ok(None)
}

fn writes_of(accesses: &[KeyAccess]) -> impl Iterator<Item = &KeyAccess> {
    accesses.iter().filter(|access| access.writes.is_some())
}

/// The region, if it is unchanged since it was gathered.
fn read_unchanged(
    task: &RegionTask,
) -> std::result::Result<impl Deref<Target = RegionState>, FoldError> {
    let state = task.region.read();
    if is_unchanged(task, &state) { Ok(state) } else { Err(FoldError::Changed) }
}

fn is_unchanged(task: &RegionTask, state: &RegionState) -> bool {
    state.layout_version() == task.layout_version
        && state.last_commit() == task.last_commit
        && !state.is_retired()
}

/// The only pair below a prefix in a view. With a wrong node in memory there may be none, or a wrong one, which leads
/// to another root before the batch; the finish compares that.
pub(super) fn only_pair(batch: &Batch<'_>, at: &Prefix) -> Result<(Key, ValueHash)> {
    let mut scan = Scan::new(&ReaderPool::default(), &(*at.first_key()..=at.last_key()));
    let pair = scan.next(batch.db, batch.view, Direction::Forwards).transpose()?;
    let (key, value) = pair.unwrap_or((*at.first_key(), StoredRef::InPage(&[])));
    Ok((key, value.fold_value().unwrap_or(FoldValue::Bytes(&[])).hash(batch.db.hasher)))
}
