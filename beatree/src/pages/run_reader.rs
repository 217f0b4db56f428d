//! Runs of neighbouring leaf pages, read ahead for an iterator: one request of the ring for up to [`RUN`] pages.
//!
//! A bulk load writes leaf pages in key order, and so does a flush the pages of one round, so neighbours in key order
//! often are neighbours in the file. Pages that have moved leave gaps, and a request costs the device as much as some
//! pages, so gaps of up to `GAP` pages are read over, as long as a request reads no more unwanted pages than wanted
//! ones; unwanted pages are not looked at.
//!
//! The reader has no claims and puts nothing into the cache: an iterator may rest for any time, and others would wait
//! for its pages in flight. Pages stay in the ring's memory, and are checked when an iterator comes to them
//! ([`Store::check_leaf`]).
//!
//! Invariants:
//! * a run is in flight, has arrived, or could not be read; its slot is free when all of its pages are released and it
//!   is not in flight;
//! * all memory is of one pool, registered once, for runs in flight and runs that have arrived.

use std::sync::Arc;

use pleach_core::page::Page;
use pleach_io::{Completion, PageBuf, PagePool, Queue, Request, RequestKind};

use super::reader_pool::RingReader;
use super::store::Store;
use crate::error::Result;
use crate::page_no::PageNo;

/// Most pages of one read. From 64 KiB on the cost of a request itself does not matter any more.
pub(crate) const RUN: usize = 16;

/// Most neighbouring unwanted pages that are read for the sake of a page behind them. A request costs a virtual disk as
/// much as 2.7 pages, and the processor as one (`docs/decisions/history.md`, 0054).
const GAP: usize = 4;

/// A page to be read, and the caller's index for it.
pub(crate) type WantedPage = (PageNo, usize);

/// Divides pages in rising order into runs. A page that is there twice, as its number was reused, is in two runs.
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

/// The slot of an enqueued run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunNo(usize);

impl RingReader for RunReader {
    const IS_THREAD_BOUND: bool = false;

    fn is_idle(&self) -> bool {
        self.queue.in_flight() == 0 && self.free.len() == self.runs.len()
    }
}

struct RunSlot {
    state: RunState,
    /// Number of pages that are not released.
    wanted: usize,
}

enum RunState {
    InFlight,
    Arrived(Arc<PageBuf>),
    Failed,
}

/// A page of a run that has arrived. It keeps the memory of the whole run.
pub struct RunPage {
    run: Arc<PageBuf>,
    index: usize,
}

impl RunPage {
    /// The bytes of the page, as they were read.
    #[inline]
    pub fn page(&self) -> &Page {
        self.run.page(self.index)
    }
}

/// Reads runs of leaf pages through a ring, on any thread that uses its iterator.
pub struct RunReader {
    queue: Box<dyn Queue>,
    memory: PagePool,
    runs: Vec<RunSlot>,
    /// Free slots of `runs`.
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

    /// Number of runs for which the ring has room.
    pub(crate) fn free_slots(&self) -> usize {
        self.queue.depth() - self.queue.in_flight()
    }

    /// Enqueues a run, or as many of its pages, from the first on, as there is contiguous memory for; returns their
    /// number. `None` when there is no memory. [`Self::submit`] or [`Self::wait`] passes the run to the device.
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
            file: store.leaf_file.clone(),
            kind: RequestKind::Read,
            offset: first.offset(),
            buf,
            token: number as u64,
        });
        Some((RunNo(number), wanted))
    }

    /// Passes enqueued requests to the device, without waiting.
    pub(crate) fn submit(&mut self) -> Result<()> {
        Ok(self.queue.submit()?)
    }

    /// Takes runs that have arrived, without waiting.
    pub(crate) fn poll_arrived(&mut self) {
        while let Some(completion) = self.queue.poll() {
            self.complete(completion);
        }
    }

    /// Waits for a run, and takes other runs that arrive meanwhile.
    ///
    /// # Errors
    /// Of the ring: what is in flight is unknown then, and the caller drops the reader.
    ///
    /// # Panics
    /// When the ring has lost the run.
    pub(crate) fn wait(&mut self, run: RunNo) -> Result<()> {
        self.poll_arrived();
        while matches!(self.runs[run.0].state, RunState::InFlight) {
            // Some at once: a wake-up costs more than a page, and the device still has the rest to do.
            let some = self.queue.in_flight().div_ceil(4);
            let completion = self.queue.wait_for(some)?.expect("the run is in flight");
            self.complete(completion);
            self.poll_arrived();
        }
        Ok(())
    }

    /// Waits for all runs, and releases all pages.
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

    /// Releases a page of the run, which is not wanted any more.
    ///
    /// # Panics
    /// When all of its pages were released before.
    pub(crate) fn release(&mut self, run: RunNo) {
        let forgotten = &mut self.runs[run.0];
        forgotten.wanted = forgotten.wanted.checked_sub(1).expect("each page is forgotten once");
        self.free_unwanted(run.0);
    }

    fn complete(&mut self, completion: Completion) {
        let number = usize::try_from(completion.token).expect("a run's number");
        self.runs[number].state = match completion.result {
            Ok(()) => RunState::Arrived(Arc::new(completion.buf)),
            // The iterator that comes to one of its pages reads that page alone, and gets its error if there is one.
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
        // Sixteen pages with their gaps, and the next one begins a run.
        let spread = |every: u32| lengths(&(0..40).map(|page| every * page).collect::<Vec<_>>());
        assert_eq!(spread(1), [16, 16, 8]);
        assert_eq!(spread(2), [8; 5]);
        // Gaps are not read over when that would read more unwanted pages than wanted ones.
        assert_eq!(spread(3), [1; 40]);
        assert_eq!(lengths(&[0, 2, 5]), [2, 1]);
        // A page twice is in two runs.
        assert_eq!(lengths(&[7, 7]), [1, 1]);
        assert_eq!(lengths(&[6, 7, 7, 8]), [2, 2]);
    }
}
