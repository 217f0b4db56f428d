//! Lookups in the runs.

use std::ops::RangeInclusive;
use std::sync::Arc;

use pleach_beatree::Stored;
use pleach_core::{Key, Prefix};

use crate::run::{CommitOrder, NodeScope, ReplacedNode, Run, Version};
use crate::runs::Runs;
use crate::table::place;

/// Runs whose filters are checked together.
const TOGETHER: usize = 8;

/// A key of a run, by the places of run and key.
#[derive(Clone, Copy)]
struct FoundKey {
    lead: u32,
    run: u32,
    key: u32,
}

impl Runs {
    /// The version of a key as of `base`: its value, and the commit that replaced it.
    pub fn get(&self, namespace: u8, key: &Key, base: u64) -> Option<Version> {
        let (runs, hash) = (self.after(base), self.secret.hash(namespace, key));
        // Some waits for memory overlap. A long run mostly has the key: then the checks of others are in vain.
        runs.chunks(TOGETHER).find_map(|some| {
            for (_, run) in some {
                run.filter.cpu_prefetch(hash);
            }
            some.iter().find_map(|(_, run)| run.get(namespace, key, hash, base))
        })
    }

    /// The first commits of a range (from 1 or later) in this order that changed a key, up to one run's limit; empty
    /// where there is none.
    pub fn changing_commits(
        &self,
        namespace: u8,
        key: &Key,
        commits: &RangeInclusive<u64>,
        order: CommitOrder,
    ) -> Vec<u64> {
        let hash = self.secret.hash(namespace, key);
        let runs = self.after(commits.start() - 1);
        let runs = &runs[..runs.partition_point(|(_, run)| run.after < *commits.end())];
        let changes = |(_, run): &(usize, Arc<Run>)| {
            Some(run.changing_commits(namespace, key, hash, commits, order))
                .filter(|found| !found.is_empty())
        };
        let found = match order {
            CommitOrder::Ascending => runs.iter().find_map(changes),
            CommitOrder::Descending => runs.iter().rev().find_map(changes),
        };
        found.unwrap_or_default()
    }

    /// The values as of `base` of the keys of some ascending ranges, where a later commit changed them, in order.
    pub fn values_within(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Vec<(Key, Stored)> {
        let runs = self.after(base);
        let run = |one: &FoundKey| &runs[one.run as usize].1;
        let key = |one: &FoundKey| &run(one).values.keys()[one.key as usize];
        let (mut found, mut own, mut both) = (Vec::new(), Vec::new(), Vec::new());
        // The newest run first: runs of few commits are passed before there is much. Of two runs that have a key the
        // older one counts.
        for (at, (_, run)) in (0..place(runs.len())).zip(runs).rev() {
            run.each_within(namespace, ranges, base, |key| {
                own.push(FoundKey { lead: run.values.lead(key), run: at, key: place(key) });
            });
            if found.is_empty() {
                std::mem::swap(&mut found, &mut own);
            } else if !own.is_empty() {
                put_over(&found, &own, key, &mut both);
                std::mem::swap(&mut found, &mut both);
            }
            own.clear();
        }
        let prior = |one: &FoundKey| run(one).version(one.key as usize, base);
        found.iter().filter_map(|one| Some((*key(one), prior(one)?.1))).collect()
    }

    /// The nodes in and around a prefix that commits after `base` have replaced: those of each run that has any, the
    /// oldest run first, and of each prefix the oldest node.
    pub fn nodes_around(
        &self,
        of: NodeScope,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
    ) -> impl Iterator<Item = Vec<ReplacedNode>> {
        let around =
            move |(_, run): &(usize, Arc<Run>)| run.nodes_around(of, namespace, prefix, base);
        self.after(base).iter().map(around).filter(|found| !found.is_empty())
    }
}

/// Merges both lists in order; of two entries for one key the second list's stays.
fn put_over<'a>(
    below: &[FoundKey],
    over: &[FoundKey],
    key: impl Fn(&FoundKey) -> &'a Key,
    all: &mut Vec<FoundKey>,
) {
    all.clear();
    let mut left = below;
    for one in over {
        while let [next, rest @ ..] = left {
            // Mostly keys with the same lead are equal.
            let is_same = next.lead == one.lead && key(next) == key(one);
            if !is_same {
                if (next.lead, key(next)) > (one.lead, key(one)) {
                    break;
                }
                all.push(*next);
            }
            left = rest;
        }
        all.push(*one);
    }
    all.extend_from_slice(left);
}
