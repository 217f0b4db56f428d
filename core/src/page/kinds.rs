//! The numbers by which pages name what they are: format version, file kind, page type, stream.
//!
//! They are stored in every page, so a number once given is never used for anything else.

/// Version of the page formats in this module tree.
pub const VERSION: u8 = 1;

/// The kind of a file, so that a page never passes for one of another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Leaf pages.
    Leaf = 1,
    /// Values too long for a leaf page.
    Overflow = 2,
    /// Checkpoint images: branch pages and streams.
    Image = 3,
}

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PageType {
    /// [`crate::page::leaf`]
    Leaf = 1,
    /// [`crate::page::branch`]
    Branch = 2,
    /// [`crate::page::stream`]
    Stream = 3,
}

/// What a stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StreamId {
    /// Buffered changes: committed, and not yet in pages.
    Buffered = 1,
    /// Free pages.
    FreeMap = 2,
    /// The namespace table.
    Namespaces = 3,
    /// One value too long for a leaf page.
    Value = 4,
    /// What commits of the history have replaced, as runs.
    History = 5,
    /// Used leaf pages.
    LeafMap = 6,
}

impl StreamId {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        use StreamId::{Buffered, FreeMap, History, LeafMap, Namespaces, Value};
        [Buffered, FreeMap, Namespaces, Value, History, LeafMap]
            .into_iter()
            .find(|id| *id as u8 == byte)
    }
}
