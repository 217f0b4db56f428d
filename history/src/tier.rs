//! The lookups in what successive commits replaced, whatever holds it.

use std::ops::RangeInclusive;

use pleach_beatree::leaf_fold::KeyState;
use pleach_beatree::{Result, Stored};
use pleach_core::{Key, Node, Prefix};

/// A namespace as of a commit. A lookup sees what later commits replaced.
#[derive(Clone, Copy, Debug)]
pub struct AsOf {
    /// The namespace.
    pub namespace: u8,
    /// The commit.
    pub base: u64,
}

/// A version: the commit that replaced a value, and the value.
pub type Version = (u64, Stored);

/// A node that a commit replaced.
#[derive(Clone, Copy, Debug)]
pub struct ReplacedNode {
    /// Its prefix.
    pub prefix: Prefix,
    /// The commit that replaced it.
    pub number: u64,
    /// The node before that commit.
    pub node: Node,
}

/// The kind of prefixes that nodes belong to.
#[derive(Clone, Copy)]
pub enum NodeScope {
    /// Pages.
    Pages,
    /// Regions.
    Regions,
}

/// The order in which commits are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOrder {
    /// The oldest first.
    Ascending,
    /// The newest first.
    Descending,
}

/// A search for commits that changed a key: the first of them in an order, through `last`, up to `most`.
#[derive(Clone, Copy, Debug)]
pub struct CommitSearch {
    /// The last commit that is searched.
    pub last: u64,
    /// From which end on.
    pub order: CommitOrder,
    /// How many are given, one at least.
    pub most: usize,
}

/// What successive commits replaced: runs in memory, a run on the device, or one commit.
///
/// # Errors
/// Errors of the device, of a run there.
pub trait Tier {
    /// The version of a key: the oldest later commit that changed it, and the value before that.
    fn version(&self, at: AsOf, key: &Key) -> Result<Option<Version>>;

    /// The values of the keys of some ascending ranges that later commits changed, in order.
    fn values(&self, at: AsOf, ranges: &[RangeInclusive<Key>]) -> Result<Vec<KeyState>>;

    /// The nodes in and around a prefix that the oldest run or commit with any has replaced.
    fn nodes(&self, at: AsOf, of: NodeScope, prefix: &Prefix) -> Result<Option<NodesAround>>;

    /// Some of the later commits that changed a key, or all; empty where there is none.
    fn commits(&self, at: AsOf, key: &Key, search: CommitSearch) -> Result<Vec<u64>>;
}

/// The nodes that a run or a commit replaced at and below a prefix, and of prefixes that contain it: of each prefix the
/// oldest, at least one.
pub struct NodesAround {
    /// The nodes.
    pub nodes: Vec<ReplacedNode>,
    /// The last commit of the run.
    pub last_commit: u64,
}

impl NodesAround {
    /// The nodes of a run through a commit; `None` where it has none.
    pub fn of(nodes: Vec<ReplacedNode>, last_commit: u64) -> Option<Self> {
        (!nodes.is_empty()).then_some(Self { nodes, last_commit })
    }
}

/// Tiers as one: the oldest first, each with the commits after those of the one before, or some of them again.
#[derive(Clone)]
pub struct Tiers<I>(pub I);

impl<'a, I: DoubleEndedIterator<Item = &'a dyn Tier> + Clone> Tier for Tiers<I> {
    fn version(&self, at: AsOf, key: &Key) -> Result<Option<Version>> {
        self.0.clone().find_map(|tier| tier.version(at, key).transpose()).transpose()
    }

    fn values(&self, at: AsOf, ranges: &[RangeInclusive<Key>]) -> Result<Vec<KeyState>> {
        let mut all = Vec::new();
        for tier in self.0.clone() {
            all.append(&mut tier.values(at, ranges)?);
        }
        // Of each key the oldest tier's value stays.
        all.sort_by_key(|(key, _): &KeyState| *key);
        all.dedup_by_key(|(key, _)| *key);
        Ok(all)
    }

    fn nodes(&self, at: AsOf, of: NodeScope, prefix: &Prefix) -> Result<Option<NodesAround>> {
        self.0.clone().find_map(|tier| tier.nodes(at, of, prefix).transpose()).transpose()
    }

    fn commits(&self, at: AsOf, key: &Key, search: CommitSearch) -> Result<Vec<u64>> {
        let mut found = self.0.clone().map(|tier| tier.commits(at, key, search));
        let any = |found: &Result<Vec<u64>>| !matches!(found, Ok(all) if all.is_empty());
        let first = match search.order {
            CommitOrder::Ascending => found.find(any),
            CommitOrder::Descending => found.rfind(any),
        };
        first.unwrap_or(Ok(Vec::new()))
    }
}
