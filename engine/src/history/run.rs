//! A run: what some commits, one after the other, replaced. It never changes.
//!
//! Keys are in order, those of each namespace after those of the one before. Beside each key are its first 32 bits (its
//! *lead*), so that a search reads one or two lines of memory where keys are spread evenly, and no key but at its end. A key
//! has its *versions*, ascending by commit: what the key had before the commit. Values lie one after the other as bytes; those
//! that are not inline stay as they are.

use std::ops::{Range, RangeInclusive};

use pleach_beatree::{Stored, Value};
use pleach_core::Key;
use pleach_core::search::{lower_bound_bits, lower_bound_near, partition};

use super::filter::{Filter, Secret};

/// A version: the commit that replaced it, and what it replaced.
pub(crate) type Version = (u64, Stored);

/// A version in a run: 24 bits for its commit, counted from the run's first, 2 for its kind, 38 for the end of its bytes.
#[derive(Clone, Copy)]
struct Mark(u64);

const KIND_AT: u32 = 38;
const COMMIT_AT: u32 = 40;
/// Most bytes of values that a run has, and most commits.
pub(super) const MOST_BYTES: u64 = (1 << KIND_AT) - 1;
pub(super) const MOST_COMMITS: u64 = (1 << (64 - COMMIT_AT)) - 1;

/// What a version is.
const ABSENT: u64 = 0;
const INLINE: u64 = 1;
/// It is in the list of those that are not inline.
const APART: u64 = 2;

impl Mark {
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

/// The first 32 bits of a key.
#[inline]
fn lead(key: &Key) -> u32 {
    let [a, b, c, d, ..] = *key;
    u32::from_be_bytes([a, b, c, d])
}

/// A run, ready or in the making.
pub(super) struct Run {
    /// It has what the commits after this one replaced, through another.
    pub(super) after: u64,
    pub(super) through: u64,
    /// Namespaces with their first keys, both ascending.
    parts: Vec<(u8, usize)>,
    leads: Vec<u32>,
    keys: Vec<Key>,
    /// The first version of each key, and the number of all.
    firsts: Vec<u32>,
    marks: Vec<Mark>,
    bytes: Vec<u8>,
    /// Values that are not inline, each with its version.
    apart: Vec<(u32, Stored)>,
    apart_bytes: usize,
    filter: Filter,
}

impl Run {
    /// A run without keys, with room for up to `keys` keys with `versions` versions and some bytes of values.
    pub(super) fn new(commits: Range<u64>, keys: usize, versions: usize, bytes: usize) -> Self {
        Self {
            after: commits.start,
            through: commits.end,
            parts: Vec::new(),
            leads: Vec::with_capacity(keys),
            keys: Vec::with_capacity(keys),
            firsts: Vec::with_capacity(keys + 1),
            marks: Vec::with_capacity(versions),
            bytes: Vec::with_capacity(bytes),
            apart: Vec::new(),
            apart_bytes: 0,
            filter: Filter::new(keys),
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn versions(&self) -> usize {
        self.marks.len()
    }

    /// Bytes of the values that are inline.
    pub(super) fn value_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that it takes in memory, less what is only reserved.
    pub(super) fn memory(&self) -> usize {
        self.keys.len() * (size_of::<Key>() + 2 * size_of::<u32>())
            + self.marks.len() * size_of::<Mark>()
            + self.bytes.len()
            + self.apart.len() * size_of::<(u32, Stored)>()
            + self.apart_bytes
            + self.filter.bytes()
            + size_of::<Self>()
    }

    /// Begins the keys of a namespace, after all before.
    pub(super) fn begin(&mut self, namespace: u8) {
        debug_assert!(self.parts.last().is_none_or(|last| last.0 < namespace), "they ascend");
        self.parts.push((namespace, self.keys.len()));
    }

    /// Adds a key, after all of its namespace, which was begun. Its versions follow.
    pub(super) fn put_key(&mut self, secret: &Secret, key: &Key) {
        let (namespace, _) = *self.parts.last().expect("its namespace was begun");
        self.filter.add(secret.hash(namespace, key));
        self.leads.push(lead(key));
        self.keys.push(*key);
        self.firsts.push(number(self.marks.len()));
    }

    /// Adds a version to the last key: what it had before a commit of the run.
    pub(super) fn put_version(&mut self, commit: u64, stored: &Stored) {
        let kind = match stored {
            Stored::Absent => ABSENT,
            Stored::Inline(value) => {
                self.bytes.extend_from_slice(value);
                INLINE
            }
            Stored::Large(_) | Stored::Overflow(_) => {
                self.apart.push((number(self.marks.len()), stored.clone()));
                self.apart_bytes += stored.heap_bytes();
                APART
            }
        };
        self.mark(commit, kind);
    }

    fn mark(&mut self, commit: u64, kind: u64) {
        let (commit, end) = (commit - self.after, self.bytes.len() as u64);
        assert!(commit <= MOST_COMMITS && end <= MOST_BYTES, "a run was cut before it was full");
        self.marks.push(Mark(commit << COMMIT_AT | kind << KIND_AT | end));
    }

    /// Adds the versions of another run's key to the last key.
    pub(super) fn put_versions_of(&mut self, other: &Self, key: usize) {
        for version in other.versions_of(key) {
            let mark = other.marks[version];
            match mark.kind() {
                APART => self.put_version(other.commit(version), other.apart(version)),
                kind => {
                    self.bytes.extend_from_slice(&other.bytes[other.value(version)]);
                    self.mark(other.commit(version), kind);
                }
            }
        }
    }

    /// All keys are in.
    pub(super) fn finish(&mut self) {
        self.firsts.push(number(self.marks.len()));
        self.leads.shrink_to_fit();
        self.keys.shrink_to_fit();
        self.firsts.shrink_to_fit();
        self.marks.shrink_to_fit();
        self.bytes.shrink_to_fit();
        self.apart.shrink_to_fit();
    }

    /// The keys of a namespace.
    pub(super) fn part(&self, namespace: u8) -> Range<usize> {
        match self.parts.binary_search_by_key(&namespace, |part| part.0) {
            Ok(at) => {
                self.parts[at].1..self.parts.get(at + 1).map_or(self.keys.len(), |next| next.1)
            }
            Err(_) => 0..0,
        }
    }

    /// The parts: namespaces and their keys.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u8, Range<usize>)> {
        self.parts.iter().map(|(namespace, _)| (*namespace, self.part(*namespace)))
    }

    pub(super) fn key(&self, key: usize) -> &Key {
        &self.keys[key]
    }

    pub(super) fn lead(&self, key: usize) -> u32 {
        self.leads[key]
    }

    /// Is the last key that of another run?
    pub(super) fn ends_with(&self, other: &Self, key: usize) -> bool {
        self.leads.last() == Some(&other.leads[key]) && self.keys.last() == Some(&other.keys[key])
    }

    fn versions_of(&self, key: usize) -> Range<usize> {
        self.firsts[key] as usize..self.firsts[key + 1] as usize
    }

    /// The commit that replaced a version.
    pub(super) fn commit(&self, version: usize) -> u64 {
        self.after + self.marks[version].commit()
    }

    fn value(&self, version: usize) -> Range<usize> {
        let before = version.checked_sub(1).map_or(0, |before| self.marks[before].end());
        before..self.marks[version].end()
    }

    fn apart(&self, version: usize) -> &Stored {
        let found = self.apart.binary_search_by_key(&number(version), |one| one.0);
        &self.apart[found.expect("it was put there with its version")].1
    }

    /// What a version is.
    pub(super) fn stored(&self, version: usize) -> Stored {
        match self.marks[version].kind() {
            ABSENT => Stored::Absent,
            INLINE => Stored::Inline(Value::from(&self.bytes[self.value(version)])),
            _ => self.apart(version).clone(),
        }
    }

    #[inline]
    fn is_less(&self, at: usize, lead: u32, key: &Key) -> bool {
        self.leads[at] < lead || self.leads[at] == lead && self.keys[at] < *key
    }

    /// The oldest version of a key after a commit.
    fn version_after(&self, key: usize, base: u64) -> Option<usize> {
        let Range { start, end } = self.versions_of(key);
        let version = if base <= self.after {
            start
        } else {
            partition(start, end, |version| self.commit(version) <= base)
        };
        (version < end).then_some(version)
    }

    #[inline]
    pub(super) fn cpu_prefetch(&self, hash: u64) {
        self.filter.cpu_prefetch(hash);
    }

    /// What a key with this hash had as of `base`, where a commit of the run after that replaced it.
    #[inline]
    pub(super) fn get(&self, namespace: u8, key: &Key, hash: u64, base: u64) -> Option<Version> {
        if self.filter.may_have(hash) { self.find(namespace, key, base) } else { None }
    }

    fn find(&self, namespace: u8, key: &Key, base: u64) -> Option<Version> {
        let (lead, Range { start, end }) = (lead(key), self.part(namespace));
        let at =
            start + lower_bound_bits(lead, end - start, |at| self.is_less(start + at, lead, key));
        if at == end || self.keys[at] != *key {
            return None;
        }
        let version = self.version_after(at, base)?;
        Some((self.commit(version), self.stored(version)))
    }

    /// Shows the keys of some ranges, which ascend, that commits of the run after `base` changed, in order: each with its
    /// oldest version of these. One walk: a search begins where the one before has ended.
    pub(super) fn each_within(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
        mut see: impl FnMut(usize, usize),
    ) {
        let Range { start: mut at, end } = self.part(namespace);
        for range in ranges {
            let (first, last) = (range.start(), range.end());
            at = self.lower_bound(at..end, first);
            let last_lead = lead(last);
            while at < end
                && (self.leads[at] < last_lead
                    || self.leads[at] == last_lead && self.keys[at] <= *last)
            {
                if let Some(version) = self.version_after(at, base) {
                    see(at, version);
                }
                at += 1;
            }
        }
    }

    /// The first of some keys that is not less than this one, searched from where its lead says, between theirs.
    fn lower_bound(&self, within: Range<usize>, key: &Key) -> usize {
        let Range { start, end } = within;
        let Some(count) = end.checked_sub(start).filter(|count| *count > 0) else { return end };
        let (lead, first) = (lead(key), self.leads[start]);
        let span = u64::from(u32::MAX - first) + 1;
        let guess = u64::from(lead.saturating_sub(first)) * count as u64 / span;
        let guess = usize::try_from(guess).unwrap_or(0);
        start + lower_bound_near(guess, count, |at| self.is_less(start + at, lead, key))
    }
}

/// The number of a version. A run has fewer than 2^32: a commit has, and runs that are merged have together.
fn number(count: usize) -> u32 {
    u32::try_from(count).expect("a run has fewer than 2^32 versions")
}
