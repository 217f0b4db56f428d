//! Regions, their pages, and how they are cut.
//!
//! Region 0 is cut either *coarse* (one page for keys 0 and 1) or *fine* (one page each). Regions 1 and 2 have one page,
//! for key 2 and key 3; once they are joined, region 1 has both and region 2 has nothing. The node of a position, and
//! of a region, is the list of values under it, so that a wrong one cannot pass for a right one.

use std::ops::Range;
use std::rc::Rc;

use crate::state::{Commit, KEYS, Location, REGIONS, SLOTS, Values};

pub(crate) type Node = [u8; 2];
/// The node of a region: those of keys that are not its own are [`NONE`].
type Own = [u8; KEYS];

const NONE: u8 = u8::MAX;

/// A trie position that can have a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Position {
    /// Region 0 uncut: keys 0 and 1.
    Coarse,
    /// Region 0 cut finer: key 0.
    Left,
    /// Region 0 cut finer: key 1.
    Right,
    /// Region 1: key 2.
    Other,
    /// Region 2: key 3.
    Last,
}

impl Position {
    pub(crate) fn keys(self) -> Range<usize> {
        match self {
            Self::Coarse => 0..2,
            Self::Left => 0..1,
            Self::Right => 1..2,
            Self::Other => 2..3,
            Self::Last => 3..4,
        }
    }

    /// The node of this position when the state is `values`.
    pub(crate) fn node(self, values: Values) -> Node {
        let mut node = [NONE; 2];
        for (slot, key) in node.iter_mut().zip(self.keys()) {
            *slot = values[key];
        }
        node
    }

    pub(crate) fn value_in(self, node: Node, key: usize) -> u8 {
        node[key - self.keys().start]
    }
}

/// The region that has a key.
pub(crate) fn region_of(regions: &[Region; REGIONS], key: usize) -> &Region {
    let found = regions.iter().find(|region| region.covers(key));
    found.expect("the regions tile the keys")
}

/// True when regions 1 and 2 are joined.
pub(crate) fn joined(regions: &[Region; REGIONS]) -> bool {
    regions[2].entries.is_empty()
}

/// The positions of a region that was never cut finer, nor joined.
pub(crate) fn first_positions(region: usize) -> &'static [Position] {
    match region {
        0 => &[Position::Coarse],
        1 => &[Position::Other],
        _ => &[Position::Last],
    }
}

/// The layout of region 0.
pub(crate) fn cut(fine: bool) -> &'static [Position] {
    if fine { &[Position::Left, Position::Right] } else { &[Position::Coarse] }
}

/// A leaf page as written. Equality stands for the checksum, and so for the tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Page {
    /// Incarnation and counter.
    pub(crate) flush: (u8, u8),
    pub(crate) position: Position,
    pub(crate) through: u8,
    pub(crate) values: Node,
}

/// What a branch page holds for one child.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) position: Position,
    /// Page number and tag.
    pub(crate) page: Option<(u8, Rc<Page>)>,
    pub(crate) node: Node,
}

/// A level-1 branch page with the changes that are buffered for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    pub(crate) entries: Vec<Entry>,
    /// Newest committed value not in a page, with its commit number.
    pub(crate) pending: [Option<(u8, u8)>; KEYS],
    /// Log position behind the last record applied.
    pub(crate) applied: u8,
    /// Last commit applied.
    pub(crate) changed: u8,
    own: Own,
}

impl Region {
    /// A region without buffered changes.
    pub(crate) fn new(entries: Vec<Entry>, applied: u8, changed: u8) -> Self {
        let pending = [None; KEYS];
        let mut region = Self { entries, pending, applied, changed, own: [NONE; KEYS] };
        region.renew_own();
        region
    }

    /// A region without pages and values, behind this log position.
    pub(crate) fn empty(positions: &[Position], behind: u8, number: u8) -> Self {
        let bare = |position: &Position| Entry {
            position: *position,
            page: None,
            node: position.node([0; SLOTS]),
        };
        Self::new(positions.iter().map(bare).collect(), behind, number)
    }

    /// The same region with nothing left in it.
    pub(crate) fn emptied(&self, behind: u8, number: u8) -> Self {
        let positions: Vec<Position> = self.entries.iter().map(|entry| entry.position).collect();
        Self::empty(&positions, behind, number)
    }

    /// True when the region has neither a page nor a buffered change.
    pub(crate) fn is_bare(&self) -> bool {
        let mut pages = self.entries.iter().filter_map(|entry| entry.page.as_ref());
        pages.next().is_none() && self.pending.iter().all(Option::is_none)
    }

    /// Whether region 0 is cut fine.
    pub(crate) fn is_fine(&self) -> bool {
        self.entries.iter().any(|entry| entry.position == Position::Left)
    }

    pub(crate) fn covers(&self, key: usize) -> bool {
        self.entries.iter().any(|entry| entry.position.keys().contains(&key))
    }

    pub(crate) fn pends(&self) -> bool {
        self.pending.iter().any(Option::is_some)
    }

    pub(crate) fn touched_by(&self, commit: &Commit) -> bool {
        (0..KEYS).any(|key| commit.changes[key].is_some() && self.covers(key))
    }

    pub(crate) fn entry(&self, key: usize) -> &Entry {
        let found = self.entries.iter().find(|entry| entry.position.keys().contains(&key));
        found.expect("the entries of a region tile it")
    }

    /// The node of all that it has, from those of its entries.
    pub(crate) fn renew_own(&mut self) {
        self.own = [NONE; KEYS];
        for entry in &self.entries {
            for key in entry.position.keys() {
                self.own[key] = entry.position.value_in(entry.node, key);
            }
        }
    }

    /// Whether its node and those of its entries are those of this state.
    pub(crate) fn is_of(&self, values: Values) -> bool {
        (0..KEYS).all(|key| !self.covers(key) || self.own[key] == values[key])
            && self.entries.iter().all(|entry| entry.node == entry.position.node(values))
    }

    /// Removes the buffered changes that the pages of this region contain.
    pub(crate) fn retire(&mut self) {
        for at in 0..KEYS {
            let Some((value, number)) = self.pending[at] else { continue };
            let contained = match &self.entry(at).page {
                // No page, no value: a buffered change is contained if it is a deletion.
                None => value == 0,
                Some((_, page)) => number <= page.through,
            };
            if contained {
                self.pending[at] = None;
            }
        }
    }

    /// Takes over one commit. `false` if a node belongs to a position that no child of this region has.
    pub(crate) fn apply_commit(&mut self, commit: &Commit, behind: u8) -> bool {
        for key in 0..KEYS {
            if let Some(value) = commit.changes[key].filter(|_| self.covers(key)) {
                self.pending[key] = Some((value, commit.number));
            }
        }
        self.applied = behind;
        self.changed = commit.number;
        let mut known = true;
        for (position, node) in &commit.nodes {
            if self.covers(position.keys().start) {
                match self.entries.iter_mut().find(|entry| entry.position == *position) {
                    Some(entry) => entry.node = *node,
                    None => known = false,
                }
            }
        }
        // Each chunk of the commit has folded the node of what was a region then.
        let chunks = if commit.joined { vec![0..2, 2..4] } else { vec![0..2, 2..3, 3..4] };
        for chunk in chunks {
            let changed = chunk.clone().any(|key| commit.changes[key].is_some());
            if changed && self.covers(chunk.start) {
                self.own = [NONE; KEYS];
                for key in chunk {
                    self.own[key] = commit.root[key];
                }
            }
        }
        known
    }

    /// Takes over new pages. `false` if they replace positions that are not there.
    pub(crate) fn apply_location(&mut self, location: &Location) -> bool {
        let known = location
            .replaced
            .iter()
            .all(|old| self.entries.iter().any(|entry| entry.position == *old));
        self.entries.retain(|entry| !location.replaced.contains(&entry.position));
        self.entries.extend(location.entries.iter().cloned());
        self.entries.sort_by_key(|entry| entry.position);
        known
    }

    /// Takes over all that its sibling has, which is left with nothing.
    pub(crate) fn join(&mut self, right: &mut Self, behind: u8) {
        let entries = std::mem::take(&mut right.entries);
        let taken = Self::new(Vec::new(), behind, right.changed);
        let right = std::mem::replace(right, taken);
        self.entries.extend(entries);
        for (mine, other) in self.pending.iter_mut().zip(right.pending) {
            *mine = mine.or(other);
        }
        for (mine, other) in self.own.iter_mut().zip(right.own) {
            *mine = (*mine).min(other);
        }
        self.applied = behind;
        self.changed = self.changed.max(right.changed);
    }
}
