//! The order of locks, asserted in debug builds. In release builds a lock with a rank is the lock alone.
//!
//! Each lock is made by its [`Rank`]. A thread that holds a lock waits only for locks of higher rank, so that no two
//! threads can wait for each other. What is taken without waiting may be of any rank. This crate has the ranks of its own
//! locks; the engine's table has all.
//!
//! Debug builds also count how often the locks of each rank are waited for, and how often another thread had them
//! ([`counts`]).
//!
//! ```
//! use pleach_beatree::lock_order::Rank;
//!
//! const FIRST: Rank = Rank::new(1, "first");
//! const SECOND: Rank = Rank::new(2, "second");
//! let (one, two) = (FIRST.mutex(1), SECOND.rw_lock(2));
//! // The other way round panics in a debug build.
//! let first = one.lock();
//! let second = two.read();
//! assert_eq!(*first + *second, 3);
//! ```

/// Held while regions or their layouts are replaced. A commit that was overtaken too often holds the structure of all
/// trees, in the order of their namespaces.
pub const STRUCTURE: Rank = Rank::new(2, "the structure").repeatable();

/// A region's state.
pub const REGION: Rank = Rank::new(7, "a region").repeatable();

/// A shard of the page cache.
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

#[cfg(debug_assertions)]
pub use checked::{
    LockCount, RankedMutex, RankedMutexGuard, RankedReadGuard, RankedRwLock, RankedWriteGuard,
    counts,
};
#[cfg(not(debug_assertions))]
pub use parking_lot::{
    Mutex as RankedMutex, MutexGuard as RankedMutexGuard, RwLock as RankedRwLock,
    RwLockReadGuard as RankedReadGuard, RwLockWriteGuard as RankedWriteGuard,
};

#[cfg(not(debug_assertions))]
impl Rank {
    /// A mutex of this rank.
    pub const fn mutex<T>(self, value: T) -> RankedMutex<T> {
        RankedMutex::new(value)
    }

    /// A lock of this rank for readers and writers.
    pub const fn rw_lock<T>(self, value: T) -> RankedRwLock<T> {
        RankedRwLock::new(value)
    }
}

#[cfg(debug_assertions)]
mod checked {
    use core::ops::{Deref, DerefMut};
    use std::cell::RefCell;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

    use super::Rank;

    /// A mutex that has a rank. `lock` panics when this thread holds a lock of the same rank or a higher one, unless it
    /// takes a repeatable one again.
    #[derive(Debug)]
    pub struct RankedMutex<T> {
        rank: Rank,
        lock: Mutex<T>,
    }

    /// A lock for readers and writers that has a rank. Its functions that wait panic as [`RankedMutex::lock`] does.
    #[derive(Debug)]
    pub struct RankedRwLock<T> {
        rank: Rank,
        lock: RwLock<T>,
    }

    /// A guard of a [`RankedMutex`].
    pub type RankedMutexGuard<'a, T> = RankedGuard<MutexGuard<'a, T>>;
    /// A reader's guard of a [`RankedRwLock`].
    pub type RankedReadGuard<'a, T> = RankedGuard<RwLockReadGuard<'a, T>>;
    /// A writer's guard of a [`RankedRwLock`].
    pub type RankedWriteGuard<'a, T> = RankedGuard<RwLockWriteGuard<'a, T>>;

    impl Rank {
        /// A mutex of this rank.
        pub const fn mutex<T>(self, value: T) -> RankedMutex<T> {
            RankedMutex { rank: self, lock: Mutex::new(value) }
        }

        /// A lock of this rank for readers and writers.
        pub const fn rw_lock<T>(self, value: T) -> RankedRwLock<T> {
            RankedRwLock { rank: self, lock: RwLock::new(value) }
        }

        /// Takes a lock of this rank, waiting for it, and counts it.
        fn wait<G>(
            self,
            attempt: impl FnOnce() -> Option<G>,
            lock: impl FnOnce() -> G,
        ) -> RankedGuard<G> {
            // Before waiting: a deadlocked thread reports nothing.
            let held = HeldRank::new(self, true);
            let (name, taken, waited) = &COUNTERS[usize::from(self.number)];
            name.get_or_init(|| self.name);
            taken.fetch_add(1, Ordering::Relaxed);
            let guard = attempt().unwrap_or_else(|| {
                waited.fetch_add(1, Ordering::Relaxed);
                lock()
            });
            RankedGuard { guard, _rank: held }
        }

        /// A lock of this rank that was free.
        fn taken<G>(self, guard: G) -> RankedGuard<G> {
            RankedGuard { guard, _rank: HeldRank::new(self, false) }
        }
    }

    impl<T> RankedMutex<T> {
        /// Takes the lock.
        pub fn lock(&self) -> RankedMutexGuard<'_, T> {
            self.rank.wait(|| self.lock.try_lock(), || self.lock.lock())
        }

        /// Takes the lock if it is free, in any order.
        pub fn try_lock(&self) -> Option<RankedMutexGuard<'_, T>> {
            self.lock.try_lock().map(|guard| self.rank.taken(guard))
        }
    }

    impl<T> RankedRwLock<T> {
        /// Takes the lock for reading.
        pub fn read(&self) -> RankedReadGuard<'_, T> {
            self.rank.wait(|| self.lock.try_read(), || self.lock.read())
        }

        /// Takes the lock for reading, also while a writer waits, so that this thread may have it already.
        pub fn read_recursive(&self) -> RankedReadGuard<'_, T> {
            self.rank.wait(|| self.lock.try_read_recursive(), || self.lock.read_recursive())
        }

        /// Takes the lock for reading if no writer has it, in any order.
        pub fn try_read(&self) -> Option<RankedReadGuard<'_, T>> {
            self.lock.try_read().map(|guard| self.rank.taken(guard))
        }

        /// Takes the lock for writing.
        pub fn write(&self) -> RankedWriteGuard<'_, T> {
            self.rank.wait(|| self.lock.try_write(), || self.lock.write())
        }

        /// Takes the lock for writing if it is free, in any order.
        pub fn try_write(&self) -> Option<RankedWriteGuard<'_, T>> {
            self.lock.try_write().map(|guard| self.rank.taken(guard))
        }
    }

    /// A guard of a lock that has a rank.
    #[derive(Debug)]
    pub struct RankedGuard<G> {
        guard: G,
        _rank: HeldRank,
    }

    impl<G: Deref> Deref for RankedGuard<G> {
        type Target = G::Target;

        fn deref(&self) -> &G::Target {
            &self.guard
        }
    }

    impl<G: DerefMut> DerefMut for RankedGuard<G> {
        fn deref_mut(&mut self) -> &mut G::Target {
            &mut self.guard
        }
    }

    /// How often the locks of a rank were waited for, in the whole process.
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

    thread_local! {
        /// The ranks of the locks that this thread holds.
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    #[derive(Debug)]
    struct HeldRank(u8);

    impl HeldRank {
        fn new(rank: Rank, waits: bool) -> Self {
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

#[cfg(debug_assertions)]
#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const UPPER: Rank = Rank::new(3, "the upper");
    const LOWER: Rank = Rank::new(4, "the lower");

    #[test]
    fn a_lock_out_of_order_panics_and_leaves_no_trace() {
        let (upper, lower, other) = (UPPER.mutex(()), LOWER.mutex(()), LOWER.mutex(()));
        {
            let held = lower.lock();
            let wrong = catch_unwind(AssertUnwindSafe(|| drop(upper.lock())));
            let text = *wrong.expect_err("out of order").downcast::<String>().expect("a text");
            assert!(text.contains("the upper (rank 3) is taken under that of the lower"), "{text}");
            let again = catch_unwind(AssertUnwindSafe(|| drop(other.lock())));
            assert!(again.is_err(), "two of one rank");
            drop(held);
        }
        // No lock is held any more, and the right order is accepted.
        let first = upper.lock();
        drop((lower.lock(), first));
    }

    #[test]
    fn what_is_taken_is_counted_and_so_is_who_waits() {
        let lock = Rank::new(15, "a counted one").mutex(0);
        let count = || {
            let count = counts().into_iter().find(|count| count.name == "a counted one");
            count.map_or((0, 0), |count| (count.taken, count.waited))
        };
        assert_eq!(count(), (0, 0));
        drop(lock.lock());
        assert_eq!(count(), (1, 0));
        let held = lock.try_lock().expect("free");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock() += 1);
            while count() != (2, 1) {
                std::thread::yield_now();
            }
            drop(held);
            other.join().expect("no panic");
        });
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn trying_is_right_in_any_order_and_what_is_taken_then_is_not() {
        let (upper, lower) = (UPPER.mutex(()), LOWER.mutex(()));
        let _lower = lower.lock();
        let tried = upper.try_lock().expect("free");
        assert!(upper.try_lock().is_none());
        drop(tried);
        let (one, two) = (REGION.rw_lock(()), REGION.rw_lock(()));
        let _several = (one.read(), two.write());
    }
}
