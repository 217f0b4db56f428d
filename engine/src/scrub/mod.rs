//! Scrub: reads and checks everything that a session's state has on the device, while commits go on (`docs/repair.md`).
//!
//! Leaf pages come through a scan past the cache, so that a good copy in memory does not hide a bad page; long values
//! come past the values in memory. A scan gives one commit's pairs whatever is flushed meanwhile, and the pages that it
//! looks up stay where they are: a page that cannot be used is bad, and is listed.

pub(crate) mod bad_page;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pleach_beatree::Stored;
use pleach_beatree::page_no::page_offset;
use pleach_beatree::pages::overflow::{assemble_value, read_pieces};
use pleach_beatree::stored::overflow_cell;
use pleach_core::fold::RootFolder;
use pleach_core::{Key, Node, Prefix};
use pleach_io::{OpenMode, PAGE};
use pleach_journal::format::names::{LEAF_FILE, OVERFLOW_FILE, segment_name};
use pleach_journal::format::position::{LogPoint, LogPos};
use pleach_journal::format::superblock::Superblock;
use pleach_journal::format::superblock_store::SuperblockStore;
use pleach_journal::log::{BrokenChain, ScanError, next_record, walk_records};

use self::bad_page::{BadPage, page_of_value};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::load::Progress;
use crate::namespace::Namespace;
use crate::read::point;
use crate::read::scan::{Scan, StoredRef};
use crate::session::Session;
use crate::state::NamespaceDb;

/// The longest sleep between two checks of the stop flag.
const NAP: Duration = Duration::from_millis(100);
/// Records that are read between two checks of the stop flag.
const RECORDS: u64 = 16;

/// Options of [`scrub`].
#[derive(Default)]
pub struct ScrubOptions {
    bytes_per_second: u64,
    stop: Option<Arc<AtomicBool>>,
    progress: Option<Progress>,
}

impl fmt::Debug for ScrubOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScrubOptions")
            .field("bytes_per_second", &self.bytes_per_second)
            .finish_non_exhaustive()
    }
}

impl ScrubOptions {
    /// Options for full speed, to the end, without a progress function.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the bytes that are read in a second; 0 for no limit. Some hundred pages may be read ahead of the limit.
    #[must_use]
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = bytes;
        self
    }

    /// A flag that ends the scrub within a tenth of a second when it is set. The report has all findings until then.
    #[must_use]
    pub fn stop(mut self, stop: Option<Arc<AtomicBool>>) -> Self {
        self.stop = stop;
        self
    }

    /// A function that gets the bytes read and about how many bytes there are, after each page, long value and record.
    /// Commits that go on meanwhile change the second number.
    #[must_use]
    pub fn progress(mut self, progress: Option<Progress>) -> Self {
        self.progress = progress;
        self
    }
}

/// The root of a namespace, computed from its pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubbedRoot {
    /// The namespace.
    pub namespace: u8,
    /// The root in the session's state.
    pub expected: Node,
    /// The root of the pairs that were read; `None` where a page is bad, or the scrub was stopped.
    pub found: Option<Node>,
}

/// What a scrub has found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Number of the commit.
    pub commit: u64,
    /// Leaf pages read.
    pub pages: u64,
    /// Pairs in the good pages, with the changes that are buffered for them.
    pub pairs: u64,
    /// Long values read.
    pub long_values: u64,
    /// Records of the log read.
    pub records: u64,
    /// Runs of the history read.
    pub runs: u64,
    /// Bytes read.
    pub bytes: u64,
    /// All pages that cannot be used.
    pub bad: Vec<BadPage>,
    /// The roots of the Merkle namespaces, in order.
    pub roots: Vec<ScrubbedRoot>,
    /// True when the stop flag ended the scrub.
    pub stopped: bool,
    /// How long the scrub took.
    pub time: Duration,
}

impl ScrubReport {
    /// True when everything was read, and all of it was good.
    pub fn is_clean(&self) -> bool {
        let wrong = |root: &ScrubbedRoot| root.found != Some(root.expected);
        !self.stopped && self.bad.is_empty() && !self.roots.iter().any(wrong)
    }
}

/// Reads every leaf page and every long value of a session's state, of all namespaces, from the device, the records of
/// the log that the next open needs and that are kept, and the runs of the history; checks all of them, and computes
/// the root of each Merkle namespace from its pairs. Bad pages are listed and skipped. Sessions and commits go on; the
/// cache stays as it is.
///
/// A page that is good again, also a quarantined one, can be used again by everybody.
///
/// # Errors
/// [`Error::SnapshotTooOld`] when the state cannot be read any more; errors of the ring. Bad pages are no
/// error.
pub fn scrub(session: &Session, options: &ScrubOptions) -> Result<ScrubReport> {
    let engine = session.engine();
    let db: &NamespaceDb = &engine.db;
    let since = db.pace.now();
    let leaf = db.counters.leaf_pages.load(Ordering::Relaxed);
    let mut scrub = Scrub {
        engine,
        options,
        since,
        all: page_offset(leaf + db.space.overflow_stats().live)
            + log_end(db).saturating_since(log_start(db).position),
        report: ScrubReport { commit: session.commit_number(), ..ScrubReport::default() },
    };
    for (namespace, root) in session.roots().all() {
        let reading = session.namespace(namespace)?;
        let found = scrub.scrub_pairs(reading, root.merkle().is_some())?;
        if let Some(expected) = root.merkle() {
            scrub.report.roots.push(ScrubbedRoot { namespace, expected, found });
        }
    }
    scrub.scrub_log();
    scrub.scrub_runs()?;
    let mut report = scrub.report;
    report.time = db.pace.now().saturating_sub(since);
    Ok(report)
}

/// The newest superblock of the process that writes, where that is another one.
fn writer_superblock(db: &NamespaceDb) -> Option<Superblock> {
    db.replica.as_ref()?;
    Some(*SuperblockStore::open(db.store.device.clone(), OpenMode::Read).ok()?.newest())
}

/// The end of the durable log.
fn log_end(db: &NamespaceDb) -> LogPos {
    let durable = db.commits.sequencer.durable();
    writer_superblock(db).map_or(durable, |newest| newest.durable_through.max(durable))
}

/// The begin of the log that is kept: a record before the replay start, or the replay start itself.
fn log_start(db: &NamespaceDb) -> LogPoint {
    let newest = writer_superblock(db).unwrap_or_else(|| db.images.newest());
    let from = newest.log_from;
    if from < newest.replay.position { from.into() } else { newest.replay }
}

struct Scrub<'a> {
    engine: &'a Engine,
    options: &'a ScrubOptions,
    since: Duration,
    /// Bytes to be read, an estimate.
    all: u64,
    report: ScrubReport,
}

impl Scrub<'_> {
    /// Reads a namespace; gives the root of its pairs when all of them could be read.
    fn scrub_pairs(&mut self, reading: &Namespace, is_merkle: bool) -> Result<Option<Node>> {
        let namespace = reading.view().namespace;
        let mut folder = is_merkle.then(|| RootFolder::new(self.engine.db.hasher));
        let mut scan = Scan::new(&self.engine.scanners, &..);
        scan.read_from_device();
        // Each turn goes on behind the last key.
        while !self.wait_or_stop() {
            let Some(step) = scan.next_page(reading.db(), reading.view()) else {
                return Ok(folder.map(RootFolder::root));
            };
            let step = step?;
            if let Some(page) = step.page {
                self.report.pages += 1;
                self.count_read(PAGE as u64);
                if let Some(error) = step.error {
                    self.report_bad(
                        LEAF_FILE,
                        u64::from(page),
                        Some((namespace, step.prefix)),
                        error,
                    );
                    folder = None;
                    continue;
                }
            }
            while let Some((key, stored)) = scan.next_in_page() {
                self.report.pairs += 1;
                if let (Some(folder), Some(value)) = (&mut folder, stored.fold_value()) {
                    folder.pair(&key, value).map_err(|_| Contradiction::KeyOrder { key })?;
                }
                if let StoredRef::Long(Stored::Overflow(raw)) = stored {
                    self.scrub_long_value(reading, &key, &raw)?;
                }
            }
        }
        Ok(None)
    }

    fn scrub_long_value(&mut self, reading: &Namespace, key: &Key, raw: &[u8]) -> Result<()> {
        let db = reading.db();
        let (device, file) = (&db.store.device, &db.space.overflow);
        self.report.long_values += 1;
        let read = |raw: &[u8]| -> Result<()> {
            let pieces = read_pieces(device, file, raw);
            assemble_value(db.hasher, db.store.database, raw, pieces)?;
            Ok(())
        };
        let mut done = read(raw);
        if done.is_err() && db.replica.is_some() {
            // The process that writes may have moved the value.
            done = db.run_read(reading.view().base, || {
                match point::stored(db, reading.view(), key)? {
                    Stored::Overflow(raw) => read(&raw),
                    _ => Ok(()),
                }
            });
        }
        if let Err(error) = done {
            // In a state that cannot be read any more, the runs may be another value's.
            db.run_read(reading.view().base, || reading.view().check_readable())?;
            let page = page_of_value(device, Some(file), raw, &error);
            self.report_bad(
                OVERFLOW_FILE,
                page,
                Some((db.namespace, Prefix::new(key, 256))),
                error,
            );
        }
        self.count_read(
            overflow_cell(raw).extents().map(|extent| page_offset(extent.pages.into())).sum(),
        );
        Ok(())
    }

    /// Reads the log. Segments that nobody needs any more are reused meanwhile; their records may then be another
    /// segment's.
    fn scrub_log(&mut self) {
        let db = &self.engine.db;
        let (device, database) = (&db.store.device, db.store.database);
        let (size, end) = (db.images.newest().geometry.log_segment, log_end(db));
        let mut from = log_start(db);
        // Each turn begins behind the end of the one before.
        while from.position < end && !self.wait_or_stop() {
            let mut records = 0;
            let walked = walk_records(device, database, size, from, end, |record| {
                records += 1;
                self.report.records += 1;
                self.count_read(record.header.record_len());
                let stops = records % RECORDS == 0 && self.wait_or_stop();
                let flow = if stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                Ok::<_, Error>(flow)
            });
            let Err(BrokenChain { resume, error }) = walked else { return };
            let start = log_start(db);
            if start.position >= resume {
                from = start;
                continue;
            }
            let at = match &error {
                Error::Scan(ScanError::Past { position, .. }) => *position,
                Error::Scan(ScanError::Segment(bad)) => LogPos::of_segment(bad.index, size),
                _ => resume,
            };
            let (file, page) = (segment_name(at.segment(size)), at.in_segment(size) / PAGE as u64);
            self.report_bad(&file, page, None, error);
            let next = next_record(device, database, size, resume, end);
            from = next.ok().flatten().unwrap_or(end).into();
        }
    }

    /// Reads the runs of the history, oldest first. In a replica they are those that the process that writes has by
    /// now, which may merge them meanwhile.
    fn scrub_runs(&mut self) -> Result<()> {
        let db = &self.engine.db;
        let mut through = 0;
        // Each turn is about a later commit.
        while !self.wait_or_stop() {
            let (mut next, mut page) = (None, None);
            let checked = db.run_read(db.commits.published(), || {
                let runs = db.commits.undo.image_history(LogPos::MAX).runs;
                next = runs.into_iter().find(|run| run.descriptor.last_commit > through);
                let Some(run) = &next else { return Ok(()) };
                Ok(run.check().inspect_err(|error| page = error.page())?)
            });
            let Some(run) =
                next.filter(|_| checked.as_ref().err().is_none_or(|error| error.place().is_some()))
            else {
                return checked;
            };
            if let Err(error) = checked {
                let page = page.unwrap_or(run.descriptor.pages[0].start);
                self.report_bad(OVERFLOW_FILE, page, None, error);
            }
            self.report.runs += 1;
            self.count_read(run.descriptor.bytes());
            through = run.descriptor.last_commit;
        }
        Ok(())
    }

    fn report_bad(&mut self, file: &str, page: u64, keys: Option<(u8, Prefix)>, error: Error) {
        tracing::error!(file, page, ?keys, %error, "a scrub has found a page that cannot be used");
        self.report.bad.push(BadPage::new(file, page, keys, error));
    }

    /// Counts bytes that were read.
    fn count_read(&mut self, bytes: u64) {
        self.report.bytes += bytes;
        if let Some(progress) = &self.options.progress {
            progress(self.report.bytes, Some(self.all.max(self.report.bytes)));
        }
    }

    /// Waits until more may be read; true when the scrub is stopped.
    fn wait_or_stop(&mut self) -> bool {
        let stop = || self.options.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        if let Some(nanos) = (u128::from(self.report.bytes) * 1_000_000_000)
            .checked_div(self.options.bytes_per_second.into())
        {
            let pace = &self.engine.db.pace;
            let due = self.since + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            // Each turn comes closer to the time.
            while !stop() {
                let left = due.saturating_sub(pace.now());
                if left.is_zero() {
                    break;
                }
                pace.wait(Some(left.min(NAP)), &mut || false);
            }
        }
        self.report.stopped |= stop();
        self.report.stopped
    }
}
