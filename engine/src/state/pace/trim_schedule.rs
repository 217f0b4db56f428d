//! When free memory that the allocator keeps between longer-lived blocks goes back to the system.
//!
//! Lists of buffered changes and long values live for some commits, arrays of a batch for one, and cached pages for
//! long: freed blocks leave holes that the next batch does not fit into (docs/decisions/history.md, 0034). Memory is
//! trimmed only while the process takes more than half of what is promised beside the budget, and less and less often
//! where trims yield little because the application uses the memory.

use pleach_io::Executor;

use super::budget::Budget;
use crate::metrics::Counters;

/// Most calls that are skipped after a trim that yielded little.
const MOST: u64 = 64;

/// Counts the calls to skip before the next trim.
#[derive(Debug, Default)]
pub(crate) struct TrimSchedule {
    /// Calls to skip before the next trim.
    skips_left: u64,
    /// Calls that were skipped before the last trim.
    pause: u64,
}

impl TrimSchedule {
    /// Returns free memory to the system, if it is time.
    pub(crate) fn trim_if_due(&mut self, runtime: &Executor, budget: &Budget, counters: &Counters) {
        if !self.is_due() {
            return;
        }
        let Some(bytes) = runtime.trim_memory(budget.trim_threshold()) else { return };
        Counters::add(&counters.trims, 1);
        Counters::add(&counters.trimmed_bytes, bytes);
        self.note_result(bytes >= budget.min_trim_bytes());
    }

    /// True when it is time; otherwise this call is skipped.
    fn is_due(&mut self) -> bool {
        let fewer = self.skips_left.checked_sub(1);
        self.skips_left = fewer.unwrap_or(0);
        fewer.is_none()
    }

    /// Records whether a trim has yielded `much`, or next to nothing.
    fn note_result(&mut self, much: bool) {
        self.pause = if much { 0 } else { (2 * self.pause).clamp(1, MOST) };
        self.skips_left = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that are skipped before the next trim.
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
        // While trims yield much, no call is skipped.
        for _ in 0..3 {
            trims.note_result(true);
            assert_eq!(left_out(&mut trims), 0);
        }
        trims.note_result(false);
        assert_eq!(left_out(&mut trims), 1);
    }

    /// A call that finds too little memory in use to trim skips nothing.
    #[test]
    fn a_look_that_finds_too_little_in_use_costs_no_pause() {
        let mut trims = TrimSchedule::default();
        for _ in 0..5 {
            assert!(trims.is_due());
        }
    }
}
