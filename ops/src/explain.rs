//! The place of a key: its region, its page, its buffered change, and the depth of its terminal.

use std::path::Path;

use pleach::internals::hexadecimal::hex;
use pleach::internals::open::pages::parse;
use pleach::internals::state::Undo;
use pleach::{Error, Result};
use pleach_beatree::{RegionIndex, RegionState, Stored};
use pleach_core::node::{NodeKind, kind};
use pleach_core::prefix::{Prefix, common_len};
use pleach_core::{Hasher, Key};
use pleach_io::{Disk, OpenMode, PageBuf};
use pleach_journal::format::names::LEAF_FILE;
use pleach_journal::format::trie_kind::TrieKind;

use crate::opened::{OpenedDatabase, device};

/// Several lines about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The lines.
    pub lines: Vec<String>,
    /// The newest commit.
    pub commit: u64,
    /// The region, by its place among all of the namespace.
    pub region: usize,
    /// Number of the leaf page; none where the prefix has none yet.
    pub page: Option<u64>,
    /// The commit of a buffered change of the key.
    pub buffered: Option<u64>,
    /// True when the key has a value.
    pub present: bool,
    /// Depth of the terminal that proves it, and so the number of siblings of its proof; 0 in a plain namespace, which
    /// has no proofs.
    pub depth: u16,
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// The place of a key in a namespace of the folder's database, in the newest state.
///
/// # Errors
/// A folder without a database, damage on the way to the key;
/// [`Error::Namespace`](pleach::Error::Namespace) when there is none of this number.
pub fn explain(path: &Path, namespace: u8, key: &Key) -> Result<Explanation> {
    explain_on(device(path)?, None, namespace, key, false)
}

/// Like [`explain`], with the key's value before each commit of the history that changed it, the newest first: reads
/// the whole history.
///
/// # Errors
/// As [`explain`].
pub fn explain_past(path: &Path, namespace: u8, key: &Key) -> Result<Explanation> {
    explain_on(device(path)?, None, namespace, key, true)
}

/// Like [`explain`] or, with `past`, [`explain_past`], on any device, with any hasher: an application gives its own.
///
/// # Errors
/// As [`explain`].
pub fn explain_on(
    device: impl Into<Disk>,
    hasher: Option<Hasher>,
    namespace: u8,
    key: &Key,
    past: bool,
) -> Result<Explanation> {
    let opened = OpenedDatabase::new(&device.into(), hasher)?;
    let left = if opened.is_live() { TRIES } else { 0 };
    Explainer { namespace, key, past }.explain(&opened, left)
}

/// Tries beside a process that writes.
const TRIES: u32 = 16;

#[derive(Clone, Copy)]
struct Explainer<'a> {
    namespace: u8,
    key: &'a Key,
    past: bool,
}

impl Explainer<'_> {
    /// Explains; where the page was replaced before it was read, up to `retries` times again.
    fn explain(self, opened: &OpenedDatabase, retries: u32) -> Result<Explanation> {
        let Self { namespace, key, past } = self;
        let examined = opened.examine()?;
        let recovered = examined.recovered;
        let regions = &recovered.trie(namespace)?.regions;
        let root = recovered.tip.roots.of(namespace).ok_or(Error::Namespace(namespace))?;
        let says = if root.kind == TrieKind::Plain { "plain, digest" } else { "root" };
        let mut lines = vec![
            format!("key      {}, namespace {namespace}", hex(key)),
            format!("commit   {}, {says} {}", recovered.tip.number, hex(root.node)),
        ];
        let index = regions.find(key);
        let region = &regions.regions()[index];
        let state = region.read();
        let child = state.children().find(key);
        let prefix = state.children().prefix(child);
        lines.push(format!(
            "region   number {index} of {}, prefix {:?}, {} children, {} buffered changes, last changed by commit {}",
            regions.regions().len(),
            region.prefix(),
            state.children().len(),
            state.buffered().len(),
            state.last_commit()
        ));
        let page = state.children().page(child);
        let mut pairs: Vec<(Key, Stored)> = Vec::new();
        match page {
            None => lines.push(format!("page     none for prefix {prefix:?}")),
            Some(number) => {
                let file = opened.device.open(LEAF_FILE, OpenMode::Read)?;
                let mut buf = PageBuf::zeroed(1);
                opened.device.read_at(&file, &mut buf, number.offset())?;
                let tag = state.children().tag(child);
                let view = match parse(&buf, opened.newest.database, namespace, number, tag) {
                    // The page was replaced: the key is looked up again.
                    Err(_) if retries > 0 => return self.explain(opened, retries - 1),
                    view => view?,
                };
                lines.push(format!(
                    "page     number {number}, tag {tag:#010x}, prefix {prefix:?}, {} keys, applied through commit {}, flush {:#x}",
                    view.len(),
                    view.applied_through(),
                    view.flush()
                ));
                let cell = view.find(key).ok().map(|cell| Stored::from_cell(view.cell(cell)));
                lines.push(format!("in page  {}", describe(&cell.unwrap_or_default())));
                pairs.extend(view.iter().map(|(key, cell)| (key, Stored::from_cell(cell))));
            }
        }
        let buffered = state.buffered_change(key).map(|buffered| buffered.commit);
        match state.buffered_change(key) {
            None => lines.push("buffered nothing".to_owned()),
            Some(buffered) => {
                lines.push(format!(
                    "buffered {}, by commit {}",
                    describe(&buffered.stored),
                    buffered.commit
                ));
            }
        }
        let below = state.buffered_below(&prefix).iter();
        let changes = below.map(|buffered| (buffered.key, buffered.stored.clone()));
        pleach::internals::state::merge_changes(&mut pairs, 0, changes);
        pairs.retain(|(_, stored)| stored.is_present());
        let found = pairs.iter().find(|pair| pair.0 == *key);
        lines.push(format!("value    {}", describe(found.map_or(&Stored::Absent, |pair| &pair.1))));
        let present = found.is_some();
        if past {
            lines.extend(history(&recovered.history.undo, recovered.tip.number, namespace, key)?);
        }
        drop(state);
        let commit = recovered.tip.number;
        let page = page.map(|number| number.get().into());
        let mut told =
            Explanation { lines, commit, region: index, page, buffered, present, depth: 0 };
        if root.kind == TrieKind::Plain {
            told.lines.push("proof    none: the namespace is plain".to_owned());
            return Ok(told);
        }
        let keys: Vec<Key> = pairs.iter().map(|pair| pair.0).collect();
        let depth = terminal_depth(regions, key, &prefix, &keys);
        told.depth = depth;
        told.lines.push(format!(
            "proof    terminal at depth {depth}: {depth} siblings, {} bytes of nodes",
            u32::from(depth) * 32
        ));
        Ok(told)
    }
}

/// The key's value before each commit of the history that changed it, the newest first.
fn history(undo: &Undo, tip: u64, namespace: u8, key: &Key) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut before = undo.oldest_commit();
    let after = |before| undo.change_after(namespace, key, before);
    while let Some((number, prior)) = after(before)?.filter(|_| before < tip) {
        lines.push(format!("history  before commit {number}: {}", describe(&prior)));
        before = number;
    }
    lines.reverse();
    Ok(lines)
}

fn describe(stored: &Stored) -> String {
    match stored {
        Stored::Absent => "absent".to_owned(),
        Stored::Inline(value) => format!("{} bytes: {value:?}", value.len()),
        Stored::Long(large) => format!("{} bytes, hash {}", large.bytes.len(), hex(large.hash)),
        Stored::Overflow(raw) => {
            let cell = pleach_beatree::stored::overflow_cell(raw);
            let runs: Vec<String> =
                cell.extents().map(|extent| format!("{}+{}", extent.start, extent.pages)).collect();
            let hash = hex(cell.value_hash());
            format!(
                "{} bytes in the overflow file, pages {}, hash {hash}",
                cell.total_len(),
                runs.join(" ")
            )
        }
    }
}

/// Depth of the terminal on a key's path: the shallowest position with at most one key below.
fn terminal_depth(index: &RegionIndex, key: &Key, page: &Prefix, keys: &[Key]) -> u16 {
    let below = |depth: u16| keys.iter().filter(|other| common_len(key, other) >= depth).count();
    let mut depth = page.len();
    while below(depth) > 1 {
        depth += 1;
    }
    if depth > page.len() {
        return depth;
    }
    let mut count = keys.len();
    while depth > 0 {
        let sibling = Prefix::new(key, depth).sibling().expect("not the root");
        count += keys_below(index, &sibling);
        if count > 1 {
            break;
        }
        depth -= 1;
    }
    depth
}

/// Keys below a position at which pages begin: 0, 1, or 2 for more.
fn keys_below(index: &RegionIndex, at: &Prefix) -> usize {
    let mut count = 0;
    for region in &index.regions()[index.find(at.first_key())..] {
        let state = region.read();
        if !at.covers(region.prefix().first_key()) && !region.prefix().contains(at) {
            break;
        }
        count += children_below(&state, at);
        if count > 1 {
            return 2;
        }
    }
    count
}

fn children_below(state: &RegionState, at: &Prefix) -> usize {
    let children =
        (0..state.children().len()).filter(|child| at.contains(&state.children().prefix(*child)));
    children
        .map(|child| match kind(state.node(child)) {
            NodeKind::Terminator => 0,
            NodeKind::Leaf => 1,
            NodeKind::Internal => 2,
        })
        .sum()
}
