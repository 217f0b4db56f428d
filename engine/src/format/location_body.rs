//! The body of a location record: where a flush has put which pages.
//!
//! ```text
//! head   flush number u64 | ns u8 | 0 u24 | cuts u32 | runs allocated u32 | runs freed u32
//! cut    range: position | pages u32 | freed u32
//!        | pages: position | place u40 (all ones: no page) | tag u32 | through u64 | node 32
//!        | freed: place u40
//! run    start u40 | pages u24
//! ```
//!
//! A *cut* replaces all pages of a range of the key space by new ones: one page that was
//! rewritten, a page that split, siblings that merged. Its pages tile the range completely,
//! empty ones included (they have no place); cuts are disjoint and ascending. `freed` are the
//! places of the pages that were replaced. Runs are those of overflow values.

use pleach_core::{Key, Node, Prefix};

use super::bytes::{BodyError, Cursor, push_u24, push_u40};
use super::commit_body::{encode_position, take_position};
use super::record::{Kind, RecordBuf};

const NO_PLACE: u64 = (1 << 40) - 1;
/// Places are below this.
pub const MAX_PLACE: u64 = NO_PLACE;
/// Runs have fewer pages than this.
pub const MAX_RUN_PAGES: u32 = 1 << 24;

/// A new page, or an empty position, of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPage<'a> {
    /// Its prefix.
    pub prefix: Prefix,
    /// Where it lies; `None` when the position is empty and has no page.
    pub place: Option<u64>,
    /// Low 32 bits of its checksum.
    pub tag: u32,
    /// Last commit whose changes it contains.
    pub through: u64,
    /// Its node, of all committed changes.
    pub node: &'a Node,
}

/// Neighbouring overflow pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First place.
    pub start: u64,
    /// Number of pages.
    pub pages: u32,
}

/// One cut that is to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// The range that was replaced.
    pub range: Prefix,
    /// Its new pages, ascending, tiling the range.
    pub pages: &'a [NewPage<'a>],
    /// Places that it gave up.
    pub freed: &'a [u64],
}

/// Encodes a location record cut by cut.
#[derive(Debug)]
pub struct LocationEncoder {
    flush: u64,
    ns: u8,
    cuts: u32,
    bytes: Vec<u8>,
}

impl LocationEncoder {
    /// Starts the record of flush number `flush` in a namespace, over a buffer that may have
    /// been used before.
    pub fn over(mut bytes: Vec<u8>, flush: u64, ns: u8) -> Self {
        bytes.clear();
        Self { flush, ns, cuts: 0, bytes }
    }

    /// Appends a cut behind the last one.
    ///
    /// # Panics
    /// When a place has more than 40 bits, or a cut has 2^32 pages.
    pub fn push(&mut self, cut: &Cut<'_>) {
        debug_assert!(tiles(&cut.range, cut.pages), "the new pages tile the range");
        self.cuts += 1;
        let count = |n: usize| u32::try_from(n).expect("a cut has fewer than 2^32 pages");
        encode_position(&mut self.bytes, &cut.range);
        self.bytes.extend_from_slice(&count(cut.pages.len()).to_le_bytes());
        self.bytes.extend_from_slice(&count(cut.freed.len()).to_le_bytes());
        for page in cut.pages {
            encode_position(&mut self.bytes, &page.prefix);
            self.place(page.place.unwrap_or(NO_PLACE), page.place.is_none());
            self.bytes.extend_from_slice(&page.tag.to_le_bytes());
            self.bytes.extend_from_slice(&page.through.to_le_bytes());
            self.bytes.extend_from_slice(page.node.as_ref());
        }
        for place in cut.freed {
            self.place(*place, false);
        }
    }

    fn place(&mut self, place: u64, none: bool) {
        assert!(none || place < NO_PLACE, "places have 40 bits");
        push_u40(&mut self.bytes, place);
    }

    /// The record, with the overflow runs that the flush allocated and freed.
    ///
    /// # Panics
    /// When a run is out of range.
    pub fn finish(mut self, database: u64, allocated: &[Run], freed: &[Run]) -> RecordBuf {
        for run in allocated.iter().chain(freed) {
            assert!(run.pages < MAX_RUN_PAGES, "runs have 24 bits");
            self.place(run.start, false);
            push_u24(&mut self.bytes, run.pages);
        }
        let count = |n: usize| u32::try_from(n).expect("fewer than 2^32 runs");
        let mut head = Vec::with_capacity(24);
        head.extend_from_slice(&self.flush.to_le_bytes());
        head.extend_from_slice(&[self.ns, 0, 0, 0]);
        head.extend_from_slice(&self.cuts.to_le_bytes());
        head.extend_from_slice(&count(allocated.len()).to_le_bytes());
        head.extend_from_slice(&count(freed.len()).to_le_bytes());
        RecordBuf::new(database, Kind::Location, self.flush, vec![head, self.bytes])
    }
}

/// A location record's body, checked completely.
#[derive(Clone, Copy, Debug)]
pub struct LocationView<'a> {
    /// Number of the flush.
    pub flush: u64,
    /// The namespace.
    pub ns: u8,
    cuts: u32,
    cut_bytes: &'a [u8],
    allocated: &'a [u8],
    freed: &'a [u8],
}

const RUN_LEN: u64 = 8;

impl<'a> LocationView<'a> {
    /// Checks the whole body, so that its iterators have only true things to tell.
    pub fn parse(body: &'a [u8]) -> Result<Self, BodyError> {
        let mut cursor = Cursor::new(body);
        let flush = cursor.u64()?;
        let ns = cursor.u8()?;
        cursor.reserved::<3>()?;
        let cuts = cursor.u32()?;
        let runs = [u64::from(cursor.u32()?) * RUN_LEN, u64::from(cursor.u32()?) * RUN_LEN];
        let cut_len = (cursor.len() as u64).checked_sub(runs[0] + runs[1]);
        let cut_bytes = cursor.take(cut_len.ok_or(BodyError::Truncated)?)?;
        let (allocated, freed) = (cursor.take(runs[0])?, cursor.take(runs[1])?);
        let view = Self { flush, ns, cuts, cut_bytes, allocated, freed };
        let mut last: Option<Key> = None;
        for cut in view.cuts() {
            let cut = cut?;
            if last.is_some_and(|last| cut.range.first_key() <= &last) {
                return Err(BodyError::Unsorted);
            }
            last = Some(cut.range.last_key());
            cut.check()?;
        }
        Ok(view)
    }

    /// The cuts, disjoint and ascending. None of them is an error after [`LocationView::parse`].
    pub fn cuts(&self) -> Cuts<'a> {
        Cuts { rest: Cursor::new(self.cut_bytes), left: self.cuts }
    }

    /// Overflow runs that the flush has written.
    pub fn allocated(&self) -> impl Iterator<Item = Run> + 'a {
        runs(self.allocated)
    }

    /// Overflow runs that became free with the flush.
    pub fn freed(&self) -> impl Iterator<Item = Run> + 'a {
        runs(self.freed)
    }
}

fn runs(bytes: &[u8]) -> impl Iterator<Item = Run> + '_ {
    let mut cursor = Cursor::new(bytes);
    core::iter::from_fn(move || Some(Run { start: cursor.u40().ok()?, pages: cursor.u24().ok()? }))
}

/// Iterator over cuts; it ends behind the first error.
#[derive(Clone, Debug)]
pub struct Cuts<'a> {
    rest: Cursor<'a>,
    left: u32,
}

impl<'a> Cuts<'a> {
    fn cut(&mut self) -> Result<CutView<'a>, BodyError> {
        let range = take_position(&mut self.rest)?;
        let (pages, freed) = (self.rest.u32()?, self.rest.u32()?);
        // Positions vary in length, so the pages are walked to find where they end.
        let from = self.rest;
        for _ in 0..pages {
            take_page(&mut self.rest)?;
        }
        let freed = self.rest.take(u64::from(freed) * 5)?;
        Ok(CutView { range, page_count: pages, pages: from, freed })
    }
}

impl<'a> Iterator for Cuts<'a> {
    type Item = Result<CutView<'a>, BodyError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.cut()
            }
            None if self.rest.is_empty() => return None,
            None => Err(BodyError::Trailing),
        };
        if item.is_err() {
            (self.left, self.rest) = (0, Cursor::new(&[]));
        }
        Some(item)
    }
}

/// One cut of a location record.
#[derive(Clone, Copy, Debug)]
pub struct CutView<'a> {
    /// The range that was replaced.
    pub range: Prefix,
    page_count: u32,
    pages: Cursor<'a>,
    freed: &'a [u8],
}

impl<'a> CutView<'a> {
    /// The new pages, ascending, tiling the range.
    pub fn pages(&self) -> impl Iterator<Item = NewPage<'a>> + 'a {
        let mut cursor = self.pages;
        (0..self.page_count).map_while(move |_| take_page(&mut cursor).ok())
    }

    /// Places that were given up.
    pub fn freed(&self) -> impl Iterator<Item = u64> + 'a {
        let mut cursor = Cursor::new(self.freed);
        core::iter::from_fn(move || cursor.u40().ok())
    }

    fn check(&self) -> Result<(), BodyError> {
        let mut tiling = Tiling::of(&self.range);
        if self.pages().all(|page| tiling.step(&page.prefix)) && tiling.complete() {
            Ok(())
        } else {
            Err(BodyError::Tiling)
        }
    }
}

fn take_page<'a>(cursor: &mut Cursor<'a>) -> Result<NewPage<'a>, BodyError> {
    let prefix = take_position(cursor)?;
    let place = cursor.u40()?;
    Ok(NewPage {
        prefix,
        place: (place != NO_PLACE).then_some(place),
        tag: cursor.u32()?,
        through: cursor.u64()?,
        node: Node::ref_of(cursor.array()?),
    })
}

/// Do the pages' prefixes tile the range, in order?
pub fn tiles(range: &Prefix, pages: &[NewPage<'_>]) -> bool {
    let mut tiling = Tiling::of(range);
    pages.iter().all(|page| tiling.step(&page.prefix)) && tiling.complete()
}

/// Follows a tiling from left to right: the next page has to start where the last one ended.
struct Tiling {
    range: Prefix,
    /// First key that is not yet covered; `None` behind the range's last.
    next: Option<Key>,
}

impl Tiling {
    fn of(range: &Prefix) -> Self {
        Self { range: *range, next: Some(*range.first_key()) }
    }

    fn step(&mut self, page: &Prefix) -> bool {
        if self.next.as_ref() != Some(page.first_key()) || !self.range.contains(page) {
            return false;
        }
        let last = page.last_key();
        self.next = if last == self.range.last_key() { None } else { successor(last) };
        true
    }

    fn complete(&self) -> bool {
        self.next.is_none()
    }
}

fn successor(mut key: Key) -> Option<Key> {
    for byte in key.iter_mut().rev() {
        let (next, carry) = byte.overflowing_add(1);
        *byte = next;
        if !carry {
            return Some(key);
        }
    }
    None
}
