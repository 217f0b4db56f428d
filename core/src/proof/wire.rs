//! The wire encoding that all proofs share: a header and three sections.
//!
//! ```text
//! offset  size
//! 0       4      magic "PLPF"
//! 4       1      version, 1
//! 5       1      kind: 1 path, 2 multiproof, 3 witness (4 is reserved for range proofs)
//! 6       1      hasher id
//! 7       1      zero
//! 8       4      number of terminals
//! 12      4      number of operations (witness only, else zero)
//! 16      4      number of siblings
//! 20      4      bytes of all terminals
//! 24      4      bytes of all operations
//! 28      4      zero
//! 32      ..     terminals | operations | siblings, 32 bytes each, and nothing after them
//! ```
//!
//! Integers are little-endian. `Parts::parse` checks everything that needs no hashing; what it
//! returns borrows the input and allocates only an index of four bytes a terminal.
//!
//! ```
//! use pleach_core::Blake3;
//! use pleach_core::proof::{Kind, wire};
//!
//! let sizes = wire::Sizes { terminals: 1, terminal_bytes: 66, siblings: 20, ..Default::default() };
//! assert_eq!(sizes.total(), Some(32 + 66 + 20 * 32));
//! assert_eq!(&wire::header::<Blake3>(Kind::Path, &sizes)[..4], b"PLPF");
//! ```

use alloc::vec::Vec;

use super::{
    error::{DecodeError, EncodeError},
    op::{self, Op, RawOp},
    reader::Reader,
    terminal::{self, Terminal},
};
use crate::{
    hasher::Hasher,
    node::{Key, Node},
    prefix,
};

const MAGIC: [u8; 4] = *b"PLPF";
const VERSION: u8 = 1;

/// Bytes before the first terminal.
pub const HEADER_LEN: usize = 32;

/// What an encoding holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// One terminal and its siblings, from depth 1 downwards.
    Path = 1,
    /// Any number of terminals and the siblings between them.
    Multi = 2,
    /// A multiproof and the operations of a batch.
    Witness = 3,
}

/// Counts and lengths of the three sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of terminals.
    pub terminals: u32,
    /// Number of operations.
    pub ops: u32,
    /// Number of siblings.
    pub siblings: u32,
    /// Bytes of all terminals.
    pub terminal_bytes: u32,
    /// Bytes of all operations.
    pub op_bytes: u32,
}

impl Sizes {
    /// Bytes of the whole encoding; `None` when no address space has room for it.
    pub fn total(&self) -> Option<usize> {
        let siblings = usize::try_from(self.siblings).ok()?.checked_mul(32)?;
        HEADER_LEN
            .checked_add(usize::try_from(self.terminal_bytes).ok()?)?
            .checked_add(usize::try_from(self.op_bytes).ok()?)?
            .checked_add(siblings)
    }
}

/// The header of an encoding with sections of these sizes.
pub fn header<H: Hasher>(kind: Kind, sizes: &Sizes) -> [u8; HEADER_LEN] {
    let fields = [
        u32::from_le_bytes(MAGIC),
        u32::from_le_bytes([VERSION, kind as u8, H::ID, 0]),
        sizes.terminals,
        sizes.ops,
        sizes.siblings,
        sizes.terminal_bytes,
        sizes.op_bytes,
        0,
    ];
    let mut header = [0; HEADER_LEN];
    for (bytes, field) in header.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
        *bytes = field.to_le_bytes();
    }
    header
}

/// A well-formed encoding, borrowed: sections in which every record has been checked.
#[derive(Clone, Debug)]
pub(super) struct Parts<'a> {
    terminals: &'a [u8],
    ops: &'a [u8],
    siblings: &'a [Node],
    /// Offset of each terminal in its section.
    index: Vec<u32>,
    sizes: Sizes,
    /// Leaves among the terminals.
    leaves: usize,
    /// Puts among the operations.
    puts: usize,
}

impl<'a> Parts<'a> {
    /// Checks all that can be checked without hashing.
    pub(super) fn parse<H: Hasher>(kind: Kind, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let sizes = read_header::<H>(kind, &mut reader)?;
        if sizes.total() != Some(bytes.len()) {
            return Err(DecodeError::Length);
        }
        // The total fits, so each part does.
        let len = |len: u32| usize::try_from(len).map_err(|_| DecodeError::Length);
        let terminals = reader.bytes(len(sizes.terminal_bytes)?)?;
        let ops = reader.bytes(len(sizes.op_bytes)?)?;
        let siblings = Node::slice_of(reader.bytes(reader.left())?.as_chunks().0);
        let mut parts =
            Self { terminals, ops, siblings, index: Vec::new(), sizes, leaves: 0, puts: 0 };
        parts.check_terminals()?;
        parts.check_ops()?;
        Ok(parts)
    }

    pub(super) fn siblings(&self) -> &'a [Node] {
        self.siblings
    }

    pub(super) fn terminals(&self) -> Terminals<'a> {
        Terminals(Reader::new(self.terminals))
    }

    pub(super) fn terminal_count(&self) -> usize {
        self.index.len()
    }

    pub(super) fn ops(&self) -> Ops<'a> {
        Ops { records: Reader::new(self.ops), terminals: self.terminals(), terminal: None }
    }

    pub(super) fn op_count(&self) -> usize {
        usize::try_from(self.sizes.ops).unwrap_or(usize::MAX)
    }

    pub(super) fn leaf_count(&self) -> usize {
        self.leaves
    }

    pub(super) fn puts(&self) -> usize {
        self.puts
    }

    /// How often two subtries are combined: once for each sibling, and once for each fork between
    /// neighbouring terminals.
    pub(super) fn joins(&self) -> u64 {
        let forks = u64::from(self.sizes.terminals).saturating_sub(1);
        u64::from(self.sizes.siblings).saturating_add(forks)
    }

    /// Hashes from the terminals up to the root.
    pub(super) fn hashes(&self) -> u64 {
        u64::try_from(self.leaves).unwrap_or(u64::MAX).saturating_add(self.joins())
    }

    /// The terminal that covers `key`.
    pub(super) fn find(&self, key: &Key) -> Option<Terminal> {
        let after = self.index.partition_point(|offset| {
            self.terminal_at(*offset).is_some_and(|t| t.prefix().first_key() <= key)
        });
        let offset = self.index.get(after.checked_sub(1)?)?;
        self.terminal_at(*offset).filter(|terminal| terminal.covers(key))
    }

    fn terminal_at(&self, offset: u32) -> Option<Terminal> {
        let bytes = self.terminals.get(usize::try_from(offset).ok()?..)?;
        Terminal::read(&mut Reader::new(bytes)).ok()
    }

    /// Order, disjointness and the number of siblings.
    fn check_terminals(&mut self) -> Result<(), DecodeError> {
        let count = usize::try_from(self.sizes.terminals).map_err(|_| DecodeError::Length)?;
        // No memory is reserved for a claimed count before the section is known to have room for it.
        if count > self.terminals.len() / terminal::MIN_LEN {
            return Err(DecodeError::Length);
        }
        self.index.reserve_exact(count);
        let mut reader = Reader::new(self.terminals);
        let mut last: Option<Terminal> = None;
        let mut needed = 0u64;
        for _ in 0..count {
            let offset = self.terminals.len().saturating_sub(reader.left());
            self.index.push(u32::try_from(offset).map_err(|_| DecodeError::Length)?);
            let terminal = Terminal::read(&mut reader)?;
            needed = match &last {
                None => u64::from(terminal.depth()),
                Some(last) => {
                    let fork = fork(last, &terminal).ok_or(DecodeError::TerminalOrder)?;
                    // Below the fork the new path brings its own siblings, and the two nodes
                    // right below it are each other's.
                    let below = u64::from(terminal.depth()).saturating_sub(u64::from(fork));
                    needed.saturating_add(below).saturating_sub(2)
                }
            };
            if matches!(terminal, Terminal::Leaf { .. }) {
                self.leaves = self.leaves.saturating_add(1);
            }
            last = Some(terminal);
        }
        if !reader.is_empty() {
            return Err(DecodeError::Length);
        }
        if needed != u64::from(self.sizes.siblings) {
            return Err(DecodeError::SiblingCount { expected: needed, found: self.sizes.siblings });
        }
        Ok(())
    }

    /// Order, scope and form; each terminal is used.
    fn check_ops(&mut self) -> Result<(), DecodeError> {
        let mut ops = self.ops();
        let mut last: Option<Key> = None;
        for _ in 0..self.sizes.ops {
            let (op, _) = ops.read()?;
            if last.is_some_and(|last| last >= op.key) {
                return Err(DecodeError::OpOrder);
            }
            last = Some(op.key);
            if matches!(op.access.written(), Some(Some(_))) {
                self.puts = self.puts.saturating_add(1);
            }
        }
        if !ops.records.is_empty() {
            return Err(DecodeError::Length);
        }
        // Without operations the section is empty, as in a path or multiproof.
        if self.sizes.ops > 0 && !ops.terminals.0.is_empty() {
            return Err(DecodeError::UnusedTerminal);
        }
        Ok(())
    }
}

fn read_header<H: Hasher>(kind: Kind, reader: &mut Reader<'_>) -> Result<Sizes, DecodeError> {
    if reader.array()? != MAGIC {
        return Err(DecodeError::Magic);
    }
    let version = reader.u8()?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let found = reader.u8()?;
    if found != kind as u8 {
        return Err(DecodeError::Kind { expected: kind as u8, found });
    }
    let found = reader.u8()?;
    if found != H::ID {
        return Err(DecodeError::HasherId { expected: H::ID, found });
    }
    let reserved = reader.u8()?;
    let sizes = Sizes {
        terminals: reader.u32()?,
        ops: reader.u32()?,
        siblings: reader.u32()?,
        terminal_bytes: reader.u32()?,
        op_bytes: reader.u32()?,
    };
    if reserved != 0 || reader.u32()? != 0 {
        return Err(DecodeError::Reserved);
    }
    let counts_fit = match kind {
        Kind::Path => sizes.terminals == 1 && sizes.ops == 0,
        Kind::Multi => sizes.ops == 0,
        // An empty batch has no terminals, any other has operations for each of them.
        Kind::Witness => (sizes.terminals == 0) == (sizes.ops == 0),
    };
    if counts_fit { Ok(sizes) } else { Err(DecodeError::Count) }
}

/// Depth at which the paths to two terminals part; `None` unless `left` lies wholly to the left.
pub(super) fn fork(left: &Terminal, right: &Terminal) -> Option<u16> {
    let fork = prefix::common_len(left.bits(), right.bits());
    let apart = fork < left.depth() && fork < right.depth();
    (apart && left.bits() < right.bits()).then_some(fork)
}

/// The terminals of a checked section.
#[derive(Clone)]
pub(super) struct Terminals<'a>(Reader<'a>);

impl Iterator for Terminals<'_> {
    type Item = Terminal;

    fn next(&mut self) -> Option<Terminal> {
        if self.0.is_empty() { None } else { Terminal::read(&mut self.0).ok() }
    }
}

/// The operations, each with its terminal.
pub(super) struct Ops<'a> {
    records: Reader<'a>,
    terminals: Terminals<'a>,
    terminal: Option<Terminal>,
}

impl Ops<'_> {
    /// The next operation, checked against its terminal.
    fn read(&mut self) -> Result<(Op, Terminal), DecodeError> {
        let RawOp { first, key, access } = RawOp::read(&mut self.records)?;
        if first {
            self.terminal = Some(self.terminals.next().ok_or(DecodeError::OpOutOfScope)?);
        }
        let terminal = self.terminal.ok_or(DecodeError::OpOutOfScope)?;
        let key = match (key, &terminal) {
            (Some(key), terminal) if terminal.value_of(&key).is_none() => key,
            (None, Terminal::Leaf { key, .. }) => *key,
            _ => return Err(DecodeError::OpKeyForm),
        };
        if !terminal.covers(&key) {
            return Err(DecodeError::OpOutOfScope);
        }
        Ok((Op { key, access }, terminal))
    }
}

impl Iterator for Ops<'_> {
    type Item = (Op, Terminal);

    fn next(&mut self) -> Option<(Op, Terminal)> {
        if self.records.is_empty() { None } else { self.read().ok() }
    }
}

/// Puts a header before sections that were encoded one by one.
pub(super) fn assemble<H: Hasher>(
    kind: Kind,
    sizes: &Sizes,
    sections: [&[u8]; 3],
) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(sizes.total().ok_or(EncodeError::TooLarge)?);
    bytes.extend_from_slice(&header::<H>(kind, sizes));
    for section in sections {
        bytes.extend_from_slice(section);
    }
    Ok(bytes)
}

/// A count or length of the header.
pub(super) fn count(value: usize) -> Result<u32, EncodeError> {
    u32::try_from(value).map_err(|_| EncodeError::TooLarge)
}

const _: () = assert!(op::MIN_LEN == 1 && terminal::MIN_LEN == 2);
