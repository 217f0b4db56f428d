//! A region: one lowest branch page in memory, with its leaf pages' buffered changes.
//!
//! A region owns the table of its children (where the leaf pages of its prefix are), the node of each child, and the
//! buffered changes: committed, in the log, not yet in a page. One read-write lock guards all of it. It is held for a
//! lookup or a merge in memory, and over I/O in one case: reads of runs of the history.
//!
//! ```text
//!   Region::new ---------+                       +-- apply: a commit's changes are buffered
//!   split, join ---------+--> RegionState -------+-- relocate: new pages contain buffered changes
//!                                 |              +-- keep_lines: a fold has computed them, and there is room
//!                                 v
//!                              retired: replaced in the index by others
//! ```
//!
//! Invariants:
//! * the node of a child is that of its page with all its buffered changes; a plain trie's region has no nodes;
//! * the lines between the region and its children ([`pleach_core::tree::Tiling`]), where they are kept, are those of
//!   the children's nodes;
//! * buffered keys are strictly increasing and in the region; each has its commit;
//! * [`RegionState::log_position`] is the end of the last log record that was applied here,
//!   [`RegionState::last_commit`] the number of the last commit among them;
//! * a region that was replaced by others is retired; a reader that finds it so looks the key up again;
//! * an *away* region has its own node and last commit, and no children. [`Region::read`] and [`Region::write`] load it
//!   first, without a lock ([`RegionSource`]); where that fails it has one child in the place of all, whose page nobody
//!   can read. [`Region::row`] does not load it.
//!
//! ```
//! use pleach_beatree::region::{RegionCommit, NewNodes, Region};
//! use pleach_beatree::{ChildRef, ChildTable, Stored};
//! use pleach_core::{Hasher, Node, Prefix, TERMINATOR};
//!
//! // One child, the whole key space, without a page so far.
//! let children = ChildTable::new(Prefix::ROOT, &[ChildRef { prefix: Prefix::ROOT, page: None, tag: 0 }]);
//! let region = Region::new(Hasher::BLAKE3, 0, children, vec![TERMINATOR], 0);
//!
//! // Commit 1 puts one key. Its node comes from the fold that ran before.
//! let node = Node::new([1; 32]);
//! let put = ([7; 32], Stored::Inline(b"seven".as_slice().into()));
//! let growth = region.write().apply(
//!     &mut RegionCommit {
//!         commit: 1,
//!         version: 1,
//!         log_position: 96,
//!         changes: &mut std::iter::once(put),
//!         nodes: NewNodes::Lines { lines: &[], own: node },
//!     },
//!     &mut Vec::new(),
//!     |child, commits| assert_eq!((child, commits), (Prefix::ROOT, 1)),
//! );
//! assert_eq!(growth.entries, 1);
//!
//! let state = region.read();
//! assert_eq!(state.buffered_change(&[7; 32]).map(|change| change.commit), Some(1));
//! assert_eq!((state.last_commit(), state.log_position()), (1, 96));
//! ```

mod away;
mod buffered;
mod join;
mod nodes;
mod relocate;
mod split;
mod state;

pub use away::{AwayRegion, RegionSource};
pub use buffered::{BufferedChange, ReplacedValue};
pub use nodes::{LineBudget, LineRoom};
pub use relocate::{Relocation, RelocationEffect};
pub use state::{
    BufferedGrowth, NewNodes, PartNodes, RegionCommit, RegionState, count_change, count_commit,
};

use pleach_core::cpu_prefetch;
use pleach_core::prefix::Prefix;
use pleach_core::{Hasher, Node};

pub(crate) use self::nodes::own_node;
use crate::children::ChildTable;
use crate::lock_order::{REGION, RankedReadGuard, RankedRwLock, RankedWriteGuard};

/// A region's state, held for reading.
pub type ReadState<'a> = RankedReadGuard<'a, RegionState>;
/// A region's state, held for changing.
pub type WriteState<'a> = RankedWriteGuard<'a, RegionState>;

/// A region: a prefix, and its state behind a lock.
#[derive(Debug)]
pub struct Region {
    prefix: Prefix,
    state: RankedRwLock<RegionState>,
}

impl Region {
    /// A region of a namespace, over pages that commit `commit` made, with the nodes of its children; a plain trie's
    /// has none. No log record was applied.
    ///
    /// # Panics
    /// When there is not one node a child, nor none.
    pub fn new(
        hasher: Hasher,
        namespace: u8,
        children: ChildTable,
        nodes: Vec<Node>,
        commit: u64,
    ) -> Self {
        Self::from_state(RegionState::new(hasher, namespace, children, nodes, commit))
    }

    pub(super) fn from_state(state: RegionState) -> Self {
        Self { prefix: *state.children().region(), state: REGION.rw_lock(state) }
    }

    /// The region as it is in memory, be it away: then prefix, own node and last commit alone are right.
    pub fn row(&self) -> ReadState<'_> {
        self.state.read()
    }

    /// Prefetches the memory that a lookup reads first.
    #[inline]
    pub fn cpu_prefetch(&self) {
        cpu_prefetch(core::slice::from_ref(self));
    }

    /// Bytes of the region without lines and buffered changes.
    pub fn bytes(&self) -> usize {
        // Two reference counts, and what the allocator adds to each of four allocations.
        size_of::<Self>() + size_of::<[usize; 2 + 4]>() + self.row().child_bytes()
    }

    /// The prefix that this region covers.
    #[inline]
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The state, for reading.
    #[inline]
    pub fn read(&self) -> ReadState<'_> {
        let state = self.state.read();
        if !state.is_away() {
            return state;
        }
        drop(state);
        self.load(false);
        self.state.read()
    }

    /// The state, for reading, if no writer holds it and it is not away.
    #[inline]
    pub fn try_read(&self) -> Option<ReadState<'_>> {
        self.state.try_read().filter(|state| !state.is_away())
    }

    /// The state, for changing.
    #[inline]
    pub fn write(&self) -> WriteState<'_> {
        let state = self.state.write();
        if !state.is_away() {
            return state;
        }
        drop(state);
        self.load(false);
        let mut state = self.state.write();
        // What could not be read now would come without the caller's changes later.
        state.away = None;
        state
    }
}
