//! Merges neighbouring runs into one, some versions at a time.

use std::sync::Arc;

use pleach_core::{Key, Prefix};

use crate::filter::{Filter, Secret};
use crate::run::Run;
use crate::table::{MOST_BYTES, MOST_COMMITS, RunTable, TableKey};

/// The next key of a table that is merged.
struct MergeHead {
    place: usize,
    /// The key's namespace and lead; the largest number at the end.
    order: u64,
}

impl MergeHead {
    fn new<K: TableKey>(table: &RunTable<K>, place: usize) -> Self {
        let order = table.namespace(place).map_or(u64::MAX, |namespace| {
            u64::from(namespace) << 32 | u64::from(table.lead(place))
        });
        Self { place, order }
    }
}

/// The state of a merge in the tables of one kind.
struct MergeHeads<K> {
    table: fn(&Run) -> &RunTable<K>,
    heads: Vec<MergeHead>,
}

impl<K: TableKey> MergeHeads<K> {
    fn new(runs: &[Arc<Run>], table: fn(&Run) -> &RunTable<K>) -> Self {
        Self { table, heads: runs.iter().map(|run| MergeHead::new(table(run), 0)).collect() }
    }

    /// The run with the least next key; of several the oldest.
    fn least(&self, runs: &[Arc<Run>]) -> usize {
        let key = |at: usize| (self.table)(&runs[at]).keys().get(self.heads[at].place);
        let mut least = 0;
        for at in 1..self.heads.len() {
            let (own, other) = (self.heads[at].order, self.heads[least].order);
            if own < other || own == other && key(at) < key(least) {
                least = at;
            }
        }
        least
    }

    /// Merges about `left` versions, and subtracts their number from it. True when all versions are merged.
    fn merge(&mut self, runs: &[Arc<Run>], merged: &mut RunTable<K>, left: &mut usize) -> bool {
        let end = merged.versions() + *left;
        while merged.versions() < end {
            let least = self.least(runs);
            let (table, head) = ((self.table)(&runs[least]), &mut self.heads[least]);
            let Some(namespace) = table.namespace(head.place) else {
                *left = end - merged.versions();
                return true;
            };
            merged.put_of(namespace, table, head.place);
            *head = MergeHead::new(table, head.place + 1);
        }
        *left = 0;
        false
    }
}

/// A merge in progress.
pub(super) struct Merge {
    /// Oldest first.
    pub(super) runs: Vec<Arc<Run>>,
    values: MergeHeads<Key>,
    pages: MergeHeads<Prefix>,
    regions: MergeHeads<Prefix>,
    merged: Run,
    /// The number of keys that are in the filter.
    filtered: usize,
    /// Versions that a step merges.
    pace: usize,
}

impl Merge {
    /// The merge of neighbours, the oldest first, in about `steps` steps. `None` where the merged run would be too
    /// large.
    pub(super) fn of(runs: Vec<Arc<Run>>, steps: usize) -> Option<Self> {
        let (after, last_commit) = (runs.first()?.after, runs.last()?.last_commit);
        let versions = runs.iter().map(|run| run.versions()).sum::<usize>();
        let merged = Run {
            after,
            last_commit,
            values: RunTable::for_all(after, runs.iter().map(|run| &run.values)),
            filter: Filter::new(runs.iter().map(|run| run.values.keys().len()).sum()),
            pages: RunTable::for_all(after, runs.iter().map(|run| &run.pages)),
            regions: RunTable::for_all(after, runs.iter().map(|run| &run.regions)),
        };
        let bytes = runs.iter().map(|run| run.values.inline_bytes()).sum::<u64>();
        let fits = u32::try_from(versions).is_ok()
            && bytes <= MOST_BYTES
            && last_commit - after <= MOST_COMMITS;
        fits.then(|| Self {
            values: MergeHeads::new(&runs, |run| &run.values),
            pages: MergeHeads::new(&runs, |run| &run.pages),
            regions: MergeHeads::new(&runs, |run| &run.regions),
            merged,
            filtered: 0,
            // Commits without changes have no versions.
            pace: versions.div_ceil(steps).max(1),
            runs,
        })
    }

    /// Bytes of memory of the merged run so far.
    pub(super) fn memory(&self) -> usize {
        self.merged.memory()
    }

    /// Merges the next step's versions. True when all are merged.
    pub(super) fn step(&mut self, secret: Secret) -> bool {
        let (runs, mut left) = (&self.runs, self.pace);
        let done = self.values.merge(runs, &mut self.merged.values, &mut left)
            && self.pages.merge(runs, &mut self.merged.pages, &mut left)
            && self.regions.merge(runs, &mut self.merged.regions, &mut left);
        let Run { values, filter, .. } = &mut self.merged;
        for (namespace, part) in values.parts() {
            for key in &values.keys()[self.filtered.clamp(part.start, part.end)..part.end] {
                filter.add(secret.hash(namespace, key));
            }
        }
        self.filtered = values.keys().len();
        if done {
            self.merged.finish();
        }
        done
    }

    /// The merged run.
    pub(super) fn into_run(self) -> Run {
        self.merged
    }
}
