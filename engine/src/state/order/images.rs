//! The checkpoints of an open database: superblocks, the replay start, and the numbers of flushes and images.
//!
//! Invariants: each number is given out once, and never in two opens; the replay start is that of the newest durable
//! superblock. Only a checkpoint writes superblocks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use pleach_beatree::pages::PageSpace;
use pleach_io::{Disk, OpenMode};
use pleach_journal::format::names::{IMAGES, image_name};
use pleach_journal::format::position::{BLOCK, LogPos};
use pleach_journal::format::superblock::{ImageRef, Superblock};
use pleach_journal::format::superblock_store::SuperblockStore;

use crate::error::{Error, Result};
use pleach_history::DiskRun;

/// Pages that an image may grow by, beside a quarter, without new room being reserved.
const IMAGE_SLACK: u64 = 32;

/// Bytes of the file of an image of `pages` pages, with room for the next one.
pub(crate) fn image_file_bytes(pages: u64) -> u64 {
    (pages + pages / 4 + IMAGE_SLACK) * 4096
}

/// Numbers of flushes and images that are kept for the checkpoint of a close.
pub(crate) const NUMBERS_FOR_CLOSE: u64 = 16;

/// Superblocks, the kept log, and numbers of flushes and images.
pub(crate) struct Images {
    /// Held by a load or a close while it makes images on its own thread.
    maker: Mutex<()>,
    superblocks: Mutex<SuperblockStore>,
    /// Where a replay of the newest image starts.
    replay_start: AtomicU64,
    /// The incarnation of this open.
    pub(crate) incarnation: u32,
    /// Counter of flush numbers.
    numbers: AtomicU64,
    /// True while an image is in the making.
    in_progress: Arc<AtomicBool>,
    /// Runs of the history that the newest image names: their pages stay in use.
    named: Mutex<Vec<Arc<DiskRun>>>,
    /// Where the kept log begins, and where replays of images since then began, in order.
    cuts: Mutex<VecDeque<LogPos>>,
    /// Both image files have room for an image of this many pages, and a quarter more; 0 when that is not known.
    room: AtomicU64,
}

/// Ends the making of an image when dropped.
#[derive(Debug)]
pub(crate) struct ImageGuard(Arc<AtomicBool>);

impl Drop for ImageGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Images {
    pub(crate) fn new(store: SuperblockStore, incarnation: u32, named: Vec<Arc<DiskRun>>) -> Self {
        let replay = store.newest().replay.position;
        let cuts = VecDeque::from([store.newest().log_from, replay.align_up(BLOCK)]);
        Self {
            maker: Mutex::new(()),
            superblocks: Mutex::new(store),
            replay_start: AtomicU64::new(replay.get()),
            incarnation,
            numbers: AtomicU64::new(1),
            in_progress: Arc::default(),
            named: Mutex::new(named),
            cuts: Mutex::new(cuts),
            room: AtomicU64::new(0),
        }
    }

    /// Checkpoint `shrink-files`, for an image that was just written: cuts its file if that was made
    /// for a far larger image, and keeps room for the next one ([`Self::reserve_image_room`]).
    pub(crate) fn fit_image_file(&self, space: &PageSpace, device: &Disk, image: &ImageRef) {
        let needed = image_file_bytes(image.pages.into());
        let fit = || {
            let file = device.open(image_name(image.file), OpenMode::Write)?;
            if device.len(&file)? > 2 * needed { device.set_len(&file, needed) } else { Ok(()) }
        };
        if let Err(error) = fit() {
            tracing::warn!(%error, "an image's file stays longer than it has to be");
        }
        self.room.store(0, Ordering::Release);
        self.reserve_image_room(space, image.pages.into());
    }

    /// Keeps room for an image of `pages` pages, and a quarter more, in both files, as far as the device has room: only
    /// a checkpoint frees the log on a full device, and a close makes one. Called only where images are made.
    pub(crate) fn reserve_image_room(&self, space: &PageSpace, pages: u64) {
        let room = self.room.load(Ordering::Acquire);
        if pages <= room + room / 4 {
            return;
        }
        let lengthen = |name| space.lengthen(name, image_file_bytes(pages));
        match IMAGES.into_iter().try_for_each(lengthen) {
            Ok(()) => {}
            Err(error) if error.is_full() => return,
            // No write and no sync has failed: nothing is lost but the room.
            Err(error) => tracing::warn!(%error, "no room was kept for the next image"),
        }
        self.room.store(pages, Ordering::Release);
    }

    /// Bytes that both files lack for an image of `pages` pages.
    pub(crate) fn missing_image_bytes(&self, pages: u64) -> u64 {
        let room = self.room.load(Ordering::Acquire);
        let more = image_file_bytes(pages).saturating_sub(image_file_bytes(room));
        // 0: the files were not measured yet.
        if room == 0 { 0 } else { 2 * more }
    }

    /// The right to make images outside the checkpoint task, for one caller at a time. The task begins none during a
    /// load, and has ended in a close.
    pub(crate) fn lock_maker(&self) -> MutexGuard<'_, ()> {
        self.maker.lock()
    }

    /// The newest superblock.
    pub(crate) fn newest(&self) -> Superblock {
        *self.superblocks.lock().newest()
    }

    /// Writes the next superblock, which `next` makes of the newest, and syncs it. Returns the positions from which on
    /// the superblock before it, and this one, need the log (rules `log-for-both`, `log-for-history`).
    pub(crate) fn write(
        &self,
        next: impl FnOnce(&Superblock) -> Superblock,
    ) -> Result<(LogPos, LogPos)> {
        let mut store = self.superblocks.lock();
        let before = *store.newest();
        let next = next(&before);
        store.write(&next)?;
        Ok((before.log_from, next.log_from))
    }

    /// Sets the runs of the history that the newest durable image names, in place of those of the image before.
    pub(crate) fn set_named_runs(&self, runs: Vec<Arc<DiskRun>>) {
        *self.named.lock() = runs;
    }

    /// Where the kept log begins once an image's replay starts at `cut` and about `bytes` bytes before it are kept.
    pub(crate) fn advance_kept_log(&self, cut: LogPos, bytes: u64) -> LogPos {
        let mut cuts = self.cuts.lock();
        // The record after the cut begins there: the block before was sealed.
        cuts.push_back(cut.align_up(BLOCK));
        while cuts.len() > 1 && cut.saturating_since(cuts[0]) > bytes {
            cuts.pop_front();
        }
        cuts[0].min(cut)
    }

    /// Begins an image, unless another one is in the making, of a backup or of a checkpoint. The caller is at its cut,
    /// under the sequencer's lock.
    pub(crate) fn try_begin_image(&self) -> Option<ImageGuard> {
        let was = self.in_progress.swap(true, Ordering::AcqRel);
        (!was).then(|| ImageGuard(Arc::clone(&self.in_progress)))
    }

    /// True while an image is in the making. Under the sequencer's lock none begins meanwhile.
    pub(crate) fn is_image_in_progress(&self) -> bool {
        self.in_progress.load(Ordering::Acquire)
    }

    /// Where the log begins that the two images need.
    pub(crate) fn log_from(&self) -> LogPos {
        let store = self.superblocks.lock();
        let older = store.other().as_ref().unwrap_or(store.newest()).log_from;
        older.min(store.newest().log_from)
    }

    /// Where a replay of the newest image starts.
    pub(crate) fn replay_start(&self) -> LogPos {
        self.replay_start.load(Ordering::Acquire).into()
    }

    /// Sets where a replay starts from now on.
    pub(crate) fn set_replay_start(&self, position: LogPos) {
        self.replay_start.store(position.get(), Ordering::Release);
    }

    /// A number for the next flush or image, (incarnation, counter), which no other flush or image has, in any
    /// incarnation. The last `kept` numbers of this open are not given out.
    pub(crate) fn next_number(&self, kept: u64) -> Result<u64> {
        let counter = next_number(&self.numbers, u64::from(u32::MAX) - kept)?;
        Ok(u64::from(self.incarnation) << 32 | counter)
    }

    /// The counter of the next number.
    pub(crate) fn next_counter(&self) -> u64 {
        self.numbers.load(Ordering::Relaxed)
    }
}

/// The counter's next number, at most `last`.
fn next_number(counter: &AtomicU64, last: u64) -> Result<u64> {
    let next = |number| (number <= last).then_some(number + 1);
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        .map_err(|_| Error::FlushNumbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_numbers_end_and_never_run_into_the_incarnation() {
        let last = u64::from(u32::MAX);
        let counter = AtomicU64::new(last - NUMBERS_FOR_CLOSE);
        assert_eq!(
            next_number(&counter, last - NUMBERS_FOR_CLOSE).expect("the last"),
            last - NUMBERS_FOR_CLOSE
        );
        for _ in 0..3 {
            assert!(matches!(
                next_number(&counter, last - NUMBERS_FOR_CLOSE),
                Err(Error::FlushNumbers)
            ));
        }
        // Numbers are left for a close, and they end, too.
        for number in last - NUMBERS_FOR_CLOSE + 1..=last {
            assert_eq!(next_number(&counter, last).expect("kept"), number);
        }
        assert!(matches!(next_number(&counter, last), Err(Error::FlushNumbers)));
        assert_eq!(counter.load(Ordering::Relaxed), last + 1);
    }
}
