//! A batch's accesses in order of their namespaces and keys.
//!
//! The caller's accesses lend their values to the sorted ones, and get them back when the finish fails.

use std::ops::Range;

use pleach_beatree::Stored;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::recycled::Recycle;
use pleach_core::{Hasher, Key};

use crate::access::{Access, AccessKind, MAX_VALUE};
use crate::error::{Error, Result};

/// Sorts accesses; its memory is kept from batch to batch.
#[derive(Default)]
pub(crate) struct Sorter {
    /// Where each bucket of the sort begins; while it is filled, where its next entry goes.
    starts: Vec<u32>,
    /// The accesses' leading bits and indexes, in order of their namespaces and keys.
    order: Vec<(u64, u32)>,
    /// Namespaces, ascending, and which of the sorted accesses are theirs.
    namespaces: Vec<(u8, Range<usize>)>,
    sorted: Vec<KeyAccess>,
}

/// Sorted accesses.
pub(crate) struct Sorted<'a> {
    accesses: &'a [KeyAccess],
    namespaces: &'a [(u8, Range<usize>)],
}

impl<'a> Sorted<'a> {
    /// Those of each namespace, ascending, in the order of their keys; of no accesses, those of namespace 0.
    pub(crate) fn namespaces(&self) -> impl ExactSizeIterator<Item = (u8, &'a [KeyAccess])> {
        let Self { accesses, namespaces } = *self;
        namespaces.iter().map(|(namespace, range)| (*namespace, &accesses[range.clone()]))
    }
}

impl Sorter {
    /// The accesses in the order of their namespaces and keys, each key of a namespace once. Their values are
    /// taken; [`Sorter::give_back`] puts them back.
    pub(crate) fn sort<H: Hasher>(&mut self, accesses: &mut [Access]) -> Result<Sorted<'_>> {
        self.sorted.clear();
        u32::try_from(accesses.len()).map_err(|_| Error::BatchTooLarge {
            bytes: accesses.len() as u64,
            limit: u64::from(u32::MAX),
        })?;
        self.order(accesses);
        self.sorted.reserve(accesses.len());
        for (_, range) in &self.namespaces {
            let mut before: Option<Key> = None;
            for (_, index) in &self.order[range.clone()] {
                let access = &mut accesses[*index as usize];
                if before.replace(access.key) == Some(access.key) {
                    return Err(Error::RepeatedKey(access.key));
                }
                self.sorted.push(take::<H>(access)?);
            }
        }
        Ok(Sorted { accesses: &self.sorted, namespaces: &self.namespaces })
    }

    /// Puts the values back into these accesses, which were sorted last, also after a sort that failed.
    pub(crate) fn give_back(&mut self, accesses: &mut [Access]) {
        for (access, (_, index)) in self.sorted.drain(..).zip(&self.order) {
            accesses[*index as usize].kind = kind(access);
        }
    }

    /// Sorts small entries instead of the accesses: by namespace, and each namespace's by key.
    fn order(&mut self, accesses: &[Access]) {
        self.namespaces.clear();
        self.order.resize(accesses.len(), (0, 0));
        let first = accesses.first().map_or(0, |access| access.namespace);
        if accesses.iter().all(|access| access.namespace == first) {
            self.namespaces.push((first, 0..accesses.len()));
            self.order_by_key(accesses, 0..accesses.len(), 0..index_of(accesses.len()));
            return;
        }
        let mut counts = [0_u32; 256];
        for access in accesses {
            counts[usize::from(access.namespace)] += 1;
        }
        let mut from = 0;
        let mut next = [0; 256];
        for (namespace, count) in (0..=u8::MAX).zip(counts) {
            next[usize::from(namespace)] = from;
            if count > 0 {
                let range = from as usize..(from + count) as usize;
                self.namespaces.push((namespace, range));
                from += count;
            }
        }
        let mut indexes = vec![0; accesses.len()];
        for (index, access) in (0_u32..).zip(accesses) {
            let next = &mut next[usize::from(access.namespace)];
            indexes[*next as usize] = index;
            *next += 1;
        }
        for at in 0..self.namespaces.len() {
            let range = self.namespaces[at].1.clone();
            self.order_by_key(accesses, range.clone(), indexes[range].iter().copied());
        }
    }

    /// Puts the accesses of these indexes, which are of one namespace, into a range of the order: first into
    /// buckets by some leading bits, which leaves little to compare when keys are spread.
    fn order_by_key(
        &mut self,
        accesses: &[Access],
        range: Range<usize>,
        indexes: impl Iterator<Item = u32> + Clone,
    ) {
        let Self { starts, order, .. } = self;
        let order = &mut order[range];
        let lead = |index: u32| {
            let key = &accesses[index as usize].key;
            u64::from_be_bytes(*key.first_chunk().expect("32 bytes"))
        };
        let bits = order.len().next_power_of_two().trailing_zeros().clamp(1, 16);
        let bucket = |lead: u64| usize::try_from(lead >> (64 - bits)).expect("16 bits");
        starts.clear();
        starts.resize((1 << bits) + 1, 0);
        for index in indexes.clone() {
            starts[bucket(lead(index)) + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        for index in indexes {
            let lead = lead(index);
            let slot = &mut starts[bucket(lead)];
            order[*slot as usize] = (lead, index);
            *slot += 1;
        }
        for same in order.chunk_by_mut(|a, b| bucket(a.0) == bucket(b.0)) {
            if same.len() > 1 {
                same.sort_unstable_by(|a, b| {
                    let keys = || accesses[a.1 as usize].key.cmp(&accesses[b.1 as usize].key);
                    a.0.cmp(&b.0).then_with(keys)
                });
            }
        }
    }
}

/// The caller has seen to it that there are fewer.
fn index_of(len: usize) -> u32 {
    u32::try_from(len).expect("fewer than 2^32 accesses")
}

impl Recycle for Sorter {
    fn bytes(&self) -> usize {
        self.starts.capacity() * size_of::<u32>()
            + self.order.capacity() * size_of::<(u64, u32)>()
            + self.namespaces.capacity() * size_of::<(u8, Range<usize>)>()
            + self.sorted.capacity() * size_of::<KeyAccess>()
    }

    /// Values are not kept; the order is overwritten by the next sort.
    fn clear(&mut self) {
        self.sorted.clear();
    }
}

/// Takes the value of an access.
fn take<H: Hasher>(access: &mut Access) -> Result<KeyAccess> {
    // Before the value is taken, so that it stays with the access.
    if let AccessKind::Write(Some(value)) | AccessKind::ReadWrite(Some(value)) = &access.kind
        && value.len() > MAX_VALUE
    {
        return Err(Error::ValueTooLarge { bytes: value.len() as u64, limit: MAX_VALUE as u64 });
    }
    let (reads, writes) = match std::mem::replace(&mut access.kind, AccessKind::Read) {
        AccessKind::Read => (true, None),
        AccessKind::Write(value) => (false, Some(value)),
        AccessKind::ReadWrite(value) => (true, Some(value)),
    };
    let writes = writes.map(|value| value.map_or(Stored::Absent, Stored::put::<H>));
    Ok(KeyAccess { key: access.key, reads, writes })
}

/// What [`take`] took the value of.
fn kind(access: KeyAccess) -> AccessKind {
    let Some(stored) = access.writes else { return AccessKind::Read };
    let value = match stored {
        Stored::Absent => None,
        Stored::Inline(value) => Some(value),
        // The bytes are shared, not copied.
        Stored::Large(large) => Some(large.bytes.clone()),
        Stored::Overflow(_) => unreachable!("accesses bring values, not cells"),
    };
    if access.reads { AccessKind::ReadWrite(value) } else { AccessKind::Write(value) }
}

#[cfg(test)]
mod measured;
