//! A run on the device: a run in memory written to pages of the overflow file. See `docs/history-runs.md`.
//!
//! A run is written once, by [`write`], and named by images ([`RunDescriptor`]). A lookup goes from the root of its
//! index to a page of entries ([`read`]). Each page names its run and its place in the run, so that an overwritten page
//! is noticed.

mod entry;
mod merge;
mod read;
mod write;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use pleach_beatree::files::OVERFLOW_FILE;
use pleach_core::Hasher;
use pleach_core::page::overflow::{MAX_EXTENT_PAGES, OverflowExtent};
use pleach_core::page::{FileKind, Identity, MAX_PAGE_NO};
use pleach_io::{Disk, File, IoError, OpenMode};

pub use self::entry::entries_of;
pub use self::merge::DiskMerge;
pub(super) use self::merge::write_run;
use self::read::RunPageCache;
use crate::filter::Secret;
use crate::run::RunSize;

/// The file of runs: the overflow file. It is opened when the first page is read.
pub struct RunFile {
    /// The hash function of the database.
    pub hasher: Hasher,
    /// The device of the file.
    pub device: Disk,
    file: OnceLock<File>,
    /// The file for writing.
    to_write: OnceLock<File>,
    database: u64,
    cache: Mutex<RunPageCache>,
    /// Pages that were allocated for runs and belong to none any more.
    unused: Mutex<Vec<OverflowExtent>>,
    /// Bytes written.
    written: AtomicU64,
}

impl RunFile {
    /// The file of this database, with up to `most` pages in memory.
    pub fn new(hasher: Hasher, device: Disk, database: u64, most: u64) -> Self {
        Self {
            hasher,
            device,
            file: OnceLock::new(),
            to_write: OnceLock::new(),
            database,
            cache: Mutex::new(RunPageCache::new(usize::try_from(most).unwrap_or(usize::MAX))),
            unused: Mutex::default(),
            written: AtomicU64::new(0),
        }
    }

    /// Lets runs be written from now on, to this file.
    pub fn write_to(&self, file: File) {
        self.to_write.get_or_init(|| file);
    }

    fn file(&self) -> Result<&File, IoError> {
        if let Some(file) = self.to_write.get().or_else(|| self.file.get()) {
            return Ok(file);
        }
        let file = self.device.open(OVERFLOW_FILE, OpenMode::Read)?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Takes the pages that were allocated for runs and belong to none any more: they are free.
    pub fn take_unused(&self) -> Vec<OverflowExtent> {
        std::mem::take(&mut self.unused.lock())
    }

    /// Bytes of runs that were written since the file was opened, by merges too.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn identity(&self, page: u64) -> Identity {
        Identity { kind: FileKind::Overflow, page_no: page, db_id: self.database }
    }
}

/// Most keys for which a filter has a line.
const KEYS_A_LINE: usize = 52;
/// More merges than commits allow.
const MOST_LENGTH: usize = 64;

/// The lengths of the prefixes of a part: a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PrefixLengths([u64; 4]);

/// The record of a run on the device in an image, by which the run is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunDescriptor {
    /// The number that all its pages carry as their flush number.
    number: u64,
    /// The run has the values that the commits after this one replaced, through `last_commit`.
    pub after: u64,
    /// The last of its commits.
    pub last_commit: u64,
    /// How often its contents were merged.
    pub(super) merge_level: usize,
    /// Its topmost page of the index.
    root: u32,
    /// The first page of the filter, and its number of lines.
    filter: u32,
    lines: u32,
    secret: Secret,
    /// Of pages and of regions.
    lengths: [PrefixLengths; 2],
    /// Bytes of the overflow file of long values that its commits replaced.
    pub value_bytes: u64,
    /// Number of keys.
    pub(super) keys: usize,
    /// The run's pages in the overflow file.
    pub pages: Vec<OverflowExtent>,
    /// Number in the run of the first page of each of these.
    firsts: Vec<u32>,
}

impl RunDescriptor {
    /// Adds neighbouring pages to the run.
    fn add_pages(&mut self, run: OverflowExtent) {
        self.firsts.push(self.page_count());
        self.pages.push(run);
    }

    /// The number of the run's pages.
    fn page_count(&self) -> u32 {
        let last = self.firsts.last().zip(self.pages.last());
        last.map_or(0, |(first, last)| first.saturating_add(last.pages))
    }

    /// The page number in the file of the run's page `index`.
    fn page(&self, index: u32) -> Option<u64> {
        let at = self.firsts.partition_point(|first| *first <= index).checked_sub(1)?;
        let (run, offset) = (self.pages.get(at)?, index - self.firsts[at]);
        (offset < run.pages).then(|| run.start + u64::from(offset))
    }

    /// Keeps the first `keep` pages. Gives the others.
    fn cut(&mut self, keep: u32) -> Vec<OverflowExtent> {
        let (mut left, mut gone) = (keep, Vec::new());
        self.pages.retain_mut(|run| {
            let kept = run.pages.min(left);
            if kept < run.pages {
                gone.push(OverflowExtent {
                    start: run.start + u64::from(kept),
                    pages: run.pages - kept,
                });
            }
            (run.pages, left) = (kept, left - kept);
            kept > 0
        });
        self.firsts.truncate(self.pages.len());
        gone
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.pages.iter().map(|run| u64::from(run.pages) * 4096).sum()
    }

    /// Appends the descriptor, for [`Self::decode`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let words = [self.number, self.after, self.last_commit, self.value_bytes, self.keys as u64];
        let lengths = self.lengths.iter().flat_map(|lengths| lengths.0);
        for word in words.into_iter().chain(self.secret.0).chain(lengths) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let short = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let counts =
            [self.root, self.filter, self.lines, short(self.merge_level), short(self.pages.len())];
        out.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
        for run in &self.pages {
            out.extend_from_slice(&run.start.to_le_bytes()[..5]);
            out.extend_from_slice(&run.pages.to_le_bytes()[..3]);
        }
    }

    /// The first encoded descriptor, and the bytes behind it. `None` when it is invalid.
    pub fn decode(mut bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut names = Self::default();
        let mut word = || {
            let (word, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            Some(u64::from_le_bytes(*word))
        };
        let Self { number, after, last_commit, value_bytes, .. } = &mut names;
        for field in [number, after, last_commit, value_bytes] {
            *field = word()?;
        }
        names.keys = usize::try_from(word()?).ok()?;
        let Self { secret, lengths: [pages, regions], .. } = &mut names;
        for field in secret.0.iter_mut().chain(&mut pages.0).chain(&mut regions.0) {
            *field = word()?;
        }
        let mut count = || {
            let (count, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            Some(u32::from_le_bytes(*count))
        };
        (names.root, names.filter, names.lines) = (count()?, count()?, count()?);
        names.merge_level = usize::try_from(count()?).ok()?;
        let runs = count()?;
        for _ in 0..runs {
            let ([a, b, c, d, e, f, g, h], rest) = bytes.split_first_chunk()?;
            bytes = rest;
            let start = u64::from_le_bytes([*a, *b, *c, *d, *e, 0, 0, 0]);
            let run = OverflowExtent { start, pages: u32::from_le_bytes([*f, *g, *h, 0]) };
            names.page_count().checked_add(run.pages)?;
            names.add_pages(run);
        }
        let is_inside = |run: &OverflowExtent| {
            let end = run.start.saturating_add(run.pages.into());
            (1..=MAX_EXTENT_PAGES).contains(&run.pages) && end <= MAX_PAGE_NO + 1
        };
        let fits = names.after < names.last_commit
            && names.root.checked_add(1) == Some(names.filter)
            && names.filter.checked_add(names.lines.div_ceil(write::LINES))
                == Some(names.page_count())
            && names.lines > 0
            && names.keys <= names.lines as usize * KEYS_A_LINE
            && names.merge_level <= MOST_LENGTH
            && names.pages.iter().all(is_inside);
        fits.then_some((names, bytes))
    }
}

/// A run on the device. Its pages become unused when it is dropped.
pub struct DiskRun {
    /// The run's descriptor.
    pub descriptor: RunDescriptor,
    file: Arc<RunFile>,
    /// True since a page could not be used, until a check finds the run whole.
    is_bad: AtomicBool,
}

impl DiskRun {
    /// The run with this descriptor.
    pub fn new(names: RunDescriptor, file: &Arc<RunFile>) -> Self {
        Self { descriptor: names, file: Arc::clone(file), is_bad: AtomicBool::new(false) }
    }

    /// The size on the device.
    pub fn size(&self) -> RunSize {
        let RunDescriptor { after, last_commit, value_bytes, .. } = self.descriptor;
        RunSize { after, last_commit, bytes: self.descriptor.bytes(), value_bytes }
    }

    /// True when a page of the run could not be used: merges go round it.
    pub fn is_bad(&self) -> bool {
        self.is_bad.load(Ordering::Relaxed)
    }
}

impl Drop for DiskRun {
    fn drop(&mut self) {
        self.file.unused.lock().append(&mut self.descriptor.pages);
    }
}
