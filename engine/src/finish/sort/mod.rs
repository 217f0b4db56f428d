//! A batch's accesses in order of their namespaces and keys.
//!
//! Keys are compared by their leading 64 bits, which lie beside the accesses' indexes, and by the rest where those are
//! equal. Two steps, each of tasks that workers share:
//!
//! 1. Each *slice* of the accesses is divided into buckets by its keys' first byte.
//! 2. Each *part*, some neighbouring buckets of all slices, is sorted, and its accesses are copied.
//!
//! The caller's accesses do not change: values of up to [`Value::INLINE`] bytes are copied, longer ones shared.

use std::ops::Range;
use std::slice;

use parking_lot::Mutex;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::recycle::Recycle;
use pleach_beatree::{Stored, Value};
use pleach_core::{Hasher, cpu_prefetch};

use crate::access::{Access, AccessKind, MAX_VALUE};
use crate::error::{Error, Result};

/// Runs a task for each index below a number, in any order, in parallel.
pub(crate) type TaskRunner<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// Buckets of a slice, by a key's first byte.
const BUCKETS: usize = 1 << 8;
/// About how many accesses a slice has, and a part of evenly spread keys: a worker takes some 50 microseconds for them.
const SLICE: usize = 2048;

/// This many accesses are sorted without buckets.
const FEW: usize = 64;

/// Accesses ahead of the one that is copied whose memory is prefetched.
const AHEAD: usize = 12;

/// An access: its key's leading bits, and its index.
type Lead = (u64, u32);

/// Where the buckets of a slice begin, and where the last one ends.
type Starts = [u32; BUCKETS + 1];

/// Sorts accesses; its memory is kept from batch to batch.
#[derive(Default)]
pub(crate) struct Sorter {
    /// The leads of each slice, in the order of their buckets.
    sliced: Vec<Lead>,
    starts: Vec<Starts>,
    /// All leads in the order of their namespaces and keys.
    order: Vec<Lead>,
    /// Namespaces, ascending, each with its range of the sorted accesses.
    namespaces: Vec<(u8, Range<usize>)>,
    /// In that order; accesses of a larger earlier batch may follow.
    sorted: Vec<KeyAccess>,
    /// Number of accesses, from the first on, that were set since the last [`clear`](Recycle::clear).
    set: usize,
    /// True when one of these shares a long value.
    shares: bool,
}

/// Sorted accesses.
pub(crate) struct SortedAccesses<'a> {
    accesses: &'a [KeyAccess],
    namespaces: &'a [(u8, Range<usize>)],
}

impl<'a> SortedAccesses<'a> {
    /// The accesses of each namespace, ascending, in key order; of no accesses, an empty list for namespace 0.
    pub(crate) fn namespaces(&self) -> impl ExactSizeIterator<Item = (u8, &'a [KeyAccess])> {
        let Self { accesses, namespaces } = *self;
        namespaces.iter().map(|(namespace, range)| (*namespace, &accesses[range.clone()]))
    }
}

impl Sorter {
    /// The accesses in the order of their namespaces and keys, each key of a namespace once.
    pub(crate) fn sort(
        &mut self,
        hasher: Hasher,
        accesses: &[Access],
        run: TaskRunner<'_>,
    ) -> Result<SortedAccesses<'_>> {
        u32::try_from(accesses.len()).map_err(|_| Error::BatchTooLarge {
            bytes: accesses.len() as u64,
            limit: u64::from(u32::MAX),
        })?;
        let count = accesses.len();
        self.sliced.resize(count.max(self.sliced.len()), (0, 0));
        self.order.resize(count.max(self.order.len()), (0, 0));
        let nothing = || KeyAccess { key: [0; 32], reads: false, writes: None };
        self.sorted.resize_with(count.max(self.sorted.len()), nothing);
        self.set = self.set.max(count);
        self.namespaces.clear();
        let first = accesses.first().map_or(0, |access| access.namespace);
        if accesses.iter().all(|access| access.namespace == first) {
            self.namespaces.push((first, 0..count));
            self.sort_namespace(hasher, accesses, 0..count, &|at| at, run)?;
        } else {
            let indexes = self.divide(accesses);
            for at in 0..self.namespaces.len() {
                let range = self.namespaces[at].1.clone();
                let indexes = &indexes[range.clone()];
                self.sort_namespace(hasher, accesses, range, &|at| indexes[at] as usize, run)?;
            }
        }
        Ok(SortedAccesses { accesses: &self.sorted[..count], namespaces: &self.namespaces })
    }

    /// Divides accesses by their namespaces; returns their indexes.
    fn divide(&mut self, accesses: &[Access]) -> Vec<u32> {
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
        indexes
    }

    /// Sorts accesses of one namespace into a range; `index` has their indexes.
    fn sort_namespace(
        &mut self,
        hasher: Hasher,
        accesses: &[Access],
        range: Range<usize>,
        index: &(dyn Fn(usize) -> usize + Sync),
        run: TaskRunner<'_>,
    ) -> Result<()> {
        let Self { sliced, starts, order, sorted, shares, .. } = self;
        let sliced = &mut sliced[range.clone()];
        let (order, sorted) = (&mut order[range.clone()], &mut sorted[range.clone()]);
        if order.len() <= FEW {
            (0..).zip(&mut *order).for_each(|(at, one)| *one = lead(accesses, index(at)));
            in_order(order, accesses);
            return copy(order, sorted, hasher, accesses, shares);
        }
        starts.clear();
        starts.resize(range.len().div_ceil(SLICE), [0; BUCKETS + 1]);
        {
            let slices: Vec<_> =
                sliced.chunks_mut(SLICE).zip(starts.iter_mut()).map(Mutex::new).collect();
            run(slices.len(), &|at| {
                let (leads, starts) = &mut *slices[at].lock();
                let from = at * SLICE;
                let lead = |at: usize| lead(accesses, index(from + at));
                bucket_slice(leads, starts, lead);
            });
        }
        let slices = Slices { leads: sliced, starts };
        let mut parts: Vec<_> = slices.parts(order, sorted).into_iter().map(Mutex::new).collect();
        run(parts.len(), &|at| {
            let part = &mut *parts[at].lock();
            part.done = Some(part.sort(hasher, accesses, &slices));
        });
        // Also of parts sorted before or after a failed one.
        *shares |= parts.iter_mut().any(|part| part.get_mut().shares);
        // The first failure in order, whichever worker came to it first.
        let mut done = parts.into_iter().map(|part| part.into_inner().done);
        done.try_for_each(|done| done.expect("every task is run"))
    }
}

/// The lead of an access.
fn lead(accesses: &[Access], index: usize) -> Lead {
    let lead = u64::from_be_bytes(*accesses[index].key.first_chunk().expect("32 bytes"));
    (lead, u32::try_from(index).expect("fewer than 2^32 accesses"))
}

/// The first bits of a lead, at most 16.
fn bits_of(lead: &Lead, bits: u32) -> usize {
    usize::try_from(lead.0 >> (64 - bits)).expect("16 bits")
}

fn bucket(lead: &Lead) -> usize {
    bits_of(lead, 8)
}

/// Moves the leads of a slice into their buckets.
fn bucket_slice(leads: &mut [Lead], starts: &mut Starts, lead: impl Fn(usize) -> Lead) {
    for at in 0..leads.len() {
        starts[bucket(&lead(at)) + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut next = *starts;
    for at in 0..leads.len() {
        let lead = lead(at);
        let next = &mut next[bucket(&lead)];
        leads[*next as usize] = lead;
        *next += 1;
    }
}

/// Sorts leads by their keys.
fn in_order(leads: &mut [Lead], accesses: &[Access]) {
    let key = |lead: &Lead| &accesses[lead.1 as usize].key;
    leads.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| key(a).cmp(key(b))));
}

/// Slices in the order of their buckets.
struct Slices<'a> {
    leads: &'a [Lead],
    starts: &'a [Starts],
}

impl Slices<'_> {
    /// Divides the buckets of all slices into parts of at least a slice's size, with their places in the order.
    fn parts<'a>(&self, order: &'a mut [Lead], sorted: &'a mut [KeyAccess]) -> Vec<SortPart<'a>> {
        let mut parts = Vec::with_capacity(self.starts.len() + 1);
        let (mut order, mut sorted) = (order, sorted);
        let (mut from, mut len) = (0, 0);
        for bucket in 0..BUCKETS {
            let of = |starts: &Starts| (starts[bucket + 1] - starts[bucket]) as usize;
            len += self.starts.iter().map(of).sum::<usize>();
            if len >= SLICE || (bucket + 1 == BUCKETS && len > 0) {
                let (part, rest) = std::mem::take(&mut order).split_at_mut(len);
                order = rest;
                let (copies, rest) = std::mem::take(&mut sorted).split_at_mut(len);
                sorted = rest;
                let buckets = from..bucket + 1;
                parts.push(SortPart { buckets, order: part, copies, shares: false, done: None });
                (from, len) = (bucket + 1, 0);
            }
        }
        parts
    }

    /// The leads of some buckets, slice by slice.
    fn leads_of(&self, buckets: &Range<usize>) -> impl Iterator<Item = &[Lead]> {
        let slices = self.leads.chunks(SLICE).zip(self.starts);
        slices.map(|(leads, starts)| {
            &leads[starts[buckets.start] as usize..starts[buckets.end] as usize]
        })
    }
}

/// Some buckets that are sorted into the order.
struct SortPart<'a> {
    buckets: Range<usize>,
    order: &'a mut [Lead],
    copies: &'a mut [KeyAccess],
    /// True when an access shares a long value.
    shares: bool,
    done: Option<Result<()>>,
}

impl SortPart<'_> {
    /// Sorts the part and copies its accesses.
    fn sort(&mut self, hasher: Hasher, accesses: &[Access], slices: &Slices<'_>) -> Result<()> {
        // Into smaller buckets, about as many as accesses, so that few keys are compared.
        let bits = (self.order.len() / self.buckets.len()).max(1).ilog2().min(8);
        let small = |lead: &Lead| bits_of(lead, 8 + bits) - (self.buckets.start << bits);
        let mut next = vec![0_u32; (self.buckets.len() << bits) + 1];
        for lead in slices.leads_of(&self.buckets).flatten() {
            next[small(lead) + 1] += 1;
        }
        for at in 1..next.len() {
            next[at] += next[at - 1];
        }
        for lead in slices.leads_of(&self.buckets).flatten() {
            let next = &mut next[small(lead)];
            self.order[*next as usize] = *lead;
            *next += 1;
        }
        for same in self.order.chunk_by_mut(|a, b| small(a) == small(b)) {
            in_order(same, accesses);
        }
        copy(self.order, self.copies, hasher, accesses, &mut self.shares)
    }
}

/// Copies sorted accesses. Sets `shares` when one shares a long value.
fn copy(
    order: &[Lead],
    copies: &mut [KeyAccess],
    hasher: Hasher,
    accesses: &[Access],
    shares: &mut bool,
) -> Result<()> {
    let key = |lead: &Lead| &accesses[lead.1 as usize].key;
    // Equal keys are in one bucket.
    for (lead, next) in order.iter().zip(order.iter().skip(1)) {
        if lead.0 == next.0 && key(lead) == key(next) {
            return Err(Error::RepeatedKey(*key(lead)));
        }
    }
    for (at, (lead, copy)) in order.iter().zip(copies).enumerate() {
        if let Some(later) = order.get(at + AHEAD) {
            cpu_prefetch(slice::from_ref(&accesses[later.1 as usize]));
        }
        *copy = key_access(hasher, &accesses[lead.1 as usize])?;
        *shares |= copy.writes.as_ref().is_some_and(|stored| stored.heap_bytes() > 0);
    }
    Ok(())
}

impl Recycle for Sorter {
    fn bytes(&self) -> usize {
        (self.sliced.capacity() + self.order.capacity()) * size_of::<Lead>()
            + self.starts.capacity() * size_of::<Starts>()
            + self.namespaces.capacity() * size_of::<(u8, Range<usize>)>()
            + self.sorted.capacity() * size_of::<KeyAccess>()
    }

    /// Drops long values. All else stays, to be overwritten by the next sort. Only accesses of the last batch are
    /// visited: those behind them were cleared with their own batch.
    fn clear(&mut self) {
        let set = std::mem::take(&mut self.set);
        if std::mem::take(&mut self.shares) {
            self.sorted[..set].iter_mut().for_each(|access| access.writes = None);
        }
    }
}

/// The form of an access that the fold takes.
fn key_access(hasher: Hasher, access: &Access) -> Result<KeyAccess> {
    let (reads, writes) = match &access.kind {
        AccessKind::Read => (true, None),
        AccessKind::Write(value) => (false, Some(value)),
        AccessKind::ReadWrite(value) => (true, Some(value)),
        AccessKind::DeletePrefix(_) => unreachable!("a session has made deletes of it"),
    };
    let stored = |value: &Option<Value>| match value {
        None => Ok(Stored::Absent),
        Some(value) if value.len() > MAX_VALUE => {
            Err(Error::ValueTooLarge { bytes: value.len() as u64, limit: MAX_VALUE as u64 })
        }
        Some(value) => Ok(Stored::from_value(hasher, value.clone())),
    };
    Ok(KeyAccess { key: access.key, reads, writes: writes.map(stored).transpose()? })
}

#[cfg(test)]
mod tests;
