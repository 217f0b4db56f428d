//! A block's witness, in reused memory.
//!
//! The witness of 50,000 accesses takes 12 to 24 MB. Fresh memory is cleared by the system page by page when it is
//! first touched, which took longer than copying the witness into it.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::recycle::{Recycle, RecyclePool};
use pleach_io::ProcessTag;

use crate::metrics::Counters;

/// A witness: bytes for `pleach_core::proof::witness::verify`.
///
/// The database takes its memory back when it is dropped, and reuses it for the next one.
pub struct Witness {
    /// The witness's bytes, followed by any others.
    memory: WitnessMemory,
    len: usize,
    pool: Arc<WitnessPool>,
}

/// The memory of a database's witnesses, between two of them.
pub(crate) struct WitnessPool {
    kept: RecyclePool<WitnessMemory>,
    counters: Arc<Counters>,
    process: ProcessTag,
}

impl WitnessPool {
    /// An empty pool that keeps at most `bytes` bytes.
    pub(crate) fn new(bytes: usize, counters: &Arc<Counters>) -> Self {
        let (kept, process) = (RecyclePool::new(bytes), ProcessTag::current());
        Self { kept, counters: Arc::clone(counters), process }
    }

    /// Bytes of kept memory.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// Ends the counting of a witness that was dropped or became the caller's own.
    fn uncount(&self, memory: &WitnessMemory) {
        Counters::change(&self.counters.witness_bytes, -memory.bytes().cast_signed());
    }
}

impl Witness {
    /// The bytes as a vector, whose capacity may be twice their number; the database then takes fresh memory for the
    /// next witness.
    pub fn into_vec(mut self) -> Vec<u8> {
        self.pool.uncount(&self.memory);
        let mut bytes = std::mem::take(&mut self.memory).0;
        bytes.truncate(self.len);
        bytes
    }
}

impl Deref for Witness {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.0[..self.len]
    }
}

impl AsRef<[u8]> for Witness {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Witness({} bytes)", self.len())
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if !self.pool.process.is_current() {
            return;
        }
        self.pool.uncount(&self.memory);
        self.pool.kept.put_back(std::mem::take(&mut self.memory));
    }
}

/// Bytes by which the memory may exceed a witness, however small.
const LITTLE: usize = 1 << 16;

/// Memory of a witness. The pool keeps its bytes: setting them would cost as much as copying the next witness.
#[derive(Default)]
pub(crate) struct WitnessMemory(Vec<u8>);

impl Recycle for WitnessMemory {
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// At least `len` bytes, with any contents. A small witness, which may be kept for long, gets no large memory.
fn take_memory(pool: &RecyclePool<WitnessMemory>, len: usize) -> WitnessMemory {
    let fits = |memory: &WitnessMemory| (len..=2 * len + LITTLE).contains(&memory.0.len());
    pool.take_if(fits).unwrap_or_else(|| {
        // Slightly larger than needed, so that the next one fits, too.
        WitnessMemory(vec![0; (len + len / 8).min(pool.limit()).max(len)])
    })
}

/// A part of a witness: its place in the memory, and its bytes.
type CopyPart<'a> = (&'a mut [u8], &'a [u8]);

/// A witness of these parts, in their order, copied in `pieces` pieces. `run_all` is called once, with the number of
/// pieces and a job that it runs once for each index below it; it returns when all runs have ended.
pub(crate) fn concat_witness<'a>(
    pool: &Arc<WitnessPool>,
    parts: impl Iterator<Item = &'a [u8]> + Clone,
    pieces: usize,
    run_all: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
) -> Witness {
    let total: usize = parts.clone().map(<[u8]>::len).sum();
    let share = total.div_ceil(pieces).max(1);
    let mut memory = take_memory(&pool.kept, total);
    let mut shares: Vec<Mutex<Vec<CopyPart<'_>>>> = Vec::new();
    shares.resize_with(pieces, Mutex::default);
    let (mut rest, mut at) = (&mut memory.0[..total], 0);
    for part in parts {
        let (here, after) = std::mem::take(&mut rest).split_at_mut(part.len());
        shares[(at / share).min(pieces - 1)].get_mut().push((here, part));
        (rest, at) = (after, at + part.len());
    }
    assert!(rest.is_empty(), "parts are the same each time");
    run_all(pieces, &|index| {
        shares[index].lock().drain(..).for_each(|(to, from)| to.copy_from_slice(from));
    });
    let done = shares.iter_mut().all(|share| share.get_mut().is_empty());
    assert!(done, "every job is run: what was there before is never shown");
    drop(shares);
    Counters::change(&pool.counters.witness_bytes, memory.bytes().cast_signed());
    Witness { memory, len: total, pool: Arc::clone(pool) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(bytes: usize) -> Arc<WitnessPool> {
        Arc::new(WitnessPool::new(bytes, &Arc::default()))
    }

    fn out(home: &WitnessPool) -> u64 {
        home.counters.witness_bytes.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn copy(count: usize, job: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            (0..count).for_each(|index| drop(scope.spawn(move || job(index))));
        });
    }

    #[test]
    fn parts_come_in_order_however_many_pieces_and_in_memory_used_before() {
        let home = home(1 << 20);
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        for (step, len) in [(1, 9_000), (7, 10_000), (4096, 500), (20_000, 10_000)] {
            for pieces in [1, 2, 5] {
                let parts = bytes[..len].chunks(step).flat_map(|chunk| [chunk, &[]]);
                assert_eq!(*concat_witness(&home, parts, pieces, copy), bytes[..len]);
            }
        }
        assert_eq!(*concat_witness(&home, std::iter::empty(), 1, |_, job| job(0)), *b"");
    }

    #[test]
    #[should_panic(expected = "every job is run")]
    fn what_was_not_written_is_never_shown() {
        let parts: [&[u8]; 2] = [&[1; 100], &[2; 100]];
        drop(concat_witness(&home(0), parts.into_iter(), 2, |_, job| job(0)));
    }

    #[test]
    fn memory_comes_back_unless_it_was_kept_or_is_too_large() {
        let home = home(1000);
        let make = |len: usize| concat_witness(&home, std::iter::once(&vec![7; len][..]), 1, copy);
        let first = make(800);
        let at = first.as_ptr();
        assert_eq!(out(&home), first.memory.bytes() as u64);
        drop(first);
        assert_eq!(out(&home), 0);
        let second = make(700);
        assert_eq!((second.as_ptr(), second.len()), (at, 700));
        assert_eq!(second.into_vec(), vec![7; 700]);
        assert_eq!((home.bytes(), out(&home)), (0, 0), "it is the caller's own");
        drop(make(2000));
        assert_eq!(home.bytes(), 0);
        drop(make(950));
        assert_eq!(home.bytes(), 1000, "room for more, and no more than the limit");
        // After a large one, memory of small ones is kept, too.
        drop(make(100));
        assert_eq!(home.bytes(), 1000, "a little too much does no harm");
    }

    #[test]
    fn a_small_witness_leaves_a_large_ones_memory() {
        let home = home(10 * LITTLE);
        let make = |len: usize| concat_witness(&home, std::iter::once(&vec![7; len][..]), 1, copy);
        drop(make(8 * LITTLE));
        let small = make(100);
        assert_eq!((home.bytes(), small.memory.0.len()), (9 * LITTLE, 112));
        let at = small.as_ptr();
        drop(small);
        assert_eq!(home.bytes(), 9 * LITTLE + 112, "both are kept");
        let (small, large) = (make(110), make(8 * LITTLE));
        assert_eq!(small.as_ptr(), at, "each finds its own");
        assert_eq!((home.bytes(), large.memory.0.len()), (0, 9 * LITTLE));
    }
}
