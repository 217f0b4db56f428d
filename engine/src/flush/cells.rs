//! Merging a page's cells with the changes that pend on it.

use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_beatree::build::CellRef;
use pleach_beatree::cache::CachedPage;
use pleach_beatree::region::Pending;
use pleach_core::Prefix;
use pleach_core::page::leaf::Cell;
use pleach_core::page::overflow::Run;

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

impl Source {
    /// The merged cells, appended to `out`; `freed` takes the overflow runs that are given up.
    pub(super) fn cells<'a>(&'a self, out: &mut Vec<CellRef<'a>>, freed: &mut Vec<Run>) {
        let Some(page) = &self.page else {
            self.take_changes(0..self.pending.len(), out);
            return;
        };
        let view = page.view();
        let mut taken = 0;
        for (key, cell) in view.iter() {
            let smaller =
                self.pending[taken..].iter().take_while(|change| change.key < key).count();
            self.take_changes(taken..taken + smaller, out);
            taken += smaller;
            if self.pending.get(taken).is_some_and(|change| change.key == key) {
                if let Cell::Overflow(cell) = cell {
                    freed.extend(cell.runs());
                }
                self.take_changes(taken..taken + 1, out);
                taken += 1;
                continue;
            }
            let (bytes, overflow) = match cell {
                Cell::Inline(bytes) => (bytes, false),
                Cell::Overflow(cell) => (cell.bytes(), true),
            };
            out.push(CellRef { key, bytes, overflow });
        }
        self.take_changes(taken..self.pending.len(), out);
    }

    fn take_changes<'a>(&'a self, range: std::ops::Range<usize>, out: &mut Vec<CellRef<'a>>) {
        for index in range {
            let change = &self.pending[index];
            if change.stored.is_present() {
                let (bytes, overflow) = self.pending_bytes(index);
                out.push(CellRef { key: change.key, bytes, overflow });
            }
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
