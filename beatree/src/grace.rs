//! The readers' grace period: over when every reader has left who could still hold a page number that the index no
//! longer names.
//!
//! A reader enters before it looks a page up and leaves when it has the page's bytes. The owner of a replaced page
//! first publishes the index without it, then calls [`Grace::start_period`], and frees the page when
//! [`GracePeriod::poll`] has returned true. No thread ever waits here: a reader counts up once and down once, and a
//! period is polled from step functions. A reader may sleep in I/O while inside and may leave on another thread.
//!
//! ```
//! use pleach_beatree::grace::Grace;
//!
//! let grace = Grace::new();
//! let reader = grace.enter();
//! // A page is taken out of the index; then:
//! let period = grace.start_period();
//! assert!(!period.poll(), "the reader may have looked it up");
//! let later = grace.enter();
//! drop(reader);
//! assert!(period.poll(), "who came later cannot have");
//! drop(later);
//! ```
//!
//! # How
//! A *phase* number, and in each of a few shards one counter of readers inside for even phases and one for odd ones.
//!
//! * **enter**: (1) load the phase p; (2) add 1 to the counter of p's parity in one's shard; (3) load
//!   the phase again; if it is not p, take the 1 back and repeat. Passing (3) is *validation*.
//! * **leave**: subtract 1 from that same counter.
//! * **advance** from p to p + 1: allowed when in each shard the counter of the other parity, which is
//!   that of p - 1 and p + 1, was seen at zero after p was loaded; a compare-and-swap from p.
//! * **start**: reads the phase g by an atomic addition of zero; **poll** advances as far as it can
//!   and is true once the phase is at least g + 2.
//!
//! # Why it is right
//! All accesses above but that of *leave* are sequentially consistent, so they have one order S.
//!
//! 1. *A reader validated in p is seen.* Its (2) precedes its (3), and (3) read p, so it precedes the swap p to p + 1.
//!    A look at a counter after loading p + 1 comes later in S, and sees the reader's 1 until it has left.
//! 2. *The swap p + 1 to p + 2 happens only when no reader validated in p is inside.* By 1 none was inside in a shard
//!    when its counter was seen at zero, and none comes later, since the phase never returns. Readers of p + 2 share
//!    the counter but validate only after this swap.
//! 3. *Readers inside before start have left when poll is true.* They were validated in some p <= g, the phase that
//!    start read. The swap to g + 2 waited for those of g by 2, the one to g + 1 for those of g - 1, and so on.
//! 4. *All other readers see the new index.* They loaded a phase that a swap from g or a later one wrote. That swap
//!    read start's addition of zero, or a later write, so start and the publication before it happen before. After a
//!    plain load in start, a swap by a third thread would not be ordered after the publication.
//! 5. *What a reader did inside happens before poll's true.* Leaving is a release; the zero that the advancing thread
//!    read stems from it through read-modify-writes, and the swap hands that on to the polling thread.
//!
//! A reader that is preempted between (1) and (2) fails its validation: its short-lived 1 can delay an advance, never
//! cause one. A reader repeats only when the phase has moved, so some thread always makes progress.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Counters are spread over this many shards.
const SHARDS: usize = 32;

/// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
struct GraceShard {
    inside: [AtomicU64; 2],
}

#[derive(Debug, Default)]
struct GraceState {
    phase: AtomicU64,
    shards: [GraceShard; SHARDS],
}

/// Counts the readers inside; one a database. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct Grace(Arc<GraceState>);

/// A reader that is inside, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping the guard leaves"]
pub struct GraceGuard<'a> {
    counter: &'a AtomicU64,
}

/// A grace period: over when every reader that was inside at its start has left.
#[derive(Clone, Debug)]
pub struct GracePeriod {
    state: Arc<GraceState>,
    /// The phase that must be reached.
    target: u64,
}

impl Grace {
    /// Without readers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters. No page looked up until the guard is dropped is reused before that.
    #[inline]
    pub fn enter(&self) -> GraceGuard<'_> {
        let shard = &self.0.shards[shard_of_thread()];
        loop {
            let phase = self.0.phase.load(Ordering::SeqCst);
            let counter = &shard.inside[parity(phase)];
            counter.fetch_add(1, Ordering::SeqCst);
            let guard = GraceGuard { counter };
            if self.0.phase.load(Ordering::SeqCst) == phase {
                return guard;
            }
        }
    }

    /// Starts a period. Call it after the publication that hides what is to be freed.
    pub fn start_period(&self) -> GracePeriod {
        let phase = self.0.phase.fetch_add(0, Ordering::SeqCst);
        GracePeriod { state: Arc::clone(&self.0), target: phase + 2 }
    }
}

impl GracePeriod {
    /// True when every reader has left that was inside when this period started. Never waits; once true, always true.
    pub fn poll(&self) -> bool {
        // Two advances at most, and one more look for those of other threads.
        for _ in 0..3 {
            let phase = self.state.phase.load(Ordering::SeqCst);
            if phase >= self.target {
                return true;
            }
            if !self.state.advance(phase) {
                return false;
            }
        }
        self.state.phase.load(Ordering::SeqCst) >= self.target
    }
}

impl GraceState {
    /// Advances from `phase`, which the caller has loaded, to the next one. False while readers of the phase before are
    /// inside.
    fn advance(&self, phase: u64) -> bool {
        let before = parity(phase + 1);
        if self.shards.iter().any(|shard| shard.inside[before].load(Ordering::SeqCst) != 0) {
            return false;
        }
        // A failure means that another thread has advanced, which is as good.
        let _ = self.phase.compare_exchange(phase, phase + 1, Ordering::SeqCst, Ordering::SeqCst);
        true
    }
}

impl Drop for GraceGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let before = self.counter.fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a guard leaves once");
    }
}

#[inline]
fn parity(phase: u64) -> usize {
    usize::from(phase & 1 == 1)
}

/// Threads take shards in turn; a thread keeps its shard, in all databases.
#[inline]
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    // Thread-locals may be destroyed while a thread ends; any shard is right, its counter is only shared.
    SHARD.try_with(|shard| *shard).unwrap_or(0)
}
