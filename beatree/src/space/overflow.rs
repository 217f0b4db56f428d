//! Pages of the overflow file: each long value has an extent, a few runs of neighbouring pages.
//!
//! Runs live as pages of the leaf file do (used, retired as of a stamp, released, free). Here the state is stored: a
//! checkpoint image has the free map (`free_map`).
//!
//! Policy: the smallest free run that holds the whole value (in a file that is far too long, the first one, so that its
//! end becomes free); else, while the file has fewer pages than the size factor says, growth; else the largest free
//! runs, at most [`MAX_RUNS`] of them; else growth.

use std::collections::BTreeMap;

use pleach_core::page::MAX_PAGE_NO;
use pleach_core::page::overflow::{MAX_RUN_PAGES, OverflowRun};

pub use pleach_core::page::overflow::MAX_RUNS;

use super::free_map;
use super::free_runs::FreeRuns;
use super::retired::RetiredBatches;
use super::{FileGeometry, GrowingFile, Growth, NeedGrowth, SpaceError};

/// Figures of [`OverflowSpace`], in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverflowSpaceStats {
    /// Pages of the file.
    pub pages: u64,
    /// Pages in use and not retired.
    pub live: u64,
    /// Pages retired and not released.
    pub retired: u64,
    /// Free pages.
    pub free: u64,
    /// Runs of free pages.
    pub free_runs: u64,
}

/// The allocator of the overflow file.
#[derive(Clone, Debug, Default)]
pub struct OverflowSpace {
    geometry: FileGeometry,
    pages: u64,
    free: FreeRuns,
    /// Retired runs by their starts: they overlap neither each other nor free ones.
    retired: BTreeMap<u64, u64>,
    retired_pages: u64,
    retired_batches: RetiredBatches<OverflowRun>,
}

impl OverflowSpace {
    /// An empty file.
    ///
    /// # Panics
    /// When a segment has no pages or the size factor is below 100 %.
    pub fn new(geometry: FileGeometry) -> Self {
        geometry.assert_valid();
        Self { geometry, ..Self::default() }
    }

    /// The state that [`OverflowSpace::encode`] wrote, fully validated.
    pub fn parse(geometry: FileGeometry, bytes: &[u8]) -> Result<Self, SpaceError> {
        let (pages, runs) = free_map::parse(bytes)?;
        if pages % u64::from(geometry.segment_pages) != 0 {
            return Err(SpaceError::FreeMap { what: "the file ends within a segment", offset: 0 });
        }
        if pages > MAX_PAGE_NO + 1 {
            return Err(SpaceError::TooLong { pages });
        }
        let mut extents = Self::new(geometry);
        extents.pages = pages;
        for (start, len) in runs {
            extents.free.insert(start, len);
        }
        Ok(extents)
    }

    /// Appends the free map as it will be after a restart: what is free now and what was retired with a stamp of at
    /// most `through`, the newest one whose location record the image covers.
    pub fn encode(&self, through: u64, out: &mut Vec<u8>) {
        let mut free = self.free.clone();
        for run in self.retired_batches.iter(through) {
            free.insert(run.start, run.pages.into());
        }
        free_map::encode(self.pages, free.len(), free.iter(), out);
    }

    /// When the file is far too long for its live pages: removes segments of free pages at its end from the map, as far
    /// as it should shrink; all of them when the device is short of room. The caller cuts the file itself when no image
    /// and no record that a recovery may read names a page behind the end.
    pub fn shrink_tail(&mut self, is_short: bool) {
        self.shrink_free_end(self.shrink_goal(is_short));
    }

    /// Pages of the map after [`Self::shrink_tail`].
    pub fn shrink_goal(&self, is_short: bool) -> u64 {
        let goal = self.geometry.shrink_goal(self.pages, self.stats().live);
        goal.or(is_short.then_some(0)).map_or(self.pages, |goal| self.without_free_end(goal))
    }

    fn without_free_end(&self, keep: u64) -> u64 {
        let (free, segment) = (self.free.ending_at(self.pages), self.geometry.segment_pages);
        (self.pages - free).next_multiple_of(segment.into()).max(keep).min(self.pages)
    }

    /// Removes segments of free pages at the end of the file from the map, after the first `keep` pages.
    pub fn shrink_free_end(&mut self, keep: u64) {
        let pages = self.without_free_end(keep);
        if pages < self.pages {
            self.free.remove(pages, self.pages - pages);
            self.pages = pages;
        }
    }

    /// Retires runs as of `stamp`, a number that never falls. After an error the runs before the one named are retired.
    ///
    /// # Panics
    /// When the stamp is below an earlier one.
    pub fn retire(&mut self, runs: &[OverflowRun], stamp: u64) -> Result<(), SpaceError> {
        for run in runs {
            self.check_owned(*run)?;
            self.retired.insert(run.start, run.pages.into());
            self.retired_pages += u64::from(run.pages);
            self.retired_batches.add(stamp, [*run]);
        }
        Ok(())
    }

    /// Frees runs retired with stamps through `stamp`; returns the number of pages.
    pub fn release(&mut self, stamp: u64) -> u64 {
        let before = self.retired_pages;
        while let Some(runs) = self.retired_batches.take(stamp) {
            for run in runs {
                self.retired.remove(&run.start);
                self.retired_pages -= u64::from(run.pages);
                self.free.insert(run.start, run.pages.into());
            }
        }
        before - self.retired_pages
    }

    /// Recovery: the file has at least this many pages, in whole segments; pages beyond the known ones are free.
    pub fn grow_to(&mut self, pages: u64) -> Result<(), SpaceError> {
        let more = pages.saturating_sub(self.pages).div_ceil(self.geometry.segment_pages.into());
        self.add_segments(u32::try_from(more).map_err(|_| SpaceError::TooLong { pages })?)
    }

    /// Recovery: marks a run as used, as a location record says.
    pub fn mark_used(&mut self, run: OverflowRun) -> Result<(), SpaceError> {
        self.check_inside(run)?;
        if !self.free.contains(run.start, run.pages.into()) {
            return Err(SpaceError::AlreadyUsed { page: run.start });
        }
        self.free.remove(run.start, run.pages.into());
        Ok(())
    }

    /// Frees a run at once: in recovery, and for runs allocated but never published.
    pub fn mark_free(&mut self, run: OverflowRun) -> Result<(), SpaceError> {
        self.check_owned(run)?;
        self.free.insert(run.start, run.pages.into());
        Ok(())
    }

    /// Retires all free pages as of `stamp`; true when there were any. For a recovery that does not know which pages
    /// are named.
    ///
    /// # Panics
    /// As [`OverflowSpace::retire`].
    pub fn retire_free(&mut self, stamp: u64) -> bool {
        let mut runs = Vec::new();
        for (start, len) in self.free.iter().collect::<Vec<_>>() {
            self.free.remove(start, len);
            split_run(start, len, &mut runs);
        }
        self.retire(&runs, stamp).expect("nobody else has what was free");
        !runs.is_empty()
    }

    /// Free runs in address order, as start and length.
    pub fn free_runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.free.iter()
    }

    /// Figures.
    pub fn stats(&self) -> OverflowSpaceStats {
        OverflowSpaceStats {
            pages: self.pages,
            live: self.pages - self.free.pages() - self.retired_pages,
            retired: self.retired_pages,
            free: self.free.pages(),
            free_runs: self.free.len() as u64,
        }
    }

    /// Bytes of memory that this allocator holds, about.
    pub fn bytes(&self) -> usize {
        // A B-tree's nodes are between half and entirely full.
        const RETIRED: usize = 2 * size_of::<(u64, u64)>();
        size_of::<Self>()
            + self.free.bytes()
            + self.retired.len() * RETIRED
            + self.retired_batches.bytes()
    }

    /// True when the file is shorter than the size factor allows with `count` more live pages.
    fn is_short(&self, count: u32) -> bool {
        let live = self.stats().live + u64::from(count);
        self.pages < self.geometry.target(live)
    }

    /// The segments needed for a run of `count` pages at the end of the file.
    fn need(&self, count: u32) -> NeedGrowth {
        let tail = self.free.ending_at(self.pages);
        // At least one, so that asking again makes progress.
        self.geometry.need(u64::from(count).saturating_sub(tail).max(1))
    }

    /// The fewest free runs that hold `count` pages; the last one as small as will do.
    fn pick_largest(&self, count: u32) -> Option<Vec<(u64, u64)>> {
        let mut picked = Vec::with_capacity(MAX_RUNS);
        let mut left = u64::from(count);
        for (start, len) in self.free.largest().take(MAX_RUNS) {
            if len >= left {
                let (start, _) = self.free.smallest_of(left).unwrap_or((start, len));
                picked.push((start, left));
                return Some(picked);
            }
            picked.push((start, len));
            left -= len;
        }
        None
    }

    /// Checks that a run is inside the file, and that no page of it is free or retired.
    fn check_owned(&self, run: OverflowRun) -> Result<(), SpaceError> {
        self.check_inside(run)?;
        let end = run.start + u64::from(run.pages);
        if self.free.overlaps(run.start, run.pages.into()) {
            return Err(SpaceError::NotUsed { page: run.start });
        }
        let before = self.retired.range(..end).next_back();
        if before.is_some_and(|(start, len)| start + len > run.start) {
            return Err(SpaceError::AlreadyRetired { page: run.start });
        }
        Ok(())
    }

    fn check_inside(&self, run: OverflowRun) -> Result<(), SpaceError> {
        let end = run.start.checked_add(run.pages.into());
        if run.pages > 0 && end.is_some_and(|end| end <= self.pages) {
            Ok(())
        } else {
            Err(SpaceError::OutsideFile { page: run.start, pages: self.pages })
        }
    }
}

impl GrowingFile for OverflowSpace {
    type Run = OverflowRun;

    /// Allocates `count` pages as at most [`MAX_RUNS`] runs in address order; `out` is replaced.
    ///
    /// # Panics
    /// When `count` is 0.
    fn allocate(
        &mut self,
        count: u32,
        growth: Growth,
        out: &mut Vec<OverflowRun>,
    ) -> Result<(), NeedGrowth> {
        assert!(count > 0, "a long value has pages");
        out.clear();
        let live = self.stats().live + u64::from(count);
        let fits = if self.geometry.shrink_goal(self.pages, live).is_some() {
            self.free.iter().find(|(_, len)| *len >= u64::from(count))
        } else {
            self.free.smallest_of(count.into())
        };
        let whole = fits.map(|(start, _)| (start, u64::from(count)));
        let mut picked: Vec<(u64, u64)> = match whole {
            Some(run) => vec![run],
            None if growth == Growth::Allowed && self.is_short(count) => {
                return Err(self.need(count));
            }
            None => self.pick_largest(count).ok_or_else(|| self.need(count))?,
        };
        if picked.iter().map(|(_, len)| len.div_ceil(MAX_RUN_PAGES.into())).sum::<u64>()
            > MAX_RUNS as u64
        {
            return Err(self.need(count));
        }
        picked.sort_unstable();
        for (start, len) in picked {
            self.free.remove(start, len);
            split_run(start, len, out);
        }
        Ok(())
    }

    fn add_segments(&mut self, segments: u32) -> Result<(), SpaceError> {
        let more = self.geometry.pages_of(segments);
        let pages = self.pages + more;
        if pages > MAX_PAGE_NO + 1 {
            return Err(SpaceError::TooLong { pages });
        }
        if more > 0 {
            self.free.insert(self.pages, more);
        }
        self.pages = pages;
        Ok(())
    }

    fn file_pages(&self) -> u64 {
        self.pages
    }

    fn geometry(&self) -> FileGeometry {
        self.geometry
    }
}

fn split_run(start: u64, len: u64, out: &mut Vec<OverflowRun>) {
    let (mut at, end) = (start, start + len);
    while at < end {
        let pages = u32::try_from(end - at).unwrap_or(u32::MAX).min(MAX_RUN_PAGES);
        out.push(OverflowRun { start: at, pages });
        at += u64::from(pages);
    }
}
