//! The end of a finish: the regions' nodes are folded into the root, the root before the batch is computed from the
//! multiproof and compared with the state's own, and the parts of the witness are gathered into one. Runs on the thread
//! that finishes; only copying is shared among workers.

use std::sync::Arc;

use pleach_core::fold::{BatchFolder, FoldValue, Occupancy, ProofFolder};
use pleach_core::proof::Kind;
use pleach_core::proof::op::op_not_first;
use pleach_core::proof::wire::{Sizes, header};
use pleach_core::{Hasher, Node, Prefix};
use pleach_io::{Device, Runtime};

use super::chunk::Batch;
use super::emit::{Emit, Fragment, Gives};
use super::outcome::{ChunkOutcome, Finished, Folded, RegionOutcome};
use super::witness::{Witness, Witnesses, gather};
use super::worker::Workers;
use crate::error::{Contradiction, Error, Result};
use crate::state::State;
use crate::state::node_versions::NodeThen;
use crate::state::overlays::OverlayNode;
use crate::timings::Phase;

/// A witness of at least this many bytes is copied by several workers.
const PARALLEL_COPY: usize = 1 << 20;
/// How much of it a worker copies at a time.
const PIECE: usize = 1 << 18;

/// What a region contributes to the root.
enum Part {
    /// It was accessed: chunk and region within it.
    Accessed(usize, usize),
    /// Its node alone, at this prefix.
    Node(Prefix, Node),
    /// Folded without accesses.
    Folded(Prefix, Node, Occupancy),
}

pub(super) fn assemble<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    workers: &Workers<H, D, R>,
    witnesses: &Arc<Witnesses>,
    batch: &Batch<'_>,
    prev_root: &Node,
    mut chunks: Vec<ChunkOutcome>,
) -> Result<Folded<Finished>> {
    if batch.accesses.is_empty() {
        let witness = match batch.gives {
            Gives::Root => None,
            _ => Some(encode::<H, D, R>(db, witnesses, batch, 0, &Default::default())?),
        };
        return Ok(Folded::Done(Finished { root: *prev_root, chunks, witness }));
    }
    let is_proof = batch.gives.is_proof();
    let timed = (!is_proof).then(|| db.timings.begin(Phase::Root));
    let folded = match fold_root(db, workers, batch, prev_root, &chunks)? {
        Folded::Done(folded) => folded,
        Folded::NeedsLeaf(key) => return Ok(Folded::NeedsLeaf(key)),
    };
    let RootFold { root, folder, fold, fragments, emitted } = folded;
    if batch.gives.has_ops() {
        for ((chunk, region), first) in fragments.iter().zip(folder.first_of_terminal(fold)) {
            if !first {
                let at = chunks[*chunk].regions[*region].first_op;
                op_not_first(&mut chunks[*chunk].ops[at]);
            }
        }
    }
    drop(timed);
    let witness = match batch.gives {
        Gives::Root => None,
        _ => Some(gather_witness::<H, D, R>(db, witnesses, batch, &emitted, &chunks, &fragments)?),
    };
    Ok(Folded::Done(Finished { root, chunks, witness }))
}

/// The fold of all regions into the root.
pub(super) struct RootFold<H: Hasher> {
    /// The root after the batch.
    pub(super) root: Node,
    folder: BatchFolder<H>,
    fold: usize,
    /// Chunk and region of each fragment.
    fragments: Vec<(usize, usize)>,
    emitted: RootEmitted,
}

/// Folds the regions, those of the chunks and all others, into the root.
///
/// # Errors
/// When the nodes that the chunks were folded from lead to another root than `prev_root`: what they give would be
/// wrong.
pub(super) fn fold_root<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    workers: &Workers<H, D, R>,
    batch: &Batch<'_>,
    prev_root: &Node,
    chunks: &[ChunkOutcome],
) -> Result<Folded<RootFold<H>>> {
    let parts = match parts(db, workers, batch, chunks)? {
        Folded::Done(parts) => parts,
        Folded::NeedsLeaf(key) => return Ok(Folded::NeedsLeaf(key)),
    };
    let mut folder = BatchFolder::<H>::new();
    folder.begin(0);
    let mut fragments = Vec::new();
    for part in &parts {
        match part {
            Part::Accessed(chunk, region) => {
                let outcome = &chunks[*chunk].regions[*region];
                let number = u32::try_from(fragments.len()).expect("fewer than 2^32 regions");
                folder.child(outcome.region.prefix(), &outcome.node, &outcome.old, number);
                fragments.push((*chunk, *region));
            }
            Part::Folded(_, _, Occupancy::Leaf { key, value_hash }) => {
                folder.unaccessed(key, FoldValue::Hash(*value_hash));
            }
            Part::Node(prefix, node) | Part::Folded(prefix, node, _) => {
                folder.subtrie(prefix, node);
            }
        }
    }
    let fold = match folder.end() {
        Ok(fold) => fold,
        Err(key) => return Ok(Folded::NeedsLeaf(key)),
    };
    folder.run();
    let root = folder.node(fold);
    let emitted = RootEmitted::of(&mut folder, fold, fragments.len());
    let found = emitted.root_before::<H>(chunks, &fragments);
    if found != Some(*prev_root) {
        return Err(Contradiction::NodesInMemory { expected: *prev_root, found }.into());
    }
    Ok(Folded::Done(RootFold { root, folder, fold, fragments, emitted }))
}

/// All regions in order, those that were accessed by their outcome.
fn parts<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    workers: &Workers<H, D, R>,
    batch: &Batch<'_>,
    chunks: &[ChunkOutcome],
) -> Result<Folded<Vec<Part>>> {
    let index = db.index.load_full();
    let mut accessed = chunks
        .iter()
        .enumerate()
        .flat_map(|(chunk, outcome)| (0..outcome.regions.len()).map(move |region| (chunk, region)))
        .map(|(chunk, region)| (*chunks[chunk].regions[region].region.prefix(), chunk, region))
        .peekable();
    let mut parts = Vec::with_capacity(index.regions().len());
    let mut covered: Option<Prefix> = None;
    for region in index.regions() {
        let prefix = *region.prefix();
        // A region may have been split since its chunk was folded: the node stays valid.
        if covered.is_some_and(|covered| covered.contains(&prefix)) {
            continue;
        }
        if let Some((at, chunk, region)) = accessed.next_if(|(at, ..)| at.contains(&prefix)) {
            parts.push(Part::Accessed(chunk, region));
            covered = Some(at);
            continue;
        }
        match unaccessed_part(db, workers, batch, &prefix)? {
            Folded::Done(part) => parts.push(part),
            Folded::NeedsLeaf(key) => return Ok(Folded::NeedsLeaf(key)),
        }
    }
    if accessed.next().is_some() {
        return Err(Contradiction::RegionsMerged.into());
    }
    Ok(Folded::Done(parts))
}

fn unaccessed_part<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    workers: &Workers<H, D, R>,
    batch: &Batch<'_>,
    prefix: &Prefix,
) -> Result<Folded<Part>> {
    let needed = batch.needed_leaves.iter().any(|key| prefix.covers(key));
    let own = db.index.in_region(prefix.first_key(), |region, state| {
        let same = region.prefix() == prefix;
        (same && !needed).then_some((*state.own(), state.last_commit()))
    });
    // Undo is asked after the region: a commit that comes in between finds its mark there.
    let then = own.and_then(|(own, last_commit)| {
        if last_commit <= batch.view.base {
            return Some(own);
        }
        match batch.view.region_then(prefix) {
            NodeThen::Unchanged => Some(own),
            NodeThen::Recorded(node) => Some(node),
            NodeThen::Unrecorded => None,
        }
    });
    if !needed {
        match (batch.view.node(prefix), then) {
            (OverlayNode::Recorded(node), _) | (OverlayNode::Unchanged, Some(node)) => {
                return Ok(Folded::Done(Part::Node(*prefix, node)));
            }
            (OverlayNode::Unchanged, None) | (OverlayNode::Unrecorded, _) => {}
        }
    }
    // The region in the view is not what it is now, or its only leaf is needed: fold all that lies
    // below the prefix now.
    fold_below(db, workers, batch, prefix)
}

/// Folds all regions that lie below `prefix` now; more than one when it was split meanwhile.
fn fold_below<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    workers: &Workers<H, D, R>,
    batch: &Batch<'_>,
    prefix: &Prefix,
) -> Result<Folded<Part>> {
    let mut folder = BatchFolder::<H>::new();
    folder.begin(prefix.len());
    let mut key = Some(*prefix.first_key());
    let mut only = None;
    while let Some(at) = key.filter(|key| prefix.covers(key)) {
        let outcome = match workers.region(db, batch, &at)? {
            Folded::Done(outcome) => outcome,
            Folded::NeedsLeaf(key) => return Ok(Folded::NeedsLeaf(key)),
        };
        let region = &outcome.regions[0];
        match &region.old {
            Occupancy::Leaf { key, value_hash } => {
                folder.unaccessed(key, FoldValue::Hash(*value_hash));
            }
            _ => folder.subtrie(region.region.prefix(), &region.node),
        }
        key = region.region.prefix().next().map(|next| *next.first_key());
        only = Some(region.old);
    }
    let fold = folder.end().expect("no terminal is placed here");
    folder.run();
    let occupancy = if pleach_core::node::kind(&folder.node(fold)) == pleach_core::NodeKind::Leaf {
        folder.occupancy(fold)
    } else {
        only.filter(|only| *only == Occupancy::Empty).unwrap_or(Occupancy::Many)
    };
    Ok(Folded::Done(Part::Folded(*prefix, folder.node(fold), occupancy)))
}

/// The witness or proof: the terminals that the root's fold emits, with the regions' fragments between,
/// then operations and siblings; copied by all workers.
fn gather_witness<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    witnesses: &Arc<Witnesses>,
    batch: &Batch<'_>,
    root: &RootEmitted,
    chunks: &[ChunkOutcome],
    fragments: &[(usize, usize)],
) -> Result<Witness> {
    let mut sections: [Vec<&[u8]>; 3] = Default::default();
    let mut count = root.own.count();
    root.each_part(chunks, fragments, |terminals, siblings, fragment| {
        sections[0].push(terminals);
        sections[2].push(Node::bytes_of(siblings));
        if let Some((chunk, region)) = fragment {
            let fragment = &region.fragment;
            sections[0].push(fragment.terminals(&chunk.terminals));
            sections[2].push(Node::bytes_of(fragment.siblings(&chunk.siblings)));
            count += fragment.count();
        }
    });
    sections[1].extend(chunks.iter().map(|chunk| chunk.ops.as_slice()));
    if batch.gives != Gives::Path {
        return encode::<H, D, R>(db, witnesses, batch, count, &sections);
    }
    // A path has its siblings from the root downwards.
    let mut path: Vec<[u8; 32]> =
        sections[2].iter().flat_map(|part| part.as_chunks().0).copied().collect();
    path.reverse();
    sections[2] = vec![path.as_flattened()];
    encode::<H, D, R>(db, witnesses, batch, count, &sections)
}

/// What the root's fold has emitted, and where the regions' fragments go.
struct RootEmitted {
    terminals: Vec<u8>,
    siblings: Vec<Node>,
    own: Fragment,
    gaps: Vec<Gap>,
}

impl RootEmitted {
    fn of<H: Hasher>(folder: &mut BatchFolder<H>, fold: usize, fragments: usize) -> Self {
        let (mut terminals, mut siblings) = (Vec::new(), Vec::new());
        let emit = Emit::new(&mut terminals, &mut siblings, &[], &[], &[]);
        let mut root = RootEmit { emit, gaps: Vec::with_capacity(fragments) };
        match folder.occupancy(fold) {
            Occupancy::Many => folder.emit(fold, &mut root),
            occupancy => BatchFolder::<H>::emit_root(&occupancy, &mut root),
        }
        let (own, gaps) = (root.emit.done(), root.gaps);
        Self { terminals, siblings, own, gaps }
    }

    /// The parts of the multiproof in order: what the root has emitted, each with the region whose fragment follows.
    fn each_part<'a>(
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
    fn root_before<H: Hasher>(
        &self,
        chunks: &[ChunkOutcome],
        fragments: &[(usize, usize)],
    ) -> Option<Node> {
        let mut folder = ProofFolder::<H>::default();
        let mut whole = true;
        self.each_part(chunks, fragments, |terminals, _, fragment| {
            folder.terminals(terminals);
            if let Some((_, region)) = fragment {
                whole &= region.before.is_some();
                folder.subtrie(region.region.prefix(), &region.before.unwrap_or_default());
            }
        });
        let root = folder.end(0, &self.siblings);
        (folder.run() && whole).then(|| *folder.node(root))
    }
}

/// Where a region's fragment goes among what the root's fold emits.
struct Gap {
    number: u32,
    terminals: usize,
    siblings: usize,
}

/// Collects what the root's fold emits, and where fragments go.
struct RootEmit<'a> {
    emit: Emit<'a>,
    gaps: Vec<Gap>,
}

impl pleach_core::fold::Sink for RootEmit<'_> {
    fn leaf(&mut self, key: &pleach_core::Key, value_hash: &pleach_core::ValueHash, depth: u16) {
        self.emit.leaf(key, value_hash, depth);
    }

    fn terminator(&mut self, key: &pleach_core::Key, depth: u16) {
        self.emit.terminator(key, depth);
    }

    fn sibling(&mut self, node: &Node) {
        self.emit.sibling(node);
    }

    fn fragment(&mut self, number: u32) {
        let (terminals, siblings) = self.emit.ends();
        self.gaps.push(Gap { number, terminals, siblings });
    }
}

fn too_large() -> Error {
    Error::BatchTooLarge { bytes: u64::MAX, limit: u64::from(u32::MAX) }
}

/// Encodes what a batch gives, of these sections: terminals, operations, siblings.
fn encode<H: Hasher, D: Device, R: Runtime>(
    db: &State<D, R>,
    witnesses: &Arc<Witnesses>,
    batch: &Batch<'_>,
    terminal_count: u32,
    sections: &[Vec<&[u8]>; 3],
) -> Result<Witness> {
    let (kind, ops) = match batch.gives {
        Gives::Path => (Kind::Path, 0),
        Gives::Multiproof => (Kind::Multi, 0),
        Gives::Witness | Gives::Root => (Kind::Witness, batch.accesses.len()),
    };
    let bytes = |section: &Vec<&[u8]>| section.iter().map(|part| part.len()).sum::<usize>();
    let size = |bytes: usize| u32::try_from(bytes).map_err(|_| too_large());
    let sizes = Sizes {
        terminals: terminal_count,
        ops: size(ops)?,
        siblings: size(bytes(&sections[2]) / size_of::<Node>())?,
        terminal_bytes: size(bytes(&sections[0]))?,
        op_bytes: size(bytes(&sections[1]))?,
    };
    let total = sizes.total().ok_or_else(too_large)?;
    let header = header::<H>(kind, &sizes);
    let parts = std::iter::once(header.as_slice()).chain(sections.iter().flatten().copied());
    let workers = if total < PARALLEL_COPY { 1 } else { db.runtime.workers() };
    let pieces = if workers == 1 { 1 } else { total.div_ceil(PIECE) };
    let tasks = if batch.gives.is_proof() {
        db.timings.untimed(pieces)
    } else {
        db.timings.tasks(Phase::Witness, pieces)
    };
    let witness = gather(witnesses, parts, pieces, |_, copy| {
        if workers == 1 {
            tasks.each(copy);
        } else {
            db.runtime.fork_join(workers, &|_| tasks.each(copy));
        }
    });
    debug_assert_eq!(witness.len(), total, "the sizes are those of the parts");
    Ok(witness)
}
