//! The nodes that one commit replaced: of pages or regions, and of the buckets and groups inside of pages.
//!
//! A commit names each page that it changes with the node that it had, and says which of its buckets it
//! changes ([`pleach_beatree::older`]). Of the nodes that these buckets and their groups had, it has those
//! that memory had. They are in memory only: what the log brings back says which buckets were changed, by
//! the keys, and no more.

use pleach_beatree::older::{
    BUCKET_LEVELS, BUCKETS, GROUP_LEVELS, GROUPS, OlderNodes, Said, bucket_of, groups_of,
    has_buckets,
};
use pleach_core::{Key, Node, Prefix};

/// A node that a commit replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplacedNode {
    pub(super) prefix: Prefix,
    /// The commit.
    pub(super) number: u64,
    pub(super) node: Node,
}

/// What one commit replaced of a prefix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before<'a> {
    pub(super) said: Said,
    /// The prefix's own node, and those inside.
    pub(super) nodes: &'a [Node],
}

/// The nodes that a commit replaced, of pages or of regions, in order.
#[derive(Debug, Default)]
pub(crate) struct ReplacedList {
    heads: Vec<Head>,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Head {
    prefix: Prefix,
    said: Said,
    /// Where its nodes begin.
    start: usize,
}

impl ReplacedList {
    /// Adds a prefix, after all that are in, which is to be taken as a whole.
    pub(crate) fn push(&mut self, prefix: Prefix, node: Node) {
        self.heads.push(Head { prefix, said: Said::default(), start: self.nodes.len() });
        self.nodes.push(node);
    }

    /// Adds a page: `changed` are the keys that the commit changes below it, and `known` knows the nodes that some
    /// positions, by their level below the prefix and their bits, had before.
    pub(crate) fn push_page<'a>(
        &mut self,
        prefix: Prefix,
        node: Node,
        changed: impl Iterator<Item = &'a Key>,
        known: impl Fn(u8, u8) -> Option<Node>,
    ) {
        self.push(prefix, node);
        let changed = changed.fold(0, |mask, key| mask | 1 << bucket_of(&prefix, key));
        let Some(head) = self.heads.last_mut().filter(|_| has_buckets(&prefix)) else { return };
        let said = &mut head.said;
        said.changed = changed;
        let groups = groups_of(changed);
        for group in (0..GROUPS).filter(|group| groups >> group & 1 == 1) {
            if let Some(node) = known(GROUP_LEVELS, group) {
                said.groups |= 1 << group;
                self.nodes.push(node);
            }
        }
        for bucket in (0..BUCKETS).filter(|bucket| changed >> bucket & 1 == 1) {
            if let Some(node) = known(BUCKET_LEVELS, bucket) {
                said.buckets |= 1 << bucket;
                self.nodes.push(node);
            }
        }
    }

    /// Prefixes and their nodes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Prefix, &Node)> {
        self.heads.iter().map(|head| (&head.prefix, &self.nodes[head.start]))
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.heads.capacity() * size_of::<Head>() + self.nodes.capacity() * size_of::<Node>()
    }

    fn before(&self, at: usize) -> Before<'_> {
        let Head { said, start, .. } = self.heads[at];
        Before { said, nodes: &self.nodes[start..][..=said.count()] }
    }

    /// All prefixes with what is said of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Prefix, Before<'_>)> {
        self.heads.iter().enumerate().map(|(at, head)| (&head.prefix, self.before(at)))
    }

    fn find(&self, prefix: &Prefix) -> Option<Before<'_>> {
        let at = self.heads.binary_search_by(|head| head.prefix.cmp(prefix)).ok()?;
        Some(self.before(at))
    }

    /// What commit `number` replaced in and around `prefix`, where this is its list.
    pub(super) fn below(&self, prefix: &Prefix, number: u64, found: &mut Vec<ReplacedNode>) {
        let replaced = |prefix: Prefix, node: &Node| ReplacedNode { prefix, number, node: *node };
        for depth in 0..prefix.len() {
            let above = Prefix::new(prefix.first_key(), depth);
            found.extend(self.find(&above).map(|before| replaced(above, &before.nodes[0])));
        }
        let from = self.heads.partition_point(|head| head.prefix < *prefix);
        let below = self.heads[from..].iter().take_while(|head| prefix.contains(&head.prefix));
        found.extend(below.map(|head| replaced(head.prefix, &self.nodes[head.start])));
    }

    /// What it replaced inside of a page.
    pub(super) fn inside(&self, prefix: &Prefix, then: &mut OlderNodes) {
        if let Some(Before { said, nodes }) = self.find(prefix) {
            then.say(&said, &nodes[1..]);
        }
    }
}
