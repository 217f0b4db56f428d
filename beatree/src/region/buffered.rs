//! The changes of a region that no page has yet, in key order.
//!
//! Beside each change are the 32 bits of its key that follow the region's prefix, its *lead*. Leads are close together
//! in memory, so that a search reads few cache lines and mostly no change. All searching functions take the region's
//! depth, which the table of children has.
//!
//! Invariants: changes are strictly increasing by key; there is one lead for each.

use std::ops::Range;

use pleach_core::Key;
use pleach_core::cpu_prefetch;
use pleach_core::node::precedes;
use pleach_core::prefix::Prefix;
use pleach_core::search::{guess, lower_bound_bits};

use crate::stored::Stored;
use pleach_core::prefix::bits_after;

/// A committed change that is not in a page yet.
#[derive(Clone, Debug)]
pub struct BufferedChange {
    /// The key.
    pub key: Key,
    /// The key's new state.
    pub stored: Stored,
    /// The commit that changed the key.
    pub commit: u64,
}

impl BufferedChange {
    /// Bytes of this entry, for the budget.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.stored.heap_bytes()
    }
}

/// A value in the overflow file that was replaced while its change was buffered.
#[derive(Clone, Debug)]
pub struct ReplacedValue {
    /// The buffered change of the value.
    pub buffered: BufferedChange,
    /// The commit that replaced it.
    pub replaced_by: u64,
}

impl ReplacedValue {
    /// True when a page below `range`, built of the changes up to commit `last_commit`, has the value. Then a rewrite that
    /// replaces the page's cell retires its runs.
    pub(super) fn is_in(&self, range: &Prefix, last_commit: u64) -> bool {
        range.covers(&self.buffered.key)
            && self.buffered.commit <= last_commit
            && last_commit < self.replaced_by
    }
}

/// The number of leads from the first one on for which `holds` is true, which it is for a prefix of them. Mostly few;
/// but keys that are no hashes may have thousands with the same lead.
#[inline]
fn run_len(leads: &[u32], holds: impl Fn(u32) -> bool) -> usize {
    const FEW: usize = 8;
    let few = leads.iter().take(FEW).take_while(|lead| holds(**lead)).count();
    if few < FEW { few } else { long_run_len(leads, FEW, holds) }
}

/// The same where `holds` is true for the first `known`, by steps that double.
#[cold]
fn long_run_len(leads: &[u32], known: usize, holds: impl Fn(u32) -> bool) -> usize {
    let mut known = known;
    while known < leads.len() {
        let next = (2 * known).min(leads.len());
        if !holds(leads[next - 1]) {
            return known + leads[known..next].partition_point(|lead| holds(*lead));
        }
        known = next;
    }
    known
}

/// Leads that are prefetched on either side of a key's place if keys were spread evenly.
const LEADS_AROUND: usize = 24;

/// A commit with at most this many changed children inserts its changes one by one, each moving what is after it. With
/// more children everything is moved once.
pub(super) const FEW: usize = 6;
/// A commit with more changes than this moves everything once, too, even if they are in few children: a page that is
/// not written yet may get all changes of a block.
pub(super) const FEW_CHANGES: usize = 8 * FEW;

/// The buffered changes of one region; see the module.
#[derive(Debug, Default)]
pub(super) struct BufferedChanges {
    changes: Vec<BufferedChange>,
    leads: Vec<u32>,
    /// Values in the overflow file that were replaced while their changes were buffered, and that no page has: the next
    /// flush of this region retires their runs.
    pub(super) replaced_values: Vec<ReplacedValue>,
}

impl BufferedChanges {
    pub(super) fn new(
        changes: Vec<BufferedChange>,
        replaced: Vec<ReplacedValue>,
        depth: u16,
    ) -> Self {
        let mut buffered = Self { changes, leads: Vec::new(), replaced_values: replaced };
        buffered.index(depth);
        buffered
    }

    #[inline]
    pub(super) fn changes(&self) -> &[BufferedChange] {
        &self.changes
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Prefetches the leads that a search for a key looks at.
    #[inline]
    pub(super) fn cpu_prefetch_leads(&self, key: &Key, depth: u16) {
        let at = guess(bits_after(key, depth), self.leads.len());
        // Off by half the root of their number: a line or two on either side.
        let end = (at + LEADS_AROUND).min(self.leads.len());
        cpu_prefetch(&self.leads[at.saturating_sub(LEADS_AROUND).min(end)..end]);
    }

    /// Prefetches the first change at or after a key.
    #[inline]
    pub(super) fn cpu_prefetch_change(&self, key: &Key, depth: u16) {
        let at = self.first_from(key, depth);
        cpu_prefetch(&self.changes[at..(at + 1).min(self.changes.len())]);
    }

    /// Index of the first change at or after a key.
    #[inline]
    fn first_from(&self, key: &Key, depth: u16) -> usize {
        assert_eq!(self.leads.len(), self.changes.len(), "one lead for each change");
        let lead = bits_after(key, depth);
        let from = lower_bound_bits(lead, self.leads.len(), |at| self.leads[at] < lead);
        let same = run_len(&self.leads[from..], |other| other == lead);
        if same == 0 {
            return from;
        }
        from + self.changes[from..from + same]
            .partition_point(|buffered| precedes(&buffered.key, key))
    }

    /// The change of a key.
    #[inline]
    pub(super) fn get(&self, key: &Key, depth: u16) -> Option<&BufferedChange> {
        let at = self.first_from(key, depth);
        // The change itself is far away in memory: mostly its lead rules it out.
        let lead = bits_after(key, depth);
        self.leads.get(at).filter(|other| **other == lead)?;
        Some(&self.changes[at]).filter(|buffered| buffered.key == *key)
    }

    /// Index range of the changes below `prefix`.
    #[inline]
    pub(super) fn range(&self, prefix: &Prefix, depth: u16) -> Range<usize> {
        let from = self.first_from(prefix.first_key(), depth);
        if prefix.len() - depth > 32 {
            let changes = &self.changes[from..];
            return from..from + changes.partition_point(|buffered| prefix.covers(&buffered.key));
        }
        // Leads first, again without reading the changes.
        let last = bits_after(&prefix.last_key(), depth);
        let more = run_len(&self.leads[from..], |lead| lead <= last);
        from..from + more
    }

    /// Inserts one change of a commit. Returns the growth in bytes.
    pub(super) fn put(&mut self, new: BufferedChange, depth: u16) -> isize {
        let (bytes, commit) = (signed(new.bytes()), new.commit);
        let at = self.first_from(&new.key, depth);
        if self.changes.get(at).is_some_and(|old| old.key == new.key) {
            let old = core::mem::replace(&mut self.changes[at], new);
            return bytes - self.replaced(old, commit);
        }
        make_room(&mut self.leads);
        make_room(&mut self.changes);
        self.leads.insert(at, bits_after(&new.key, depth));
        self.changes.insert(at, new);
        bytes
    }

    /// Merges changes of a commit that come in key order; `scratch` is a spare list whose memory is reused. Returns the
    /// growth in bytes.
    pub(super) fn merge(
        &mut self,
        coming: &mut dyn Iterator<Item = BufferedChange>,
        scratch: &mut Vec<BufferedChange>,
        depth: u16,
    ) -> isize {
        scratch.clear();
        // The spare list goes from region to region: none keeps a list that is much too long.
        let most = self.changes.len() + coming.size_hint().0;
        if !(most..=most + most / 4).contains(&scratch.capacity()) {
            *scratch = Vec::with_capacity(most);
        }
        let mut bytes = 0;
        let mut before = std::mem::take(&mut self.changes);
        let own = std::mem::replace(&mut self.leads, Vec::with_capacity(most));
        let mut old = before.drain(..);
        for new in coming {
            // What stays before it: mostly leads say how many, without a look at the changes.
            let (lead, left) = (bits_after(&new.key, depth), &own[own.len() - old.len()..]);
            let less = run_len(left, |other| other < lead);
            let same = old.as_slice()[less..].iter();
            let smaller = less + same.take_while(|other| precedes(&other.key, &new.key)).count();
            self.leads.extend_from_slice(&left[..smaller]);
            self.leads.push(lead);
            scratch.extend(old.by_ref().take(smaller));
            let is_there = old.as_slice().first().is_some_and(|other| other.key == new.key);
            if let Some(replaced) = is_there.then(|| old.next()).flatten() {
                bytes -= self.replaced(replaced, new.commit);
            }
            bytes += signed(new.bytes());
            scratch.push(new);
        }
        self.leads.extend_from_slice(&own[own.len() - old.len()..]);
        scratch.extend(old);
        std::mem::swap(&mut self.changes, scratch);
        *scratch = before;
        trim(&mut self.changes);
        bytes
    }

    /// Counts a change that commit `commit` replaces, and keeps a value in the overflow file; returns the change's
    /// bytes.
    fn replaced(&mut self, old: BufferedChange, commit: u64) -> isize {
        let bytes = signed(old.bytes());
        if matches!(old.stored, Stored::Overflow(_)) {
            self.replaced_values.push(ReplacedValue { buffered: old, replaced_by: commit });
        }
        bytes
    }

    /// Keeps the changes for which `keep` is true, in one pass.
    pub(super) fn retain(&mut self, keep: impl FnMut(&BufferedChange) -> bool, depth: u16) {
        self.changes.retain(keep);
        self.index(depth);
    }

    /// Removes a range; returns the bytes and the number of its changes.
    pub(super) fn remove(&mut self, range: Range<usize>) -> (usize, usize) {
        self.leads.drain(range.clone());
        let gone = self.changes.drain(range);
        let entries = gone.len();
        (gone.map(|buffered| buffered.bytes()).sum(), entries)
    }

    /// Frees memory where lists have much more than they need.
    pub(super) fn trim(&mut self) {
        trim(&mut self.changes);
        trim(&mut self.leads);
    }

    /// A copy of the changes in `range`, and of all replaced values below `prefix`.
    pub(super) fn part(&self, range: Range<usize>, prefix: &Prefix) -> Self {
        let replaced =
            self.replaced_values.iter().filter(|replaced| prefix.covers(&replaced.buffered.key));
        Self::new(self.changes[range].to_vec(), replaced.cloned().collect(), prefix.len())
    }

    /// The changes of two neighbouring regions, moved into the region of this depth over both.
    pub(super) fn joined(left: &mut Self, right: &mut Self, depth: u16) -> Self {
        let (mut left, mut right) = (std::mem::take(left), std::mem::take(right));
        left.changes.append(&mut right.changes);
        left.replaced_values.append(&mut right.replaced_values);
        Self::new(left.changes, left.replaced_values, depth)
    }

    fn index(&mut self, depth: u16) {
        self.leads.clear();
        self.leads.reserve_exact(self.changes.len());
        self.leads.extend(self.changes.iter().map(|buffered| bits_after(&buffered.key, depth)));
    }
}

/// Room for one more item, and a little beyond: there are many regions, and doubling would take half as much memory
/// again as the changes themselves.
fn make_room<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 8 + 2);
    }
}

/// Frees memory where a list has much more than it needs.
fn trim<T>(list: &mut Vec<T>) {
    if list.capacity() > 2 * list.len() + 16 {
        list.shrink_to(list.len() + list.len() / 8);
    }
}

pub(super) fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).expect("memory is smaller than isize::MAX")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_merge_is_one_put_after_the_other_whatever_leads_are_the_same() {
        // Keys of one lead, of four, and of all: each list is merged into what is there by then.
        for leads in [1, 4, 251] {
            let (mut merged, mut put, mut scratch) =
                (BufferedChanges::default(), BufferedChanges::default(), Vec::new());
            for commit in 1..60_u64 {
                let change = |at: u64| {
                    let number = at.wrapping_mul(commit).wrapping_mul(0x9e37_79b9) % 251;
                    let mut key = [0; 32];
                    key[2] = u8::try_from(number % leads).expect("small");
                    key[20] = u8::try_from(number).expect("small");
                    BufferedChange { key, stored: Stored::Absent, commit }
                };
                let mut changes: Vec<_> = (0..commit % 9 * 5).map(change).collect();
                changes.sort_by_key(|one| one.key);
                changes.dedup_by_key(|one| one.key);
                let bytes: isize = changes.iter().map(|one| put.put(one.clone(), 7)).sum();
                assert_eq!(merged.merge(&mut changes.into_iter(), &mut scratch, 7), bytes);
                let state = |of: &BufferedChanges| -> Vec<_> {
                    of.changes.iter().map(|one| (one.key, one.commit)).collect()
                };
                assert_eq!(state(&merged), state(&put), "{leads} leads, commit {commit}");
                assert_eq!(merged.leads, put.leads);
            }
            assert!(merged.len() > 200);
        }
    }

    #[test]
    fn the_length_of_a_run_takes_few_looks() {
        for len in (0..40).chain([1_000, 10_000]) {
            for same in (0..len.min(40)).chain([len / 2, len]) {
                let leads: Vec<u32> = (0..len).map(|at| u32::from(at >= same)).collect();
                let looks = Cell::new(0);
                let holds = |lead| {
                    looks.set(looks.get() + 1);
                    lead == 0
                };
                assert_eq!(run_len(&leads, holds), same, "{same} of {len}");
                assert!(looks.get() < 40, "{} looks for {same} of {len}", looks.get());
            }
        }
    }
}
