//! Lookups in a run on the device. Each may read; the pages that were read last stay in memory.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pleach_beatree::files::OVERFLOW_FILE;
use pleach_beatree::leaf_fold::KeyState;
use pleach_beatree::page_no::page_offset;
use pleach_beatree::{Error, Result, Stored, Value};
use pleach_core::page::overflow::OverflowCell;
use pleach_core::page::stream::{StreamId, StreamView};
use pleach_core::{Key, Node, Prefix};
use pleach_io::PageBuf;

use super::entry::{
    Contents, EntryKey, MOST_COMMITS, PIECE, PageKind, RunEntry, RunPage, RunSection,
};
use super::write::LINES;
use super::{DiskRun, RunFile};
use crate::filter::{FilterLine, line_of};
use crate::tier::{
    AsOf, CommitOrder, CommitSearch, NodeScope, NodesAround, ReplacedNode, Tier, Version,
};

/// Pages of one read of a walk over a whole run.
const AT_ONCE: u32 = 64;

/// The pages that were read last, by run and place. A page that was used again since it was read, or since it was last
/// to be evicted, stays for another turn.
pub(super) struct RunPageCache {
    most: usize,
    pages: HashMap<(u64, u32), (Arc<RunPage>, bool)>,
    order: VecDeque<(u64, u32)>,
}

impl RunPageCache {
    pub(super) fn new(most: usize) -> Self {
        Self { most, pages: HashMap::new(), order: VecDeque::new() }
    }

    fn get(&mut self, run: u64, index: u32) -> Option<Arc<RunPage>> {
        let (page, is_wanted) = self.pages.get_mut(&(run, index))?;
        *is_wanted = true;
        Some(Arc::clone(page))
    }

    fn put(&mut self, run: u64, index: u32, page: &Arc<RunPage>) {
        if self.pages.insert((run, index), (Arc::clone(page), false)).is_none() {
            self.order.push_back((run, index));
        }
        // Each turn removes a mark or a page.
        while self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            let is_wanted =
                self.pages.get_mut(&oldest).is_some_and(|page| std::mem::take(&mut page.1));
            if is_wanted {
                self.order.push_back(oldest);
            } else {
                self.pages.remove(&oldest);
            }
        }
    }
}

impl RunFile {
    /// Evicts all pages of runs from memory.
    pub fn forget_pages(&self) {
        let mut cache = self.cache.lock();
        cache.pages.clear();
        cache.order.clear();
    }

    /// Bytes of memory that the pages take.
    pub fn bytes(&self) -> u64 {
        self.cache.lock().order.len() as u64 * 8192
    }
}

impl DiskRun {
    fn bad(&self, index: u32, what: &'static str) -> Error {
        self.is_bad.store(true, Ordering::Relaxed);
        let page = self.descriptor.page(index).unwrap_or_default();
        Error::Contents { file: OVERFLOW_FILE, page, what }
    }

    /// Reads neighbouring pages of the run, as far as they are neighbours in the file.
    fn read(&self, index: u32, count: u32) -> Result<Vec<RunPage>> {
        self.try_read(index, count).inspect_err(|_| self.is_bad.store(true, Ordering::Relaxed))
    }

    fn try_read(&self, index: u32, count: u32) -> Result<Vec<RunPage>> {
        let first = self
            .descriptor
            .page(index)
            .ok_or_else(|| self.bad(index, "the run has no such page"))?;
        let beside = |at: &u32| self.descriptor.page(index + at) == Some(first + u64::from(*at));
        let count = (0..count).take_while(beside).last().map_or(0, |last| last + 1);
        let mut buf = PageBuf::zeroed(count as usize);
        self.file.device.read_at(self.file.file()?, &mut buf, page_offset(first))?;
        let page = |at: u32| {
            let (index, page) = (index + at, first + u64::from(at));
            let bad = |error| Error::Page { file: OVERFLOW_FILE, page, error };
            let view =
                StreamView::parse(buf.page(at as usize), &self.file.identity(page)).map_err(bad)?;
            let own = (StreamId::History, index, self.descriptor.number);
            if (view.stream(), view.index(), view.flush()) != own {
                return Err(self.bad(index, "the page is another run's by now"));
            }
            RunPage::parse(view.payload()).map_err(|what| self.bad(index, what))
        };
        (0..count).map(page).collect()
    }

    /// A page, from memory if it is there.
    fn page(&self, index: u32) -> Result<Arc<RunPage>> {
        let run = self.descriptor.number;
        if let Some(page) = self.file.cache.lock().get(run, index) {
            return Ok(page);
        }
        let page = Arc::new(self.read(index, 1)?.swap_remove(0));
        self.file.cache.lock().put(run, index, &page);
        Ok(page)
    }

    /// The first commit after `base`, counted from the one that the run begins after.
    fn from(&self, base: u64) -> u64 {
        base.saturating_sub(self.descriptor.after) + 1
    }

    /// True when the run may have a key, by its filter.
    fn may_have(&self, namespace: u8, key: &Key) -> Result<bool> {
        let hash = self.descriptor.secret.hash(namespace, key);
        let line = u32::try_from(line_of(hash, self.descriptor.lines as usize)).unwrap_or(0);
        let index = self.descriptor.filter + line / LINES;
        let page = self.page(index)?;
        let lines = (page.kind == PageKind::Filter).then(|| page.contents().as_chunks::<64>().0);
        let bytes = lines.and_then(|lines| lines.get((line % LINES) as usize));
        let bytes = bytes.ok_or_else(|| self.bad(index, "it is no page of the filter"))?;
        let (words, _) = bytes.as_chunks::<8>();
        let line = FilterLine(std::array::from_fn(|at| u64::from_le_bytes(words[at])));
        Ok(line.may_have(hash))
    }

    fn version_of(&self, entry: &RunEntry<'_>) -> Result<Version> {
        Ok((self.descriptor.after + entry.commit, self.stored(&entry.contents)?))
    }

    /// The value of an entry.
    fn stored(&self, contents: &Contents<'_>) -> Result<Stored> {
        Ok(match contents {
            Contents::Absent => Stored::Absent,
            Contents::Overflow(cell) => {
                OverflowCell::parse(cell).map_err(|error| Error::ValueName {
                    commit: self.descriptor.last_commit,
                    error,
                })?;
                Stored::Overflow((*cell).into())
            }
            Contents::Inline(_) | Contents::InPieces { .. } => {
                Stored::from_value(self.file.hasher, Value::from(&*self.bytes(contents)?))
            }
        })
    }

    /// The bytes of a value that is stored in the run itself.
    pub(super) fn bytes(&self, contents: &Contents<'_>) -> Result<Arc<[u8]>> {
        let (first, len) = match contents {
            Contents::Inline(bytes) => return Ok((*bytes).into()),
            Contents::InPieces { page, bytes } => (*page, *bytes as usize),
            Contents::Absent | Contents::Overflow(_) => return Err(self.bad(0, "it has no bytes")),
        };
        if first >= self.descriptor.root {
            return Err(self.bad(first, "a piece of a value lies behind the entries"));
        }
        let mut all = Vec::new();
        for index in (first..).take(len.div_ceil(PIECE)) {
            match &self.read(index, 1)?[0] {
                page if page.kind == PageKind::Piece => all.extend_from_slice(page.contents()),
                _ => return Err(self.bad(index, "it is no piece of a value")),
            }
        }
        if all.len() == len { Ok(all.into()) } else { Err(self.bad(first, "a value is cut off")) }
    }

    /// The record of a commit.
    pub fn commit(&self, number: u64) -> Result<Arc<[u8]>> {
        let wanted = EntryKey::of_commit(RunSection::Commits, number, 0);
        let cursor = RunCursor::seek(self, &wanted, self.from(number - 1))?;
        match cursor.entry()?.filter(|entry| entry.key == wanted) {
            Some(entry) => self.bytes(&entry.contents),
            None => Err(self.bad_commit()),
        }
    }

    /// Checks all pages: entries are in order, the index leads to each of their pages, and the filter has the keys.
    pub fn check(self: &Arc<Self>) -> Result<()> {
        let mut walk = RunWalk::new(Arc::clone(self))?;
        let mut last = None;
        while let Some(entry) = walk.entry() {
            let at = Some((entry.key, entry.commit));
            let version = (self.from(self.descriptor.after)
                ..=self.descriptor.last_commit - self.descriptor.after)
                .contains(&entry.commit);
            if at <= last || !version {
                return Err(self.bad(self.descriptor.root, "entries are not in order"));
            }
            if matches!(entry.contents, Contents::InPieces { .. }) {
                self.bytes(&entry.contents)?;
            }
            let found = RunCursor::seek(self, &entry.key, entry.commit)?;
            if found.entry()?.map(|found| (found.key, found.commit)) != at {
                return Err(self.bad(self.descriptor.root, "the index does not lead to an entry"));
            }
            if last.is_none_or(|(last, _)| last != entry.key)
                && entry.key.is_of(RunSection::Values, entry.key.namespace())
                && !self.may_have(entry.key.namespace(), entry.key.key())?
            {
                return Err(self.bad(self.descriptor.filter, "the filter lacks a key"));
            }
            last = at;
            walk.advance()?;
        }
        self.is_bad.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The error for a missing or invalid record of a commit.
    pub fn bad_commit(&self) -> Error {
        self.bad(self.descriptor.root, "the run does not have one of its commits")
    }

    /// Calls `see` with the cells of long values that the run's commits have replaced, and with the commits, in order.
    pub fn for_each_long_value(&self, mut see: impl FnMut(u64, Stored)) -> Result<()> {
        if self.descriptor.value_bytes == 0 {
            return Ok(());
        }
        let first = EntryKey::of_commit(RunSection::LongValues, 0, 0);
        let mut cursor = RunCursor::seek(self, &first, 0)?;
        while let Some(entry) =
            cursor.entry()?.filter(|entry| entry.key.is_of(RunSection::LongValues, 0))
        {
            let (commit, stored) = self.version_of(&entry)?;
            see(commit, stored);
            cursor.advance()?;
        }
        Ok(())
    }
}

impl Tier for DiskRun {
    fn version(&self, at: AsOf, key: &Key) -> Result<Option<Version>> {
        if !self.may_have(at.namespace, key)? {
            return Ok(None);
        }
        let wanted = EntryKey::of_key(at.namespace, key);
        let cursor = RunCursor::seek(self, &wanted, self.from(at.base))?;
        let found = cursor.entry()?.filter(|entry| entry.key == wanted);
        found.map(|entry| self.version_of(&entry)).transpose()
    }

    fn values(&self, at: AsOf, ranges: &[RangeInclusive<Key>]) -> Result<Vec<KeyState>> {
        let mut found = Vec::new();
        for range in ranges {
            let first = EntryKey::of_key(at.namespace, range.start());
            let mut cursor = RunCursor::seek(self, &first, self.from(at.base))?;
            while let Some(entry) = cursor.after(at.base)? {
                let key = entry.key;
                if !key.is_of(RunSection::Values, at.namespace) || key.key() > range.end() {
                    break;
                }
                found.push((*key.key(), self.stored(&entry.contents)?));
                cursor.skip(&key)?;
            }
        }
        Ok(found)
    }

    fn nodes(&self, at: AsOf, of: NodeScope, prefix: &Prefix) -> Result<Option<NodesAround>> {
        let (part, lengths) = match of {
            NodeScope::Pages => (RunSection::Pages, &self.descriptor.lengths[0]),
            NodeScope::Regions => (RunSection::Regions, &self.descriptor.lengths[1]),
        };
        let mut found = Vec::new();
        let mut take = |entry: &RunEntry<'_>| {
            let node = self.bytes(&entry.contents)?;
            let (prefix, node) = (entry.key.prefix(), node[..].first_chunk::<32>());
            let (Some(prefix), Some(node)) = (prefix, node) else {
                return Err(self.bad(0, "it is no node of a prefix"));
            };
            let number = self.descriptor.after + entry.commit;
            found.push(ReplacedNode { prefix, number, node: Node::new(*node) });
            Ok(())
        };
        for length in lengths.below(prefix.len()) {
            let above = Prefix::new(prefix.first_key(), length);
            let wanted = EntryKey::of_prefix(part, at.namespace, &above);
            let cursor = RunCursor::seek(self, &wanted, self.from(at.base))?;
            if let Some(entry) = cursor.entry()?.filter(|entry| entry.key == wanted) {
                take(&entry)?;
            }
        }
        let first = EntryKey::of_prefix(part, at.namespace, prefix);
        let mut cursor = RunCursor::seek(self, &first, self.from(at.base))?;
        while let Some(entry) = cursor.after(at.base)? {
            let key = entry.key;
            if !key.is_of(part, at.namespace) || !prefix.covers(key.key()) {
                break;
            }
            take(&entry)?;
            cursor.skip(&key)?;
        }
        Ok(NodesAround::of(found, self.descriptor.last_commit))
    }

    /// Of one page.
    fn commits(&self, at: AsOf, key: &Key, search: CommitSearch) -> Result<Vec<u64>> {
        let CommitSearch { last, order, most } = search;
        if last <= self.descriptor.after || !self.may_have(at.namespace, key)? {
            return Ok(Vec::new());
        }
        let wanted = EntryKey::of_key(at.namespace, key);
        let commit = |entry: RunEntry<'_>| {
            let commit = self.descriptor.after + entry.commit;
            (entry.key == wanted && at.base < commit && commit <= last).then_some(commit)
        };
        Ok(match order {
            CommitOrder::Ascending => {
                let to = RunCursor::seek(self, &wanted, self.from(at.base))?;
                (to.at..).map_while(|at| to.page.entry(at).and_then(commit)).take(most).collect()
            }
            CommitOrder::Descending => {
                let to = RunCursor::seek_below(self, &wanted, self.from(last))?;
                let before = (0..to.at).rev();
                before.map_while(|at| to.page.entry(at).and_then(commit)).take(most).collect()
            }
        })
    }
}

/// A place among the entries of a run, found by its index.
struct RunCursor<'a> {
    run: &'a DiskRun,
    /// Pages of the index, the root first, each with the place behind the entry of the next page.
    above: Vec<(u32, Arc<RunPage>, usize)>,
    page: Arc<RunPage>,
    at: usize,
}

impl<'a> RunCursor<'a> {
    /// At the first entry that is not before this key and commit.
    fn seek(run: &'a DiskRun, key: &EntryKey, commit: u64) -> Result<Self> {
        // The page before may end with the wanted entry, unless that begins the page.
        let mut cursor = Self::on_page(run, key, commit + 1)?;
        cursor.at = cursor.page.lower_bound(key, commit);
        cursor.settle()?;
        Ok(cursor)
    }

    /// Behind the last entry that is before this key and commit, on its page; on the run's first page where there is
    /// none.
    fn seek_below(run: &'a DiskRun, key: &EntryKey, commit: u64) -> Result<Self> {
        let mut cursor = Self::on_page(run, key, commit)?;
        cursor.at = cursor.page.lower_bound(key, commit);
        Ok(cursor)
    }

    /// On the last page that begins before this key and commit; on the run's first page where none does.
    fn on_page(run: &'a DiskRun, key: &EntryKey, commit: u64) -> Result<Self> {
        let root = run.page(run.descriptor.root)?;
        let mut cursor = Self { run, above: Vec::new(), page: root, at: 0 };
        let mut index = run.descriptor.root;
        while cursor.page.kind == PageKind::Index {
            let behind = cursor.page.lower_bound(key, commit).max(1);
            index = cursor.descend(index, behind - 1)?;
        }
        match cursor.page.kind {
            PageKind::Entries => Ok(cursor),
            _ => Err(run.bad(index, "it has no entries")),
        }
    }

    /// Goes to the page that the `at`th entry of the page names; gives its number.
    fn descend(&mut self, index: u32, at: usize) -> Result<u32> {
        let child = match self.page.entry(at).map(|entry| entry.contents) {
            Some(Contents::Inline(bytes)) => {
                bytes.first_chunk().map(|page| u32::from_le_bytes(*page))
            }
            _ => None,
        };
        // Pages come before the index pages that name them: so the descent ends.
        let child = child.filter(|child| *child < index);
        let child = child.ok_or_else(|| self.run.bad(index, "it names no page before it"))?;
        let page = std::mem::replace(&mut self.page, self.run.page(child)?);
        self.above.push((index, page, at + 1));
        self.at = 0;
        match self.page.kind {
            PageKind::Entries | PageKind::Index => Ok(child),
            _ => Err(self.run.bad(child, "it has no entries")),
        }
    }

    /// From behind the last entry of a page to the first of the next one, unless it is the run's last.
    fn settle(&mut self) -> Result<()> {
        while self.page.entry(self.at).is_none()
            && let Some((index, page, next)) = self.above.pop()
        {
            (self.page, self.at) = (page, next);
            let mut index = index;
            while self.page.kind == PageKind::Index && self.page.entry(self.at).is_some() {
                index = self.descend(index, self.at)?;
            }
        }
        Ok(())
    }

    /// The current entry; `None` at the end.
    fn entry(&self) -> Result<Option<RunEntry<'_>>> {
        match self.page.kind {
            PageKind::Entries => Ok(self.page.entry(self.at)),
            PageKind::Index if self.page.entry(self.at).is_none() => Ok(None),
            _ => Err(self.run.bad(self.run.descriptor.root, "it has no entries")),
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        self.settle()
    }

    /// The current entry, or the first one behind it, of a commit after `base`; with [`Self::skip`] each key gives one
    /// such entry.
    fn after(&mut self, base: u64) -> Result<Option<RunEntry<'_>>> {
        let from = self.run.from(base);
        while let Some(entry) = self.entry()?
            && entry.commit < from
        {
            let key = entry.key;
            self.to(&key, from)?;
        }
        self.entry()
    }

    /// Goes to the first entry behind this one that is not before this key and commit.
    fn to(&mut self, key: &EntryKey, commit: u64) -> Result<()> {
        self.at = self.page.lower_bound(key, commit);
        if self.page.entry(self.at).is_none() {
            *self = Self::seek(self.run, key, commit)?;
        }
        Ok(())
    }

    /// Goes behind all entries of a key.
    fn skip(&mut self, key: &EntryKey) -> Result<()> {
        self.to(key, MOST_COMMITS + 1)
    }
}

/// A walk over all entries of a run, page by page.
pub(super) struct RunWalk {
    pub(super) run: Arc<DiskRun>,
    /// The next page to be read, and pages that were read.
    next: u32,
    ahead: VecDeque<RunPage>,
    page: RunPage,
    at: usize,
}

impl RunWalk {
    /// A walk, before the first entry.
    pub(super) fn new(run: Arc<DiskRun>) -> Result<Self> {
        let mut walk = Self { run, next: 0, ahead: VecDeque::new(), page: RunPage::empty(), at: 0 };
        walk.settle()?;
        Ok(walk)
    }

    /// The current entry; `None` at the end.
    pub(super) fn entry(&self) -> Option<RunEntry<'_>> {
        self.page.entry(self.at)
    }

    pub(super) fn advance(&mut self) -> Result<()> {
        self.at += 1;
        self.settle()
    }

    fn settle(&mut self) -> Result<()> {
        while self.page.entry(self.at).is_none() {
            let Some(page) = self.ahead.pop_front() else {
                // The root is the last page of the index, or the only page of entries where there is no index.
                let left = (self.run.descriptor.root + 1).saturating_sub(self.next);
                if left == 0 {
                    return Ok(());
                }
                let read = self.run.read(self.next, left.min(AT_ONCE))?;
                self.next += u32::try_from(read.len()).unwrap_or(left);
                self.ahead.extend(read);
                continue;
            };
            if page.kind == PageKind::Entries {
                (self.page, self.at) = (page, 0);
            }
        }
        Ok(())
    }
}
