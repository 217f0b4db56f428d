//! A run: the values and nodes that some successive commits replaced. It never changes.

use std::ops::{Range, RangeInclusive};

use pleach_beatree::Stored;
use pleach_core::{Key, Node, Prefix};

use crate::filter::{Filter, Secret};
use crate::table::RunTable;
use crate::tier::{AsOf, CommitOrder, CommitSearch, NodeScope, ReplacedNode, Version};

/// The commits and sizes of a run of the history.
#[derive(Clone, Copy, Debug)]
pub struct RunSize {
    /// The run has what the commits after `after`, through `last_commit`, replaced.
    pub after: u64,
    /// The last of its commits.
    pub last_commit: u64,
    /// Bytes of the run.
    pub bytes: u64,
    /// Bytes of the overflow file that the replaced values of its commits take.
    pub value_bytes: u64,
}

/// A run, finished or not.
pub(super) struct Run {
    /// The run has what the commits after this one replaced, through `last_commit`.
    pub(super) after: u64,
    pub(super) last_commit: u64,
    pub(super) values: RunTable<Key>,
    /// Filter of the keys of values.
    pub(super) filter: Filter,
    pub(super) pages: RunTable<Prefix>,
    pub(super) regions: RunTable<Prefix>,
}

impl Run {
    /// The number of versions of keys and nodes.
    pub(super) fn versions(&self) -> usize {
        self.values.versions() + self.pages.versions() + self.regions.versions()
    }

    /// Bytes of memory in use, without reserved capacity.
    pub(super) fn memory(&self) -> usize {
        let tables = self.values.memory() + self.pages.memory() + self.regions.memory();
        size_of::<Self>() + tables + self.filter.bytes()
    }

    /// Ends the run.
    pub(super) fn finish(&mut self) {
        self.values.finish();
        self.pages.finish();
        self.regions.finish();
    }

    /// The version of a key with this hash, where a later commit of the run replaced it.
    #[inline]
    pub(super) fn get(&self, at: AsOf, key: &Key, hash: u64) -> Option<Version> {
        if !self.filter.may_have(hash) {
            return None;
        }
        self.values.find(at.namespace, key).and_then(|place| self.version(place, at.base))
    }

    /// The version of the key at a place.
    pub(super) fn version(&self, at: usize, base: u64) -> Option<Version> {
        let version = self.values.version_after(at, base)?;
        Some((self.values.commit(version), self.values.stored(version)))
    }

    /// Some of the later commits that changed a key with this hash, or all.
    pub(super) fn commits(&self, at: AsOf, key: &Key, hash: u64, search: CommitSearch) -> Vec<u64> {
        let has_it = self.filter.may_have(hash).then(|| self.values.find(at.namespace, key));
        let Some(place) = has_it.flatten() else { return Vec::new() };
        let found = self.values.versions_within(place, at.base, search.last);
        let found = found.map(|version| self.values.commit(version));
        match search.order {
            CommitOrder::Ascending => found.take(search.most).collect(),
            CommitOrder::Descending => found.rev().take(search.most).collect(),
        }
    }

    /// Calls `see` with the places of the keys of some ascending ranges that later commits of the run changed, in order.
    /// One walk: each search begins at the end of the one before.
    pub(super) fn each_within(
        &self,
        AsOf { namespace, base }: AsOf,
        ranges: &[RangeInclusive<Key>],
        mut see: impl FnMut(usize),
    ) {
        let values = &self.values;
        let Range { start: mut at, end } = values.part(namespace);
        for range in ranges {
            if at == end {
                return;
            }
            let least = if at == 0 { 0 } else { values.lead(at) };
            at = values.lower_bound(at..end, least, range.start());
            let last = values.lower_bound(at..end, least, range.end());
            let to = last + usize::from(last < end && values.keys()[last] == *range.end());
            // Mostly all commits of the run are later, and the memory of versions is not needed.
            let later =
                |at: &usize| base <= self.after || values.version_after(*at, base).is_some();
            (at..to).filter(later).for_each(&mut see);
            at = to;
        }
    }

    /// The nodes that later commits have replaced at and below a prefix, and of prefixes that contain it: of each prefix
    /// the oldest.
    pub(super) fn nodes_around(
        &self,
        AsOf { namespace, base }: AsOf,
        of: NodeScope,
        prefix: &Prefix,
    ) -> Vec<ReplacedNode> {
        let table = match of {
            NodeScope::Pages => &self.pages,
            NodeScope::Regions => &self.regions,
        };
        let above = (table.shortest..prefix.len())
            .filter_map(|len| table.find(namespace, &Prefix::new(prefix.first_key(), len)));
        let part = table.part(namespace);
        let below = table.lower_bound(part.clone(), 0, prefix)..part.end;
        let below = below.take_while(|at| prefix.contains(&table.keys()[*at]));
        let replaced = |at: usize| {
            let version = table.version_after(at, base)?;
            let node = table.bytes(version).try_into().expect("a node was put there");
            let (prefix, number) = (table.keys()[at], table.commit(version));
            Some(ReplacedNode { prefix, number, node: Node::new(node) })
        };
        above.chain(below).filter_map(replaced).collect()
    }
}

/// The unfinished run of one commit: namespaces ascend, and so do the keys in each.
pub struct CommitRun {
    pub(super) run: Run,
    secret: Secret,
    namespace: u8,
}

impl CommitRun {
    /// The run of commit `number`, with room for `keys` keys.
    pub(super) fn new(secret: Secret, number: u64, keys: usize) -> Self {
        let after = number - 1;
        let nodes = || RunTable::new(after, 0, 0, 0);
        let run = Run {
            after,
            last_commit: number,
            values: RunTable::new(after, keys, keys, 8 * keys),
            filter: Filter::new(keys),
            pages: nodes(),
            regions: nodes(),
        };
        Self { run, secret, namespace: 0 }
    }

    /// Begins a namespace, where the commit replaced these nodes of pages and regions.
    pub fn begin(&mut self, namespace: u8, pages: &[(Prefix, Node)], regions: &[(Prefix, Node)]) {
        self.namespace = namespace;
        let Run { last_commit, pages: to_pages, regions: to_regions, .. } = &mut self.run;
        for (table, nodes) in [(to_pages, pages), (to_regions, regions)] {
            for (prefix, node) in nodes {
                table.put_key(namespace, prefix);
                table.put_bytes(*last_commit, node.as_bytes());
            }
        }
    }

    /// Adds the value of a key before the commit.
    pub fn put(&mut self, key: &Key, prior: &Stored) {
        self.run.filter.add(self.secret.hash(self.namespace, key));
        self.run.values.put_key(self.namespace, key);
        self.run.values.put_version(self.run.last_commit, prior);
    }
}
