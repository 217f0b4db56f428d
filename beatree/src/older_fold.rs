//! A page in an older state by the mask kernel: what later commits recorded, and the present elsewhere.
//!
//! The newest state knows the nodes beside a path. Of an older one groups and buckets are known
//! ([`crate::older`]), and what lies between them and beside the path is computed with the rest. So a page costs its
//! accessed buckets and five hashes more than in the newest state. Where nothing has changed since, page and
//! treelet say what was.

use pleach_core::fold::{
    Change, FoldValue, HashId, Keys, NO_HASH, TreeletFolder, heap_index, heap_position,
};
use pleach_core::hasher::Hasher;
use pleach_core::node::{NodeKind, kind};
use pleach_core::{Key, Node, Prefix, TERMINATOR};

use crate::leaf_fold::{
    AccessResult, KeyAccess, PageState, PendingChange, each_position, fold_keys, ways,
};
use crate::older::{
    BUCKET_LEVELS, GROUP_LEVELS, GROUPS, OF_GROUP, OlderNodes, bucket_of, has_buckets, keys_of,
};

/// Positions above the groups, and those above the buckets.
const ABOVE_GROUPS: u64 = (1 << heap_index(GROUP_LEVELS, 0)) - 1;
const ABOVE_BUCKETS: u64 = (1 << heap_index(BUCKET_LEVELS, 0)) - 1;

/// As [`crate::leaf_fold::fold_known`] for an older state: `page` is the present, and `undone`, sorted, has what
/// the keys below [`OlderNodes::asked`] had then that have changed since. `None`, with nothing done, where what
/// is known does not show that the nodes on the way to the accessed groups were internal ones.
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
    let (groups, keys) = ([None; GROUPS as usize], [0; COUNTED]);
    let mut fold = Fold { page, then, undone, groups, keys };
    fold.look_at_groups();
    let (ways, mut internal) = (ways::<H>(page.at, accesses), 0);
    each_position(ways & ABOVE_BUCKETS, |at| {
        internal |= u64::from(fold.is_internal(at)) << at;
    });
    if ways & ABOVE_GROUPS & !internal != 0 {
        return None;
    }
    // All that is beside the way is given below.
    folder.begin(page.at.len(), ways, internal, |_| [TERMINATOR; 2]);
    each_position(folder.beside(), |at| fold.beside(folder, at));
    let mut left = accesses;
    while let Some(access) = left.first() {
        let at = folder.bucket_of(bucket_of(page.at, &access.key));
        let position = fold.position(at);
        let (accesses, rest) =
            left.split_at(left.partition_point(|access| position.covers(&access.key)));
        left = rest;
        fold.keys(folder, at, accesses, results);
        folder.bucket(at, true);
    }
    Some(folder.end())
}

/// Positions whose keys are counted: groups, and those above.
const COUNTED: usize = (1 << (GROUP_LEVELS + 1)) - 1;

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
    /// Nodes of groups, where they are known.
    groups: [Option<&'a Node>; GROUPS as usize],
    /// How many keys groups and positions above them had; what is more than one may be too few.
    keys: [u8; COUNTED],
}

impl<'a> Fold<'a> {
    /// The node of a position then, where it is known.
    fn find(&self, level: u8, bits: u8) -> Option<&'a Node> {
        if self.then.touches(level, bits) {
            return match level {
                GROUP_LEVELS => self.then.group(bits),
                BUCKET_LEVELS => self.then.bucket(bits),
                _ => None,
            };
        }
        // Above it there may have been more keys then: what the treelet has below a leaf node is old.
        if let Some(node) = self.page.treelet.and_then(|known| known.below_internal(level, bits)) {
            return Some(node);
        }
        let leaf = self.page.leaf.filter(|leaf| level == leaf.levels() && level > 0)?;
        let position = self.page.at.descendant(level, bits);
        let pending = below(self.page.pending, &position);
        pending.is_empty().then(|| &leaf.nodes()[usize::from(bits)])
    }

    /// The same; groups are found already.
    fn node(&self, level: u8, bits: u8) -> Option<&'a Node> {
        if level == GROUP_LEVELS { self.groups[usize::from(bits)] } else { self.find(level, bits) }
    }

    /// Finds the nodes of groups, and how many keys they and the positions above them had.
    fn look_at_groups(&mut self) {
        for group in 0..GROUPS {
            let (node, at) = (self.find(GROUP_LEVELS, group), heap_index(GROUP_LEVELS, group));
            self.groups[usize::from(group)] = node;
            self.keys[usize::from(at)] = node.map_or_else(|| self.count_group(group), keys_of);
        }
        for at in (0..heap_index(GROUP_LEVELS, 0)).rev().map(usize::from) {
            self.keys[at] = self.keys[2 * at + 1] + self.keys[2 * at + 2];
        }
    }

    /// Is it known that the node of a position above the buckets was an internal one?
    fn is_internal(&self, at: u8) -> bool {
        if let Some(keys) = self.keys.get(usize::from(at)) {
            return *keys > 1;
        }
        let (level, bits) = heap_position(at);
        if let Some(node) = self.find(level, bits) {
            return kind(node) == NodeKind::Internal;
        }
        let buckets = bits << (BUCKET_LEVELS - level)..(bits + 1) << (BUCKET_LEVELS - level);
        let known = buckets.filter_map(|bits| self.find(BUCKET_LEVELS, bits));
        known.map(keys_of).sum::<u8>() > 1
    }

    /// How many keys a group had whose node is unknown: of buckets without a node all keys are asked for.
    fn count_group(&self, group: u8) -> u8 {
        if !self.goes_below(group) {
            return self.count(heap_index(GROUP_LEVELS, group));
        }
        let buckets = group * OF_GROUP..(group + 1) * OF_GROUP;
        let of = |bucket| match self.find(BUCKET_LEVELS, bucket) {
            Some(node) => keys_of(node),
            None => self.count(heap_index(BUCKET_LEVELS, bucket)),
        };
        buckets.map(of).sum()
    }

    /// Is a group, whose node is unknown, made of its buckets?
    fn goes_below(&self, group: u8) -> bool {
        self.then.is_open(group) && self.then.touches(GROUP_LEVELS, group)
    }

    /// How many keys a position had, all of which are asked for; at most two.
    fn count(&self, at: u8) -> u8 {
        let mut count = Count(0);
        self.keys(&mut count, at, &[], &mut Vec::new());
        count.0
    }

    fn position(&self, at: u8) -> Prefix {
        let (level, bits) = heap_position(at);
        self.page.at.descendant(level, bits)
    }

    /// Gives the node of a position below which nothing is accessed, or what makes it.
    fn beside<H: Hasher>(&self, folder: &mut TreeletFolder<H>, at: u8) {
        let (level, bits) = heap_position(at);
        if let Some(node) = self.node(level, bits) {
            return folder.known(at, node);
        }
        // Of what has changed the buckets of an open group have nodes, and groups; else all keys are asked for.
        let goes_on = match level {
            0..GROUP_LEVELS => true,
            GROUP_LEVELS => self.goes_below(bits),
            _ => level < BUCKET_LEVELS && self.then.touches(level, bits),
        };
        if goes_on {
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
        let position = self.position(at);
        let pending = below(self.page.pending, &position);
        let undone = below(self.undone, &position);
        if undone.is_empty() || pending.is_empty() {
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

/// Those of some sorted changes that are below a position.
fn below<'a>(changes: &'a [PendingChange], position: &Prefix) -> &'a [PendingChange] {
    let from = changes.partition_point(|change| change.0 < *position.first_key());
    let changes = &changes[from..];
    &changes[..changes.iter().take_while(|change| position.covers(&change.0)).count()]
}
