//! Looking up in the runs.

use std::ops::RangeInclusive;

use pleach_beatree::Stored;
use pleach_core::Key;

use super::Runs;
use super::run::{Run, Version};

/// A key that a run has, with the version that is looked for.
#[derive(Clone, Copy)]
struct Found {
    lead: u32,
    run: usize,
    key: usize,
    version: usize,
}

impl Runs {
    /// What a key had as of `base`, and the commit that replaced it.
    pub(crate) fn get(&self, namespace: u8, key: &Key, base: u64) -> Option<Version> {
        let (list, hash) = (self.list.load(), self.secret.hash(namespace, key));
        let runs = list.after(base);
        // Their waits for memory overlap.
        runs.iter().for_each(|(_, run)| run.cpu_prefetch(hash));
        runs.iter().find_map(|(_, run)| run.get(namespace, key, hash, base))
    }

    /// What the keys of some ranges, which ascend, had as of `base` where a later commit changed it, in order.
    pub(crate) fn within(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
    ) -> Vec<(Key, Stored)> {
        let list = self.list.load();
        let runs = list.after(base);
        let (mut found, mut own, mut both) = (Vec::new(), Vec::new(), Vec::new());
        // The newest first: runs of few commits are passed before there is much. Of two runs that have a key the older one
        // has the word.
        for (at, (_, run)) in runs.iter().enumerate().rev() {
            run.each_within(namespace, ranges, base, |key, version| {
                own.push(Found { lead: run.lead(key), run: at, key, version });
            });
            if found.is_empty() {
                std::mem::swap(&mut found, &mut own);
            } else if !own.is_empty() {
                put_over(&found, &own, |one| runs[one.run].1.key(one.key), &mut both);
                std::mem::swap(&mut found, &mut both);
            }
            own.clear();
        }
        let pair = |one: &Found| {
            let run: &Run = &runs[one.run].1;
            (*run.key(one.key), run.stored(one.version))
        };
        found.iter().map(pair).collect()
    }
}

/// Both lists as one, in order; of two for one key the second list's.
fn put_over<'a>(
    below: &[Found],
    over: &[Found],
    key: impl Fn(&Found) -> &'a Key,
    all: &mut Vec<Found>,
) {
    all.clear();
    let mut left = below;
    for one in over {
        while let [next, rest @ ..] = left {
            let order = next.lead.cmp(&one.lead).then_with(|| key(next).cmp(key(one)));
            if order.is_gt() {
                break;
            }
            if order.is_lt() {
                all.push(*next);
            }
            left = rest;
        }
        all.push(*one);
    }
    all.extend_from_slice(left);
}
