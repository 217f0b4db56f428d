//! A leaf page in memory with one byte of each key's hash beside it.
//!
//! A lookup compares eight of these bytes at a time and then, on average, one key; a binary search over the keys takes
//! seven dependent comparisons. The hash mixes the whole key, because keys need not differ in any particular byte.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use pleach_core::cpu_prefetch;
use pleach_core::fold::{Columns, TREELET_LEVELS};
use pleach_core::page::leaf::{Cell, CellGuess, LeafView};
use pleach_core::page::{PAGE_SIZE, Page};
use pleach_core::{Key, Node};

use crate::stored::Stored;
use crate::treelet::{Treelet, TreeletNodes};
use pleach_core::prefix::bits_after;

/// Fingerprints in the allocation itself. Pages with more cells have very short values.
const NEAR: usize = 128;
const WORD: usize = size_of::<u64>();
/// Bytes of a cache line.
const LINE: usize = 64;
/// Lines of keys, on either side, in which a fold's search for a bucket mostly ends: keys are spread
/// with a deviation of two lines in the middle of a page.
const FOLD_LINES: usize = 3;

/// Bytes of a page's allocation: two reference counts, the struct, and the allocator's header with rounding.
pub(super) const COST: usize = 2 * size_of::<usize>() + size_of::<CachedPage>() + 16;
/// Bytes of a treelet's allocation.
pub(super) const TREELET_COST: usize = size_of::<Treelet>() + 16;

/// A validated leaf page, its fingerprints, and its known nodes. What a lookup reads first is together at the front.
#[repr(C)]
pub struct CachedPage {
    near: [[u8; WORD]; NEAR / WORD],
    /// Number of cells.
    len: u16,
    /// Where the cells are.
    guess: CellGuess,
    /// True when the page was folded since it was cached.
    folded: AtomicBool,
    /// True when the treelet has columns; read without the treelet's memory.
    has_columns: AtomicBool,
    /// Known nodes of the page, with its buffered changes applied.
    treelet: Mutex<Option<Box<Treelet>>>,
    page: Page,
    /// All fingerprints, when there are more than `near` has room for.
    far: Vec<[u8; WORD]>,
}

impl CachedPage {
    /// A copy of `page`, in the memory of `carrier` if nobody else holds that.
    pub(super) fn fill(carrier: Option<Arc<Self>>, page: &Page) -> Arc<Self> {
        let mut carrier = carrier.unwrap_or_else(|| Arc::new(Self::empty()));
        if let Some(target) = Arc::get_mut(&mut carrier) {
            target.set(page);
            return carrier;
        }
        let mut fresh = Self::empty();
        fresh.set(page);
        Arc::new(fresh)
    }

    fn empty() -> Self {
        Self {
            near: [[0; WORD]; NEAR / WORD],
            len: 0,
            guess: CellGuess::default(),
            folded: AtomicBool::new(false),
            has_columns: AtomicBool::new(false),
            treelet: Mutex::default(),
            page: [0; PAGE_SIZE],
            far: Vec::new(),
        }
    }

    fn set(&mut self, page: &Page) {
        self.page.copy_from_slice(page);
        *self.folded.get_mut() = false;
        *self.treelet.get_mut() = None;
        let view = LeafView::from_trusted(&self.page);
        self.len = u16::try_from(view.len()).expect("a page's count has 16 bits");
        self.guess = view.cell_guess();
        let prints = if view.len() <= NEAR {
            self.far = Vec::new();
            self.near.as_mut_slice()
        } else {
            self.far = vec![[0; WORD]; view.len().div_ceil(WORD)];
            self.far.as_mut_slice()
        };
        let prints = prints.as_flattened_mut();
        for (index, print) in prints.iter_mut().enumerate().take(view.len()) {
            *print = fingerprint(&view.key(index));
        }
    }

    /// The page.
    #[inline]
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// The page as a leaf.
    #[inline]
    pub fn view(&self) -> LeafView<'_> {
        LeafView::from_trusted(&self.page)
    }

    /// Index of a key's cell.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<usize> {
        let view = self.view();
        self.candidates(key).find(|index| view.key(*index) == *key)
    }

    /// Cells with the key's fingerprint.
    #[inline]
    fn candidates(&self, key: &Key) -> Candidates<'_> {
        let len = usize::from(self.len);
        let words = if len <= NEAR { self.near.as_slice() } else { self.far.as_slice() };
        let wanted = u64::from(fingerprint(key)) * LOW_BITS;
        Candidates { words: &words[..len.div_ceil(WORD)], len, wanted, next: 0, equal: 0 }
    }

    /// The value of a key.
    #[inline]
    pub fn get(&self, key: &Key) -> Option<Cell<'_>> {
        Some(self.view().cell(self.find(key)?))
    }

    /// The state of a key of this page.
    #[inline]
    pub fn stored(&self, key: &Key) -> Stored {
        match self.get(key) {
            Some(cell) => Stored::from_cell(cell),
            None => Stored::Absent,
        }
    }

    /// Prefetches the memory that is read when the page is evicted, and written when another page reuses its
    /// allocation.
    #[inline]
    pub(super) fn cpu_prefetch_front(&self) {
        cpu_prefetch(&self.near);
        cpu_prefetch(core::slice::from_ref(&self.treelet));
    }

    /// Prefetches the memory that a search for a cell reads.
    #[inline]
    pub(super) fn cpu_prefetch_prints(&self) {
        cpu_prefetch(&self.near);
        cpu_prefetch(core::slice::from_ref(&self.guess));
        cpu_prefetch(&self.page[..2 * LINE]);
    }

    /// Prefetches the memory of all cells; `guess` is this page's.
    #[inline]
    pub(super) fn cpu_prefetch_cells(&self, guess: CellGuess) {
        // The reference counts are before the fingerprints, and the header has the bytes that keys share.
        cpu_prefetch(&self.near[..1]);
        cpu_prefetch(&self.page[..LINE]);
        cpu_prefetch(&self.page[guess.cells()]);
    }

    /// Searches for a key by fingerprints only, and prefetches the memory of the cell found.
    #[inline]
    pub fn cpu_prefetch_cell(&self, key: &Key) -> Option<usize> {
        let found = self.candidates(key).next();
        if let Some(index) = found {
            let [slot, suffix, value] = self.guess.offsets_of(index);
            for (at, len) in [(slot, 1), (suffix, size_of::<Key>()), (value, 1)] {
                let at = at.min(PAGE_SIZE);
                cpu_prefetch(&self.page[at..(at + len).min(PAGE_SIZE)]);
            }
        }
        found
    }

    /// The value of a key whose cell is probably `found` ([`Self::cpu_prefetch_cell`]).
    #[inline]
    pub fn get_near(&self, key: &Key, found: Option<usize>) -> Option<Cell<'_>> {
        let view = self.view();
        if view.key(found?) == *key { found.map(|index| view.cell(index)) } else { self.get(key) }
    }

    /// Prefetches the memory that a lookup of `key` reads; `guess` is this page's.
    #[inline]
    pub(super) fn cpu_prefetch_lookup(&self, guess: CellGuess, key: &Key) {
        // Fingerprints and length, and before them the reference counts.
        cpu_prefetch(&self.near);
        cpu_prefetch(core::slice::from_ref(&self.guess));
        // The header has the bytes that keys share.
        cpu_prefetch(&self.page[..1]);
        self.cpu_prefetch_around(guess, key, 1);
    }

    /// Where the page's cells lie.
    pub(super) fn guess(&self) -> CellGuess {
        self.guess
    }

    /// Prefetches the memory where a fold begins.
    #[inline]
    pub fn cpu_prefetch_head(&self) {
        // The header, and in the line before it the fields in front of the page.
        cpu_prefetch(&self.page[..2 * LINE]);
    }

    /// Prefetches the memory that a fold reads around a key. Reads what [`Self::cpu_prefetch_head`] fetches.
    #[inline]
    pub fn cpu_prefetch_key(&self, key: &Key) {
        self.cpu_prefetch_around(self.guess, key, FOLD_LINES);
        let Some(treelet) = self.treelet.try_lock() else { return };
        if let Some(treelet) = treelet.as_deref() {
            let has_columns = self.has_columns.load(Ordering::Relaxed);
            let columns = if has_columns { treelet.columns() } else { None };
            treelet.cpu_prefetch(self.bucket(key, columns));
        }
    }

    /// Prefetches `lines` cache lines of keys on either side of the key's expected place, and half as many of values.
    #[inline]
    fn cpu_prefetch_around(&self, guess: CellGuess, key: &Key, lines: usize) {
        let [slot, suffix, value] = guess.offsets(key);
        for (at, lines) in [(slot, 0), (suffix, lines), (value, lines / 2)] {
            let end = (at + (lines * LINE).max(1)).min(PAGE_SIZE);
            cpu_prefetch(&self.page[at.saturating_sub(lines * LINE).min(end)..end]);
        }
    }

    /// Prefetches the memory of the treelet's nodes that will be written. Reads the page's front
    /// ([`Self::cpu_prefetch_head`]).
    #[inline]
    pub fn cpu_prefetch_nodes(&self, nodes: impl Iterator<Item = u8>) {
        if let Some(treelet) = self.treelet.try_lock()
            && let Some(treelet) = treelet.as_deref()
        {
            nodes.for_each(|index| treelet.cpu_prefetch_node(index));
        }
    }

    /// Marks the page as folded. True when it was folded before.
    #[inline]
    pub fn mark_folded(&self) -> bool {
        self.folded.load(Ordering::Relaxed) || self.folded.swap(true, Ordering::Relaxed)
    }

    /// Calls `read` with the known nodes of the page in version `as_of`.
    pub fn treelet<T>(&self, as_of: u64, read: impl FnOnce(Option<TreeletNodes<'_>>) -> T) -> T {
        let treelet = self.treelet.lock();
        let of_then = treelet.as_deref().filter(|treelet| treelet.as_of() == as_of);
        read(of_then.map(Treelet::known))
    }

    /// The bucket of a key, in a treelet with these columns.
    #[inline]
    pub fn bucket(&self, key: &Key, columns: Option<Columns>) -> u8 {
        if let Some(columns) = columns {
            return columns.bucket(key);
        }
        (bits_after(key, self.view().prefix_len()) >> (32 - TREELET_LEVELS)) as u8
    }

    /// Brings the treelet of a page that a commit has changed from version `step.0` to `step.1`, with these columns.
    /// False when the page has no treelet ([`super::Cache::attach_treelet`]).
    pub fn advance_treelet(
        &self,
        step: (u64, u64),
        columns: Option<Columns>,
        own: &Node,
        nodes: impl Iterator<Item = (u8, Node)>,
    ) -> bool {
        let mut treelet = self.treelet.lock();
        let Some(treelet) = treelet.as_deref_mut() else { return false };
        treelet.advance(step, columns, own, nodes);
        self.has_columns.store(columns.is_some(), Ordering::Relaxed);
        true
    }

    /// Exchanges the treelet. Only under the lock of the page's shard, which counts its bytes.
    pub(super) fn replace_treelet(&self, treelet: Option<Box<Treelet>>) -> Option<Box<Treelet>> {
        let mut own = self.treelet.lock();
        let has_columns = treelet.as_ref().is_some_and(|treelet| treelet.columns().is_some());
        self.has_columns.store(has_columns, Ordering::Relaxed);
        core::mem::replace(&mut *own, treelet)
    }

    /// True when a treelet is attached.
    pub(super) fn has_treelet(&self) -> bool {
        self.treelet.lock().is_some()
    }

    /// Bytes of this page's allocations.
    pub(super) fn bytes(&self) -> usize {
        let treelet = if self.has_treelet() { TREELET_COST } else { 0 };
        COST + treelet + self.far.capacity() * WORD
    }
}

impl core::fmt::Debug for CachedPage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "CachedPage({} cells)", self.len)
    }
}

/// The indexes of cells with one fingerprint, in order.
struct Candidates<'a> {
    /// The fingerprints of all cells, and zeros behind them.
    words: &'a [[u8; WORD]],
    /// Number of cells.
    len: usize,
    /// The fingerprint in each byte.
    wanted: u64,
    /// The word that is looked at next.
    next: usize,
    /// The top bits of bytes in the word before that are still to be given.
    equal: u64,
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.equal == 0 {
            let word = self.words.get(self.next)?;
            self.equal = zero_bytes(u64::from_le_bytes(*word) ^ self.wanted);
            self.next += 1;
        }
        let index = (self.next - 1) * WORD + (self.equal.trailing_zeros() / 8) as usize;
        self.equal &= self.equal - 1;
        (index < self.len).then_some(index)
    }
}

const LOW_BITS: u64 = u64::from_ne_bytes([1; 8]);
const HIGH_BITS: u64 = LOW_BITS << 7;

/// The top bit of each byte that is zero, and no other bit.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    // No carry leaves a byte: its seven low bits plus 127 are at most 254.
    !(((word & !HIGH_BITS) + !HIGH_BITS) | word) & HIGH_BITS
}

/// One byte that depends on all bits of a key.
#[inline]
fn fingerprint(key: &Key) -> u8 {
    // Odd, so that two keys that differ in one word always differ in the product.
    const FACTORS: [u64; 4] = [
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
        0xd6e8_feb8_6659_fd93,
    ];
    let (words, _) = key.as_chunks::<WORD>();
    let mut sum = 0_u64;
    for (word, factor) in words.iter().zip(FACTORS) {
        sum = sum.wrapping_add(u64::from_le_bytes(*word).wrapping_mul(factor));
    }
    // Products carry upwards only: the high half, which depends on all bits, is folded into the low one.
    let [.., top] = (sum ^ sum << 32).wrapping_mul(FACTORS[0]).to_le_bytes();
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_bytes_are_found_exactly() {
        for a in [0_u8, 1, 0x7f, 0x80, 0xff] {
            for b in 0..=255_u8 {
                let bytes = [a, b, 0, a, 1, b, 0x80, 0];
                let found = zero_bytes(u64::from_le_bytes(bytes)).to_le_bytes();
                assert!(bytes.iter().zip(found).all(|(byte, top)| (top == 0x80) == (*byte == 0)));
            }
        }
    }

    #[test]
    fn keys_that_differ_in_one_byte_share_few_fingerprints() {
        for byte in 0..32 {
            let mut seen = [0_u32; 256];
            for value in 0..=255 {
                let mut key = [0x55; 32];
                key[byte] = value;
                seen[usize::from(fingerprint(&key))] += 1;
            }
            assert!(seen.iter().max() <= Some(&12), "byte {byte}: {seen:?}");
        }
    }
}
