//! Merging a page's cells with the changes that pend on it.

use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_beatree::build::CellRef;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::region::Pending;
use pleach_core::page::leaf::Cell;
use pleach_core::page::overflow::Run;
use pleach_core::{Key, Prefix};

use crate::overflow;

/// A page's content to come: what it holds and what pends.
pub(super) struct Source {
    pub(super) prefix: Prefix,
    pub(super) page: Option<Arc<CachedPage>>,
    /// Place of the page, given up by the flush.
    pub(super) place: Option<u32>,
    pub(super) pending: Vec<Pending>,
    /// Cells of pending long values, by index into `pending`.
    pub(super) written: Vec<(usize, Arc<[u8]>)>,
}

/// Where a merged cell's bytes are.
#[derive(Clone, Copy)]
enum From {
    Page(usize),
    Pending(usize),
}

impl Source {
    /// Merged keys in order, with where their bytes are; and the overflow runs that are given up.
    fn merged(&self, freed: &mut Vec<Run>) -> Vec<(Key, From)> {
        let view = self.page.as_ref().map(|page| page.view());
        let cells = view.as_ref().map_or(0, |view| view.len());
        let mut merged = Vec::with_capacity(cells + self.pending.len());
        let (mut cell, mut pending) = (0, 0);
        while cell < cells || pending < self.pending.len() {
            let cell_key = view.as_ref().filter(|_| cell < cells).map(|view| view.key(cell));
            let change = self.pending.get(pending);
            match (cell_key, change) {
                (Some(key), Some(change)) if key > change.key => pending = self.take_change(pending, &mut merged),
                (None, Some(_)) => pending = self.take_change(pending, &mut merged),
                (Some(key), Some(change)) if key == change.key => {
                    if let Some(view) = &view {
                        freed.extend(overflow::runs(&Stored::from_cell(view.cell(cell))));
                    }
                    cell += 1;
                    pending = self.take_change(pending, &mut merged);
                }
                (Some(key), _) => {
                    merged.push((key, From::Page(cell)));
                    cell += 1;
                }
                (None, None) => break,
            }
        }
        merged
    }

    fn take_change(&self, at: usize, merged: &mut Vec<(Key, From)>) -> usize {
        let change = &self.pending[at];
        if change.stored.is_present() {
            merged.push((change.key, From::Pending(at)));
        }
        at + 1
    }

    /// The merged cells.
    pub(super) fn cells<'a>(&'a self, out: &mut Vec<CellRef<'a>>, freed: &mut Vec<Run>) {
        for (key, from) in self.merged(freed) {
            let (bytes, overflow) = match from {
                From::Page(index) => match self.page.as_ref().expect("a cell of this page").view().cell(index) {
                    Cell::Inline(bytes) => (bytes, false),
                    Cell::Overflow(cell) => (cell.bytes(), true),
                },
                From::Pending(index) => self.pending_bytes(index),
            };
            out.push(CellRef { key, bytes, overflow });
        }
    }

    fn pending_bytes(&self, index: usize) -> (&[u8], bool) {
        match &self.pending[index].stored {
            Stored::Inline(value) => (value, false),
            Stored::Overflow(raw) => (raw, true),
            Stored::Large(_) => {
                let at = self.written.binary_search_by_key(&index, |(index, _)| *index);
                (&self.written[at.expect("long values were written")].1, true)
            }
            Stored::Absent => unreachable!("deleted keys have no cell"),
        }
    }

    /// Bit `g` is set when a pending change lies in group `g`, `levels` below the prefix.
    pub(super) fn changed_groups(&self, levels: u8) -> u16 {
        self.pending.iter().fold(0, |groups, pending| {
            let group = (0..levels).fold(0u16, |group, level| {
                let depth = self.prefix.len() + u16::from(level);
                group << 1 | u16::from(depth < 256 && pleach_core::prefix::bit(&pending.key, depth))
            });
            groups | 1 << group
        })
    }
}
