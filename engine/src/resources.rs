//! Places, room and memory: what commits and flushes take before they go ahead.

use std::sync::atomic::Ordering;

use pleach_beatree::PageNo;
use pleach_beatree::space::{self, Extension, GrowingFile, Growth};
use pleach_core::page::overflow::Run;
use pleach_core::{Hasher, Key, Prefix};
use pleach_io::{Device, Event, IoError, Runtime};

use crate::error::{Error, Result};
use crate::metrics::Counters;
use crate::overflow::Tentative;
use crate::sequencer::full_or;
use crate::shared::Shared;

/// The reserve that ordinary growth leaves free is at most this.
const RESERVE: u64 = 64 << 20;

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// Places for `count` leaf pages, in address order; grows the file by whole segments, which
    /// are reserved before anything is written.
    pub(crate) fn allocate_leaves(&self, count: usize) -> Result<Vec<PageNo>> {
        let count = u32::try_from(count).expect("a round has fewer than 2^32 pages");
        let runs = self.allocate_in(&mut *self.space.lock(), &self.files.leaf, count)?;
        Ok(runs.iter().flat_map(space::PageRun::pages).collect())
    }

    /// Runs for `pages` pages of the overflow file, tentative until a record names them.
    pub(crate) fn allocate_overflow(
        &self,
        pages: usize,
        tentative: &mut Tentative<'_>,
    ) -> Result<Vec<Run>> {
        let count = u32::try_from(pages).expect("values are limited");
        let mut extents = self.extents.lock();
        let runs = self.allocate_in(&mut *extents, &self.files.overflow, count)?;
        // Before the lock goes: an image that is written then leaves them out.
        tentative.add(&runs);
        Ok(runs)
    }

    /// Pages of a file, which grows as far as it has to.
    fn allocate_in<F: GrowingFile>(
        &self,
        space: &mut F,
        file: &D::File,
        count: u32,
    ) -> Result<Vec<F::Run>> {
        let reserve = |Extension { offset, bytes, growth }| {
            self.reserve(growth == Growth::Allowed, bytes)?;
            self.device.allocate(file, offset, bytes).map_err(full)
        };
        space.allocate_growing(count, reserve, |error| matches!(error, Error::Full(_)))
    }

    /// Makes the log's next segment, which goes beyond this position, before a commit has to: that
    /// takes as long as several commits.
    pub(crate) fn prepare_log(&self, through: u64) -> Result<()> {
        let segments = self.sequencer.segments();
        self.reserve(true, segments.size())?;
        segments.ensure(through).map_err(full_or)
    }

    /// Ordinary growth of a file; a failure leaves it as it was.
    pub(crate) fn reserve_file(&self, file: &D::File, from: u64, bytes: u64) -> Result<()> {
        self.reserve(true, bytes)?;
        self.device.allocate(file, from, bytes).map_err(full)
    }

    /// Ordinary growth leaves a reserve, so that deletes, flushes and checkpoints can finish on a
    /// full device.
    fn reserve(&self, ordinary: bool, bytes: u64) -> Result<()> {
        if !ordinary {
            return Ok(());
        }
        let (free, total) = self.device.free_space()?;
        if total == 0 {
            // A file system without a size (ramfs): it says no by itself.
            return Ok(());
        }
        let reserve = RESERVE.min(total / 16);
        if free < bytes + reserve {
            return Err(Error::Full(format!(
                "{free} bytes are free, {reserve} of them are kept in reserve"
            )));
        }
        Ok(())
    }

    /// The leaf cache gets what the index leaves of its share, as large as that is by now.
    pub(crate) fn fit_cache(&self) {
        self.cache.set_budget(self.options.leaf_cache_bytes(self.top.load().bytes()));
    }

    /// Bytes that the delta may take.
    pub(crate) fn delta_limit(&self) -> u64 {
        self.options.cache_bytes / 4
    }

    /// Is the delta so large that pages are read again only to be written?
    pub(crate) fn is_pressed(&self) -> bool {
        self.counters.pending_bytes.load(Ordering::Relaxed) > self.delta_limit() / 8 * 7
    }

    /// When pages are rewritten now. The fuller the delta, the sooner: a page that a commit has just
    /// changed is in memory, one chosen later has to be read again.
    pub(crate) fn ripeness(&self) -> Ripeness {
        let pending = self.counters.pending_bytes.load(Ordering::Relaxed);
        Ripeness::new(self.options.flush_at, pending, self.delta_limit())
    }

    /// Bytes of log that a replay would read.
    pub(crate) fn log_length(&self) -> u64 {
        self.sequencer.lock().end().saturating_sub(self.replay_start.load(Ordering::Acquire))
    }

    /// Is a checkpoint due?
    pub(crate) fn log_is_long(&self) -> bool {
        self.log_length() > self.options.log_limit
    }

    /// Step 1 of a commit: waits while delta or log are full. Near the limits it waits a little,
    /// at the limits until the background has made room.
    pub(crate) fn throttle(&self) -> Result<()> {
        let delta_is_full =
            || self.counters.pending_bytes.load(Ordering::Relaxed) > self.delta_limit();
        let log_is_full = || self.log_length() > 2 * self.options.log_limit;
        if !delta_is_full() && !log_is_full() {
            return Ok(());
        }
        let since = self.runtime.now();
        let mut outcome = Ok(());
        self.work.notify();
        self.runtime.wait(&self.progress, None, &mut || {
            outcome = self.sequencer.lock().check_open();
            if outcome.is_ok() && delta_is_full() && self.full.load(Ordering::Acquire) {
                outcome = Err(Error::Full("pending changes cannot be written to pages".to_owned()));
            }
            if outcome.is_ok()
                && delta_is_full()
                && let Some(error) = self.stuck.flush_error(self.published.load(Ordering::Acquire))
            {
                outcome = Err(error);
            }
            if outcome.is_ok()
                && log_is_full()
                && let Some(error) = self.stuck.checkpoint_error()
            {
                outcome = Err(error);
            }
            if outcome.is_ok() && log_is_full() && self.checkpoint_full.load(Ordering::Acquire) {
                outcome = Err(Error::Full("a checkpoint cannot be written".to_owned()));
            }
            if outcome.is_ok() && self.paused.load(Ordering::Acquire) {
                // Held back by the caller: waiting would be for ever.
                return true;
            }
            outcome.is_err() || !(delta_is_full() || log_is_full())
        });
        let waited = self.runtime.now().saturating_sub(since);
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        Counters::add(&self.counters.stalled_micros, waited);
        outcome
    }

    /// Prefixes of up to `count` pages that have pending changes, those with the most first. Pages
    /// that are set aside are left out.
    pub(crate) fn fullest(&self, count: usize) -> Vec<Prefix> {
        let mut pages: Vec<(usize, Prefix)> = Vec::new();
        let mut key: Option<Key> = Some([0; 32]);
        while let Some(at) = key {
            key = self.in_region(&at, |region, state| {
                let behind = region.prefix().next().map(|next| *next.first_key());
                if self.nodes_are_aside(state) {
                    return behind;
                }
                let mut from = 0;
                while from < state.pending().len() {
                    let child = state.children().find(&state.pending()[from].key);
                    let prefix = state.children().prefix(child);
                    let end = state.pending_range(&prefix).end;
                    if !self.page_is_aside(state, child) {
                        pages.push((end - from, prefix));
                    }
                    from = end;
                }
                behind
            });
        }
        if pages.len() > count {
            pages.select_nth_unstable_by(count, |a, b| b.0.cmp(&a.0));
            pages.truncate(count);
        }
        pages.into_iter().map(|(_, prefix)| prefix).collect()
    }
}

/// How often pages are touched before they are rewritten.
///
/// Between a quarter and three quarters of the delta's limit this falls smoothly from the option to
/// one touch, as a fraction: each page has its own share of it, so that what is written follows what
/// comes in instead of swinging around a threshold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ripeness {
    /// In 256ths of a touch.
    touches: u32,
}

impl Ripeness {
    fn new(flush_at: u8, pending: u64, limit: u64) -> Self {
        let most = u32::from(flush_at) * 256;
        let half = (limit / 2).max(1);
        let over = pending.saturating_sub(limit / 4).min(half);
        // At most `most - 256`.
        let sooner = u64::from(most - 256) * over / half;
        Self { touches: most - u32::try_from(sooner).unwrap_or(most - 256) }
    }

    /// Is a page ripe that so many commits have changed?
    #[inline]
    pub(crate) fn is_ripe(self, prefix: &Prefix, touches: u8) -> bool {
        let lead = u64::from_be_bytes(*prefix.first_key().first_chunk().expect("32 bytes"));
        // Not the bits by which pages are spread, which neighbours share.
        let share = lead.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        u32::from(touches) * 256 + u32::try_from(share).unwrap_or(0) >= self.touches
    }

    /// Touches that no ripe page has fewer of.
    pub(crate) fn least(self) -> u8 {
        u8::try_from(self.touches / 256).unwrap_or(u8::MAX)
    }
}

/// Having no room is not a failure of the device.
pub(crate) fn full(error: IoError) -> Error {
    if error.is_full() { Error::Full(error.to_string()) } else { error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 1,000 pages with so many touches, how many are ripe?
    fn ripe(ripeness: Ripeness, touches: u8) -> usize {
        let page = |index: u16| {
            let [high, low] = (index * 64).to_be_bytes();
            let mut key = [0; 32];
            (key[0], key[1]) = (high, low);
            Prefix::new(&key, 10)
        };
        (0..1000).filter(|index| ripeness.is_ripe(&page(*index), touches)).count()
    }

    #[test]
    fn pages_ripen_sooner_as_the_delta_fills_and_never_all_at_once() {
        const LIMIT: u64 = 1 << 20;
        let at = |percent: u64| Ripeness::new(4, LIMIT * percent / 100, LIMIT);
        assert_eq!((ripe(at(0), 3), ripe(at(25), 3), ripe(at(25), 4)), (0, 0, 1000));
        assert_eq!((ripe(at(75), 1), ripe(at(100), 1)), (1000, 1000));
        let mut before = 0;
        for percent in 25..75 {
            let ripeness = at(percent);
            // A page of each number of touches: the sum is what a batch would write.
            let now: usize = (1..=4).map(|touches| ripe(ripeness, touches)).sum();
            assert!(now >= before && now < before + 1250, "{percent} %: {before} to {now}");
            assert!((1..ripeness.least()).all(|touches| ripe(ripeness, touches) == 0));
            before = now;
        }
        let once = Ripeness::new(1, 0, LIMIT);
        assert_eq!(ripe(once, 1), 1000);
    }
}
