//! Free memory that the allocator keeps, between blocks that live longer, goes back to the system.
//!
//! Lists of pending changes and long values live for some commits, arrays of a batch for one, and pages of the
//! cache for ever: what goes leaves holes that the next batch does not fit into (docs/decisions/history.md, 0034). Only while the
//! process takes more than half of what is promised beside the budget, and less and less often where that is the
//! application's, or in use.

use pleach_io::Executor;

use super::budget::Budget;
use crate::metrics::Counters;

/// Most looks that are left out after one of which little came.
const MOST: u64 = 64;

/// When it is worth a look again.
#[derive(Debug, Default)]
pub(crate) struct TrimSchedule {
    /// Looks that are left out until then.
    skips_left: u64,
    /// As many were left out the last time.
    pause: u64,
}

impl TrimSchedule {
    /// Gives free memory back, if it is time.
    pub(crate) fn trim_if_due(&mut self, runtime: &Executor, budget: &Budget, counters: &Counters) {
        if !self.is_due() {
            return;
        }
        let Some(bytes) = runtime.trim_memory(budget.trim_threshold()) else { return };
        Counters::add(&counters.trims, 1);
        Counters::add(&counters.trimmed_bytes, bytes);
        self.note_result(bytes >= budget.min_trim_bytes());
    }

    /// Is it time? Otherwise this look is left out.
    fn is_due(&mut self) -> bool {
        let fewer = self.skips_left.checked_sub(1);
        self.skips_left = fewer.unwrap_or(0);
        fewer.is_none()
    }

    /// Something was given back: `much`, or next to nothing.
    fn note_result(&mut self, much: bool) {
        self.pause = if much { 0 } else { (2 * self.pause).clamp(1, MOST) };
        self.skips_left = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks that are left out until the next one.
    fn left_out(trims: &mut TrimSchedule) -> u64 {
        (0..1000).take_while(|_| !trims.is_due()).count() as u64
    }

    #[test]
    fn twice_as_many_looks_are_left_out_each_time_that_little_came() {
        let mut trims = TrimSchedule::default();
        for expected in [0, 1, 2, 4, 8, 16, 32, MOST, MOST, MOST] {
            assert_eq!(left_out(&mut trims), expected);
            trims.note_result(false);
        }
        assert_eq!(left_out(&mut trims), MOST);
        // Whenever it is worth it, each look is one again.
        for _ in 0..3 {
            trims.note_result(true);
            assert_eq!(left_out(&mut trims), 0);
        }
        trims.note_result(false);
        assert_eq!(left_out(&mut trims), 1);
    }

    /// Where there was nothing to be given back, nothing is said of the next time.
    #[test]
    fn a_look_that_finds_too_little_in_use_costs_no_pause() {
        let mut trims = TrimSchedule::default();
        for _ in 0..5 {
            assert!(trims.is_due());
        }
    }
}
