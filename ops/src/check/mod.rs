//! The offline checker: reads everything and lists all inconsistencies. It is the strictest judge: a state that does
//! not open fails it, and what an open silently tolerates is named, too: dead copies, a torn end of the log, rights. A
//! spare that an interrupted open has left unfinished is a note: the next open makes it again.
//!
//! * Recovery must succeed: superblock, image and log belong together, and the nodes of the index
//!   fold to the commit's root.
//! * Each leaf page is the one that the index expects: identity, checksum, tag, prefix; it was
//!   written by a past open and contains no future commit.
//! * The page's stored nodes, and with its buffered changes the node in the index, are those that its cells fold to; a
//!   plain trie's page stores zeros.
//! * Each region's node follows from its children's.
//! * The states of the history, restored over the pages, fold to the root that each commit recorded. A plain namespace
//!   has no root: states with one digest have the same pairs.
//! * Each page number is named once, each page of the overflow file is named once or free, never both, never neither.
//!   Long values have their hash, those that the history alone names, too.
//!
//! One thread reads, in key order, long values included, so that a simulated disk sees the same each time; other
//! threads fold the pages in batches (`docs/decisions/history.md`, 0022), whose findings are collected in order.

mod children;
mod history;
mod report;

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};

use pleach::internals::open::pages::{VisitedPage, visit};
use pleach::internals::open::recovery::RecoveredState;
use pleach::internals::state::{assemble_value, extents, read_pieces};
use pleach::status::Opening;
use pleach::{Advice, Error, Progress, Result};
use pleach_beatree::{PageNo, Stored};
use pleach_core::Hasher;
use pleach_core::page::overflow::{OverflowCell, OverflowExtent};
use pleach_io::{Disk, File, IoError, OpenMode};
use pleach_journal::format::creation::CreationError;
use pleach_journal::format::names::{LEAF_FILE, OVERFLOW_FILE};
use pleach_journal::format::{incarnation, names, superblock};
use rayon::{Scope, ThreadPoolBuilder};

use crate::opened::{OpenedDatabase, device};
use children::{CheckContext, ChildrenCheck, ChildrenFindings, FoundCell};
use report::of;

pub use report::{CheckReport, Finding, Severity, Verdict};

/// Children that are folded together.
const BATCH: usize = 64;
/// Batches read and not collected yet, for each thread that folds.
const AHEAD: usize = 4;

/// Options of a check.
#[derive(Clone)]
pub struct CheckOptions {
    values: bool,
    past: bool,
    hasher: Option<Hasher>,
    progress: Option<Progress>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { values: true, past: true, hasher: None, progress: None }
    }
}

impl std::fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { values, past, hasher, progress } = self;
        f.debug_struct("CheckOptions")
            .field("values", values)
            .field("past", past)
            .field("hasher", hasher)
            .field("progress", &progress.is_some())
            .finish()
    }
}

impl CheckOptions {
    /// The hasher of a database whose application has made it. Without this, that is BLAKE3 or SHA-256.
    #[must_use]
    pub fn hasher(mut self, hasher: Hasher) -> Self {
        self.hasher = Some(hasher);
        self
    }

    /// Whether the values in the overflow file are read and hashed (default: true).
    #[must_use]
    pub fn values(mut self, values: bool) -> Self {
        self.values = values;
        self
    }

    /// Whether the states of the history are restored and hashed, too (default: true). That takes memory for all values
    /// that its commits have replaced: about 200 bytes a change.
    #[must_use]
    pub fn past(mut self, past: bool) -> Self {
        self.past = past;
        self
    }

    /// A function that is called with the numbers of finished and of all steps: one step for each page, and two more
    /// for the history.
    #[must_use]
    pub fn progress(mut self, progress: Option<Progress>) -> Self {
        self.progress = progress;
        self
    }
}

/// Checks the folder's database.
///
/// # Errors
/// A folder without a database, one that is open for writing, or that another version has made. Whatever else is wrong is
/// a finding.
pub fn check(path: &Path, options: CheckOptions) -> Result<CheckReport> {
    let device = device(path)?;
    let mut report = check_on(device.clone(), options)?;
    let names = device.list()?;
    let ours = names.iter().map(String::as_str).filter(|name| names::is_ours(name));
    let files = ours.chain([names::LOCK]).map(|name| (name, path.join(name), 0o600, "u+rw"));
    for (name, path, wanted, rights) in
        std::iter::once(("the folder", path.to_path_buf(), 0o700, "u+rwx")).chain(files)
    {
        // Root can open any folder: its mode says who else can.
        let mode = std::fs::metadata(path).map(|found| found.permissions().mode());
        if let Some(mode) = mode.ok().filter(|mode| mode & wanted != wanted) {
            let what = format!(
                "{name}: its owner may not read and write it (mode {:03o}): chmod {rights}",
                mode & 0o777
            );
            report.add(Severity::Fatal, what);
        }
    }
    Ok(report)
}

/// The same on any device.
pub fn check_on(device: impl Into<Disk>, options: CheckOptions) -> Result<CheckReport> {
    let device = &device.into();
    match OpenedDatabase::new(device, options.hasher).and_then(|opened| run(&opened, options)) {
        Err(
            error @ (Error::Missing { .. }
            | Error::NotADatabase { .. }
            | Error::WrongHasher { .. }
            | Error::Creation(CreationError::Marker { .. } | CreationError::HalfFilled)
            | Error::Io(IoError::Locked { .. })),
        ) => Err(error),
        // Whole, as far as this version can tell.
        Err(error) if error.advice() == Advice::OtherVersion => Err(error),
        Err(error) => Ok(does_not_open(device, &error)),
        checked => checked,
    }
}

/// The report on a database that does not open, with all files that it lacks.
fn does_not_open(device: &Disk, error: &Error) -> CheckReport {
    let mut report = CheckReport::default();
    report.add(Severity::Fatal, format!("the database does not open: {error}"));
    let names = device.list().unwrap_or_default();
    for file in names::REQUIRED.iter().chain(&names::IMAGES) {
        let named = matches!(error, Error::MissingFile { file: named } if named == file);
        if !named && !names.iter().any(|name| name == file) {
            report.add(Severity::Fatal, format!("`{file}` is missing"));
        }
    }
    report
}

fn run(opened: &OpenedDatabase, options: CheckOptions) -> Result<CheckReport> {
    opened.require_lock()?;
    // Without its undo the history is the newest commit.
    let examined = if options.past { opened.examine()? } else { opened.examine_present()? };
    let older_serves = examined.can_older_serve(&opened.device);
    let recovered = examined.recovered;
    let regions = recovered.tries.iter().flat_map(|trie| trie.regions.regions());
    let children: u64 = regions.map(|region| region.read().children().len() as u64).sum();
    let mut checker = Checker {
        opened,
        incarnation: examined.incarnation.number,
        options,
        overflow: opened.device.open(OVERFLOW_FILE, OpenMode::Read)?,
        runs: recovered.history.overflow_extents.clone(),
        done: 0,
        all: 3 * children,
        report: CheckReport {
            root: recovered.tip.roots.first(),
            commit: recovered.tip.number,
            regions: recovered.tries.iter().map(|trie| trie.regions.regions().len() as u64).sum(),
            namespaces: recovered.tip.roots.all().len() as u64,
            older_serves,
            ..CheckReport::default()
        },
    };
    if let Err(error) = opened.newest.check_features(true) {
        checker.finding(format!("it cannot be opened for writing: {error}"));
    }
    checker.opening(&examined.opening);
    checker.leaf_pages(&recovered.leaf_pages);
    checker.regions(&recovered);
    let leaf = opened.device.open(LEAF_FILE, OpenMode::Read)?;
    checker.children(&leaf, &recovered)?;
    checker.check_history(&recovered);
    for what in
        history::findings(opened, &leaf, &recovered, &mut |steps| checker.report_progress(steps))
    {
        checker.finding(what);
    }
    checker.space(&recovered);
    Ok(checker.report)
}

struct Checker<'a> {
    opened: &'a OpenedDatabase,
    incarnation: u32,
    options: CheckOptions,
    overflow: File,
    /// Runs of the overflow file that are in use.
    runs: Vec<OverflowExtent>,
    /// Finished steps, and all.
    done: u64,
    all: u64,
    report: CheckReport,
}

impl Checker<'_> {
    /// Counts finished steps and reports progress.
    fn report_progress(&mut self, steps: u64) {
        self.done += steps;
        if let Some(progress) = &self.options.progress {
            progress(self.done, Some(self.all));
        }
    }

    fn finding(&mut self, what: String) {
        self.report.add(Severity::Survived, what);
    }

    /// Adds what an open tolerates.
    fn opening(&mut self, opening: &Opening) {
        if let Some(error) = &opening.fell_back {
            self.finding(format!(
                "the newest checkpoint cannot be used, its forerunner is: {error}"
            ));
        }
        if let Some(cut) = &opening.cut {
            let (at, bytes) = (cut.position, cut.bytes);
            self.finding(match cut.records {
                0 => format!(
                    "the log ends torn at {at:#x}: no record there can be recognised; an open cuts it off"
                ),
                records => format!(
                    "the log ends torn at {at:#x}: {records} records, {bytes} bytes; an open cuts them off"
                ),
            });
        }
        let spares = [superblock::SPARE.name, incarnation::SPARE.name, names::SEGMENT_SPARE];
        for note in &opening.notes {
            if spares.contains(&&*note.file) {
                self.report.notes.push(note.to_string());
            } else {
                self.finding(note.to_string());
            }
        }
    }

    fn leaf_pages(&mut self, pages: &[PageNo]) {
        let mut pages = pages.to_vec();
        pages.sort_unstable();
        for pair in pages.chunk_by(|a, b| a == b).filter(|same| same.len() > 1) {
            self.finding(format!("page {} of {LEAF_FILE} is named {} times", pair[0], pair.len()));
        }
    }

    fn regions(&mut self, recovered: &RecoveredState) {
        let tries = recovered.tries.iter().map(|trie| (trie.namespace, &trie.regions));
        let regions = tries.flat_map(|(namespace, index)| {
            index.regions().iter().map(move |region| (namespace, region))
        });
        for (namespace, region) in regions {
            let at = format!("{}region {:?}", of(namespace), region.prefix());
            let state = region.read();
            if !state.is_plain()
                && state.computed_lines(self.opened.hasher).own_node() != state.own_node()
            {
                self.finding(format!("{at}: its node does not follow from its children's"));
            }
            for dropped in state.replaced_values() {
                self.runs.extend(extents(&dropped.buffered.stored));
            }
            let future = state
                .buffered()
                .iter()
                .filter(|buffered| buffered.commit > recovered.tip.number)
                .count();
            if future > 0 {
                self.finding(format!("{at}: {future} changes of future commits"));
            }
        }
    }

    /// All children in key order. Few pages are folded here: threads cost more.
    fn children(&mut self, leaf: &File, recovered: &RecoveredState) -> Result<()> {
        let many = recovered.leaf_pages.len() > BATCH * AHEAD;
        match many.then(|| ThreadPoolBuilder::new().build().ok()).flatten() {
            None => self.fold_on(None, leaf, recovered),
            Some(pool) => {
                let threads = pool.current_num_threads();
                pool.in_place_scope(|scope| self.fold_on(Some((scope, threads)), leaf, recovered))
            }
        }
    }

    fn fold_on<'a>(
        &mut self,
        threads: Option<(&Scope<'a>, usize)>,
        leaf: &File,
        recovered: &'a RecoveredState,
    ) -> Result<()> {
        let known = CheckContext {
            hasher: self.opened.hasher,
            database: self.opened.newest.database,
            commit: self.report.commit,
            incarnation: self.incarnation,
        };
        let most = threads.map_or(0, |(_, count)| count * AHEAD);
        let mut folding: VecDeque<Receiver<ChildrenFindings>> = VecDeque::new();
        let mut start = |checker: &mut Self, batch: Vec<VisitedPage<'a>>| {
            let (give, take) = sync_channel(1);
            let fold = move || {
                // No thread takes the result after an error.
                let _ = give.send(ChildrenCheck::fold(known, batch));
            };
            match threads {
                Some((scope, _)) => scope.spawn(move |_| fold()),
                None => fold(),
            }
            folding.push_back(take);
            while folding.len() > most {
                checker.add_children(folding.pop_front());
            }
        };
        let mut batch = Vec::with_capacity(BATCH);
        for trie in &recovered.tries {
            visit(&self.opened.device, Ok(leaf), &trie.regions, |visited| {
                batch.push(visited);
                if batch.len() == BATCH {
                    start(self, std::mem::replace(&mut batch, Vec::with_capacity(BATCH)));
                }
                Ok::<_, Error>(true)
            })?;
        }
        start(self, batch);
        while !folding.is_empty() {
            self.add_children(folding.pop_front());
        }
        Ok(())
    }

    /// Adds the findings of a batch.
    fn add_children(&mut self, folding: Option<Receiver<ChildrenFindings>>) {
        // An error is a panic of the thread, which continues when the threads are joined.
        let Some(Ok(children)) = folding.map(|folding| folding.recv()) else { return };
        self.report_progress(children.all);
        self.report.pages += children.pages;
        self.report.keys += children.keys;
        for found in children.found {
            match found {
                FoundCell::Finding(what) => self.finding(what),
                FoundCell::LongValue(raw, at) => self.long_value(&raw, &at),
            }
        }
    }

    fn long_value(&mut self, raw: &[u8], at: &str) {
        self.report.long_values += 1;
        match OverflowCell::parse(raw) {
            Ok(cell) => self.runs.extend(cell.extents()),
            Err(error) => {
                return self.finding(format!("{at}: an overflow cell: {error}"));
            }
        }
        self.read_value(raw, at);
    }

    /// Checks the runs and long values of the history. Their pages count as named.
    fn check_history(&mut self, recovered: &RecoveredState) {
        if self.options.past {
            for error in recovered.history.damaged_runs() {
                self.finding(format!("the history: {error}"));
            }
        }
        for (commit, stored) in &recovered.history.long_values {
            if let Stored::Overflow(raw) = stored {
                self.read_value(raw, &format!("the history, replaced by commit {commit}"));
            }
        }
    }

    fn read_value(&mut self, raw: &[u8], at: &str) {
        if self.options.values {
            let device = &self.opened.device;
            let pieces = read_pieces(device, &self.overflow, raw);
            let database = self.opened.newest.database;
            let read = assemble_value(self.opened.hasher, database, raw, pieces);
            if let Err(error) = read.map_err(pleach::Error::from) {
                self.finding(format!("{at}: a long value: {error}"));
            }
        }
    }

    /// Checks that every page of the overflow file is named once or free.
    fn space(&mut self, recovered: &RecoveredState) {
        let mut named = std::mem::take(&mut self.runs);
        named.sort_unstable_by_key(|run| run.start);
        let mut free = recovered.extents.free_extents().peekable();
        let pages = recovered.extents.stats().pages;
        // The ends of the last named run, and of the last page accounted for.
        let (mut named_to, mut at) = (0, 0);
        for run in &named {
            let end = run.start + u64::from(run.pages);
            self.report.overflow_pages += u64::from(run.pages);
            if run.start < named_to {
                self.finding(format!(
                    "pages {} to {} of {OVERFLOW_FILE} are named twice",
                    run.start,
                    named_to.min(end)
                ));
            }
            if end > pages {
                self.finding(format!(
                    "pages {} to {end} of {OVERFLOW_FILE} lie after its {pages} pages",
                    run.start
                ));
            }
            while let Some((start, len)) = free.next_if(|(start, _)| *start < run.start) {
                self.leak(at, start);
                at = start + len;
            }
            self.leak(at, run.start);
            if at > run.start.max(named_to) || free.peek().is_some_and(|(start, _)| *start < end) {
                self.finding(format!(
                    "pages {} to {end} of {OVERFLOW_FILE} are named and in part free",
                    run.start
                ));
            }
            named_to = named_to.max(end);
            at = at.max(end);
        }
        for (start, len) in free {
            self.leak(at, start);
            at = at.max(start + len);
        }
        self.leak(at, pages);
    }

    fn leak(&mut self, from: u64, to: u64) {
        if from < to {
            self.finding(format!(
                "pages {from} to {to} of {OVERFLOW_FILE} are neither named nor free"
            ));
        }
    }
}
