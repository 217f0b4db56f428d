//! Image files: the tries, namespace by namespace, then the streams of all, written front to back.
//!
//! A trie begins with its first region's branch page. A level's pages follow the level below; the last branch page is
//! the root's, which has the empty prefix. Then come its buffered changes, if there are any. All these pages name their
//! namespace. Behind the last trie come the maps and the table. So the levels above the regions' pages can be read
//! without these.
//!
//! Every page carries the image's number as its flush number, which no other image ever has. The superblock names it.
//! So a page of an earlier image (a lost write) is found, even when all its other contents are right.

use std::ops::Range;

use pleach_beatree::page_no::page_offset;
use pleach_beatree::{Error, Result};
use pleach_core::page::branch::{
    BranchBuilder, BranchEntry, BranchHeader, BranchView, MAX_ENTRIES,
};
use pleach_core::page::stream::{self, StreamHeader, StreamId, StreamView};
use pleach_core::page::{FileKind, Identity, PageError, header};
use pleach_core::prefix::bit;
use pleach_core::{Hasher, Node, Prefix};
use pleach_io::{Disk, File, OpenMode, PageBuf};

use super::names::{ImageFile, image_name};
use super::superblock::ImageRef;
use super::table::{ImageTable, StreamRef};

/// Pages of one write or read.
const RUN: usize = 256;
/// Pages of the first write: enough for a small database's image.
const FIRST_RUN: usize = 16;

const TOO_LONG: &str = "a stream is longer than the image";

/// A written branch page, as its parent names it.
#[derive(Clone, Copy, Debug)]
pub struct WrittenBranch {
    /// The prefix of all keys below it.
    pub prefix: Prefix,
    /// Page number in the image.
    pub page: u64,
    /// Tag that tells it from an earlier page of this number.
    pub tag: u32,
    /// The node of its prefix.
    pub node: Node,
}

/// Writes an image front to back.
#[derive(Debug)]
pub struct ImageWriter {
    device: Disk,
    which: ImageFile,
    file: File,
    database: u64,
    /// The image's number.
    number: u64,
    buf: PageBuf,
    filled: usize,
    next: u64,
}

impl ImageWriter {
    /// Starts to write an image file; its earlier contents are lost.
    pub fn start(device: &Disk, which: ImageFile, database: u64, number: u64) -> Result<Self> {
        let file = device.open(image_name(which), OpenMode::Write)?;
        Ok(Self {
            device: device.clone(),
            which,
            file,
            database,
            number,
            buf: PageBuf::zeroed(FIRST_RUN),
            filled: 0,
            next: 0,
        })
    }

    fn identity(&self) -> Identity {
        Identity { kind: FileKind::Image, page_no: self.next, db_id: self.database }
    }

    /// Writes a branch page; `entries` tile the prefix.
    pub fn write_branch(
        &mut self,
        namespace: u8,
        prefix: &Prefix,
        level: u8,
        log_pos: u64,
        entries: impl Iterator<Item = BranchEntry>,
    ) -> Result<(u64, u32)> {
        self.make_room()?;
        let header = BranchHeader {
            identity: self.identity(),
            flush: self.number,
            namespace,
            prefix: *prefix,
            level,
            log_pos,
        };
        let mut builder = BranchBuilder::new(self.buf.page_mut(self.filled), &header);
        for (count, entry) in entries.enumerate() {
            if count == MAX_ENTRIES {
                return Err(Error::TooManyChildren { prefix: *prefix });
            }
            builder.push(&entry);
        }
        let tag = builder.seal();
        let page = self.next;
        self.advance();
        Ok((page, tag))
    }

    /// Writes the levels above the regions' pages; gives the root's page and its level.
    pub fn write_upper_levels(
        &mut self,
        namespace: u8,
        mut children: Vec<WrittenBranch>,
    ) -> Result<(WrittenBranch, u8)> {
        let mut level = 1;
        while children.len() > 1 || children[0].prefix.len() > 0 {
            level += 1;
            let mut above = Vec::new();
            for (prefix, range) in parents(&children) {
                let entries = children[range].iter().map(|child| BranchEntry {
                    depth: child.prefix.len(),
                    page_no: Some(child.page),
                    tag: child.tag,
                    node: child.node,
                });
                let (page, tag) = self.write_branch(namespace, &prefix, level, 0, entries)?;
                // The upper levels' own nodes follow from their children; the index in memory folds them again.
                above.push(WrittenBranch { prefix, page, tag, node: Node::default() });
            }
            children = above;
        }
        Ok((children[0], level))
    }

    /// Writes a stream; gives the reference for the table. Without bytes there is no page.
    pub fn write_named_stream(
        &mut self,
        namespace: u8,
        id: StreamId,
        bytes: &[u8],
    ) -> Result<StreamRef> {
        let page = if bytes.is_empty() { 0 } else { self.write_stream(namespace, id, bytes)? };
        Ok(StreamRef::of(page, bytes))
    }

    /// Writes a stream; gives its first page. Shared streams are of namespace 0.
    pub fn write_stream(&mut self, namespace: u8, id: StreamId, bytes: &[u8]) -> Result<u64> {
        let first = self.next;
        let (mut rest, mut index) = (bytes, 0);
        loop {
            let (chunk, behind) = rest.split_at(rest.len().min(stream::PAYLOAD));
            self.make_room()?;
            let header = StreamHeader {
                identity: self.identity(),
                flush: self.number,
                namespace,
                stream: id,
                index,
            };
            stream::build(self.buf.page_mut(self.filled), &header, chunk);
            self.advance();
            if behind.is_empty() {
                return Ok(first);
            }
            (rest, index) = (behind, index + 1);
        }
    }

    /// Writes a full buffer, so that the next page needs no I/O.
    pub fn make_room(&mut self) -> Result<()> {
        if self.filled < self.buf.pages() {
            return Ok(());
        }
        self.flush()?;
        if self.buf.pages() < RUN {
            self.buf = PageBuf::zeroed(RUN);
        }
        Ok(())
    }

    fn advance(&mut self) {
        self.filled += 1;
        self.next += 1;
    }

    fn flush(&mut self) -> Result<()> {
        if self.filled > 0 {
            let first = self.next - self.filled as u64;
            // Without room the image is abandoned and made again: nothing names it yet.
            self.device
                .write_at(&self.file, &self.buf, self.filled, page_offset(first))
                .map_err(Error::of_unnamed)?;
            self.filled = 0;
        }
        Ok(())
    }

    /// Writes the table and the rest of the buffer, syncs the image, and gives its reference for a superblock.
    pub fn finish(mut self, table: &ImageTable) -> Result<ImageRef> {
        let table = table.encode();
        let table_page = self.write_stream(0, StreamId::Namespaces, &table)?;
        self.flush()?;
        self.device.sync(&self.file)?;
        let pages = self.next;
        Ok(ImageRef {
            file: self.which,
            pages: u32::try_from(pages).map_err(|_| Error::TooLong { pages })?,
            table_page,
            number: self.number,
            table_hash: Hasher::BLAKE3.hash(&table),
        })
    }
}

/// The shallowest prefixes with at most [`MAX_ENTRIES`] of these children, which tile the key space, and the children
/// of each.
fn parents(children: &[WrittenBranch]) -> Vec<(Prefix, Range<usize>)> {
    let mut done = Vec::new();
    let mut todo = vec![(Prefix::ROOT, 0..children.len())];
    while let Some((prefix, range)) = todo.pop() {
        if range.len() <= MAX_ENTRIES {
            done.push((prefix, range));
            continue;
        }
        let middle = range.start
            + children[range.clone()]
                .partition_point(|child| !bit(child.prefix.first_key(), prefix.len()));
        todo.push((prefix.child(true), middle..range.end));
        todo.push((prefix.child(false), range.start..middle));
    }
    done
}

/// Reads pages of an image, in runs.
#[derive(Debug)]
pub struct ImageReader {
    device: Disk,
    file: File,
    name: &'static str,
    database: u64,
    pages: u64,
    number: u64,
    /// Pages of one read.
    run: u64,
    buf: PageBuf,
    /// First page in the buffer, and number of pages in it.
    held: (u64, u64),
}

impl ImageReader {
    /// Opens the file of an image that a superblock names. It may be longer than the image.
    pub fn open(device: &Disk, image: &ImageRef, database: u64) -> Result<Self> {
        let (file, pages) = (image.file, u64::from(image.pages));
        let name = image_name(file);
        let handle = device.open(name, OpenMode::Read)?;
        if device.len(&handle)? < page_offset(pages) {
            return Err(Error::Short { file: name, pages });
        }
        // Allocated at the first read: then its size is known.
        let buf = PageBuf::zeroed(0);
        Ok(Self {
            device: device.clone(),
            file: handle,
            name,
            database,
            pages,
            number: image.number,
            run: RUN as u64,
            buf,
            held: (0, 0),
        })
    }

    /// Another reader of the image, which reads `run` pages at once.
    #[must_use]
    pub fn reopen(&self, run: u64) -> Self {
        let (device, file, buf) = (self.device.clone(), self.file.clone(), PageBuf::zeroed(0));
        Self { device, file, run, buf, held: (0, 0), ..*self }
    }

    fn identity(&self, page: u64) -> Identity {
        Identity { kind: FileKind::Image, page_no: page, db_id: self.database }
    }

    fn page(&mut self, page: u64) -> Result<&[u8; 4096]> {
        if page >= self.pages {
            return Err(self.bad(page, "the image has no such page"));
        }
        let (first, count) = self.held;
        if page < first || page >= first + count {
            let count = (self.pages - page).min(self.run);
            let pages = usize::try_from(count).expect("at most a run");
            if self.buf.pages() != pages {
                self.buf = PageBuf::zeroed(pages);
            }
            self.device.read_at(&self.file, &mut self.buf, page_offset(page))?;
            self.held = (page, count);
        }
        Ok(self.buf.page(usize::try_from(page - self.held.0).expect("within the run")))
    }

    fn bad(&self, page: u64, what: &'static str) -> Error {
        Error::Contents { file: self.name, page, what }
    }

    /// Checks that a page with a right checksum is of this image.
    fn check_number(&self, page: u64, found: u64) -> Result<()> {
        if found == self.number {
            return Ok(());
        }
        Err(Error::ForeignPage { file: self.name, page, expected: self.number, found })
    }

    /// Reads a branch page, which must have the tag in its parent.
    pub fn read_branch(
        &mut self,
        namespace: u8,
        page: u64,
        tag: u32,
        prefix: &Prefix,
        level: u8,
    ) -> Result<BranchContents> {
        let (identity, name) = (self.identity(page), self.name);
        let bad = bad_page(name, page);
        let bytes = self.page(page)?;
        let view = BranchView::parse(bytes, &identity).map_err(bad)?;
        let found = header::tag(bytes);
        if found != tag {
            return Err(Error::StalePage { file: name, page, expected: tag, found });
        }
        header::check_namespace(bytes, namespace).map_err(bad)?;
        if view.prefix() != *prefix || view.level() != level {
            return Err(self.bad(page, "it is another branch than its parent says"));
        }
        let flush = view.flush();
        let branch = BranchContents { log_pos: view.log_pos(), entries: view.iter().collect() };
        self.check_number(page, flush)?;
        Ok(branch)
    }

    /// Reads a stream that the table names.
    pub fn read_checked_stream(
        &mut self,
        namespace: u8,
        id: StreamId,
        named: &StreamRef,
    ) -> Result<Vec<u8>> {
        if named.len == 0 && named.fits(&[]) {
            return Ok(Vec::new());
        }
        let bytes = self.read_stream(namespace, id, named.page, named.len)?;
        if !named.fits(&bytes) {
            return Err(self.bad(named.page, "its stream is not the one that the table names"));
        }
        Ok(bytes)
    }

    /// Reads a part of a stream that the table names. Only the pages of the part are checked.
    pub fn read_part(
        &mut self,
        namespace: u8,
        id: StreamId,
        named: &StreamRef,
        part: [u64; 2],
    ) -> Result<Vec<u8>> {
        let [from, to] = part;
        if from > to || to > named.len {
            return Err(self.bad(named.page, TOO_LONG));
        }
        let first = from / stream::PAYLOAD as u64;
        let pages = first..to.div_ceil(stream::PAYLOAD as u64);
        let mut bytes = self.read_pages(namespace, id, (named.page, named.len), pages)?;
        let before = from - first * stream::PAYLOAD as u64;
        bytes.drain(..usize::try_from(before).unwrap_or(usize::MAX).min(bytes.len()));
        bytes.truncate(usize::try_from(to - from).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    /// Reads a stream of `len` bytes from page `first` on.
    pub fn read_stream(
        &mut self,
        namespace: u8,
        id: StreamId,
        first: u64,
        len: u64,
    ) -> Result<Vec<u8>> {
        self.read_pages(namespace, id, (first, len), 0..len.div_ceil(stream::PAYLOAD as u64).max(1))
    }

    /// Reads some pages of a stream, which has this first page and this length.
    fn read_pages(
        &mut self,
        namespace: u8,
        id: StreamId,
        (first, len): (u64, u64),
        pages: Range<u64>,
    ) -> Result<Vec<u8>> {
        let name = self.name;
        if len > page_offset(self.pages) {
            return Err(self.bad(first, TOO_LONG));
        }
        let mut bytes = Vec::new();
        for index in pages {
            let (page, index) =
                (first + index, u32::try_from(index).map_err(|_| self.bad(first, TOO_LONG))?);
            let identity = self.identity(page);
            let expected = stream::payload_len(len, index);
            let bad = bad_page(name, page);
            let raw = self.page(page)?;
            let view = StreamView::parse(raw, &identity).map_err(bad)?;
            header::check_namespace(raw, namespace).map_err(bad)?;
            bytes.extend_from_slice(view.expect_payload(id, index, expected).map_err(bad)?);
            let flush = view.flush();
            self.check_number(page, flush)?;
        }
        Ok(bytes)
    }

    /// Reads the first page's payload of a stream whose length is in its first bytes.
    pub fn read_stream_head(&mut self, id: StreamId, first: u64) -> Result<Vec<u8>> {
        let (identity, name) = (self.identity(first), self.name);
        let view =
            StreamView::parse(self.page(first)?, &identity).map_err(bad_page(name, first))?;
        if view.stream() != id || view.index() != 0 {
            return Err(self.bad(first, "it starts another stream"));
        }
        Ok(view.payload().to_vec())
    }
}

fn bad_page(file: &'static str, page: u64) -> impl Fn(PageError) -> Error + Copy {
    move |error| Error::Page { file, page, error }
}

/// The contents of a branch page.
#[derive(Debug)]
pub struct BranchContents {
    /// The region's log position.
    pub log_pos: u64,
    /// Its children, in order.
    pub entries: Vec<(Prefix, BranchEntry)>,
}
