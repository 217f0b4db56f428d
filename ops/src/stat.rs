//! The contents of a folder. A few leaf pages are read, over the whole index: a folder that was copied while its
//! database was open opens, but its leaf pages are of another time than its index.

use std::path::Path;
use std::time::{Duration, SystemTime};

use pleach::internals::hexadecimal::hex;
use pleach::internals::open::pages::parse;
use pleach::internals::open::recovery::{RecoveredState, RecoveredTrie};
use pleach::internals::state::Undo;
use pleach::status::{Note, Opening};
use pleach::{Error, Result, Roots};
use pleach_core::{Hasher, Node};
use pleach_io::{Disk, OpenMode, PAGE, PageBuf};
use pleach_journal::format::names::{LEAF_FILE, image_name};
use pleach_journal::format::superblock::{DurabilityMode, SlotError, Superblock};

use crate::opened::{OpenedDatabase, device};

/// Leaf pages that are read.
const SAMPLE: usize = 256;

/// Figures of a database, as recovery sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stat {
    /// Root of namespace 0 in the newest commit.
    pub root: Node,
    /// The tries of all namespaces, ascending.
    pub namespaces: Vec<NamespaceStat>,
    /// The number of the newest commit.
    pub commit: u64,
    /// The oldest commit that can be read.
    pub oldest_commit: u64,
    /// Bytes of the device that the runs of the history take.
    pub history_bytes: u64,
    /// Commits of these runs.
    pub history_commits: u64,
    /// When the oldest commit behind [`Self::oldest_commit`] was made, where that is known.
    pub history_since: Option<SystemTime>,
    /// Bytes of the newest commit's blob.
    pub blob_bytes: usize,
    /// Name of the hasher.
    pub hasher: &'static str,
    /// Leaf pages.
    pub pages: u64,
    /// Prefixes without a page.
    pub empty_prefixes: u64,
    /// Regions of the index.
    pub regions: u64,
    /// Changes buffered: committed and not yet in a page.
    pub buffered_entries: u64,
    /// Bytes of memory of the buffered changes.
    pub pending_bytes: u64,
    /// Pages of the overflow file in use, and all of them.
    pub overflow_pages: (u64, u64),
    /// Files and their bytes, by name.
    pub files: Vec<(String, u64)>,
    /// Bytes of log that an open replays.
    pub log_replay_bytes: u64,
    /// What an open would find: whether the database was closed, what the open would cut off, and what it would
    /// tolerate. A note counts the leaf pages that do not fit, of the few that are read.
    pub opening: Opening,
    /// The superblock in use.
    pub superblock: Superblock,
    /// The other slot.
    pub other_slot: core::result::Result<Superblock, SlotError>,
    /// Writable opens so far.
    pub incarnation: u32,
    /// True when a process has the database open for writing.
    pub in_use: bool,
}

/// Figures of a namespace's trie.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceStat {
    /// The namespace's number.
    pub number: u8,
    /// The namespace's root in the newest commit; none when it was dropped, or is plain.
    pub root: Option<Node>,
    /// The namespace's digest in the newest commit, when it is plain.
    pub digest: Option<[u8; 32]>,
    /// The commit that dropped the namespace: it still exists for older commits, or is not yet reclaimed.
    pub dropped: Option<u64>,
    /// The namespace's leaf pages.
    pub pages: u64,
    /// The namespace's regions.
    pub regions: u64,
    /// The namespace's buffered changes.
    pub buffered_entries: u64,
}

impl NamespaceStat {
    fn of(trie: &RecoveredTrie, roots: &Roots) -> Self {
        let mut figures = Self {
            number: trie.namespace,
            root: roots.get(trie.namespace),
            digest: roots.digest(trie.namespace),
            dropped: trie.dropped,
            pages: 0,
            regions: trie.regions.regions().len() as u64,
            buffered_entries: 0,
        };
        for region in trie.regions.regions() {
            let state = region.read();
            let children = state.children();
            let pages = (0..children.len()).filter(|child| children.page(*child).is_some());
            figures.pages += pages.count() as u64;
            figures.buffered_entries += state.buffered().len() as u64;
        }
        figures
    }
}

/// Figures of the folder's database.
///
/// # Errors
/// A folder without a database, damage.
pub fn stat(path: &Path) -> Result<Stat> {
    stat_on(device(path)?, None)
}

/// The same on any device, of a database with any hasher: an application gives its own.
///
/// # Errors
/// As [`stat`].
pub fn stat_on(device: impl Into<Disk>, hasher: Option<Hasher>) -> Result<Stat> {
    let opened = &OpenedDatabase::new(&device.into(), hasher)?;
    let mut examined = opened.examine()?;
    let recovered = &examined.recovered;
    // Beside a writing process pages move, and a file may be renamed.
    if !opened.is_live() {
        examined.opening.notes.extend(sample(opened, recovered)?);
    }
    let superblock = *examined.superblocks.newest();
    let regions = || recovered.tries.iter().flat_map(|trie| trie.regions.regions());
    let children: usize = regions().map(|region| region.read().children().len()).sum();
    let pages = recovered.leaf_pages.len();
    let mut files = Vec::new();
    for name in opened.device.list()? {
        match opened.device.open(&name, OpenMode::Read) {
            // Renamed since.
            Err(error) if error.is_not_found() && opened.is_live() => {}
            file => files.push((name, opened.device.len(&file?)?)),
        }
    }
    files.sort();
    let (extents, undo) = (recovered.extents.stats(), &recovered.history.undo);
    Ok(Stat {
        root: recovered.tip.roots.first(),
        namespaces: (recovered.tries.iter())
            .map(|trie| NamespaceStat::of(trie, &recovered.tip.roots))
            .collect(),
        commit: recovered.tip.number,
        oldest_commit: undo.oldest_commit(),
        history_bytes: undo.disk_bytes(),
        history_commits: undo.disk_commits(),
        history_since: since(undo, recovered.tip.number),
        blob_bytes: recovered.tip.blob.len(),
        hasher: opened.hasher.name(),
        pages: pages as u64,
        empty_prefixes: (children - pages) as u64,
        regions: regions().count() as u64,
        buffered_entries: recovered.buffered_entries as u64,
        pending_bytes: recovered.buffered_bytes as u64,
        overflow_pages: (extents.live + extents.retired, extents.pages),
        files,
        log_replay_bytes: examined.opening.replayed,
        superblock,
        other_slot: *examined.superblocks.other(),
        incarnation: examined.incarnation.number,
        in_use: opened.is_live(),
        opening: examined.opening,
    })
}

/// Checks that some of the leaf pages fit the index.
fn sample(opened: &OpenedDatabase, recovered: &RecoveredState) -> Result<Option<Note>> {
    let file = opened.device.open(LEAF_FILE, OpenMode::Read)?;
    let step = recovered.leaf_pages.len().div_ceil(SAMPLE).max(1);
    let (mut at, mut read, mut bad, mut first) = (0, 0, 0, None);
    for region in recovered.tries.iter().flat_map(|trie| trie.regions.regions()) {
        let state = region.read();
        let children = state.children();
        for child in 0..children.len() {
            let Some(number) = children.page(child) else { continue };
            at += 1;
            if (at - 1) % step != 0 {
                continue;
            }
            let mut buf = PageBuf::zeroed(1);
            let (database, namespace) = (opened.newest.database, state.namespace());
            let found = opened.device.read_at(&file, &mut buf, number.offset());
            let found = found.map_err(Error::from).and_then(|()| {
                parse(&buf, database, namespace, number, children.tag(child)).map(drop)
            });
            read += 1;
            if let Err(error) = found {
                bad += 1;
                first.get_or_insert(error);
            }
        }
    }
    Ok(first.map(|error| Note {
        file: LEAF_FILE.to_owned(),
        what: format!(
            "{bad} of {read} pages that were read do not fit the index: {error}; look at all with `pleach check`"
        ),
    }))
}

/// When the oldest commit that a history has undo of was made, where that is known.
fn since(undo: &Undo, tip: u64) -> Option<SystemTime> {
    let oldest = Some(undo.oldest_commit() + 1).filter(|oldest| *oldest <= tip)?;
    // A damaged run is found by a check.
    let seconds = undo.committed_at(oldest).ok()??;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

impl Stat {
    /// The line of the history.
    fn history(&self) -> String {
        let wanted = match self.superblock.history {
            u64::MAX => "all".to_owned(),
            wanted => wanted.to_string(),
        };
        let since = self.history_since.map_or_else(String::new, |since| {
            format!(", since {}", humantime::format_rfc3339_seconds(since))
        });
        format!(
            "commits {} to {} can be read{since}; {wanted} before the newest are kept; {} bytes, {} a commit",
            self.oldest_commit,
            self.commit,
            self.history_bytes,
            self.history_bytes_per_commit()
        )
    }

    /// Bytes of the device that a commit of the history takes; 0 without runs.
    pub fn history_bytes_per_commit(&self) -> u64 {
        self.history_bytes.checked_div(self.history_commits).unwrap_or(0)
    }

    fn file(&self, name: &str) -> u64 {
        self.files.iter().find(|file| file.0 == name).map_or(0, |file| file.1)
    }
}

impl std::fmt::Display for Stat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let block = &self.superblock;
        let geometry = &block.geometry;
        writeln!(f, "root            {}", hex(self.root))?;
        writeln!(f, "commit          {} (blob of {} bytes)", self.commit, self.blob_bytes)?;
        writeln!(f, "history         {}", self.history())?;
        // With namespace 0 alone the lines above and below have said it.
        for namespace in self.namespaces.iter().filter(|_| self.namespaces.len() > 1) {
            let state = match (namespace.root, namespace.dropped) {
                (Some(root), _) => format!("root {}", hex(root)),
                (None, Some(commit)) => format!("dropped by commit {commit}"),
                (None, None) => "unknown".to_owned(),
            };
            writeln!(
                f,
                "namespace {:<5} {state}, {} leaf pages, {} regions, {} changes buffered",
                namespace.number, namespace.pages, namespace.regions, namespace.buffered_entries
            )?;
        }
        writeln!(f, "hasher          {}", self.hasher)?;
        writeln!(
            f,
            "leaf pages      {} of {} in the file, {} prefixes without one, {} regions",
            self.pages,
            self.file(LEAF_FILE) / PAGE as u64,
            self.empty_prefixes,
            self.regions
        )?;
        writeln!(
            f,
            "overflow pages  {} of {} in use",
            self.overflow_pages.0, self.overflow_pages.1
        )?;
        writeln!(
            f,
            "buffered        {} changes, {} bytes",
            self.buffered_entries, self.pending_bytes
        )?;
        writeln!(f, "log to replay   {} bytes", self.log_replay_bytes)?;
        write!(
            f,
            "superblock      generation {}, commit {}, {}",
            block.generation,
            block.commit,
            image_name(block.image.file)
        )?;
        match &self.other_slot {
            Ok(other) => writeln!(
                f,
                "; other slot generation {}, commit {}",
                other.generation, other.commit
            )?,
            Err(error) => writeln!(f, "; other slot {error}")?,
        }
        let durability = match block.durability {
            DurabilityMode::Commit => "commit".to_owned(),
            DurabilityMode::Periodic(ms) => format!("every {ms} ms"),
            DurabilityMode::None => "none".to_owned(),
        };
        let closed = match (self.in_use, self.opening.closed) {
            (true, _) => "open now",
            (_, true) => "closed",
            _ => "not closed",
        };
        writeln!(
            f,
            "last use        incarnation {}, durability {durability}, {closed}",
            self.incarnation
        )?;
        writeln!(
            f,
            "geometry        segments: leaf {} KiB, overflow {} KiB, log {} KiB; size factor {} %",
            geometry.leaf_segment >> 10,
            geometry.overflow_segment >> 10,
            geometry.log_segment >> 10,
            geometry.size_factor_percent
        )?;
        if let Some(cut) = &self.opening.cut {
            write!(f, "log cut         at {:#x}: ", cut.position)?;
            match cut.records {
                0 => writeln!(f, "torn, no record there can be recognised")?,
                records => writeln!(f, "{records} torn records, {} bytes", cut.bytes)?,
            }
        }
        if let Some(error) = &self.opening.fell_back {
            writeln!(f, "fallen back     the newest checkpoint cannot be used: {error}")?;
        }
        for note in &self.opening.notes {
            writeln!(f, "note            {note}")?;
        }
        let total: u64 = self.files.iter().map(|file| file.1).sum();
        write!(f, "files           {total} bytes")?;
        for (name, bytes) in &self.files {
            write!(f, "\n  {name:<22} {bytes:>14}")?;
        }
        Ok(())
    }
}
