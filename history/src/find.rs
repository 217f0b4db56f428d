//! Lookups in the runs.

use std::ops::RangeInclusive;
use std::sync::Arc;

use pleach_beatree::Result;
use pleach_beatree::leaf_fold::KeyState;
use pleach_core::{Key, Prefix};

use crate::run::Run;
use crate::runs::Runs;
use crate::table::place;
use crate::tier::{AsOf, CommitOrder, CommitSearch, NodeScope, NodesAround, Tier, Version};

/// Runs whose filters are checked together.
const TOGETHER: usize = 8;

/// A key of a run, by the places of run and key.
#[derive(Clone, Copy)]
struct FoundKey {
    lead: u32,
    run: u32,
    key: u32,
}

impl Tier for Runs {
    fn version(&self, at: AsOf, key: &Key) -> Result<Option<Version>> {
        let (runs, hash) = (self.after(at.base), self.secret.hash(at.namespace, key));
        // Some waits for memory overlap. A long run mostly has the key: then the checks of others are in vain.
        Ok(runs.chunks(TOGETHER).find_map(|some| {
            for (_, run) in some {
                run.filter.cpu_prefetch(hash);
            }
            some.iter().find_map(|(_, run)| run.get(at, key, hash))
        }))
    }

    fn values(&self, at: AsOf, ranges: &[RangeInclusive<Key>]) -> Result<Vec<KeyState>> {
        let runs = self.after(at.base);
        let run = |one: &FoundKey| &runs[one.run as usize].1;
        let key = |one: &FoundKey| &run(one).values.keys()[one.key as usize];
        let (mut found, mut own, mut both) = (Vec::new(), Vec::new(), Vec::new());
        // The newest run first: runs of few commits are passed before there is much. Of two runs that have a key the
        // older one counts. One sort of all takes twice as long with 25 runs.
        for (number, (_, run)) in (0..place(runs.len())).zip(runs).rev() {
            run.each_within(at, ranges, |key| {
                own.push(FoundKey { lead: run.values.lead(key), run: number, key: place(key) });
            });
            if found.is_empty() {
                std::mem::swap(&mut found, &mut own);
            } else if !own.is_empty() {
                put_over(&found, &own, key, &mut both);
                std::mem::swap(&mut found, &mut both);
            }
            own.clear();
        }
        let prior = |one: &FoundKey| run(one).version(one.key as usize, at.base);
        Ok(found.iter().filter_map(|one| Some((*key(one), prior(one)?.1))).collect())
    }

    fn nodes(&self, at: AsOf, of: NodeScope, prefix: &Prefix) -> Result<Option<NodesAround>> {
        Ok(self.after(at.base).iter().find_map(|(_, run)| {
            NodesAround::of(run.nodes_around(at, of, prefix), run.last_commit)
        }))
    }

    fn commits(&self, at: AsOf, key: &Key, search: CommitSearch) -> Result<Vec<u64>> {
        let (runs, hash) = (self.after(at.base), self.secret.hash(at.namespace, key));
        let runs = &runs[..runs.partition_point(|(_, run)| run.after < search.last)];
        let changes = |(_, run): &(usize, Arc<Run>)| {
            Some(run.commits(at, key, hash, search)).filter(|found| !found.is_empty())
        };
        let found = match search.order {
            CommitOrder::Ascending => runs.iter().find_map(changes),
            CommitOrder::Descending => runs.iter().rev().find_map(changes),
        };
        Ok(found.unwrap_or_default())
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
