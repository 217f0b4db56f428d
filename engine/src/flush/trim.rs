//! Returns free memory to the system, once a commit and once in a number of written pages.

use std::sync::atomic::Ordering;

use crate::state::NamespaceDb;
use crate::state::pace::trim_schedule::TrimSchedule;

/// Written pages after which memory is trimmed without a commit: a drain frees changes, and reads other pages.
const WRITTEN: u64 = 1 << 14;

/// Decides when free memory goes back to the system.
#[derive(Debug, Default)]
pub(super) struct TrimTrigger {
    /// At the last call: the newest commit, and how often [`WRITTEN`] pages had been written.
    seen: (u64, u64),
    trims: TrimSchedule,
}

impl TrimTrigger {
    /// Returns free memory to the system, if it is time.
    pub(super) fn trim_if_due(&mut self, db: &NamespaceDb) {
        let written = db.counters.pages_written.load(Ordering::Relaxed);
        let now = (db.commits.published(), written / WRITTEN);
        if std::mem::replace(&mut self.seen, now) != now {
            self.trims.trim_if_due(&db.runtime, &db.budget, &db.counters);
        }
    }
}
