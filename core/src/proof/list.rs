//! Lists of terminals, as they stand in a section: in key order, none below another.
//!
//! A list borrows the section and allocates an index of four bytes a terminal.

use alloc::vec::Vec;

use super::{
    error::{DecodeError, VerifyError},
    reader::ByteReader,
    terminal::{self, Terminal, Terminals, fork},
    walk::{LeafBatch, ProofWalk, ProvenNode},
};
use crate::{
    hasher::Hasher,
    node::{Key, Node, TERMINATOR, ValueHash},
};

/// A terminal of a proof with its node, and its fork with the next one.
pub(super) struct ProofStep {
    pub(super) terminal: Terminal,
    pub(super) node: Node,
    pub(super) fork: Option<u16>,
}

/// Terminals in which every record has been checked.
#[derive(Clone, Debug)]
pub(super) struct TerminalList<'a> {
    records: &'a [u8],
    /// Offset of each terminal.
    index: Vec<u32>,
    /// Leaves among them.
    leaves: usize,
    /// Siblings between them and the root.
    siblings: u64,
}

impl<'a> TerminalList<'a> {
    /// Checks the form, order and disjointness of `count` terminals at the front of `bytes`.
    /// Returns what stands behind them, too.
    pub(super) fn read(count: u32, bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let count = usize::try_from(count).map_err(|_| DecodeError::Length)?;
        // No memory is reserved for a claimed count before the section is known to have room for it.
        if count > bytes.len() / terminal::MIN_LEN {
            return Err(DecodeError::Length);
        }
        let mut index = Vec::new();
        index.reserve_exact(count);
        let mut reader = ByteReader::new(bytes);
        let mut last: Option<Terminal> = None;
        let (mut leaves, mut siblings) = (0usize, 0u64);
        for _ in 0..count {
            let offset = bytes.len().saturating_sub(reader.left());
            index.push(u32::try_from(offset).map_err(|_| DecodeError::Length)?);
            let terminal = Terminal::read(&mut reader)?;
            siblings = match &last {
                None => u64::from(terminal.depth()),
                Some(last) => {
                    let fork = fork(last, &terminal).ok_or(DecodeError::TerminalOrder)?;
                    // Below the fork the new path has its own siblings, and the two nodes right below it are each
                    // other's.
                    let below = u64::from(terminal.depth()).saturating_sub(u64::from(fork));
                    siblings.saturating_add(below).saturating_sub(2)
                }
            };
            if matches!(terminal, Terminal::Leaf { .. }) {
                leaves = leaves.saturating_add(1);
            }
            last = Some(terminal);
        }
        let rest = reader.bytes(reader.left())?;
        let records = bytes.get(..bytes.len().saturating_sub(rest.len())).unwrap_or_default();
        Ok((Self { records, index, leaves, siblings }, rest))
    }

    pub(super) fn iter(&self) -> Terminals<'a> {
        Terminals(ByteReader::new(self.records))
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Leaves among the terminals.
    pub(super) fn leaf_count(&self) -> usize {
        self.leaves
    }

    /// Siblings that lead from these terminals to the root.
    pub(super) fn siblings(&self) -> u64 {
        self.siblings
    }

    /// How often two subtries are combined: once for each sibling, and once for each fork between
    /// neighbouring terminals.
    pub(super) fn joins(&self) -> u64 {
        let forks = u64::try_from(self.index.len()).unwrap_or(u64::MAX).saturating_sub(1);
        self.siblings.saturating_add(forks)
    }

    /// Hashes from the terminals up to the root.
    pub(super) fn hashes(&self) -> u64 {
        u64::try_from(self.leaves).unwrap_or(u64::MAX).saturating_add(self.joins())
    }

    /// The terminal that covers `key`.
    pub(super) fn find(&self, key: &Key) -> Option<Terminal> {
        let after = self.index.partition_point(|offset| {
            self.at(*offset).is_some_and(|t| t.prefix().first_key() <= key)
        });
        let offset = self.index.get(after.checked_sub(1)?)?;
        self.at(*offset).filter(|terminal| terminal.covers(key))
    }

    pub(super) fn first(&self) -> Option<Terminal> {
        self.at(*self.index.first()?)
    }

    pub(super) fn last(&self) -> Option<Terminal> {
        self.at(*self.index.last()?)
    }

    fn at(&self, offset: u32) -> Option<Terminal> {
        let bytes = self.records.get(usize::try_from(offset).ok()?..)?;
        Terminal::read(&mut ByteReader::new(bytes)).ok()
    }

    /// Keys and value hashes of the leaves, in order.
    pub(super) fn leaves(&self) -> impl Iterator<Item = (Key, ValueHash)> + use<'a> {
        self.iter().filter_map(|terminal| match terminal {
            Terminal::Leaf { key, value_hash, .. } => Some((key, value_hash)),
            Terminal::Terminator { .. } => None,
        })
    }

    /// The bytes of the terminals.
    pub(super) fn records(&self) -> &'a [u8] {
        self.records
    }

    /// The nodes of all leaves, in order.
    pub(super) fn leaf_nodes(&self, hasher: Hasher) -> Vec<(Key, Node)> {
        let mut leaves = LeafBatch::with_room(self.leaves);
        for (key, value_hash) in self.leaves() {
            leaves.push(key, value_hash);
        }
        leaves.hash(hasher)
    }

    /// Each terminal as a step; `leaves` are the [`leaf_nodes`](Self::leaf_nodes).
    pub(super) fn steps<'l>(
        &self,
        leaves: &'l [(Key, Node)],
    ) -> impl Iterator<Item = ProofStep> + use<'a, 'l> {
        let mut leaves = leaves.iter();
        self.iter().with_forks().map(move |(terminal, fork)| {
            let node = match terminal {
                Terminal::Leaf { .. } => leaves.next().map_or(TERMINATOR, |(_, node)| *node),
                Terminal::Terminator { .. } => TERMINATOR,
            };
            ProofStep { terminal, node, fork }
        })
    }

    /// Checks that the terminals and these siblings lead to `root`. A list without terminals leads to any root.
    pub(super) fn check_root(
        &self,
        hasher: Hasher,
        siblings: &[Node],
        leaves: &[(Key, Node)],
        root: &Node,
    ) -> Result<(), VerifyError> {
        let mut walk = ProofWalk::new(hasher, siblings);
        let mut found = None;
        for ProofStep { terminal, node, fork } in self.steps(leaves) {
            found = walk.push(ProvenNode(node), terminal.bits(), terminal.depth(), fork)?;
        }
        let leads = found.map_or(self.index.is_empty(), |found| found.0 == *root);
        if leads { Ok(()) } else { Err(VerifyError::RootMismatch) }
    }
}
