//! Neighbouring pages of the leaf file.

use crate::page_no::PageNo;

/// Neighbouring pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafExtent {
    /// The first page.
    pub start: PageNo,
    /// Number of pages, at least one.
    pub len: u32,
}

impl LeafExtent {
    /// The number after the last page's.
    pub fn end(&self) -> u32 {
        self.start.get() + self.len
    }

    /// The pages in order.
    pub fn pages(&self) -> impl Iterator<Item = PageNo> + use<> {
        (self.start.get()..self.end()).map(PageNo::new)
    }
}

/// Appends an extent that begins at or after the end of the last one.
pub(super) fn push_merged(out: &mut Vec<LeafExtent>, extent: LeafExtent) {
    match out.last_mut() {
        Some(last) if last.end() == extent.start.get() => last.len += extent.len,
        _ => out.push(extent),
    }
}
