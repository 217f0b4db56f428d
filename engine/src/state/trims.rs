//! Free memory that the allocator keeps, between blocks that live longer, goes back to the system.
//!
//! Lists of pending changes and long values live for some commits, arrays of a batch for one, and pages of the
//! cache for ever: what goes leaves holes that the next batch does not fit into (decision 0034). Only while the
//! process takes more than half of what is promised beside the budget, and less and less often where that is the
//! application's, or in use.

use pleach_io::Runtime;

use super::budget::Budget;
use crate::metrics::Counters;

/// Most looks that are left out after one of which little came.
const MOST: u64 = 64;

/// When it is worth a look again.
#[derive(Debug, Default)]
pub(crate) struct Trims {
    /// Looks that are left out until then.
    left: u64,
    /// As many were left out the last time.
    pause: u64,
}

impl Trims {
    /// Gives free memory back, if it is time.
    pub(crate) fn look<R: Runtime>(&mut self, runtime: &R, budget: &Budget, counters: &Counters) {
        if let Some(fewer) = self.left.checked_sub(1) {
            self.left = fewer;
            return;
        }
        let Some(bytes) = runtime.trim_memory(budget.trim_above()) else { return };
        Counters::add(&counters.trims, 1);
        Counters::add(&counters.trimmed_bytes, bytes);
        let little = bytes < budget.worth_a_trim();
        self.pause = if little { (2 * self.pause).clamp(1, MOST) } else { 0 };
        self.left = self.pause;
    }
}
