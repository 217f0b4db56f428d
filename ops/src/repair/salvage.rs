//! The readable part of a damaged database, as an export stream.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use pleach::internals::error::Contradiction;
use pleach::internals::open::examine::Examination;
use pleach::internals::open::pages::{parse, visit};
use pleach::internals::open::recovery::RecoveredTrie;
use pleach::internals::roots::TrieRoot;
use pleach::internals::state::{assemble_value, page_of_value, read_pieces};
use pleach::{BadPage, Roots};
use pleach_beatree::Stored;
use pleach_core::fold::{FoldValue, RootFolder};
use pleach_core::{Hasher, Key, Prefix};
use pleach_io::{Disk, OpenMode};
use pleach_journal::format::names::{LEAF_FILE, OVERFLOW_FILE};
use pleach_journal::format::superblock_store::SuperblockStore;
use pleach_journal::log::{CutReport, ScanError, walk_whole_records};

use crate::error::Result;
use crate::export::{ExportReport, StreamWriter};
use crate::losses::LostCommits;
use crate::opened::{OpenedDatabase, device};
use crate::repair::lost::{LogReach, reaches_before_repairs};

/// The result of a salvage.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SalvageReport {
    /// The stream. Its commit is the one before which nothing is missing of the log; with losses its state is that of
    /// no commit.
    pub export: ExportReport,
    /// The roots of the pairs in the stream; digests are those of the commit.
    pub roots: Roots,
    /// The roots that the commit recorded.
    pub expected: Roots,
    /// Why the database does not open as it is: its log is damaged, a file is cut or missing.
    pub error: Option<pleach::Error>,
    /// The commits that are lost with the log, also those that an earlier repair cut off.
    pub lost_commits: LostCommits,
    /// The log ends in a record that was torn: a commit that was never acknowledged as durable. Rot in the very last
    /// record looks the same.
    pub torn: Option<CutReport>,
    /// All pages that cannot be used: of a leaf page all pairs are lost that no later change has replaced, of a page of
    /// the overflow file the pair of one key.
    pub lost: Vec<BadPage>,
}

/// Writes an export stream of all pairs of the folder's database that can be read: of good pages, and buffered changes.
/// With losses this is the state of no commit: its head has the roots of exactly these pairs, so that it can be
/// imported. A damaged log ends at the damage. All pages count as bad that a cut or missing file does not have.
/// Everything is read twice; nothing in the folder is changed.
///
/// # Errors
/// A folder without a database, one that is open for writing; [`Stream`](crate::Error::Stream) when the stream cannot
/// be written. Without a superblock and an image there is nothing to be salvaged.
pub fn salvage(path: &Path, to: &mut dyn Write) -> Result<SalvageReport> {
    salvage_on(device(path)?, None, to)
}

/// The same on any device, of a database with any hasher: an application gives its own.
///
/// # Errors
/// As [`salvage`].
pub fn salvage_on(
    device: impl Into<Disk>,
    hasher: Option<Hasher>,
    to: &mut dyn Write,
) -> Result<SalvageReport> {
    let opened = &OpenedDatabase::new(&device.into(), hasher)?;
    opened.require_lock()?;
    let (examined, error) = match opened.examine_present() {
        Ok(examined) => (examined, None),
        Err(error) => match opened.examine_salvage() {
            Ok(examined) => (examined, Some(error)),
            Err(_) => return Err(error.into()),
        },
    };
    let Examination { superblocks, recovered, opening, .. } = examined;
    let behind = recovered.tip.number.saturating_add(1);
    let mut lost_commits = LostCommits { numbers: behind..behind, maybe_more: false };
    if error.is_some() {
        // The newest superblock counts, though its image may be bad.
        let all = SuperblockStore::open(opened.device.clone(), OpenMode::Read)?;
        let (mut reach, in_use) = (LogReach::new(Some(&all)), superblocks.newest());
        let (size, from) = (in_use.geometry.log_segment, in_use.replay.position);
        walk_whole_records::<ScanError>(&opened.device, in_use.database, size, from, |record| {
            reach.record(&record.header);
            Ok(ControlFlow::Continue(()))
        })?;
        let log = (in_use.database, size);
        lost_commits = reach.lost(&opened.device, log, recovered.tip.number)?;
    }
    let (tip, mut lost) = (&recovered.tip, Vec::new());
    let log = (superblocks.newest().database, superblocks.newest().geometry.log_segment);
    for (before, reach) in reaches_before_repairs(&opened.device, log)? {
        if reach.newest >= tip.number {
            lost_commits.add(&reach.lost(&before, log, tip.number)?);
        }
    }
    let mut roots = Vec::new();
    for (namespace, TrieRoot { kind, node }) in tip.roots.all() {
        let mut folder = RootFolder::new(opened.hasher);
        let list = |bad| {
            lost.push(bad);
            Ok(())
        };
        pairs(opened, recovered.trie(namespace)?, list, |key, value| {
            let taken = folder.pair(key, FoldValue::Bytes(value));
            taken.map_err(|_| Contradiction::KeyOrder { key: *key })?;
            Ok(true)
        })?;
        let found = TrieRoot { kind, node: folder.root() };
        roots.push((namespace, found.merkle().map_or(TrieRoot { kind, node }, |_| found)));
    }
    let roots = Roots::new(roots);
    let mut again = 0;
    let mut writer = StreamWriter::new(opened.hasher, to, (None, tip.number), &tip.blob, &roots)?;
    for (namespace, _) in roots.all() {
        writer.begin(namespace);
        let go_over = |_| {
            again += 1;
            Ok(())
        };
        pairs(opened, recovered.trie(namespace)?, go_over, |key, value| {
            writer.pair(key, value)?;
            Ok(true)
        })?;
        writer.end()?;
    }
    if again != lost.len() {
        let (first, second) = (lost.len(), again);
        return Err(Contradiction::ReadsDiffer { first, second }.into());
    }
    let export = writer.finish()?;
    let (expected, torn) = (tip.roots.clone(), opening.cut);
    Ok(SalvageReport { export, roots, expected, error, lost_commits, torn, lost })
}

/// Calls `each` with all pairs of a trie, in key order, until it returns false. A page that cannot be used is given to
/// `bad`, which may go on without it.
fn pairs(
    opened: &OpenedDatabase,
    trie: &RecoveredTrie,
    mut bad: impl FnMut(BadPage) -> Result<()>,
    mut each: impl FnMut(&Key, &[u8]) -> Result<bool>,
) -> Result<()> {
    let (device, database, namespace) = (&opened.device, opened.newest.database, trie.namespace);
    let [leaf, overflow] = [LEAF_FILE, OVERFLOW_FILE].map(|name| device.open(name, OpenMode::Read));
    visit(device, leaf.as_ref(), &trie.regions, |visited| {
        let state = visited.region.read();
        let child = visited.child;
        let prefix = state.children().prefix(child);
        let buffered = state.buffered_below(&prefix);
        let mut pairs: Vec<(Key, Stored)> = Vec::new();
        if let (Some(page), Some(number)) = (visited.page, state.children().page(child)) {
            let tag = state.children().tag(child);
            let cells = page.map_err(pleach::Error::from).and_then(|buf| {
                let view = parse(&buf, database, namespace, number, tag)?;
                pairs.extend(view.iter().map(|(key, cell)| (key, Stored::from_cell(cell))));
                Ok(())
            });
            if let Err(error) = cells {
                let (page, keys) = (u64::from(number), Some((namespace, prefix)));
                bad(BadPage::new(LEAF_FILE, page, keys, error))?;
            }
        }
        let changes = buffered.iter().map(|buffered| (buffered.key, buffered.stored.clone()));
        pleach::internals::state::merge_changes(&mut pairs, 0, changes);
        for (key, stored) in pairs {
            let value = match stored {
                Stored::Absent => continue,
                Stored::Inline(value) => value,
                Stored::Long(large) => large.bytes.clone(),
                Stored::Overflow(raw) => {
                    let read = overflow.as_ref().map_err(|error| error.clone().into());
                    let read = read.and_then(|file| {
                        let pieces = read_pieces(device, file, &raw);
                        Ok(assemble_value(opened.hasher, database, &raw, pieces)?)
                    });
                    match read {
                        Ok(value) => value,
                        Err(error) => {
                            let page = page_of_value(device, overflow.as_ref().ok(), &raw, &error);
                            let keys = Some((namespace, Prefix::new(&key, 256)));
                            bad(BadPage::new(OVERFLOW_FILE, page, keys, error))?;
                            continue;
                        }
                    }
                }
            };
            if !each(&key, &value)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}
