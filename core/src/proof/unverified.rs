//! What an encoding claims, for conversion and inspection.

use super::{op::Op, terminal::Terminal, wire::ParsedProof};
use crate::node::Node;

/// The contents of an encoding that was checked against **no root**: well-formed, and perhaps
/// false. It answers no queries. Borrows the encoding.
///
/// All checks that need no hashing have been made: form, order and disjointness of the records,
/// their number and that of the siblings, and what else the kind asks for.
///
/// ```
/// use pleach_core::naive::NaiveTrie;
/// use pleach_core::proof::multi;
/// use pleach_core::Hasher;
///
/// let trie = NaiveTrie::from_iter([([1; 32], [10; 32].into()), ([2; 32], [20; 32].into())]);
/// let proof = trie.multi(Hasher::BLAKE3, &[[1; 32]]);
/// let bytes = proof.encode(Hasher::BLAKE3)?;
/// let unverified = multi::decode(Hasher::BLAKE3, &bytes)?;
/// assert!(unverified.terminals().eq(proof.terminals));
/// assert_eq!(unverified.siblings(), proof.siblings);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Unverified<'a> {
    parts: ParsedProof<'a>,
}

impl<'a> Unverified<'a> {
    pub(super) fn new(parts: ParsedProof<'a>) -> Self {
        Self { parts }
    }

    /// Number of terminals.
    pub fn terminal_count(&self) -> usize {
        self.parts.terminals().len()
    }

    /// The terminals, in key order.
    pub fn terminals(&self) -> impl Iterator<Item = Terminal> + use<'a> {
        self.parts.terminals().iter()
    }

    /// Number of operations; only a witness has any.
    pub fn op_count(&self) -> usize {
        self.parts.op_count()
    }

    /// The operations, in key order, each with the terminal that covers its key.
    pub fn ops(&self) -> impl Iterator<Item = (Op, Terminal)> + use<'a> {
        self.parts.ops()
    }

    /// The siblings, in the order of the encoding.
    pub fn siblings(&self) -> &'a [Node] {
        self.parts.siblings()
    }
}
