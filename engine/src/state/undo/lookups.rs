//! Looking up what commits replaced; `base` is a commit that the caller has pinned.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use pleach_beatree::Stored;
use pleach_beatree::older::{FoundNodes, OlderSearch};
use pleach_core::{Key, Node, Prefix};

use super::{Recent, ReplacedList, ReplacedNodes, Undo, Undone};
use crate::error::{Error, Result};
use crate::state::last_changes::LastSeen;
use crate::state::node_versions::NodeVersions;
use crate::state::replaced::ReplacedNode;
use crate::state::slabs::Slabs;
use crate::state::undo_maps::Maps;

/// Pages whose nodes are looked up together.
const PAGES: usize = 32;

impl Undo {
    /// The newest commit that was pushed. Cheap, for the read path.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Is all there that a view of `base` needs? To be asked after the lookup.
    #[inline]
    pub(crate) fn check(&self, base: u64) -> Result<()> {
        if self.dropped.load(Ordering::SeqCst) <= base {
            return Ok(());
        }
        Err(Error::SnapshotTooOld { commit: base, oldest: self.from() })
    }

    /// Recent commits after `base`, in order. Looked at before the maps: what is put in meanwhile is seen
    /// there or here.
    fn recent_after(&self, base: u64) -> Vec<Recent> {
        if self.recents.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.recent.read().iter().filter(|commit| commit.number > base).cloned().collect()
    }

    /// State of a namespace's key as of commit `base`, when a later commit changed it: what the oldest such
    /// commit replaced. What was seen is of this namespace.
    pub(crate) fn get(
        &self,
        namespace: u8,
        key: &Key,
        base: u64,
        seen: &LastSeen,
    ) -> Option<Stored> {
        let recent = if self.recents.load(Ordering::Acquire) == 0 {
            None
        } else {
            let commits = self.recent.read();
            let from = commits.partition_point(|commit| commit.number <= base);
            let mut later = commits.iter().skip(from);
            later.find_map(|commit| Some(commit.of(namespace)?.changes.find(key)?.prior.clone()))
        };
        // Commits that were put in are older.
        self.change_after(namespace, key, base, seen).map(|(_, prior)| prior).or(recent)
    }

    /// Prefetches the memory that [`Self::get`] begins with.
    #[inline]
    pub(crate) fn cpu_prefetch(&self, namespace: u8, key: &Key, seen: &LastSeen) {
        if let Some(Maps { values, .. }) = self.maps.get(namespace) {
            values.cpu_prefetch_key(key, seen);
        }
    }

    /// The oldest commit after `base` that changed a key, and what it replaced; of commits that are put in.
    pub(crate) fn change_after(
        &self,
        namespace: u8,
        key: &Key,
        base: u64,
        seen: &LastSeen,
    ) -> Option<(u64, Stored)> {
        self.maps.get(namespace)?.values.get(key, base, seen)
    }

    /// Adds the states as of `base` of all of a namespace's keys below `prefix` that later commits changed, sorted.
    pub(crate) fn below(
        &self,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
        found: &mut Vec<(Key, Stored)>,
    ) {
        let recent = self.recent_after(base);
        let from = found.len();
        if let Some(Maps { values, .. }) = self.maps.get(namespace) {
            let keys = *prefix.first_key()..=prefix.last_key();
            values.ranges(&[keys], base, |_, key, _, prior| found.push((*key, prior.clone())));
        }
        if recent.is_empty() {
            return;
        }
        let mut states = BTreeMap::new();
        // Newest first, so that the oldest commit has the last word.
        for undone in recent.iter().rev().filter_map(|commit| commit.of(namespace)) {
            for changed in undone.changes.within(&(*prefix.first_key()..=prefix.last_key())) {
                states.insert(changed.key, changed.prior.clone());
            }
        }
        states.extend(found.drain(from..));
        found.extend(states);
    }

    /// Nodes of pages below, and above, `prefix` that commits after `base` replaced.
    pub(in crate::state) fn page_nodes(
        &self,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
    ) -> Vec<ReplacedNode> {
        self.nodes(namespace, prefix, base, |maps| &maps.pages, |nodes| &nodes.pages)
    }

    /// The same of regions.
    pub(in crate::state) fn region_nodes(
        &self,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
    ) -> Vec<ReplacedNode> {
        self.nodes(namespace, prefix, base, |maps| &maps.regions, |nodes| &nodes.regions)
    }

    fn nodes(
        &self,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
        versions: fn(&Maps) -> &NodeVersions,
        of: fn(&ReplacedNodes) -> &ReplacedList,
    ) -> Vec<ReplacedNode> {
        let mut found = Vec::with_capacity(PAGES);
        for commit in self.recent_after(base) {
            if let Some(undone) = commit.of(namespace) {
                of(&undone.nodes).below(prefix, commit.number, &mut found);
            }
        }
        if let Some(maps) = self.maps.get(namespace) {
            versions(maps).below(prefix, base, &mut found);
        }
        found
    }

    /// Shows the states as of `base` of all of a namespace's keys in some ranges, which ascend, that later commits
    /// changed: in order, each with the number of its range.
    pub(in crate::state) fn ranges(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
        mut see: impl FnMut(usize, &Key, &Stored),
    ) {
        let recent = self.recent_after(base);
        let maps = self.maps.get(namespace);
        if recent.is_empty() {
            if let Some(Maps { values, .. }) = maps {
                values.ranges(ranges, base, |range, key, _, prior| see(range, key, prior));
            }
            return;
        }
        let mut states = BTreeMap::new();
        // As in `below`.
        for undone in recent.iter().rev().filter_map(|commit| commit.of(namespace)) {
            for (range, keys) in ranges.iter().enumerate() {
                for changed in undone.changes.within(keys) {
                    states.insert((range, changed.key), changed.prior.clone());
                }
            }
        }
        if let Some(Maps { values, .. }) = maps {
            values.ranges(ranges, base, |range, key, _, prior| {
                states.insert((range, *key), prior.clone());
            });
        }
        for ((range, key), prior) in &states {
            see(*range, key, prior);
        }
    }

    /// What commits after `base` say of the nodes that some pages, in order, had inside as of `base`, as far as
    /// folds that access these buckets of them ask for it. The nodes are added to `nodes`.
    pub(in crate::state) fn inside(
        &self,
        namespace: u8,
        pages: &[Prefix],
        accessed: &[u32],
        base: u64,
        nodes: &mut Vec<Node>,
    ) -> Vec<FoundNodes> {
        let recent = self.recent_after(base);
        let maps = self.maps.get(namespace);
        let slabs = maps.map(|maps| maps.pages.slabs());
        let maps = maps.zip(slabs.as_deref());
        let recent = recent.iter().filter_map(|commit| commit.of(namespace)).collect();
        let find = Find { base, maps, recent };
        let mut found: Vec<FoundNodes> = Vec::with_capacity(pages.len());
        for (some, accessed) in pages.chunks(PAGES).zip(accessed.chunks(PAGES)) {
            let from = found.len();
            let mut searches: Vec<_> = accessed.iter().map(|one| OlderSearch::new(*one)).collect();
            find.tell(some, &mut searches);
            found.extend(searches.iter().map(|search| search.found(nodes)));
            // Soon after a load or a restart some nodes are unknown.
            let mut unknown: Vec<usize> = (from..found.len()).collect();
            while !unknown.is_empty() {
                let again = |at: usize| Some((at, found[at].again()?));
                (unknown, searches) = unknown.into_iter().filter_map(again).unzip();
                let prefixes: Vec<Prefix> = unknown.iter().map(|at| pages[*at]).collect();
                find.tell(&prefixes, &mut searches);
                for (at, search) in unknown.iter().zip(&searches) {
                    found[*at] = search.found(nodes);
                }
            }
        }
        found
    }
}

impl Undo {
    /// Keeps what a fold as of `base` has found out of the insides of some pages, which nobody knew: prefixes,
    /// each with the last commit that the fold knew of, and the nodes by position.
    pub(in crate::state) fn learn<'a>(
        &self,
        namespace: u8,
        base: u64,
        learned: impl Iterator<Item = (&'a Prefix, u64, &'a [(u8, Node)])>,
    ) {
        if let Some(maps) = self.maps.get(namespace) {
            // What is gone by then may have been missing from the fold.
            maps.pages.learn(base, || self.check(base).is_ok(), learned);
        }
    }
}

/// Who says something of the insides of pages.
struct Find<'a> {
    base: u64,
    maps: Option<(&'a Maps, &'a Slabs)>,
    /// Commits after those that were put in.
    recent: Vec<&'a Undone>,
}

impl<'a> Find<'a> {
    /// Tells the searches of some pages, in order.
    fn tell(&self, pages: &[Prefix], searches: &mut [OlderSearch<'a>]) {
        // Commits that were put in are older: what they say stays.
        if let Some((maps, slabs)) = self.maps {
            maps.pages.inside(pages, self.base, slabs, searches);
        }
        for undone in &self.recent {
            for (page, search) in pages.iter().zip(&mut *searches) {
                undone.nodes.pages.inside(page, search);
            }
        }
    }
}
