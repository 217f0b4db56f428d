//! Runs of leaf pages that lie close together, read ahead for an iterator: one request of the ring for up to
//! [`RUN`] pages.
//!
//! A bulk load writes leaf pages in key order, and so does a flush those of one round, so pages that are
//! neighbours in the order of keys often are neighbours in the file. Pages that have moved leave gaps, and a
//! request costs the device as much as some pages, so gaps of up to [`GAP`] pages are read over, as long as
//! no more pages are read in vain than for somebody: what is in them is not looked at.
//!
//! There is no claim and no place in the cache: an iterator may rest for as long as it likes, and others would wait for
//! what it has in flight. Pages stay in the memory that the ring reads into, and are checked by whoever comes
//! to them ([`Store::check_leaf`]).
//!
//! Invariants:
//! * a run is in flight, or here, or could not be read; it goes when all of its pages are forgotten and
//!   it is not in flight;
//! * all memory is that of one pool, registered once; what is here and what is in flight share it.

use std::sync::Arc;

use pleach_beatree::PageNo;
use pleach_core::page::Page;
use pleach_io::{Completion, PageBuf, PagePool, Queue, Request, RequestKind};

use super::store::Store;
use crate::error::Result;

/// Most pages that are read at once. From 64 KiB on a request's own cost does not matter any more.
pub(crate) const RUN: usize = 16;

/// Most neighbouring pages that are read in vain, for the sake of a page behind them. A request costs a
/// virtual disk as much as 2.7 pages, and the processor as one (`docs/decisions/0054-gaps-are-read-over.md`).
const GAP: usize = 4;

/// A page to be read, and what its reader knows it by.
pub(crate) type WantedPage = (PageNo, usize);

/// Pages in rising order as those of each run. One that is there twice, since its number was used again while it
/// was not read, is in two.
pub(crate) fn group_runs(wanted: &[WantedPage]) -> Vec<&[WantedPage]> {
    let mut runs = Vec::new();
    let mut first = 0;
    for end in 1..=wanted.len() {
        let goes_on = wanted.get(end).is_some_and(|(page, _)| {
            let (gap, length) =
                (wanted[end - 1].0.pages_to(*page), wanted[first].0.pages_to(*page));
            (1..=GAP + 1).contains(&gap) && length < RUN && length <= 2 * (end - first)
        });
        if !goes_on {
            runs.push(&wanted[first..end]);
            first = end;
        }
    }
    runs
}

/// A run that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunNo(usize);

struct RunSlot {
    state: RunState,
    /// Pages that nobody has forgotten.
    wanted: usize,
}

enum RunState {
    InFlight,
    Arrived(Arc<PageBuf>),
    Failed,
}

/// A page of a run that is here. It keeps the memory of all of the run.
pub(crate) struct RunPage {
    run: Arc<PageBuf>,
    index: usize,
}

impl RunPage {
    /// The page, as it was read.
    #[inline]
    pub(crate) fn page(&self) -> &Page {
        self.run.page(self.index)
    }
}

/// Reads runs of leaf pages through a ring, on whatever thread its iterator is.
pub(crate) struct RunReader {
    queue: Box<dyn Queue>,
    memory: PagePool,
    runs: Vec<RunSlot>,
    /// Those of `runs` that nobody uses.
    free: Vec<usize>,
}

impl RunReader {
    /// A reader of up to `depth` runs at once, with memory for `pages` pages.
    pub(crate) fn new(store: &Store, depth: usize, pages: usize) -> Result<Self> {
        let mut queue = store.device.movable_queue(depth)?;
        let memory = PagePool::new(1, pages);
        queue.register(&memory);
        Ok(Self { queue, memory, runs: Vec::new(), free: Vec::new() })
    }

    /// Is nothing in flight, and no page wanted?
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.in_flight() == 0 && self.free.len() == self.runs.len()
    }

    /// Runs that can be asked for, as far as the ring goes.
    pub(crate) fn free_slots(&self) -> usize {
        self.queue.depth() - self.queue.in_flight()
    }

    /// Asks for the pages of a run, or for as many of them, from the first on, as there is memory for side by
    /// side; gives how many. `None` when there is none. The device hears of it with [`Self::submit`] or
    /// [`Self::wait`].
    ///
    /// # Panics
    /// When the run has no page, or when the ring has no room.
    pub(crate) fn enqueue(&mut self, store: &Store, run: &[WantedPage]) -> Option<(RunNo, usize)> {
        let first = run[0].0;
        let mut wanted = run.len();
        let (buf, pages) = loop {
            let pages = first.pages_to(run[wanted - 1].0) + 1;
            if let Some(buf) = self.memory.take_run(pages) {
                break (buf, pages);
            }
            wanted /= 2;
            if wanted == 0 {
                return None;
            }
        };
        store.count_scanned(wanted as u64, (pages - wanted) as u64);
        let run = RunSlot { state: RunState::InFlight, wanted };
        let number = self.free.pop().unwrap_or(self.runs.len());
        if number == self.runs.len() {
            self.runs.push(run);
        } else {
            self.runs[number] = run;
        }
        self.queue.push(Request {
            file: store.leaf.clone(),
            kind: RequestKind::Read,
            offset: first.offset(),
            buf,
            token: number as u64,
        });
        Some((RunNo(number), wanted))
    }

    /// Hands what was asked for to the device, without waiting.
    pub(crate) fn submit(&mut self) -> Result<()> {
        Ok(self.queue.submit()?)
    }

    /// Takes in what has arrived, without waiting.
    pub(crate) fn poll_arrived(&mut self) {
        while let Some(completion) = self.queue.poll() {
            self.complete(completion);
        }
    }

    /// Waits for a run. Those that arrive with it are taken in.
    ///
    /// # Errors
    /// Of the ring: nothing is known of what is in flight, and the reader is to be dropped.
    pub(crate) fn wait(&mut self, run: RunNo) -> Result<()> {
        self.poll_arrived();
        while matches!(self.runs[run.0].state, RunState::InFlight) {
            // Some at once: a wake-up costs more than a page. The device has the others to go on with.
            let some = self.queue.in_flight().div_ceil(4);
            let completion = self.queue.wait_for(some)?.expect("the run is in flight");
            self.complete(completion);
            self.poll_arrived();
        }
        Ok(())
    }

    /// Waits for all runs, and forgets all pages.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub(crate) fn reset(&mut self) -> Result<()> {
        while let Some(completion) = self.queue.wait_for(usize::MAX)? {
            self.complete(completion);
        }
        self.runs.clear();
        self.free.clear();
        Ok(())
    }

    /// A page of a run; `None` when it could not be read, or is in flight.
    pub(crate) fn page(&self, run: RunNo, index: usize) -> Option<RunPage> {
        match &self.runs[run.0].state {
            RunState::Arrived(run) => Some(RunPage { run: Arc::clone(run), index }),
            RunState::InFlight | RunState::Failed => None,
        }
    }

    /// A page of the run is not wanted any more.
    ///
    /// # Panics
    /// When all of its pages were forgotten before.
    pub(crate) fn release(&mut self, run: RunNo) {
        let forgotten = &mut self.runs[run.0];
        forgotten.wanted = forgotten.wanted.checked_sub(1).expect("each page is forgotten once");
        self.free_unwanted(run.0);
    }

    fn complete(&mut self, completion: Completion) {
        let number = usize::try_from(completion.token).expect("a run's number");
        self.runs[number].state = match completion.result {
            Ok(()) => RunState::Arrived(Arc::new(completion.buf)),
            // Who comes to one of its pages reads that one alone, and gets its error if there is one.
            Err(_) => RunState::Failed,
        };
        self.free_unwanted(number);
    }

    fn free_unwanted(&mut self, number: usize) {
        let run = &mut self.runs[number];
        if run.wanted == 0 && !matches!(run.state, RunState::InFlight) {
            run.state = RunState::Failed;
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_over_small_gaps_and_end_at_large_ones_and_at_their_length() {
        let lengths = |pages: &[u32]| -> Vec<usize> {
            let wanted: Vec<WantedPage> =
                pages.iter().map(|page| (PageNo::new(*page), 0)).collect();
            group_runs(&wanted).iter().map(|run| run.len()).collect()
        };
        assert_eq!(lengths(&[]), [0; 0]);
        assert_eq!(lengths(&[7]), [1]);
        // Four pages are read over, five are not.
        assert_eq!(lengths(&[7, 8, 9, 10, 15]), [5]);
        assert_eq!(lengths(&[7, 8, 9, 10, 11, 17]), [5, 1]);
        // Sixteen pages with what lies between, and the next begins a run.
        let spread = |every: u32| lengths(&(0..40).map(|page| every * page).collect::<Vec<_>>());
        assert_eq!(spread(1), [16, 16, 8]);
        assert_eq!(spread(2), [8; 5]);
        // More in vain than for somebody: not that.
        assert_eq!(spread(3), [1; 40]);
        assert_eq!(lengths(&[0, 2, 5]), [2, 1]);
        // The same page again.
        assert_eq!(lengths(&[7, 7]), [1, 1]);
        assert_eq!(lengths(&[6, 7, 7, 8]), [2, 2]);
    }
}
