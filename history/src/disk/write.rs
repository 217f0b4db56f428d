//! Writes a run front to back: pages of entries, each index page behind the pages that it names, the filter last.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pleach_beatree::Error;
use pleach_beatree::page_no::page_offset;
use pleach_core::page::overflow::OverflowExtent;
use pleach_core::page::stream::{self, StreamHeader, StreamId};
use pleach_io::{PAGE, PageBuf};

use super::entry::{Contents, EntryKey, MOST_INLINE, PIECE, PageBuilder, PageKind, RunSection};
use super::{PrefixLengths, RunDescriptor, RunFile};
use crate::filter::{Filter, FilterLine, Secret};

/// Pages of one write.
const AT_ONCE: usize = 64;
/// Fewest and most pages that are allocated at once.
const LEAST: usize = 16;
const MOST: usize = 1024;
/// Lines of the filter in a page.
#[expect(clippy::cast_possible_truncation, reason = "some dozen")]
pub(super) const LINES: u32 = (PIECE / 64) as u32;

/// A run that is being written.
pub(crate) struct RunWriter {
    file: Arc<RunFile>,
    descriptor: RunDescriptor,
    /// Filled pages, and the number of the first page in the buffer.
    filled: u32,
    buf: PageBuf,
    in_buf: usize,
    /// Allocated pages.
    given: u32,
    filter: Filter,
    last: Option<EntryKey>,
    /// Pages that are being filled: of entries, of the index above them, and so on.
    levels: Vec<PageBuilder>,
}

impl RunWriter {
    /// A run with the number, the commits and the length of a descriptor, and up to `keys` keys. No other page of the
    /// file has its number.
    pub(crate) fn new(file: &Arc<RunFile>, run: RunDescriptor, keys: usize) -> Self {
        Self {
            file: Arc::clone(file),
            descriptor: RunDescriptor { secret: Secret::default(), ..run },
            filled: 0,
            buf: PageBuf::zeroed(AT_ONCE),
            in_buf: 0,
            given: 0,
            filter: Filter::new(keys),
            last: None,
            levels: vec![PageBuilder::new(PageKind::Entries)],
        }
    }

    /// Counts the bytes of the overflow file that long values in entries take.
    pub(crate) fn add_value_bytes(&mut self, bytes: u64) {
        self.descriptor.value_bytes += bytes;
    }

    /// Adds an entry of a commit. Entries ascend by key and commit.
    pub(crate) fn put<E: From<Error>>(
        &mut self,
        key: &EntryKey,
        commit: u64,
        contents: &Contents<'_>,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>, E>,
    ) -> Result<(), E> {
        if self.last != Some(*key) {
            self.last = Some(*key);
            if key.is_of(RunSection::Values, key.namespace()) {
                self.descriptor.keys += 1;
                self.filter.add(self.descriptor.secret.hash(key.namespace(), key.key()));
            }
            for (part, lengths) in [RunSection::Pages, RunSection::Regions]
                .into_iter()
                .zip(&mut self.descriptor.lengths)
            {
                if key.is_of(part, key.namespace()) {
                    lengths.add(key.length());
                }
            }
        }
        let contents = match contents {
            Contents::Inline(bytes) if bytes.len() > MOST_INLINE => {
                let page = self.filled;
                for piece in bytes.chunks(PIECE) {
                    self.page(PageKind::Piece, piece, allocate)?;
                }
                Contents::InPieces { page, bytes: count(bytes.len()) }
            }
            other => *other,
        };
        let commit = commit - self.descriptor.after;
        if !self.levels[0].push(key, commit, &contents) {
            self.end_page(0, allocate)?;
            assert!(self.levels[0].push(key, commit, &contents), "an entry fits an empty page");
        }
        Ok(())
    }

    /// Writes the unfinished page of a level, and names it in the level above.
    fn end_page<E: From<Error>>(
        &mut self,
        level: usize,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>, E>,
    ) -> Result<(), E> {
        let kind = if level == 0 { PageKind::Entries } else { PageKind::Index };
        let ended = std::mem::replace(&mut self.levels[level], PageBuilder::new(kind));
        let page = self.sealed(ended.payload(), allocate)?;
        let Some((key, commit)) = ended.first else { return Ok(()) };
        if self.levels.len() == level + 1 {
            self.levels.push(PageBuilder::new(PageKind::Index));
        }
        let page = page.to_le_bytes();
        let name = Contents::Inline(&page);
        if !self.levels[level + 1].push(&key, commit, &name) {
            self.end_page(level + 1, allocate)?;
            assert!(self.levels[level + 1].push(&key, commit, &name), "a name fits an empty page");
        }
        Ok(())
    }

    /// Writes a page without entries.
    fn page<E: From<Error>>(
        &mut self,
        kind: PageKind,
        contents: &[u8],
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>, E>,
    ) -> Result<u32, E> {
        self.sealed(&[&[kind as u8], contents].concat(), allocate)
    }

    /// Writes the next page; gives its number in the run.
    fn sealed<E: From<Error>>(
        &mut self,
        payload: &[u8],
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>, E>,
    ) -> Result<u32, E> {
        if self.filled == self.given {
            self.flush()?;
            let more = (self.given as usize).clamp(LEAST, MOST);
            for run in allocate(more)? {
                self.given += run.pages;
                self.descriptor.add_pages(run);
            }
        }
        let index = self.filled;
        let page = self.descriptor.page(index).expect("it was given");
        // Pages of one write are neighbours.
        let before = self.in_buf.checked_sub(1).and_then(|_| self.descriptor.page(index - 1));
        if self.in_buf == AT_ONCE || before.is_some_and(|before| before + 1 != page) {
            self.flush()?;
        }
        let header = StreamHeader {
            identity: self.file.identity(page),
            flush: self.descriptor.number,
            namespace: 0,
            stream: StreamId::History,
            index,
        };
        stream::build(self.buf.page_mut(self.in_buf), &header, payload);
        self.in_buf += 1;
        self.filled += 1;
        Ok(index)
    }

    fn flush(&mut self) -> Result<(), Error> {
        if self.in_buf == 0 {
            return Ok(());
        }
        let first = self.descriptor.page(self.filled - count(self.in_buf)).expect("it was given");
        let (device, file) = (&self.file.device, self.file.file()?);
        let written = device.write_at(file, &self.buf, self.in_buf, page_offset(first));
        written.map_err(Error::of_unnamed)?;
        self.file.written.fetch_add(self.in_buf as u64 * PAGE as u64, Ordering::Relaxed);
        self.in_buf = 0;
        Ok(())
    }

    /// Ends the run, after all entries. Gives its descriptor. Nothing is synced.
    pub(crate) fn finish<E: From<Error>>(
        mut self,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>, E>,
    ) -> Result<RunDescriptor, E> {
        let mut level = 0;
        while level + 1 < self.levels.len() {
            self.end_page(level, allocate)?;
            level += 1;
        }
        let root = std::mem::replace(&mut self.levels[level], PageBuilder::new(PageKind::Entries));
        self.descriptor.root = self.sealed(root.payload(), allocate)?;
        self.descriptor.filter = self.filled;
        self.descriptor.lines = count(self.filter.lines().len());
        let filter = std::mem::replace(&mut self.filter, Filter::new(0));
        for lines in filter.lines().chunks(LINES as usize) {
            let words = lines.iter().flat_map(|FilterLine(words)| words);
            let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
            self.page(PageKind::Filter, &bytes, allocate)?;
        }
        self.flush()?;
        let vain = self.descriptor.cut(self.filled);
        self.file.unused.lock().extend(vain);
        Ok(std::mem::take(&mut self.descriptor))
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        self.file.unused.lock().append(&mut self.descriptor.pages);
    }
}

fn count(count: usize) -> u32 {
    u32::try_from(count).expect("a run has fewer than 2^32 pages")
}

impl PrefixLengths {
    fn add(&mut self, length: u8) {
        self.0[usize::from(length / 64)] |= 1 << (length % 64);
    }

    /// The lengths below `length`, in ascending order.
    pub(super) fn below(&self, length: u16) -> impl Iterator<Item = u16> {
        let words = self.0;
        (0..length.min(256)).filter(move |at| words[usize::from(at / 64)] >> (at % 64) & 1 == 1)
    }
}
