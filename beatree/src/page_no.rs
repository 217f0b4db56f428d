//! Numbers of pages, and their offsets in files.
//!
//! A leaf page's number is a [`PageNo`], so that it is never taken for a tag, a count or a page of another file. Pages
//! of the overflow file and branch pages are counted in 64 bits.
//!
//! ```
//! use pleach_beatree::page_no::{PageNo, page_offset};
//!
//! let page = PageNo::new(3);
//! assert_eq!(page.offset(), 3 * 4096);
//! assert_eq!(u64::from(page), 3);
//! assert_eq!(page_offset(3), page.offset());
//! // What a file says may be more than a page number can be.
//! assert!(PageNo::try_from(u64::from(u32::MAX)).is_err());
//! ```

use core::fmt;

use pleach_core::page::PAGE_SIZE;

/// The offset of a page of any file, in bytes.
#[inline]
pub const fn page_offset(page: u64) -> u64 {
    page * PAGE_SIZE as u64
}

/// Number of a page of the leaf file. The largest 32-bit number is no page: packed fields use it for "no page".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(u32);

/// The place of a leaf page, by its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Its number.
    pub page: PageNo,
    /// Its tag.
    pub tag: u32,
    /// The namespace that the page must belong to.
    pub namespace: u8,
}

/// A number that no page of the leaf file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("page number {0} is beyond the largest one of the leaf file")]
pub struct PageNoTooLarge(pub u64);

impl PageNo {
    const NONE: u32 = u32::MAX;
    /// Numbers from here on are of pages that nobody can read.
    const LOST: u32 = 0xf000_0000;

    /// The page of this number.
    ///
    /// # Panics
    /// For the largest 32-bit number.
    #[inline]
    pub const fn new(number: u32) -> Self {
        assert!(number != Self::NONE, "the largest number is no page's");
        Self(number)
    }

    /// The number for all leaf pages of a region whose branch page, of this number, cannot be read. No file has it.
    pub const fn lost(branch: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "only errors are named by it")]
        Self::new(Self::LOST | (branch as u32 & (Self::NONE >> 5)))
    }

    /// True for a number of [`PageNo::lost`].
    #[inline]
    pub const fn is_lost(self) -> bool {
        self.0 >= Self::LOST
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The page's offset in the file, in bytes.
    #[inline]
    pub const fn offset(self) -> u64 {
        page_offset(self.0 as u64)
    }

    /// True when `other` is the next page of the file.
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        self.0 + 1 == other.0
    }

    /// Pages from this one to `other`; 0 when `other` is not behind this one.
    #[inline]
    pub const fn pages_to(self, other: Self) -> usize {
        other.0.saturating_sub(self.0) as usize
    }

    /// A page number or none, in 32 bits.
    #[inline]
    pub(crate) const fn pack(page: Option<Self>) -> u32 {
        match page {
            Some(page) => page.0,
            None => Self::NONE,
        }
    }

    /// The inverse of [`PageNo::pack`].
    #[inline]
    pub(crate) const fn unpack(number: u32) -> Option<Self> {
        if number == Self::NONE { None } else { Some(Self(number)) }
    }
}

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<PageNo> for u64 {
    #[inline]
    fn from(page: PageNo) -> Self {
        page.0.into()
    }
}

impl TryFrom<u64> for PageNo {
    type Error = PageNoTooLarge;

    #[inline]
    fn try_from(number: u64) -> Result<Self, PageNoTooLarge> {
        match u32::try_from(number) {
            Ok(number) if number != Self::NONE => Ok(Self(number)),
            _ => Err(PageNoTooLarge(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_is_no_page() {
        let last = u32::MAX - 1;
        assert_eq!(PageNo::try_from(u64::from(last)), Ok(PageNo::new(last)));
        for number in [u64::from(u32::MAX), 1 << 32, u64::MAX] {
            assert_eq!(PageNo::try_from(number), Err(PageNoTooLarge(number)));
        }
        for page in [None, Some(PageNo::new(0)), Some(PageNo::new(last))] {
            assert_eq!(PageNo::unpack(PageNo::pack(page)), page);
        }
        assert_eq!(PageNo::new(last).offset(), u64::from(last) * 4096, "beyond 32 bits");
    }

    #[test]
    #[should_panic(expected = "no page's")]
    fn the_largest_number_is_refused() {
        let _ = PageNo::new(u32::MAX);
    }
}
