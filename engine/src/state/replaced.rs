//! The nodes that one commit replaced: of pages or regions, and of the buckets and groups inside of pages.
//!
//! A commit names each page that it changes with the node that it had, and says which of its buckets it
//! changes ([`pleach_beatree::older`]). Of the nodes that these buckets and their groups had, it has those
//! that memory had. They are in memory only: what the log brings back says which buckets were changed, by
//! the keys, and no more.

use pleach_beatree::older::{
    BUCKET_LEVELS, BUCKETS, GROUP_LEVELS, GROUPS, OlderSearch, Said, bucket_of, has_buckets,
};
use pleach_core::{Key, Node, Prefix, cpu_prefetch};

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
    /// Where its nodes begin: its own, then those inside.
    pub(super) start: u32,
    /// Are nodes inside unknown? Then the one after its own says which are known ([`inside`]).
    pub(super) is_partial: bool,
}

/// What a commit says of the inside of a page.
#[derive(Clone, Copy)]
pub(super) struct Inside<'a> {
    /// Buckets that it changed.
    pub(super) changed: u32,
    /// Are nodes unknown?
    pub(super) is_partial: bool,
    /// The commit's nodes from the page's own on.
    pub(super) nodes: &'a [Node],
}

impl<'a> Inside<'a> {
    /// Tells a search, which takes the nodes later ([`Self::said`]): they are asked for.
    #[inline]
    pub(super) fn tell(self, search: &mut OlderSearch, said: &mut Vec<Self>) {
        // Mostly a commit changes one bucket of a page: a group and the bucket, behind the masks if there are any.
        let end = self.nodes.len().min(3 + usize::from(self.is_partial));
        cpu_prefetch(&self.nodes[1.min(end)..end]);
        let by = u16::try_from(said.len()).expect("32 commits tell each of 32 searches something");
        search.say(self.changed, by);
        said.push(self);
    }

    /// What is said, and its nodes.
    #[inline]
    pub(super) fn said(&self) -> (Said, &'a [Node]) {
        if !self.is_partial {
            return (Said::whole(self.changed), &self.nodes[1..]);
        }
        let [groups, a, b, c, d, ..] = *self.nodes[1].as_bytes();
        let buckets = u32::from_le_bytes([a, b, c, d]);
        (Said { changed: self.changed, groups, buckets }, &self.nodes[2..])
    }
}

/// The masks of what is known, in the place of a node.
fn masks(said: &Said) -> Node {
    let mut bytes = [0; 32];
    bytes[0] = said.groups;
    bytes[1..5].copy_from_slice(&said.buckets.to_le_bytes());
    Node::new(bytes)
}

impl ReplacedList {
    /// Adds a prefix, after all that are in, which is to be taken as a whole.
    pub(crate) fn push(&mut self, prefix: Prefix, node: Node) {
        self.add_head(prefix);
        self.nodes.push(node);
    }

    fn add_head(&mut self, prefix: Prefix) {
        let start = u32::try_from(self.nodes.len()).expect("a record has fewer than 2^32 nodes");
        self.heads.push(Head { prefix, changed: 0, start, is_partial: false });
    }

    /// Makes room for so many pages, of which a commit changes so many keys.
    pub(crate) fn reserve(&mut self, pages: usize, keys: usize) {
        self.heads.reserve(pages);
        self.nodes.reserve(pages + 2 * keys);
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
        let Self { heads, nodes } = self;
        let Some(head) = heads.last_mut().filter(|_| has_buckets(&prefix)) else { return };
        let changed = changed.fold(0, |mask, key| mask | 1 << bucket_of(&prefix, key));
        let (whole, mut said) = (Said::whole(changed), Said { changed, ..Said::default() });
        let from = nodes.len();
        for group in (0..GROUPS).filter(|group| whole.groups >> group & 1 == 1) {
            if let Some(node) = known(GROUP_LEVELS, group) {
                said.groups |= 1 << group;
                nodes.push(node);
            }
        }
        for bucket in (0..BUCKETS).filter(|bucket| changed >> bucket & 1 == 1) {
            if let Some(node) = known(BUCKET_LEVELS, bucket) {
                said.buckets |= 1 << bucket;
                nodes.push(node);
            }
        }
        (head.changed, head.is_partial) = (changed, said != whole);
        if head.is_partial {
            nodes.insert(from, masks(&said));
        }
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

    /// What it replaced inside of a page.
    pub(super) fn inside(&self, prefix: &Prefix) -> Option<Inside<'_>> {
        let Head { changed, start, is_partial, .. } = *self.find(prefix)?;
        Some(Inside { changed, is_partial, nodes: &self.nodes[start as usize..] })
    }
}
