//! Virtual time, shared by a simulated disk and the executor that runs above it.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

/// A clock that moves only when told to. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    /// Time since the start of the simulation.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Advances the time by `by`.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let add = |now: u64| Some(now.saturating_add(by));
        // `add` never refuses.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Advances the time to `when`; does nothing when that has passed already.
    pub fn advance_to(&self, when: Duration) {
        self.advance(when.saturating_sub(self.now()));
    }
}
