//! Memory in pages: the unit of every transfer, aligned as `O_DIRECT` wants it.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes of a page: the unit of every transfer, aligned in memory and in the file.
pub const PAGE: usize = 4096;

/// The bytes of one page.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub(crate) struct AlignedPage(pub(crate) [u8; PAGE]);

/// An allocation of `pages` zeroed pages; untouched pages cost no memory.
///
/// # Panics
/// When memory is exhausted.
pub(crate) fn zeroed(pages: usize) -> Box<[AlignedPage]> {
    let boxed = <[AlignedPage]>::new_box_zeroed_with_elems(pages);
    boxed.unwrap_or_else(|_| panic!("out of memory for {pages} pages"))
}
