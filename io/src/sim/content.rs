//! The bytes of one simulated file as a copy-on-write map of pages.
//!
//! Invariants: cloning costs one reference count per [`FAN`] pages; a page without a slot is a hole and reads as zeros;
//! a slot is space that the file occupies (reserved space holds a shared page of zeros). Slots past the length exist
//! only while a crash image is being assembled; [`Content::trim`] ends that.

use core::fmt;
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use crate::page::PAGE;

/// Bytes of a sector: the unit that a power failure tears.
pub const SECTOR: usize = 512;
/// Sectors of a page: as many as a mask has bits.
pub(super) const SECTORS: usize = PAGE / SECTOR;
/// Pages of a chunk.
const FAN: usize = 32;
const PAGE_U64: u64 = PAGE as u64;
/// Pages of a file among which random damage chooses.
pub(super) const PAGES_LIMIT: u64 = 1 << 20;

const _: () = assert!(SECTORS == 8, "a page's mask is one byte");

/// One page's bytes.
pub(super) type PageBytes = [u8; PAGE];
/// A page of a file, shared between images.
pub(super) type PageSlot = Option<Arc<PageBytes>>;

static ZEROS: LazyLock<Arc<PageBytes>> = LazyLock::new(|| Arc::new([0; PAGE]));

/// Number to index. Simulated files live in memory, so their page numbers fit.
pub(super) fn to_index(number: u64) -> usize {
    usize::try_from(number).expect("a simulated file fits the address space")
}

/// Pages that `len` bytes touch.
pub(super) const fn pages_of(len: u64) -> u64 {
    len.div_ceil(PAGE_U64)
}

/// Byte offset of page `page`.
pub(super) const fn offset_of(page: u64) -> u64 {
    page * PAGE_U64
}

/// Bytes of one file. Clones share equal pages.
#[derive(Clone, Default)]
pub struct Content {
    len: u64,
    occupied: u64,
    chunks: Vec<Option<Arc<[PageSlot; FAN]>>>,
    /// Pages whose reading fails until they are written.
    bad: Option<Arc<BTreeSet<u64>>>,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes, {} pages occupied)", self.len, self.occupied)
    }
}

impl Content {
    /// A file that holds `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut content = Self { len: bytes.len() as u64, ..Self::default() };
        for (index, part) in bytes.chunks(PAGE).enumerate() {
            let mut page = [0; PAGE];
            page[..part.len()].copy_from_slice(part);
            content.set_slot(index as u64, Some(Arc::new(page)));
        }
        content
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True when the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pages, the last perhaps partial.
    pub fn pages(&self) -> u64 {
        pages_of(self.len)
    }

    /// Pages that occupy space: written or reserved.
    pub fn occupied(&self) -> u64 {
        self.occupied
    }

    /// Bytes of page `page`; zeros for a hole and past the end.
    pub fn page(&self, page: u64) -> &[u8; PAGE] {
        self.slot(page).map_or(&**ZEROS, |slot| &**slot)
    }

    /// True when reading page `page` fails.
    pub fn is_bad(&self, page: u64) -> bool {
        self.bad.as_ref().is_some_and(|bad| bad.contains(&page))
    }

    /// All bytes, holes as zeros.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(to_index(self.len));
        for page in 0..self.pages() {
            bytes.extend_from_slice(self.page(page));
        }
        bytes.truncate(to_index(self.len));
        bytes
    }

    pub(super) fn slot(&self, page: u64) -> Option<&Arc<PageBytes>> {
        let index = to_index(page);
        self.chunks.get(index / FAN)?.as_ref()?[index % FAN].as_ref()
    }

    pub(super) fn set_slot(&mut self, page: u64, slot: PageSlot) {
        self.mend(page);
        let index = to_index(page);
        if index / FAN >= self.chunks.len() {
            if slot.is_none() {
                return;
            }
            self.chunks.resize(index / FAN + 1, None);
        }
        let chunk = self.chunks[index / FAN].get_or_insert_default();
        let old = &mut Arc::make_mut(chunk)[index % FAN];
        self.occupied += u64::from(slot.is_some());
        self.occupied -= u64::from(old.is_some());
        *old = slot;
    }

    /// Replaces those sectors of page `page` whose bit is set in `mask`.
    pub(super) fn set_sectors(&mut self, page: u64, from: &Arc<PageBytes>, mask: u8) {
        match mask {
            0 => {}
            u8::MAX => self.set_slot(page, Some(Arc::clone(from))),
            _ => {
                let mut merged = *self.page(page);
                for sector in (0..SECTORS).filter(|sector| mask >> sector & 1 == 1) {
                    let range = sector * SECTOR..(sector + 1) * SECTOR;
                    merged[range.clone()].copy_from_slice(&from[range]);
                }
                self.set_slot(page, Some(Arc::new(merged)));
            }
        }
    }

    /// Makes the length at least `len`.
    pub(super) fn extend(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Cuts or extends to `len`; cut bytes read as zeros if the file grows again.
    pub(super) fn resize(&mut self, len: u64) {
        self.len = len;
        self.trim();
    }

    /// Drops everything past the length.
    pub(super) fn trim(&mut self) {
        let first = pages_of(self.len);
        let slots = (self.chunks.len() * FAN) as u64;
        for page in first..slots {
            if self.slot(page).is_some() {
                self.set_slot(page, None);
            }
        }
        self.chunks.truncate(to_index(first).div_ceil(FAN));
        let tail = to_index(self.len % PAGE_U64);
        if tail != 0
            && self.slot(first - 1).is_some_and(|page| page[tail..].iter().any(|&b| b != 0))
        {
            let mut page = *self.page(first - 1);
            page[tail..].fill(0);
            self.set_slot(first - 1, Some(Arc::new(page)));
        }
    }

    /// Occupies space for `count` pages from `first`.
    pub(super) fn reserve(&mut self, first: u64, count: u64) {
        for page in first..first + count {
            if self.slot(page).is_none() {
                self.set_slot(page, Some(Arc::clone(&ZEROS)));
            }
        }
    }

    /// Pages among `count` from `first` that occupy no space.
    pub(super) fn holes(&self, first: u64, count: u64) -> u64 {
        (first..first + count).map(|page| u64::from(self.slot(page).is_none())).sum()
    }

    /// Makes reading page `page` fail until it is written.
    pub(super) fn spoil(&mut self, page: u64) {
        Arc::make_mut(self.bad.get_or_insert_default()).insert(page);
    }

    fn mend(&mut self, page: u64) {
        if self.is_bad(page) {
            Arc::make_mut(self.bad.get_or_insert_default()).remove(&page);
        }
    }
}
