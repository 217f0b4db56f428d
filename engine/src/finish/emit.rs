//! The output of a finish beside the root, and the encoding of operations.

use std::ops::Range;

use pleach_beatree::leaf_fold::KeyAccess;
use pleach_core::proof::wire::op_encode_placed;
use pleach_core::proof::{Access, Op};
use pleach_core::{Node, ValueHash};

/// The output of a finish beside the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishOutput {
    /// None: the parts of the multiproof are compared with the root before, and discarded.
    RootOnly,
    /// The witness of the batch.
    Witness,
    /// The multiproof of keys that are only read.
    Multiproof,
    /// The path proof of one key that is only read.
    Path,
}

impl FinishOutput {
    /// True when operations are encoded. Terminals and siblings always are, for the root before the batch.
    pub(super) fn has_ops(self) -> bool {
        self == Self::Witness
    }

    /// True for a proof of a state, after which no commit comes.
    pub(super) fn is_proof(self) -> bool {
        matches!(self, Self::Multiproof | Self::Path)
    }
}

/// What the fold of a region emitted: ranges of its chunk's lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fragment {
    pub(super) terminals: Range<usize>,
    /// Number of terminals.
    pub(super) count: u32,
    pub(super) siblings: Range<usize>,
}

impl Fragment {
    /// The fragment's terminals, in the buffer that it was emitted to.
    pub(crate) fn terminals<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        &buffer[self.terminals.clone()]
    }

    /// The fragment's siblings, in the buffer that it was emitted to.
    pub(crate) fn siblings<'a>(&self, buffer: &'a [Node]) -> &'a [Node] {
        &buffer[self.siblings.clone()]
    }
}

/// Encodes one operation: whether a value was found, and the hash of the value put; `first` marks the first below its
/// terminal.
pub(super) fn encode_op(
    access: &KeyAccess,
    found: bool,
    put: Option<ValueHash>,
    first: bool,
    ops: &mut Vec<u8>,
) {
    let kind = match (access.reads, access.writes.is_some()) {
        (_, false) => Access::Read,
        (false, true) => Access::Write(put),
        (true, true) => Access::ReadWrite(put),
    };
    let op = Op { key: access.key, access: kind };
    op_encode_placed(ops, &op, found, first);
}
