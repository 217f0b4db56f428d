//! Pages that are being read: whoever needs one that is on its way waits for it.
//!
//! Invariants:
//! * a page is in the table from before its read is asked for until it is in the cache (or its region,
//!   for nodes), or the read has failed or was given up;
//! * each entry has one [`Claim`], which takes it out when it is dropped, whatever happens;
//! * nobody waits longer than [`PATIENCE`]: who waits in vain reads for itself. So a reader that holds
//!   claims and sleeps can slow others down, and never stop them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pleach_beatree::PageNo;
use pleach_beatree::region::NodePage;
use pleach_io::{Event, Runtime};

/// How long anybody waits for a page that is being read.
const PATIENCE: Duration = Duration::from_millis(100);

/// A page, by the file that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PageId {
    /// A leaf page.
    Leaf(PageNo),
    /// A branch page.
    Nodes(NodePage),
}

/// For whom pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// For those who look keys up.
    Keys,
    /// For the flush, which takes pages that contradict the index as well.
    Flush,
}

/// The pages that are being read.
pub(crate) struct InFlight<R: Runtime> {
    runtime: R,
    pages: Mutex<HashSet<PageId>>,
    /// Tells those who wait.
    done: R::Event,
    waiting: AtomicUsize,
}

/// The right, and the duty, to read a page.
pub(crate) struct Claim<R: Runtime> {
    table: Arc<InFlight<R>>,
    page: PageId,
    /// Are those who wait told when it goes?
    tells: bool,
}

impl<R: Runtime> InFlight<R> {
    pub(crate) fn new(runtime: R) -> Arc<Self> {
        let done = runtime.event();
        Arc::new(Self { runtime, pages: Mutex::default(), done, waiting: AtomicUsize::new(0) })
    }

    /// The caller reads this page; `None` when somebody else does already.
    pub(crate) fn claim(self: &Arc<Self>, page: PageId) -> Option<Claim<R>> {
        self.pages.lock().insert(page).then(|| Claim { table: Arc::clone(self), page, tells: true })
    }

    /// Waits until nobody reads the page, but no longer than a device takes. False when it is still being
    /// read.
    pub(crate) fn wait(&self, page: PageId) -> bool {
        // Counted before the look: who takes the page out after it sees somebody who waits.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut is_done = || !self.pages.lock().contains(&page);
        let done = self.runtime.wait(&self.done, Some(PATIENCE), &mut is_done);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// Tells those who wait that pages are done.
    pub(crate) fn tell(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.done.notify();
        }
    }
}

impl<R: Runtime> Claim<R> {
    /// The page is done, and the caller will say so ([`InFlight::tell`]): a wake-up costs more than a
    /// page, so a reader of many tells of some at once.
    pub(crate) fn done(mut self) {
        self.tells = false;
    }
}

impl<R: Runtime> Drop for Claim<R> {
    fn drop(&mut self) {
        self.table.pages.lock().remove(&self.page);
        if self.tells {
            self.table.tell();
        }
    }
}
