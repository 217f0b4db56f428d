//! A region: one lowest branch page in memory, with what hangs on its leaf pages.
//!
//! A region owns the cuts of its prefix (where its leaf pages lie), the node of each leaf page,
//! and the pending changes: committed, in the log, not yet in a page. One read-write lock guards
//! all of it and is held for the time of a lookup or of a merge in memory, never across I/O.
//!
//! Invariants:
//! * the node of a child is that of its page plus all its pending changes;
//! * pending keys are strictly increasing and lie in the region; each has the commit that put it;
//! * `position` is the end of the last log record that was applied here, `changed` the
//!   number of the last commit among them;
//! * a region that was replaced by others is `retired`; who finds it so looks up again.

use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use pleach_core::prefix::Prefix;
use pleach_core::search::lower_bound_bits;
use pleach_core::{Key, Node};

use crate::cuts::{Cut, Cuts, bits_behind};
use crate::leaf_fold::Patch;
use crate::stored::Stored;

/// A committed change that is not in a page yet.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The key.
    pub key: Key,
    /// Its state.
    pub stored: Stored,
    /// The commit that made it so.
    pub commit: u64,
}

impl Pending {
    /// Bytes that this entry takes, for the budget.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.stored.heap_bytes()
    }
}

/// A value in the overflow file that was replaced while it was pending.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// The value as it pended.
    pub pending: Pending,
    /// The commit that replaced it.
    pub replaced: u64,
}

impl Dropped {
    /// Has a page below `range`, made of the changes up to commit `through`, taken the value up?
    /// Then it is the page's, and whoever replaces the page's cell gives its runs up.
    fn is_in(&self, range: &Prefix, through: u64) -> bool {
        range.covers(&self.pending.key) && self.pending.commit <= through && through < self.replaced
    }
}

/// Where the nodes of a region's children are.
#[derive(Debug, PartialEq, Eq)]
pub enum Nodes {
    /// In memory, one a child.
    Resident(Vec<Node>),
    /// In a branch page on the device.
    Paged(NodePlace),
}

/// A branch page that holds a region's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// The file.
    pub file: NodeFile,
    /// Page number in it.
    pub page: u64,
    /// Tag of the page.
    pub tag: u32,
}

/// Files that hold branch pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFile {
    /// Checkpoint image A.
    ImageA,
    /// Checkpoint image B.
    ImageB,
    /// Branch pages that changed since the last image and had to leave memory.
    Spill,
}

/// The state of a region; see the module's invariants.
#[derive(Debug)]
pub struct RegionState {
    /// The cuts.
    pub cuts: Arc<Cuts>,
    /// One node a child.
    pub nodes: Nodes,
    /// A page that holds exactly these nodes; nothing when they have changed since.
    pub paged_at: Option<NodePlace>,
    /// The page of the spill file that this region's nodes are written to, once they were.
    pub spill_page: Option<u64>,
    /// Changes not yet in pages, by key.
    pub pending: Vec<Pending>,
    /// The bits of each pending key behind the region's prefix ([`RegionState::index_pending`]).
    pub leads: Vec<u32>,
    /// Values in the overflow file that were replaced while they were pending, and that no page
    /// has: the next flush of this region gives their runs up.
    pub dropped: Vec<Dropped>,
    /// Commits that changed each child since its page was written, saturating.
    pub touches: Vec<u8>,
    /// The last commit that changed each child, 0 for none since the database was opened.
    pub changed_at: Vec<u64>,
    /// Number of the last commit applied here.
    pub changed: u64,
    /// End of the last log record applied here.
    pub position: u64,
    /// Grows when children are split or merged, not when pages move.
    pub shape: u64,
    /// The node of the whole region.
    pub own: Node,
    /// Was this region replaced by others?
    pub retired: bool,
}

/// A region.
#[derive(Debug)]
pub struct Region {
    prefix: Prefix,
    state: RwLock<RegionState>,
}

/// The changes of one commit in one region.
pub struct Applied<'a> {
    /// Number of the commit.
    pub commit: u64,
    /// End of its record in the log.
    pub position: u64,
    /// Changed keys and their new state.
    pub changes: &'a mut dyn Iterator<Item = (Key, Stored)>,
    /// New nodes: child index and node, increasing.
    pub nodes: &'a [(u32, Node)],
    /// New node of the region.
    pub own: Node,
}

impl Region {
    /// A region without pending changes.
    ///
    /// # Panics
    /// When there is not one node a child.
    pub fn new(cuts: Cuts, nodes: Vec<Node>, own: Node) -> Self {
        assert_eq!(cuts.len(), nodes.len(), "one node a child");
        let (touches, changed_at) = (vec![0; cuts.len()], vec![0; cuts.len()]);
        let prefix = *cuts.region();
        let state = RegionState {
            cuts: Arc::new(cuts),
            nodes: Nodes::Resident(nodes),
            paged_at: None,
            spill_page: None,
            pending: Vec::new(),
            leads: Vec::new(),
            dropped: Vec::new(),
            touches,
            changed_at,
            changed: 0,
            position: 0,
            shape: 0,
            own,
            retired: false,
        };
        Self { prefix, state: RwLock::new(state) }
    }

    /// A region with all that belongs to it.
    pub fn with_state(mut state: RegionState) -> Self {
        state.index_pending();
        Self { prefix: *state.cuts.region(), state: RwLock::new(state) }
    }

    /// The prefix that this region covers.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The state, for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, RegionState> {
        self.state.read()
    }

    /// The state, for changing.
    pub fn write(&self) -> RwLockWriteGuard<'_, RegionState> {
        self.state.write()
    }
}

impl RegionState {
    /// Takes down the leading bits of the pending keys; after every change of `pending`.
    pub fn index_pending(&mut self) {
        let from = self.cuts.region().len();
        self.leads.clear();
        self.leads.extend(self.pending.iter().map(|pending| bits_behind(&pending.key, from)));
    }

    /// Index of the first pending change at or behind a key of this region. The leading bits lie
    /// close together in memory, so this touches few cache lines of the changes themselves.
    fn pending_from(&self, key: &Key) -> usize {
        debug_assert_eq!(self.leads.len(), self.pending.len(), "indexed after each change");
        let lead = bits_behind(key, self.cuts.region().len());
        let from = lower_bound_bits(lead, self.leads.len(), |at| self.leads[at] < lead);
        let same = self.leads[from..].iter().take_while(|other| **other == lead).count();
        if same == 0 {
            return from;
        }
        from + self.pending[from..from + same].partition_point(|pending| pending.key < *key)
    }

    /// The pending state of a key.
    pub fn pending_of(&self, key: &Key) -> Option<&Pending> {
        let at = self.pending_from(key);
        // The change itself is far away in memory: mostly its leading bits say no.
        let lead = bits_behind(key, self.cuts.region().len());
        self.leads.get(at).filter(|other| **other == lead)?;
        Some(&self.pending[at]).filter(|pending| pending.key == *key)
    }

    /// Index range of the pending changes below `prefix`.
    pub fn pending_range(&self, prefix: &Prefix) -> std::ops::Range<usize> {
        let from = self.pending_from(prefix.first_key());
        let behind = prefix.len() - self.cuts.region().len();
        if behind > 32 {
            let pending = &self.pending[from..];
            return from..from + pending.partition_point(|pending| prefix.covers(&pending.key));
        }
        // The leading bits decide: again without a look at the changes themselves.
        let last = bits_behind(&prefix.last_key(), self.cuts.region().len());
        let more = self.leads[from..].iter().take_while(|lead| **lead <= last).count();
        from..from + more
    }

    /// Copies the pending changes below `prefix` into `out`.
    pub fn patches(&self, prefix: &Prefix, out: &mut Vec<Patch>) {
        let range = self.pending_range(prefix);
        out.extend(self.pending[range].iter().map(|pending| (pending.key, pending.stored.clone())));
    }

    /// The node of a child, when nodes are in memory.
    pub fn node(&self, child: usize) -> Option<&Node> {
        match &self.nodes {
            Nodes::Resident(nodes) => Some(&nodes[child]),
            Nodes::Paged(_) => None,
        }
    }

    /// Applies a commit. `scratch` is a spare list whose memory is reused; `ripe` is called for
    /// each child with `flush_at` touches or more. Gives the change of the pending bytes and of
    /// the number of pending entries.
    ///
    /// # Panics
    /// When nodes are not in memory, or records come out of order.
    pub fn apply(
        &mut self,
        commit: &mut Applied<'_>,
        flush_at: u8,
        scratch: &mut Vec<Pending>,
        mut ripe: impl FnMut(Prefix),
    ) -> (isize, isize) {
        assert!(commit.position > self.position, "records are applied in log order, each once");
        let Nodes::Resident(nodes) = &mut self.nodes else {
            panic!("a changed region's nodes are in memory")
        };
        self.paged_at = None;
        for (child, node) in commit.nodes {
            nodes[*child as usize] = *node;
        }
        scratch.clear();
        let mut before = std::mem::take(&mut self.pending);
        let (entries, mut bytes) = (before.len(), 0isize);
        let mut old = before.drain(..).peekable();
        let mut last_child = usize::MAX;
        for (key, stored) in &mut *commit.changes {
            while let Some(smaller) = old.next_if(|pending| pending.key < key) {
                scratch.push(smaller);
            }
            if let Some(replaced) = old.next_if(|pending| pending.key == key) {
                bytes -= signed(replaced.bytes());
                if matches!(replaced.stored, Stored::Overflow(_)) {
                    self.dropped.push(Dropped { pending: replaced, replaced: commit.commit });
                }
            }
            let child = self.cuts.find(&key);
            if child != last_child {
                last_child = child;
                let touches = &mut self.touches[child];
                *touches = touches.saturating_add(1);
                self.changed_at[child] = commit.commit;
                if *touches >= flush_at {
                    ripe(self.cuts.prefix(child));
                }
            }
            let pending = Pending { key, stored, commit: commit.commit };
            bytes += signed(pending.bytes());
            scratch.push(pending);
        }
        scratch.extend(old);
        std::mem::swap(&mut self.pending, scratch);
        *scratch = before;
        self.index_pending();
        self.own = commit.own;
        self.changed = commit.commit;
        self.position = commit.position;
        (bytes, signed(self.pending.len()) - signed(entries))
    }
}

/// A range of a region whose pages were written anew.
pub struct Relocation<'a> {
    /// The range: one old page, or siblings that merged.
    pub range: Prefix,
    /// Its new pages with their nodes, tiling the range.
    pub pages: &'a [(Cut, Node)],
    /// The last commit whose changes they contain.
    pub through: u64,
}

/// What relocating changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relocated {
    /// Were cuts split or merged?
    pub reshaped: bool,
    /// Bytes of pending changes that went.
    pub bytes: usize,
    /// Pending changes that went.
    pub entries: usize,
    /// Pages now, less pages before.
    pub pages: isize,
}

impl RegionState {
    /// Puts new pages into the cuts and retires what they contain. `moves` are disjoint and in
    /// order, and their ranges lie in the region.
    ///
    /// # Panics
    /// When nodes are not in memory, or the new pages do not tile their ranges.
    pub fn relocate(&mut self, moves: &[Relocation<'_>], position: u64) -> Relocated {
        assert!(position > self.position, "records are applied in log order, each once");
        let Nodes::Resident(old_nodes) = &self.nodes else {
            panic!("a changed region's nodes are in memory")
        };
        let mut cuts: Vec<Cut> = Vec::with_capacity(self.cuts.len() + moves.len());
        let mut nodes: Vec<Node> = Vec::with_capacity(self.cuts.len() + moves.len());
        let mut touches: Vec<u8> = Vec::with_capacity(self.cuts.len() + moves.len());
        let mut changed_at: Vec<u64> = Vec::with_capacity(self.cuts.len() + moves.len());
        let mut done = Relocated::default();
        let mut coming = moves.iter().peekable();
        for (child, old_node) in old_nodes.iter().enumerate() {
            let cut = self.cuts.cut(child);
            let Some(replaced) = coming.peek().filter(|next| next.range.contains(&cut.prefix))
            else {
                cuts.push(cut);
                nodes.push(*old_node);
                touches.push(self.touches[child]);
                changed_at.push(self.changed_at[child]);
                continue;
            };
            done.pages -= isize::from(cut.place.is_some());
            done.reshaped |= replaced.pages.len() != 1 || replaced.range != cut.prefix;
            if cut.prefix.last_key() == replaced.range.last_key() {
                for (cut, node) in replaced.pages {
                    done.pages += isize::from(cut.place.is_some());
                    cuts.push(*cut);
                    nodes.push(*node);
                    touches.push(0);
                    // Where pages were split or merged this is the last of several, and no
                    // treelet stands there.
                    changed_at.push(self.changed_at[child]);
                }
                coming.next();
            }
        }
        assert!(coming.next().is_none(), "every range lies in the region");
        self.cuts = Arc::new(Cuts::new(*self.cuts.region(), &cuts));
        self.nodes = Nodes::Resident(nodes);
        self.paged_at = None;
        self.touches = touches;
        self.changed_at = changed_at;
        (done.bytes, done.entries) = self.retire(moves);
        // Replaced while the pages were being written: they have such a value in a cell.
        self.dropped.retain(|dropped| {
            !moves.iter().any(|moved| dropped.is_in(&moved.range, moved.through))
        });
        self.position = position;
        self.shape += u64::from(done.reshaped);
        done
    }

    /// Drops the pending changes that the new pages contain; gives their bytes and number. A moved
    /// page that keeps some counts as touched once.
    fn retire(&mut self, moves: &[Relocation<'_>]) -> (usize, usize) {
        let (mut bytes, mut entries) = (0, 0);
        let ends: Vec<Key> = moves.iter().map(|moved| moved.range.last_key()).collect();
        let mut at = 0;
        let (cuts, touches) = (&self.cuts, &mut self.touches);
        self.pending.retain(|pending| {
            while at < moves.len() && ends[at] < pending.key {
                at += 1;
            }
            let Some(moved) = moves.get(at).filter(|moved| moved.range.first_key() <= &pending.key)
            else {
                return true;
            };
            if pending.commit > moved.through {
                touches[cuts.find(&pending.key)] = 1;
                return true;
            }
            bytes += pending.bytes();
            entries += 1;
            false
        });
        self.index_pending();
        (bytes, entries)
    }

    /// A page that has pending changes counts as touched once when its history is not known.
    pub fn touched_once(&self, child: usize) -> u8 {
        u8::from(!self.pending_range(&self.cuts.prefix(child)).is_empty())
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).expect("memory is smaller than isize::MAX")
}
