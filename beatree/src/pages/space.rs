//! Which pages of the leaf and overflow files are in use, and how the files grow.
//!
//! Files grow by whole segments, which are reserved before anything is written. Ordinary growth leaves a reserve, so
//! that deletes, flushes and checkpoints can finish on a full device. A commit that puts is admitted only while the
//! pages of all buffered changes have room beside the reserve ([`PageSpace::check_room_for_commit`]). Checkpoints cut
//! the free ends of the files off ([`PageSpace::shrink`]).
//!
//! Invariants: a page is free, or has one owner; a replaced page is free only when its location record is durable and
//! no reader can be at it ([`PageSpace::release_leaves`]); an overflow extent is tentative until a record names it, and
//! free in every image that is made before.
//!
//! Locks: leaf map; overflow map, then the tentative extents, or those of the history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use pleach_core::page::overflow::OverflowExtent;
use pleach_io::{Disk, File, IoError, OpenMode};

use super::TARGET;
use crate::error::{Error, Result};
use crate::page_no::{PageNo, page_offset};
use crate::space::{self, Extension, GrowingFile, Growth, OverflowSpace, OverflowSpaceStats};

/// Bytes that ordinary growth leaves free, or a sixteenth of a small file system; at least twelve segments of the log.
const RESERVE: u64 = 64 << 20;
/// What the names of files begin with that are overwritten in place: log, images, superblocks and spares.
const OVERWRITTEN: [&str; 4] = ["log", "image", "super", "incarnation"];

/// The space of the two page files.
pub struct PageSpace {
    device: Disk,
    leaf: File,
    /// The file of overflow pages.
    pub overflow: File,
    geometry: space::FileGeometry,
    /// Bytes of a segment of the log.
    log_segment: u64,
    leaf_map: Mutex<space::LeafSpace>,
    overflow_map: Mutex<OverflowSpace>,
    /// Overflow extents that no record names yet.
    tentative: Mutex<Vec<OverflowExtent>>,
    /// Pages of runs of the history, by their starts. They are free in images.
    history: Mutex<BTreeMap<u64, u32>>,
    /// The newest durable image names leaf pages below this one.
    image_leaf_end: AtomicU32,
    /// The largest end of the overflow map, in pages, since the newest durable image; written under the map's lock.
    overflow_peak: AtomicU64,
    /// The commit from which on no view names the oldest retired overflow extents; `u64::MAX` where there are none.
    pub oldest_retired: AtomicU64,
    /// The largest end of the overflow map in any image of this open, in pages.
    overflow_mapped: AtomicU64,
    /// Retired extents that an open has found: see [`RetiredExtents`].
    retired_extents: Mutex<RetiredExtents>,
}

/// What an open makes a [`PageSpace`] of.
pub struct SpaceParts {
    /// The folder.
    pub device: Disk,
    /// The file of leaf pages.
    pub leaf: File,
    /// The file of overflow pages.
    pub overflow: File,
    /// How both files grow.
    pub geometry: space::FileGeometry,
    /// Bytes of a segment of the log, twelve of which the reserve has.
    pub log_segment: u64,
    /// The pages of the leaf file.
    pub leaf_map: space::LeafSpace,
    /// The pages of the overflow file.
    pub overflow_map: OverflowSpace,
    /// Pages of runs of the history, by their starts.
    pub history: BTreeMap<u64, u32>,
    /// The newest durable image names leaf pages below this one.
    pub image_leaf_end: u32,
    /// Retired extents that an open has found.
    pub retired_extents: RetiredExtents,
}

/// The overflow map of an image.
pub struct OverflowMapImage {
    /// The map, encoded.
    pub bytes: Vec<u8>,
    /// Records since the image before name pages of the overflow file below this one.
    pub peak: u64,
}

/// Overflow extents that only the history names, as recovery finds them: the stamps under which they are retired, each
/// with the commit from which on no view names them. Both ascend.
pub type RetiredExtents = VecDeque<(u64, u64)>;

/// Bytes that a commit takes on the device, without nodes and without what it frees.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceDemand {
    /// Bytes of its record.
    pub log: u64,
    /// Bytes of keys and values that are put, until they are in pages.
    pub leaf: u64,
    /// Bytes of pages of the overflow file.
    pub overflow: u64,
}

/// The lengths of both files in pages, to which a failed load returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLengths {
    leaf: u32,
    overflow: u64,
    /// In bytes. The map of an older image may reach up to this end, beyond the present map.
    overflow_file: u64,
}

impl PageSpace {
    /// The space of these files.
    pub fn new(parts: SpaceParts) -> Self {
        Self {
            device: parts.device,
            leaf: parts.leaf,
            overflow: parts.overflow,
            geometry: parts.geometry,
            log_segment: parts.log_segment,
            leaf_map: Mutex::new(parts.leaf_map),
            overflow_map: Mutex::new(parts.overflow_map),
            tentative: Mutex::default(),
            history: Mutex::new(parts.history),
            image_leaf_end: AtomicU32::new(parts.image_leaf_end),
            overflow_peak: AtomicU64::new(0),
            oldest_retired: AtomicU64::new(u64::MAX),
            overflow_mapped: AtomicU64::new(0),
            retired_extents: Mutex::new(parts.retired_extents),
        }
    }

    /// Removes and returns the retired extents that an open has found.
    pub fn take_retired_extents(&self) -> RetiredExtents {
        std::mem::take(&mut self.retired_extents.lock())
    }

    /// Takes `count` free leaf pages, numbers ascending; grows the file when needed.
    ///
    /// # Panics
    /// When 2^32 pages are asked for.
    pub fn allocate_leaves(&self, count: usize) -> Result<Vec<PageNo>> {
        let count = u32::try_from(count).expect("a round has fewer than 2^32 pages");
        let mut pages = self.leaf_map.lock();
        let extents = self.allocate(&mut *pages, &self.leaf, count, 1)?;
        Ok(extents.iter().flat_map(space::LeafExtent::pages).collect())
    }

    /// Takes extents with `pages` free pages of the overflow file, tentative until a record names them.
    ///
    /// # Panics
    /// When 2^32 pages are asked for.
    pub fn allocate_overflow(
        &self,
        pages: usize,
        tentative: &mut TentativeExtents<'_>,
    ) -> Result<Vec<OverflowExtent>> {
        let count = u32::try_from(pages).expect("values are limited");
        let mut extents = self.overflow_map.lock();
        let extents = self.allocate(&mut *extents, &self.overflow, count, 1)?;
        // Before the lock is released, so that an image written then has them free.
        self.tentative.lock().extend_from_slice(&extents);
        tentative.own.extend_from_slice(&extents);
        Ok(extents)
    }

    /// Takes extents with `pages` free pages of the overflow file for a run of the history, which may use half of the
    /// reserve: undo in a run needs no log.
    ///
    /// # Panics
    /// When 2^32 pages are asked for.
    pub fn allocate_history(&self, pages: usize) -> Result<Vec<OverflowExtent>> {
        let count = u32::try_from(pages).expect("a few");
        let mut extents = self.overflow_map.lock();
        let extents = self.allocate(&mut *extents, &self.overflow, count, 2)?;
        self.history.lock().extend(extents.iter().map(|extent| (extent.start, extent.pages)));
        Ok(extents)
    }

    /// Frees pages of runs of the history. Pages that no run of the history has are left alone.
    pub fn free_history(&self, pages: Vec<OverflowExtent>) -> Result<()> {
        let mut extents = self.overflow_map.lock();
        let mut history = self.history.lock();
        for OverflowExtent { start, pages } in pages {
            let given = history.range(..=start).next_back().map(|(first, count)| (*first, *count));
            let Some((first, count)) = given else { continue };
            let (before, end) = (start - first, start + u64::from(pages));
            let Some(behind) = (first + u64::from(count)).checked_sub(end) else { continue };
            history.remove(&first);
            for (start, pages) in [(first, before), (end, behind)] {
                if let Ok(pages @ 1..) = u32::try_from(pages) {
                    history.insert(start, pages);
                }
            }
            extents.mark_free(OverflowExtent { start, pages })?;
        }
        Ok(())
    }

    /// Takes pages of a file, which grows as needed, and leaves one part in `of` of the reserve.
    fn allocate<F: GrowingFile>(
        &self,
        map: &mut F,
        file: &File,
        count: u32,
        of: u64,
    ) -> Result<Vec<F::Extent>> {
        let reserve = |Extension { offset, bytes, growth }| {
            if growth == Growth::Allowed {
                let (free, reserve) = self.free_and_reserve()?;
                check_free(free, reserve / of, bytes)?;
            }
            self.device.allocate(file, offset, bytes).map_err(Error::of_unnamed)
        };
        map.allocate_growing(count, reserve, Error::is_full)
    }

    /// Makes an image's file at least this long. It may use half of the reserve, which is for images, too.
    pub fn lengthen(&self, name: &str, bytes: u64) -> Result<()> {
        let file = self.device.open(name, OpenMode::Write)?;
        let len = self.device.len(&file)?;
        if len >= bytes {
            return Ok(());
        }
        let (free, reserve) = self.free_and_reserve()?;
        check_free(free, reserve / 2, bytes - len)?;
        self.device.allocate(&file, len, bytes - len).map_err(Error::of_unnamed)
    }

    /// Refuses `bytes` bytes of ordinary growth that the device has no room for.
    pub fn check_room(&self, bytes: u64) -> Result<()> {
        let (free, reserve) = self.free_and_reserve()?;
        check_free(free, reserve, bytes)
    }

    /// Refuses `log` bytes of new log that the device has no room for, the reserve included.
    pub fn check_room_for_log(&self, log: u64) -> Result<()> {
        check_free(self.free_and_reserve()?.0, 0, log)
    }

    /// Refuses a commit that puts and that the device has no room for beside the reserve. `log` is new log, `images`
    /// what the images lack, in bytes. Buffered changes become pages of at most twice as many bytes, for which free
    /// pages of the file are counted.
    pub fn check_room_for_commit(&self, log: u64, images: u64, demand: &SpaceDemand) -> Result<()> {
        let (free, reserve) = self.free_and_reserve()?;
        let all = log + images + 2 * demand.leaf + demand.overflow;
        if free >= reserve.saturating_add(all) {
            return Ok(());
        }
        if log > 0 {
            check_free(free, reserve, log)?;
        }
        if images > 0 {
            check_free(free, reserve / 2, log + images)?;
        }
        let leaf = self.leaf_map.lock().stats();
        let overflow = page_offset(self.overflow_map.lock().stats().free);
        // Free pages of the overflow file cannot become leaf pages.
        let left = overflow.saturating_sub(demand.overflow).min(reserve / 2);
        let pages = page_offset(u64::from(leaf.holes + leaf.fresh)) + overflow.min(demand.overflow);
        // Half of the reserve is for images.
        check_free(free + pages + left, reserve - images.min(reserve / 2), all)
    }

    /// Free bytes of the device, and how many of them ordinary growth leaves.
    fn free_and_reserve(&self) -> Result<(u64, u64)> {
        let (free, total) = self.device.free_space()?;
        if total == 0 {
            // A file system without a size (ramfs): its writes fail when it is full.
            return Ok((u64::MAX / 2, 0));
        }
        let least = (12 * self.log_segment).min(total / 4);
        let shared = self.device.shared_bytes(&OVERWRITTEN)?;
        Ok((free, RESERVE.min(total / 16).max(least) + shared))
    }

    /// Frees allocated leaf pages that nothing names.
    ///
    /// # Panics
    /// When one is not allocated.
    pub fn free_unnamed_leaves(&self, numbers: impl IntoIterator<Item = PageNo>) {
        let mut pages = self.leaf_map.lock();
        for number in numbers {
            pages.mark_free(number).expect("allocated by the same owner");
        }
    }

    /// Retires pages and extents that the location record that ends at `stamp` has replaced, until they are released.
    pub fn retire(&self, leaves: &[PageNo], extents: &[OverflowExtent], stamp: u64) -> Result<()> {
        self.leaf_map.lock().retire(leaves, stamp)?;
        Ok(self.overflow_map.lock().retire(extents, stamp)?)
    }

    /// True while leaf pages are retired and not free yet.
    pub fn has_retired_leaves(&self) -> bool {
        self.leaf_map.lock().stats().retired > 0
    }

    /// Frees leaf pages that were retired under this stamp and earlier ones.
    pub fn release_leaves(&self, stamp: u64) {
        self.leaf_map.lock().release(stamp);
    }

    /// Frees overflow extents that were retired under this stamp and earlier ones.
    pub fn release_extents(&self, stamp: u64) {
        self.overflow_map.lock().release(stamp);
    }

    /// Figures of the overflow file.
    pub fn overflow_stats(&self) -> OverflowSpaceStats {
        self.overflow_map.lock().stats()
    }

    /// The overflow map as of a log position, as a recovery needs it: extents that records up to there have replaced are
    /// free (no reader survives a crash), and so are extents that no record names yet. When the file is far too long, or the
    /// device short of room, the map loses its free end; the file itself follows with [`Self::shrink`].
    pub fn overflow_map_image(&self, up_to: u64, is_short: bool) -> Result<OverflowMapImage> {
        // Cloned under both locks: an extent is in the clone and tentative, or in neither.
        let (mut extents, tentative, history, peak) = {
            let mut extents = self.overflow_map.lock();
            let pages = extents.stats().pages;
            let peak = self.overflow_peak.fetch_max(pages, Ordering::Relaxed).max(pages);
            extents.shrink_tail(is_short);
            self.overflow_mapped.fetch_max(extents.stats().pages, Ordering::Relaxed);
            (extents.clone(), self.tentative.lock().clone(), self.history.lock().clone(), peak)
        };
        let history = history.into_iter().map(|(start, pages)| OverflowExtent { start, pages });
        for extent in tentative.into_iter().chain(history) {
            extents.mark_free(extent)?;
        }
        let mut bytes = Vec::new();
        extents.encode(up_to, &mut bytes);
        Ok(OverflowMapImage { bytes, peak })
    }

    /// The length in pages to which the leaf file should shrink, when it is far too long for its live pages.
    pub fn leaf_goal(&self) -> Option<PageNo> {
        self.leaf_map.lock().shrink_goal().map(PageNo::new)
    }

    /// Checkpoint `shrink-files`: cuts free ends off that neither of the two generations names (rule
    /// `shrink-behind-both`). The image that has just become durable names leaf pages below `leaf_end`; records since
    /// the image before it name overflow pages below `overflow_peak`.
    ///
    /// Nothing is lost when the device refuses: a file stays longer than necessary.
    pub fn shrink(&self, leaf_end: u32, overflow_peak: u64) {
        let before = self.image_leaf_end.swap(leaf_end, Ordering::Relaxed);
        let stays =
            |error| tracing::warn!(target: TARGET, %error, "a file stays longer than it has to be");
        let mut pages = self.leaf_map.lock();
        if let Some(goal) = pages.shrink_goal() {
            let named = before.max(leaf_end).next_multiple_of(self.geometry.segment_pages);
            let keep = goal.max(named).max(pages.used_end());
            if keep < pages.pages() {
                match self.cut(&self.leaf, page_offset(keep.into())) {
                    Ok(()) => pages.cut(keep),
                    Err(error) => stays(error),
                }
            }
        }
        drop(pages);
        // The map was cut when the image was cut: see `overflow_map_image`.
        let extents = self.overflow_map.lock();
        let keep = extents.stats().pages.max(overflow_peak);
        self.cut(&self.overflow, page_offset(keep)).unwrap_or_else(stays);
        // The next image's peak starts at the end of the map.
        self.overflow_peak.store(0, Ordering::Relaxed);
    }

    /// True when the overflow file is longer than two more checkpoints on a device without room would leave it.
    pub fn can_shorten_overflow(&self) -> bool {
        let goal = page_offset(self.overflow_map.lock().shrink_goal(true));
        self.device.len(&self.overflow).is_ok_and(|len| len > goal)
    }

    /// Shortens a file to `len` bytes, if it is longer.
    fn cut(&self, file: &File, len: u64) -> std::result::Result<(), IoError> {
        if self.device.len(file)? > len { self.device.set_len(file, len) } else { Ok(()) }
    }

    /// The present lengths of both files.
    pub fn file_lengths(&self) -> Result<FileLengths> {
        Ok(FileLengths {
            leaf: self.leaf_map.lock().pages(),
            overflow: self.overflow_map.lock().stats().pages,
            overflow_file: self.device.len(&self.overflow)?,
        })
    }

    /// Undoes the growth of a failed load: nothing names the leaf pages that it has taken, and its overflow extents are
    /// free already. Both files get their former lengths, as far as others have not grown them meanwhile.
    ///
    /// They keep their length once a record since then `is_durable`: a flush beside the load may have queued one that
    /// names pages behind those ends, though they are free by now (rule `shrink-behind-both`). Such pages are free only
    /// after a durable record, and `is_durable` is called under the lock under which they became free.
    pub fn roll_back_load(
        &self,
        before: FileLengths,
        taken: Vec<PageNo>,
        is_durable: impl Fn() -> bool,
    ) {
        let stays = |error| tracing::warn!(target: TARGET, %error, "room that a failed load has made stays reserved");
        self.free_unnamed_leaves(taken);
        let mut pages = self.leaf_map.lock();
        let keep = pages.used_end().max(before.leaf);
        if keep < pages.pages() && !is_durable() {
            match self.device.set_len(&self.leaf, page_offset(keep.into())) {
                Ok(()) => pages.cut(keep),
                Err(error) => stays(error),
            }
        }
        drop(pages);
        let mut extents: MutexGuard<'_, OverflowSpace> = self.overflow_map.lock();
        // An image made meanwhile, such as a close's, has a map of the file as it was then.
        if self.overflow_mapped.load(Ordering::Relaxed) > before.overflow || is_durable() {
            return;
        }
        let mut shorter = extents.clone();
        shorter.shrink_free_end(before.overflow);
        let keep = shorter.stats().pages;
        if keep < extents.stats().pages {
            let end = page_offset(keep).max(before.overflow_file);
            match self.cut(&self.overflow, end) {
                Ok(()) => *extents = shorter,
                Err(error) => stays(error),
            }
        }
    }

    /// An empty list for extents that are about to be written.
    pub fn tentative(&self) -> TentativeExtents<'_> {
        self.resume_tentative(Vec::new())
    }

    /// The list of extents that [`TentativeExtents::into_extents`] returned.
    pub fn resume_tentative(&self, own: Vec<OverflowExtent>) -> TentativeExtents<'_> {
        TentativeExtents { space: self, own }
    }
}

/// Written extents that no record names yet. They are free in a checkpoint's map, and are freed when this is dropped.
pub struct TentativeExtents<'a> {
    space: &'a PageSpace,
    own: Vec<OverflowExtent>,
}

impl TentativeExtents<'_> {
    /// Leaves the extents tentative, in the caller's care.
    pub fn into_extents(mut self) -> Vec<OverflowExtent> {
        std::mem::take(&mut self.own)
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Pages of the overflow file in the extents.
    pub fn pages(&self) -> u64 {
        self.own.iter().map(|extent| u64::from(extent.pages)).sum()
    }

    /// A record that names the extents has been queued; called under the sequencer's lock.
    pub fn mark_named(mut self) {
        let own = std::mem::take(&mut self.own);
        self.space.tentative.lock().retain(|extent| !own.contains(extent));
    }
}

impl Drop for TentativeExtents<'_> {
    fn drop(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let mut extents = self.space.overflow_map.lock();
        self.space.tentative.lock().retain(|extent| !self.own.contains(extent));
        for extent in &self.own {
            extents.mark_free(*extent).expect("allocated by the same owner");
        }
    }
}

fn check_free(free: u64, reserve: u64, wanted: u64) -> Result<()> {
    if free >= reserve.saturating_add(wanted) {
        return Ok(());
    }
    Err(Error::Reserve { free, reserve, wanted })
}
