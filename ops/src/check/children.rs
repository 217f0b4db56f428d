//! Folding children of regions, a batch at a time, on any thread: pages, the nodes that they store, and the
//! nodes in the index.

use pleach::internals::hexadecimal::hex;
use pleach::internals::open::pages::{VisitedPage, parse};
use pleach_beatree::leaf_fold::{KeyState, PageState, below, fold_page};
use pleach_beatree::stored::cell_value;
use pleach_beatree::{PageNo, RegionState, Stored};
use pleach_core::fold::Folder;
use pleach_core::page::leaf::{Cell, LeafView};
use pleach_core::{Hasher, Prefix, TERMINATOR};
use pleach_journal::format::names::LEAF_FILE;

use super::report::of;

/// What pages are compared with.
#[derive(Clone, Copy)]
pub(super) struct CheckContext {
    pub(super) hasher: Hasher,
    pub(super) database: u64,
    /// Number of the newest commit.
    pub(super) commit: u64,
    pub(super) incarnation: u32,
}

/// The findings of a batch of children.
#[derive(Default)]
pub(super) struct ChildrenFindings {
    /// In the order of the children.
    pub(super) found: Vec<FoundCell>,
    pub(super) all: u64,
    pub(super) pages: u64,
    pub(super) keys: u64,
}

pub(super) enum FoundCell {
    Finding(String),
    /// An overflow cell, and its place: the value is still to be read.
    LongValue(Box<[u8]>, String),
}

/// Folds children, without I/O.
pub(super) struct ChildrenCheck {
    known: CheckContext,
    folder: Folder,
    children: ChildrenFindings,
}

impl ChildrenCheck {
    pub(super) fn fold(known: CheckContext, batch: Vec<VisitedPage<'_>>) -> ChildrenFindings {
        let all = batch.len() as u64;
        let (folder, children) =
            (Folder::new(known.hasher), ChildrenFindings { all, ..ChildrenFindings::default() });
        let mut own = Self { known, folder, children };
        for visited in batch {
            own.child(visited);
        }
        own.children
    }

    fn finding(&mut self, what: String) {
        self.children.found.push(FoundCell::Finding(what));
    }

    fn long_value(&mut self, raw: &[u8], namespace: u8, prefix: &Prefix) {
        let at = format!("{}prefix {prefix:?}", of(namespace));
        self.children.found.push(FoundCell::LongValue(raw.into(), at));
    }

    /// Checks one child of a region: its page, its buffered changes, and its node.
    fn child(&mut self, visited: VisitedPage<'_>) {
        let state = visited.region.read();
        let prefix = state.children().prefix(visited.child);
        let mut changes: Vec<KeyState> = Vec::new();
        state.copy_buffered(&prefix, &mut changes);
        for (_, stored) in &changes {
            if let Stored::Overflow(raw) = stored {
                self.long_value(raw, state.namespace(), &prefix);
            }
        }
        let Some(number) = state.children().page(visited.child) else {
            self.children.keys +=
                changes.iter().filter(|change| change.1.is_present()).count() as u64;
            self.expect_node(&state, visited.child, None, &changes);
            return;
        };
        self.children.pages += 1;
        let buf = match visited.page {
            Some(Ok(buf)) => buf,
            Some(Err(error)) => {
                return self.finding(format!("page {number} of {LEAF_FILE}: {error}"));
            }
            None => return,
        };
        let tag = state.children().tag(visited.child);
        match parse(&buf, self.known.database, state.namespace(), number, tag) {
            Err(error) => self.finding(error.to_string()),
            Ok(view) => {
                self.page(&view, &prefix, number, state.is_plain());
                let present = changes.iter().filter(|change| change.1.is_present()).count();
                let kept = view.len()
                    - changes.iter().filter(|change| view.find(&change.0).is_ok()).count();
                self.children.keys += (present + kept) as u64;
                self.expect_node(&state, visited.child, Some(&view), &changes);
            }
        }
    }

    fn page(&mut self, view: &LeafView<'_>, prefix: &Prefix, number: PageNo, is_plain: bool) {
        let at = format!("page {number} of {LEAF_FILE}");
        if view.prefix() != *prefix {
            self.finding(format!(
                "{at}: it is for {:?}, the index wants {prefix:?}",
                view.prefix()
            ));
        }
        if view.applied_through() > self.known.commit {
            self.finding(format!(
                "{at}: it contains commit {}, the newest is {}",
                view.applied_through(),
                self.known.commit
            ));
        }
        if view.flush() >> 32 > u64::from(self.known.incarnation) {
            self.finding(format!(
                "{at}: it was written by a future open, flush {:#x}",
                view.flush()
            ));
        }
        for (_, cell) in view.iter() {
            if let Cell::Overflow(cell) = cell {
                self.long_value(cell.bytes(), view.namespace(), prefix);
            }
        }
        if !is_plain {
            self.stored_nodes(view, &at);
        } else if view.levels() > 0 && view.nodes().iter().any(|node| *node != TERMINATOR) {
            self.finding(format!("{at}: it stores nodes, and is a plain namespace's"));
        }
    }

    /// Checks that the nodes that a page stores are those of its cells.
    fn stored_nodes(&mut self, view: &LeafView<'_>, at: &str) {
        if view.levels() == 0 {
            return;
        }
        self.folder.clear();
        let mut cells = view.iter().peekable();
        let mut folds = Vec::with_capacity(view.nodes().len());
        for stored in 0..1u16 << view.levels() {
            let prefix = below(&view.prefix(), view.levels(), stored);
            let mut span = self.folder.span(prefix.len());
            while let Some((key, cell)) = cells.next_if(|(key, _)| prefix.covers(key)) {
                span.push_unaccessed(&key, cell_value(&cell));
            }
            folds.push(span.end_fold());
        }
        self.folder.run();
        for (index, (fold, stored)) in folds.into_iter().zip(view.nodes()).enumerate() {
            if self.folder.node(fold) != stored {
                self.finding(format!("{at}: its stored node {index} is not that of its cells"));
            }
        }
    }

    /// Checks that the node in the index is that of the page's cells and buffered changes.
    fn expect_node(
        &mut self,
        state: &RegionState,
        child: usize,
        view: Option<&LeafView<'_>>,
        changes: &[KeyState],
    ) {
        if state.is_plain() {
            return;
        }
        let expected = *state.node(child);
        let prefix = state.children().prefix(child);
        let found = if view.is_none() && changes.is_empty() {
            TERMINATOR
        } else {
            self.folder.clear();
            let page = PageState { at: &prefix, leaf: view, buffered: changes, treelet: None };
            let folded = fold_page(&mut self.folder, &page, false, &[], &mut Vec::new());
            let fold = self.folder.end_fold(folded.subtrie, false);
            self.folder.run();
            *self.folder.node(fold)
        };
        if found != expected {
            self.finding(format!(
                "{}prefix {prefix:?}: its pairs fold to {}, the index has {}",
                of(state.namespace()),
                hex(found),
                hex(expected)
            ));
        }
    }
}
