//! The nodes that one commit replaced: of pages or regions, and inside of pages.
//!
//! A commit names each page that it changes with the node that it had, and says which of its buckets it
//! changes ([`pleach_beatree::older`]). Of the nodes that the positions on the way to these had, it has those
//! that the finish knew or found out, and so has its record; for the others there is room, and proofs find them
//! out ([`super::node_versions`]).

use pleach_beatree::older::{OlderSearch, UNKNOWN, bucket_of, has_buckets, ways_to};
use pleach_core::{Key, Node, Prefix};

use crate::format::commit_body::Inside;

/// A node that a commit replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplacedNode {
    pub(super) prefix: Prefix,
    /// The commit.
    pub(super) number: u64,
    pub(super) node: Node,
}

/// The nodes that a commit replaced, of pages or of regions, in order.
#[derive(Debug, Default)]
pub(crate) struct ReplacedList {
    heads: Vec<Head>,
    nodes: Vec<Node>,
}

/// What a commit replaced of a prefix.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) prefix: Prefix,
    /// Buckets that it changed.
    pub(super) changed: u32,
    /// Where its nodes begin: its own, then those of the positions on the way to these buckets.
    pub(super) start: u32,
}

impl ReplacedList {
    /// Adds a prefix, after all that are in, which is to be taken as a whole.
    pub(crate) fn push(&mut self, prefix: Prefix, node: Node) {
        self.add_head(prefix);
        self.nodes.push(node);
    }

    fn add_head(&mut self, prefix: Prefix) {
        let start = u32::try_from(self.nodes.len()).expect("a record has fewer than 2^32 nodes");
        self.heads.push(Head { prefix, changed: 0, start });
    }

    /// Makes room for so many pages, of which a commit changes so many keys: a plain trie's has none.
    pub(crate) fn reserve(&mut self, pages: usize, keys: usize) {
        let inside = pages * ways_to(u32::MAX).count_ones() as usize;
        self.heads.reserve(pages);
        self.nodes.reserve(pages + inside.min(5 * keys));
    }

    /// These lists, which follow each other, as one.
    pub(crate) fn joined(mut lists: Vec<Self>) -> Self {
        if lists.len() == 1 {
            return lists.remove(0);
        }
        let mut nodes = Vec::with_capacity(lists.iter().map(|list| list.nodes.len()).sum());
        let mut heads = Vec::with_capacity(lists.iter().map(|list| list.heads.len()).sum());
        for list in lists {
            let from = u32::try_from(nodes.len()).expect("a record has fewer than 2^32 nodes");
            heads.extend(
                list.heads.into_iter().map(|head| Head { start: from + head.start, ..head }),
            );
            nodes.extend_from_slice(&list.nodes);
        }
        Self { heads, nodes }
    }

    /// Adds a page of which a commit changes these buckets; `inside` are the nodes that the positions on the way to them
    /// had before, without its own, each maybe [`UNKNOWN`].
    ///
    /// # Panics
    /// When these are too few or too many.
    pub(crate) fn push_page(&mut self, prefix: Prefix, node: Node, changed: u32, inside: &[Node]) {
        assert_eq!(
            inside.len(),
            inside_of(changed).count_ones() as usize,
            "a node for each position"
        );
        self.push(prefix, node);
        self.nodes.extend_from_slice(inside);
        if let Some(head) = self.heads.last_mut() {
            head.changed = changed;
        }
    }

    /// The same as a record has it, which says what was inside: false, with nothing added, where that is of other
    /// positions than those on the ways to the keys that were changed below the prefix.
    #[must_use]
    pub(crate) fn push_recorded<'a>(
        &mut self,
        prefix: Prefix,
        node: Node,
        changed: impl Iterator<Item = &'a Key>,
        inside: Inside<'_>,
    ) -> bool {
        let changed = changed.filter(|_| has_buckets(&prefix));
        let changed = changed.fold(0, |mask, key| mask | 1 << bucket_of(&prefix, key));
        let ways = inside_of(changed);
        if inside.positions & !ways != 0 {
            return false;
        }
        self.push(prefix, node);
        let mut known = inside.nodes();
        let own = |at: u8| if inside.positions >> at & 1 == 1 { known.next() } else { None };
        self.nodes.extend(positions(ways).map(own).map(|node| *node.unwrap_or(&UNKNOWN)));
        if let Some(head) = self.heads.last_mut() {
            head.changed = changed;
        }
        true
    }

    /// Prefixes with their nodes, and what was known inside, by position.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (&Node, impl Iterator<Item = (u8, &Node)>)> {
        self.heads.iter().map(|head| {
            let inside = &self.nodes[head.start as usize + 1..];
            let known = positions(inside_of(head.changed)).zip(inside);
            (self.own(head), known.filter(|(_, node)| **node != UNKNOWN))
        })
    }

    /// Prefixes and their nodes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Prefix, &Node)> {
        self.heads.iter().map(|head| (&head.prefix, self.own(head)))
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.heads.capacity() * size_of::<Head>() + self.nodes.capacity() * size_of::<Node>()
    }

    /// What it says of each prefix.
    pub(super) fn heads(&self) -> &[Head] {
        &self.heads
    }

    /// All its nodes.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn own(&self, head: &Head) -> &Node {
        &self.nodes[head.start as usize]
    }

    fn find(&self, prefix: &Prefix) -> Option<&Head> {
        let at = self.heads.binary_search_by(|head| head.prefix.cmp(prefix)).ok()?;
        Some(&self.heads[at])
    }

    /// What commit `number` replaced in and around `prefix`, where this is its list.
    pub(super) fn below(&self, prefix: &Prefix, number: u64, found: &mut Vec<ReplacedNode>) {
        let replaced =
            |head: &Head| ReplacedNode { prefix: head.prefix, number, node: *self.own(head) };
        for depth in 0..prefix.len() {
            let above = Prefix::new(prefix.first_key(), depth);
            found.extend(self.find(&above).map(replaced));
        }
        let from = self.heads.partition_point(|head| head.prefix < *prefix);
        let below = self.heads[from..].iter().take_while(|head| prefix.contains(&head.prefix));
        found.extend(below.map(replaced));
    }

    /// Tells a search what it replaced inside of a page.
    pub(super) fn inside<'a>(&'a self, prefix: &Prefix, search: &mut OlderSearch<'a>) {
        let Some(Head { changed, start, .. }) = self.find(prefix) else { return };
        if !search.is_done() && search.is_news(*changed) {
            let nodes = &self.nodes[*start as usize..];
            search.say(*changed, |at| nodes.get(at));
        }
    }
}

/// Positions on the way to some buckets, without the page's own, as a mask.
fn inside_of(buckets: u32) -> u64 {
    ways_to(buckets) & !1
}

/// The positions of a mask, in order.
fn positions(mut left: u64) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let at = (left != 0).then(|| left.trailing_zeros().to_le_bytes()[0])?;
        left &= left - 1;
        Some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window counts what its lists have room for.
    #[test]
    fn without_pages_nothing_is_reserved() {
        let mut list = ReplacedList::default();
        list.reserve(0, 1000);
        assert_eq!(list.bytes(), 0);
        list.reserve(2, 1000);
        assert!(list.bytes() < 8192, "{}", list.bytes());
    }
}
