//! Many byte strings into one vector, copied by several workers.
//!
//! The vector's memory is not cleared first: for a witness of megabytes that costs as much again as
//! the copying, on one thread.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// A part, and where it goes.
type Copy<'a> = (&'a mut [MaybeUninit<u8>], &'a [u8]);

/// The parts one behind the other. `fork_join` is called once, with `workers` and a job that takes
/// each number below that once; it returns when all have returned.
///
/// # Panics
/// When not all jobs were run.
pub fn gather<'a>(
    parts: impl Iterator<Item = &'a [u8]> + Clone,
    workers: usize,
    fork_join: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
) -> Vec<u8> {
    let total: usize = parts.clone().map(<[u8]>::len).sum();
    let share = total.div_ceil(workers).max(1);
    let mut gathered: Vec<u8> = Vec::with_capacity(total);
    let mut shares: Vec<Mutex<Vec<Copy<'_>>>> = Vec::new();
    shares.resize_with(workers, Mutex::default);
    let (mut rest, mut at) = (&mut gathered.spare_capacity_mut()[..total], 0);
    for part in parts {
        let (here, behind) = std::mem::take(&mut rest).split_at_mut(part.len());
        shares[(at / share).min(workers - 1)].get_mut().push((here, part));
        (rest, at) = (behind, at + part.len());
    }
    assert!(rest.is_empty(), "parts are the same each time");
    let copied = AtomicUsize::new(0);
    fork_join(workers, &|index| {
        for (to, from) in shares[index].lock().drain(..) {
            for (to, from) in to.iter_mut().zip(from) {
                to.write(*from);
            }
            copied.fetch_add(from.len(), Ordering::Relaxed);
        }
    });
    drop(shares);
    assert_eq!(copied.load(Ordering::Relaxed), total, "every job is run");
    // SAFETY: the parts' places are disjoint and tile the first `total` bytes of the capacity; each
    // is counted once, after all of it was written, and together they count `total`.
    #[expect(unsafe_code, reason = "memory that is written next need not be cleared")]
    unsafe {
        gathered.set_len(total);
    }
    gathered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_order_however_many_workers() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        for step in [1, 7, 4096, 20_000] {
            for workers in [1, 2, 5] {
                let parts = bytes.chunks(step).flat_map(|chunk| [chunk, &[]]);
                let got = gather(parts, workers, |count, job| {
                    std::thread::scope(|scope| {
                        (0..count).for_each(|index| drop(scope.spawn(move || job(index))));
                    });
                });
                assert_eq!(got, bytes);
            }
        }
        assert_eq!(gather(std::iter::empty(), 1, |_, job| job(0)), b"");
    }

    #[test]
    #[should_panic(expected = "every job is run")]
    fn what_was_not_written_is_never_shown() {
        let parts: [&[u8]; 2] = [&[1; 100], &[2; 100]];
        drop(gather(parts.into_iter(), 2, |_, job| job(0)));
    }
}
