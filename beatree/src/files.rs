//! The files of pages, by name.

/// Leaf pages.
pub const LEAF_FILE: &str = "leaf";
/// Values too long for a leaf page, and runs of the history.
pub const OVERFLOW_FILE: &str = "overflow";
