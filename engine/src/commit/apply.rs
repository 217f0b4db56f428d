//! Commit `publish`, its second part: changes go to the index as buffered changes, with their nodes, region by region.
//!
//! Called in ticket order, after the commit's undo is there and before its number is. Each region is locked for a
//! moment, by one of the workers; readers may see some regions with the commit and others without it; undo hides the
//! changes from readers of older states.

use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::Region;
use pleach_beatree::recycle::Recycle as _;
use pleach_beatree::region::{BufferedChange, NewNodes, PartNodes, RegionCommit};
use pleach_beatree::tree::PAGES_AHEAD;
use pleach_beatree::treelet::Treelet;
use pleach_core::{Node, Prefix};
use pleach_journal::format::position::LogPos;
use pleach_journal::format::trie_kind::TrieKind;

use crate::finish::outcome::{ChunkOutcome, PageNode};
use crate::metrics::Counters;
use crate::state::NamespaceDb;
use crate::state::undo::changes::{Changes, KeyUpdate};

/// What a published commit leaves in the regions beside its changes.
#[derive(Clone, Copy)]
pub(super) struct CommitStamp {
    /// Number of the commit.
    pub(super) number: u64,
    /// The new version of the changed pages.
    pub(super) version: u64,
    /// End of the commit's record in the log.
    pub(super) log_position: LogPos,
}

/// Applies a commit: the changes of these chunks, with their nodes. Gives the chunks back empty, for their memory.
pub(super) fn apply_all(
    db: &NamespaceDb,
    stamp: CommitStamp,
    chunks: Vec<ChunkOutcome>,
    changes: &Changes,
) -> Vec<ChunkOutcome> {
    let CommitStamp { number, version, log_position } = stamp;
    let workers = if changes.len() < 4096 { 1 } else { db.runtime.workers() };
    let regions = chunks.iter().flat_map(|chunk| &chunk.regions);
    let changed = regions.filter(|region| !region.changes.is_empty());
    let changed: Vec<(Prefix, Node)> =
        changed.map(|region| (*region.region.prefix(), region.node)).collect();
    let chunks: Vec<Mutex<ChunkOutcome>> = chunks.into_iter().map(Mutex::new).collect();
    let tasks = db.timings.begin_tasks(None, chunks.len());
    let due = Mutex::new(Vec::new());
    let policy = db.budget.flush_policy();
    let apply = |_: usize| {
        let mut scratch: Vec<BufferedChange> = Vec::new();
        let mut own_due = Vec::new();
        let (mut bytes, mut entries) = (0, 0);
        let mut put =
            |region: &Region, applied: &mut RegionCommit<'_>, parts: &[(u32, &Arc<PartNodes>)]| {
                let mut state = region.write();
                let growth = state.apply(applied, &mut scratch, |prefix, changes| {
                    if policy.is_due(&prefix, changes) {
                        own_due.push(prefix);
                    }
                });
                bytes += growth.bytes;
                entries += growth.entries;
                for (child, parts) in parts {
                    state.store_parts(*child as usize, Arc::clone(parts));
                }
            };
        tasks.run_tasks(|at| {
            let mut chunk = chunks[at].lock();
            for outcome in &chunk.regions {
                let own = &changes.list(at)[outcome.changes.clone()];
                if own.is_empty() {
                    continue;
                }
                let covers = |changed: &KeyUpdate| outcome.region.prefix().covers(&changed.key);
                assert!(covers(&own[0]) && covers(&own[own.len() - 1]), "changes of the region");
                let pages = &chunk.nodes[outcome.nodes.clone()];
                let mut states = own.iter().map(|changed| (changed.key, changed.new.clone()));
                let mut applied = RegionCommit {
                    commit: number,
                    version,
                    log_position: log_position.get(),
                    changes: &mut states,
                    nodes: NewNodes::Lines {
                        lines: &chunk.lines[outcome.lines.clone()],
                        own: outcome.node,
                    },
                };
                let parts = chunk.parts.iter().filter(|(at, _)| outcome.nodes.contains(at));
                let parts: Vec<_> =
                    parts.map(|(at, parts)| (chunk.nodes[*at].child, parts)).collect();
                put(&outcome.region, &mut applied, &parts);
                advance_treelets(db, version, pages, &chunk.treelets);
            }
            if db.kind == TrieKind::Plain {
                apply_plain(db, stamp, changes, at, &mut put);
            }
            // Cleared here, while the memory is in the processor's cache.
            chunk.clear();
        });
        Counters::change(&db.counters.pending_bytes, bytes);
        Counters::change(&db.counters.pending_entries, entries);
        due.lock().append(&mut own_due);
    };
    let _own_processors = (workers > 1).then(|| db.pace.foreground.begin_publish());
    db.runtime.inline_or_fork_join(workers, &apply);
    db.tree.update_root(db.hasher, number, &changed);
    let mut due = due.into_inner();
    due.sort_unstable();
    db.tree.make_due(due);
    chunks.into_iter().map(Mutex::into_inner).collect()
}

/// Applies the changes of a chunk of a plain namespace. Its chunks have no regions: the present regions are used, which
/// no flush changes before the commit is published. A region takes a commit at once, from the chunk that has the first
/// of its changes.
fn apply_plain(
    db: &NamespaceDb,
    CommitStamp { number: commit, log_position, .. }: CommitStamp,
    changes: &Changes,
    at: usize,
    put: &mut impl FnMut(&Region, &mut RegionCommit<'_>, &[(u32, &Arc<PartNodes>)]),
) {
    let (regions, mut rest) = (db.tree.load(), changes.list(at));
    if let Some(last) = at.checked_sub(1).and_then(|before| changes.list(before).last()) {
        let begun = regions.region(&last.key);
        rest = &rest[rest.partition_point(|changed| begun.prefix().covers(&changed.key))..];
    }
    while let Some(first) = rest.first() {
        let region = regions.region(&first.key);
        let covers = |changed: &KeyUpdate| region.prefix().covers(&changed.key);
        let (own, behind) = rest.split_at(rest.partition_point(covers));
        rest = behind;
        let more = changes.after_list(at).take_while(|one| rest.is_empty() && covers(one)).count();
        // `take` bounds their number: a region tells few changes from many by it.
        let all = own.iter().chain(changes.after_list(at).take(more));
        let mut states = all.map(|changed| (changed.key, changed.new.clone()));
        put(
            region,
            &mut RegionCommit {
                commit,
                version: commit,
                log_position: log_position.get(),
                changes: &mut states,
                nodes: NewNodes::Plain,
            },
            &[],
        );
    }
}

/// Advances the treelets of the pages that a block has changed to this version, before its commit.
pub(super) fn advance_all(db: &NamespaceDb, version: u64, chunks: &[ChunkOutcome]) {
    let pages: usize = chunks.iter().map(|chunk| chunk.nodes.len()).sum();
    let workers = if pages < PARALLEL_PAGES { 1 } else { db.runtime.workers() };
    let tasks = db.timings.begin_tasks(None, chunks.len());
    let advance =
        |at: usize| advance_treelets(db, version, &chunks[at].nodes, &chunks[at].treelets);
    db.runtime.inline_or_fork_join(workers, &|_| tasks.run_tasks(advance));
}

/// Pages from which on several workers advance treelets.
const PARALLEL_PAGES: usize = 4096;

/// Advances the treelets of changed pages to this version.
fn advance_treelets(db: &NamespaceDb, version: u64, pages: &[PageNode], treelets: &[(u8, Node)]) {
    let ahead =
        |index: usize| pages.get(index).and_then(|node| Some((node, &node.page.as_ref()?.1)));
    for (index, node) in pages.iter().enumerate() {
        if let Some((_, page)) = ahead(index + 2 * PAGES_AHEAD) {
            page.cpu_prefetch_head();
        }
        if let Some((node, page)) = ahead(index + PAGES_AHEAD) {
            page.cpu_prefetch_nodes(treelets[node.treelet.clone()].iter().map(|(index, _)| *index));
        }
        let Some((at, page)) = node.page.as_ref().filter(|_| !node.treelet.is_empty()) else {
            continue;
        };
        let nodes = || treelets[node.treelet.clone()].iter().copied();
        let step = (node.as_of, version);
        if !page.advance_treelet(step, node.columns, &node.node, nodes()) {
            db.store.cache.attach_treelet(
                at.page,
                page,
                node.is_flush_due,
                |treelet: &mut Treelet| {
                    treelet.clear();
                    treelet.advance(step, node.columns, &node.node, nodes());
                },
            );
        }
    }
}
