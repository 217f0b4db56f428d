//! A child below which much changes: it is cut by prefixes into parts of few keys, and each is folded as a page
//! is; then they are joined. Until a flush comes, one child may have thousands of pending changes: all that an
//! empty database got, or the end of a list of ascending keys, which share so many bits that a treelet has all of
//! them in one bucket.
//!
//! Parts fit a processor's cache, are divided among the workers where they are many, and those in which nothing
//! is accessed go by their node, where the region kept it from the commit that changed the child last
//! ([`Parts`]).
//!
//! Invariant: a part has all keys of its prefix, and no other part is below it. The same keys are cut in the same
//! way.

use std::ops::Range;

use parking_lot::Mutex;
use pleach_beatree::Stored;
use pleach_beatree::leaf_fold::{AccessResult, KeyAccess, PageState, PendingChange, fold_leaf};
use pleach_beatree::region::Parts;
use pleach_core::fold::{BatchFolder, FoldValue, NO_HASH, Occupancy, Sink};
use pleach_core::node::{NodeKind, kind};
use pleach_core::page::leaf::LeafView;
use pleach_core::prefix::{bit, common_len};
use pleach_core::proof::op::op_not_first;
use pleach_core::{Hasher, Key, Node, Prefix, ValueHash};
use pleach_io::Executor;

use super::emit::{Emit, Fragment, Gives, encode_op};

/// Most keys of a part, one that is accessed and pending counted twice.
const PART: usize = 128;
/// Keys that are folded together: what a fold has of them fits a processor's own cache.
const GROUP: usize = 1024;
/// Fewest keys for which another worker is woken.
const LANE: usize = 2048;
/// Bytes of lists beyond which a cut does not keep its memory.
const KEPT: usize = 1 << 20;

/// Is a child below which so much is pending or accessed cut?
pub(super) fn is_much(changes: usize) -> bool {
    changes > 2 * PART
}

/// What is folded below one prefix.
#[derive(Clone, Copy)]
pub(super) struct Below<'a> {
    pub(super) at: &'a Prefix,
    pub(super) leaf: Option<&'a LeafView<'a>>,
    pub(super) pending: &'a [PendingChange],
    pub(super) accesses: &'a [KeyAccess],
    pub(super) gives: Gives,
    /// Nodes of parts before the batch, where they are known.
    pub(super) known: Option<&'a Parts>,
}

impl Below<'_> {
    /// Without what is known of it.
    pub(super) fn state(&self) -> PageState<'_> {
        PageState { at: self.at, leaf: self.leaf, pending: self.pending, treelet: None }
    }

    /// Does at most a part pend in each accessed bucket of a treelet? Then the treelet tells as much apart.
    pub(super) fn is_little_a_bucket(&self, bucket: impl Fn(&Key) -> u8) -> bool {
        let groups = self.accesses.chunk_by(|a, b| bucket(&a.key) == bucket(&b.key));
        let mut accessed = groups.map(|group| bucket(&group[0].key));
        accessed.all(|accessed| {
            let from = self.pending.partition_point(|pending| bucket(&pending.0) < accessed);
            let behind = &self.pending[from..];
            behind.get(PART).is_none_or(|pending| bucket(&pending.0) > accessed)
        })
    }

    /// The page's cells that no pending change replaces, as such changes.
    fn cells(&self, out: &mut Vec<PendingChange>) {
        out.clear();
        let Some(leaf) = self.leaf else { return };
        let kept = (0..leaf.len()).map(|at| (leaf.key(at), at)).filter(|(key, _)| {
            self.pending.binary_search_by(|pending| pending.0.cmp(key)).is_err()
        });
        out.extend(kept.map(|(key, at)| (key, Stored::from_cell(leaf.cell(at)))));
    }
}

/// A part: its keys, and its node where it is not folded.
struct Part {
    prefix: Prefix,
    keys: Keys,
    known: Option<Node>,
    /// Which lane has folded it, and where it is among what that has folded.
    folded: (usize, usize),
}

/// Ranges of the lists of a child's keys.
#[derive(Clone)]
struct Keys {
    cells: Range<usize>,
    pending: Range<usize>,
    accesses: Range<usize>,
}

impl Keys {
    fn len(&self) -> usize {
        self.cells.len() + self.pending.len() + self.accesses.len()
    }
}

/// All that is below a child, to be cut.
#[derive(Clone, Copy)]
struct Lists<'a> {
    below: &'a Below<'a>,
    cells: &'a [PendingChange],
}

/// What came of a part.
struct FoldedPart {
    node: Node,
    occupancy: Occupancy,
    fragment: Fragment,
    /// Its operations, encoded.
    ops: Range<usize>,
}

/// What one worker folds, and what came of it.
struct Lane {
    folder: BatchFolder,
    /// Cells and pending changes of a part.
    merged: Vec<PendingChange>,
    parts: Vec<FoldedPart>,
    results: Vec<AccessResult>,
    terminals: Vec<u8>,
    siblings: Vec<Node>,
    ops: Vec<u8>,
}

impl Lane {
    fn new(hasher: Hasher) -> Self {
        Self {
            folder: BatchFolder::new(hasher),
            merged: Vec::new(),
            parts: Vec::new(),
            results: Vec::new(),
            terminals: Vec::new(),
            siblings: Vec::new(),
            ops: Vec::new(),
        }
    }
}

/// A child that is cut. Its memory is used again.
#[derive(Default)]
pub(super) struct Cut {
    cells: Vec<PendingChange>,
    parts: Vec<Part>,
    lanes: Vec<Mutex<Lane>>,
    /// The fold that joins the parts.
    joined: usize,
}

impl Cut {
    /// Cuts, folds the parts, and begins the fold that joins them. Pushes one result for each access.
    pub(super) fn fold(
        &mut self,
        (runtime, most): (&Executor, usize),
        below: &Below<'_>,
        join: &mut BatchFolder,
        results: &mut Vec<AccessResult>,
    ) {
        below.cells(&mut self.cells);
        self.parts.clear();
        let all = Keys {
            cells: 0..self.cells.len(),
            pending: 0..below.pending.len(),
            accesses: 0..below.accesses.len(),
        };
        Lists { below, cells: &self.cells }.divide(*below.at, all, &mut self.parts);
        let shares = self.shares(join.hasher(), runtime.workers().min(most));
        let (lists, lanes, parts) = (Lists { below, cells: &self.cells }, &self.lanes, &self.parts);
        let fold = |lane: usize| lanes[lane].lock().fold(lists, &parts[shares[lane].clone()]);
        if let [_] = *shares {
            fold(0);
        } else {
            runtime.fork_join(shares.len(), &fold);
        }
        for (lane, share) in shares.into_iter().enumerate() {
            let folded = self.parts[share].iter_mut().filter(|part| part.known.is_none());
            folded.enumerate().for_each(|(at, part)| part.folded = (lane, at));
            results.append(&mut self.lanes[lane].get_mut().results);
        }
        self.join(below.at, join);
    }

    /// Divides the parts among at most so many lanes, which are made ready: each has some neighbours.
    fn shares(&mut self, hasher: Hasher, workers: usize) -> Vec<Range<usize>> {
        let keys = |part: &Part| if part.known.is_some() { 0 } else { part.keys.len() };
        let all: usize = self.parts.iter().map(keys).sum();
        let count = (all / LANE).clamp(1, workers.max(1));
        self.lanes.resize_with(count.max(self.lanes.len()), || Mutex::new(Lane::new(hasher)));
        let mut shares = vec![0..0; count];
        let mut before = 0;
        for (at, part) in self.parts.iter().enumerate() {
            shares[(before * count / all.max(1)).min(count - 1)].end = at + 1;
            before += keys(part);
        }
        for lane in 1..count {
            shares[lane].start = shares[lane - 1].end;
            shares[lane].end = shares[lane].end.max(shares[lane].start);
        }
        shares
    }

    /// Begins the fold of the whole.
    fn join(&mut self, at: &Prefix, join: &mut BatchFolder) {
        join.begin(at.len());
        for (number, part) in (0..).zip(&self.parts) {
            if let Some(node) = &part.known {
                join.subtrie(&part.prefix, node);
                continue;
            }
            let lane = self.lanes[part.folded.0].lock();
            let folded = &lane.parts[part.folded.1];
            match &folded.occupancy {
                occupancy if !part.keys.accesses.is_empty() => {
                    join.child(&part.prefix, &folded.node, occupancy, number);
                }
                Occupancy::Leaf { key, value_hash } => {
                    join.unaccessed(key, FoldValue::Hash(*value_hash));
                }
                _ => join.subtrie(&part.prefix, &folded.node),
            }
        }
        self.joined = join.end().expect("parts of one key are given by key");
    }

    /// The fold that joins the parts.
    pub(super) fn joined(&self) -> usize {
        self.joined
    }

    /// The parts' nodes after the batch: those that can go into a fold by their node.
    pub(super) fn nodes(&self) -> Parts {
        let node = |part: &Part| {
            part.known.unwrap_or_else(|| self.lanes[part.folded.0].lock().parts[part.folded.1].node)
        };
        let all = self.parts.iter().map(|part| (part.prefix, node(part)));
        all.filter(|(_, node)| kind(node) == NodeKind::Internal).collect()
    }

    /// Appends the operations; `firsts` says of each accessed part whether its first one is the first below its
    /// terminal.
    pub(super) fn append_ops(&self, firsts: impl Iterator<Item = bool>, ops: &mut Vec<u8>) {
        let accessed = self.parts.iter().filter(|part| !part.keys.accesses.is_empty());
        for (part, first) in accessed.zip(firsts) {
            let lane = self.lanes[part.folded.0].lock();
            let start = ops.len();
            ops.extend_from_slice(&lane.ops[lane.parts[part.folded.1].ops.clone()]);
            if !first {
                op_not_first(&mut ops[start]);
            }
        }
    }

    /// Emits the whole, which has two old keys or more, by the fold that joins the parts.
    pub(super) fn emit(&self, join: &mut BatchFolder, to: Emit<'_>) -> Fragment {
        let mut whole = Spliced { cut: self, to };
        join.emit(self.joined, &mut whole);
        whole.to.done()
    }

    /// Hash calls for its parts since creation.
    pub(super) fn hashed(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.lock().folder.hashed()).sum()
    }

    /// Lets go of the lists of a large one.
    pub(super) fn slim(&mut self) {
        self.cells.clear();
        for lane in &mut self.lanes {
            let Lane { results, terminals, siblings, ops, .. } = lane.get_mut();
            if results.capacity() * size_of::<AccessResult>() + ops.capacity() > KEPT {
                *results = Vec::new();
                *terminals = Vec::new();
                *siblings = Vec::new();
                *ops = Vec::new();
            }
        }
    }
}

impl<'a> Lists<'a> {
    /// Cuts what is below a prefix.
    fn divide(&self, prefix: Prefix, keys: Keys, out: &mut Vec<Part>) {
        if keys.len() <= PART {
            if keys.len() > 0 {
                let known = self.known(&prefix, &keys);
                out.push(Part { prefix, keys, known, folded: (0, 0) });
            }
            return;
        }
        let cells = &self.cells[keys.cells.clone()];
        let pending = &self.below.pending[keys.pending.clone()];
        let accesses = &self.below.accesses[keys.accesses.clone()];
        let firsts = [
            cells.first().map(|cell| cell.0),
            pending.first().map(|pending| pending.0),
            accesses.first().map(|access| access.key),
        ];
        let lasts = [
            cells.last().map(|cell| cell.0),
            pending.last().map(|pending| pending.0),
            accesses.last().map(|access| access.key),
        ];
        let first: Key = firsts.into_iter().flatten().min().expect("more than a part");
        let last: Key = lasts.into_iter().flatten().max().expect("more than a part");
        // More than two entries are more than one key.
        let depth = common_len(&first, &last);
        let cell = keys.cells.start + cells.partition_point(|cell| !bit(&cell.0, depth));
        let change =
            keys.pending.start + pending.partition_point(|pending| !bit(&pending.0, depth));
        let access =
            keys.accesses.start + accesses.partition_point(|access| !bit(&access.key, depth));
        let left = Keys {
            cells: keys.cells.start..cell,
            pending: keys.pending.start..change,
            accesses: keys.accesses.start..access,
        };
        let right = Keys {
            cells: cell..keys.cells.end,
            pending: change..keys.pending.end,
            accesses: access..keys.accesses.end,
        };
        self.divide(Prefix::new(&first, depth + 1), left, out);
        self.divide(Prefix::new(&last, depth + 1), right, out);
    }

    /// The node of a part without accesses, if the region has kept it.
    fn known(&self, prefix: &Prefix, keys: &Keys) -> Option<Node> {
        let known = self.below.known.filter(|_| keys.accesses.is_empty())?;
        let at = known.binary_search_by(|(at, _)| at.cmp(prefix)).ok()?;
        Some(known[at].1)
    }

    /// What a part has before the batch, in key order; put together in `merged` where the page has some of it.
    fn state<'b>(&self, keys: &Keys, merged: &'b mut Vec<PendingChange>) -> &'b [PendingChange]
    where
        'a: 'b,
    {
        let pending = &self.below.pending[keys.pending.clone()];
        if keys.cells.is_empty() {
            return pending;
        }
        merged.clear();
        merged.extend_from_slice(&self.cells[keys.cells.clone()]);
        merged.extend_from_slice(pending);
        merged.sort_unstable_by_key(|state| state.0);
        merged
    }
}

impl Lane {
    /// Folds those of the parts whose nodes are not known, in groups.
    fn fold(&mut self, lists: Lists<'_>, parts: &[Part]) {
        self.parts.clear();
        self.results.clear();
        self.terminals.clear();
        self.siblings.clear();
        self.ops.clear();
        let mut rest = parts;
        while !rest.is_empty() {
            let mut keys = 0;
            let fits = |part: &&Part| {
                keys += part.keys.len();
                keys <= GROUP
            };
            // A part alone always does.
            let (group, after) = rest.split_at(rest.iter().take_while(fits).count());
            self.fold_group(lists, group);
            rest = after;
        }
        // It would keep values.
        self.merged.clear();
    }

    fn fold_group(&mut self, lists: Lists<'_>, group: &[Part]) {
        let below = lists.below;
        self.folder.clear();
        let from = self.results.len();
        let group = || group.iter().filter(|part| part.known.is_none());
        for part in group() {
            let accesses = &below.accesses[part.keys.accesses.clone()];
            let pending = lists.state(&part.keys, &mut self.merged);
            let state = PageState { at: &part.prefix, leaf: None, pending, treelet: None };
            self.folder.begin(part.prefix.len());
            fold_leaf(&mut self.folder, &state, 0, accesses, &mut self.results);
            self.folder.end().expect("a page's buckets of one key are given by key");
        }
        self.folder.run();
        let mut results = self.results[from..].iter();
        for (fold, part) in group().enumerate() {
            let (node, occupancy) = (self.folder.node(fold), self.folder.occupancy(fold));
            let accesses = &below.accesses[part.keys.accesses.clone()];
            let (ops_from, results) = (self.ops.len(), results.by_ref().take(accesses.len()));
            if below.gives.has_ops() {
                let found = results.zip(self.folder.first_of_terminal(fold));
                for (access, (found, first)) in accesses.iter().zip(found) {
                    let put = (found.put != NO_HASH).then(|| *self.folder.value_hash(found.put));
                    encode_op(access, (found, put), first, &mut self.ops);
                }
            } else {
                results.for_each(drop);
            }
            let mut fragment = Fragment::default();
            let proves = !accesses.is_empty();
            if proves && occupancy == Occupancy::Many {
                let mut emit = Emit::new(&mut self.terminals, &mut self.siblings, &[], &[], &[]);
                self.folder.emit(fold, &mut emit);
                fragment = emit.done();
            }
            let ops = ops_from..self.ops.len();
            self.parts.push(FoldedPart { node, occupancy, fragment, ops });
        }
    }
}

/// Takes the parts' own emissions where the fold that joins them asks for them.
struct Spliced<'a> {
    cut: &'a Cut,
    to: Emit<'a>,
}

impl Sink for Spliced<'_> {
    fn leaf(&mut self, key: &Key, value_hash: &ValueHash, depth: u16) {
        self.to.leaf(key, value_hash, depth);
    }

    fn terminator(&mut self, key: &Key, depth: u16) {
        self.to.terminator(key, depth);
    }

    fn sibling(&mut self, node: &Node) {
        self.to.sibling(node);
    }

    fn fragment(&mut self, number: u32) {
        let (lane, at) = self.cut.parts[number as usize].folded;
        let lane = self.cut.lanes[lane].lock();
        self.to.copy(&lane.parts[at].fragment, &lane.terminals, &lane.siblings);
    }
}

#[cfg(test)]
mod tests {
    use pleach_beatree::Stored;
    use pleach_core::Hasher;
    use pleach_io::sim::{SimClock, SimRuntime};

    use super::*;

    fn access(id: u32) -> KeyAccess {
        let put = Stored::put(Hasher::BLAKE3, id.to_be_bytes().as_slice().into());
        KeyAccess { key: Hasher::BLAKE3.hash(&id.to_be_bytes()), reads: true, writes: Some(put) }
    }

    /// Node, results and hashes of each lane, of so many accesses on an empty state.
    fn fold(count: u32, workers: usize) -> (Node, usize, Vec<u64>) {
        let mut accesses: Vec<KeyAccess> = (0..count).map(access).collect();
        accesses.sort_unstable_by_key(|access| access.key);
        let runtime = SimRuntime::with_clock(1, SimClock::default(), workers);
        let (at, gives) = (&Prefix::ROOT, Gives::Witness);
        let below = Below { at, leaf: None, pending: &[], accesses: &accesses, gives, known: None };
        assert!(is_much(below.pending.len() + below.accesses.len()));
        let (mut join, mut results) = (BatchFolder::new(Hasher::BLAKE3), Vec::new());
        let mut cut = Cut::default();
        cut.fold((&Executor::from(&runtime), workers), &below, &mut join, &mut results);
        join.run();
        let hashes = cut.lanes.iter().map(|lane| lane.lock().folder.hashed()).collect();
        (join.node(cut.joined()), results.len(), hashes)
    }

    #[test]
    fn parts_are_divided_among_workers_where_they_are_many() {
        let (node, results, alone) = fold(20_000, 1);
        assert_eq!((results, alone.len()), (20_000, 1));
        let (same, results, each) = fold(20_000, 4);
        assert_eq!((same, results, each.len()), (node, 20_000, 4));
        assert_eq!(each.iter().sum::<u64>(), alone[0], "{each:?}");
        assert!(each.iter().all(|hashes| hashes * 5 > alone[0]), "{each:?}");
        // A few thousand are not worth it.
        assert_eq!(fold(3_000, 4).2.len(), 1);
    }
}
