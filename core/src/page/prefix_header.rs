//! The fields that leaf and branch pages share, since both are cut at a key prefix. Owner of bytes 36 to 82.
//!
//! ```text
//! 36      37  38              40                                48       80      82
//! | level | 0 | prefix length | applied through or log position | prefix | count |
//! ```

use crate::page::error::PageError;
use crate::page::header::{self, array_at, put, u16_at, u64_at};
use crate::page::{MAX_PREFIX_LEN, Page};
use crate::prefix::Prefix;

/// Levels down to the stored nodes of a leaf page; level of a branch page.
pub(super) const LEVEL: usize = header::END;
const RESERVED: usize = LEVEL + 1;
const PREFIX_LEN: usize = RESERVED + 1;
const AS_OF: usize = PREFIX_LEN + 2;
const PREFIX: usize = AS_OF + 8;
const COUNT: usize = PREFIX + 32;
/// Where the contents begin.
pub(super) const END: usize = COUNT + 2;

const _: () = assert!(END == 82, "the header of a cut page is 82 bytes");
const _: () =
    assert!(AS_OF.is_multiple_of(8) && PREFIX.is_multiple_of(8), "wide fields are aligned");

/// The fields of a page that is cut at a prefix.
pub(super) struct PrefixHeader {
    pub(super) level: u8,
    pub(super) prefix: Prefix,
    /// The commit number that a leaf page is applied through; the log position of a branch page.
    pub(super) as_of: u64,
    pub(super) count: u16,
}

impl PrefixHeader {
    /// Writes the fields after the common header.
    pub(super) fn write(&self, page: &mut Page) {
        assert!(self.prefix.len() <= MAX_PREFIX_LEN, "pages are cut at 255 bits at most");
        page[LEVEL] = self.level;
        put(page, PREFIX_LEN, &self.prefix.len().to_le_bytes());
        put(page, AS_OF, &self.as_of.to_le_bytes());
        put(page, PREFIX, self.prefix.first_key());
        put(page, COUNT, &self.count.to_le_bytes());
    }

    /// Reads the fields of a page that passed the common checks.
    pub(super) fn parse(page: &Page) -> Result<Self, PageError> {
        if page[RESERVED] != 0 {
            return Err(PageError::ReservedBits { offset: RESERVED });
        }
        let len = prefix_len(page);
        let prefix = Prefix::from_raw(array_at(page, PREFIX), len)
            .filter(|_| len <= MAX_PREFIX_LEN)
            .ok_or(PageError::Prefix { len })?;
        Ok(Self { level: page[LEVEL], prefix, as_of: as_of(page), count: count(page) })
    }
}

#[inline]
pub(super) fn prefix_len(page: &Page) -> u16 {
    u16_at(page, PREFIX_LEN)
}

/// The prefix's bits; those from its length on are zero.
#[inline]
pub(super) fn prefix_bits(page: &Page) -> &[u8] {
    &page[PREFIX..PREFIX + 32]
}

/// The prefix of a page that was parsed before.
#[inline]
pub(super) fn prefix(page: &Page) -> Prefix {
    Prefix::new(&array_at(page, PREFIX), prefix_len(page))
}

#[inline]
pub(super) fn as_of(page: &Page) -> u64 {
    u64_at(page, AS_OF)
}

#[inline]
pub(super) fn count(page: &Page) -> u16 {
    u16_at(page, COUNT)
}
