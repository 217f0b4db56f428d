//! Keys, or prefixes, in order, each with its versions: the values before the commits of a run that changed it.
//!
//! With each key are its first 32 bits (its *lead*), so that a search reads one or two cache lines where keys are
//! spread evenly, and no key but at its end. Inline values are bytes in a row; others are stored as they are.

use std::ops::Range;

use pleach_beatree::{Stored, Value};
use pleach_core::search::{lower_bound_near, partition};
use pleach_core::{Key, Prefix};

/// A key that a table is sorted by.
pub(super) trait TableKey: Copy + Ord {
    /// The first 32 bits.
    fn lead(&self) -> u32;
    /// Number of bits.
    fn len(&self) -> u16;
}

impl TableKey for Key {
    #[inline]
    fn lead(&self) -> u32 {
        let [a, b, c, d, ..] = *self;
        u32::from_be_bytes([a, b, c, d])
    }

    fn len(&self) -> u16 {
        256
    }
}

impl TableKey for Prefix {
    #[inline]
    fn lead(&self) -> u32 {
        self.first_key().lead()
    }

    fn len(&self) -> u16 {
        self.len()
    }
}

/// A version in a table: 24 bits for its commit, counted from the run's first, 2 for its kind, 38 for the end of its
/// bytes.
#[derive(Clone, Copy)]
struct VersionMark(u64);

const KIND_AT: u32 = 38;
const COMMIT_AT: u32 = 40;
/// Most inline bytes in a run, and most commits.
pub(super) const MOST_BYTES: u64 = (1 << KIND_AT) - 1;
pub(super) const MOST_COMMITS: u64 = (1 << (64 - COMMIT_AT)) - 1;

/// The kinds of a version.
const ABSENT: u64 = 0;
const INLINE: u64 = 1;
/// In the list of values that are not inline.
const NOT_INLINE: u64 = 2;

impl VersionMark {
    fn commit(self) -> u64 {
        self.0 >> COMMIT_AT
    }

    fn kind(self) -> u64 {
        self.0 >> KIND_AT & 3
    }

    fn end(self) -> usize {
        usize::try_from(self.0 & MOST_BYTES).unwrap_or(usize::MAX)
    }
}

/// A table, finished or not.
pub(super) struct RunTable<K> {
    /// Commits are counted from this one.
    after: u64,
    /// Namespaces with the places of their first keys, both ascending.
    parts: Vec<(u8, usize)>,
    leads: Vec<u32>,
    keys: Vec<K>,
    /// The place of each key's first version; at the end, once all keys are in, the number of all versions.
    firsts: Vec<u32>,
    marks: Vec<VersionMark>,
    bytes: Vec<u8>,
    /// Values that are not inline, each with the place of its version.
    not_inline: Vec<(u32, Stored)>,
    not_inline_bytes: usize,
    /// Bits of the shortest key.
    pub(super) shortest: u16,
}

impl<K: TableKey> RunTable<K> {
    /// An empty table, with room for up to `keys` keys with `versions` versions and `bytes` bytes, of commits after
    /// one.
    pub(super) fn new(after: u64, keys: usize, versions: usize, bytes: usize) -> Self {
        Self {
            after,
            parts: Vec::new(),
            leads: Vec::with_capacity(keys),
            keys: Vec::with_capacity(keys),
            firsts: Vec::with_capacity(keys + 1),
            marks: Vec::with_capacity(versions),
            bytes: Vec::with_capacity(bytes),
            not_inline: Vec::new(),
            not_inline_bytes: 0,
            shortest: u16::MAX,
        }
    }

    /// An empty table for a merge of these, with room for all of them.
    pub(super) fn for_all<'a>(after: u64, tables: impl Iterator<Item = &'a Self>) -> Self
    where
        K: 'a,
    {
        let add = |sum: [usize; 3], one: &Self| {
            [sum[0] + one.keys.len(), sum[1] + one.marks.len(), sum[2] + one.bytes.len()]
        };
        let [keys, versions, bytes] = tables.fold([0; 3], add);
        Self::new(after, keys, versions, bytes)
    }

    pub(super) fn keys(&self) -> &[K] {
        &self.keys
    }

    /// The number of all versions.
    pub(super) fn versions(&self) -> usize {
        self.marks.len()
    }

    pub(super) fn inline_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes of memory in use, without reserved capacity.
    pub(super) fn memory(&self) -> usize {
        self.keys.len() * (size_of::<K>() + 2 * size_of::<u32>())
            + self.marks.len() * size_of::<VersionMark>()
            + self.bytes.len()
            + self.not_inline.len() * size_of::<(u32, Stored)>()
            + self.not_inline_bytes
    }

    /// Adds a key of a namespace, after all others. Its versions follow.
    pub(super) fn put_key(&mut self, namespace: u8, key: &K) {
        if self.parts.last().is_none_or(|last| last.0 != namespace) {
            assert!(self.parts.is_sorted_by(|a, b| a.0 < b.0), "namespaces ascend");
            self.parts.push((namespace, self.keys.len()));
        }
        self.leads.push(key.lead());
        self.keys.push(*key);
        self.firsts.push(place(self.marks.len()));
        self.shortest = self.shortest.min(key.len());
    }

    /// Adds a version to the last key: the value before a commit.
    pub(super) fn put_version(&mut self, commit: u64, stored: &Stored) {
        match stored {
            Stored::Absent => self.mark(commit, ABSENT),
            Stored::Inline(value) => self.put_bytes(commit, value),
            Stored::Long(_) | Stored::Overflow(_) => {
                self.not_inline.push((place(self.marks.len()), stored.clone()));
                self.not_inline_bytes += stored.heap_bytes();
                self.mark(commit, NOT_INLINE);
            }
        }
    }

    /// Adds a version of inline bytes to the last key.
    pub(super) fn put_bytes(&mut self, commit: u64, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.mark(commit, INLINE);
    }

    #[inline]
    fn mark(&mut self, commit: u64, kind: u64) {
        let (commit, end) = (commit - self.after, self.inline_bytes());
        assert!(commit <= MOST_COMMITS && end <= MOST_BYTES, "runs that are merged fit in one");
        self.marks.push(VersionMark(commit << COMMIT_AT | kind << KIND_AT | end));
    }

    /// Adds a key of another table with its versions, which are later than those of the same key here.
    pub(super) fn put_of(&mut self, namespace: u8, other: &Self, at: usize) {
        let is_last = self.leads.last() == Some(&other.leads[at])
            && self.keys.last() == Some(&other.keys[at])
            && self.parts.last().is_some_and(|last| last.0 == namespace);
        if !is_last {
            self.put_key(namespace, &other.keys[at]);
        }
        for version in other.versions_of(at) {
            let commit = other.commit(version);
            match other.marks[version].kind() {
                INLINE => self.put_bytes(commit, other.bytes(version)),
                NOT_INLINE => self.put_version(commit, other.not_inline(version)),
                _ => self.mark(commit, ABSENT),
            }
        }
    }

    /// Ends the table, after all keys.
    pub(super) fn finish(&mut self) {
        self.firsts.push(place(self.marks.len()));
        self.leads.shrink_to_fit();
        self.keys.shrink_to_fit();
        self.firsts.shrink_to_fit();
        self.marks.shrink_to_fit();
        self.bytes.shrink_to_fit();
        self.not_inline.shrink_to_fit();
    }

    /// The places of a namespace's keys.
    pub(super) fn part(&self, namespace: u8) -> Range<usize> {
        let Ok(at) = self.parts.binary_search_by_key(&namespace, |part| part.0) else {
            return 0..0;
        };
        self.parts[at].1..self.parts.get(at + 1).map_or(self.keys.len(), |next| next.1)
    }

    /// The namespaces, with the places of their keys.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u8, Range<usize>)> {
        self.parts.iter().map(|(namespace, _)| (*namespace, self.part(*namespace)))
    }

    /// The namespace of the key at a place; `None` behind the last key.
    pub(super) fn namespace(&self, at: usize) -> Option<u8> {
        let part = self.parts.partition_point(|(_, first)| *first <= at).checked_sub(1)?;
        (at < self.keys.len()).then_some(self.parts[part].0)
    }

    #[inline]
    pub(super) fn lead(&self, at: usize) -> u32 {
        self.leads[at]
    }

    #[inline]
    fn versions_of(&self, at: usize) -> Range<usize> {
        self.firsts[at] as usize..self.firsts[at + 1] as usize
    }

    /// The versions of a key that commits after `base`, through `last`, replaced.
    pub(super) fn versions_within(&self, at: usize, base: u64, last: u64) -> Range<usize> {
        let Range { start, end } = self.versions_of(at);
        let newest = self.marks[end - 1].commit();
        let behind = |commit: u64| {
            let commit = commit.saturating_sub(self.after).min(newest);
            // Mostly commits change a key about evenly.
            let guess = usize::try_from(commit * (end - start) as u64 / newest).unwrap_or(0);
            let is_through = |at: usize| self.marks[start + at].commit() <= commit;
            start + lower_bound_near(guess, end - start, is_through)
        };
        let end = behind(last);
        behind(base).min(end)..end
    }

    /// The commit that replaced a version.
    #[inline]
    pub(super) fn commit(&self, version: usize) -> u64 {
        self.after + self.marks[version].commit()
    }

    /// The bytes of an inline version.
    #[inline]
    pub(super) fn bytes(&self, version: usize) -> &[u8] {
        let before = version.checked_sub(1).map_or(0, |before| self.marks[before].end());
        &self.bytes[before..self.marks[version].end()]
    }

    fn not_inline(&self, version: usize) -> &Stored {
        let found = self.not_inline.binary_search_by_key(&place(version), |one| one.0);
        &self.not_inline[found.expect("it was put there with its version")].1
    }

    /// The value of a version.
    pub(super) fn stored(&self, version: usize) -> Stored {
        match self.marks[version].kind() {
            ABSENT => Stored::Absent,
            INLINE => Stored::Inline(Value::from(self.bytes(version))),
            _ => self.not_inline(version).clone(),
        }
    }

    /// The oldest version of a key after a commit.
    #[inline]
    pub(super) fn version_after(&self, at: usize, base: u64) -> Option<usize> {
        let Range { start, end } = self.versions_of(at);
        let version = if base <= self.after {
            start
        } else {
            partition(start, end, |version| self.commit(version) <= base)
        };
        (version < end).then_some(version)
    }

    /// The place of a key.
    pub(super) fn find(&self, namespace: u8, key: &K) -> Option<usize> {
        let part = self.part(namespace);
        let at = self.lower_bound(part.clone(), 0, key);
        (at < part.end && self.keys[at] == *key).then_some(at)
    }

    /// The place of the first key within a range that is not less than this one. The search begins where the lead lies
    /// between those of the range, of which none is less than `least`.
    #[inline]
    pub(super) fn lower_bound(&self, within: Range<usize>, least: u32, key: &K) -> usize {
        let Range { start, end } = within;
        let (count, lead) = (end - start, key.lead());
        let span = u64::from(u32::MAX - least) + 1;
        let guess = u64::from(lead.saturating_sub(least)) * count as u64 / span;
        let is_less = |at: usize| {
            let own = self.leads[start + at];
            own < lead || own == lead && self.keys[start + at] < *key
        };
        start + lower_bound_near(usize::try_from(guess).unwrap_or(0), count, is_less)
    }
}

/// A place in a table. There are fewer than 2^32: in a commit, and in runs that are merged together.
pub(super) fn place(count: usize) -> u32 {
    u32::try_from(count).expect("a run has fewer than 2^32 versions")
}
