//! Neighbouring runs become one, some versions at a time.

use std::ops::Range;
use std::sync::Arc;

use pleach_core::Key;

use super::filter::Secret;
use super::run::{MOST_BYTES, MOST_COMMITS, Run};

/// Where a merge is in one of its runs.
struct Head {
    run: Arc<Run>,
    /// What is left of each namespace, the last first.
    left: Vec<(u8, Range<usize>)>,
    /// The namespace and the lead of the next key; the largest number at the end.
    order: u64,
}

impl Head {
    fn new(run: &Arc<Run>) -> Self {
        let mut left: Vec<_> = run.parts().filter(|part| part.1.start < part.1.end).collect();
        left.reverse();
        let mut head = Self { run: Arc::clone(run), left, order: 0 };
        head.look();
        head
    }

    /// The next key's namespace and number.
    fn next(&self) -> Option<(u8, usize)> {
        self.left.last().map(|(namespace, keys)| (*namespace, keys.start))
    }

    fn look(&mut self) {
        self.order = self.next().map_or(u64::MAX, |(namespace, key)| {
            u64::from(namespace) << 32 | u64::from(self.run.lead(key))
        });
    }

    fn advance(&mut self) {
        if let Some((_, keys)) = self.left.last_mut() {
            keys.start += 1;
            if keys.start == keys.end {
                self.left.pop();
            }
        }
        self.look();
    }

    fn key(&self) -> Option<&Key> {
        self.next().map(|(_, key)| self.run.key(key))
    }

    /// Is its next key less than that of another one?
    fn is_before(&self, other: &Self) -> bool {
        self.order < other.order || self.order == other.order && self.key() < other.key()
    }
}

/// A merge under way.
pub(super) struct Merge {
    /// Oldest first.
    heads: Vec<Head>,
    merged: Run,
    /// The namespace of the last key.
    namespace: Option<u8>,
    /// Versions that a step puts in.
    pace: usize,
}

impl Merge {
    /// The merge of neighbours, the oldest first, in about so many steps. None where the run would be too large.
    pub(super) fn of(runs: &[Arc<Run>], steps: usize) -> Option<Self> {
        let sum = |of: fn(&Run) -> usize| runs.iter().map(|run| of(run)).sum::<usize>();
        let (versions, bytes) = (sum(Run::versions), sum(Run::value_bytes));
        let commits = runs.first()?.after..runs.last()?.through;
        let fits = u32::try_from(versions).is_ok()
            && bytes as u64 <= MOST_BYTES
            && commits.end - commits.start <= MOST_COMMITS;
        fits.then(|| Self {
            heads: runs.iter().map(Head::new).collect(),
            merged: Run::new(commits, sum(Run::keys), versions, bytes),
            namespace: None,
            pace: versions.div_ceil(steps),
        })
    }

    /// The runs that it merges.
    pub(super) fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.heads.iter().map(|head| &head.run)
    }

    /// Bytes of memory that the merged run takes by now.
    pub(super) fn memory(&self) -> usize {
        self.merged.memory()
    }

    #[cfg(test)]
    pub(super) fn merged_versions(&self) -> usize {
        self.merged.versions()
    }

    /// Goes on by a step. True: all is merged.
    pub(super) fn step(&mut self, secret: &Secret) -> bool {
        let end = self.merged.versions() + self.pace;
        while self.merged.versions() < end {
            let mut least = 0;
            for at in 1..self.heads.len() {
                if self.heads[at].is_before(&self.heads[least]) {
                    least = at;
                }
            }
            let head = &mut self.heads[least];
            let Some((namespace, key)) = head.next() else {
                self.merged.finish();
                return true;
            };
            let is_new = self.namespace != Some(namespace);
            if is_new {
                self.namespace = Some(namespace);
                self.merged.begin(namespace);
            }
            if is_new || !self.merged.ends_with(&head.run, key) {
                self.merged.put_key(secret, head.run.key(key));
            }
            self.merged.put_versions_of(&head.run, key);
            head.advance();
        }
        false
    }

    /// What came of it.
    pub(super) fn into_run(self) -> Run {
        self.merged
    }
}
