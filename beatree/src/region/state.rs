//! The state of a region, and what a commit does to it.

use std::ops::Range;
use std::sync::Arc;

use pleach_core::cpu_prefetch;
use pleach_core::prefix::Prefix;
use pleach_core::{Hasher, Key, Node};

use super::away::AwayRegion;
use super::buffered::{BufferedChange, BufferedChanges, FEW, FEW_CHANGES, ReplacedValue, signed};
use super::nodes::{KeptLines, own_node};
use crate::children::ChildTable;
use crate::leaf_fold::KeyState;
use crate::page_no::PageRef;
use crate::stored::Stored;

/// What the changes of a page by one commit count at most, unless they are very many ([`count_commit`]): a page that each
/// commit changes much can wait for more commits.
const MOST_COUNTED: u8 = 3;
/// Bytes of a value that count as one more change.
const COUNTED_BYTES: usize = 256;

/// The sum of a commit's changes of a page, up to `new`; `sum` is that of those before it. A deletion counts the most:
/// until the page is rewritten it frees nothing.
pub fn count_change(sum: u8, new: &Stored) -> u8 {
    let more = if new.is_present() { new.heap_bytes() / COUNTED_BYTES } else { usize::MAX };
    sum.saturating_add(1 + u8::try_from(more).unwrap_or(MOST_COUNTED).min(MOST_COUNTED - 1))
}

/// What a commit's changes of a page with this sum count towards its rewrite. From 255 on all: the page is rewritten into
/// several, and until then each fold goes over all of its changes.
pub fn count_commit(sum: u8) -> u8 {
    if sum == u8::MAX { sum } else { sum.min(MOST_COUNTED) }
}

/// The state of a region; see the invariants of [`crate::region`].
#[derive(Debug)]
pub struct RegionState {
    pub(super) namespace: u8,
    pub(super) children: ChildTable,
    /// The nodes of the children; none in a plain trie.
    pub(super) nodes: Box<[Node]>,
    pub(super) lines: Option<KeptLines>,
    pub(super) buffered: BufferedChanges,
    /// The count of each child's changes since its page was written ([`count_change`]), saturating.
    pub(super) changes_since_write: Vec<u8>,
    /// The version of each child, 0 while nothing has changed it since the database was opened.
    pub(super) versions: Vec<u64>,
    /// Nodes inside of children with many buffered changes: the child's prefix, and the commit that the nodes are as
    /// of.
    pub(super) parts: Vec<(Prefix, u64, Arc<PartNodes>)>,
    /// Number of the last commit applied here.
    pub(super) last_commit: u64,
    /// End of the last log record applied here.
    pub(super) log_position: u64,
    pub(super) layout_version: u64,
    /// The node of the whole region.
    pub(super) own_node: Node,
    pub(super) retired: bool,
    /// Where the region is, while it is away.
    pub(super) away: Option<Box<AwayRegion>>,
}

/// Nodes of prefixes below a child, ascending, none below another; internal nodes only.
pub type PartNodes = Vec<(Prefix, Node)>;

impl NewNodes<'_> {
    /// Changed children at most; a path to one has some eight lines.
    fn paths(&self) -> usize {
        match self {
            Self::Lines { lines, .. } => lines.len() / 7,
            Self::Children(children) => children.len(),
            Self::Plain => 0,
        }
    }
}

/// The changes of one commit in one region.
pub struct RegionCommit<'a> {
    /// Number of the commit.
    pub commit: u64,
    /// The new version of the changed children: another one for each commit.
    pub version: u64,
    /// End of the commit's record in the log.
    pub log_position: u64,
    /// Changed keys and their new state, in key order.
    pub changes: &'a mut dyn Iterator<Item = (Key, Stored)>,
    /// New nodes.
    pub nodes: NewNodes<'a>,
}

/// The nodes that a commit changes in a region.
#[derive(Clone, Copy, Debug)]
pub enum NewNodes<'a> {
    /// The nodes on the paths of all changed children, up to the region's own.
    Lines {
        /// Lines of the region's tiling: boundary and line.
        lines: &'a [(u32, [Node; 2])],
        /// The node of the region.
        own: Node,
    },
    /// The nodes of the changed children alone, as a log record has them: child and node. The nodes above stay as they
    /// were until [`RegionState::recompute_own_node`].
    Children(&'a [(u32, Node)]),
    /// None: the region is of a plain trie.
    Plain,
}

impl core::fmt::Debug for RegionCommit<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "RegionCommit(commit {}, {:?})", self.commit, self.nodes)
    }
}

/// How a commit changed the amount of buffered changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferedGrowth {
    /// Bytes of buffered changes, more or fewer.
    pub bytes: isize,
    /// Number of buffered changes, more or fewer.
    pub entries: isize,
}

/// Construction.
impl RegionState {
    pub(super) fn new(
        hasher: Hasher,
        namespace: u8,
        children: ChildTable,
        nodes: Vec<Node>,
        commit: u64,
    ) -> Self {
        Self {
            namespace,
            own_node: own_node(hasher, &children, &nodes),
            nodes: nodes.into(),
            lines: None,
            buffered: BufferedChanges::default(),
            changes_since_write: vec![0; children.len()],
            versions: vec![0; children.len()],
            parts: Vec::new(),
            children,
            last_commit: commit,
            log_position: 0,
            layout_version: 0,
            retired: false,
            away: None,
        }
    }
}

/// Reading.
impl RegionState {
    /// The region's namespace, which its pages name.
    #[inline]
    pub fn namespace(&self) -> u8 {
        self.namespace
    }

    /// The place of a child's page; `None` when it has none.
    #[inline]
    pub fn page_ref(&self, child: usize) -> Option<PageRef> {
        let page = self.children.page(child)?;
        Some(PageRef { page, tag: self.children.tag(child), namespace: self.namespace })
    }

    /// True when the region has no page, no buffered change and no replaced value.
    pub fn is_bare(&self) -> bool {
        self.children.page_end() == 0
            && self.buffered().is_empty()
            && self.replaced_values().is_empty()
    }

    /// The children: their prefixes, and where their pages are.
    #[inline]
    pub fn children(&self) -> &ChildTable {
        &self.children
    }

    /// The count of a child's changes since its page was written ([`count_change`]), saturating.
    #[inline]
    pub fn changes_since_write(&self, child: usize) -> u8 {
        self.changes_since_write[child]
    }

    /// The version of a child: it names the commit that changed it last ([`RegionCommit::version`]), 0 for none since
    /// the database was opened.
    #[inline]
    pub fn version(&self, child: usize) -> u64 {
        self.versions[child]
    }

    /// The nodes of a child's parts, if they are as of the last commit that changed the child.
    pub fn parts(&self, child: usize) -> Option<Arc<PartNodes>> {
        if self.parts.is_empty() {
            return None;
        }
        let (prefix, at) = (self.children.prefix(child), self.versions[child]);
        let kept = self.parts.iter().find(|(of, as_of, _)| (*of, *as_of) == (prefix, at))?;
        Some(Arc::clone(&kept.2))
    }

    /// Number of the last commit that was applied here.
    #[inline]
    pub fn last_commit(&self) -> u64 {
        self.last_commit
    }

    /// End of the last log record that was applied here.
    #[inline]
    pub fn log_position(&self) -> u64 {
        self.log_position
    }

    /// Grows when children are split or merged, not when pages move.
    #[inline]
    pub fn layout_version(&self) -> u64 {
        self.layout_version
    }

    /// The node of the whole region.
    #[inline]
    pub fn own_node(&self) -> &Node {
        &self.own_node
    }

    /// True when this region was replaced by others: its key is to be looked up again.
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// All buffered changes, in key order.
    #[inline]
    pub fn buffered(&self) -> &[BufferedChange] {
        self.buffered.changes()
    }

    /// The buffered change of a key.
    #[inline]
    pub fn buffered_change(&self, key: &Key) -> Option<&BufferedChange> {
        self.buffered.get(key, self.depth())
    }

    /// Index range of the buffered changes below `prefix`.
    pub fn buffered_range(&self, prefix: &Prefix) -> Range<usize> {
        self.buffered.range(prefix, self.depth())
    }

    /// The buffered changes below `prefix`.
    pub fn buffered_below(&self, prefix: &Prefix) -> &[BufferedChange] {
        &self.buffered()[self.buffered_range(prefix)]
    }

    /// Copies the buffered changes below `prefix` into `out`.
    pub fn copy_buffered(&self, prefix: &Prefix, out: &mut Vec<KeyState>) {
        let below = self.buffered_below(prefix).iter();
        out.extend(below.map(|buffered| (buffered.key, buffered.stored.clone())));
    }

    /// Values in the overflow file that were replaced while their changes were buffered, and that no page has.
    #[inline]
    pub fn replaced_values(&self) -> &[ReplacedValue] {
        &self.buffered.replaced_values
    }

    #[inline]
    pub(super) fn depth(&self) -> u16 {
        self.children.region().len()
    }

    /// Bytes of what is kept for each child, without lines.
    pub(super) fn child_bytes(&self) -> usize {
        size_of_val(&*self.nodes)
            + self.children.heap_bytes()
            + self.changes_since_write.capacity()
            + self.versions.capacity() * size_of::<u64>()
    }
}

/// Prefetching into the processor's caches.
impl RegionState {
    /// Prefetches the memory that a lookup of a key of this region reads next.
    #[inline]
    pub fn cpu_prefetch(&self, key: &Key) {
        self.children.cpu_prefetch(key);
        self.buffered.cpu_prefetch_leads(key, self.depth());
    }

    /// Prefetches the memory that a fold of a key's page, and of this region, reads here.
    pub fn cpu_prefetch_fold(&self, key: &Key) {
        if self.retired {
            // Retired: the successors have the state.
            return;
        }
        let child = self.children.find(key);
        cpu_prefetch(&self.changes_since_write[child..=child]);
        cpu_prefetch(&self.versions[child..=child]);
        self.cpu_prefetch_nodes(child);
        self.buffered.cpu_prefetch_change(key, self.depth());
    }
}

/// Changes.
impl RegionState {
    /// Applies a commit. `scratch` is a spare list whose memory is reused; `changed` is called for each changed child
    /// with the count of its changes since its page was written.
    ///
    /// # Panics
    /// When records come out of order, or it is a plain trie's and has new nodes, or the other way round.
    pub fn apply(
        &mut self,
        commit: &mut RegionCommit<'_>,
        scratch: &mut Vec<BufferedChange>,
        mut changed: impl FnMut(Prefix, u8),
    ) -> BufferedGrowth {
        self.assert_next_record(commit.log_position);
        match commit.nodes {
            NewNodes::Lines { lines, own } => self.set_lines(lines, &own),
            NewNodes::Children(changed) => {
                for (child, node) in changed {
                    self.set_node(*child as usize, node);
                }
            }
            NewNodes::Plain => assert!(self.is_plain(), "new nodes of changed children"),
        }
        let (entries, depth) = (self.buffered.len(), self.depth());
        let is_small = commit.changes.size_hint().1.is_some_and(|most| most <= FEW_CHANGES);
        let (mut last_child, mut sum) = (usize::MAX, 0);
        let (children, number, version) = (&self.children, commit.commit, commit.version);
        let (counts, versions) = (&mut self.changes_since_write, &mut self.versions);
        let mut coming = (&mut *commit.changes).map(|(key, stored)| {
            let child = children.find(&key);
            if child != last_child {
                if last_child != usize::MAX {
                    changed(children.prefix(last_child), counts[last_child]);
                }
                (last_child, sum) = (child, 0);
                versions[child] = version;
            }
            let before = count_commit(sum);
            sum = count_change(sum, &stored);
            counts[child] = counts[child].saturating_add(count_commit(sum) - before);
            BufferedChange { key, stored, commit: number }
        });
        let buffered = &mut self.buffered;
        let bytes = if is_small && commit.nodes.paths() <= FEW {
            coming.map(|change| buffered.put(change, depth)).sum()
        } else {
            buffered.merge(&mut coming, scratch, depth)
        };
        if last_child != usize::MAX {
            changed(children.prefix(last_child), counts[last_child]);
        }
        if !self.parts.is_empty() {
            let (children, versions) = (&self.children, &self.versions);
            let is_true = |of: &Prefix, as_of| versions[children.find(of.first_key())] == as_of;
            self.parts.retain(|(of, as_of, _)| is_true(of, *as_of));
        }
        self.last_commit = commit.commit;
        self.log_position = commit.log_position;
        BufferedGrowth { bytes, entries: signed(self.buffered.len()) - signed(entries) }
    }

    /// Stores the nodes of a child's parts as of the commit that was applied last, which changed them.
    ///
    /// # Panics
    /// When there are some of an earlier commit.
    pub fn store_parts(&mut self, child: usize, parts: Arc<PartNodes>) {
        let prefix = self.children.prefix(child);
        assert!(self.parts.iter().all(|(of, ..)| *of != prefix), "the commit let go of them");
        self.parts.push((prefix, self.versions[child], parts));
    }

    /// Recovery: restores the buffered changes of a checkpoint image. Each counts as one change.
    pub fn restore_buffered(&mut self, changes: Vec<BufferedChange>, replaced: Vec<ReplacedValue>) {
        let newest = changes.iter().map(|change| change.commit).max().unwrap_or(0);
        self.last_commit = self.last_commit.max(newest);
        self.buffered = BufferedChanges::new(changes, replaced, self.depth());
        self.changes_since_write = (0..self.children.len())
            .map(|child| self.buffered_range(&self.children.prefix(child)).len())
            .map(|changes| u8::try_from(changes).unwrap_or(u8::MAX))
            .collect();
    }

    /// Recovery: the region is as of the log record that ends here.
    pub fn set_log_position(&mut self, log_position: u64) {
        self.log_position = log_position;
    }

    /// Recovery: notes a commit whose changes the region already has, since its record ends at or before the region's
    /// own log position.
    pub fn note_commit(&mut self, commit: u64) {
        self.last_commit = self.last_commit.max(commit);
    }

    /// Removes the first `count` replaced values: a flush has retired their runs.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn release_replaced(&mut self, count: usize) {
        self.buffered.replaced_values.drain(..count);
    }

    /// Recovery: keeps the replaced values for which `keep` is true; the runs of the others are free.
    pub fn retain_replaced(&mut self, keep: impl FnMut(&ReplacedValue) -> bool) {
        self.buffered.replaced_values.retain(keep);
    }

    /// Marks this region as replaced in the index by others.
    pub fn retire(&mut self) {
        self.retired = true;
    }

    pub(super) fn assert_next_record(&self, log_position: u64) {
        assert!(log_position > self.log_position, "records are applied in log order, each once");
    }
}
