//! Leaf page: all keys of one prefix, with their values and some nodes above them.
//!
//! ```text
//! 0        36     82             + 32 nodes   + 2 count   + suffix count                    4096
//! | common | cut  | 0, 8 or 16 nodes | slots     | key suffixes | values, back to back | zeros |
//! ```
//!
//! * *cut* (`prefix_header.rs`): its level byte holds the levels between the prefix and the stored nodes: 0, 3 or 4.
//!   The nodes are those of all 2^levels prefixes that are longer by that much, in order.
//! * *slot*: 2 bytes, where the value ends, counted from the start of the value area; the top bit says that the value
//!   is an overflow cell ([`super::overflow`]). A value starts where the one before it ends.
//! * *suffix*: the key without the whole bytes that the prefix gives. A byte that the prefix gives
//!   in part is stored and agrees with it. Keys strictly increase.
//!
//! The order of areas serves the reader: a search reads the suffixes alone, a fold the nodes and
//! then everything from left to right. What fits depends on sums only ([`cell_size`],
//! [`capacity`]), so splits are decided before anything is written.
//!
//! ```
//! use pleach_core::page::leaf::{MAX_INLINE, capacity, cell_size};
//!
//! // 8-byte balances below a prefix of 16 bits: slot, 30 bytes of key, value.
//! assert_eq!(cell_size(16, 8), 2 + 30 + 8);
//! assert_eq!(capacity(0) / cell_size(16, 8), 100);
//! // The two keys of the longest prefix always fit.
//! assert!(2 * cell_size(255, MAX_INLINE) <= capacity(0));
//! ```

use core::cmp::Ordering;
use core::ops::Range;

use crate::node::{Key, Node};
pub use crate::page::MAX_INLINE;
use crate::page::error::PageError;
use crate::page::header::{self, Identity, array_at, put, u16_at};
use crate::page::kinds::PageType;
use crate::page::overflow::OverflowCell;
use crate::page::prefix_header::{self, PrefixHeader};
use crate::page::{MAX_PREFIX_LEN, PAGE_SIZE, Page};
use crate::prefix::Prefix;
use crate::search::{guess, lower_bound_near, partition};

const NODES: usize = prefix_header::END;
const NODE_SIZE: usize = 32;
const SLOT_SIZE: usize = 2;
/// In a slot: the value is an overflow cell.
const OVERFLOW: u16 = 1 << 15;
/// From byte `32 - n` on: `n` set bytes, then clear ones.
const GIVEN: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 32 {
        bytes[at] = u8::MAX;
        at += 1;
    }
    bytes
};
/// In the level byte: the levels.
const LEVEL_BITS: u8 = 0b111;

const _: () = assert!(PAGE_SIZE < OVERFLOW as usize, "a slot holds an offset and a flag");
const _: () = assert!(
    2 * cell_size(MAX_PREFIX_LEN, MAX_INLINE) <= capacity(0),
    "the two keys of the longest prefix always fit"
);

/// Bytes that a cell takes in a page: slot, key suffix and value (or overflow cell).
#[inline]
pub const fn cell_size(prefix_len: u16, value_len: usize) -> usize {
    SLOT_SIZE + suffix_len(prefix_len) + value_len
}

/// Bytes for cells in a page with the nodes of this many levels (0, 3 or 4).
#[inline]
pub const fn capacity(levels: u8) -> usize {
    PAGE_SIZE - NODES - node_count(levels) * NODE_SIZE
}

/// Nodes that a page of this many levels stores.
#[inline]
pub const fn node_count(levels: u8) -> usize {
    if levels == 0 { 0 } else { 1 << levels }
}

/// True when a page with a prefix of this length can store nodes this many levels below it.
#[inline]
pub const fn levels_fit(levels: u8, prefix_len: u16) -> bool {
    matches!(levels, 0 | 3 | 4) && prefix_len + levels as u16 <= 256
}

const fn suffix_len(prefix_len: u16) -> usize {
    32 - whole_bytes(prefix_len)
}

const fn whole_bytes(prefix_len: u16) -> usize {
    (prefix_len / 8) as usize
}

/// A value in a leaf page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// The value itself.
    Inline(&'a [u8]),
    /// The value's length, hash and pages in the overflow file.
    Overflow(OverflowCell<'a>),
}

impl<'a> Cell<'a> {
    /// The cell as bytes, for another page.
    pub fn raw(&self) -> RawCell<'a> {
        match self {
            Self::Inline(bytes) => RawCell { bytes, overflow: false },
            Self::Overflow(cell) => RawCell { bytes: cell.bytes(), overflow: true },
        }
    }
}

/// A value as a page stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawCell<'a> {
    /// The value, or an encoded [`OverflowCell`].
    pub bytes: &'a [u8],
    /// True when `bytes` is an encoded overflow cell.
    pub overflow: bool,
}

/// Where the areas of a page lie.
#[derive(Clone, Copy, Debug)]
struct LeafAreas {
    count: usize,
    /// Bytes of a key that the prefix gives.
    whole: usize,
    slots: usize,
    keys: usize,
    values: usize,
}

impl LeafAreas {
    #[inline]
    fn new(levels: u8, prefix_len: u16, count: u16) -> Self {
        let count = usize::from(count);
        let slots = NODES + node_count(levels) * NODE_SIZE;
        let keys = slots + count * SLOT_SIZE;
        let values = keys + count * suffix_len(prefix_len);
        Self { count, whole: whole_bytes(prefix_len), slots, keys, values }
    }

    #[inline]
    fn suffix(&self) -> usize {
        32 - self.whole
    }
}

/// Where a page's cells are if its keys are spread evenly: enough to prefetch their memory without reading the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellGuess {
    prefix_len: u16,
    count: u16,
    keys: u16,
    value_bytes: u16,
}

impl CellGuess {
    /// Offsets in the page that a lookup of `key` reads: slot, suffix and value of a cell.
    #[inline]
    pub fn offsets(&self, key: &Key) -> [usize; 3] {
        let whole = whole_bytes(self.prefix_len);
        let Some(wanted) = head(&key[whole..]) else { return [0; 3] };
        self.offsets_of(guess_of(wanted, self.prefix_len, usize::from(self.count)))
    }

    /// From the first slot to the end of the last value.
    #[inline]
    pub fn cells(&self) -> Range<usize> {
        self.offsets_of(0)[0]..self.offsets_of(usize::from(self.count))[2]
    }

    /// The same for the cell with this index.
    #[inline]
    pub fn offsets_of(&self, at: usize) -> [usize; 3] {
        let whole = whole_bytes(self.prefix_len);
        let (count, keys) = (usize::from(self.count), usize::from(self.keys));
        let values = keys + count * (32 - whole);
        // Values mostly have one length.
        let value = values + usize::from(self.value_bytes) * at / count.max(1);
        [keys - (count - at) * SLOT_SIZE, keys + at * (32 - whole), value]
    }
}

/// The cell where this head is expected, if keys are spread evenly.
#[inline]
fn guess_of(wanted: u64, prefix_len: u16, count: usize) -> usize {
    let free = wanted << (prefix_len % 8);
    guess((free >> 32) as u32, count)
}

/// A leaf page, parsed.
#[derive(Clone, Copy, Debug)]
pub struct LeafView<'a> {
    page: &'a Page,
    areas: LeafAreas,
}

impl<'a> LeafView<'a> {
    /// Validates a page in full.
    pub fn parse(page: &'a Page, identity: &Identity) -> Result<Self, PageError> {
        header::check_typed(page, identity, PageType::Leaf)?;
        let cut = PrefixHeader::parse(page)?;
        if cut.level & !LEVEL_BITS != 0 {
            return Err(PageError::ReservedBits { offset: prefix_header::LEVEL });
        }
        let prefix_len = cut.prefix.len();
        if !levels_fit(cut.level, prefix_len) {
            return Err(PageError::Levels { levels: cut.level, prefix_len });
        }
        let areas = LeafAreas::new(cut.level, prefix_len, cut.count);
        if areas.values > PAGE_SIZE {
            return Err(PageError::Count { count: cut.count });
        }
        let view = Self { page, areas };
        view.check_keys(&cut.prefix)?;
        let end = view.check_values()?;
        header::check_unused(page, end)?;
        Ok(view)
    }

    /// A view of a page that [`Self::parse`] accepted before, or that a [`LeafBuilder`] sealed.
    ///
    /// On other bytes the view's methods may panic or give nonsense; they never read outside the page.
    #[inline]
    pub fn from_trusted(page: &'a Page) -> Self {
        let levels = page[prefix_header::LEVEL] & LEVEL_BITS;
        Self {
            page,
            areas: LeafAreas::new(
                levels,
                prefix_header::prefix_len(page),
                prefix_header::count(page),
            ),
        }
    }

    /// The prefix of the page: all keys below it are in the page.
    #[inline]
    pub fn prefix(&self) -> Prefix {
        prefix_header::prefix(self.page)
    }

    /// Length of the prefix.
    #[inline]
    pub fn prefix_len(&self) -> u16 {
        prefix_header::prefix_len(self.page)
    }

    /// The last commit whose changes this page contains.
    #[inline]
    pub fn applied_through(&self) -> u64 {
        prefix_header::as_of(self.page)
    }

    /// The flush that wrote this page.
    #[inline]
    pub fn flush(&self) -> u64 {
        header::flush(self.page)
    }

    /// The namespace that this page belongs to.
    #[inline]
    pub fn namespace(&self) -> u8 {
        header::namespace(self.page)
    }

    /// Number of keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.areas.count
    }

    /// True when the page has no keys.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.areas.count == 0
    }

    /// Levels between the prefix and the stored nodes; 0 without stored nodes.
    #[inline]
    pub fn levels(&self) -> u8 {
        self.page[prefix_header::LEVEL] & LEVEL_BITS
    }

    /// The stored nodes: 0, 8 or 16.
    #[inline]
    pub fn nodes(&self) -> &'a [Node] {
        Node::slice_of(self.page[NODES..self.areas.slots].as_chunks::<NODE_SIZE>().0)
    }

    /// Bytes that the cells take, at most [`capacity`].
    pub fn used(&self) -> usize {
        self.areas.values - self.areas.slots + self.value_end(self.areas.count)
    }

    /// The key of cell `index`.
    ///
    /// # Panics
    /// When there is no such cell.
    #[inline]
    pub fn key(&self, index: usize) -> Key {
        let whole = self.areas.whole;
        assert!(index < self.areas.count, "no such cell");
        // The 32 bytes that end with the suffix, the first of which are replaced by the prefix's. Without a branch or a
        // variable length: a key is a few vectors, and none of them is read again in other pieces.
        let mut key: Key =
            array_at(self.page, self.areas.keys + index * self.areas.suffix() - whole);
        let given = prefix_header::prefix_bits(self.page);
        let mask: Key = array_at(&GIVEN, 32 - whole);
        for (byte, (given, mask)) in key.iter_mut().zip(given.iter().zip(mask)) {
            *byte = *byte & !mask | given & mask;
        }
        key
    }

    /// The value of cell `index`.
    ///
    /// # Panics
    /// When there is no such cell.
    #[inline]
    pub fn cell(&self, index: usize) -> Cell<'a> {
        assert!(index < self.areas.count, "no such cell");
        let bytes = self.value(index);
        if self.slot(index) & OVERFLOW == 0 {
            Cell::Inline(bytes)
        } else {
            Cell::Overflow(OverflowCell::from_trusted(bytes))
        }
    }

    /// All cells in key order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Key, Cell<'a>)> + use<'a> {
        let view = *self;
        (0..view.len()).map(move |index| (view.key(index), view.cell(index)))
    }

    /// The cell of a key, or where it would be.
    #[inline]
    pub fn find(&self, key: &Key) -> Result<usize, usize> {
        let index = self.lower_bound(key);
        if index < self.areas.count
            && *self.suffix(index) == key[self.areas.whole..]
            && prefix_header::prefix_bits(self.page)[..self.areas.whole] == key[..self.areas.whole]
        {
            Ok(index)
        } else {
            Err(index)
        }
    }

    /// The first cell whose key is not less than `key`; the count if there is none.
    #[inline]
    pub fn lower_bound(&self, key: &Key) -> usize {
        let (given, suffix) = key.split_at(self.areas.whole);
        match given.cmp(&prefix_header::prefix_bits(self.page)[..self.areas.whole]) {
            Ordering::Less => 0,
            Ordering::Greater => self.areas.count,
            Ordering::Equal => self.lower_bound_of(suffix),
        }
    }

    /// Where cells lie, for [`CellGuess::offsets`].
    #[inline]
    pub fn cell_guess(&self) -> CellGuess {
        // Offsets in a page have 12 bits.
        let short = |offset: usize| u16::try_from(offset).unwrap_or_default();
        CellGuess {
            prefix_len: self.prefix_len(),
            count: short(self.areas.count),
            keys: short(self.areas.keys),
            value_bytes: short(self.value_end(self.areas.count)),
        }
    }

    /// Searches by the first 8 bytes as one integer, outwards from the place of evenly spread keys; the other bytes
    /// only decide between equals.
    #[inline]
    fn lower_bound_of(&self, suffix: &[u8]) -> usize {
        let count = self.areas.count;
        let less = |index: usize| self.suffix(index) < suffix;
        let Some(wanted) = head(suffix) else {
            return partition(0, count, less);
        };
        let stride = self.areas.suffix();
        let keys = &self.page[self.areas.keys..self.areas.values];
        let head = |index: usize| u64::from_be_bytes(array_at(keys, index * stride));
        let guess = guess_of(wanted, self.prefix_len(), count);
        let first = lower_bound_near(guess, count, |index| head(index) < wanted);
        // Usually this is the key itself, or no key has this head: no second search.
        if first < count && head(first) == wanted && less(first) {
            partition(first + 1, count, less)
        } else {
            first
        }
    }

    #[inline]
    fn suffix(&self, index: usize) -> &'a [u8] {
        let stride = self.areas.suffix();
        let keys = &self.page[self.areas.keys..self.areas.values];
        &keys[index * stride..(index + 1) * stride]
    }

    #[inline]
    fn slot(&self, index: usize) -> u16 {
        u16_at(self.page, self.areas.slots + index * SLOT_SIZE)
    }

    /// End of the last of the first `count` values, from the start of the value area.
    #[inline]
    fn value_end(&self, count: usize) -> usize {
        if count == 0 { 0 } else { usize::from(self.slot(count - 1) & !OVERFLOW) }
    }

    #[inline]
    fn value(&self, index: usize) -> &'a [u8] {
        &self.page[self.areas.values..][self.value_end(index)..self.value_end(index + 1)]
    }

    fn check_keys(&self, prefix: &Prefix) -> Result<(), PageError> {
        let rest = prefix.len() % 8;
        let mask = !(0xff_u8 >> rest);
        let given = prefix.first_key()[self.areas.whole];
        let mut before: Option<&[u8]> = None;
        for cell in 0..self.areas.count {
            let suffix = self.suffix(cell);
            if suffix[0] & mask != given {
                return Err(PageError::KeyOutside { cell });
            }
            if before.is_some_and(|before| !increases(before, suffix)) {
                return Err(PageError::KeyOrder { cell });
            }
            before = Some(suffix);
        }
        Ok(())
    }

    /// Checks the slots and returns where the values end.
    fn check_values(&self) -> Result<usize, PageError> {
        let room = PAGE_SIZE - self.areas.values;
        let mut start = 0;
        for cell in 0..self.areas.count {
            let slot = self.slot(cell);
            let end = usize::from(slot & !OVERFLOW);
            if end < start || end > room {
                return Err(PageError::Slot { cell });
            }
            if slot & OVERFLOW != 0 {
                OverflowCell::parse(&self.page[self.areas.values..][start..end])
                    .map_err(|reason| PageError::Overflow { cell, reason })?;
            } else if end - start > MAX_INLINE {
                return Err(PageError::InlineLength { cell, len: end - start });
            }
            start = end;
        }
        Ok(self.areas.values + start)
    }
}

/// The first 8 bytes as an integer of the same order; `None` for shorter suffixes.
#[inline]
fn head(suffix: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*suffix.first_chunk()?))
}

#[inline]
fn increases(before: &[u8], suffix: &[u8]) -> bool {
    match (head(before), head(suffix)) {
        (Some(a), Some(b)) if a != b => a < b,
        _ => before < suffix,
    }
}

/// The header fields of a leaf page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafHeader {
    /// File, page number and database of the page.
    pub identity: Identity,
    /// The flush that writes it.
    pub flush: u64,
    /// The page's namespace.
    pub namespace: u8,
    /// The prefix of all keys, at most 255 bits.
    pub prefix: Prefix,
    /// The last commit whose changes the page contains.
    pub applied_through: u64,
    /// Levels between the prefix and the stored nodes: 0, 3 or 4 ([`levels_fit`]).
    pub levels: u8,
    /// Number of cells that will be pushed.
    pub count: u16,
}

/// Fills a leaf page from left to right; nothing is moved.
///
/// Misuse panics before it can reach a disk: the caller has summed [`cell_size`] against
/// [`capacity`] and sorted its keys.
#[derive(Debug)]
pub struct LeafBuilder<'p> {
    page: &'p mut Page,
    areas: LeafAreas,
    prefix: Prefix,
    pushed: usize,
    value_end: usize,
    nodes_due: bool,
}

impl<'p> LeafBuilder<'p> {
    /// Starts a page, overwriting `page`.
    ///
    /// # Panics
    /// When the prefix is longer than 255 bits, there are no nodes so far below it, the page number
    /// has more than 40 bits, or the cells cannot fit.
    pub fn new(page: &'p mut Page, header: &LeafHeader) -> Self {
        let prefix_len = header.prefix.len();
        assert!(prefix_len <= MAX_PREFIX_LEN, "pages are cut at 255 bits at most");
        assert!(levels_fit(header.levels, prefix_len), "no nodes at such a depth");
        let areas = LeafAreas::new(header.levels, prefix_len, header.count);
        assert!(areas.values <= PAGE_SIZE, "more cells than a page holds");
        header::write_header(
            page,
            &header.identity,
            PageType::Leaf,
            header.flush,
            header.namespace,
        );
        PrefixHeader {
            level: header.levels,
            prefix: header.prefix,
            as_of: header.applied_through,
            count: header.count,
        }
        .write(page);
        let nodes_due = header.levels > 0;
        Self { page, areas, prefix: header.prefix, pushed: 0, value_end: 0, nodes_due }
    }

    /// Adds the next cell.
    ///
    /// # Panics
    /// When the key is not below the prefix or not greater than the one before, the value is too
    /// long to lie inline, the page is full, or all declared cells are there. That overflow cells
    /// are well-formed is asserted in debug builds; [`OverflowCell::encode`] makes no others.
    pub fn push(&mut self, key: &Key, cell: RawCell<'_>) {
        assert!(self.pushed < self.areas.count, "more cells than declared");
        assert!(cell.bytes.len() <= MAX_INLINE, "the value belongs in the overflow file");
        debug_assert!(!cell.overflow || OverflowCell::parse(cell.bytes).is_ok());
        assert!(self.prefix.covers(key), "the key is not below the prefix");
        let end = self.value_end + cell.bytes.len();
        assert!(self.areas.values + end <= PAGE_SIZE, "the page is full");

        let stride = self.areas.suffix();
        let at = self.areas.keys + self.pushed * stride;
        let suffix = &key[self.areas.whole..];
        assert!(
            self.pushed == 0 || increases(&self.page[at - stride..at], suffix),
            "keys strictly increase"
        );
        put(self.page, at, suffix);

        #[expect(clippy::cast_possible_truncation, reason = "less than a page")]
        let slot = end as u16 | if cell.overflow { OVERFLOW } else { 0 };
        put(self.page, self.areas.slots + self.pushed * SLOT_SIZE, &slot.to_le_bytes());
        put(self.page, self.areas.values + self.value_end, cell.bytes);
        self.pushed += 1;
        self.value_end = end;
    }

    /// Adds neighbouring cells of another page at once, for the cost of copying their bytes.
    ///
    /// # Panics
    /// As [`Self::push`], and when the other page's prefix gives another number of whole key bytes.
    pub fn push_run(&mut self, from: &LeafView<'_>, cells: Range<usize>) {
        if cells.is_empty() {
            return;
        }
        assert!(cells.end <= from.len(), "no such cells");
        assert!(self.pushed + cells.len() <= self.areas.count, "more cells than declared");
        assert!(from.areas.whole == self.areas.whole, "keys are cut at another byte");
        let (first, last) = (from.key(cells.start), from.key(cells.end - 1));
        assert!(self.prefix.covers(&first) && self.prefix.covers(&last), "not below the prefix");
        let (start, end) = (from.value_end(cells.start), from.value_end(cells.end));
        let value_end = self.value_end + end - start;
        assert!(self.areas.values + value_end <= PAGE_SIZE, "the page is full");

        let stride = self.areas.suffix();
        let at = self.areas.keys + self.pushed * stride;
        let suffixes = &from.page[from.areas.keys + cells.start * stride..][..cells.len() * stride];
        assert!(
            self.pushed == 0 || increases(&self.page[at - stride..at], &suffixes[..stride]),
            "keys strictly increase"
        );
        put(self.page, at, suffixes);
        put(
            self.page,
            self.areas.values + self.value_end,
            &from.page[from.areas.values..][start..end],
        );
        for cell in cells.clone() {
            let slot = from.slot(cell);
            let end = usize::from(slot & !OVERFLOW) - start + self.value_end;
            #[expect(clippy::cast_possible_truncation, reason = "less than a page")]
            let slot = end as u16 | slot & OVERFLOW;
            put(self.page, self.areas.slots + self.pushed * SLOT_SIZE, &slot.to_le_bytes());
            self.pushed += 1;
        }
        self.value_end = value_end;
    }

    /// Stores the nodes `levels` levels below the prefix, in order.
    ///
    /// # Panics
    /// When they are not 2^levels, or the page stores none.
    pub fn set_nodes(&mut self, nodes: &[Node]) {
        let area = &mut self.page[NODES..self.areas.slots];
        assert!(nodes.len() * NODE_SIZE == area.len(), "as many nodes as the levels say");
        area.copy_from_slice(Node::bytes_of(nodes));
        self.nodes_due = false;
    }

    /// Finishes the page and returns its tag.
    ///
    /// # Panics
    /// When declared cells or nodes are missing.
    pub fn seal(self) -> u32 {
        assert!(self.pushed == self.areas.count, "declared cells are missing");
        assert!(!self.nodes_due, "declared nodes are missing");
        header::seal(self.page)
    }
}
