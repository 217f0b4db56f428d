//! Pages of the leaf file: which are in use, which come next, which are retired.
//!
//! A page is in one of four states:
//!
//! ```text
//!   frontier --allocate--> used --retire(stamp)--> retired --release(stamp)--> hole
//!                            ^                                                   |
//!                            +---------------------allocate----------------------+
//! ```
//!
//! * *frontier*: from [`LeafSpace::frontier`] to the end of the file: reserved, never written since the file grew. It
//!   is allocated first, in order, so a fresh file is written sequentially.
//! * *retired*: the index names the page no longer, but the location record may not be durable yet, or a reader may
//!   still read it. [`LeafSpace::release`] says that both are past. Until then the page counts as used and is never
//!   allocated.
//!
//! Policy (docs/decisions/history.md, 0010): the file grows while it has fewer than `size_percent` of its live pages. After that,
//! holes are filled by *sweeping*: segments are visited in address order, round and round, and each is filled whole,
//! except that those with clearly fewer holes than the mean are left for the next round.
//!
//! A file that is far too long for its live pages shrinks ([`LeafSpace::shrink_goal`]): free pages are taken from its
//! front, flushes rewrite the pages behind the goal, and the caller cuts the end off when it is free
//! ([`LeafSpace::cut`]).
//!
//! Growing is the caller's work: [`LeafSpace::allocate`] changes nothing and returns [`NeedGrowth`]; the caller
//! reserves whole segments on the device, calls [`LeafSpace::add_segments`] and asks again. If the device is full it
//! asks with [`Growth::Refused`] and gets holes as long as there are any. [`GrowingFile::allocate_growing`] is that
//! loop.
//!
//! Nothing here is stored: an open rebuilds it from the index ([`LeafSpace::from_used`]).
//! [`OverflowSpace`] does the same for extents of pages in the overflow file.
//!
//! ```
//! use pleach_beatree::space::{FileGeometry, GrowingFile, LeafSpace, SpaceError};
//!
//! let mut space = LeafSpace::new(FileGeometry::TINY);
//! // The device has room for any request.
//! let reserve = |_| Ok::<(), SpaceError>(());
//! let extents = space.allocate_growing(3, reserve, |_| false).expect("there is room");
//! let pages: Vec<_> = extents.iter().flat_map(|extent| extent.pages()).collect();
//! assert_eq!((pages.len(), space.stats().live), (3, 3));
//!
//! // Retired by flush 7; free when the record of flush 7 is durable and the readers have left.
//! space.retire(&pages[..1], 7).expect("in use");
//! assert_eq!((space.stats().retired, space.release(6)), (1, 0));
//! assert_eq!((space.release(7), space.is_used(pages[0])), (1, false));
//! ```

mod bits;
mod error;
mod extent;
mod free_extents;
mod free_map;
mod growth;
mod overflow;
mod retired;

pub use error::{NeedGrowth, SpaceError};
pub use extent::LeafExtent;
pub use growth::{Extension, FileGeometry, GrowingFile, Growth};
pub use overflow::{MAX_EXTENTS, OverflowSpace, OverflowSpaceStats};

use bits::Bits;
use extent::push_merged;
use retired::RetiredBatches;

use crate::page_no::PageNo;

/// Page numbers are below this: larger ones are no page's.
pub const MAX_PAGES: u32 = PageNo::lost(0).get();

/// A sweep fills segments with at least this part of the mean number of holes, in percent.
const WORTH_PERCENT: u64 = 75;

/// Figures of a [`LeafSpace`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafSpaceStats {
    /// Pages of the file.
    pub pages: u32,
    /// Segments of the file.
    pub segments: u32,
    /// Pages in use and not retired.
    pub live: u32,
    /// Pages retired and not released.
    pub retired: u32,
    /// Free pages before the frontier.
    pub holes: u32,
    /// Pages from the frontier on.
    pub fresh: u32,
    /// Pages allocated since opening.
    pub allocated: u64,
    /// Extents of these pages: `allocated / extents` is the mean extent.
    pub extents: u64,
}

/// The allocator of the leaf file.
#[derive(Clone, Debug, Default)]
pub struct LeafSpace {
    geometry: FileGeometry,
    /// Used and retired pages.
    used: Bits,
    /// Retired pages, all of them also used.
    retired: Bits,
    /// Used and retired pages of each segment.
    used_in: Vec<u32>,
    /// The segment where the sweep goes on.
    sweep: u32,
    retired_batches: RetiredBatches<PageNo>,
    used_count: u32,
    retired_count: u32,
    /// No page from this one on has been used.
    frontier: u32,
    allocated: u64,
    extents: u64,
    /// Segments picked by one allocation and the pages to take from each; kept for its memory.
    picked: Vec<(u32, u32)>,
}

impl LeafSpace {
    /// An empty file.
    ///
    /// # Panics
    /// When a segment has no pages or more than 65,536, or the size factor is below 100 %.
    pub fn new(geometry: FileGeometry) -> Self {
        geometry.assert_valid();
        assert!(geometry.segment_pages <= 1 << 16, "a segment has at most 65,536 pages");
        Self { geometry, ..Self::default() }
    }

    /// A file of `segments` segments in which these pages, in any order, are in use.
    ///
    /// # Panics
    /// As [`LeafSpace::new`].
    pub fn from_used(
        geometry: FileGeometry,
        segments: u32,
        used: impl IntoIterator<Item = PageNo>,
    ) -> Result<Self, SpaceError> {
        let mut space = Self::new(geometry);
        let pages = space.pages_with(segments)?;
        space.used.grow(pages);
        space.retired.grow(pages);
        space.used_in.resize(segments as usize, 0);
        for page in used {
            space.mark_used(page)?;
        }
        Ok(space)
    }

    /// Pages of the file.
    pub fn pages(&self) -> u32 {
        self.used.len()
    }

    /// The first of the pages at the end of the file that have never been used.
    pub fn frontier(&self) -> u32 {
        self.frontier
    }

    /// True when this page is in use or retired. False after the end of the file.
    pub fn is_used(&self, page: PageNo) -> bool {
        page.get() < self.pages() && self.used.get(page.get())
    }

    /// The number of pages, in whole segments, that a file far too long for its live pages should shrink to. There is
    /// room before that for all pages behind.
    pub fn shrink_goal(&self) -> Option<u32> {
        let goal = self.geometry.shrink_goal(self.pages().into(), self.stats().live.into())?;
        u32::try_from(goal).ok()
    }

    /// Pages of the file without the segments at its end in which no page is in use or retired.
    pub fn used_end(&self) -> u32 {
        let free = self.used_in.iter().rev().take_while(|used| **used == 0);
        free.fold(self.pages(), |end, _| end - self.geometry.segment_pages)
    }

    /// Notes that the caller has cut the file to this many pages.
    ///
    /// # Panics
    /// When they are not whole segments, or a page behind them is in use.
    pub fn cut(&mut self, pages: u32) {
        assert!(pages.is_multiple_of(self.geometry.segment_pages), "whole segments are cut off");
        assert!((self.used_end()..=self.pages()).contains(&pages), "nothing lies there");
        self.used.cut(pages);
        self.retired.cut(pages);
        self.used_in.truncate((pages / self.geometry.segment_pages) as usize);
        self.used_in.shrink_to_fit();
        self.frontier = self.frontier.min(pages);
        self.sweep = if self.sweep < self.segments() { self.sweep } else { 0 };
    }

    /// Retires pages as of `stamp`, a number that never falls. They are not allocated before [`LeafSpace::release`].
    /// After an error the pages before the one that it names are retired.
    ///
    /// # Panics
    /// When the stamp is below an earlier one.
    pub fn retire(&mut self, pages: &[PageNo], stamp: u64) -> Result<(), SpaceError> {
        for page in pages {
            self.check_owned(*page)?;
            self.retired.set(page.get());
            self.retired_count += 1;
            self.retired_batches.add(stamp, [*page]);
        }
        Ok(())
    }

    /// Location records through `stamp` are durable and the readers from before have left: pages that were retired
    /// until then become holes. Returns their number.
    pub fn release(&mut self, stamp: u64) -> u32 {
        let before = self.retired_count;
        while let Some(pages) = self.retired_batches.take(stamp) {
            for page in pages {
                self.retired.clear(page.get());
                self.retired_count -= 1;
                self.make_hole(page);
            }
        }
        before - self.retired_count
    }

    /// Recovery: marks a page as used, as a location record says.
    pub fn mark_used(&mut self, page: PageNo) -> Result<(), SpaceError> {
        self.check_inside(page)?;
        if self.used.get(page.get()) {
            return Err(SpaceError::AlreadyUsed { page: page.into() });
        }
        self.used.set(page.get());
        self.used_count += 1;
        *self.used_near(page.get()) += 1;
        self.frontier = self.frontier.max(page.get() + 1);
        Ok(())
    }

    /// Frees a page at once: in recovery, where nobody reads, and for pages allocated but never published.
    pub fn mark_free(&mut self, page: PageNo) -> Result<(), SpaceError> {
        self.check_owned(page)?;
        self.make_hole(page);
        Ok(())
    }

    /// Figures.
    pub fn stats(&self) -> LeafSpaceStats {
        let fresh = self.pages() - self.frontier;
        LeafSpaceStats {
            pages: self.pages(),
            segments: self.segments(),
            live: self.used_count - self.retired_count,
            retired: self.retired_count,
            holes: self.pages() - self.used_count - fresh,
            fresh,
            allocated: self.allocated,
            extents: self.extents,
        }
    }

    /// Bytes of memory that this allocator holds.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.used.bytes()
            + self.retired.bytes()
            + self.used_in.capacity() * size_of::<u32>()
            + self.retired_batches.bytes()
            + self.picked.capacity() * size_of::<(u32, u32)>()
    }

    fn segments(&self) -> u32 {
        self.pages() / self.geometry.segment_pages
    }

    /// The count of used pages of the segment of a page.
    fn used_near(&mut self, page: u32) -> &mut u32 {
        &mut self.used_in[(page / self.geometry.segment_pages) as usize]
    }

    /// Pages of a file of this many segments.
    fn pages_with(&self, segments: u32) -> Result<u32, SpaceError> {
        let pages = self.geometry.pages_of(segments);
        u32::try_from(pages).map_err(|_| SpaceError::TooLong { pages })
    }

    /// Checks whether the file must grow for `count` pages, `rest` of them not from the frontier.
    fn check_growth(&self, count: u32, rest: u32, growth: Growth) -> Result<(), NeedGrowth> {
        let stats = self.stats();
        let missing = u64::from(rest).saturating_sub(stats.holes.into());
        let live = u64::from(stats.live) + u64::from(count);
        let short =
            self.geometry.target(live).min(self.longest()).saturating_sub(stats.pages.into());
        let wanted = match growth {
            Growth::Allowed => short.min(rest.into()).max(missing),
            Growth::Refused => missing,
        };
        if wanted == 0 {
            return Ok(());
        }
        Err(self.geometry.need(wanted))
    }

    /// Pages of the longest possible file.
    fn longest(&self) -> u64 {
        u64::from(MAX_PAGES - MAX_PAGES % self.geometry.segment_pages)
    }

    /// Allocates `count` holes, which exist: by sweeping, or the first ones of the file.
    fn fill_holes(&mut self, count: u32, from_the_front: bool, out: &mut Vec<LeafExtent>) {
        let mut least = self.worthwhile();
        if from_the_front {
            // Holes were counted, so none of these is a fresh page.
            (self.sweep, least) = (0, 1);
        } else {
            assert_eq!(self.frontier, self.pages(), "fresh pages go first");
        }
        let (size, segments) = (self.geometry.segment_pages, self.segments());
        let mut picked = core::mem::take(&mut self.picked);
        picked.clear();
        let (mut left, mut looked) = (count, 0);
        while left > 0 {
            let used = &mut self.used_in[self.sweep as usize];
            let holes = size - *used;
            if holes >= least {
                let take = left.min(holes);
                picked.push((self.sweep, take));
                *used += take;
                left -= take;
            }
            if left > 0 {
                self.sweep = (self.sweep + 1) % segments;
                looked += 1;
                // One round was not enough: any hole will do now.
                if looked == segments {
                    least = 1;
                }
                assert!(looked < 3 * segments, "holes were counted");
            }
        }
        picked.sort_unstable();
        for &(segment, take) in &picked {
            self.take_holes(segment, take, out);
        }
        self.picked = picked;
    }

    /// Holes that make a segment worth filling.
    fn worthwhile(&self) -> u32 {
        let stats = self.stats();
        let part = u64::from(stats.holes) * WORTH_PERCENT / (100 * u64::from(stats.segments));
        u32::try_from(part).unwrap_or(u32::MAX).max(1)
    }

    /// Marks the first `take` holes of a segment as used.
    fn take_holes(&mut self, segment: u32, take: u32, out: &mut Vec<LeafExtent>) {
        let end = (segment + 1) * self.geometry.segment_pages;
        let mut at = segment * self.geometry.segment_pages;
        let mut left = take;
        while left > 0 {
            let start = self.used.next_clear(at, end);
            at = self.used.next_set(start, end.min(start + left));
            assert!(at > start, "the bitmap has the holes that were counted");
            self.used.set_range(start, at);
            push_merged(out, LeafExtent { start: PageNo::new(start), len: at - start });
            left -= at - start;
        }
    }

    /// Marks pages at the frontier as used and moves the frontier behind them.
    fn take_fresh(&mut self, start: u32, count: u32) {
        let stop = start + count;
        self.frontier = stop;
        self.used.set_range(start, stop);
        let size = self.geometry.segment_pages;
        let mut at = start;
        while at < stop {
            let end = stop.min((at / size + 1) * size);
            *self.used_near(at) += end - at;
            at = end;
        }
        self.used_count += count;
    }

    fn make_hole(&mut self, page: PageNo) {
        self.used.clear(page.get());
        self.used_count -= 1;
        *self.used_near(page.get()) -= 1;
    }

    /// Checks that a page is in use and not retired.
    fn check_owned(&self, page: PageNo) -> Result<(), SpaceError> {
        self.check_inside(page)?;
        if !self.used.get(page.get()) {
            return Err(SpaceError::NotUsed { page: page.into() });
        }
        if self.retired.get(page.get()) {
            return Err(SpaceError::AlreadyRetired { page: page.into() });
        }
        Ok(())
    }

    fn check_inside(&self, page: PageNo) -> Result<(), SpaceError> {
        if page.get() < self.pages() {
            Ok(())
        } else {
            Err(SpaceError::OutsideFile { page: page.into(), pages: self.pages().into() })
        }
    }
}

impl GrowingFile for LeafSpace {
    type Extent = LeafExtent;

    /// Allocates `count` pages as extents in address order, no two of them adjacent; `out` is replaced.
    fn allocate(
        &mut self,
        count: u32,
        growth: Growth,
        out: &mut Vec<LeafExtent>,
    ) -> Result<(), NeedGrowth> {
        out.clear();
        let stats = self.stats();
        let live = u64::from(stats.live) + u64::from(count);
        let shrinks = self.geometry.shrink_goal(self.pages().into(), live).is_some();
        let from_the_front = shrinks && stats.holes >= count;
        let fresh = if from_the_front { 0 } else { count.min(self.pages() - self.frontier) };
        let rest = count - fresh;
        self.check_growth(count, rest, growth)?;
        let start = self.frontier;
        self.take_fresh(start, fresh);
        if rest > 0 {
            self.fill_holes(rest, from_the_front, out);
        }
        if fresh > 0 {
            // Holes are before the frontier, so the order is kept.
            push_merged(out, LeafExtent { start: PageNo::new(start), len: fresh });
        }
        self.used_count += rest;
        self.allocated += u64::from(count);
        self.extents += out.len() as u64;
        assert_eq!(out.iter().map(|extent| extent.len).sum::<u32>(), count);
        Ok(())
    }

    fn add_segments(&mut self, segments: u32) -> Result<(), SpaceError> {
        let pages = self.pages_with(self.segments().saturating_add(segments))?;
        self.used.grow(pages);
        self.retired.grow(pages);
        self.used_in.resize((pages / self.geometry.segment_pages) as usize, 0);
        Ok(())
    }

    fn file_pages(&self) -> u64 {
        self.pages().into()
    }

    fn geometry(&self) -> FileGeometry {
        self.geometry
    }
}
