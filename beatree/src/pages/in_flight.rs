//! Pages that are being read, so that a second reader of a page waits for the first.
//!
//! Invariants:
//! * a claimed page is in the table from before its read is enqueued until the page is in the cache, or the read has
//!   failed or was abandoned;
//! * each entry has one [`Claim`], which removes it when dropped, whatever happens, and wakes the waiters of the page,
//!   if there are any;
//! * nobody waits longer than `PATIENCE`, and then reads the page without a claim. So a sleeping reader with claims
//!   can slow others down, and never stop them;
//! * nobody waits for a page while it has pages in flight itself whose completion it does not take: see
//!   [`super::reader`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use pleach_io::{Event, Executor};

use crate::page_no::PageNo;

/// How long anybody waits for another reader's page.
const PATIENCE: Duration = Duration::from_millis(100);

/// Why pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// For lookups of keys: pages are held for the batch under way.
    Keys,
    /// For keys that were announced: pages are held through the next batch, until a finish has used them.
    Announced,
    /// For the flush, which also takes pages that contradict the index.
    Flush,
}

/// The leaf pages that are being read.
pub struct InFlight {
    pub(super) runtime: Executor,
    /// Each page, and whether anybody waits for it.
    pages: Mutex<HashMap<PageNo, bool>>,
    /// Wakes the waiters.
    done: Event,
    /// Bytes of memory that readers' rings read into.
    pub ring_bytes: AtomicU64,
}

/// The right, and the duty, to read a page.
pub struct Claim {
    table: Arc<InFlight>,
    page: PageNo,
    /// True while the page is in the table.
    held: bool,
}

impl InFlight {
    /// An empty table.
    pub fn new(runtime: Executor) -> Arc<Self> {
        let done = runtime.event();
        Arc::new(Self { runtime, pages: Mutex::default(), done, ring_bytes: AtomicU64::new(0) })
    }

    /// Claims a page for the caller to read; `None` when somebody else reads it already.
    pub fn claim(self: &Arc<Self>, page: PageNo) -> Option<Claim> {
        match self.pages.lock().entry(page) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                entry.insert(false);
                Some(Claim { table: Arc::clone(self), page, held: true })
            }
        }
    }

    /// Waits until nobody reads the page, but at most `PATIENCE`. False when it is still being read.
    pub fn wait(&self, page: PageNo) -> bool {
        // Noted under the lock, so that the claim which removes the page later knows of the waiter.
        let mut landed = || match self.pages.lock().get_mut(&page) {
            None => true,
            Some(awaited) => {
                *awaited = true;
                false
            }
        };
        self.runtime.wait(&self.done, Some(PATIENCE), &mut landed)
    }

    /// Wakes all waiters.
    pub fn notify(&self) {
        self.done.notify();
    }
}

impl Claim {
    /// Ends the claim of a page that was read. True when somebody waits for it: the caller then wakes the waiters
    /// ([`InFlight::notify`]), of some pages at once, since a wake-up costs more than a page.
    #[must_use = "those who wait are to be told"]
    pub fn complete(mut self) -> bool {
        self.release()
    }

    /// Removes the page from the table, once. True when somebody waits for it.
    fn release(&mut self) -> bool {
        std::mem::take(&mut self.held)
            && self.table.pages.lock().remove(&self.page).expect("claimed until now")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.release() {
            self.table.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use pleach_io::Runtime;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use pleach_io::Step;
    use pleach_io::sim::SimRuntime;

    use super::*;

    fn page(number: u32) -> PageNo {
        PageNo::new(number)
    }

    #[test]
    fn a_page_has_one_claim() {
        let table = InFlight::new(SimRuntime::new(1).into());
        let claim = table.claim(page(1)).expect("nobody reads it");
        assert!(table.claim(page(1)).is_none() && table.claim(page(2)).is_some());
        drop(claim);
        assert!(table.claim(page(1)).is_some());
    }

    /// A claim may be dropped, be completed with a later notification, or end in a panic.
    #[test]
    fn who_waits_is_told() {
        for (seed, how) in (0..60).zip([0, 1, 2].into_iter().cycle()) {
            let runtime = SimRuntime::new(seed);
            let table = InFlight::new(runtime.clone().into());
            let mut claim = table.claim(page(1));
            let (event, reader) = (runtime.event(), Arc::clone(&table));
            let mut steps = seed % 5;
            let task = runtime
                .spawn(
                    "reader",
                    &event,
                    Box::new(move || {
                        if steps > 0 {
                            steps -= 1;
                            return Step::Continue;
                        }
                        let claim = claim.take().expect("one step ends it");
                        match how {
                            0 => drop(claim),
                            1 => {
                                if claim.complete() {
                                    reader.notify();
                                }
                            }
                            _ => {
                                let panics = catch_unwind(AssertUnwindSafe(|| {
                                    let _claim = claim;
                                    std::panic::resume_unwind(Box::new("a reader panics"));
                                }));
                                assert!(panics.is_err());
                            }
                        }
                        Step::Done
                    }),
                )
                .expect("a thread");
            let since = runtime.now();
            assert!(table.wait(page(1)), "seed {seed}");
            assert!(runtime.now().saturating_sub(since) < PATIENCE, "told, not timed out");
            drop(task);
        }
    }

    #[test]
    fn a_claim_that_is_never_released_is_waited_for_so_long_and_no_longer() {
        let runtime = SimRuntime::new(1);
        let table = InFlight::new(runtime.clone().into());
        let claim = table.claim(page(1));
        let since = runtime.now();
        assert!(!table.wait(page(1)));
        let waited = runtime.now().saturating_sub(since);
        assert!(waited >= PATIENCE && waited < PATIENCE * 2, "{waited:?}");
        // Nobody waits for a page that is not being read.
        let since = runtime.now();
        assert!(table.wait(page(2)));
        drop(claim);
        assert!(table.wait(page(1)));
        assert_eq!(runtime.now(), since);
    }
}
