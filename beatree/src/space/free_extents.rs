//! Free extents by address and by length.
//!
//! Invariants: extents are not empty and never touch each other; both trees hold the same extents; `pages` is the sum of
//! their lengths.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, Default)]
pub(super) struct FreeExtents {
    by_start: BTreeMap<u64, u64>,
    /// Length, then start.
    by_len: BTreeSet<(u64, u64)>,
    pages: u64,
}

impl FreeExtents {
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Number of extents.
    pub(super) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// All extents in address order, as start and length.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(start, len)| (*start, *len))
    }

    /// All extents, longest first, as start and length.
    pub(super) fn largest(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_len.iter().rev().map(|(len, start)| (*start, *len))
    }

    /// The shortest extent of at least `len` pages; of equal ones the first in the file.
    pub(super) fn smallest_of(&self, len: u64) -> Option<(u64, u64)> {
        self.by_len.range((len, 0)..).next().map(|(len, start)| (*start, *len))
    }

    /// Length in pages of the extent that ends at `end`, or 0.
    pub(super) fn ending_at(&self, end: u64) -> u64 {
        match self.by_start.last_key_value() {
            Some((start, len)) if start + len == end => *len,
            _ => 0,
        }
    }

    /// True when any of these pages is free.
    pub(super) fn overlaps(&self, start: u64, len: u64) -> bool {
        let before = self.by_start.range(..start + len).next_back();
        before.is_some_and(|(first, pages)| first + pages > start)
    }

    /// True when all of these pages are free.
    pub(super) fn contains(&self, start: u64, len: u64) -> bool {
        let around = self.by_start.range(..=start).next_back();
        around.is_some_and(|(first, pages)| first + pages >= start + len)
    }

    /// Adds pages none of which is free, merging with neighbours.
    pub(super) fn insert(&mut self, start: u64, len: u64) {
        assert!(len > 0 && !self.overlaps(start, len), "freed once");
        let (mut first, mut end) = (start, start + len);
        let before = self.by_start.range(..start).next_back().map(|(at, len)| (*at, *len));
        if let Some((at, pages)) = before
            && at + pages == start
        {
            self.unlink(at, pages);
            first = at;
        }
        if let Some(pages) = self.by_start.get(&end).copied() {
            self.unlink(end, pages);
            end += pages;
        }
        self.link(first, end - first);
    }

    /// Removes pages all of which are free.
    pub(super) fn remove(&mut self, start: u64, len: u64) {
        let around = self.by_start.range(..=start).next_back().map(|(at, len)| (*at, *len));
        let (first, pages) = around.expect("pages taken are free");
        let (end, last) = (start + len, first + pages);
        assert!(end <= last, "pages taken are free");
        self.unlink(first, pages);
        if first < start {
            self.link(first, start - first);
        }
        if end < last {
            self.link(end, last - end);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        // Two trees of pairs, whose nodes are between half and entirely full.
        self.len() * 2 * 2 * size_of::<(u64, u64)>()
    }

    fn link(&mut self, start: u64, len: u64) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
        self.pages += len;
    }

    fn unlink(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
        self.pages -= len;
    }
}
