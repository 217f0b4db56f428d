//! Page-aligned buffers that O_DIRECT accepts.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes of a page: the unit of every transfer, aligned in memory and in the file.
pub const PAGE: usize = 4096;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct AlignedPage([u8; PAGE]);

/// An owned run of zero or more pages, aligned to 4096 bytes.
pub struct PageBuf(Box<[AlignedPage]>);

impl PageBuf {
    /// `pages` zeroed pages.
    ///
    /// # Panics
    /// When memory is exhausted.
    pub fn zeroed(pages: usize) -> Self {
        let boxed = <[AlignedPage]>::new_box_zeroed_with_elems(pages);
        Self(boxed.unwrap_or_else(|_| panic!("out of memory for {pages} pages")))
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.0.len()
    }

    /// Page `index` of the run.
    ///
    /// # Panics
    /// When `index` is not below [`PageBuf::pages`].
    pub fn page(&self, index: usize) -> &[u8; PAGE] {
        &self.0[index].0
    }

    /// Page `index` of the run, writable.
    ///
    /// # Panics
    /// When `index` is not below [`PageBuf::pages`].
    pub fn page_mut(&mut self, index: usize) -> &mut [u8; PAGE] {
        &mut self.0[index].0
    }
}

impl core::ops::Deref for PageBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl core::ops::DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

impl core::fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PageBuf({} pages)", self.pages())
    }
}
