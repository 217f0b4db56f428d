//! Pages of the overflow file: each long value has a few extents, of neighbouring pages each.
//!
//! Extents live as pages of the leaf file do (used, retired as of a stamp, released, free). Here the state is stored: a
//! checkpoint image has the free map (`free_map`).
//!
//! Policy: the smallest free extent that holds the whole value (in a file that is far too long, the first one, so that its
//! end becomes free); else, while the file has fewer pages than the size factor says, growth; else the largest free
//! extents, at most [`MAX_EXTENTS`] of them; else growth.

use std::collections::BTreeMap;

use pleach_core::page::MAX_PAGE_NO;
use pleach_core::page::overflow::{MAX_EXTENT_PAGES, OverflowExtent};

pub use pleach_core::page::overflow::MAX_EXTENTS;

use super::free_extents::FreeExtents;
use super::free_map;
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
    /// Extents of free pages.
    pub free_extents: u64,
}

/// The allocator of the overflow file.
#[derive(Clone, Debug, Default)]
pub struct OverflowSpace {
    geometry: FileGeometry,
    pages: u64,
    free: FreeExtents,
    /// Retired extents by their starts: they overlap neither each other nor free ones.
    retired: BTreeMap<u64, u64>,
    retired_pages: u64,
    retired_batches: RetiredBatches<OverflowExtent>,
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
        let (pages, extents) = free_map::parse(bytes)?;
        if pages % u64::from(geometry.segment_pages) != 0 {
            return Err(SpaceError::FreeMap { what: "the file ends within a segment", offset: 0 });
        }
        if pages > MAX_PAGE_NO + 1 {
            return Err(SpaceError::TooLong { pages });
        }
        let mut space = Self::new(geometry);
        space.pages = pages;
        for (start, len) in extents {
            space.free.insert(start, len);
        }
        Ok(space)
    }

    /// Appends the free map as it will be after a restart: what is free now and what was retired with a stamp of at
    /// most `up_to`, the newest one whose location record the image covers.
    pub fn encode(&self, up_to: u64, out: &mut Vec<u8>) {
        let mut free = self.free.clone();
        for extent in self.retired_batches.iter(up_to) {
            free.insert(extent.start, extent.pages.into());
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

    /// Retires extents as of `stamp`, a number that never falls. After an error the extents before the one named are retired.
    ///
    /// # Panics
    /// When the stamp is below an earlier one.
    pub fn retire(&mut self, extents: &[OverflowExtent], stamp: u64) -> Result<(), SpaceError> {
        for extent in extents {
            self.check_owned(*extent)?;
            self.retired.insert(extent.start, extent.pages.into());
            self.retired_pages += u64::from(extent.pages);
            self.retired_batches.add(stamp, [*extent]);
        }
        Ok(())
    }

    /// Frees extents retired with stamps through `stamp`; returns the number of pages.
    pub fn release(&mut self, stamp: u64) -> u64 {
        let before = self.retired_pages;
        while let Some(extents) = self.retired_batches.take(stamp) {
            for extent in extents {
                self.retired.remove(&extent.start);
                self.retired_pages -= u64::from(extent.pages);
                self.free.insert(extent.start, extent.pages.into());
            }
        }
        before - self.retired_pages
    }

    /// Recovery: the file has at least this many pages, in whole segments; pages beyond the known ones are free.
    pub fn grow_to(&mut self, pages: u64) -> Result<(), SpaceError> {
        let more = pages.saturating_sub(self.pages).div_ceil(self.geometry.segment_pages.into());
        self.add_segments(u32::try_from(more).map_err(|_| SpaceError::TooLong { pages })?)
    }

    /// Recovery: marks an extent as used, as a location record says.
    pub fn mark_used(&mut self, extent: OverflowExtent) -> Result<(), SpaceError> {
        self.check_inside(extent)?;
        if !self.free.contains(extent.start, extent.pages.into()) {
            return Err(SpaceError::AlreadyUsed { page: extent.start });
        }
        self.free.remove(extent.start, extent.pages.into());
        Ok(())
    }

    /// Frees an extent at once: in recovery, and for extents allocated but never published.
    pub fn mark_free(&mut self, extent: OverflowExtent) -> Result<(), SpaceError> {
        self.check_owned(extent)?;
        self.free.insert(extent.start, extent.pages.into());
        Ok(())
    }

    /// Retires all free pages as of `stamp`; true when there were any. For a recovery that does not know which pages
    /// are named.
    ///
    /// # Panics
    /// As [`OverflowSpace::retire`].
    pub fn retire_free(&mut self, stamp: u64) -> bool {
        let mut extents = Vec::new();
        for (start, len) in self.free.iter().collect::<Vec<_>>() {
            self.free.remove(start, len);
            split_extent(start, len, &mut extents);
        }
        self.retire(&extents, stamp).expect("nobody else has what was free");
        !extents.is_empty()
    }

    /// Free extents in address order, as start and length.
    pub fn free_extents(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.free.iter()
    }

    /// Figures.
    pub fn stats(&self) -> OverflowSpaceStats {
        OverflowSpaceStats {
            pages: self.pages,
            live: self.pages - self.free.pages() - self.retired_pages,
            retired: self.retired_pages,
            free: self.free.pages(),
            free_extents: self.free.len() as u64,
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

    /// The segments needed for an extent of `count` pages at the end of the file.
    fn need(&self, count: u32) -> NeedGrowth {
        let tail = self.free.ending_at(self.pages);
        // At least one, so that asking again makes progress.
        self.geometry.need(u64::from(count).saturating_sub(tail).max(1))
    }

    /// The fewest free extents that hold `count` pages; the last one as small as will do.
    fn pick_largest(&self, count: u32) -> Option<Vec<(u64, u64)>> {
        let mut picked = Vec::with_capacity(MAX_EXTENTS);
        let mut left = u64::from(count);
        for (start, len) in self.free.largest().take(MAX_EXTENTS) {
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

    /// Checks that an extent is inside the file, and that no page of it is free or retired.
    fn check_owned(&self, extent: OverflowExtent) -> Result<(), SpaceError> {
        self.check_inside(extent)?;
        let end = extent.start + u64::from(extent.pages);
        if self.free.overlaps(extent.start, extent.pages.into()) {
            return Err(SpaceError::NotUsed { page: extent.start });
        }
        let before = self.retired.range(..end).next_back();
        if before.is_some_and(|(start, len)| start + len > extent.start) {
            return Err(SpaceError::AlreadyRetired { page: extent.start });
        }
        Ok(())
    }

    fn check_inside(&self, extent: OverflowExtent) -> Result<(), SpaceError> {
        let end = extent.start.checked_add(extent.pages.into());
        if extent.pages > 0 && end.is_some_and(|end| end <= self.pages) {
            Ok(())
        } else {
            Err(SpaceError::OutsideFile { page: extent.start, pages: self.pages })
        }
    }
}

impl GrowingFile for OverflowSpace {
    type Extent = OverflowExtent;

    /// Allocates `count` pages as at most [`MAX_EXTENTS`] extents in address order; `out` is replaced.
    ///
    /// # Panics
    /// When `count` is 0.
    fn allocate(
        &mut self,
        count: u32,
        growth: Growth,
        out: &mut Vec<OverflowExtent>,
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
            Some(extent) => vec![extent],
            None if growth == Growth::Allowed && self.is_short(count) => {
                return Err(self.need(count));
            }
            None => self.pick_largest(count).ok_or_else(|| self.need(count))?,
        };
        if picked.iter().map(|(_, len)| len.div_ceil(MAX_EXTENT_PAGES.into())).sum::<u64>()
            > MAX_EXTENTS as u64
        {
            return Err(self.need(count));
        }
        picked.sort_unstable();
        for (start, len) in picked {
            self.free.remove(start, len);
            split_extent(start, len, out);
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

fn split_extent(start: u64, len: u64, out: &mut Vec<OverflowExtent>) {
    let (mut at, end) = (start, start + len);
    while at < end {
        let pages = u32::try_from(end - at).unwrap_or(u32::MAX).min(MAX_EXTENT_PAGES);
        out.push(OverflowExtent { start: at, pages });
        at += u64::from(pages);
    }
}
