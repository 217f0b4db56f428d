//! The offline checker: reads everything and lists all that does not fit. It is the judge: whatever does
//! not open fails it, and what an open survives without a word is named, too: dead copies, a torn end of
//! the log, missing spares, rights.
//!
//! * Recovery must succeed: superblock, image and log belong together, and the nodes of the index
//!   fold to the commit's root.
//! * Each leaf page is the one that the index expects: identity, checksum, tag, prefix; it was
//!   written by a past open and contains no future commit.
//! * The nodes that it stores, and with its pending changes the node in the index, are those that
//!   its cells fold to.
//! * Each region's node follows from its children's.
//! * Each page number is named once, each page of the overflow file is named once or free, never both,
//!   never neither. Long values have their hash.
//!
//! One thread reads, in key order, long values included, so that a simulated disk sees the same each time;
//! others fold the pages, a batch each (`docs/decisions/0022-worker-pools.md`). What they find is taken in
//! in order.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};

use pleach_beatree::leaf_fold::{PageState, PendingChange, below, fold_leaf};
use pleach_beatree::stored::cell_value;
use pleach_beatree::{PageNo, RegionState, Stored};
use pleach_core::fold::BatchFolder;
use pleach_core::page::leaf::{Cell, LeafView};
use pleach_core::page::overflow::{OverflowCell, PageRun};
use pleach_core::prefix::Prefix;
use pleach_core::{Hasher, Node, TERMINATOR};
use pleach_io::{Device, IoError, OpenMode};
use rayon::{Scope, ThreadPoolBuilder};

use super::pages::{Visited, parse, visit};
use super::{Opened, UnderHasher, device, with_hasher};
use crate::error::{Error, Result, hex};
use crate::format::creation::CreationError;
use crate::format::names;
use crate::format::names::{LEAF_FILE, OVERFLOW_FILE};
use crate::open::recovery::Recovered;
use crate::opening::Opening;
use crate::state::overflow::{read_from, runs};

/// Children that are folded together.
const BATCH: usize = 64;
/// Batches read and not taken in yet, for each thread that folds.
const AHEAD: usize = 4;

/// What a check does.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    values: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { values: true }
    }
}

impl CheckOptions {
    /// Are the values in the overflow file read and hashed (default)?
    #[must_use]
    pub fn values(mut self, values: bool) -> Self {
        self.values = values;
        self
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The database opens; what is named may be lost, or is a copy of which another one is left.
    Survived,
    /// The database does not open.
    Fatal,
}

/// Something that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, with the file it is in.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

/// What a check comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Clean,
    /// There are findings that an open survives.
    Findings,
    /// The database does not open.
    DoesNotOpen,
}

/// What a check saw.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// What does not fit. Empty: all is well.
    pub findings: Vec<Finding>,
    /// Leaf pages read.
    pub pages: u64,
    /// Keys present, of all namespaces; those that were dropped and are still there count.
    pub keys: u64,
    /// Regions of all indexes.
    pub regions: u64,
    /// Namespaces that exist.
    pub namespaces: u64,
    /// Long values.
    pub long_values: u64,
    /// Pages of the overflow file that something names.
    pub overflow_pages: u64,
    /// Root of namespace 0 in the newest commit; zero when there is no coming to it.
    pub root: Node,
    /// Number of the newest commit.
    pub commit: u64,
    /// Could the older checkpoint serve, should the newest be damaged? `None` when there is none. No
    /// finding: while a checkpoint is written there is one that is whole.
    pub older_serves: Option<bool>,
}

impl CheckReport {
    /// What it comes to.
    pub fn verdict(&self) -> Verdict {
        match self.findings.iter().map(|finding| finding.severity).max() {
            None => Verdict::Clean,
            Some(Severity::Survived) => Verdict::Findings,
            Some(Severity::Fatal) => Verdict::DoesNotOpen,
        }
    }

    fn add(&mut self, severity: Severity, what: String) {
        self.findings.push(Finding { severity, what });
    }
}

/// Checks the folder's database.
///
/// # Errors
/// A folder without a database, or one that is open for writing. Whatever else is wrong is a finding.
pub fn check(path: &Path, options: CheckOptions) -> Result<CheckReport> {
    let device = device(path)?;
    let mut report = check_on(&device, options)?;
    for name in device.list()?.iter().filter(|name| names::is_ours(name)) {
        // Root opens what nobody may: its mode says what others will meet.
        let mode = std::fs::metadata(path.join(name)).map(|found| found.permissions().mode());
        if let Some(mode) = mode.ok().filter(|mode| mode & 0o600 != 0o600) {
            let what = format!(
                "{name}: its owner may not read and write it (mode {:03o}): chmod u+rw",
                mode & 0o777
            );
            report.add(Severity::Fatal, what);
        }
    }
    Ok(report)
}

/// The same on any device.
pub fn check_on<D: Device>(device: &D, options: CheckOptions) -> Result<CheckReport> {
    match with_hasher(device, options) {
        Err(
            error @ (Error::Missing
            | Error::NotADatabase { .. }
            | Error::WrongHasher { .. }
            | Error::Creation(CreationError::Marker { .. })
            | Error::Io(IoError::Locked { .. })),
        ) => Err(error),
        Err(error) => Ok(does_not_open(device, &error)),
        checked => checked,
    }
}

/// The report on a database that does not open, with all files that it lacks.
fn does_not_open<D: Device>(device: &D, error: &Error) -> CheckReport {
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

impl<D: Device> UnderHasher<D> for CheckOptions {
    type Output = CheckReport;

    fn run<H: Hasher>(self, opened: &Opened<D>) -> Result<CheckReport> {
        let examined = opened.examine::<H>()?;
        let older_serves = examined.older_serves::<H>(&opened.device);
        let recovered = examined.recovered;
        let mut checker = Checker::<H, D> {
            opened,
            incarnation: examined.incarnation.number,
            options: self,
            overflow: opened.device.open(OVERFLOW_FILE, OpenMode::Read)?,
            hasher: PhantomData,
            runs: recovered.held_runs.clone(),
            report: CheckReport {
                root: recovered.tip.roots.first(),
                commit: recovered.tip.number,
                regions: recovered
                    .tries
                    .iter()
                    .map(|trie| trie.regions.regions().len() as u64)
                    .sum(),
                namespaces: recovered.tip.roots.iter().len() as u64,
                older_serves,
                ..CheckReport::default()
            },
        };
        if let Err(error) = opened.newest.check_features(true) {
            checker
                .report
                .add(Severity::Fatal, format!("it cannot be opened for writing: {error}"));
        }
        checker.opening(&examined.opening);
        checker.leaf_pages(&recovered.leaf_pages);
        checker.regions(&recovered);
        let leaf = opened.device.open(LEAF_FILE, OpenMode::Read)?;
        checker.children(&leaf, &recovered)?;
        checker.space(&recovered);
        Ok(checker.report)
    }
}

/// How a finding begins that is of a namespace; nothing for namespace 0.
fn of(namespace: u8) -> String {
    if namespace == 0 { String::new() } else { format!("namespace {namespace}: ") }
}

struct Checker<'a, H: Hasher, D: Device> {
    opened: &'a Opened<D>,
    incarnation: u32,
    options: CheckOptions,
    overflow: D::File,
    hasher: PhantomData<H>,
    /// Runs of the overflow file that something names.
    runs: Vec<PageRun>,
    report: CheckReport,
}

impl<H: Hasher, D: Device> Checker<'_, H, D> {
    fn finding(&mut self, what: String) {
        self.report.add(Severity::Survived, what);
    }

    /// What an open goes around.
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
        for note in &opening.notes {
            self.finding(note.to_string());
        }
    }

    fn leaf_pages(&mut self, pages: &[PageNo]) {
        let mut pages = pages.to_vec();
        pages.sort_unstable();
        for pair in pages.chunk_by(|a, b| a == b).filter(|same| same.len() > 1) {
            self.finding(format!("page {} of {LEAF_FILE} is named {} times", pair[0], pair.len()));
        }
    }

    fn regions(&mut self, recovered: &Recovered) {
        let tries = recovered.tries.iter().map(|trie| (trie.namespace, &trie.regions));
        let regions = tries.flat_map(|(namespace, index)| {
            index.regions().iter().map(move |region| (namespace, region))
        });
        for (namespace, region) in regions {
            let at = format!("{}region {:?}", of(namespace), region.prefix());
            let state = region.read();
            if let Some(nodes) = state.resident_nodes()
                && !state.folds_to_own::<H>(nodes)
            {
                self.finding(format!("{at}: its node does not follow from its children's"));
            }
            for dropped in state.dropped() {
                self.runs.extend(runs(&dropped.pending.stored));
            }
            let future = state
                .pending()
                .iter()
                .filter(|pending| pending.commit > recovered.tip.number)
                .count();
            if future > 0 {
                self.finding(format!("{at}: {future} changes of future commits"));
            }
        }
    }

    /// All children in key order. Few pages are folded here: threads cost more.
    fn children(&mut self, leaf: &D::File, recovered: &Recovered) -> Result<()> {
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
        leaf: &D::File,
        recovered: &'a Recovered,
    ) -> Result<()> {
        let known = Known {
            database: self.opened.newest.database,
            commit: self.report.commit,
            incarnation: self.incarnation,
        };
        let most = threads.map_or(0, |(_, count)| count * AHEAD);
        let mut folding: VecDeque<Receiver<Children>> = VecDeque::new();
        let mut start = |checker: &mut Self, batch: Vec<Visited<'a>>| {
            let (give, take) = sync_channel(1);
            let fold = move || {
                // Nobody takes it after an error.
                let _ = give.send(ChildrenFolder::<H>::fold(known, batch));
            };
            match threads {
                Some((scope, _)) => scope.spawn(move |_| fold()),
                None => fold(),
            }
            folding.push_back(take);
            while folding.len() > most {
                checker.take(folding.pop_front());
            }
        };
        let mut batch = Vec::with_capacity(BATCH);
        for trie in &recovered.tries {
            visit(&self.opened.device, leaf, &trie.regions, |visited| {
                batch.push(visited);
                if batch.len() == BATCH {
                    start(self, std::mem::replace(&mut batch, Vec::with_capacity(BATCH)));
                }
                Ok(true)
            })?;
        }
        start(self, batch);
        while !folding.is_empty() {
            self.take(folding.pop_front());
        }
        Ok(())
    }

    /// Takes in what came of a batch.
    fn take(&mut self, folding: Option<Receiver<Children>>) {
        // An error is a panic over there, which goes on where the threads end.
        let Some(Ok(children)) = folding.map(|folding| folding.recv()) else { return };
        self.report.pages += children.pages;
        self.report.keys += children.keys;
        for found in children.found {
            match found {
                Found::Finding(what) => self.finding(what),
                Found::LongValue(raw, at) => self.long_value(&raw, &at),
            }
        }
    }

    fn long_value(&mut self, raw: &[u8], at: &str) {
        self.report.long_values += 1;
        match OverflowCell::parse(raw) {
            Ok(cell) => self.runs.extend(cell.runs()),
            Err(error) => {
                return self.finding(format!("{at}: an overflow cell: {error}"));
            }
        }
        if self.options.values {
            let device = &self.opened.device;
            let read = read_from::<H, D>(device, &self.overflow, self.opened.newest.database, raw);
            if let Err(error) = read {
                self.finding(format!("{at}: a long value: {error}"));
            }
        }
    }

    /// Every page of the overflow file is named once or free.
    fn space(&mut self, recovered: &Recovered) {
        let mut named = std::mem::take(&mut self.runs);
        named.sort_unstable_by_key(|run| run.start);
        let mut free = recovered.extents.free_runs().peekable();
        let pages = recovered.extents.stats().pages;
        // Where the last named run, and the last page that is accounted for, end.
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

/// What a page is held against.
#[derive(Clone, Copy)]
struct Known {
    database: u64,
    /// Number of the newest commit.
    commit: u64,
    incarnation: u32,
}

/// What came of a batch of children.
#[derive(Default)]
struct Children {
    /// In the order of the children.
    found: Vec<Found>,
    pages: u64,
    keys: u64,
}

enum Found {
    Finding(String),
    /// A cell that names the overflow file, and where it is: still to be read.
    LongValue(Box<[u8]>, String),
}

/// Folds children, and reads nothing.
struct ChildrenFolder<H: Hasher> {
    known: Known,
    folder: BatchFolder<H>,
    children: Children,
}

impl<H: Hasher> ChildrenFolder<H> {
    fn fold(known: Known, batch: Vec<Visited<'_>>) -> Children {
        let (folder, children) = (BatchFolder::new(), Children::default());
        let mut own = Self { known, folder, children };
        for visited in batch {
            own.child(visited);
        }
        own.children
    }

    fn finding(&mut self, what: String) {
        self.children.found.push(Found::Finding(what));
    }

    fn long_value(&mut self, raw: &[u8], namespace: u8, prefix: &Prefix) {
        let at = format!("{}prefix {prefix:?}", of(namespace));
        self.children.found.push(Found::LongValue(raw.into(), at));
    }

    /// One child of a region: its page, what pends on it, and its node.
    fn child(&mut self, visited: Visited<'_>) {
        let state = visited.region.read();
        let prefix = state.children().prefix(visited.child);
        let mut changes: Vec<PendingChange> = Vec::new();
        state.copy_pending(&prefix, &mut changes);
        for (_, stored) in &changes {
            if let Stored::Overflow(raw) = stored {
                self.long_value(raw, state.namespace(), &prefix);
            }
        }
        let Some(number) = state.children().page(visited.child) else {
            self.children.keys +=
                changes.iter().filter(|change| change.1.is_present()).count() as u64;
            self.expect_node(&state, visited.child, None, &changes);
            return;
        };
        self.children.pages += 1;
        let buf = match visited.page {
            Some(Ok(buf)) => buf,
            Some(Err(error)) => {
                return self.finding(format!("page {number} of {LEAF_FILE}: {error}"));
            }
            None => return,
        };
        let tag = state.children().tag(visited.child);
        match parse(&buf, self.known.database, state.namespace(), number, tag) {
            Err(error) => self.finding(error.to_string()),
            Ok(view) => {
                self.page(&view, &prefix, number);
                let present = changes.iter().filter(|change| change.1.is_present()).count();
                let kept = view.len()
                    - changes.iter().filter(|change| view.find(&change.0).is_ok()).count();
                self.children.keys += (present + kept) as u64;
                self.expect_node(&state, visited.child, Some(&view), &changes);
            }
        }
    }

    fn page(&mut self, view: &LeafView<'_>, prefix: &Prefix, number: PageNo) {
        let at = format!("page {number} of {LEAF_FILE}");
        if view.prefix() != *prefix {
            self.finding(format!(
                "{at}: it is for {:?}, the index wants {prefix:?}",
                view.prefix()
            ));
        }
        if view.applied_through() > self.known.commit {
            self.finding(format!(
                "{at}: it contains commit {}, the newest is {}",
                view.applied_through(),
                self.known.commit
            ));
        }
        if view.flush() >> 32 > u64::from(self.known.incarnation) {
            self.finding(format!(
                "{at}: it was written by a future open, flush {:#x}",
                view.flush()
            ));
        }
        for (_, cell) in view.iter() {
            if let Cell::Overflow(cell) = cell {
                self.long_value(cell.bytes(), view.namespace(), prefix);
            }
        }
        self.stored_nodes(view, &at);
    }

    /// The nodes that a page stores are those of its cells.
    fn stored_nodes(&mut self, view: &LeafView<'_>, at: &str) {
        if view.levels() == 0 {
            return;
        }
        self.folder.clear();
        let mut cells = view.iter().peekable();
        let mut folds = Vec::with_capacity(view.nodes().len());
        for stored in 0..1u16 << view.levels() {
            let prefix = below(&view.prefix(), view.levels(), stored);
            self.folder.begin(prefix.len());
            while let Some((key, cell)) = cells.next_if(|(key, _)| prefix.covers(key)) {
                self.folder.unaccessed(&key, cell_value(&cell));
            }
            folds.push(self.folder.end().expect("no terminal is placed here"));
        }
        self.folder.run();
        for (index, (fold, stored)) in folds.into_iter().zip(view.nodes()).enumerate() {
            if self.folder.node(fold) != *stored {
                self.finding(format!("{at}: its stored node {index} is not that of its cells"));
            }
        }
    }

    /// The node in the index is that of the page's cells and what pends on it.
    fn expect_node(
        &mut self,
        state: &RegionState,
        child: usize,
        view: Option<&LeafView<'_>>,
        changes: &[PendingChange],
    ) {
        let Some(expected) = state.node(child).copied() else { return };
        let prefix = state.children().prefix(child);
        let found = if view.is_none() && changes.is_empty() {
            TERMINATOR
        } else {
            self.folder.clear();
            self.folder.begin(prefix.len());
            let page =
                PageState { at: &prefix, leaf: view, pending: changes, treelet: None, then: None };
            fold_leaf(&mut self.folder, &page, 0, &[], &mut Vec::new());
            let fold = self.folder.end().expect("no terminal is placed here");
            self.folder.run();
            self.folder.node(fold)
        };
        if found != expected {
            self.finding(format!(
                "{}prefix {prefix:?}: its pairs fold to {}, the index has {}",
                of(state.namespace()),
                hex(found),
                hex(expected)
            ));
        }
    }
}
