//! The body of a location record: which pages a flush has written, and what they replace.
//!
//! ```text
//! head     flush number u64 | ns u8 | 0 u24 | rewrites u32 | extents allocated u32 | extents replaced u32
//! rewrite  range: prefix | pages u32 | replaced u32
//!          | pages: prefix | page number u40 (all ones: none) | tag u32 | applied through u64 | node 32
//!          | replaced: page number u40
//! extent      start u40 | pages u24
//! prefix   length in bits u16, then the bytes that hold a bit of it
//! ```
//!
//! A *rewrite* replaces all pages of a range of the key space by new ones: one page that was rewritten, a page that
//! split, siblings that merged. Its pages tile the range completely, with empty ones, which have no page number;
//! rewrites are disjoint and ascending. A rewrite without pages, and without replaced ones, *joins* two regions: the
//! halves of its range become one region with the children of both. `replaced` are the numbers of the replaced pages.
//! Extents are those of overflow values: allocated, and replaced.

use pleach_core::page::overflow::OverflowExtent;
use pleach_core::range::key_after;
use pleach_core::{Key, Node, Prefix};

use super::bytes::{BodyCursor, BodyError, items, push_u24, push_u40};
use super::commit_body::{encode_prefix, take_prefix};
use super::record::{LogRecordKind, RecordBuf};

const NO_PAGE: u64 = (1 << 40) - 1;
/// Regions over fewer bits than this are halves of one.
const MAX_JOINED: u16 = 255;
/// Extents have fewer pages than this.
pub const EXTENT_PAGES_END: u32 = 1 << 24;

/// A new page of a flush, or a prefix without a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPage<'a> {
    /// Its prefix.
    pub prefix: Prefix,
    /// Its page number; `None` when the prefix is empty and has no page.
    pub page: Option<u64>,
    /// Low 32 bits of its checksum.
    pub tag: u32,
    /// Last commit whose changes it contains.
    pub applied_through: u64,
    /// Node over all committed changes.
    pub node: &'a Node,
}

/// A rewrite to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct Rewrite<'a> {
    /// The range that was replaced.
    pub range: Prefix,
    /// Its new pages, ascending, tiling the range.
    pub pages: &'a [NewPage<'a>],
    /// Numbers of the pages that it replaces.
    pub replaced: &'a [u64],
}

impl Rewrite<'_> {
    fn is_join(&self) -> bool {
        self.pages.is_empty() && self.replaced.is_empty()
    }

    /// The rewrite that joins the regions of this range's halves.
    pub fn join(range: Prefix) -> Self {
        Self { range, pages: &[], replaced: &[] }
    }
}

/// Encodes a location record, rewrite by rewrite.
#[derive(Debug)]
pub struct LocationEncoder {
    flush: u64,
    ns: u8,
    rewrites: u32,
    bytes: Vec<u8>,
}

impl LocationEncoder {
    /// Starts the record of flush number `flush` in a namespace, in a buffer that may have been used before.
    pub fn with_buffer(mut bytes: Vec<u8>, flush: u64, ns: u8) -> Self {
        bytes.clear();
        Self { flush, ns, rewrites: 0, bytes }
    }

    /// Appends a rewrite after the last one.
    ///
    /// # Panics
    /// When a page number has more than 40 bits, or a rewrite has 2^32 pages.
    pub fn push(&mut self, rewrite: &Rewrite<'_>) {
        assert!(
            tiles(&rewrite.range, rewrite.pages.iter().map(|page| page.prefix))
                || rewrite.is_join(),
            "the new pages tile the range"
        );
        self.rewrites += 1;
        let count = |n: usize| u32::try_from(n).expect("a rewrite has fewer than 2^32 pages");
        encode_prefix(&mut self.bytes, &rewrite.range);
        self.bytes.extend_from_slice(&count(rewrite.pages.len()).to_le_bytes());
        self.bytes.extend_from_slice(&count(rewrite.replaced.len()).to_le_bytes());
        for page in rewrite.pages {
            encode_prefix(&mut self.bytes, &page.prefix);
            self.page_number(page.page.unwrap_or(NO_PAGE), page.page.is_none());
            self.bytes.extend_from_slice(&page.tag.to_le_bytes());
            self.bytes.extend_from_slice(&page.applied_through.to_le_bytes());
            self.bytes.extend_from_slice(page.node.as_ref());
        }
        for page in rewrite.replaced {
            self.page_number(*page, false);
        }
    }

    fn page_number(&mut self, page: u64, none: bool) {
        assert!(none || page < NO_PAGE, "page numbers have 40 bits");
        push_u40(&mut self.bytes, page);
    }

    /// The record, with the overflow extents that the flush allocated and replaced.
    ///
    /// # Panics
    /// When an extent is out of range.
    pub fn finish(
        mut self,
        database: u64,
        allocated: &[OverflowExtent],
        replaced: &[OverflowExtent],
    ) -> RecordBuf {
        for extent in allocated.iter().chain(replaced) {
            assert!(extent.pages < EXTENT_PAGES_END, "extents have 24 bits");
            self.page_number(extent.start, false);
            push_u24(&mut self.bytes, extent.pages);
        }
        let count = |n: usize| u32::try_from(n).expect("fewer than 2^32 extents");
        let mut head = Vec::with_capacity(24);
        head.extend_from_slice(&self.flush.to_le_bytes());
        head.extend_from_slice(&[self.ns, 0, 0, 0]);
        head.extend_from_slice(&self.rewrites.to_le_bytes());
        head.extend_from_slice(&count(allocated.len()).to_le_bytes());
        head.extend_from_slice(&count(replaced.len()).to_le_bytes());
        RecordBuf::new(database, LogRecordKind::Location, self.flush, vec![head, self.bytes])
    }
}

/// A location record's body, checked completely.
#[derive(Clone, Copy, Debug)]
pub struct LocationView<'a> {
    /// Number of the flush.
    pub flush: u64,
    /// The namespace.
    pub ns: u8,
    rewrites: u32,
    rewrite_bytes: &'a [u8],
    allocated: &'a [u8],
    replaced: &'a [u8],
}

const EXTENT_LEN: u64 = 8;

impl<'a> LocationView<'a> {
    /// Checks the whole body, so that its iterators give valid items only.
    pub fn parse(body: &'a [u8]) -> Result<Self, BodyError> {
        let mut cursor = BodyCursor::new(body);
        let flush = cursor.u64()?;
        let ns = cursor.u8()?;
        cursor.reserved::<3>()?;
        let rewrites = cursor.u32()?;
        let extents =
            [u64::from(cursor.u32()?) * EXTENT_LEN, u64::from(cursor.u32()?) * EXTENT_LEN];
        let rewrite_len = (cursor.len() as u64).checked_sub(extents[0] + extents[1]);
        let rewrite_bytes = cursor.take(rewrite_len.ok_or(BodyError::Truncated)?)?;
        let (allocated, replaced) = (cursor.take(extents[0])?, cursor.take(extents[1])?);
        let view = Self { flush, ns, rewrites, rewrite_bytes, allocated, replaced };
        let mut last: Option<Key> = None;
        for rewrite in view.rewrites() {
            let rewrite = rewrite?;
            if last.is_some_and(|last| rewrite.range.first_key() <= &last) {
                return Err(BodyError::Unsorted);
            }
            last = Some(rewrite.range.last_key());
            rewrite.check()?;
        }
        Ok(view)
    }

    /// The rewrites, disjoint and ascending. None of them is an error after [`LocationView::parse`].
    pub fn rewrites(&self) -> impl Iterator<Item = Result<RewriteView<'a>, BodyError>> + use<'a> {
        items(self.rewrite_bytes, self.rewrites, take_rewrite)
    }

    /// Overflow extents that the flush has written.
    pub fn allocated(&self) -> impl Iterator<Item = OverflowExtent> + 'a {
        extents(self.allocated)
    }

    /// Overflow extents that the flush replaced.
    pub fn replaced_extents(&self) -> impl Iterator<Item = OverflowExtent> + 'a {
        extents(self.replaced)
    }
}

fn extents(bytes: &[u8]) -> impl Iterator<Item = OverflowExtent> + '_ {
    let mut cursor = BodyCursor::new(bytes);
    core::iter::from_fn(move || {
        Some(OverflowExtent { start: cursor.u40().ok()?, pages: cursor.u24().ok()? })
    })
}

/// One rewrite of a location record.
#[derive(Clone, Copy, Debug)]
pub struct RewriteView<'a> {
    /// The range that was replaced.
    pub range: Prefix,
    page_count: u32,
    pages: BodyCursor<'a>,
    replaced: &'a [u8],
}

impl<'a> RewriteView<'a> {
    /// The new pages, ascending, tiling the range.
    pub fn pages(&self) -> impl Iterator<Item = NewPage<'a>> + 'a {
        let mut cursor = self.pages;
        (0..self.page_count).map_while(move |_| take_page(&mut cursor).ok())
    }

    /// Numbers of the pages that were replaced.
    pub fn replaced_pages(&self) -> impl Iterator<Item = u64> + 'a {
        let mut cursor = BodyCursor::new(self.replaced);
        core::iter::from_fn(move || cursor.u40().ok())
    }

    /// True when it joins two regions, and replaces no page.
    pub fn is_join(&self) -> bool {
        self.page_count == 0
    }

    fn check(&self) -> Result<(), BodyError> {
        if self.is_join() && self.replaced.is_empty() && self.range.len() < MAX_JOINED {
            return Ok(());
        }
        let tiles = tiles(&self.range, self.pages().map(|page| page.prefix));
        if tiles { Ok(()) } else { Err(BodyError::Tiling) }
    }
}

fn take_rewrite<'a>(cursor: &mut BodyCursor<'a>) -> Result<RewriteView<'a>, BodyError> {
    let range = take_prefix(cursor)?;
    let (page_count, replaced) = (cursor.u32()?, cursor.u32()?);
    // Prefixes vary in length, so the pages are walked to find their end.
    let pages = *cursor;
    for _ in 0..page_count {
        take_page(cursor)?;
    }
    let replaced = cursor.take(u64::from(replaced) * 5)?;
    Ok(RewriteView { range, page_count, pages, replaced })
}

fn take_page<'a>(cursor: &mut BodyCursor<'a>) -> Result<NewPage<'a>, BodyError> {
    let prefix = take_prefix(cursor)?;
    let page = cursor.u40()?;
    Ok(NewPage {
        prefix,
        page: (page != NO_PAGE).then_some(page),
        tag: cursor.u32()?,
        applied_through: cursor.u64()?,
        node: Node::ref_of(cursor.array()?),
    })
}

/// True when the pages' prefixes tile the range, from left to right. Each has to start where the last one ended.
fn tiles(range: &Prefix, pages: impl Iterator<Item = Prefix>) -> bool {
    // First key that is not covered yet; `None` after the range's last.
    let mut next = Some(*range.first_key());
    for page in pages {
        if next.as_ref() != Some(page.first_key()) || !range.contains(&page) {
            return false;
        }
        let last = page.last_key();
        next = if last == range.last_key() { None } else { key_after(&last) };
    }
    next.is_none()
}
