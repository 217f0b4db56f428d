//! The nodes between a leaf page's prefix and its buckets, pending changes included.
//!
//! A leaf page stores the nodes three levels below its prefix as of its writing. A page that is
//! used again and again carries more in memory: the nodes of all positions down to [`LEVELS`]
//! levels below the prefix, with every committed change applied. The subtries that begin there are
//! its *buckets*. So a fold expands nothing but the buckets that it accesses, and a flush hashes nothing
//! at all. Nodes become known as folds compute them; what is not known is expanded from the page.
//!
//! Invariants, for a treelet as of commit `as_of`:
//! * a known node is that of the page with all changes up to `as_of`;
//! * below a known leaf node or terminator nothing is to be read: what is there may be old.
//!
//! ```
//! use pleach_beatree::treelet::{PartialTreelet, Treelet};
//! use pleach_core::Node;
//! use pleach_core::fold::heap_index;
//!
//! let node = |byte| Node::new([byte; 32]);
//! let mut treelet = Treelet::empty();
//! // Commit 5 computed the node of the prefix and that of its left half.
//! let left = heap_index(1, 0);
//! treelet.advance(0, 5, &node(1), [(left, node(2))].into_iter());
//! assert_eq!((treelet.as_of(), treelet.node(left)), (5, Some(&node(2))));
//! assert_eq!(treelet.node(heap_index(1, 1)), None);
//!
//! // The part that one bucket needs.
//! let mut part = PartialTreelet::empty();
//! part.set(&treelet, 0);
//! assert_eq!(part.known().node(left), Some(&node(2)));
//!
//! // What was known before another commit does not count after it.
//! treelet.advance(6, 7, &node(3), std::iter::empty());
//! assert_eq!(treelet.node(left), None);
//! ```

use pleach_core::cpu_prefetch;
use pleach_core::fold::{MAX_CAPTURE, above, heap_index};
use pleach_core::{Node, Prefix, TERMINATOR};

/// Levels below a page's prefix.
pub const LEVELS: u8 = MAX_CAPTURE;
/// Levels below `at` that a fold of its page can capture.
pub fn capture_levels(at: &Prefix) -> u8 {
    if at.len() + u16::from(LEVELS) <= 256 { LEVELS } else { 0 }
}

/// Positions: the prefix itself and all down to [`LEVELS`] below it.
const POSITIONS: usize = (1 << (LEVELS + 1)) - 1;

const _: () = assert!(POSITIONS <= 64, "one bit each in a word");

/// What is known of a page's nodes; see the module.
///
/// A fold reads nodes in pairs of siblings: each pair is one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Treelet {
    as_of: u64,
    known: u64,
    /// Which of the known nodes are internal ones.
    internal: u64,
    /// The first node is half a line, and the first of a pair begins a line.
    _half: u64,
    nodes: [Node; POSITIONS],
}

impl Treelet {
    /// A treelet that knows nothing, as of no commit.
    pub fn empty() -> Self {
        Self { as_of: u64::MAX, known: 0, internal: 0, _half: 0, nodes: [TERMINATOR; POSITIONS] }
    }

    /// Forgets everything.
    pub fn forget(&mut self) {
        (self.as_of, self.known) = (u64::MAX, 0);
    }

    /// The last commit that changed the page.
    pub fn as_of(&self) -> u64 {
        self.as_of
    }

    /// All that is known.
    #[inline]
    pub fn known(&self) -> Known<'_> {
        let internal = self.known & self.internal;
        Known { positions: self.known, internal, nodes: &self.nodes, packed: false }
    }

    /// The node of the position with this [`heap_index`].
    #[inline]
    pub fn node(&self, index: u8) -> Option<&Node> {
        (self.known >> index & 1 == 1).then(|| &self.nodes[usize::from(index)])
    }

    /// Prefetches the memory of a node that will be written.
    #[inline]
    pub fn cpu_prefetch_node(&self, index: u8) {
        cpu_prefetch(&self.nodes[usize::from(index)..=usize::from(index)]);
    }

    /// Goes from the state before a commit to the state after it: `nodes` are those that the
    /// commit's fold computed. A treelet as of another commit than `before` forgets what it knew.
    pub fn advance(
        &mut self,
        before: u64,
        after: u64,
        own: &Node,
        nodes: impl Iterator<Item = (u8, Node)>,
    ) {
        if self.as_of != before {
            self.known = 0;
        }
        self.as_of = after;
        self.set(heap_index(0, 0), own);
        for (index, node) in nodes {
            self.set(index, &node);
        }
    }

    /// Takes over what a partial treelet knows, and as of which commit.
    pub fn begin_with(&mut self, partial: &PartialTreelet) {
        self.forget();
        self.as_of = partial.as_of;
        for index in 0..=heap_index(LEVELS, u8::MAX >> (8 - LEVELS)) {
            if let Some(node) = partial.known().node(index) {
                self.set(index, node);
            }
        }
    }

    fn set(&mut self, index: u8, node: &Node) {
        self.nodes[usize::from(index)] = *node;
        self.known |= 1 << index;
        self.internal = self.internal & !(1 << index) | u64::from(is_internal(node)) << index;
    }
}

/// The part of a treelet that one key needs: all that is known some levels down, and below that
/// what is on the way to the key's bucket and beside it. It takes a third of a treelet's memory.
#[derive(Debug)]
pub struct PartialTreelet {
    as_of: u64,
    known: u64,
    internal: u64,
    /// The known ones, in order, at the front.
    nodes: Box<[Node; PARTIAL]>,
}

/// Levels of which a partial treelet has all nodes.
const WHOLE: u8 = 3;
/// Positions of these levels, and below one of the lowest of them.
const PARTIAL: usize = (1 << (WHOLE + 1)) - 1 + (1 << (LEVELS - WHOLE + 1)) - 2;

impl PartialTreelet {
    /// Bytes of its nodes.
    pub const BYTES: usize = PARTIAL * size_of::<Node>();

    /// One that knows nothing.
    pub fn empty() -> Self {
        Self { as_of: u64::MAX, known: 0, internal: 0, nodes: Box::new([TERMINATOR; PARTIAL]) }
    }

    /// Knows what a fold of this bucket needs, and nothing else.
    pub fn set(&mut self, treelet: &Treelet, bucket: u8) {
        let mut wanted: u64 = (1 << heap_index(WHOLE + 1, 0)) - 1;
        for level in WHOLE + 1..=LEVELS {
            let below = 1 << (level - WHOLE);
            let first = heap_index(level, bucket >> (LEVELS - WHOLE) << (level - WHOLE));
            wanted |= ((1 << below) - 1) << first;
        }
        let known = treelet.known & wanted;
        let positions = (0..).zip(&treelet.nodes).filter(|(index, _)| known >> index & 1 == 1);
        self.nodes.iter_mut().zip(positions).for_each(|(to, (_, node))| *to = *node);
        (self.as_of, self.known) = (treelet.as_of, known);
        self.internal = known & treelet.internal;
    }

    /// The last commit that changed the page.
    pub fn as_of(&self) -> u64 {
        self.as_of
    }

    /// All that is known.
    #[inline]
    pub fn known(&self) -> Known<'_> {
        Known { positions: self.known, internal: self.internal, nodes: &*self.nodes, packed: true }
    }
}

/// Known nodes of a page, to be read.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    positions: u64,
    internal: u64,
    nodes: &'a [Node],
    /// Does `nodes` have the known ones only?
    packed: bool,
}

impl<'a> Known<'a> {
    /// The positions that are known, as a mask.
    #[inline]
    pub fn positions(&self) -> u64 {
        self.positions
    }

    /// Those with an internal node.
    #[inline]
    pub fn internal(&self) -> u64 {
        self.internal
    }

    /// The nodes of two siblings, by the [`heap_index`] of the left one; of no meaning where they are not known.
    ///
    /// # Panics
    /// When there are no such positions.
    #[inline]
    pub fn pair(&self, left: u8) -> [Node; 2] {
        if self.packed {
            return [left, left + 1].map(|at| self.node(at).copied().unwrap_or_default());
        }
        let left = usize::from(left);
        [self.nodes[left], self.nodes[left + 1]]
    }

    /// The node of the position with this [`heap_index`].
    #[inline]
    pub fn node(&self, index: u8) -> Option<&'a Node> {
        if self.positions >> index & 1 == 0 {
            return None;
        }
        let before = self.positions & ((1 << index) - 1);
        let at = if self.packed { before.count_ones() as usize } else { usize::from(index) };
        Some(&self.nodes[at])
    }

    /// Prefetches the memory that a fold of this bucket reads: the way down to it, and what lies
    /// beside.
    pub fn cpu_prefetch(&self, bucket: u8) {
        if self.packed {
            return cpu_prefetch(self.nodes);
        }
        for level in 1..=LEVELS {
            // Siblings lie side by side, the left one at an odd index.
            let left = (heap_index(level, bucket >> (LEVELS - level)) - 1) | 1;
            cpu_prefetch(&self.nodes[usize::from(left)..=usize::from(left) + 1]);
        }
    }

    /// The node of the position with this [`heap_index`], if all above it are known, too, as internal ones.
    #[inline]
    pub fn below_internal(&self, index: u8) -> Option<&'a Node> {
        (above(index) & !self.internal == 0).then(|| self.node(index)).flatten()
    }

    /// The nodes `levels` levels below the prefix, and for which of them they are known. A node
    /// below a leaf node or terminator counts as unknown.
    pub fn level<const N: usize>(&self, levels: u8) -> ([Node; N], u16) {
        let mut nodes = [TERMINATOR; N];
        let mut known = 0;
        for bits in 0..1u8 << levels {
            if let Some(node) = self.below_internal(heap_index(levels, bits)) {
                nodes[usize::from(bits)] = *node;
                known |= 1 << bits;
            }
        }
        (nodes, known)
    }
}

fn is_internal(node: &Node) -> bool {
    pleach_core::node::kind(node) == pleach_core::NodeKind::Internal
}
