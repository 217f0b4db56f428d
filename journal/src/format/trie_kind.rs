//! The kind of a namespace's trie: with nodes and a root, or plain.

/// The kind of a trie, the same from the commit that adds it to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TrieKind {
    /// With nodes that fold to a root.
    #[default]
    Merkle = 0,
    /// Without nodes: only pairs, with a rolling digest in place of the root.
    Plain = 1,
}

impl TrieKind {
    /// The kind with this byte in a record or a table.
    pub fn of_byte(byte: u8) -> Option<Self> {
        [Self::Merkle, Self::Plain].into_iter().find(|kind| *kind as u8 == byte)
    }
}
