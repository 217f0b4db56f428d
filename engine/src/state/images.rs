//! The checkpoints of an open database: superblocks, where a replay starts, and the numbers of flushes
//! and images.
//!
//! Invariants: a number of this open is given out once, and never another open's; the replay start is
//! that of the newest superblock that is durable. The checkpoint alone writes superblocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::format::position::LogPos;
use crate::format::superblock::Superblock;
use crate::format::superblock_store::SuperblockStore;

/// Numbers of flushes and images that are kept for the checkpoint of a close.
pub(crate) const LAST_NUMBERS: u64 = 16;

/// The checkpoints.
pub(crate) struct Images {
    /// Held by a load or a close while it makes images on its own thread.
    maker: Mutex<()>,
    superblocks: Mutex<SuperblockStore>,
    /// Where a replay of the newest image starts.
    replay_start: AtomicU64,
    /// The writable open that this is.
    incarnation: u32,
    /// Counter of flush numbers.
    numbers: AtomicU64,
    /// Is an image in the making?
    making: Arc<AtomicBool>,
}

/// While this lives an image is in the making.
#[derive(Debug)]
pub(crate) struct Making(Arc<AtomicBool>);

impl Drop for Making {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Images {
    pub(crate) fn new(superblocks: SuperblockStore, incarnation: u32) -> Self {
        let replay = superblocks.newest().replay.position;
        Self {
            maker: Mutex::new(()),
            superblocks: Mutex::new(superblocks),
            replay_start: AtomicU64::new(replay.get()),
            incarnation,
            numbers: AtomicU64::new(1),
            making: Arc::default(),
        }
    }

    /// The right to make images beside the task, which begins none during a load and has ended in a close: one
    /// at a time.
    pub(crate) fn make_alone(&self) -> MutexGuard<'_, ()> {
        self.maker.lock()
    }

    /// The newest superblock.
    pub(crate) fn newest(&self) -> Superblock {
        *self.superblocks.lock().newest()
    }

    /// The writable open that this is.
    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Writes the next superblock, which `next` makes of the newest, and syncs it. Gives the positions
    /// from which on the superblock before it, and this one, want the log (rules `log-for-both`,
    /// `log-for-history`).
    pub(crate) fn write(
        &self,
        next: impl FnOnce(&Superblock) -> Superblock,
    ) -> Result<(LogPos, LogPos)> {
        let mut store = self.superblocks.lock();
        let before = *store.newest();
        let next = next(&before);
        store.write(&next)?;
        Ok((before.log_from(), next.log_from()))
    }

    /// An image begins, unless another one is in the making: that of a backup, or of a checkpoint. The caller is at its cut,
    /// under the sequencer's lock.
    pub(crate) fn begins(&self) -> Option<Making> {
        let was = self.making.swap(true, Ordering::AcqRel);
        (!was).then(|| Making(Arc::clone(&self.making)))
    }

    /// Is an image in the making? Under the sequencer's lock none begins meanwhile.
    pub(crate) fn is_in_making(&self) -> bool {
        self.making.load(Ordering::Acquire)
    }

    /// Where a replay of the newest image starts.
    pub(crate) fn replay_start(&self) -> LogPos {
        self.replay_start.load(Ordering::Acquire).into()
    }

    /// A replay starts here from now on.
    pub(crate) fn set_replay_start(&self, position: LogPos) {
        self.replay_start.store(position.get(), Ordering::Release);
    }

    /// A number for the next flush or image, (incarnation, counter): never used before, and never
    /// another incarnation's. The last `kept` numbers of this open are left to others.
    pub(crate) fn next_number(&self, kept: u64) -> Result<u64> {
        let counter = next_number(&self.numbers, u64::from(u32::MAX) - kept)?;
        Ok(u64::from(self.incarnation) << 32 | counter)
    }

    /// The counter in the next number.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.load(Ordering::Relaxed)
    }
}

/// The counter's next number, which is at most `last`.
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
