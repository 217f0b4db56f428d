//! What the flush does when nothing is due: after mass deletes it makes the index and the files smaller.
//!
//! 1. Small pages merge with their siblings, again and again, though no changes are buffered for them. Only pages that
//!    a round has just written are looked at.
//! 2. Pages at the end of a leaf file that is far too long are written again, to free pages at its front; a checkpoint
//!    cuts the end off.
//! 3. Sibling regions with few children are joined, in a location record of their own (rules `location-before-index`,
//!    `join-outside-image`).
//!
//! The first two are ordinary rounds of other pages. Nothing here is stored: after a restart, files and regions are
//! found again, and small pages wait for their next change.
//!
//! Only the flush task uses this.

use std::collections::VecDeque;
use std::sync::Arc;

use pleach_beatree::split_regions::{JOINED_ENTRIES, RegionPair, join_held};
use pleach_beatree::{PageNo, RegionIndex};
use pleach_core::{Key, Prefix};
use pleach_journal::format::location_body::{LocationEncoder, Rewrite};

use super::due::sorted_prefixes;
use crate::error::{Error, Result};
use crate::metrics::Counters;
use crate::state::NamespaceDb;
use crate::state::order::images::NUMBERS_FOR_CLOSE;
use crate::state::tries::Trie;

/// Pairs of regions that one record joins.
const JOINS: usize = 256;

/// Work to be done in one trie.
pub(super) struct Tidy {
    /// Small pages, which may merge with their siblings.
    small: VecDeque<Prefix>,
    /// True when there may be regions to join.
    pub(super) can_join: bool,
    /// No page at or behind this one can still be moved.
    clear_from: Option<PageNo>,
    /// Where the search for pages at the file's end continues.
    next: Option<Key>,
}

/// The result of a step of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinOutcome {
    /// Regions were joined; there may be more.
    Joined,
    /// There are none to join.
    NothingToJoin,
    /// A batch, a commit or an image is under way.
    Busy,
}

impl Tidy {
    /// The work of an index that was just opened, which may have small regions.
    pub(super) fn new() -> Self {
        Self { small: VecDeque::new(), can_join: true, clear_from: None, next: None }
    }

    /// Adds small pages of a round. `merged` is true when it has merged any.
    pub(super) fn add(&mut self, small: &mut Vec<Prefix>, merged: bool) {
        self.small.extend(small.drain(..));
        self.can_join |= merged;
    }

    /// True when there are so many small pages that they go before pages that are due.
    pub(super) fn is_pressed(&self, round: usize) -> bool {
        self.small.len() >= round
    }

    /// Pages for a round, in key order, and `goal`, where the leaf file should end: pages behind it are moved.
    pub(super) fn take_pages(
        &mut self,
        goal: Option<PageNo>,
        trie: &Trie,
        count: usize,
    ) -> (Vec<Prefix>, Option<PageNo>) {
        let count_small = self.small.len().min(count);
        let mut prefixes = sorted_prefixes(self.small.drain(..count_small).collect());
        if !prefixes.is_empty() {
            return (prefixes, None);
        }
        let Some(goal) = goal else {
            (self.clear_from, self.next) = (None, None);
            return (prefixes, None);
        };
        if self.next.is_none() && self.clear_from.is_some_and(|clear| clear <= goal) {
            return (prefixes, None);
        }
        // One pass over the index: meanwhile new pages are allocated at the front.
        let mut key = Some(self.next.unwrap_or([0; 32]));
        while let Some(at) = key.filter(|_| prefixes.len() < count) {
            key = trie.tree.with_region(&at, |region, state| {
                let children = state.children();
                let behind = (0..children.len())
                    .filter(|child| children.page(*child).is_some_and(|page| page >= goal));
                prefixes.extend(behind.map(|child| children.prefix(child)));
                region.prefix().next().map(|next| *next.first_key())
            });
        }
        self.next = key;
        if key.is_none() {
            self.clear_from = Some(goal);
        }
        (prefixes, Some(goal))
    }

    /// Joins regions, if there are any to join.
    pub(super) fn join(&mut self, db: &NamespaceDb) -> Result<JoinOutcome> {
        let joining = self.join_regions(db)?;
        self.can_join = joining != JoinOutcome::NothingToJoin;
        Ok(joining)
    }

    fn join_regions(&mut self, db: &NamespaceDb) -> Result<JoinOutcome> {
        let index = db.tree.load_full();
        if index.regions().iter().any(|region| region.row().is_away()) {
            return Ok(JoinOutcome::Busy);
        }
        let pairs = pairs(&index);
        if pairs.is_empty() {
            return Ok(JoinOutcome::NothingToJoin);
        }
        let Ok(flush) = db.images.next_number(NUMBERS_FOR_CLOSE) else {
            return Ok(JoinOutcome::NothingToJoin);
        };
        let mut encoder = LocationEncoder::with_buffer(Vec::new(), flush, db.namespace);
        for at in &pairs {
            let range = index.regions()[*at].prefix().parent().expect("a region with a sibling");
            encoder.push(&Rewrite::join(range));
        }
        let record = encoder.finish(db.store.database, &[], &[]);
        let len = record.len();
        match db.commits.sequencer.make_room(len) {
            // Nobody waits for a join: the flush must not report to commits that it has no room.
            Err(Error::Full(_)) => return Ok(JoinOutcome::Busy),
            made => made?,
        }
        // A batch that has folded the two regions has no valid result for the joined one.
        let Some(_alone) = db.tries.try_exclude_batches() else {
            return Ok(JoinOutcome::Busy);
        };
        let _structure = db.tree.hold_structure();
        let mut sequencer = db.commits.sequencer.lock();
        sequencer.check_writable()?;
        let others = sequencer.in_flight > 0 || db.images.is_image_in_progress();
        let same = Arc::ptr_eq(&index, &db.tree.load());
        if others || !same || !sequencer.has_room(len) {
            return Ok(JoinOutcome::Busy);
        }
        let end = sequencer.queue(record) + len;
        let regions = index.regions();
        let mut joined: Vec<RegionPair<'_>> = pairs
            .iter()
            .map(|at| RegionPair {
                at: *at,
                left: regions[*at].write(),
                right: regions[*at + 1].write(),
            })
            .collect();
        for RegionPair { left, right, .. } in &joined {
            // Two regions of one page each can now become one page.
            if left.children().len() == 1 && right.children().len() == 1 {
                self.small.push_back(left.children().prefix(0));
            }
        }
        db.tree.publish(join_held(db.hasher, &index, &mut joined, end.get()));
        sequencer.layouts += 1;
        drop(sequencer);
        Counters::add(&db.counters.regions_joined, pairs.len() as u64);
        Ok(JoinOutcome::Joined)
    }
}

/// Indexes of the left regions of siblings that are small enough to be joined, ascending.
fn pairs(index: &RegionIndex) -> Vec<usize> {
    let (regions, mut pairs) = (index.regions(), Vec::new());
    let mut at = 0;
    while at + 1 < regions.len() && pairs.len() < JOINS {
        let [left, right] = [&regions[at], &regions[at + 1]];
        let children = || left.read().children().len() + right.read().children().len();
        if left.prefix().sibling() == Some(*right.prefix()) && children() <= JOINED_ENTRIES {
            pairs.push(at);
            at += 1;
        }
        at += 1;
    }
    pairs
}
