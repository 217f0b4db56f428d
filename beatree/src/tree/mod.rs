//! A tree of pages: which region covers a key, where its page is, and which pages are due for a flush. The caller reads,
//! changes and replaces regions; [`Tree::store`] has their pages, and [`ahead`] those that an iterator comes to.
//!
//! Invariants:
//! * regions tile the key space;
//! * a region is retired under its write lock, which is held until the index without it is published;
//! * whoever replaces regions holds [`Tree::hold_structure`].
#![expect(missing_debug_implementations, reason = "they hold the store")]

pub mod ahead;
mod key_batch;

pub use self::key_batch::{KEY_BATCH, LookupDepth, PAGES_AHEAD};

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use pleach_core::hexadecimal::hex;
use pleach_core::tree::Tiling;
use pleach_core::{Hasher, Key, Node, Prefix};

use crate::index::RegionIndex;
use crate::lock_order::{RankedMutex, RankedMutexGuard, STRUCTURE};
use crate::page_no::PageRef;
use crate::pages::Store;
use crate::region::{Region, RegionState};
use crate::stored::Stored;

/// How often a lookup may find its region retired.
///
/// A region is retired under its write lock, which is held until the index without it is published. So after a retired
/// region the next lookup finds another one, and that one is retired only if another flush was published in between.
/// Splits replace a region by a deeper one, of at most 255 bits; a load replaces the only region once; and between a
/// join and the next split of the same keys half a branch page of new pages must be written, in rounds with syncs. So
/// no reader comes to this number. A retired region in the index is a defect of this program, and a reader that went on
/// would never end.
const MAX_LOOKUPS: usize = 258;

/// The place of a key's state.
#[derive(Debug)]
pub enum KeyPlace {
    /// The page that has it, if the key exists at all.
    Page(PageRef),
    /// No page is needed: a buffered change, or no page where the key would be.
    Memory(Stored),
}

/// The regions of a tree, which of their pages are due for a flush, and the store of their pages.
pub struct Tree {
    /// The pages, of this tree and of others.
    pub store: Arc<Store>,
    regions: ArcSwap<RegionIndex>,
    /// Held by a flush while it changes layouts, and by a commit that was overtaken too often.
    structure: RankedMutex<()>,
    /// The nodes between the root and the regions.
    root: RwLock<RootNodes>,
    /// Prefixes of pages that have enough changes.
    due: Mutex<DuePages>,
    /// Number of entries of `due` when it was last unlocked.
    due_count: AtomicUsize,
}

/// The nodes between the root and the regions, in the newest state.
///
/// Invariant: a commit updates them before it is published. So when `as_of` is at most `s`, they are the nodes of
/// commit `s`, once that is published.
#[derive(Debug, Default)]
pub struct RootNodes {
    /// The regions that the nodes are over, and the nodes.
    tiling: Option<(Arc<RegionIndex>, Tiling)>,
    /// The last commit that has changed a node.
    as_of: u64,
}

impl RootNodes {
    /// The nodes, if they are over these regions, and the last commit that changed them.
    pub fn tiling_over(&self, regions: &Arc<RegionIndex>) -> Option<(&Tiling, u64)> {
        let (of, tiling) = self.tiling.as_ref()?;
        Arc::ptr_eq(of, regions).then_some((tiling, self.as_of))
    }
}

/// Pages that are due for a flush, in the order in which they became so.
#[derive(Debug, Default)]
struct DuePages {
    pages: VecDeque<Prefix>,
    /// Number of entries when duplicates were last removed.
    distinct: usize,
}

/// Number of due pages below which duplicates are not looked for.
const FEW_DUE: usize = 4096;

impl DuePages {
    /// Appends pages. A commit that changes a page which is due already adds it again; when there are twice as many
    /// entries as pages, duplicates are removed. So there are at most twice as many entries as pages, at the cost of
    /// one look at each new one.
    fn add(&mut self, prefixes: impl IntoIterator<Item = Prefix>) {
        self.pages.extend(prefixes);
        if self.pages.len() > FEW_DUE.max(2 * self.distinct) {
            let mut seen = HashSet::with_capacity(self.pages.len());
            self.pages.retain(|prefix| seen.insert(*prefix));
            self.distinct = self.pages.len();
            self.pages.shrink_to(2 * self.distinct);
        }
    }
}

impl Tree {
    /// The tree of these regions. Pages for which `is_due` is true are due from the start.
    pub fn new(store: &Arc<Store>, regions: RegionIndex, is_due: impl Fn(u8) -> bool) -> Self {
        let mut due = DuePages::default();
        for region in regions.regions() {
            due.add(due_children(&region.row(), &is_due));
        }
        Self {
            store: Arc::clone(store),
            regions: ArcSwap::from_pointee(regions),
            structure: STRUCTURE.mutex(()),
            root: RwLock::default(),
            due_count: AtomicUsize::new(due.pages.len()),
            due: Mutex::new(due),
        }
    }

    /// The present regions, for a few lookups.
    #[inline]
    pub fn load(&self) -> arc_swap::Guard<Arc<RegionIndex>> {
        self.regions.load()
    }

    /// The present regions, to be kept.
    pub fn load_full(&self) -> Arc<RegionIndex> {
        self.regions.load_full()
    }

    /// Locks and returns the nodes over these regions. While the guard lives no commit changes them.
    pub fn root_nodes(
        &self,
        hasher: Hasher,
        regions: &Arc<RegionIndex>,
    ) -> RwLockReadGuard<'_, RootNodes> {
        let root = self.root.read();
        if root.tiling_over(regions).is_some() {
            return root;
        }
        drop(root);
        let mut root = self.root.write();
        let (mut nodes, mut as_of) = (Vec::with_capacity(regions.regions().len()), 0);
        for region in regions.regions() {
            let state = region.row();
            nodes.push(*state.own_node());
            as_of = as_of.max(state.last_commit());
        }
        let prefixes = regions.regions().iter().map(|region| *region.prefix());
        root.tiling = Some((Arc::clone(regions), Tiling::new(hasher, prefixes, &nodes)));
        root.as_of = as_of;
        RwLockWriteGuard::downgrade(root)
    }

    /// Applies the new nodes that commit `number` has given these regions, in order.
    pub fn update_root(&self, hasher: Hasher, number: u64, changed: &[(Prefix, Node)]) {
        let regions = self.load();
        let mut root = self.root.write();
        let RootNodes { tiling: of, as_of } = &mut *root;
        let Some((of, tiling)) = of.as_mut().filter(|(of, _)| Arc::ptr_eq(of, &regions)) else {
            *of = None;
            return;
        };
        let numbered = changed.iter().map(|(prefix, node)| (of.find(prefix.first_key()), *node));
        tiling.update(hasher, numbered);
        *as_of = number;
    }

    /// While the guard lives nobody else splits, merges or replaces pages and regions.
    pub fn hold_structure(&self) -> RankedMutexGuard<'_, ()> {
        self.structure.lock()
    }

    /// Publishes a new list of regions; returns the one before.
    ///
    /// # Panics
    /// When nobody holds the structure.
    pub fn publish(&self, regions: RegionIndex) -> Arc<RegionIndex> {
        assert!(self.structure.try_lock().is_none(), "the structure is held");
        self.regions.swap(Arc::new(regions))
    }

    /// Calls the closure with the region that covers a key, locked. A region replaced in between is looked up again.
    ///
    /// # Panics
    /// When the index has retired regions, which is a defect: see `MAX_LOOKUPS`.
    pub fn with_region<T>(
        &self,
        key: &Key,
        mut read: impl FnMut(&Arc<Region>, &RegionState) -> T,
    ) -> T {
        for _ in 0..MAX_LOOKUPS {
            let regions = self.regions.load();
            let region = regions.region(key);
            let state = region.read();
            if !state.is_retired() {
                return read(region, &state);
            }
        }
        panic!("the region over {} was retired and not replaced", hex(key));
    }

    /// The page of a key, also where a buffered change lies over it; `None` when there is none.
    pub fn page_of(&self, key: &Key) -> Option<PageRef> {
        self.with_region(key, |_, state| state.page_ref(state.children().find(key)))
    }

    /// The place of a key's present state.
    #[inline]
    pub fn place_of(&self, key: &Key) -> KeyPlace {
        self.with_region(key, |_, state| match state.buffered_change(key) {
            Some(buffered) => KeyPlace::Memory(buffered.stored.clone()),
            None => match state.page_ref(state.children().find(key)) {
                Some(at) => KeyPlace::Page(at),
                None => KeyPlace::Memory(Stored::Absent),
            },
        })
    }

    /// Makes the pages of a region due that have at least so many changes. False when the region was retired.
    pub fn make_due_in(&self, region: &Region, flush_at: u8) -> bool {
        let state = region.read();
        if state.is_retired() {
            return false;
        }
        let due: Vec<Prefix> = due_children(&state, &|changes| changes >= flush_at).collect();
        drop(state);
        self.make_due(due);
        true
    }

    /// Makes these pages due for a flush.
    pub fn make_due(&self, prefixes: impl IntoIterator<Item = Prefix>) {
        let mut due = self.due.lock();
        due.add(prefixes);
        self.due_count.store(due.pages.len(), Ordering::Release);
    }

    /// True when any page is due. Costs one load, for callers that look at all namespaces.
    #[inline]
    pub fn has_due(&self) -> bool {
        self.due_count() > 0
    }

    /// Removes and returns up to `count` due pages, in the order in which they became due. Only the flush calls it.
    pub fn take_due(&self, count: usize) -> Vec<Prefix> {
        let due = &mut self.due.lock().pages;
        let count = due.len().min(count);
        let taken = due.drain(..count).collect();
        self.due_count.store(due.len(), Ordering::Release);
        taken
    }

    /// Number of due pages, some of which may be counted twice, when the list was last unlocked.
    pub fn due_count(&self) -> usize {
        self.due_count.load(Ordering::Acquire)
    }

    /// Bytes of the list of due pages.
    pub fn due_bytes(&self) -> usize {
        self.due.lock().pages.capacity() * size_of::<Prefix>()
    }
}

/// The prefixes of children whose count of changes makes them due.
fn due_children(state: &RegionState, is_due: &impl Fn(u8) -> bool) -> impl Iterator<Item = Prefix> {
    let children = 0..state.children().len();
    let due = children.filter(|child| is_due(state.changes_since_write(*child)));
    due.map(|child| state.children().prefix(child))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_become_due_again_and_again_take_no_more_room() {
        let page = |index: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&(index as u64).reverse_bits().to_be_bytes());
            Prefix::new(&key, 64)
        };
        let mut due = DuePages::default();
        for _ in 0..100 {
            due.add((0..3000).map(page));
            assert!(due.pages.len() <= 2 * 3000 && due.pages.capacity() <= 4 * 3000);
        }
        // Each page once, in the order in which they came first.
        assert!(due.pages.into_iter().take(3000).eq((0..3000).map(page)));
    }
}
