//! A region: one lowest branch page in memory, with what hangs on its leaf pages.
//!
//! A region owns the cuts of its prefix (where its leaf pages lie), the node of each leaf page,
//! and the pending changes: committed, in the log, not yet in a page. One read-write lock guards
//! all of it and is held for the time of a lookup or of a merge in memory, never across I/O.
//!
//! Invariants:
//! * the node of a child is that of its page plus all its pending changes;
//! * a treelet is that of page nodes and pending changes at commit `as_of`; it counts only while
//!   that is `changed`;
//! * pending keys are strictly increasing and lie in the region; each has the commit that put it;
//! * `position` is the end of the last log record that was applied here, `changed` the
//!   number of the last commit among them;
//! * a region that was replaced by others is `retired`; who finds it so looks up again.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use pleach_core::lanes::prefetch;
use pleach_core::node::precedes;
use pleach_core::node::{NodeKind, kind};
use pleach_core::prefix::Prefix;
use pleach_core::search::{guess, lower_bound_bits};
use pleach_core::{Key, Node};

use crate::cuts::{Cut, Cuts, bits_behind};
use crate::leaf_fold::Patch;
use crate::stored::Stored;
use crate::treelet::{self, Treelet};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodePlace {
    /// The file.
    pub file: NodeFile,
    /// Page number in it.
    pub page: u64,
    /// Tag of the page.
    pub tag: u32,
}

/// Files that hold branch pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    pub cuts: Cuts,
    /// One node a child.
    pub nodes: Nodes,
    /// Nodes between the region and its children; internal ones only.
    pub treelet: Option<Box<Treelet>>,
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
    /// What the region's treelet learns: the commit that it must stand at, and nodes by position.
    pub inner: Option<(u64, &'a [(u8, Node)])>,
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
            cuts,
            nodes: Nodes::Resident(nodes),
            treelet: None,
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

    /// Asks for the memory that a lookup reads first.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(core::slice::from_ref(self));
    }

    /// Bytes of the region without nodes, treelet and pending changes.
    pub fn bytes(&self) -> usize {
        let state = self.state.read();
        let counts = state.touches.capacity() + state.changed_at.capacity() * size_of::<u64>();
        // Two reference counts, and what the allocator adds to each of four allocations.
        size_of::<Self>() + size_of::<[usize; 2 + 4]>() + state.cuts.heap_bytes() + counts
    }

    /// The prefix that this region covers.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The state, for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, RegionState> {
        self.state.read()
    }

    /// The state, for reading, if nobody changes it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, RegionState>> {
        self.state.try_read()
    }

    /// The state, for changing.
    pub fn write(&self) -> RwLockWriteGuard<'_, RegionState> {
        self.state.write()
    }
}

/// The bits of each pending key behind the prefix of a region of this depth.
fn index(leads: &mut Vec<u32>, pending: &[Pending], depth: u16) {
    leads.clear();
    leads.reserve_exact(pending.len());
    leads.extend(pending.iter().map(|pending| bits_behind(&pending.key, depth)));
}

/// Index of the first pending change at or behind a key. The leading bits lie close together in
/// memory, so this touches few cache lines of the changes themselves.
fn position(leads: &[u32], pending: &[Pending], depth: u16, key: &Key) -> usize {
    debug_assert_eq!(leads.len(), pending.len(), "indexed after each change");
    let lead = bits_behind(key, depth);
    let from = lower_bound_bits(lead, leads.len(), |at| leads[at] < lead);
    let same = leads[from..].iter().take_while(|other| **other == lead).count();
    if same == 0 {
        return from;
    }
    from + pending[from..from + same].partition_point(|pending| precedes(&pending.key, key))
}

/// Leads that are asked for on either side of where a key's would be if they were spread evenly.
const LEADS_AROUND: usize = 24;

impl RegionState {
    /// Asks for the memory where a lookup of a key of this region goes on.
    #[inline]
    pub fn prefetch(&self, key: &Key) {
        self.cuts.prefetch(key);
        let at = guess(bits_behind(key, self.cuts.region().len()), self.leads.len());
        // Off by half the root of their number: a line or two on either side.
        let end = (at + LEADS_AROUND).min(self.leads.len());
        prefetch(&self.leads[at.saturating_sub(LEADS_AROUND).min(end)..end]);
    }

    /// Asks for the memory that a fold of a key's page, and of this region, reads here.
    pub fn prefetch_fold(&self, key: &Key) {
        if self.retired {
            // Its successors have it all.
            return;
        }
        let child = self.cuts.find(key);
        prefetch(&self.touches[child..=child]);
        prefetch(&self.changed_at[child..=child]);
        self.prefetch_nodes(child, key);
        let at = self.pending_from(key);
        prefetch(&self.pending[at..(at + 1).min(self.pending.len())]);
    }

    /// Asks for the memory that the fold of this region reads on the way to a child, which has
    /// this key. There may be no such child any more.
    pub fn prefetch_nodes(&self, child: usize, key: &Key) {
        if let Nodes::Resident(nodes) = &self.nodes {
            let end = (child + 2).min(nodes.len());
            prefetch(&nodes[child.saturating_sub(1).min(end)..end]);
        }
        if let Some(treelet) = &self.treelet {
            let [lead, ..] = bits_behind(key, self.cuts.region().len()).to_be_bytes();
            treelet.known().prefetch(lead >> (8 - treelet::LEVELS));
        }
    }

    /// Takes down the leading bits of the pending keys; after every change of `pending` from
    /// outside.
    pub fn index_pending(&mut self) {
        index(&mut self.leads, &self.pending, self.cuts.region().len());
    }

    /// Index of the first pending change at or behind a key of this region.
    fn pending_from(&self, key: &Key) -> usize {
        position(&self.leads, &self.pending, self.cuts.region().len(), key)
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

    /// Applies a commit. `scratch` is a spare list whose memory is reused; `touched` is
    /// called for each changed child with the number of its touches. Gives the change of the
    /// pending bytes and of the number of pending entries.
    ///
    /// # Panics
    /// When nodes are not in memory, or records come out of order.
    pub fn apply(
        &mut self,
        commit: &mut Applied<'_>,
        scratch: &mut Vec<Pending>,
        mut touched: impl FnMut(Prefix, u8),
    ) -> (isize, isize) {
        assert!(commit.position > self.position, "records are applied in log order, each once");
        let Nodes::Resident(nodes) = &mut self.nodes else {
            panic!("a changed region's nodes are in memory")
        };
        self.paged_at = None;
        for (child, node) in commit.nodes {
            nodes[*child as usize] = *node;
        }
        let entries = self.pending.len();
        let mut last_child = usize::MAX;
        let (cuts, touches, changed_at) = (&self.cuts, &mut self.touches, &mut self.changed_at);
        let number = commit.commit;
        let mut coming = (&mut *commit.changes).map(|(key, stored)| {
            let child = cuts.find(&key);
            if child != last_child {
                last_child = child;
                touches[child] = touches[child].saturating_add(1);
                changed_at[child] = number;
                touched(cuts.prefix(child), touches[child]);
            }
            Pending { key, stored, commit: number }
        });
        let mut delta = Delta {
            region: cuts.region().len(),
            pending: &mut self.pending,
            leads: &mut self.leads,
            dropped: &mut self.dropped,
            commit: number,
            bytes: 0,
        };
        if commit.nodes.len() <= FEW {
            coming.for_each(|pending| delta.put(pending));
        } else {
            delta.merge(&mut coming, scratch);
        }
        let bytes = delta.bytes;
        // Below a leaf or a terminator old nodes would lie hidden.
        let is_internal = |node: &Node| kind(node) == NodeKind::Internal;
        let inner =
            commit.inner.filter(|(_, nodes)| nodes.iter().all(|(_, node)| is_internal(node)));
        match inner {
            Some((before, nodes)) if is_internal(&commit.own) => {
                let treelet = self.treelet.get_or_insert_with(|| Box::new(Treelet::empty()));
                treelet.advance(before, number, &commit.own, nodes.iter().copied());
            }
            _ => self.treelet = None,
        }
        self.own = commit.own;
        self.changed = commit.commit;
        self.position = commit.position;
        (bytes, signed(self.pending.len()) - signed(entries))
    }
}

/// Children of a region that are changed or moved one by one, each at the price of moving what
/// lies behind it; with more of them everything is moved once.
const FEW: usize = 6;

/// Room for one more, and little beyond: there are many regions, and doubling would take half as much
/// memory again as the changes themselves.
fn make_room<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 8 + 2);
    }
}

/// Gives room back where a list has much more than it needs.
fn trim<T>(list: &mut Vec<T>) {
    if list.capacity() > 2 * list.len() + 16 {
        list.shrink_to(list.len() + list.len() / 8);
    }
}

/// The pending changes of a region while a commit is applied.
struct Delta<'a> {
    /// Depth of the region.
    region: u16,
    pending: &'a mut Vec<Pending>,
    leads: &'a mut Vec<u32>,
    dropped: &'a mut Vec<Dropped>,
    commit: u64,
    /// Change of the pending bytes.
    bytes: isize,
}

impl Delta<'_> {
    /// Puts one change in its place.
    fn put(&mut self, new: Pending) {
        self.bytes += signed(new.bytes());
        let at = position(self.leads, self.pending, self.region, &new.key);
        if self.pending.get(at).is_some_and(|old| old.key == new.key) {
            let old = core::mem::replace(&mut self.pending[at], new);
            self.replaced(old);
        } else {
            make_room(self.leads);
            make_room(self.pending);
            self.leads.insert(at, bits_behind(&new.key, self.region));
            self.pending.insert(at, new);
        }
    }

    /// Merges changes in key order.
    fn merge(&mut self, coming: &mut dyn Iterator<Item = Pending>, scratch: &mut Vec<Pending>) {
        scratch.clear();
        // Lists go from region to region: none stays where it is much too long.
        let most = self.pending.len() + coming.size_hint().0;
        if !(most..=most + most / 4).contains(&scratch.capacity()) {
            *scratch = Vec::with_capacity(most);
        }
        let mut before = std::mem::take(self.pending);
        let mut old = before.drain(..).peekable();
        for new in coming {
            while let Some(smaller) = old.next_if(|pending| precedes(&pending.key, &new.key)) {
                scratch.push(smaller);
            }
            if let Some(replaced) = old.next_if(|pending| pending.key == new.key) {
                self.replaced(replaced);
            }
            self.bytes += signed(new.bytes());
            scratch.push(new);
        }
        scratch.extend(old);
        std::mem::swap(self.pending, scratch);
        *scratch = before;
        trim(self.pending);
        index(self.leads, self.pending, self.region);
    }

    fn replaced(&mut self, old: Pending) {
        self.bytes -= signed(old.bytes());
        if matches!(old.stored, Stored::Overflow(_)) {
            self.dropped.push(Dropped { pending: old, replaced: self.commit });
        }
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
        assert!(matches!(self.nodes, Nodes::Resident(_)), "a changed region's nodes are in memory");
        let mut done = Relocated::default();
        let same_shape = moves.iter().all(|moved| {
            let child = self.cuts.find(moved.range.first_key());
            matches!(moved.pages, [(cut, _)] if cut.prefix == moved.range)
                && self.cuts.prefix(child) == moved.range
        });
        if same_shape {
            self.move_children(moves, &mut done);
        } else {
            self.reshape(moves, &mut done);
        }
        self.paged_at = None;
        (done.bytes, done.entries) =
            if moves.len() <= FEW { self.retire_few(moves) } else { self.retire(moves) };
        trim(&mut self.pending);
        trim(&mut self.leads);
        // Replaced while the pages were being written: they have such a value in a cell.
        self.dropped.retain(|dropped| {
            !moves.iter().any(|moved| dropped.is_in(&moved.range, moved.through))
        });
        self.position = position;
        self.shape += u64::from(done.reshaped);
        done
    }

    /// Pages that keep their prefixes have new places.
    fn move_children(&mut self, moves: &[Relocation<'_>], done: &mut Relocated) {
        let Nodes::Resident(nodes) = &mut self.nodes else { unreachable!("asserted before") };
        for (cut, node) in moves.iter().flat_map(|moved| moved.pages) {
            let child = self.cuts.find(cut.prefix.first_key());
            done.pages +=
                isize::from(cut.place.is_some()) - isize::from(self.cuts.place(child).is_some());
            self.cuts.relocate(child, cut.place, cut.tag);
            nodes[child] = *node;
            self.touches[child] = 0;
        }
    }

    /// Pages are split or merged: all children are put down anew.
    fn reshape(&mut self, moves: &[Relocation<'_>], done: &mut Relocated) {
        let Nodes::Resident(old_nodes) = &self.nodes else { unreachable!("asserted before") };
        let room = self.cuts.len() + moves.len();
        let mut cuts: Vec<Cut> = Vec::with_capacity(room);
        let mut nodes: Vec<Node> = Vec::with_capacity(room);
        let mut touches: Vec<u8> = Vec::with_capacity(room);
        let mut changed_at: Vec<u64> = Vec::with_capacity(room);
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
        self.cuts = Cuts::new(*self.cuts.region(), &cuts);
        self.nodes = Nodes::Resident(nodes);
        self.touches = touches;
        self.changed_at = changed_at;
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

    /// The same for few moves: looks at nothing but the changes below them.
    fn retire_few(&mut self, moves: &[Relocation<'_>]) -> (usize, usize) {
        let (mut bytes, mut entries) = (0, 0);
        for moved in moves {
            let mut range = self.pending_range(&moved.range);
            while let Some(at) = self.pending[range.clone()]
                .iter()
                .position(|pending| pending.commit > moved.through)
                .map(|at| range.start + at)
            {
                self.touches[self.cuts.find(&self.pending[at].key)] = 1;
                let before = at - range.start;
                let (gone_bytes, gone) = self.drop_pending(range.start..at);
                bytes += gone_bytes;
                entries += gone;
                // What stays lies where the first one was.
                range = range.start + 1..range.end - before;
            }
            let (gone_bytes, gone) = self.drop_pending(range);
            bytes += gone_bytes;
            entries += gone;
        }
        (bytes, entries)
    }

    fn drop_pending(&mut self, range: std::ops::Range<usize>) -> (usize, usize) {
        self.leads.drain(range.clone());
        let gone = self.pending.drain(range);
        let entries = gone.len();
        (gone.map(|pending| pending.bytes()).sum(), entries)
    }

    /// A page that has pending changes counts as touched once when its history is not known.
    pub fn touched_once(&self, child: usize) -> u8 {
        u8::from(!self.pending_range(&self.cuts.prefix(child)).is_empty())
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).expect("memory is smaller than isize::MAX")
}
