//! Proofs through the root over all: one proof in the trie of roots, and proofs in namespaces.
//!
//! ```text
//! offset  size
//! 0       8      as any proof (wire): magic, version, kind, hasher id, zero
//! 8       4      zero
//! 12      4      namespace (namespace, namespace change), else zero
//! 16      4      zero
//! 20      4      bytes of the outer proof
//! 24      4      bytes of all inner proofs
//! 28      4      zero
//! 32      ..     outer proof | inner proofs, and nothing after them
//! ```
//!
//! Outer and inner proofs are whole encodings, and each says how long it is.

use alloc::vec::Vec;

use super::{
    error::{DecodeError, EncodeError},
    reader::ByteReader,
    wire::{self, ProofKind, SectionSizes, Sections},
};
use crate::hasher::Hasher;

/// An encoding cut into its outer proof and what follows it.
pub(super) struct Frame<'a> {
    pub(super) ns: u8,
    pub(super) outer: &'a [u8],
    pub(super) inner: InnerProofs<'a>,
}

impl<'a> Frame<'a> {
    pub(super) fn cut(
        hasher: Hasher,
        kind: ProofKind,
        bytes: &'a [u8],
    ) -> Result<Self, DecodeError> {
        let mut reader = ByteReader::new(bytes);
        let (_, sizes) = wire::read_header(hasher, &[kind], &mut reader)?;
        if sizes.total() != Some(bytes.len()) {
            return Err(DecodeError::Length);
        }
        let ns = u8::try_from(sizes.ops).map_err(|_| DecodeError::Count)?;
        let outer = usize::try_from(sizes.terminal_bytes).map_err(|_| DecodeError::Length)?;
        let outer = reader.bytes(outer)?;
        Ok(Self { ns, outer, inner: InnerProofs(hasher, reader) })
    }
}

/// Inner proofs that were not taken yet.
pub(super) struct InnerProofs<'a>(Hasher, ByteReader<'a>);

impl<'a> InnerProofs<'a> {
    pub(super) fn of(hasher: Hasher, bytes: &'a [u8]) -> Self {
        Self(hasher, ByteReader::new(bytes))
    }

    /// Takes the next proof, of one of these kinds. Its header is checked, its records are not.
    pub(super) fn take(&mut self, of: &[ProofKind]) -> Result<(ProofKind, &'a [u8]), DecodeError> {
        let mut ahead = self.1;
        let (kind, sizes) = wire::read_header(self.0, of, &mut ahead)?;
        let bytes = self.1.bytes(sizes.total().ok_or(DecodeError::Length)?)?;
        Ok((kind, bytes))
    }

    /// Checks that no byte is left.
    pub(super) fn end(&self) -> Result<(), DecodeError> {
        if self.1.is_empty() { Ok(()) } else { Err(DecodeError::Inner) }
    }

    /// Takes the only proof, of one of these kinds; `None` when there is none.
    pub(super) fn only(
        mut self,
        kinds: &[ProofKind],
    ) -> Result<Option<(ProofKind, &'a [u8])>, DecodeError> {
        if self.1.is_empty() {
            return Ok(None);
        }
        let one = self.take(kinds)?;
        self.end()?;
        Ok(Some(one))
    }
}

/// An outer proof and inner ones in one encoding.
pub(super) fn assemble(
    hasher: Hasher,
    kind: ProofKind,
    ns: u8,
    outer: &[u8],
    inner: &[&[u8]],
) -> Result<Vec<u8>, EncodeError> {
    let inner = inner.concat();
    let sizes = SectionSizes {
        ops: ns.into(),
        terminal_bytes: wire::count(outer.len())?,
        op_bytes: wire::count(inner.len())?,
        ..SectionSizes::default()
    };
    wire::assemble(hasher, kind, &sizes, Sections { terminals: outer, ops: &inner, siblings: &[] })
}
