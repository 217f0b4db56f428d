//! Recovery of one trie: its regions from the image, and the records applied to them.
//!
//! A record is applied to a region only when it ends after that region's own log position (rule `region-position`).

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::pages::{Quarantine, overflow};
use pleach_beatree::region::{AwayRegion, NewNodes, RegionCommit, RegionSource, Relocation};
use pleach_beatree::split_regions::{RegionPair, join_held, split_regions};
use pleach_beatree::{PageNo, Region, RegionIndex, RegionState, Stored};
use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::page::stream::StreamId;
use pleach_core::tree::Tiling;
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_journal::format::buffered;
use pleach_journal::format::image::ImageReader;
use pleach_journal::format::names::image_name;
use pleach_journal::format::position::LogPos;
use pleach_journal::format::superblock::Superblock;
use pleach_journal::format::table::{TrieRef, TrieSums};
use pleach_journal::format::trie_kind::TrieKind;

use crate::error::{Contradiction, Result};
use crate::state::away::ImageRegions;
use crate::state::tries::empty_region;

/// Pages of an image that are read at once.
const ROWS: u64 = 256;
/// A replay loads up to one of so many regions by itself, and then all in their order, which costs as much.
const SINGLE: usize = 16;
/// The longest prefix that a page can have, in bits.
const DEEPEST: u16 = 255;

/// A recovered trie.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct RecoveredTrie {
    /// The number of its namespace.
    pub namespace: u8,
    pub(crate) kind: TrieKind,
    /// The commit that has dropped it, if it is dropped.
    pub dropped: Option<u64>,
    /// The index.
    pub regions: RegionIndex,
}

/// A trie during the replay.
pub(super) struct TrieReplay {
    hasher: Hasher,
    /// The trie after the records so far.
    pub(super) trie: RecoveredTrie,
    changed: Vec<Arc<Region>>,
    growth: Growth,
    /// What the image has of regions that are away.
    pub(super) away: TrieSums,
    /// Leaf pages that the image has of the others.
    pub(super) loaded: Vec<PageNo>,
    /// Regions that were loaded by themselves.
    singles: usize,
}

/// Changes of a trie by records since the last [`TrieReplay::take_changes`].
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// True when the trie was replaced by an empty one.
    pub(super) is_new: bool,
    /// True when regions were split or joined.
    pub(super) is_relaid: bool,
    pub(super) pages: isize,
    pub(super) bytes: isize,
    pub(super) entries: isize,
}

impl TrieReplay {
    /// A replay of later records on a recovered trie.
    pub(super) fn continue_from(hasher: Hasher, trie: RecoveredTrie) -> Self {
        Self {
            hasher,
            trie,
            changed: Vec::new(),
            growth: Growth::default(),
            away: TrieSums::default(),
            loaded: Vec::new(),
            singles: 0,
        }
    }

    /// Replaces the trie by an empty one, which commit `number` adds.
    pub(super) fn begin_anew(&mut self, kind: TrieKind, number: u64) {
        let growth = Growth { is_new: true, ..std::mem::take(&mut self.growth) };
        let loaded = std::mem::take(&mut self.loaded);
        let empty = Self::empty(self.hasher, self.trie.namespace, kind, number);
        *self = Self { growth, loaded, ..empty };
    }

    /// Ends a round of records: recomputes the nodes of the regions that they have changed. Gives these regions, in the
    /// order of their keys, and the changes of the trie.
    pub(super) fn take_changes(&mut self) -> (Vec<Arc<Region>>, Growth) {
        self.loaded.clear();
        let mut changed = std::mem::take(&mut self.changed);
        // A region that was split or joined since is not of the trie any more.
        changed.retain(|region| {
            let there = self.trie.regions.region(region.prefix().first_key());
            Arc::ptr_eq(there, region)
        });
        changed.sort_by_key(|region| *region.prefix().first_key());
        changed.dedup_by(|a, b| Arc::ptr_eq(a, b));
        if self.trie.kind == TrieKind::Merkle {
            for region in &changed {
                region.write().recompute_own_node(self.hasher);
            }
        }
        (changed, std::mem::take(&mut self.growth))
    }

    /// The empty trie that commit `number` adds.
    pub(super) fn empty(hasher: Hasher, namespace: u8, kind: TrieKind, number: u64) -> Self {
        let regions =
            RegionIndex::new(vec![Arc::new(empty_region(hasher, namespace, kind, number))]);
        let growth = Growth { is_new: true, ..Growth::default() };
        let trie = RecoveredTrie { namespace, kind, dropped: None, regions };
        Self { growth, ..Self::continue_from(hasher, trie) }
    }

    /// Reads the trie from an image; `late`: its regions stay there until they are used.
    pub(super) fn read(
        hasher: Hasher,
        from: &ImageSource<'_>,
        named: &TrieRef,
        late: bool,
    ) -> Result<Self> {
        // The row of an only region has no node.
        let late = late && named.level > 1;
        let regions = RegionIndex::new(read_rows(hasher, from, named, late)?);
        let dropped = named.root.is_none().then_some(named.dropped);
        let trie = RecoveredTrie { namespace: named.namespace, kind: named.kind, dropped, regions };
        let mut replay = Self { away: named.sums, ..Self::continue_from(hasher, trie) };
        if !late {
            replay.load_all();
            if let Some(error) = from.quarantine.first_lost() {
                return Err(error.into());
            }
        }
        Ok(replay)
    }

    /// The region of a key, in memory. One that cannot be read is quarantined, and what follows then fails.
    fn region(&mut self, key: &Key) -> Arc<Region> {
        let region = Arc::clone(self.trie.regions.region(key));
        if region.row().is_away() {
            self.singles += 1;
            if self.singles * SINGLE > self.trie.regions.regions().len() {
                self.load_all();
            } else {
                self.load(&region, false);
            }
        }
        region
    }

    fn load_all(&mut self) {
        let regions = self.trie.regions.clone();
        regions.regions().iter().for_each(|region| self.load(region, true));
    }

    fn load(&mut self, region: &Region, ahead: bool) {
        if region.row().is_away() {
            region.load(ahead);
            let state = region.row();
            self.away -= TrieSums::of(&state);
            self.loaded.extend(leaf_pages(&state));
        }
    }

    /// Applies a commit whose record ends at `end`.
    pub(super) fn apply(
        &mut self,
        number: u64,
        end: LogPos,
        changes: &[(Key, Stored)],
        nodes: &[(Prefix, Node)],
    ) -> Result<()> {
        let (mut changes, mut nodes) = (changes, nodes);
        let mut scratch = Vec::new();
        while let Some((key, _)) = changes.first() {
            let region = self.region(key);
            let count = changes.partition_point(|(key, _)| region.prefix().covers(key));
            let of_region = changes.split_off(..count).expect("counted");
            let count = nodes.partition_point(|(at, _)| region.prefix().covers(at.first_key()));
            let of_nodes = nodes.split_off(..count).expect("counted");
            let mut state = region.write();
            if end.get() <= state.log_position() {
                // The image's commit is that of its cut, and the region was copied later: views of commits between the
                // two need undo.
                state.note_commit(number);
                continue;
            }
            let mut children = Vec::with_capacity(of_nodes.len());
            for (at, node) in of_nodes {
                let child = state.children().find(at.first_key());
                if state.children().prefix(child) != *at {
                    let (commit, prefix) = (number, *at);
                    return Err(Contradiction::NodeWithoutPage { commit, prefix }.into());
                }
                children.push((u32::try_from(child).expect("few children"), *node));
            }
            let mut applied = RegionCommit {
                commit: number,
                version: number,
                log_position: end.get(),
                changes: &mut of_region.iter().cloned(),
                nodes: if state.is_plain() {
                    NewNodes::Plain
                } else {
                    NewNodes::Children(&children)
                },
            };
            let grown = state.apply(&mut applied, &mut scratch, |_, _| {});
            self.growth.bytes += grown.bytes;
            self.growth.entries += grown.entries;
            drop(state);
            self.changed.push(region);
        }
        Ok(())
    }

    /// Moves pages, as the record from `start` to `end` says. `replaced` are the first pages of the overflow runs that
    /// it replaces.
    pub(super) fn relocate(
        &mut self,
        all: &[Relocation<'_>],
        replaced: &HashSet<u64>,
        start: LogPos,
        end: LogPos,
    ) -> Result<()> {
        let bad = |prefix: &Prefix, what| {
            let (position, prefix) = (start, *prefix);
            Contradiction::Location { position, prefix, what }
        };
        let mut split = Vec::new();
        let mut rest = all;
        while let Some(Relocation { range, .. }) = rest.first() {
            let region = self.region(range.first_key());
            let of_region =
                |moved: &Relocation<'_>| region.prefix().covers(moved.range.first_key());
            let count = rest.partition_point(of_region);
            let rewrites = rest.split_off(..count).expect("counted");
            let mut state = region.write();
            if end.get() <= state.log_position() {
                continue;
            }
            if rewrites.iter().any(|moved| !region.prefix().contains(&moved.range)) {
                return Err(bad(range, "reaches over a region").into());
            }
            // A record that passes its checksum may be of another database, or of a faulty writer.
            let fits = |moved: &Relocation<'_>| {
                state.children().has_boundaries_of(&moved.range)
                    && moved.pages.iter().all(|(page, _)| page.prefix.len() <= DEEPEST)
            };
            if let Some(moved) = rewrites.iter().find(|moved| !fits(moved)) {
                return Err(bad(&moved.range, "does not fit the pages").into());
            }
            let done = state.relocate(rewrites, end.get());
            self.growth.pages += done.pages;
            self.growth.bytes -= done.bytes.cast_signed();
            self.growth.entries -= done.entries.cast_signed();
            state.retain_replaced(|dropped| {
                overflow::extents(&dropped.buffered.stored)
                    .iter()
                    .all(|run| !replaced.contains(&run.start))
            });
            if state.children().len() > MAX_ENTRIES {
                split.push(Arc::clone(&region));
            }
            drop(state);
            self.changed.push(region);
        }
        if !split.is_empty() {
            self.trie.regions = split_regions(self.hasher, &self.trie.regions, &split);
            self.growth.is_relaid = true;
        }
        Ok(())
    }

    /// Joins the regions below these prefixes, as the record from `start` to `end` says. Both regions of a pair have
    /// the record applied, or neither (rule `join-outside-image`).
    pub(super) fn join(&mut self, prefixes: &[Prefix], start: LogPos, end: LogPos) -> Result<()> {
        for prefix in prefixes {
            for half in [false, true] {
                self.region(prefix.child(half).first_key());
            }
        }
        let mut pairs = Vec::new();
        for prefix in prefixes {
            let what = "joins regions that are not two halves";
            let bad = || Contradiction::Location { position: start, prefix: *prefix, what };
            let at = self.trie.regions.find(prefix.first_key());
            let middle = self.trie.regions.find(prefix.child(true).first_key());
            let [left, right] = [at, middle].map(|at| &self.trie.regions.regions()[at]);
            let has_it = |region: &Region| region.read().log_position() >= end.get();
            if has_it(left) && has_it(right) {
                continue;
            }
            let halves = [left.prefix(), right.prefix()]
                == [false, true].map(|half| prefix.child(half)).each_ref();
            let children = || left.read().children().len() + right.read().children().len();
            if has_it(left) || has_it(right) || !halves || children() > MAX_ENTRIES {
                return Err(bad().into());
            }
            pairs.push(RegionPair { at, left: left.write(), right: right.write() });
        }
        if !pairs.is_empty() {
            let joined = join_held(self.hasher, &self.trie.regions, &mut pairs, end.get());
            drop(pairs);
            self.trie.regions = joined;
            self.growth.is_relaid = true;
        }
        Ok(())
    }

    /// Ends the replay: gives the trie and its root; a plain trie has none.
    pub(super) fn finish(mut self) -> (RecoveredTrie, Option<Node>) {
        self.take_changes();
        let root = self.trie.kind == TrieKind::Merkle;
        let root = root.then(|| root_of(self.hasher, &self.trie.regions));
        (self.trie, root)
    }
}

/// The leaf pages of a region.
pub(super) fn leaf_pages(state: &RegionState) -> impl Iterator<Item = PageNo> {
    (0..state.children().len()).filter_map(|child| state.children().page(child))
}

/// The root over all regions.
pub(super) fn root_of(hasher: Hasher, index: &RegionIndex) -> Node {
    let nodes: Vec<Node> = index.regions().iter().map(|region| *region.row().own_node()).collect();
    *Tiling::new(hasher, index.regions().iter().map(|region| *region.prefix()), &nodes).own_node()
}

/// What the tries of an image are read from.
pub(super) struct ImageSource<'a> {
    pub(super) image: &'a ImageReader,
    pub(super) superblock: &'a Superblock,
    pub(super) quarantine: &'a Arc<Quarantine>,
}

/// Reads the rows of all regions from the levels above them.
fn read_rows(
    hasher: Hasher,
    from: &ImageSource<'_>,
    named: &TrieRef,
    late: bool,
) -> Result<Vec<Arc<Region>>> {
    let TrieRef { namespace, mut level, root_page, root_tag, .. } = *named;
    let mut image = from.image.reopen(ROWS);
    let mut rows = vec![(Prefix::ROOT, root_page, root_tag, None)];
    while level > 1 {
        let mut below = Vec::new();
        for (prefix, page, tag, _) in rows {
            for (prefix, entry) in image.read_branch(namespace, page, tag, &prefix, level)?.entries
            {
                let page = entry.page_no.ok_or(Contradiction::BranchWithoutPage { prefix })?;
                below.push((prefix, page, entry.tag, Some(entry.node)));
            }
        }
        rows = below;
        level -= 1;
    }
    let parts = buffered::parts(named.buffered.len, rows.len(), |part| {
        image.read_part(namespace, StreamId::Buffered, &named.buffered, part)
    })?;
    let commit = from.superblock.commit;
    let source: Arc<dyn RegionSource> = Arc::new(ImageRegions {
        hasher,
        commit,
        named: named.clone(),
        file: image_name(from.superblock.image.file),
        ahead: Mutex::new([image.reopen(ROWS), image.reopen(ROWS)]),
        image,
        quarantine: Arc::clone(from.quarantine),
    });
    let row = |((prefix, page, tag, node), buffered): ((Prefix, u64, u32, Option<Node>), _)| {
        let node = node.filter(|_| late && named.kind == TrieKind::Merkle);
        let at = AwayRegion { source: Arc::clone(&source), page, tag, node, buffered };
        Arc::new(Region::away(hasher, namespace, prefix, commit, at))
    };
    Ok(rows.into_iter().zip(parts).map(row).collect())
}
