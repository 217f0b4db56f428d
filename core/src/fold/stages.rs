//! Messages to hash, by their height, and where each hash goes.
//!
//! A message is 64 bytes, kept as two nodes: at height 0 the key and the value's hash of a leaf, at all others the
//! nodes of two children. All messages of one height are hashed together.
//!
//! Invariant: the halves of a message are given, or are hashes of lower heights. So running the heights in order finds
//! both halves in place.

use alloc::vec::Vec;

use super::values::Values;
use super::{HashId, NodeOwner};
use crate::node::{Key, Node, TERMINATOR, tag_internal, tag_leaf};
use crate::tree::index32;

/// The height of known nodes.
const KNOWN: u16 = u16::MAX;
/// The height of pairs that are not hashed: a terminator beside a leaf or a terminator.
const UNHASHED: u16 = u16::MAX - 1;

/// Where a node comes from: a message, by its height and number, or the known nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    height: u16,
    at: u32,
}

impl Source {
    /// The source of a terminator, which is never read.
    pub(super) const NOTHING: Self = Self { height: KNOWN, at: 0 };

    /// The least height of messages that contain the node.
    #[inline]
    pub(super) fn above(self) -> u16 {
        if self.height == KNOWN { 1 } else { self.height + 1 }
    }

    /// Both fields, in the lower 48 bits.
    #[inline]
    pub(super) const fn pack(self) -> u64 {
        (self.height as u64) << 32 | self.at as u64
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the fields of the word")]
    pub(super) const fn unpack(word: u64) -> Self {
        Self { height: (word >> 32) as u16, at: word as u32 }
    }
}

/// Where a node goes.
#[derive(Clone, Copy, Debug)]
enum Destination {
    Nowhere,
    /// Half `at & 1` of message `at / 2` of a height.
    Half(u16, u32),
    Sibling(u32),
    Known(u32),
    Watched(u32),
}

/// Messages of one height.
#[derive(Debug, Default)]
struct HashStage {
    pairs: Vec<[Node; 2]>,
    /// Where each hash goes; seldom to several places.
    destinations: Vec<Destination>,
    more_destinations: Vec<(u32, Destination)>,
}

/// All messages and their results. Buffers are reused.
#[derive(Default)]
pub(super) struct HashStages {
    /// By height; the first `used` of them have messages.
    all: Vec<HashStage>,
    used: usize,
    /// The value of each leaf.
    leaf_values: Vec<HashId>,
    known: Vec<Node>,
    unhashed: Vec<[Node; 2]>,
    pub(super) siblings: Vec<Node>,
    watched: Vec<Node>,
    /// The boundaries of tilings whose lines are kept, and the source of each pair.
    kept_lines: Vec<(u32, Source)>,
    /// The positions of treelets whose nodes are kept, and the source of each.
    kept_nodes: Vec<(u8, Source)>,
    /// Hashed lines.
    pub(super) lines: Vec<(u32, [Node; 2])>,
    pub(super) nodes: Vec<(u8, Node)>,
    out: Vec<[u8; 32]>,
}

impl HashStages {
    pub(super) fn clear(&mut self) {
        self.clear_messages();
        self.known.clear();
        self.siblings.clear();
        self.watched.clear();
        self.lines.clear();
        self.nodes.clear();
    }

    fn clear_messages(&mut self) {
        for stage in &mut self.all[..self.used] {
            stage.pairs.clear();
            stage.destinations.clear();
            stage.more_destinations.clear();
        }
        self.used = 0;
        self.leaf_values.clear();
        self.unhashed.clear();
        self.kept_lines.clear();
        self.kept_nodes.clear();
    }

    /// Numbers of kept nodes of treelets, and of lines, so far.
    #[inline]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.nodes.len() + self.kept_nodes.len(), self.lines.len() + self.kept_lines.len())
    }

    /// Adds a known node.
    pub(super) fn known(&mut self, node: &Node) -> Source {
        self.known.push(*node);
        Source { height: KNOWN, at: index32(self.known.len() - 1) }
    }

    /// Adds a leaf.
    #[inline]
    pub(super) fn leaf(&mut self, key: &Key, value: HashId) -> Source {
        self.leaf_values.push(value);
        self.push(0, &[*Node::ref_of(key), TERMINATOR])
    }

    /// Adds the node above one half of a line, which is given, and a node on the other side; at a height above both.
    #[inline]
    pub(super) fn push_beside(
        &mut self,
        height: u16,
        line: &[Node; 2],
        right: bool,
        own: Option<Source>,
        home: NodeOwner,
    ) -> Source {
        let source = self.push(height, line);
        let half = source.at << 1 | u32::from(right);
        match own {
            Some(own) => self.send(own, Destination::Half(height, half)),
            None => self.put(Destination::Half(height, half), &TERMINATOR),
        }
        self.keep(source, home);
        source
    }

    /// Adds the node above two, at a height above both.
    #[inline]
    pub(super) fn push_over(
        &mut self,
        height: u16,
        halves: [Option<Source>; 2],
        home: NodeOwner,
    ) -> Source {
        let source = self.push(height, &[TERMINATOR; 2]);
        for (side, own) in (0..).zip(halves) {
            if let Some(own) = own {
                self.send(own, Destination::Half(height, source.at << 1 | side));
            }
        }
        self.keep(source, home);
        source
    }

    /// Keeps the line of a boundary whose node is not hashed: at most one half is not a terminator, and that is a leaf,
    /// given or from a source.
    pub(super) fn keep_unhashed(
        &mut self,
        line: &[Node; 2],
        halves: [Option<Source>; 2],
        home: NodeOwner,
    ) {
        let NodeOwner::Line(boundary) = home else { return };
        let at = index32(self.unhashed.len());
        self.unhashed.push(*line);
        for (side, own) in (0..).zip(halves) {
            if let Some(own) = own {
                self.send(own, Destination::Half(UNHASHED, at << 1 | side));
            }
        }
        self.kept_lines.push((boundary, Source { height: UNHASHED, at }));
    }

    /// Keeps a pair of nodes, if it has an owner.
    #[inline]
    fn keep(&mut self, pair: Source, home: NodeOwner) {
        match home {
            NodeOwner::Nobody => {}
            NodeOwner::Line(boundary) => self.kept_lines.push((boundary, pair)),
            NodeOwner::Treelet { parent, fresh } => {
                for side in (0..2).filter(|side| fresh >> side & 1 == 1) {
                    let half = Source { at: pair.at << 1 | u32::from(side), ..pair };
                    self.kept_nodes.push((2 * parent + 1 + side, half));
                }
            }
        }
    }

    #[inline]
    fn push(&mut self, height: u16, pair: &[Node; 2]) -> Source {
        let at = usize::from(height);
        if at >= self.used {
            self.used = at + 1;
            if at >= self.all.len() {
                self.all.resize_with(at + 1, HashStage::default);
            }
        }
        let stage = &mut self.all[at];
        stage.pairs.push(*pair);
        stage.destinations.push(Destination::Nowhere);
        Source { height, at: index32(stage.pairs.len() - 1) }
    }

    /// Adds the next sibling.
    pub(super) fn sibling(&mut self, source: Option<Source>) {
        let at = index32(self.siblings.len());
        self.siblings.push(TERMINATOR);
        if let Some(source) = source {
            self.send(source, Destination::Sibling(at));
        }
    }

    /// Marks a node to be read after hashing; returns its number.
    pub(super) fn watch(&mut self, source: Option<Source>) -> u32 {
        let at = index32(self.watched.len());
        self.watched.push(TERMINATOR);
        if let Some(source) = source {
            self.send(source, Destination::Watched(at));
        }
        at
    }

    /// A node that was watched.
    #[inline]
    pub(super) fn watched(&self, at: u32) -> &Node {
        &self.watched[at as usize]
    }

    #[inline]
    fn send(&mut self, Source { height, at }: Source, into: Destination) {
        if height == KNOWN {
            let node = self.known[at as usize];
            return self.put(into, &node);
        }
        let stage = &mut self.all[usize::from(height)];
        match &mut stage.destinations[at as usize] {
            own @ Destination::Nowhere => *own = into,
            _ => stage.more_destinations.push((at, into)),
        }
    }

    /// The place of a node in the results.
    #[inline]
    fn destination_mut(&mut self, into: Destination) -> Option<&mut Node> {
        let (pair, at) = match into {
            Destination::Nowhere => return None,
            Destination::Half(UNHASHED, at) => (&mut self.unhashed[(at >> 1) as usize], at),
            Destination::Half(height, at) => {
                (&mut self.all[usize::from(height)].pairs[(at >> 1) as usize], at)
            }
            Destination::Sibling(at) => return Some(&mut self.siblings[at as usize]),
            Destination::Known(at) => return Some(&mut self.known[at as usize]),
            Destination::Watched(at) => return Some(&mut self.watched[at as usize]),
        };
        Some(&mut pair[(at & 1) as usize])
    }

    #[inline]
    fn put(&mut self, into: Destination, node: &Node) {
        if let Some(place) = self.destination_mut(into) {
            *place = *node;
        }
    }

    /// Hashes all messages, from the values up.
    pub(super) fn run(&mut self, values: &mut Values) {
        values.run();
        let mut out = core::mem::take(&mut self.out);
        for height in 0..self.used {
            let mut stage = core::mem::take(&mut self.all[height]);
            if height == 0 {
                for (leaf, value) in stage.pairs.iter_mut().zip(&self.leaf_values) {
                    leaf[1] = *Node::ref_of(values.hash(*value).as_bytes());
                }
            }
            let blocks = Node::bytes_of(stage.pairs.as_flattened()).as_chunks().0;
            out.resize(blocks.len().max(out.len()), [0; 32]);
            values.hasher.hash64_many(blocks, &mut out[..blocks.len()]);
            values.hashed += blocks.len() as u64;
            // All of them first: a byte that is changed right before its hash is copied delays the copy.
            let hashes = &mut out[..stage.pairs.len()];
            match height {
                0 => hashes.iter_mut().for_each(|hash| *hash = tag_leaf(*hash).to_bytes()),
                _ => hashes.iter_mut().for_each(|hash| *hash = tag_internal(*hash).to_bytes()),
            }
            for (into, node) in stage.destinations.iter().zip(&*hashes) {
                self.put(*into, Node::ref_of(node));
            }
            for (at, into) in &stage.more_destinations {
                self.put(*into, Node::ref_of(&hashes[*at as usize]));
            }
            self.all[height] = stage;
        }
        self.out = out;
        let Self { all, unhashed, .. } = self;
        let pair = |source: Source| match source {
            Source { height: UNHASHED, at } => &unhashed[at as usize],
            Source { height, at } => &all[usize::from(height)].pairs[at as usize],
        };
        let lines = self.kept_lines.drain(..);
        self.lines.extend(lines.map(|(boundary, source)| (boundary, *pair(source))));
        let nodes = self.kept_nodes.drain(..).map(|(position, Source { height, at })| {
            (position, pair(Source { height, at: at >> 1 })[(at & 1) as usize])
        });
        self.nodes.extend(nodes);
    }

    /// Hashes all messages so far. Only the nodes of these sources are kept, as known ones.
    pub(super) fn hash_so_far<'a>(
        &mut self,
        values: &mut Values,
        sources: impl Iterator<Item = &'a mut Source>,
    ) {
        let mut live = Vec::new();
        for source in sources {
            let known = Source { height: KNOWN, at: index32(live.len()) };
            live.push(core::mem::replace(source, known));
        }
        // Unused known nodes are removed and used ones kept, by way of the end of the list.
        let from = self.known.len();
        self.known.resize(from + live.len(), TERMINATOR);
        for (at, source) in live.into_iter().enumerate() {
            self.send(source, Destination::Known(index32(from + at)));
        }
        self.run(values);
        self.known.drain(..from);
        self.clear_messages();
    }
}
