//! The order of locks, asserted in debug builds; release builds compile none of it.
//!
//! Each lock has a [`Rank`]. A thread that holds a lock waits only for locks of higher rank, so that no two threads can
//! wait for each other. This crate has one ranked lock, the region's ([`REGION`]); the engine's table has all ranks.
//!
//! Debug builds also count how often the locks of each rank are taken, and how often a thread had to wait ([`counts`]).
//!
//! ```
//! use pleach_beatree::lock_order::{Rank, RankedGuard};
//!
//! const FIRST: Rank = Rank::new(1, "first");
//! const SECOND: Rank = Rank::new(2, "second");
//! let (one, two) = (std::sync::Mutex::new(1), std::sync::Mutex::new(2));
//! let first = RankedGuard::wait(FIRST, || one.lock().expect("no panic"));
//! let second = RankedGuard::wait(SECOND, || two.lock().expect("no panic"));
//! assert_eq!(*first + *second, 3);
//! ```

use core::ops::{Deref, DerefMut};

/// A region's state.
pub const REGION: Rank = Rank::new(7, "a region").repeatable();

/// A shard of the page cache. No lock is waited for under it; it is counted, and not asserted.
pub const CACHE_SHARD: Rank = Rank::new(9, "a cache shard");

/// The place of a lock in the order.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(debug_assertions), expect(dead_code, reason = "asserted in debug builds only"))]
pub struct Rank {
    number: u8,
    name: &'static str,
    repeatable: bool,
}

impl Rank {
    /// A rank. A thread that holds a lock of it takes no other one of it.
    pub const fn new(number: u8, name: &'static str) -> Self {
        Self { number, name, repeatable: false }
    }

    /// A rank whose locks a thread may take again while it holds one: several locks of one rank, or one that is read
    /// recursively.
    #[must_use]
    pub const fn repeatable(self) -> Self {
        Self { repeatable: true, ..self }
    }
}

/// A guard of a lock that has a rank.
#[derive(Debug)]
pub struct RankedGuard<G> {
    guard: G,
    _rank: HeldRank,
}

impl<G> RankedGuard<G> {
    /// Takes a lock, waiting for it.
    ///
    /// # Panics
    /// In a debug build, when this thread holds a lock of the same rank or a higher one, unless it takes a
    /// repeatable one again.
    #[inline]
    pub fn wait(rank: Rank, lock: impl FnOnce() -> G) -> Self {
        // Before waiting: a deadlocked thread reports nothing.
        let held = HeldRank::new(rank, true);
        Self { guard: lock(), _rank: held }
    }

    /// Takes a lock: by `attempt` if it is free, else waiting for it by `lock`. Release builds only call `lock`.
    ///
    /// # Panics
    /// As [`RankedGuard::wait`].
    #[inline]
    pub fn acquire(
        rank: Rank,
        attempt: impl FnOnce() -> Option<G>,
        lock: impl FnOnce() -> G,
    ) -> Self {
        let held = HeldRank::new(rank, true);
        Self { guard: counted(rank, attempt, lock), _rank: held }
    }

    /// Takes a lock if it is free, in any order, since it does not wait. Locks taken afterwards are checked.
    #[inline]
    pub fn attempt(rank: Rank, lock: impl FnOnce() -> Option<G>) -> Option<Self> {
        lock().map(|guard| Self { guard, _rank: HeldRank::new(rank, false) })
    }
}

impl<G: Deref> Deref for RankedGuard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for RankedGuard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
pub(crate) use checked::counted;
#[cfg(debug_assertions)]
pub use checked::{LockCount, counts};
#[cfg(not(debug_assertions))]
pub(crate) use unchecked::counted;

#[cfg(debug_assertions)]
use checked::HeldRank;
#[cfg(not(debug_assertions))]
use unchecked::HeldRank;

#[cfg(debug_assertions)]
mod checked {
    use std::cell::RefCell;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Rank;

    /// How often the locks of a rank were taken by [`RankedGuard::acquire`](super::RankedGuard::acquire), in the whole
    /// process.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockCount {
        /// What the locks guard.
        pub name: &'static str,
        /// How often a lock was taken.
        pub taken: u64,
        /// How often another thread had it.
        pub waited: u64,
    }

    /// Name, taken, waited.
    type Counter = (OnceLock<&'static str>, AtomicU64, AtomicU64);

    /// By the number of the rank.
    static COUNTERS: [Counter; 16] =
        [const { (OnceLock::new(), AtomicU64::new(0), AtomicU64::new(0)) }; 16];

    /// The counts of all ranks of which a lock was taken, by rank. Empty in release builds.
    pub fn counts() -> Vec<LockCount> {
        let counts = COUNTERS.iter().filter_map(|(name, taken, waited)| {
            let (taken, waited) = (taken.load(Ordering::Relaxed), waited.load(Ordering::Relaxed));
            Some(LockCount { name: name.get()?, taken, waited })
        });
        counts.collect()
    }

    /// Takes a lock and counts it.
    pub(crate) fn counted<G>(
        rank: Rank,
        attempt: impl FnOnce() -> Option<G>,
        lock: impl FnOnce() -> G,
    ) -> G {
        let (name, taken, waited) = &COUNTERS[usize::from(rank.number)];
        name.get_or_init(|| rank.name);
        taken.fetch_add(1, Ordering::Relaxed);
        attempt().unwrap_or_else(|| {
            waited.fetch_add(1, Ordering::Relaxed);
            lock()
        })
    }

    thread_local! {
        /// The ranks of the locks that this thread holds.
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    #[derive(Debug)]
    pub(super) struct HeldRank(u8);

    impl HeldRank {
        pub(super) fn new(rank: Rank, waits: bool) -> Self {
            // A thread that ends or unwinds is not checked.
            let higher = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                let again = held.iter().any(|held| held.number == rank.number);
                let higher = held.iter().copied().find(|held| held.number >= rank.number);
                held.push(rank);
                higher.filter(|_| !(again && rank.repeatable))
            });
            if let Ok(Some(higher)) = higher
                && waits
                && !std::thread::panicking()
            {
                drop(Self(rank.number));
                panic!(
                    "the lock of {} (rank {}) is taken under that of {} (rank {})",
                    rank.name, rank.number, higher.name, higher.number
                );
            }
            Self(rank.number)
        }
    }

    impl Drop for HeldRank {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|rank| rank.number == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod unchecked {
    use super::Rank;

    #[inline]
    pub(crate) fn counted<G>(
        _: Rank,
        _: impl FnOnce() -> Option<G>,
        lock: impl FnOnce() -> G,
    ) -> G {
        lock()
    }

    #[derive(Debug)]
    pub(super) struct HeldRank;

    impl HeldRank {
        #[inline]
        pub(super) fn new(_: Rank, _: bool) -> Self {
            Self
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use parking_lot::{Mutex, RwLock};

    use super::*;

    const UPPER: Rank = Rank::new(3, "the upper");
    const LOWER: Rank = Rank::new(4, "the lower");

    #[test]
    fn a_lock_out_of_order_panics_and_leaves_no_trace() {
        let (upper, lower) = (Mutex::new(()), Mutex::new(()));
        let take = |rank, lock| RankedGuard::wait(rank, || Mutex::lock(lock));
        {
            let held = take(LOWER, &lower);
            let wrong = catch_unwind(AssertUnwindSafe(|| drop(take(UPPER, &upper))));
            let text = *wrong.expect_err("out of order").downcast::<String>().expect("a text");
            assert!(text.contains("the upper (rank 3) is taken under that of the lower"), "{text}");
            let again = catch_unwind(AssertUnwindSafe(|| drop(take(LOWER, &upper))));
            assert!(again.is_err(), "two of one rank");
            drop(held);
        }
        // No lock is held any more, and the right order is accepted.
        let first = take(UPPER, &upper);
        drop((take(LOWER, &lower), first));
    }

    #[test]
    fn what_is_taken_is_counted_and_so_is_who_waits() {
        const COUNTED: Rank = Rank::new(15, "a counted one");
        let lock = Mutex::new(0);
        let count = || {
            let count = counts().into_iter().find(|count| count.name == "a counted one");
            count.map_or((0, 0), |count| (count.taken, count.waited))
        };
        let take = || RankedGuard::acquire(COUNTED, || lock.try_lock(), || lock.lock());
        assert_eq!(count(), (0, 0));
        drop(take());
        assert_eq!(count(), (1, 0));
        let held = lock.lock();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *take() += 1);
            while count() != (2, 1) {
                std::thread::yield_now();
            }
            drop(held);
            other.join().expect("no panic");
        });
        assert_eq!(*take(), 1);
    }

    #[test]
    fn trying_is_right_in_any_order_and_what_is_taken_then_is_not() {
        let (upper, lower) = (Mutex::new(()), Mutex::new(()));
        let _lower = RankedGuard::wait(LOWER, || lower.lock());
        let tried = RankedGuard::attempt(UPPER, || upper.try_lock()).expect("free");
        assert!(RankedGuard::attempt(UPPER, || upper.try_lock()).is_none());
        drop(tried);
        let (one, two) = (RwLock::new(()), RwLock::new(()));
        let _several =
            (RankedGuard::wait(REGION, || one.read()), RankedGuard::wait(REGION, || two.write()));
    }
}
