//! A page in an older state by the mask kernel: what later commits recorded, and the present elsewhere.
//!
//! The newest state knows the nodes beside the way. In an older one later commits have recorded them
//! ([`crate::older`]); where nothing has changed since, page and treelet say what was. A node that nobody knew is
//! made of those below it, or of its keys. So a page costs little more than in the newest state.

use std::cell::Cell;

use pleach_core::fold::{
    Change, FoldValue, HashId, Keys, NO_HASH, TreeletFolder, children, each_position, heap_index,
    heap_position,
};
use pleach_core::hasher::Hasher;
use pleach_core::page::leaf::LeafView;
use pleach_core::{Key, Node, Prefix, TERMINATOR};

use crate::leaf_fold::{AccessResult, KeyAccess, PageState, PendingChange, fold_keys, ways};
use crate::older::{BUCKET_LEVELS, INNER, OlderNodes, bucket_of, has_buckets, keys_of, last};

/// As [`crate::leaf_fold::fold_known`] for an older state: `page` is the present, and `undone`, sorted, has what
/// the keys below [`OlderNodes::asked`] had then that have changed since. `None`, with nothing done, where the page
/// had fewer than two keys.
pub fn fold_older<H: Hasher>(
    folder: &mut TreeletFolder<H>,
    page: &PageState<'_>,
    (then, undone): (&OlderNodes<'_>, &[PendingChange]),
    accesses: &[KeyAccess],
    results: &mut Vec<AccessResult>,
) -> Option<usize> {
    if accesses.is_empty() || !has_buckets(page.at) {
        return None;
    }
    let fold = Fold { page, then, undone };
    let ways = ways(page.at, accesses);
    let internal = fold.internal(ways);
    if internal & 1 == 0 {
        return None;
    }
    let known = Cell::new(0_u64);
    folder.begin((page.at.len(), None), ways, internal, |left| {
        [left, left + 1].map(|at| {
            let node = (ways >> at & 1 == 0).then(|| fold.find(at)).flatten();
            known.set(known.get() | u64::from(node.is_some()) << at);
            *node.unwrap_or(&TERMINATOR)
        })
    });
    each_position(folder.beside() & !known.get(), |at| fold.beside(folder, at));
    let mut left = accesses;
    while let Some(access) = left.first() {
        let at = folder.bucket_of(bucket_of(page.at, &access.key));
        let (level, bits) = heap_position(at);
        let place = |access: &KeyAccess| bucket_of(page.at, &access.key) >> (BUCKET_LEVELS - level);
        let count = left.iter().take_while(|access| place(access) == bits).count();
        let (accesses, rest) = left.split_at(count);
        left = rest;
        fold.keys(folder, at, accesses, results);
        folder.bucket(at, true);
    }
    Some(folder.end())
}

/// Counts keys, up to two.
struct Count(u8);

impl Keys for Count {
    fn unaccessed(&mut self, _: &Key, _: FoldValue<'_>) {
        self.0 = 2.min(self.0 + 1);
    }

    fn accessed(&mut self, key: &Key, old: Option<FoldValue<'_>>, _: Change<'_>) -> HashId {
        if let Some(value) = old {
            self.unaccessed(key, value);
        }
        NO_HASH
    }
}

struct Fold<'a> {
    page: &'a PageState<'a>,
    then: &'a OlderNodes<'a>,
    /// What keys had then.
    undone: &'a [PendingChange],
}

impl<'a> Fold<'a> {
    /// The node of a position then, where it is known.
    fn find(&self, at: u8) -> Option<&'a Node> {
        if self.then.touches(at) {
            return self.then.node(at);
        }
        // Above it there may have been more keys then: what the treelet has below a leaf node is old.
        if let Some(node) = self.page.treelet.and_then(|known| known.below_internal(at)) {
            return Some(node);
        }
        let (level, bits) = heap_position(at);
        let leaf = self.page.leaf.filter(|leaf| level == leaf.levels() && level > 0)?;
        let pending = below(self.page.pending, self.page.at, at);
        pending.is_empty().then(|| &leaf.nodes()[usize::from(bits)])
    }

    /// Is a position whose node is unknown made of its children? Else all its keys are at hand: nothing has changed
    /// below it, or they are asked for.
    fn is_made(&self, at: u8) -> bool {
        let stored = self.page.leaf.map_or(0, LeafView::levels);
        self.then.is_inner(at) || !self.then.touches(at) && at < heap_index(stored, 0)
    }

    /// The positions on these ways that had two keys or more.
    fn internal(&self, ways: u64) -> u64 {
        let above = ways & INNER;
        let mut internal = self.then.internal();
        if let Some(known) = self.page.treelet {
            each_position(children(above) & !ways & known.internal(), |at| {
                let is_known = !self.then.touches(at) && known.below_internal(at).is_some();
                internal |= u64::from(is_known) << at;
            });
        }
        let mut left = above;
        while left != 0 {
            // Lowest levels first: mostly a node beside the way says enough of all above it.
            let at = last(left);
            left &= !(1 << at);
            let is_shown = internal >> (2 * at + 1) & 0b11 != 0;
            internal |= u64::from(is_shown || self.keys_below(at) > 1) << at;
        }
        internal & above
    }

    /// How many keys were below a position; two for more.
    fn keys_below(&self, at: u8) -> u8 {
        if let Some(node) = self.find(at) {
            return keys_of(node);
        }
        if !self.is_made(at) {
            let mut count = Count(0);
            self.keys(&mut count, at, &[], &mut Vec::new());
            return count.0;
        }
        // What is beside the way is known without counting.
        let mut children = [2 * at + 1, 2 * at + 2];
        if self.then.is_on_way(children[0]) {
            children.reverse();
        }
        let first = self.keys_below(children[0]);
        if first > 1 { first } else { 2.min(first + self.keys_below(children[1])) }
    }

    /// Gives the node of a position below which nothing is accessed, or what makes it.
    fn beside<H: Hasher>(&self, folder: &mut TreeletFolder<H>, at: u8) {
        if let Some(node) = self.find(at) {
            folder.known(at, node);
        } else if self.is_made(at) {
            folder.between(at);
            for child in [2 * at + 1, 2 * at + 2] {
                self.beside(folder, child);
            }
        } else {
            self.keys(folder, at, &[], &mut Vec::new());
            folder.bucket(at, false);
        }
    }

    /// Gives the keys below a position as they were then.
    fn keys(
        &self,
        folder: &mut impl Keys,
        at: u8,
        accesses: &[KeyAccess],
        results: &mut Vec<AccessResult>,
    ) {
        let pending = below(self.page.pending, self.page.at, at);
        let undone = below(self.undone, self.page.at, at);
        // Mostly all that pends is of commits since.
        let mut later = undone.iter();
        if undone.is_empty() || pending.iter().all(|one| later.any(|own| own.0 == one.0)) {
            let pending = if undone.is_empty() { pending } else { undone };
            let page = PageState { pending, ..*self.page };
            return fold_keys(folder, &page, at, accesses, results);
        }
        let mut pending = pending.iter().peekable();
        let mut both = Vec::with_capacity(pending.len() + undone.len());
        for one in undone {
            while let Some(before) = pending.next_if(|pending| pending.0 < one.0) {
                both.push(before.clone());
            }
            pending.next_if(|pending| pending.0 == one.0);
            both.push(one.clone());
        }
        both.extend(pending.cloned());
        let page = PageState { pending: &both, ..*self.page };
        fold_keys(folder, &page, at, accesses, results);
    }
}

/// Those of a page's sorted changes that are below a position.
#[inline]
fn below<'a>(changes: &'a [PendingChange], page: &Prefix, at: u8) -> &'a [PendingChange] {
    let (level, bits) = heap_position(at);
    let place = |change: &PendingChange| bucket_of(page, &change.0) >> (BUCKET_LEVELS - level);
    let from = changes.partition_point(|change| place(change) < bits);
    let changes = &changes[from..];
    &changes[..changes.iter().take_while(|change| place(change) == bits).count()]
}
