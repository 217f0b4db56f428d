//! The nodes between a leaf page's prefix and its buckets, with buffered changes applied.
//!
//! A leaf page stores the nodes four levels below its prefix as of its writing. A page that is used again and again has
//! more in memory: the nodes of all positions down to [`TREELET_LEVELS`] levels below the prefix, with every committed change
//! applied. The subtries that begin there are its *buckets*. So a fold expands only the buckets that it accesses, and a
//! flush hashes nothing at all. Nodes become known as folds compute them; unknown ones are expanded from the page.
//!
//! Invariants, for a treelet as of version `as_of` of its page (that of the last commit or overlay that changed it):
//! * a known node is that of the page in this version, with all changes over it;
//! * nodes below a known leaf node or terminator are not read: they may be old;
//! * where its levels do not divide at the bits behind the prefix ([`Columns`]), all keys that the page has with all
//!   changes agree in the bits between. Keys of buffered deletions may not: folds check.
//!
//! ```
//! use pleach_beatree::treelet::Treelet;
//! use pleach_core::Node;
//! use pleach_core::fold::heap_index;
//!
//! let node = |byte| Node::new([byte; 32]);
//! let mut treelet = Treelet::empty();
//! // Commit 5 computed the node of the prefix and that of its left half.
//! let left = heap_index(1, 0);
//! treelet.advance((0, 5), None, &node(1), [(left, node(2))].into_iter());
//! assert_eq!((treelet.as_of(), treelet.known().node(left)), (5, Some(&node(2))));
//! assert_eq!(treelet.known().node(heap_index(1, 1)), None);
//!
//! // Nodes known before a commit that the treelet did not follow are cleared.
//! treelet.advance((6, 7), None, &node(3), std::iter::empty());
//! assert_eq!(treelet.known().node(left), None);
//! ```

use pleach_core::cpu_prefetch;
use pleach_core::fold::{Columns, TREELET_LEVELS, above, heap_index};
use pleach_core::{Key, Node, NodeKind, Prefix, TERMINATOR};

/// Levels below `at` that a fold of its page can capture.
pub fn treelet_levels(at: &Prefix) -> u8 {
    if at.len() + u16::from(TREELET_LEVELS) <= 256 { TREELET_LEVELS } else { 0 }
}

/// Positions: the prefix itself and all down to [`TREELET_LEVELS`] below it.
const POSITIONS: usize = (1 << (TREELET_LEVELS + 1)) - 1;

const _: () = assert!(POSITIONS <= 64, "one bit each in a word");

/// Known nodes of a page; see the module. A fold reads nodes in pairs of siblings: each pair is one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Treelet {
    as_of: u64,
    known: u64,
    /// Mask of the known internal nodes.
    internal: u64,
    /// The bits at which the levels divide, where these are not those behind the prefix.
    columns: Option<Columns>,
    /// The first node is half a line, and the first of a pair begins a line.
    _half: [u8; HALF],
    nodes: [Node; POSITIONS],
}

/// Bytes that fill the first half of a line.
const HALF: usize = size_of::<Node>() - 3 * size_of::<u64>() - size_of::<Option<Columns>>();

impl Treelet {
    /// A treelet without nodes, of no version.
    pub fn empty() -> Self {
        Self {
            as_of: u64::MAX,
            known: 0,
            internal: 0,
            columns: None,
            _half: [0; HALF],
            nodes: [TERMINATOR; POSITIONS],
        }
    }

    /// Clears all nodes.
    pub fn clear(&mut self) {
        (self.as_of, self.known) = (u64::MAX, 0);
    }

    /// The version of the page that the nodes are as of.
    pub fn as_of(&self) -> u64 {
        self.as_of
    }

    /// The bits at which the levels divide, where these are not those behind the prefix.
    pub fn columns(&self) -> Option<Columns> {
        self.columns
    }

    /// All known nodes.
    #[inline]
    pub fn known(&self) -> TreeletNodes<'_> {
        let (positions, internal) = (self.known, self.known & self.internal);
        let columns = self.columns;
        TreeletNodes { positions, internal, columns, nodes: &self.nodes }
    }

    /// Prefetches the memory that a fold of this bucket reads: the path down to it, and its siblings.
    pub fn cpu_prefetch(&self, bucket: u8) {
        for level in 1..=TREELET_LEVELS {
            // Siblings are neighbours, the left one at an odd index.
            let left = (heap_index(level, bucket >> (TREELET_LEVELS - level)) - 1) | 1;
            cpu_prefetch(&self.nodes[usize::from(left)..=usize::from(left) + 1]);
        }
    }

    /// Prefetches the memory of a node that will be written.
    #[inline]
    pub fn cpu_prefetch_node(&self, index: u8) {
        cpu_prefetch(&self.nodes[usize::from(index)..=usize::from(index)]);
    }

    /// Goes from the state before a commit to the state after it: `nodes` are those that the commit's fold computed,
    /// with these columns. A treelet as of another commit than the one before, or with other columns, is cleared first.
    pub fn advance(
        &mut self,
        (before, after): (u64, u64),
        columns: Option<Columns>,
        own: &Node,
        nodes: impl Iterator<Item = (u8, Node)>,
    ) {
        if (self.as_of, self.columns) != (before, columns) {
            self.known = 0;
        }
        (self.as_of, self.columns) = (after, columns);
        self.set(heap_index(0, 0), own);
        for (index, node) in nodes {
            self.set(index, &node);
        }
    }

    fn set(&mut self, index: u8, node: &Node) {
        self.nodes[usize::from(index)] = *node;
        self.known |= 1 << index;
        self.internal = self.internal & !(1 << index) | u64::from(is_internal(node)) << index;
    }
}

/// Known nodes of a page, for reading.
#[derive(Clone, Copy, Debug)]
pub struct TreeletNodes<'a> {
    positions: u64,
    internal: u64,
    columns: Option<Columns>,
    nodes: &'a [Node],
}

impl<'a> TreeletNodes<'a> {
    /// The positions that are known, as a mask.
    #[inline]
    pub fn positions(&self) -> u64 {
        self.positions
    }

    /// The bits at which the levels divide, where these are not those behind the prefix.
    #[inline]
    pub fn columns(&self) -> Option<Columns> {
        self.columns
    }

    /// All nodes by [`heap_index`]; unknown ones have no meaning.
    #[inline]
    pub fn nodes(&self) -> &'a [Node] {
        self.nodes
    }

    /// The node of the position with this [`heap_index`].
    #[inline]
    pub fn node(&self, index: u8) -> Option<&'a Node> {
        if self.positions >> index & 1 == 0 {
            return None;
        }
        Some(&self.nodes[usize::from(index)])
    }

    /// The node of the position with this [`heap_index`], if all above it are known internal nodes. With columns only
    /// the page's own node is where the index says.
    #[inline]
    fn below_internal(&self, index: u8) -> Option<&'a Node> {
        if index > 0 && self.columns.is_some() {
            return None;
        }
        (above(index) & !self.internal == 0).then(|| self.node(index)).flatten()
    }

    /// With columns: the subtries of all keys of the page, as prefix and node, none of which begins above `depth`.
    /// `like` is a key of the page. `None` where not all nodes are known.
    pub fn subtries(&self, like: &Key, depth: u16) -> Option<Vec<(Prefix, Node)>> {
        let columns = self.columns?;
        let lowest = (1..=TREELET_LEVELS).find(|level| columns.level_end(*level) >= depth)?;
        let (mut found, mut todo) = (Vec::new(), vec![(0, 0)]);
        while let Some((level, bits)) = todo.pop() {
            let node = self.node(heap_index(level, bits))?;
            match pleach_core::node::kind(node) {
                NodeKind::Terminator => {}
                _ if level == lowest => found.push((columns.position(like, level, bits), *node)),
                // The leaf's key may be anywhere below.
                NodeKind::Leaf => return None,
                NodeKind::Internal => {
                    todo.extend([(level + 1, bits << 1 | 1), (level + 1, bits << 1)]);
                }
            }
        }
        Some(found)
    }

    /// The nodes `levels` levels below the prefix, and a mask of the known ones. A node below a leaf node or terminator
    /// counts as unknown.
    pub fn nodes_at_level<const N: usize>(&self, levels: u8) -> ([Node; N], u16) {
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
    pleach_core::node::kind(node) == NodeKind::Internal
}
