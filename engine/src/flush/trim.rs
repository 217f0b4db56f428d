//! Free memory that the allocator keeps, between blocks that live longer, goes back to the system.
//!
//! Lists of pending changes and long values live for some commits, arrays of a batch for one, and pages of the
//! cache for ever: what goes leaves holes that the next batch does not fit into (decision 0034). Looked at once
//! a commit, and only while the process takes more than half of what is promised beside the budget.

use pleach_io::{Device, Runtime};

use crate::metrics::Counters;
use crate::state::State;

/// Most commits between two trims of which the first gave back little.
const MOST: u64 = 64;

/// When free memory was last given back.
#[derive(Debug, Default)]
pub(super) struct Trim {
    /// The commit that was the newest when it was last looked at.
    seen: u64,
    /// Commits until it is looked at again.
    left: u64,
    /// Commits between two looks.
    pause: u64,
}

impl Trim {
    /// Gives free memory back, if it is time.
    pub(super) fn look<D: Device, R: Runtime>(&mut self, db: &State<D, R>) {
        let published = db.commits.published();
        if std::mem::replace(&mut self.seen, published) == published {
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return;
        }
        let Some(bytes) = db.runtime.trim_memory(db.budget.trim_above()) else { return };
        Counters::add(&db.counters.trims, 1);
        Counters::add(&db.counters.trimmed_bytes, bytes);
        // What the process takes may be the application's, or in use: then it is looked at less and less.
        let little = bytes < db.budget.worth_a_trim();
        self.pause = if little { (2 * self.pause).clamp(1, MOST) } else { 1 };
        self.left = self.pause;
    }
}
