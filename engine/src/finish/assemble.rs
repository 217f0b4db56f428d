//! The end of a finish: folds the regions' nodes into the root, computes the root before the batch from the multiproof
//! and compares it with the state's own, and gathers the parts of the witness. Runs on the thread that finishes; only
//! copying is shared among workers.

use std::sync::Arc;

use pleach_beatree::RegionIndex;
use pleach_core::fold::{Folder, SiblingPath, TilingPath};
use pleach_core::node::kind;
use pleach_core::proof::ProofKind;
use pleach_core::proof::wire::{SectionSizes, Sections, header, op_not_first};

use pleach_core::tree::Tiling;
use pleach_core::{Node, NodeKind, Prefix};

use super::chunk::Batch;
use super::emit::FinishOutput;
use super::outcome::{ChunkOutcome, FinishedTrie, RegionOutcome};
use super::regions::only_pair;
use super::scratch::FoldScratch;
use super::witness::{Witness, WitnessPool, concat_witness};
use super::worker::{INLINE, Workers};
use crate::error::{Contradiction, Error, Result};
use crate::phase::Phase;
use crate::state::undo::past_node::PastNode;

/// A witness of at least this many bytes is copied by several workers.
const PARALLEL_COPY: usize = 1 << 20;
/// Bytes of it that a worker copies at a time.
const PIECE: usize = 1 << 18;

/// What the root's fold takes for a region, or for all regions below a prefix.
enum RootPart {
    /// An accessed region: chunk and region within it.
    Accessed(usize, usize),
    /// The node, where nothing is accessed.
    Node(Node),
}

pub(super) fn assemble(
    workers: &Workers,
    witnesses: &Arc<WitnessPool>,
    batch: &Batch<'_>,
    prev_root: &Node,
    mut chunks: Vec<ChunkOutcome>,
) -> Result<FinishedTrie> {
    if batch.accesses.is_empty() {
        let witness = match batch.output {
            FinishOutput::RootOnly => None,
            _ => Some(encode_witness(witnesses, batch, 0, Sections::default())?),
        };
        return Ok(FinishedTrie { root: *prev_root, chunks, witness });
    }
    let is_proof = batch.output.is_proof();
    let timed = (!is_proof).then(|| batch.db.timings.begin_phase(Phase::Root));
    let mut worker = workers.take_inline();
    let folded = fold_root(workers, batch, prev_root, &chunks, &mut worker.scratch)?;
    let RootFold { root, end, fragments, emitted } = folded;
    if batch.output.has_ops() {
        let folder = &worker.scratch.folder;
        for ((chunk, region), access) in fragments.iter().zip(folder.accesses(end)) {
            if !folder.is_first(access) {
                let at = chunks[*chunk].regions[*region].first_op;
                op_not_first(&mut chunks[*chunk].ops[at]);
            }
        }
    }
    workers.recycle_inline(worker, batch.accesses.len() <= INLINE);
    drop(timed);
    let witness = match batch.output {
        FinishOutput::RootOnly => None,
        _ => Some(gather_witness(witnesses, batch, &emitted, &chunks, &fragments)?),
    };
    Ok(FinishedTrie { root, chunks, witness })
}

/// The result of folding the regions' nodes into the root.
pub(super) struct RootFold {
    /// The root after the batch.
    pub(super) root: Node,
    end: usize,
    /// Chunk and region of each fragment.
    fragments: Vec<(usize, usize)>,
    emitted: RootEmission,
}

/// Computes the root from the regions: those of the chunks and all others.
///
/// # Errors
/// When the nodes that the chunks were folded from lead to another root than `prev_root`: the root would be wrong.
pub(super) fn fold_root(
    workers: &Workers,
    batch: &Batch<'_>,
    prev_root: &Node,
    chunks: &[ChunkOutcome],
    scratch: &mut FoldScratch,
) -> Result<RootFold> {
    let index = batch.db.tree.load_full();
    let folder = &mut scratch.folder;
    let is_newest = |as_of: u64| batch.view.is_committed() && as_of <= batch.view.base;
    let as_of = batch
        .db
        .tree
        .root_nodes(batch.db.hasher, &index)
        .tiling_over(&index)
        .map(|(_, as_of)| as_of);
    let is_older = !as_of.is_some_and(is_newest);
    let parts = known_parts(batch, &index, is_older, chunks)?;
    let known = parts.and_then(|mut parts| {
        // A commit waits for this guard: no device is read while it is held.
        let nodes = batch.db.tree.root_nodes(batch.db.hasher, &index);
        // A commit meanwhile has changed the nodes of other regions.
        let (tiling, _) =
            nodes.tiling_over(&index).filter(|(_, as_of)| is_older || is_newest(*as_of))?;
        parts
            .retain(|(at, part)| !matches!(part, RootPart::Node(node) if node == tiling.node(*at)));
        let prefix = |at: usize| *index.regions()[at].prefix();
        Some(fold_parts(folder, tiling, prefix, &parts, chunks))
    });
    let (end, fragments) = match known {
        Some(folded) => folded,
        None => fold_all(folder, all_parts(workers, batch, &index, chunks)?, chunks),
    };
    folder.name_leaves(|at| {
        // The region with the pair: the others may have many pages to look into.
        let own =
            index.regions()[index.find(at.first_key())..].iter().map(|region| region.prefix());
        let is_leaf = |node: Node| kind(&node) == NodeKind::Leaf;
        for region in own.take_while(|region| at.contains(region)) {
            if node_in_view(batch, region)?.is_some_and(is_leaf) {
                return only_pair(batch, region);
            }
        }
        only_pair(batch, at)
    })?;
    folder.run();
    let emitted = RootEmission::from_folder(folder, end);
    let found = emitted.root_before(&mut scratch.proofs, chunks, &fragments);
    if found != Some(*prev_root) {
        return Err(Contradiction::NodesInMemory { expected: *prev_root, found }.into());
    }
    Ok(RootFold { root: *folder.node(end), end, fragments, emitted })
}

/// The chunks' regions in order: prefix, and chunk and region within it.
fn accessed_regions(chunks: &[ChunkOutcome]) -> impl Iterator<Item = (Prefix, (usize, usize))> {
    chunks.iter().enumerate().flat_map(|(chunk, outcome)| {
        let regions = outcome.regions.iter().enumerate();
        regions.map(move |(at, region)| (*region.region.prefix(), (chunk, at)))
    })
}

/// The accessed regions, and for a view older than the nodes in memory all others, by their numbers; `None` where a
/// region was split or joined since its chunk was folded, or must be folded itself.
fn known_parts(
    batch: &Batch<'_>,
    index: &RegionIndex,
    is_older: bool,
    chunks: &[ChunkOutcome],
) -> Result<Option<Vec<(usize, RootPart)>>> {
    let numbered = accessed_regions(chunks).map(|(prefix, (chunk, region))| {
        let at = index.find(prefix.first_key());
        (*index.regions()[at].prefix() == prefix).then_some((at, RootPart::Accessed(chunk, region)))
    });
    let Some(accessed) = numbered.collect::<Option<Vec<(usize, RootPart)>>>() else {
        return Ok(None);
    };
    if !is_older {
        return Ok(Some(accessed));
    }
    let mut parts = Vec::with_capacity(index.regions().len());
    let mut accessed = accessed.into_iter().peekable();
    for (at, region) in index.regions().iter().enumerate() {
        if let Some(part) = accessed.next_if(|(accessed, _)| *accessed == at) {
            parts.push(part);
            continue;
        }
        let Some(node) = node_in_view(batch, region.prefix())? else { return Ok(None) };
        parts.push((at, RootPart::Node(node)));
    }
    Ok(Some(parts))
}

/// All parts below the root, in order.
fn all_parts(
    workers: &Workers,
    batch: &Batch<'_>,
    index: &RegionIndex,
    chunks: &[ChunkOutcome],
) -> Result<Vec<(Prefix, RootPart)>> {
    let mut accessed = accessed_regions(chunks).peekable();
    let mut parts = Vec::with_capacity(index.regions().len());
    let mut covered: Option<Prefix> = None;
    for region in index.regions() {
        let prefix = *region.prefix();
        // A region may have been split since its chunk was folded: the node stays valid.
        if covered.is_some_and(|covered| covered.contains(&prefix)) {
            continue;
        }
        if let Some((at, (chunk, region))) = accessed.next_if(|(at, _)| at.contains(&prefix)) {
            parts.push((at, RootPart::Accessed(chunk, region)));
            covered = Some(at);
            continue;
        }
        let node = if let Some(node) = node_in_view(batch, &prefix)? {
            node
        } else {
            // The region has changed since the view: fold all that lies below the prefix now.
            let node = fold_below(workers, batch, &prefix)?;
            batch.view.keep_past_node(&prefix, node);
            node
        };
        parts.push((prefix, RootPart::Node(node)));
    }
    assert!(accessed.next().is_none(), "no regions are merged while a batch is folded over them");
    Ok(parts)
}

/// The node of a prefix in the view; `None` when it must be folded.
fn node_in_view(batch: &Batch<'_>, prefix: &Prefix) -> Result<Option<Node>> {
    let own = batch.db.tree.with_region(prefix.first_key(), |region, state| {
        (region.prefix() == prefix).then_some((*state.own_node(), state.last_commit()))
    });
    let is_past = own.is_none_or(|(_, last_commit)| last_commit > batch.view.base);
    if is_past && let Some(node) = batch.view.kept_past_node(prefix) {
        return Ok(Some(node));
    }
    // Undo is read after the region: a commit in between has marked the region.
    let then = match own {
        None => PastNode::Unrecorded,
        Some((own, last_commit)) if last_commit <= batch.view.base => PastNode::Recorded(own),
        Some((own, _)) => batch.view.past_region_node(prefix)?.or_else(|| PastNode::Recorded(own)),
    };
    Ok(match batch.view.overlay_node(prefix).or_else(|| then) {
        PastNode::Recorded(node) => {
            if is_past {
                batch.view.keep_past_node(prefix, node);
            }
            Some(node)
        }
        PastNode::Unchanged | PastNode::Unrecorded => None,
    })
}

/// Folds all regions that lie below `prefix` now; several when the region was split meanwhile.
fn fold_below(workers: &Workers, batch: &Batch<'_>, prefix: &Prefix) -> Result<Node> {
    let mut key = Some(*prefix.first_key());
    let (mut prefixes, mut nodes) = (Vec::new(), Vec::new());
    while let Some(at) = key.filter(|key| prefix.covers(key)) {
        let outcome = workers.fold_inline(batch, &mut |chunk| chunk.gather_region(batch, &at))?;
        let region = &outcome.regions[0];
        prefixes.push(*region.region.prefix());
        nodes.push(region.node);
        key = region.region.prefix().next().map(|next| *next.first_key());
    }
    Ok(*Tiling::new(batch.db.hasher, prefixes.into_iter(), &nodes).own_node())
}

/// [`fold_parts`] of all that lies below the root.
fn fold_all(
    folder: &mut Folder,
    parts: Vec<(Prefix, RootPart)>,
    chunks: &[ChunkOutcome],
) -> (usize, Vec<(usize, usize)>) {
    let (prefixes, parts): (Vec<Prefix>, Vec<RootPart>) = parts.into_iter().unzip();
    let node = |part: &RootPart| match part {
        RootPart::Accessed(chunk, region) => chunks[*chunk].regions[*region].node,
        RootPart::Node(node) => *node,
    };
    let nodes: Vec<Node> = parts.iter().map(node).collect();
    let tiling = Tiling::new(folder.hasher(), prefixes.iter().copied(), &nodes);
    let others = |part: &(usize, RootPart)| !matches!(part.1, RootPart::Node(_));
    let parts: Vec<(usize, RootPart)> = parts.into_iter().enumerate().filter(others).collect();
    fold_parts(folder, &tiling, |at| prefixes[at], &parts, chunks)
}

/// Folds the root from a tiling and the parts that replace its nodes; returns chunk and region of each fragment, too.
fn fold_parts(
    folder: &mut Folder,
    tiling: &Tiling,
    prefix: impl Fn(usize) -> Prefix,
    parts: &[(usize, RootPart)],
    chunks: &[ChunkOutcome],
) -> (usize, Vec<(usize, usize)>) {
    folder.clear();
    let (mut fragments, mut whole) = (Vec::new(), None);
    let mut span = folder.span_along(0, TilingPath::new(tiling));
    for (place, (at, part)) in parts.iter().enumerate() {
        let (prefix, folder) = (prefix(*at), span.folder());
        let subtrie = match part {
            RootPart::Accessed(chunk, region) => {
                let outcome = &chunks[*chunk].regions[*region];
                let number = u32::try_from(fragments.len()).expect("fewer than 2^32 regions");
                fragments.push((*chunk, *region));
                folder.fragment(&outcome.node, &outcome.old, prefix.first_key(), number)
            }
            RootPart::Node(node) => folder.known_subtrie(node, &prefix),
        };
        let next = parts.get(place + 1).map(|(next, _)| *next);
        whole = span.push_child(*at, &prefix, subtrie, next);
    }
    let whole = whole.expect("a batch accesses something");
    (folder.end_fold(whole, true), fragments)
}

/// The witness or proof: the terminals of the root's fold with the regions' fragments between them, then operations and
/// siblings; copied by all workers.
fn gather_witness(
    witnesses: &Arc<WitnessPool>,
    batch: &Batch<'_>,
    root: &RootEmission,
    chunks: &[ChunkOutcome],
    fragments: &[(usize, usize)],
) -> Result<Witness> {
    let mut sections = Sections::<Vec<&[u8]>>::default();
    let mut count = root.count;
    root.visit_parts(chunks, fragments, |terminals, siblings, fragment| {
        sections.terminals.push(terminals);
        sections.siblings.push(Node::bytes_of(siblings));
        if let Some((chunk, region)) = fragment {
            let fragment = &region.fragment;
            sections.terminals.push(fragment.terminals(&chunk.terminals));
            sections.siblings.push(Node::bytes_of(fragment.siblings(&chunk.siblings)));
            count += fragment.count;
        }
    });
    sections.ops.extend(chunks.iter().map(|chunk| chunk.ops.as_slice()));
    let path: Vec<[u8; 32]>;
    if batch.output == FinishOutput::Path {
        // A path has its siblings from the root down.
        path =
            sections.siblings.iter().flat_map(|part| part.as_chunks().0).rev().copied().collect();
        sections.siblings = vec![path.as_flattened()];
    }
    encode_witness(witnesses, batch, count, sections)
}

/// What the root's fold emitted, and where the regions' fragments belong.
struct RootEmission {
    terminals: Vec<u8>,
    siblings: Vec<Node>,
    /// Number of terminals.
    count: u32,
    gaps: Vec<FragmentGap>,
}

impl RootEmission {
    fn from_folder(folder: &Folder, end: usize) -> Self {
        let (mut terminals, mut gaps) = (Vec::new(), Vec::new());
        let mut siblings = folder.gaps(end).iter().map(|(siblings, _)| *siblings as usize);
        let count = folder.terminals(end, &mut terminals, |number, terminals| {
            let siblings = siblings.next().expect("a gap for each fragment");
            gaps.push(FragmentGap { number, terminals: terminals.len(), siblings });
        });
        // The folder has no other fold.
        Self { terminals, siblings: folder.siblings().to_vec(), count, gaps }
    }

    /// Visits the parts of the multiproof in order: each part of the root's, and the region whose fragment follows.
    fn visit_parts<'a>(
        &'a self,
        chunks: &'a [ChunkOutcome],
        fragments: &[(usize, usize)],
        mut each: impl FnMut(&'a [u8], &'a [Node], Option<(&'a ChunkOutcome, &'a RegionOutcome)>),
    ) {
        let (mut from, mut siblings_from) = (0, 0);
        for gap in &self.gaps {
            let (chunk, region) = fragments[gap.number as usize];
            let fragment = Some((&chunks[chunk], &chunks[chunk].regions[region]));
            let (terminals, siblings) = (from..gap.terminals, siblings_from..gap.siblings);
            each(&self.terminals[terminals], &self.siblings[siblings], fragment);
            (from, siblings_from) = (gap.terminals, gap.siblings);
        }
        each(&self.terminals[from..], &self.siblings[siblings_from..], None);
    }

    /// The root before the batch, to which the multiproof leads, if it leads to any.
    fn root_before(
        &self,
        folder: &mut Folder,
        chunks: &[ChunkOutcome],
        fragments: &[(usize, usize)],
    ) -> Option<Node> {
        folder.clear();
        let mut whole = true;
        let mut span = folder.span_along(0, SiblingPath::new(&self.siblings));
        self.visit_parts(chunks, fragments, |terminals, _, fragment| {
            span.push_terminals(terminals);
            if let Some((_, region)) = fragment {
                whole &= region.before.is_some();
                span.push_known(region.region.prefix(), &region.before.unwrap_or_default());
            }
        });
        let root = span.end_proof().filter(|_| whole)?;
        folder.run();
        Some(*folder.node(root))
    }
}

/// The place of a region's fragment in the root's emission.
struct FragmentGap {
    number: u32,
    terminals: usize,
    siblings: usize,
}

fn too_large() -> Error {
    Error::BatchTooLarge { bytes: u64::MAX, limit: u64::from(u32::MAX) }
}

/// Encodes the witness or proof of a batch, of these sections.
fn encode_witness(
    witnesses: &Arc<WitnessPool>,
    batch: &Batch<'_>,
    terminal_count: u32,
    sections: Sections<Vec<&[u8]>>,
) -> Result<Witness> {
    let (kind, ops) = match batch.output {
        FinishOutput::Path => (ProofKind::Path, 0),
        FinishOutput::Multiproof => (ProofKind::Multi, 0),
        FinishOutput::Witness | FinishOutput::RootOnly => {
            (ProofKind::Witness, batch.accesses.len())
        }
    };
    let bytes = |section: &Vec<&[u8]>| section.iter().map(|part| part.len()).sum::<usize>();
    let size = |bytes: usize| u32::try_from(bytes).map_err(|_| too_large());
    let sizes = SectionSizes {
        terminals: terminal_count,
        ops: size(ops)?,
        siblings: size(bytes(&sections.siblings) / size_of::<Node>())?,
        terminal_bytes: size(bytes(&sections.terminals))?,
        op_bytes: size(bytes(&sections.ops))?,
    };
    let total = sizes.total().ok_or_else(too_large)?;
    let header = header(batch.db.hasher, kind, &sizes);
    let parts = std::iter::once(header.as_slice()).chain(sections.in_order().into_iter().flatten());
    let workers = if total < PARALLEL_COPY { 1 } else { batch.db.runtime.workers() };
    let pieces = if workers == 1 { 1 } else { total.div_ceil(PIECE) };
    let phase = (!batch.output.is_proof()).then_some(Phase::Witness);
    let tasks = batch.db.timings.begin_tasks(phase, pieces);
    let witness = concat_witness(witnesses, parts, pieces, |_, copy| {
        batch.db.runtime.inline_or_fork_join(workers, &|_| tasks.run_tasks(copy));
    });
    assert_eq!(witness.len(), total, "the sizes are those of the parts");
    Ok(witness)
}
