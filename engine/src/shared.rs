//! What all handles of an open database share.
//!
//! Order of locks: `structure`, the sequencer's state, a region, then `ripe`, `space`, `extents` and
//! `tentative`, each for a moment. Several regions are held by the flush alone, in key order. Who
//! holds a region waits for no other region, not for the sequencer, and not for the device.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pleach_beatree::cache::{Buffers, Cache, CachedPage};
use pleach_beatree::grace::Grace;
use pleach_beatree::space::{Extents, Space};
use pleach_beatree::{PageNo, Region, RegionIndex, RegionState};
use pleach_core::page::leaf::LeafView;
use pleach_core::page::overflow::Run;
use pleach_core::page::{FileKind, Identity};
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::{Device, PageBuf, Runtime};

use crate::ahead::Arrivals;
use crate::answers::Answers;
use crate::error::{Error, Result, hex};
use crate::examine::Opening;
use crate::finish::Workers;
use crate::foreground::Foreground;
use crate::handles::Handles;
use crate::metrics::Counters;
use crate::node_cache::NodeCache;
use crate::options::Options;
use crate::overlays::Overlays;
use crate::prefetch::Prefetches;
use crate::quarantine::{Quarantine, Stuck};
use crate::sequencer::Sequencer;
use crate::superblock::SuperblockStore;
use crate::touches::SpareSorter;
use crate::undo::Undo;
use crate::watchdog::Beats;
use crate::witness::Spare;

/// The newest published commit.
#[derive(Clone, Debug)]
pub(crate) struct Tip {
    pub(crate) number: u64,
    pub(crate) root: Node,
    pub(crate) blob: Arc<[u8]>,
}

/// Open files, beside the log.
pub(crate) struct Files<D: Device> {
    pub(crate) leaf: D::File,
    pub(crate) overflow: D::File,
}

/// Name of the file of leaf pages.
pub(crate) const LEAF_FILE: &str = "leaf";
/// Name of the file of overflow pages.
pub(crate) const OVERFLOW_FILE: &str = "overflow";

/// The state of an open database.
pub(crate) struct Shared<H: Hasher, D: Device, R: Runtime> {
    pub(crate) device: D,
    pub(crate) runtime: R,
    pub(crate) options: Options,
    pub(crate) database: u64,
    pub(crate) incarnation: u32,
    pub(crate) files: Files<D>,
    pub(crate) top: ArcSwap<RegionIndex>,
    pub(crate) cache: Cache,
    pub(crate) buffers: Buffers,
    pub(crate) node_cache: NodeCache<D>,
    pub(crate) grace: Grace,
    pub(crate) space: Mutex<Space>,
    pub(crate) extents: Mutex<Extents>,
    pub(crate) sequencer: Sequencer<D>,
    pub(crate) workers: Workers<H, D>,
    /// Memory for the next sort.
    pub(crate) sorter: SpareSorter,
    /// Memory for the next witness.
    pub(crate) witnesses: Arc<Spare>,
    pub(crate) undo: Arc<Undo>,
    pub(crate) overlays: Arc<Overlays>,
    /// Counts of the sessions, blocks and overlays that live.
    pub(crate) handles: Arc<Handles>,
    pub(crate) tip: Mutex<Tip>,
    pub(crate) published: AtomicU64,
    /// Prefixes of pages that have been touched often enough to be rewritten.
    pub(crate) ripe: Mutex<VecDeque<Prefix>>,
    /// Wakes the background tasks.
    pub(crate) work: R::Event,
    /// Tells waiters that background work or a commit has come further.
    pub(crate) progress: R::Event,
    pub(crate) answers: Answers,
    pub(crate) prefetches: Prefetches<R::Event>,
    pub(crate) arrivals: Arrivals<R::Event>,
    pub(crate) foreground: Foreground,
    /// Overflow runs that are written and not yet named by a record. Locked after `extents`.
    pub(crate) tentative: Mutex<Vec<Run>>,
    /// Held by a flush while it changes cuts, and by a commit that was overtaken too often.
    pub(crate) structure: Mutex<()>,
    pub(crate) superblocks: Mutex<SuperblockStore<D>>,
    /// Where a replay of the newest image starts.
    pub(crate) replay_start: AtomicU64,
    /// How the open found the database.
    pub(crate) opening: Opening,
    /// Counter of flush numbers.
    pub(crate) flushes: AtomicU64,
    pub(crate) closing: AtomicBool,
    pub(crate) paused: AtomicBool,
    /// Callers that want pages flushed however often they were touched.
    pub(crate) draining: AtomicU64,
    /// The last flush found no room.
    pub(crate) full: AtomicBool,
    /// The last checkpoint found no room.
    pub(crate) checkpoint_full: AtomicBool,
    pub(crate) counters: Counters,
    pub(crate) batch: AtomicU64,
    pub(crate) beats: Beats<R::Event>,
    pub(crate) quarantine: Quarantine,
    pub(crate) stuck: Stuck,
    /// Keeps other processes out while any handle lives.
    pub(crate) _lock: Box<dyn Send + Sync>,
    pub(crate) hasher: PhantomData<H>,
}

/// How often a region can be found retired before the one in its place is found.
///
/// A region is retired under its write lock, which is held until the index without it is published. So
/// who finds it retired finds another one the next time, and that one was retired in turn only if
/// another flush was published in between. Each replaced the one before by a deeper one; a prefix has
/// 255 bits at most, and a load replaces the only region once. However slow a reader is, it comes
/// to an end; a region that is retired in the index is a defect of this program, and waiting for
/// another would be for ever.
const REPLACED: usize = 258;

/// Numbers of flushes and images that are kept for the checkpoint of a close.
pub(crate) const LAST_NUMBERS: u64 = 16;

/// The counter's next number, which is at most `last`.
fn next_number(counter: &AtomicU64, last: u64) -> Result<u64> {
    let next = |number| (number <= last).then_some(number + 1);
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        .map_err(|_| Error::FlushNumbers)
}

/// Where a key's page is, as far as the index knows.
pub(crate) struct Located {
    pub(crate) place: PageNo,
    pub(crate) tag: u32,
}

/// Held over work that must not be left half done: a panic in it (in a user's hasher, in an
/// assertion) poisons the database, so that nobody waits for what will not come.
pub(crate) struct PoisonOnPanic<'a, H: Hasher, D: Device, R: Runtime>(
    pub(crate) &'a Shared<H, D, R>,
);

impl<H: Hasher, D: Device, R: Runtime> Drop for PoisonOnPanic<'_, H, D, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.sequencer.poison("a panic");
            pleach_io::Event::notify(&self.0.progress);
        }
    }
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// Identity that the leaf page at a place must have.
    pub(crate) fn leaf_identity(&self, place: PageNo) -> Identity {
        Identity { kind: FileKind::Leaf, page_no: u64::from(place), db_id: self.database }
    }

    /// The page at a place: from the cache, else read on the calling thread.
    pub(crate) fn leaf(&self, at: &Located) -> Result<Arc<CachedPage>> {
        if let Some(page) = self.cache.get(at.place, at.tag) {
            Counters::add(&self.counters.cache_hits, 1);
            return Ok(page);
        }
        if self.wait_for_flying(at.place)
            && let Some(page) = self.cache.get(at.place, at.tag)
        {
            return Ok(page);
        }
        Counters::add(&self.counters.cache_misses, 1);
        let mut buf = self.buffers.take();
        self.device.read_at(&self.files.leaf, &mut buf, at.place.offset())?;
        self.admit(at, buf)
    }

    /// Reads a page where it lies in the cache, if it is there, to look for a key.
    #[inline]
    pub(crate) fn read_cached<T>(
        &self,
        at: &Located,
        key: &Key,
        read: impl FnOnce(&CachedPage) -> T,
    ) -> Option<T> {
        let batch = self.batch.load(Ordering::Relaxed);
        let found = self.cache.read(at.place, at.tag, batch, key, read);
        if found.is_some() {
            Counters::add(&self.counters.cache_hits, 1);
        }
        found
    }

    /// Checks a page that was read and puts it into the cache. A page that contradicts the index is
    /// refused: the next commit on it would fold what it has into the root.
    pub(crate) fn admit(&self, at: &Located, buf: PageBuf) -> Result<Arc<CachedPage>> {
        self.check_leaf(at, &buf)?;
        self.refuse_contradicting(at.place)?;
        let page =
            self.cache.insert(at.place, at.tag, buf.page(0), self.batch.load(Ordering::Relaxed));
        self.buffers.give(buf);
        // The flush says so first and empties the cache then: one of both sees the other.
        self.refuse_contradicting(at.place).inspect_err(|_| self.cache.remove(at.place))?;
        self.read_well(LEAF_FILE, u64::from(at.place));
        Ok(page)
    }

    /// The same for the flush, which looks for itself whether a page contradicts the index. Such a page
    /// is the flush's alone until then.
    pub(crate) fn admit_for_flush(&self, at: &Located, buf: PageBuf) -> Result<Arc<CachedPage>> {
        if self.refuse_contradicting(at.place).is_ok() {
            return self.admit(at, buf);
        }
        self.check_leaf(at, &buf)?;
        let page = Cache::outside(buf.page(0));
        self.buffers.give(buf);
        Ok(page)
    }

    fn refuse_contradicting(&self, place: PageNo) -> Result<()> {
        self.quarantine.contradicting(LEAF_FILE, u64::from(place)).map_or(Ok(()), Err)
    }

    fn check_leaf(&self, at: &Located, buf: &PageBuf) -> Result<()> {
        let page = u64::from(at.place);
        LeafView::parse(buf.page(0), &self.leaf_identity(at.place))
            .map_err(|error| Error::Page { file: LEAF_FILE, page, error })?;
        let found = pleach_core::page::header::tag(buf.page(0));
        if found != at.tag {
            return Err(Error::StalePage { file: LEAF_FILE, page, expected: at.tag, found });
        }
        Ok(())
    }

    /// The batch that makes this commit begins: pages that it reads stay until the next one.
    pub(crate) fn begin_batch(&self, commit: u64) {
        self.batch.store(commit, Ordering::Relaxed);
        self.cache.set_batch(commit);
    }

    /// The region that covers a key; the closure sees it with its state locked. A region that
    /// was replaced in between is looked up again.
    ///
    /// # Panics
    /// When regions of the index are retired, which nobody does: see [`REPLACED`].
    pub(crate) fn in_region<T>(
        &self,
        key: &Key,
        mut read: impl FnMut(&Arc<Region>, &RegionState) -> T,
    ) -> T {
        for _ in 0..REPLACED {
            let top = self.top.load();
            let region = top.region(key);
            let state = region.read();
            if !state.is_retired() {
                return read(region, &state);
            }
        }
        panic!("the region over {} was retired and not replaced", hex(key));
    }

    /// A number for the next flush or image, (incarnation, counter): never used before, and never
    /// another incarnation's. The last `kept` numbers of this open are left to others.
    pub(crate) fn flush_number(&self, kept: u64) -> Result<u64> {
        let counter = next_number(&self.flushes, u64::from(u32::MAX) - kept)?;
        Ok(u64::from(self.incarnation) << 32 | counter)
    }

    /// A failed write or sync: refuses all further writes.
    pub(crate) fn poison(&self, error: &Error) {
        self.sequencer.poison(&error.to_string());
        pleach_io::Event::notify(&self.progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_numbers_end_and_never_run_into_the_incarnation() {
        let last = u64::from(u32::MAX);
        let counter = AtomicU64::new(last - LAST_NUMBERS);
        assert_eq!(
            next_number(&counter, last - LAST_NUMBERS).expect("the last"),
            last - LAST_NUMBERS
        );
        for _ in 0..3 {
            assert!(matches!(next_number(&counter, last - LAST_NUMBERS), Err(Error::FlushNumbers)));
        }
        // A close has some left, and they end, too.
        for number in last - LAST_NUMBERS + 1..=last {
            assert_eq!(next_number(&counter, last).expect("kept"), number);
        }
        assert!(matches!(next_number(&counter, last), Err(Error::FlushNumbers)));
        assert_eq!(counter.load(Ordering::Relaxed), last + 1);
    }
}
