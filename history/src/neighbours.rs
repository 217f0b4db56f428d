//! Which neighbours in a list of runs are merged next, in memory and on the device.

use std::ops::Range;

/// Number of neighbours of a merge level that are merged.
pub(super) const FAN: usize = 4;
/// A merged run has at most this part of all commits.
pub(super) const PART: u64 = 4;

/// The places of the oldest neighbours of a merge level to be merged, among runs that each have a level and the commits
/// after one through another; `None` where there are too few, or the merged run would be too long.
pub(super) fn neighbours(
    all: impl Iterator<Item = (usize, u64, u64)>,
    merge_level: usize,
) -> Option<Range<usize>> {
    let all: Vec<_> = all.collect();
    let commits = |of: &[(usize, u64, u64)]| Some(of.last()?.2 - of.first()?.1);
    let whole = commits(&all)?;
    // A run may be far longer than others of its level: those behind it are merged without it.
    (0..(all.len() + 1).saturating_sub(FAN)).map(|from| from..from + FAN).find(|own| {
        let own = &all[own.clone()];
        let fits = commits(own).is_some_and(|commits| commits * PART <= whole);
        fits && own.iter().all(|one| one.0 == merge_level)
    })
}
