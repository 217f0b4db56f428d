//! Quarantine: pages that the background could not use, and works without.
//!
//! Changes for such a page stay buffered: in memory, in the log, and in every image, so that nothing is lost and the
//! log can be shortened. A read of the page returns its error. An unreadable page is tried again from time to time, and
//! released by the first read that succeeds, whoever reads. A page that contradicts the index is removed from the cache
//! as well, and no reader gets it: only a flush releases it.
//!
//! Invariants:
//! * only failed *reads*, and pages whose content contradicts the index, are quarantined; a failed write or sync
//!   poisons;
//! * the flush does not read a quarantined page, except for one trial when it is due: after `FIRST_RETRY`, then after
//!   twice as long each time, at most `LONGEST_RETRY`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pleach_core::Prefix;

use super::TARGET;
use crate::error::Error;
use crate::files::LEAF_FILE;
use crate::page_no::PageNo;

/// Time between a page's first failure and its first trial.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest time between two trials.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Most pages that one step of the flush tries again.
const TRIALS: usize = 16;

/// A page that could not be used, and is not read by the flush until its next trial.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Quarantined {
    /// Name of its file.
    pub file: &'static str,
    /// Page number.
    pub page: u64,
    /// Its namespace.
    pub namespace: u8,
    /// The prefix of its keys.
    pub prefix: Prefix,
    /// The last error; `pleach::Error::from` gives its code and advice.
    pub error: Error,
    /// Number of failed attempts.
    pub trials: u32,
}

/// A leaf page, with the namespace and the prefix of its keys.
#[derive(Clone, Copy, Debug)]
pub struct LeafName {
    /// Its number.
    pub page: PageNo,
    /// Its namespace.
    pub namespace: u8,
    /// The prefix of its keys.
    pub prefix: Prefix,
}

/// Why a page is quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineReason {
    /// The page cannot be read: a good read releases it.
    Unreadable,
    /// The page contradicts the index: only a flush that finds it right releases it.
    Contradicts,
}

#[derive(Debug)]
struct QuarantineEntry {
    listed: Quarantined,
    reason: QuarantineReason,
    /// Time of the next trial.
    next: Duration,
    /// True while the flush may take the page once.
    on_trial: bool,
}

/// Leaf pages.
type Pages = BTreeMap<PageNo, QuarantineEntry>;

/// The quarantined pages.
#[derive(Debug, Default)]
pub struct Quarantine {
    count: AtomicU64,
    pages: Mutex<Pages>,
    /// Leaf pages that were released and are not yet due for a flush.
    released: Mutex<Vec<(u8, Prefix)>>,
    /// Branch pages of regions that cannot be read.
    lost: Mutex<Vec<Quarantined>>,
}

/// Time to wait after this number of failures in a row.
pub fn backoff(failures: u32) -> Duration {
    let doubled = FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(LONGEST_RETRY)
}

impl Quarantine {
    /// Number of pages.
    fn len(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Locks the pages, unless there are none, which costs no lock.
    fn lock_if_any(&self) -> Option<MutexGuard<'_, Pages>> {
        (self.len() > 0).then(|| self.pages.lock())
    }

    /// Quarantines a page, or records a failed trial.
    pub fn insert(
        &self,
        LeafName { page, namespace, prefix }: LeafName,
        error: Error,
        reason: QuarantineReason,
        now: Duration,
    ) {
        let (mut pages, file, number) = (self.pages.lock(), LEAF_FILE, page.into());
        let trials = pages.get(&page).map_or(0, |entry| entry.listed.trials) + 1;
        if trials == 1 {
            tracing::error!(target: TARGET, file, page = number, namespace, ?prefix, %error, "a page is quarantined");
        }
        let listed = Quarantined { file, page: number, namespace, prefix, error, trials };
        let next = now.saturating_add(backoff(trials));
        pages.insert(page, QuarantineEntry { listed, reason, next, on_trial: false });
        self.count.store(pages.len() as u64, Ordering::Release);
    }

    /// Quarantines the branch page of a region, or records another failure.
    pub fn lose(&self, file: &'static str, page: u64, namespace: u8, prefix: Prefix, error: Error) {
        let mut lost = self.lost.lock();
        if let Some(known) = lost.iter_mut().find(|entry| entry.page == page) {
            (known.error, known.trials) = (error, known.trials + 1);
            return;
        }
        tracing::error!(target: TARGET, file, page, namespace, ?prefix, %error, "a region cannot be read");
        lost.push(Quarantined { file, page, namespace, prefix, error, trials: 1 });
    }

    /// Notes that the region with this branch page is in memory.
    pub fn note_region(&self, branch: u64) {
        self.lost.lock().retain(|entry| entry.page != branch);
    }

    /// The error of a leaf page of a lost region.
    pub(super) fn lost_error(&self, page: PageNo) -> Option<Error> {
        let lost = page.is_lost().then(|| self.lost.lock())?;
        let mut found = lost.iter().filter(|entry| PageNo::lost(entry.page) == page);
        found.next().map(|entry| entry.error.clone())
    }

    /// The error of the first lost region.
    pub fn first_lost(&self) -> Option<Error> {
        self.lost.lock().first().map(|entry| entry.error.clone())
    }

    /// True when the flush must not use a page. A cached page need not be read, so that it may be unreadable.
    pub(super) fn is_barred(&self, page: PageNo, is_cached: bool) -> bool {
        let Some(pages) = self.lock_if_any() else { return false };
        let kept = |entry: &QuarantineEntry| {
            !entry.on_trial && (entry.reason == QuarantineReason::Contradicts || !is_cached)
        };
        pages.get(&page).is_some_and(kept)
    }

    /// True when a page is quarantined, be it on trial.
    pub fn contains(&self, page: PageNo) -> bool {
        self.lock_if_any().is_some_and(|pages| pages.contains_key(&page))
    }

    /// The error of a page that contradicts the index, be it on trial.
    pub(super) fn contradicting(&self, page: PageNo) -> Option<Error> {
        let pages = self.lock_if_any()?;
        let entry = pages.get(&page)?;
        (entry.reason == QuarantineReason::Contradicts).then(|| entry.listed.error.clone())
    }

    /// Notes a good read of a page; returns its namespace and prefix when that releases it.
    pub(super) fn note_good_read(&self, page: PageNo) -> Option<(u8, Prefix)> {
        let mut pages = self.lock_if_any()?;
        pages.get(&page).filter(|entry| entry.reason == QuarantineReason::Unreadable)?;
        let entry = pages.remove(&page)?;
        self.count.store(pages.len() as u64, Ordering::Release);
        let Quarantined { namespace, prefix, .. } = entry.listed;
        let (file, page) = (LEAF_FILE, u64::from(page));
        tracing::info!(target: TARGET, file, page, namespace, ?prefix, "a page is back");
        Some((namespace, prefix))
    }

    /// Removes a page that nothing names any more.
    pub fn forget(&self, page: PageNo) {
        if let Some(mut pages) = self.lock_if_any() {
            pages.remove(&page);
            self.count.store(pages.len() as u64, Ordering::Release);
        }
    }

    /// Begins trials of some pages that are due.
    pub fn begin_due_trials(&self, now: Duration) -> Vec<(LeafName, QuarantineReason)> {
        let Some(mut pages) = self.lock_if_any() else { return Vec::new() };
        let due = pages.iter_mut().filter(|(_, entry)| !entry.on_trial && entry.next <= now);
        due.take(TRIALS)
            .map(|(page, entry)| {
                entry.on_trial = entry.reason == QuarantineReason::Contradicts;
                let Quarantined { namespace, prefix, .. } = entry.listed;
                (LeafName { page: *page, namespace, prefix }, entry.reason)
            })
            .collect()
    }

    /// When the next trial is due.
    pub fn next_due(&self) -> Option<Duration> {
        let pages = self.lock_if_any()?;
        pages.values().filter(|entry| !entry.on_trial).map(|entry| entry.next).min()
    }

    /// Adds a released leaf page to those that the flush makes due.
    pub(super) fn release(&self, namespace: u8, prefix: Prefix) {
        self.released.lock().push((namespace, prefix));
    }

    /// Removes and returns the released leaf pages, for the flush.
    pub fn take_released(&self) -> Vec<(u8, Prefix)> {
        std::mem::take(&mut self.released.lock())
    }

    /// All quarantined pages, by file and page.
    pub fn list(&self) -> Vec<Quarantined> {
        let mut all = self.lost.lock().clone();
        all.extend(self.pages.lock().values().map(|entry| entry.listed.clone()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEVEN: PageNo = PageNo::new(7);

    #[test]
    fn a_page_is_tried_after_1_2_4_seconds_and_never_more_than_60_apart() {
        let quarantine = Quarantine::default();
        let page = LeafName { page: SEVEN, namespace: 3, prefix: Prefix::ROOT };
        let fails = |now| {
            quarantine.insert(page, Error::Table, QuarantineReason::Unreadable, now);
        };
        let mut now = Duration::from_secs(100);
        for wait in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            fails(now);
            let due = now + Duration::from_secs(wait);
            assert_eq!(quarantine.next_due(), Some(due));
            assert!(
                quarantine
                    .begin_due_trials(due.saturating_sub(Duration::from_millis(1)))
                    .is_empty()
            );
            assert_eq!(quarantine.begin_due_trials(due).len(), 1);
            assert!(quarantine.is_barred(SEVEN, false) && !quarantine.is_barred(SEVEN, true));
            now = due;
        }
        let listed = quarantine.list();
        assert_eq!((listed.len(), listed[0].trials), (1, 9));
        assert_eq!(quarantine.note_good_read(PageNo::new(8)), None);
        assert_eq!(quarantine.note_good_read(SEVEN), Some((3, Prefix::ROOT)));
        assert!(quarantine.len() == 0 && quarantine.list().is_empty());
    }

    #[test]
    fn what_contradicts_the_index_is_taken_once_and_not_back_for_a_good_read() {
        let quarantine = Quarantine::default();
        let put = |now| {
            let page = LeafName { page: SEVEN, namespace: 3, prefix: Prefix::ROOT };
            quarantine.insert(page, Error::Table, QuarantineReason::Contradicts, now);
        };
        put(Duration::ZERO);
        assert_eq!(quarantine.note_good_read(SEVEN), None);
        assert!(quarantine.is_barred(SEVEN, true));
        assert_eq!(quarantine.begin_due_trials(FIRST_RETRY).len(), 1);
        assert!(!quarantine.is_barred(SEVEN, true) && quarantine.contains(SEVEN));
        assert!(
            quarantine.begin_due_trials(LONGEST_RETRY).is_empty()
                && quarantine.next_due().is_none()
        );
        put(FIRST_RETRY);
        assert_eq!(quarantine.next_due(), Some(FIRST_RETRY * 3));
        quarantine.forget(SEVEN);
        assert_eq!(quarantine.len(), 0);
    }
}
