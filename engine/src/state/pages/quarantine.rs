//! Pages that are set aside: the background could not use them, and goes on without them.
//!
//! What pends on such a page stays pending: in memory, in the log, and in every image,
//! so that nothing is lost and the log can be shortened. Whoever needs the page gets its error. It is tried
//! again from time to time, and comes back with the first read that succeeds, whoever does it. One that
//! contradicts the index is out of the cache, too, and given to nobody: a flush alone brings it back.
//!
//! Invariants:
//! * only failed *reads*, and pages whose content contradicts the index, are set aside; a failed write
//!   or sync poisons;
//! * a page that is aside is not read by the flush, but for one trial when its time has come: after
//!   [`FIRST`], then after twice as long each time, at most [`LONGEST`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pleach_core::Prefix;

use crate::error::Error;

/// How long after its first failure a page is tried again.
pub(crate) const FIRST: Duration = Duration::from_secs(1);
/// The longest time between two trials.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);
/// Pages that are tried again in one step of the flush.
const TRIALS: usize = 16;

/// A page that could not be used, and is left alone for a time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Quarantined {
    /// Name of its file.
    pub file: &'static str,
    /// Page number.
    pub page: u64,
    /// The namespace it is of.
    pub namespace: u8,
    /// The keys it is for.
    pub prefix: Prefix,
    /// What was wrong with it the last time.
    pub error: Error,
    /// How often it was tried.
    pub trials: u32,
}

/// Why a page is aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It cannot be read: a good read brings it back.
    Unreadable,
    /// It reads well and contradicts the index: only a flush that finds it right brings it back.
    Contradicts,
}

struct Entry {
    listed: Quarantined,
    why: Why,
    /// When it is tried again.
    next: Duration,
    /// May the flush take it once?
    on_trial: bool,
}

/// By file and number.
type Pages = BTreeMap<(&'static str, u64), Entry>;

/// The pages that are aside.
#[derive(Default)]
pub(crate) struct Quarantine {
    count: AtomicU64,
    pages: Mutex<Pages>,
    /// Leaf pages that are back and not yet due for a flush.
    back: Mutex<Vec<(u8, Prefix)>>,
}

/// How long to wait after this number of failures in a row.
pub(crate) fn backoff(failures: u32) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(LONGEST)
}

impl Quarantine {
    /// Number of pages.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The pages, if there are any: without, none is waited for.
    fn any(&self) -> Option<MutexGuard<'_, Pages>> {
        (self.len() > 0).then(|| self.pages.lock())
    }

    /// Sets a page aside, or says that a trial has failed.
    pub(crate) fn put(
        &self,
        (file, page): (&'static str, u64),
        (namespace, prefix): (u8, Prefix),
        error: Error,
        why: Why,
        now: Duration,
    ) {
        let mut pages = self.pages.lock();
        let trials = pages.get(&(file, page)).map_or(0, |entry| entry.listed.trials) + 1;
        if trials == 1 {
            tracing::error!(file, page, namespace, ?prefix, %error, "a page is set aside");
        }
        let listed = Quarantined { file, page, namespace, prefix, error, trials };
        let next = now.saturating_add(backoff(trials));
        pages.insert((file, page), Entry { listed, why, next, on_trial: false });
        self.count.store(pages.len() as u64, Ordering::Release);
    }

    /// Is a page to be left alone? One that is `at_hand` need not be read.
    pub(crate) fn keeps(&self, file: &'static str, page: u64, at_hand: bool) -> bool {
        let Some(pages) = self.any() else { return false };
        let kept = |entry: &Entry| !entry.on_trial && (entry.why == Why::Contradicts || !at_hand);
        pages.get(&(file, page)).is_some_and(kept)
    }

    /// Has a page been set aside, be it on trial?
    pub(crate) fn suspects(&self, file: &'static str, page: u64) -> bool {
        self.any().is_some_and(|pages| pages.contains_key(&(file, page)))
    }

    /// What is wrong with a page that reads well and contradicts the index, be it on trial.
    pub(crate) fn contradicting(&self, file: &'static str, page: u64) -> Option<Error> {
        let pages = self.any()?;
        let entry = pages.get(&(file, page)).filter(|entry| entry.why == Why::Contradicts)?;
        Some(entry.listed.error.clone())
    }

    /// A page was read well; gives its namespace and prefix when that brings it back.
    pub(super) fn read_well(&self, file: &'static str, page: u64) -> Option<(u8, Prefix)> {
        let mut pages = self.any()?;
        pages.get(&(file, page)).filter(|entry| entry.why == Why::Unreadable)?;
        let entry = pages.remove(&(file, page))?;
        self.count.store(pages.len() as u64, Ordering::Release);
        let Quarantined { namespace, prefix, .. } = entry.listed;
        tracing::info!(file, page, namespace, ?prefix, "a page is back");
        Some((namespace, prefix))
    }

    /// Nothing names the page any more.
    pub(crate) fn forget(&self, file: &'static str, page: u64) {
        if let Some(mut pages) = self.any() {
            pages.remove(&(file, page));
            self.count.store(pages.len() as u64, Ordering::Release);
        }
    }

    /// Some of the pages whose time has come.
    pub(crate) fn due(&self, now: Duration) -> Vec<(Quarantined, Why)> {
        let Some(mut pages) = self.any() else { return Vec::new() };
        let due = pages.values_mut().filter(|entry| !entry.on_trial && entry.next <= now);
        due.take(TRIALS)
            .map(|entry| {
                entry.on_trial = entry.why == Why::Contradicts;
                (entry.listed.clone(), entry.why)
            })
            .collect()
    }

    /// When the next page's time comes.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let pages = self.any()?;
        pages.values().filter(|entry| !entry.on_trial).map(|entry| entry.next).min()
    }

    /// A leaf page is back, and part of the flush's next round of its namespace.
    pub(super) fn is_back(&self, namespace: u8, prefix: Prefix) {
        self.back.lock().push((namespace, prefix));
    }

    /// The leaf pages that are back, for the flush.
    pub(crate) fn take_back(&self) -> Vec<(u8, Prefix)> {
        std::mem::take(&mut self.back.lock())
    }

    /// All of them, by file and page.
    pub(crate) fn list(&self) -> Vec<Quarantined> {
        self.pages.lock().values().map(|entry| entry.listed.clone()).collect()
    }

    /// What is wrong with a page that is aside.
    pub(super) fn error_of(&self, page: (&'static str, u64)) -> Option<Error> {
        self.any()?.get(&page).map(|entry| entry.listed.error.clone())
    }

    /// The error of whoever waits for these pages alone; `None` when there are none.
    pub(crate) fn error(&self) -> Option<Error> {
        let pages = self.pages.lock();
        let (_, first) = pages.first_key_value()?;
        let first = Box::new(first.listed.error.clone());
        Some(Error::Quarantined { pages: pages.len() as u64, first })
    }
}

#[cfg(test)]
mod tests {
    use pleach_journal::format::names::LEAF_FILE;

    use super::*;

    #[test]
    fn a_page_is_tried_after_1_2_4_seconds_and_never_more_than_60_apart() {
        let quarantine = Quarantine::default();
        let page = (LEAF_FILE, 7);
        let fails = |now| {
            quarantine.put(page, (3, Prefix::ROOT), Error::WouldWait, Why::Unreadable, now);
        };
        let mut now = Duration::from_secs(100);
        for wait in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            fails(now);
            let due = now + Duration::from_secs(wait);
            assert_eq!(quarantine.next_due(), Some(due));
            assert!(quarantine.due(due.saturating_sub(Duration::from_millis(1))).is_empty());
            assert_eq!(quarantine.due(due).len(), 1);
            assert!(quarantine.keeps(LEAF_FILE, 7, false) && !quarantine.keeps(LEAF_FILE, 7, true));
            now = due;
        }
        assert_eq!(quarantine.list()[0].trials, 9);
        assert!(quarantine.error().is_some());
        assert_eq!(quarantine.read_well(LEAF_FILE, 8), None);
        assert_eq!(quarantine.read_well(LEAF_FILE, 7), Some((3, Prefix::ROOT)));
        assert!(quarantine.len() == 0 && quarantine.error().is_none());
    }

    #[test]
    fn what_contradicts_the_index_is_taken_once_and_not_back_for_a_good_read() {
        let quarantine = Quarantine::default();
        let put = |now| {
            let page = (LEAF_FILE, 7);
            quarantine.put(page, (3, Prefix::ROOT), Error::WouldWait, Why::Contradicts, now);
        };
        put(Duration::ZERO);
        assert_eq!(quarantine.read_well(LEAF_FILE, 7), None);
        assert!(quarantine.keeps(LEAF_FILE, 7, true));
        assert_eq!(quarantine.due(FIRST).len(), 1);
        assert!(!quarantine.keeps(LEAF_FILE, 7, true) && quarantine.suspects(LEAF_FILE, 7));
        assert!(quarantine.due(LONGEST).is_empty() && quarantine.next_due().is_none());
        put(FIRST);
        assert_eq!(quarantine.next_due(), Some(FIRST * 3));
        quarantine.forget(LEAF_FILE, 7);
        assert_eq!(quarantine.len(), 0);
    }
}
