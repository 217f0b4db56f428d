//! Page-aligned buffers that O_DIRECT accepts.

use zerocopy::IntoBytes;

use crate::page::{AlignedPage, PAGE, zeroed};
use crate::slab::SlabPages;

/// Zero or more neighbouring pages of memory, owned and aligned to 4096 bytes. The bytes never move,
/// even when the buffer does.
///
/// ```
/// let mut buf = pleach_io::PageBuf::zeroed(2);
/// buf.page_mut(1)[0] = 7;
/// assert_eq!((buf.len(), buf[4096]), (8192, 7));
/// ```
pub struct PageBuf(Pages);

/// The owner of the memory.
enum Pages {
    /// An allocation of its own.
    Own(Box<[AlignedPage]>),
    /// A part of a pool's slab, which goes back when the buffer is dropped.
    Slab(SlabPages),
}

impl PageBuf {
    /// `pages` zeroed pages.
    ///
    /// # Panics
    /// When memory is exhausted.
    pub fn zeroed(pages: usize) -> Self {
        Self(Pages::Own(zeroed(pages)))
    }

    pub(crate) fn in_slab(pages: SlabPages) -> Self {
        Self(Pages::Slab(pages))
    }

    /// The part of a pool's slab that this buffer is, if it is from a pool.
    pub(crate) fn slab(&self) -> Option<&SlabPages> {
        match &self.0 {
            Pages::Own(_) => None,
            Pages::Slab(pages) => Some(pages),
        }
    }

    fn run(&self) -> &[AlignedPage] {
        match &self.0 {
            Pages::Own(pages) => pages,
            Pages::Slab(pages) => pages.get(),
        }
    }

    fn run_mut(&mut self) -> &mut [AlignedPage] {
        match &mut self.0 {
            Pages::Own(pages) => pages,
            Pages::Slab(pages) => pages.get_mut(),
        }
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.run().len()
    }

    /// Page `index` of the buffer.
    ///
    /// # Panics
    /// When `index` is not below [`PageBuf::pages`].
    pub fn page(&self, index: usize) -> &[u8; PAGE] {
        &self.run()[index].0
    }

    /// Page `index` of the buffer, writable.
    ///
    /// # Panics
    /// When `index` is not below [`PageBuf::pages`].
    pub fn page_mut(&mut self, index: usize) -> &mut [u8; PAGE] {
        &mut self.run_mut()[index].0
    }
}

impl core::ops::Deref for PageBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.run().as_bytes()
    }
}

impl core::ops::DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.run_mut().as_mut_bytes()
    }
}

impl core::fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PageBuf({} pages)", self.pages())
    }
}
