//! What the nodes of prefixes were before the commits that changed them.
//!
//! A commit says what it replaced for the pages, or regions, of the layout that it was published in. Flushes change
//! layouts, so a prefix may not have been a page's when a commit changed a key below it: then the commit has
//! replaced the node of a finer or a coarser prefix, and that of this one is not known. [`then`] tells both from a
//! prefix that nothing has changed below. Each prefix has a list of what commits replaced there; prefixes are in
//! order, in shards by their first bits.
//!
//! Used by [`super::undo_maps`] alone, with one of these for pages and one for regions.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use pleach_core::search::lower_bound_near;
use pleach_core::{Key, Node, Prefix};

/// What is known of a prefix's node as of an older commit; or what overlays say of it, where the changes are theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeThen {
    /// No later commit, and no overlay, has changed a key below it.
    Unchanged,
    /// It was this, and after the newest of the overlays that have changed it, it is.
    Recorded(Node),
    /// A later commit or an overlay has changed a key below it, and no page or region had this prefix then.
    Unrecorded,
}

impl NodeThen {
    /// What overlays say, over what is known of the commit below them: a node that one has recorded stays the node in it,
    /// whatever is committed.
    pub(crate) fn over(self, then: impl FnOnce() -> Self) -> Self {
        if self == Self::Unchanged { then() } else { self }
    }
}

/// A node that a commit replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplacedNode {
    pub(super) prefix: Prefix,
    /// The commit.
    pub(super) number: u64,
    pub(super) node: Node,
}

/// What commit `number` replaced in and around `prefix`, where this is its list, in order.
pub(super) fn replaced_below(
    list: &[(Prefix, Node)],
    number: u64,
    prefix: &Prefix,
    found: &mut Vec<ReplacedNode>,
) {
    let replaced =
        |(prefix, node): &(Prefix, Node)| ReplacedNode { prefix: *prefix, number, node: *node };
    for depth in 0..prefix.len() {
        let above = Prefix::new(prefix.first_key(), depth);
        let at = list.binary_search_by(|one| one.0.cmp(&above));
        found.extend(at.ok().map(|at| replaced(&list[at])));
    }
    let from = list.partition_point(|one| one.0 < *prefix);
    let below = list[from..].iter().take_while(|one| prefix.contains(&one.0));
    found.extend(below.map(replaced));
}

/// The nodes that commits replaced of a prefix, ascending by commit: there is one at least.
type Versions = Vec<(u64, Node)>;

type Shard = RwLock<BTreeMap<Prefix, Versions>>;

/// Neighbours that are passed on the way to the next prefix before it is searched for: a commit of many changes has a
/// good part of a shard's prefixes.
const NEAR: usize = 8;
/// Bytes of an entry: the nodes of a B-tree are between half and entirely full.
const ENTRY: usize = size_of::<(Prefix, Versions)>() * 3 / 2;

/// The shard of a key, by its first `bits` bits, at most 16: keys in order have shards in order.
fn shard(bits: u32, key: &Key) -> usize {
    usize::from(u16::from_be_bytes([key[0], key[1]])) >> (16 - bits)
}

/// Nodes by prefix and commit.
pub(super) struct NodeVersions {
    shards: OnceLock<Box<[Shard]>>,
    /// Leading bits that a shard is named by.
    bits: u32,
    bytes: AtomicUsize,
    /// The newest commit that replaced a node at each depth; 0 for none.
    depths: Box<[AtomicU64]>,
}

impl NodeVersions {
    /// Nodes whose map is cut by the first `bits` bits of their prefixes, at most 16.
    pub(super) fn new(bits: u32) -> Self {
        let depths = (0..=256).map(|_| AtomicU64::new(0)).collect();
        Self { shards: OnceLock::new(), bits, bytes: AtomicUsize::new(0), depths }
    }

    fn shard(&self, prefix: &Prefix) -> usize {
        shard(self.bits, prefix.first_key())
    }

    /// Bytes that it takes: lists exactly, the tree's nodes as they are on average.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Puts in what commit `number`, later than all that are in, has replaced: prefixes in order.
    pub(super) fn insert(&self, number: u64, mut replaced: &[(Prefix, Node)]) {
        let all = || (0..1_usize << self.bits).map(|_| RwLock::default()).collect();
        let shards = self.shards.get_or_init(all);
        let mut bytes = 0;
        while let Some(at) = replaced.first().map(|one| self.shard(&one.0)) {
            let mut map = shards[at].write();
            let (own, rest) =
                replaced.split_at(replaced.partition_point(|one| self.shard(&one.0) == at));
            replaced = rest;
            let (mut known, mut new) = (map.range_mut(own[0].0..).peekable(), Vec::new());
            for (prefix, node) in own {
                let depth = &self.depths[usize::from(prefix.len())];
                // Nobody else puts anything in, and most prefixes are of one depth.
                if depth.load(Ordering::Relaxed) < number {
                    depth.store(number, Ordering::Release);
                }
                let mut steps = 0;
                while known.next_if(|(one, _)| *one < prefix).is_some() {
                    steps += 1;
                    if steps == NEAR {
                        known = map.range_mut(*prefix..).peekable();
                    }
                }
                match known.next_if(|(one, _)| *one == prefix) {
                    Some((_, versions)) => bytes += push(versions, (number, *node)),
                    None => new.push((*prefix, *node)),
                }
            }
            for (prefix, node) in new {
                bytes += push(map.entry(prefix).or_default(), (number, node));
            }
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What commits after `base` have replaced below `prefix` and, above it, for a prefix that contains
    /// it: of each prefix the oldest.
    pub(super) fn below(&self, prefix: &Prefix, base: u64, found: &mut Vec<ReplacedNode>) {
        let Some(shards) = self.shards.get() else { return };
        let mut see = |prefix: &Prefix, versions: &Versions| {
            found.extend(first_after(versions, base).map(|(number, node)| ReplacedNode {
                prefix: *prefix,
                number: *number,
                node: *node,
            }));
        };
        for depth in 0..prefix.len() {
            if self.depths[usize::from(depth)].load(Ordering::Acquire) > base {
                let above = Prefix::new(prefix.first_key(), depth);
                if let Some(versions) = shards[self.shard(&above)].read().get(&above) {
                    see(&above, versions);
                }
            }
        }
        let last = Prefix::new(&prefix.last_key(), 256);
        for map in &shards[self.shard(prefix)..=self.shard(&last)] {
            for (prefix, versions) in map.read().range(*prefix..=last) {
                see(prefix, versions);
            }
        }
    }

    /// Drops what the commits through `floor` have replaced.
    pub(super) fn drop_through(&self, floor: u64) {
        let mut left = 0;
        for map in self.shards.get().into_iter().flatten() {
            map.write().retain(|_, versions| {
                let gone = versions.partition_point(|one| one.0 <= floor);
                if gone > 0 {
                    versions.drain(..gone);
                    versions.shrink_to(versions.len() + versions.len() / 4);
                }
                let stays = !versions.is_empty();
                let bytes = ENTRY + versions.capacity() * size_of::<(u64, Node)>();
                left += if stays { bytes } else { 0 };
                stays
            });
        }
        // Nobody puts a commit in meanwhile.
        self.bytes.store(left, Ordering::Relaxed);
    }

    /// Drops all.
    pub(super) fn clear(&self) {
        for map in self.shards.get().into_iter().flatten() {
            let gone = std::mem::take(&mut *map.write());
            drop(gone);
        }
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// Adds a version, newer than all; gives the bytes that it took.
fn push(versions: &mut Versions, version: (u64, Node)) -> usize {
    let (count, had) = (versions.len(), versions.capacity());
    debug_assert!(versions.last().is_none_or(|last| last.0 < version.0), "in order");
    if count == had {
        // Doubling would leave a quarter of all memory unused.
        versions.reserve_exact(count / 4 + 1);
    }
    versions.push(version);
    let bytes = (versions.capacity() - had) * size_of::<(u64, Node)>();
    if count == 0 { ENTRY + bytes } else { bytes }
}

/// The first version after `base`: searched from where it is expected, since commits change a prefix about as often as each
/// other.
fn first_after(versions: &Versions, base: u64) -> Option<&(u64, Node)> {
    let (count, newest) = (versions.len(), versions.last()?.0);
    if newest <= base {
        return None;
    }
    let oldest = versions[0].0;
    let since = base.saturating_sub(oldest).saturating_mul(count as u64);
    let guess = usize::try_from(since / (newest - oldest).max(1)).unwrap_or(count);
    versions.get(lower_bound_near(guess, count, |at| versions[at].0 <= base))
}

/// What the nodes that were replaced in and around it say of one prefix.
pub(super) fn then(prefix: &Prefix, around: &[ReplacedNode]) -> NodeThen {
    let own = around.iter().filter(|one| one.prefix == *prefix).min_by_key(|one| one.number);
    let others = around.iter().filter(|one| {
        one.prefix != *prefix && (one.prefix.contains(prefix) || prefix.contains(&one.prefix))
    });
    let other = others.map(|one| one.number).min();
    match (own, other) {
        (None, None) => NodeThen::Unchanged,
        (Some(own), None) => NodeThen::Recorded(own.node),
        // The prefix was a page's when the oldest of them came.
        (Some(own), Some(other)) if own.number < other => NodeThen::Recorded(own.node),
        _ => NodeThen::Unrecorded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> Node {
        Node::new([number; 32])
    }

    fn asked(versions: &NodeVersions, prefix: Prefix, base: u64) -> NodeThen {
        let mut around = Vec::new();
        versions.below(&prefix, base, &mut around);
        then(&prefix, &around)
    }

    #[test]
    fn a_node_is_known_only_while_its_prefix_was_a_pages() {
        use NodeThen::{Recorded, Unchanged, Unrecorded};
        let root = Prefix::ROOT;
        let (left, right) = (root.child(false), root.child(true));
        let versions = NodeVersions::new(9);
        // Commits 1 and 2 find one page, 3 and 4 two, 5 one again.
        versions.insert(1, &[(root, node(0))]);
        versions.insert(2, &[(root, node(1))]);
        versions.insert(3, &[(left, node(2))]);
        versions.insert(4, &[(left, node(3)), (right, node(3))]);
        versions.insert(5, &[(root, node(4))]);
        let as_of = |prefix| (0..=5).map(|base| asked(&versions, prefix, base)).collect::<Vec<_>>();
        let known = |number| Recorded(node(number));
        assert_eq!(as_of(root), [known(0), known(1), Unrecorded, Unrecorded, known(4), Unchanged]);
        assert_eq!(
            as_of(left),
            [Unrecorded, Unrecorded, known(2), known(3), Unrecorded, Unchanged]
        );
        assert_eq!(
            as_of(right),
            [Unrecorded, Unrecorded, known(3), known(3), Unrecorded, Unchanged]
        );
        versions.drop_through(4);
        assert_eq!((asked(&versions, root, 4), asked(&versions, root, 5)), (known(4), Unchanged));
        let left = versions.bytes();
        versions.clear();
        assert_eq!((left, versions.bytes()), (ENTRY + size_of::<(u64, Node)>(), 0));
    }

    #[test]
    fn of_each_prefix_the_oldest_later_commit_says_what_was_there() {
        let (versions, mut commits) = (NodeVersions::new(6), Vec::new());
        for number in 1..200_u64 {
            // Some commits do not change the page, and long stretches of them do not.
            if number % 7 < 3 && !(60..120).contains(&number) {
                commits.push(number);
                versions.insert(number, &[(Prefix::ROOT, node(number.to_le_bytes()[0]))]);
            }
        }
        for floor in [0, 40, 130] {
            versions.drop_through(floor);
            for base in floor..200 {
                let mut found = Vec::new();
                versions.below(&Prefix::ROOT, base, &mut found);
                let oldest = commits.iter().find(|number| **number > base).copied();
                assert_eq!(found.first().map(|one| one.number), oldest, "as of {base}");
                let own = found.first().map(|one| one.node);
                assert_eq!(own, oldest.map(|number| node(number.to_le_bytes()[0])));
            }
        }
    }
}
