//! Messages to hash, by their height above the children, and where each hash goes.
//!
//! Invariant: a message of a batch is made of hashes of lower batches, so that running the batches from the lowest to the
//! highest finds both halves in place.

use alloc::vec::Vec;

use super::numbers::index32;
use crate::hasher::Hasher;
use crate::node::{Node, tag_internal};

/// Where a line belongs: the number of its tiling in the order in which they were begun, and the boundary there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) tiling: u32,
    pub(super) boundary: u32,
}

/// Where a node comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// It is known: its number among these.
    Known(u32),
    /// A message: its batch and its number there.
    Pair(u16, u32),
}

/// Where a node goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Into {
    Nowhere,
    /// Half `at & 1` of message `at / 2` of a batch.
    Half(u16, u32),
    /// Half `at & 1` of line `at / 2` of those that are not hashed.
    Quiet(u32),
    Sibling(u32),
    Watched(u32),
}

/// Messages and where their hashes go: to one place nearly always; `more` has the others.
#[derive(Debug, Default)]
struct Dest {
    into: Vec<Into>,
    more: Vec<(u32, Into)>,
}

impl Dest {
    fn send(&mut self, at: u32, into: Into) {
        match &mut self.into[at as usize] {
            own @ Into::Nowhere => *own = into,
            _ => self.more.push((at, into)),
        }
    }

    fn clear(&mut self) {
        self.into.clear();
        self.more.clear();
    }
}

/// A batch of messages of one height.
#[derive(Debug, Default)]
struct Stage {
    pairs: Vec<[Node; 2]>,
    homes: Vec<Home>,
    dest: Dest,
}

/// All of it. Buffers are used again.
#[derive(Default)]
pub(super) struct Stages {
    /// Batches by height; the first `used` of them have messages.
    rounds: Vec<Stage>,
    used: usize,
    known: Vec<Node>,
    /// Lines that are no messages: one half is a terminator and the other a leaf or a terminator.
    quiet: Vec<[Node; 2]>,
    quiet_homes: Vec<Home>,
    pub(super) siblings: Vec<Node>,
    pub(super) watched: Vec<Node>,
    out: Vec<[u8; 32]>,
    pub(super) hashed: u64,
}

impl Stages {
    pub(super) fn clear(&mut self) {
        for stage in &mut self.rounds[..self.used] {
            stage.pairs.clear();
            stage.homes.clear();
            stage.dest.clear();
        }
        self.used = 0;
        self.known.clear();
        self.quiet.clear();
        self.quiet_homes.clear();
        self.siblings.clear();
        self.watched.clear();
    }

    /// A node that is known.
    pub(super) fn known(&mut self, node: &Node) -> Source {
        self.known.push(*node);
        Source::Known(index32(self.known.len() - 1))
    }

    /// A message of batch `round`; halves that are not known yet are sent there.
    #[inline]
    pub(super) fn pair(&mut self, round: u16, pair: &[Node; 2], home: Home) -> u32 {
        let at = usize::from(round);
        if at >= self.used {
            self.used = at + 1;
            if at >= self.rounds.len() {
                self.rounds.resize_with(at + 1, Stage::default);
            }
        }
        let stage = &mut self.rounds[at];
        stage.pairs.push(*pair);
        stage.homes.push(home);
        stage.dest.into.push(Into::Nowhere);
        index32(stage.pairs.len() - 1)
    }

    /// A line that is no message.
    pub(super) fn quiet(&mut self, home: Home) -> u32 {
        self.quiet.push([Node::default(); 2]);
        self.quiet_homes.push(home);
        index32(self.quiet.len() - 1)
    }

    /// Sends a node to a place, one of any number.
    #[inline]
    pub(super) fn send(&mut self, source: Source, into: Into) {
        match source {
            Source::Known(at) => {
                let node = self.known[at as usize];
                self.deliver(into, &node);
            }
            Source::Pair(round, at) => self.rounds[usize::from(round)].dest.send(at, into),
        }
    }

    fn deliver(&mut self, into: Into, node: &Node) {
        let Self { rounds, quiet, siblings, watched, .. } = self;
        put(rounds, quiet, siblings, watched, 0, into, node);
    }

    /// Hashes everything.
    pub(super) fn run(&mut self, hasher: Hasher) {
        let Self { rounds: stages, used, quiet, siblings, watched, out, hashed, .. } = self;
        let mut hash = |blocks: &[[u8; 64]], out: &mut Vec<[u8; 32]>| {
            out.resize(blocks.len().max(out.len()), [0; 32]);
            hasher.hash64_many(blocks, &mut out[..blocks.len()]);
            *hashed += blocks.len() as u64;
        };
        for round in 0..*used {
            let (own, above) = stages.split_at_mut(round + 1);
            let Stage { pairs, dest, .. } = &own[round];
            hash(blocks(pairs), out);
            for (into, hash) in dest.into.iter().zip(&*out) {
                put(above, quiet, siblings, watched, round + 1, *into, &tag_internal(*hash));
            }
            for (at, into) in &dest.more {
                let node = tag_internal(out[*at as usize]);
                put(above, quiet, siblings, watched, round + 1, *into, &node);
            }
        }
    }

    /// All lines, after [`Self::run`].
    pub(super) fn lines(&self) -> impl Iterator<Item = (Home, &[Node; 2])> {
        let hashed = self.rounds[..self.used].iter();
        let hashed = hashed.flat_map(|stage| stage.homes.iter().copied().zip(&stage.pairs));
        let quiet = self.quiet_homes.iter().copied().zip(&self.quiet);
        hashed.chain(quiet)
    }
}

/// Pairs of nodes as the messages that they are.
fn blocks(pairs: &[[Node; 2]]) -> &[[u8; 64]] {
    Node::bytes_of(pairs.as_flattened()).as_chunks().0
}

/// Puts a node where it goes; `stages` are the batches from number `from` on.
#[inline]
fn put(
    stages: &mut [Stage],
    quiet: &mut [[Node; 2]],
    siblings: &mut [Node],
    watched: &mut [Node],
    from: usize,
    into: Into,
    node: &Node,
) {
    match into {
        Into::Nowhere => {}
        Into::Half(round, at) => {
            let stage = &mut stages[usize::from(round) - from];
            stage.pairs[(at / 2) as usize][(at % 2) as usize] = *node;
        }
        Into::Quiet(at) => quiet[(at / 2) as usize][(at % 2) as usize] = *node,
        Into::Sibling(at) => siblings[at as usize] = *node,
        Into::Watched(at) => watched[at as usize] = *node,
    }
}
