//! What a finish gives beside the root: operations are encoded here, and the multiproof is collected. Fragments
//! that lower folds have emitted are copied where the fold above them asks for them, so that the whole is in order.

use std::ops::Range;

use pleach_beatree::leaf_fold::{AccessResult, KeyAccess};
use pleach_core::fold::Sink;
use pleach_core::fold::treelets::ProofPart;
use pleach_core::proof::op::op_encode_placed;
use pleach_core::proof::terminal::terminal_encode;
use pleach_core::proof::{Access, Op, Terminal};
use pleach_core::{Key, Node, Prefix, ValueHash};

/// What a finish gives beside the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gives {
    /// Nothing: what the multiproof is made of is compared with the root before, and dropped.
    Root,
    /// The witness of the batch.
    Witness,
    /// The multiproof of the keys, which are only read.
    Multiproof,
    /// The path proof of the key, which is the only one and only read.
    Path,
}

impl Gives {
    /// Are operations encoded? Terminals and siblings always are: the root before the batch is computed from them.
    pub(super) fn has_ops(self) -> bool {
        self == Self::Witness
    }

    /// Is it a proof of a state, after which no commit comes?
    pub(super) fn is_proof(self) -> bool {
        matches!(self, Self::Multiproof | Self::Path)
    }
}

/// What one fold emitted: ranges of its collector's buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fragment {
    terminals: Range<usize>,
    count: u32,
    siblings: Range<usize>,
}

impl Fragment {
    /// What was emitted to these ranges.
    pub(crate) fn new(terminals: Range<usize>, count: u32, siblings: Range<usize>) -> Self {
        Self { terminals, count, siblings }
    }

    /// What a treelet emitted.
    pub(crate) fn of_treelet(part: ProofPart) -> Self {
        let ProofPart { terminals, count, siblings } = part;
        Self { terminals, count, siblings }
    }

    /// Number of terminals.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Its terminals, in the buffer that it was emitted to.
    pub(crate) fn terminals<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        &buffer[self.terminals.clone()]
    }

    /// Its siblings, in the buffer that it was emitted to.
    pub(crate) fn siblings<'a>(&self, buffer: &'a [Node]) -> &'a [Node] {
        &buffer[self.siblings.clone()]
    }
}

/// Appends to its buffers; fragments are copied from the buffers of the level below.
pub(crate) struct Emit<'a> {
    terminals: &'a mut Vec<u8>,
    siblings: &'a mut Vec<Node>,
    fragments: &'a [Fragment],
    from_terminals: &'a [u8],
    from_siblings: &'a [Node],
    own: Fragment,
}

impl<'a> Emit<'a> {
    pub(crate) fn new(
        terminals: &'a mut Vec<u8>,
        siblings: &'a mut Vec<Node>,
        fragments: &'a [Fragment],
        from_terminals: &'a [u8],
        from_siblings: &'a [Node],
    ) -> Self {
        let own = Fragment {
            terminals: terminals.len()..terminals.len(),
            count: 0,
            siblings: siblings.len()..siblings.len(),
        };
        Self { terminals, siblings, fragments, from_terminals, from_siblings, own }
    }

    /// What was emitted since the start.
    pub(crate) fn done(mut self) -> Fragment {
        self.own.terminals.end = self.terminals.len();
        self.own.siblings.end = self.siblings.len();
        self.own
    }

    /// Appends what a fold below has emitted to these buffers.
    pub(crate) fn copy(&mut self, fragment: &Fragment, terminals: &[u8], siblings: &[Node]) {
        self.terminals.extend_from_slice(fragment.terminals(terminals));
        self.siblings.extend_from_slice(fragment.siblings(siblings));
        self.own.count += fragment.count;
    }
}

impl Sink for Emit<'_> {
    fn leaf(&mut self, key: &Key, value_hash: &ValueHash, depth: u16) {
        terminal_encode(
            self.terminals,
            &Terminal::Leaf { key: *key, value_hash: *value_hash, depth },
        );
        self.own.count += 1;
    }

    fn terminator(&mut self, key: &Key, depth: u16) {
        terminal_encode(self.terminals, &Terminal::Terminator { prefix: Prefix::new(key, depth) });
        self.own.count += 1;
    }

    fn sibling(&mut self, node: &Node) {
        self.siblings.push(*node);
    }

    fn fragment(&mut self, number: u32) {
        let (terminals, siblings) = (self.from_terminals, self.from_siblings);
        self.copy(&self.fragments[number as usize], terminals, siblings);
    }
}

/// Encodes one operation: what was found and the hash of what was put; is it the first below its terminal?
pub(super) fn encode_op(
    access: &KeyAccess,
    (found, put): (&AccessResult, Option<ValueHash>),
    first: bool,
    ops: &mut Vec<u8>,
) {
    let kind = match (access.reads, access.writes.is_some()) {
        (_, false) => Access::Read,
        (false, true) => Access::Write(put),
        (true, true) => Access::ReadWrite(put),
    };
    let op = Op { key: access.key, access: kind };
    op_encode_placed(ops, &op, found.prior.is_present(), first);
}
