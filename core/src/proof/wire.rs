//! The wire encoding that all proofs share: a header and three sections.
//!
//! ```text
//! offset  size
//! 0       4      magic "PLPF"
//! 4       1      version, 1
//! 5       1      kind: 1 path, 2 multiproof, 3 witness, 4 range, 5 change;
//!                6 namespace, 7 namespace change, 8 block: these hold proofs (`frame`)
//! 6       1      hasher id
//! 7       1      zero
//! 8       4      number of terminals
//! 12      4      number of operations (witness; change: of terminals after; else zero)
//! 16      4      number of siblings
//! 20      4      bytes of all terminals
//! 24      4      bytes of all operations (change: of the terminals after and the flags)
//! 28      4      zero
//! 32      ..     terminals | operations | siblings, 32 bytes each, and nothing after them
//! ```
//!
//! Integers are little-endian. `ParsedProof::parse` checks everything that needs no hashing; what it
//! returns borrows the input and allocates only an index of four bytes a terminal.
//!
//! Public for the engine, which makes the parts of a proof apart, and for tests.

use alloc::vec::Vec;

use super::{
    error::{DecodeError, EncodeError},
    list::TerminalList,
    op::{self, Op, RawOp},
    reader::ByteReader,
    terminal::{self, Terminal, Terminals},
};
use crate::{
    hasher::Hasher,
    node::{Key, Node},
};

pub use super::op::{op_encode, op_encode_placed, op_not_first};
pub use super::terminal::{terminal_encode, terminals};

const MAGIC: [u8; 4] = *b"PLPF";
const VERSION: u8 = 1;

/// Bytes before the first terminal.
pub const HEADER_LEN: usize = 32;

/// What an encoding holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProofKind {
    /// One terminal and its siblings, from depth 1 downwards.
    Path = 1,
    /// Any number of terminals and the siblings between them.
    Multi = 2,
    /// A multiproof and the operations of a batch.
    Witness = 3,
    /// The terminals of all keys of a range, and the siblings outside it.
    Range = 4,
    /// The terminals of what changed in a range, before and after, and the siblings between them.
    Change = 5,
    /// A path in the trie of roots, and a proof in one namespace.
    Namespace = 6,
    /// A change proof in the trie of roots, and one in one namespace.
    NamespaceChange = 7,
    /// A witness in the trie of roots, and one in each namespace that the block read or changed.
    Block = 8,
}

/// Counts and lengths of the three sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionSizes {
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

impl SectionSizes {
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
pub fn header(hasher: Hasher, kind: ProofKind, sizes: &SectionSizes) -> [u8; HEADER_LEN] {
    let fields = [
        u32::from_le_bytes(MAGIC),
        u32::from_le_bytes([VERSION, kind as u8, hasher.id(), 0]),
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
pub(super) struct ParsedProof<'a> {
    pub(super) hasher: Hasher,
    terminals: TerminalList<'a>,
    ops: &'a [u8],
    siblings: &'a [Node],
    op_count: u32,
    /// Puts among the operations.
    puts: usize,
}

impl<'a> ParsedProof<'a> {
    /// Checks all that can be checked without hashing.
    pub(super) fn parse(
        hasher: Hasher,
        kind: ProofKind,
        bytes: &'a [u8],
    ) -> Result<Self, DecodeError> {
        let (sizes, Sections { terminals, ops, siblings }) = Sections::cut(hasher, kind, bytes)?;
        let siblings = Node::slice_of(siblings.as_chunks().0);
        let (terminals, rest) = TerminalList::read(sizes.terminals, terminals)?;
        if !rest.is_empty() {
            return Err(DecodeError::Length);
        }
        let (expected, found) = (terminals.siblings(), sizes.siblings);
        if expected != u64::from(found) {
            return Err(DecodeError::SiblingCount { expected, found });
        }
        let mut parts = Self { hasher, terminals, ops, siblings, op_count: sizes.ops, puts: 0 };
        parts.check_ops()?;
        Ok(parts)
    }

    pub(super) fn siblings(&self) -> &'a [Node] {
        self.siblings
    }

    pub(super) fn terminals(&self) -> &TerminalList<'a> {
        &self.terminals
    }

    pub(super) fn ops(&self) -> Ops<'a> {
        Ops { records: ByteReader::new(self.ops), terminals: self.terminals.iter(), terminal: None }
    }

    pub(super) fn op_count(&self) -> usize {
        usize::try_from(self.op_count).unwrap_or(usize::MAX)
    }

    pub(super) fn puts(&self) -> usize {
        self.puts
    }

    /// Order, scope and form; each terminal is used.
    fn check_ops(&mut self) -> Result<(), DecodeError> {
        let mut ops = self.ops();
        let mut last: Option<Key> = None;
        for _ in 0..self.op_count {
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
        if self.op_count > 0 && !ops.terminals.is_empty() {
            return Err(DecodeError::UnusedTerminal);
        }
        Ok(())
    }
}

/// The sections of an encoding, which follow each other as the fields do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sections<T> {
    /// The terminals, in key order.
    pub terminals: T,
    /// The operations, in key order (change: the terminals after, and the flags).
    pub ops: T,
    /// The siblings, in the order of the kind.
    pub siblings: T,
}

impl<T> Sections<T> {
    /// The sections in the order of their bytes.
    pub fn in_order(self) -> [T; 3] {
        [self.terminals, self.ops, self.siblings]
    }
}

impl<'a> Sections<&'a [u8]> {
    /// Cuts an encoding, of which the header alone is checked.
    pub(super) fn cut(
        hasher: Hasher,
        kind: ProofKind,
        bytes: &'a [u8],
    ) -> Result<(SectionSizes, Self), DecodeError> {
        let mut reader = ByteReader::new(bytes);
        let (_, sizes) = read_header(hasher, &[kind], &mut reader)?;
        if sizes.total() != Some(bytes.len()) {
            return Err(DecodeError::Length);
        }
        // The total fits, so each part does.
        let len = |len: u32| usize::try_from(len).map_err(|_| DecodeError::Length);
        let terminals = reader.bytes(len(sizes.terminal_bytes)?)?;
        let ops = reader.bytes(len(sizes.op_bytes)?)?;
        let siblings = reader.bytes(reader.left())?;
        Ok((sizes, Self { terminals, ops, siblings }))
    }
}

/// A header of one of these kinds, at least one.
pub(super) fn read_header(
    hasher: Hasher,
    kinds: &[ProofKind],
    reader: &mut ByteReader<'_>,
) -> Result<(ProofKind, SectionSizes), DecodeError> {
    if reader.array()? != MAGIC {
        return Err(DecodeError::Magic);
    }
    let version = reader.u8()?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let found = reader.u8()?;
    let Some(kind) = kinds.iter().copied().find(|kind| *kind as u8 == found) else {
        let expected = kinds.first().map_or(0, |kind| *kind as u8);
        return Err(DecodeError::Kind { expected, found });
    };
    let found = reader.u8()?;
    if found != hasher.id() {
        return Err(DecodeError::HasherId { expected: hasher.id(), found });
    }
    let reserved = reader.u8()?;
    let sizes = SectionSizes {
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
        ProofKind::Path => sizes.terminals == 1 && sizes.ops == 0,
        ProofKind::Multi => sizes.ops == 0,
        ProofKind::Range => sizes.terminals > 0 && sizes.ops == 0,
        ProofKind::Change => sizes.terminals > 0 && sizes.ops > 0,
        // An empty batch has no terminals, any other has operations for each of them.
        ProofKind::Witness => (sizes.terminals == 0) == (sizes.ops == 0),
        ProofKind::Namespace | ProofKind::NamespaceChange | ProofKind::Block => {
            // In the place of a number of operations: the namespace.
            let most = if kind == ProofKind::Block { 0 } else { u32::from(u8::MAX) };
            sizes.terminals == 0 && sizes.siblings == 0 && sizes.ops <= most
        }
    };
    if counts_fit { Ok((kind, sizes)) } else { Err(DecodeError::Count) }
}

/// The operations, each with its terminal.
pub(super) struct Ops<'a> {
    records: ByteReader<'a>,
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
pub(super) fn assemble(
    hasher: Hasher,
    kind: ProofKind,
    sizes: &SectionSizes,
    sections: Sections<&[u8]>,
) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(sizes.total().ok_or(EncodeError::TooLarge)?);
    bytes.extend_from_slice(&header(hasher, kind, sizes));
    for section in sections.in_order() {
        bytes.extend_from_slice(section);
    }
    Ok(bytes)
}

/// The same without operations: so many encoded terminals, and siblings.
pub(super) fn assemble_terminals(
    hasher: Hasher,
    kind: ProofKind,
    terminals: usize,
    terminal_bytes: &[u8],
    siblings: &[Node],
) -> Result<Vec<u8>, EncodeError> {
    let sizes = SectionSizes {
        terminals: count(terminals)?,
        terminal_bytes: count(terminal_bytes.len())?,
        siblings: count(siblings.len())?,
        ..SectionSizes::default()
    };
    let siblings = Node::bytes_of(siblings);
    assemble(hasher, kind, &sizes, Sections { terminals: terminal_bytes, ops: &[], siblings })
}

/// A count or length of the header.
pub(super) fn count(value: usize) -> Result<u32, EncodeError> {
    u32::try_from(value).map_err(|_| EncodeError::TooLarge)
}

const _: () = assert!(op::MIN_LEN == 1 && terminal::MIN_LEN == 2);
