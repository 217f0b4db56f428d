//! Once a commit, and once in so many written pages: free memory goes back to the system.

use std::sync::atomic::Ordering;

use crate::state::TrieDb;
use crate::state::pace::trim_schedule::TrimSchedule;

/// Written pages after which it is time again though no commit has come: a drain gives up what pends on them, and
/// brings in other pages.
const WRITTEN: u64 = 1 << 14;

/// When free memory was last given back.
#[derive(Debug, Default)]
pub(super) struct TrimTrigger {
    /// The commit that was the newest when it was last looked at, and how often as many pages were written.
    seen: (u64, u64),
    trims: TrimSchedule,
}

impl TrimTrigger {
    /// Gives free memory back, if it is time.
    pub(super) fn trim_if_due(&mut self, db: &TrieDb) {
        let written = db.counters.pages_written.load(Ordering::Relaxed);
        let now = (db.commits.published(), written / WRITTEN);
        if std::mem::replace(&mut self.seen, now) != now {
            self.trims.trim_if_due(&db.runtime, &db.budget, &db.counters);
        }
    }
}
