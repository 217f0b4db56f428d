//! The commits of an open database: their order, the newest one, their undo, and the overlays over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pleach_beatree::lock_order::RankedMutex;

use super::lock_ranks::TIP;
pub(crate) use super::order::sequencer::CommitState;
use super::order::sequencer::Sequencer;
use super::overlays::{Chain, OverlayCounters};
use super::undo::Undo;
use super::undo::pins::Pin;
use super::view::View;
use crate::error::Result;

/// The commits.
///
/// Locks: the sequencer's state, then the tip.
pub(crate) struct Commits {
    /// Orders commits and flushes, and owns the log.
    pub(crate) sequencer: Sequencer,
    tip: RankedMutex<CommitState>,
    published: AtomicU64,
    /// Undo of the commits.
    pub(crate) undo: Arc<Undo>,
    /// The live overlays.
    pub(crate) overlays: Arc<OverlayCounters>,
    /// The runtime's clock, for the age of pins.
    clock: PinClock,
}

/// Returns the time since an arbitrary start.
type PinClock = Box<dyn Fn() -> Duration + Send + Sync>;

impl Commits {
    pub(crate) fn new(
        sequencer: Sequencer,
        tip: CommitState,
        undo: Arc<Undo>,
        clock: PinClock,
    ) -> Self {
        Self {
            sequencer,
            published: AtomicU64::new(tip.number),
            tip: TIP.mutex(tip),
            undo,
            overlays: Arc::default(),
            clock,
        }
    }

    /// The newest published commit.
    pub(crate) fn tip(&self) -> CommitState {
        self.tip.lock().clone()
    }

    /// Number of the newest published commit.
    pub(crate) fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Makes `tip` the newest published commit. The caller holds the sequencer's lock.
    pub(crate) fn publish(&self, tip: CommitState) {
        let number = tip.number;
        assert!(number >= self.published(), "the newest commit only rises");
        *self.tip.lock() = tip;
        self.published.store(number, Ordering::Release);
    }

    /// A view of the newest published commit.
    pub(crate) fn tip_view(&self) -> (View, CommitState) {
        // Under the sequencer's lock, so that the commit and the pin belong together.
        let state = self.sequencer.lock();
        let tip = self.tip();
        let view = self.view(tip.number, &Chain::default());
        drop(state);
        (view, tip)
    }

    /// A view of a past commit or of the newest one, by its number.
    pub(crate) fn view_at(&self, commit: u64) -> Result<(View, CommitState)> {
        let (view, tip) = self.tip_view();
        if view.base == commit {
            return Ok((view, tip));
        }
        let (pin, state) = self.undo.pin_past(commit, (self.clock)())?;
        Ok((View::new(pin, &Chain::default(), Arc::clone(&self.undo)), state))
    }

    /// A second view of the same state.
    pub(crate) fn clone_view(&self, view: &View) -> View {
        self.view(view.base, view.overlays())
    }

    /// A view of a commit under these overlays. The commit is the newest one, or another pin holds it.
    pub(crate) fn view(&self, base: u64, overlays: &Chain) -> View {
        let pin = self.undo.pin(base, (self.clock)());
        View::new(pin, overlays, Arc::clone(&self.undo))
    }

    /// Roots and blob of a commit.
    pub(crate) fn commit_at(&self, commit: u64) -> Result<CommitState> {
        let tip = self.tip();
        if tip.number == commit { Ok(tip) } else { self.undo.commit_state(commit) }
    }

    /// All pins, the oldest commits first.
    pub(crate) fn pins(&self) -> Vec<Pin> {
        self.undo.pins((self.clock)())
    }
}
