//! What the flush does when nothing is due: after mass deletes the index and the files become as small as
//! what is left.
//!
//! 1. Pages that have become small merge with their siblings, again and again, though nothing pends on
//!    them. Only pages that a round has just written are looked at.
//! 2. Pages at the end of a leaf file that is far too long are written again, to its front, where its free
//!    pages are; a checkpoint cuts the end off.
//! 3. Siblings among the regions that have few children are joined, in a location record of their own
//!    (rules `location-before-index`, `join-outside-image`).
//!
//! The first two are ordinary rounds of other pages. Nothing here is stored: what a restart forgets is found
//! again (files, regions) or waits for the next change (pages).
//!
//! The flush task alone has this.

use std::collections::VecDeque;
use std::sync::Arc;

use pleach_beatree::split::{JOINED_ENTRIES, RegionPair, join_held};
use pleach_beatree::{PageNo, RegionIndex};
use pleach_core::{Key, Prefix};
use pleach_journal::format::location_body::{LocationEncoder, Rewrite};

use super::due::sorted_prefixes;
use crate::error::{Error, Result};
use crate::metrics::Counters;
use crate::state::TrieDb;
use crate::state::order::images::NUMBERS_FOR_CLOSE;
use crate::state::tries::Trie;

/// Pairs of regions that one record joins.
const JOINS: usize = 256;

/// What is to be tidied up in one trie.
pub(super) struct Tidy {
    /// Small pages, which may merge with their siblings.
    small: VecDeque<Prefix>,
    /// May there be regions to join?
    regions: bool,
    /// No page at or behind this one is left to be moved, as far as pages can be.
    clear_from: Option<PageNo>,
    /// Where the search for pages at the file's end goes on.
    next: Option<Key>,
}

/// How joining went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinOutcome {
    /// There may be more.
    Joined,
    /// There are none.
    NothingToJoin,
    /// A batch, a commit or an image is under way.
    Busy,
}

impl Tidy {
    /// An index that was just opened may have small regions.
    pub(super) fn new() -> Self {
        Self { small: VecDeque::new(), regions: true, clear_from: None, next: None }
    }

    /// A round has written these small pages, and merged some.
    pub(super) fn add(&mut self, small: &mut Vec<Prefix>, merged: bool) {
        self.small.extend(small.drain(..));
        self.regions |= merged;
    }

    /// Are there so many small pages that they go before the pages that are due?
    pub(super) fn is_pressed(&self, round: usize) -> bool {
        self.small.len() >= round
    }

    /// Pages for a round, in key order, and the page at and behind which all others are moved: `goal`, where
    /// the leaf file should end.
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
        // One pass over the index: new pages come to the front meanwhile.
        let mut key = Some(self.next.unwrap_or([0; 32]));
        while let Some(at) = key.filter(|_| prefixes.len() < count) {
            key = trie.index.with_region(&at, |region, state| {
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

    /// May there be regions to join?
    pub(super) fn can_join(&self) -> bool {
        self.regions
    }

    /// Joins regions, if there are any to be joined.
    pub(super) fn join(&mut self, db: &TrieDb) -> Result<JoinOutcome> {
        let joining = self.join_regions(db)?;
        self.regions = joining != JoinOutcome::NothingToJoin;
        Ok(joining)
    }

    fn join_regions(&mut self, db: &TrieDb) -> Result<JoinOutcome> {
        let index = db.index.load_full();
        let mut pairs = pairs(&index);
        // The flush is the one that lets nodes leave: what it brings in stays.
        pairs.retain(|at| {
            let mut both = index.regions()[*at..*at + 2].iter();
            both.all(|region| db.nodes.load_nodes_for_flush(region.prefix().first_key()).is_ok())
        });
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
            // Nobody waits for a join: commits are not to be told that the flush has no room.
            Err(Error::Full(_)) => return Ok(JoinOutcome::Busy),
            made => made?,
        }
        // A batch that has folded the two by themselves would not be right about the one over both.
        let Some(_alone) = db.nodes.try_exclude_batches() else { return Ok(JoinOutcome::Busy) };
        let _structure = db.index.hold_structure();
        let mut sequencer = db.commits.sequencer.lock();
        sequencer.check_writable()?;
        let others = sequencer.in_flight > 0 || db.images.is_image_in_progress();
        let same = Arc::ptr_eq(&index, &db.index.load());
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
            // Two that are one page each can now become one.
            if left.children().len() == 1 && right.children().len() == 1 {
                self.small.push_back(left.children().prefix(0));
            }
            db.nodes.free_spill_page(left);
            db.nodes.free_spill_page(right);
        }
        db.index.publish(join_held(db.hasher, &index, &mut joined, end.get()));
        sequencer.layouts += 1;
        drop(sequencer);
        Counters::add(&db.counters.regions_joined, pairs.len() as u64);
        Ok(JoinOutcome::Joined)
    }
}

/// Places of the left ones of siblings that are small enough to be joined, in ascending order.
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
