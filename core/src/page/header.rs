//! What every page begins with: checksum, identity, kind, type, version. Owner of bytes 0 to 36.
//!
//! ```text
//!  0        8             16         24                        32     33     34        35          36
//!  | XXH3-64 | page number | database | flush counter, incarnation | kind | type | version | namespace |
//! ```
//!
//! The checksum covers bytes 8 to 4096. Its low 32 bits are the page's *tag*: a parent stores it, to tell the child it
//! expects from an older page with the same number. Page number, database and kind are known to the reader beforehand,
//! so a misdirected, foreign or cross-file page is found even though its checksum is right.
//!
//! ```
//! use pleach_core::page::{PAGE_SIZE, header};
//!
//! let mut page = [7; PAGE_SIZE];
//! let tag = header::seal(&mut page);
//! assert_eq!(header::tag(&page), tag);
//! ```

use twox_hash::XxHash3_64;

use crate::page::error::PageError;
use crate::page::kinds::{FileKind, PageType, VERSION};
use crate::page::{MAX_PAGE_NO, PAGE_SIZE, Page};

const CHECKSUM: usize = 0;
const PAGE_NO: usize = CHECKSUM + 8;
const DATABASE: usize = PAGE_NO + 8;
const FLUSH: usize = DATABASE + 8;
const KIND: usize = FLUSH + 8;
const TYPE: usize = KIND + 1;
const FORMAT: usize = TYPE + 1;
const NAMESPACE: usize = FORMAT + 1;
/// Where the fields of a page's own type begin.
pub(super) const END: usize = NAMESPACE + 1;

const _: () = assert!(END == 36, "the common header is 36 bytes");

/// What a reader knows about a page before it reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Kind of the file.
    pub kind: FileKind,
    /// Number of the page in its file.
    pub page_no: u64,
    /// The database.
    pub db_id: u64,
}

/// Stores the checksum of a finished page and returns the page's tag.
pub fn seal(page: &mut Page) -> u32 {
    let checksum = checksum(page);
    put_u64(page, CHECKSUM, checksum);
    low_half(checksum)
}

/// Checks what all pages have in common, checksum first, and returns the page's tag.
pub fn check(page: &Page, identity: &Identity) -> Result<u32, PageError> {
    let (stored, computed) = (u64_at(page, CHECKSUM), checksum(page));
    if stored != computed {
        return Err(PageError::Checksum { stored, computed });
    }
    if page[KIND] != identity.kind as u8 {
        return Err(PageError::WrongKind { found: page[KIND], expected: identity.kind });
    }
    let found = u64_at(page, PAGE_NO);
    if found != identity.page_no {
        return Err(PageError::WrongPageNo { found, expected: identity.page_no });
    }
    let found = u64_at(page, DATABASE);
    if found != identity.db_id {
        return Err(PageError::WrongDatabase { found, expected: identity.db_id });
    }
    match page[FORMAT] {
        VERSION => Ok(low_half(stored)),
        found if found > VERSION => Err(PageError::NewerVersion { found }),
        found => Err(PageError::UnknownVersion { found }),
    }
}

/// The tag of a page that was sealed or checked.
#[inline]
pub fn tag(page: &Page) -> u32 {
    low_half(u64_at(page, CHECKSUM))
}

/// The number of the flush that wrote a page: incarnation in the high half, counter in the low.
#[inline]
pub fn flush(page: &Page) -> u64 {
    u64_at(page, FLUSH)
}

/// The namespace that a page belongs to.
#[inline]
pub fn namespace(page: &Page) -> u8 {
    page[NAMESPACE]
}

/// Checks the namespace of a page that was parsed. Not a part of [`check`]: most files have pages of all namespaces,
/// and only a reader that comes from an index knows the page's namespace.
pub fn check_namespace(page: &Page, expected: u8) -> Result<(), PageError> {
    match namespace(page) {
        found if found == expected => Ok(()),
        found => Err(PageError::WrongNamespace { found, expected }),
    }
}

/// Zeroes a page and writes the common header, except for the checksum.
pub(super) fn write_header(
    page: &mut Page,
    identity: &Identity,
    page_type: PageType,
    flush: u64,
    namespace: u8,
) {
    assert!(identity.page_no <= MAX_PAGE_NO, "page numbers have 40 bits");
    page.fill(0);
    put_u64(page, PAGE_NO, identity.page_no);
    put_u64(page, DATABASE, identity.db_id);
    put_u64(page, FLUSH, flush);
    page[KIND] = identity.kind as u8;
    page[TYPE] = page_type as u8;
    page[FORMAT] = VERSION;
    page[NAMESPACE] = namespace;
}

/// [`check`], and the page type.
pub(super) fn check_typed(
    page: &Page,
    identity: &Identity,
    expected: PageType,
) -> Result<(), PageError> {
    check(page, identity)?;
    match page[TYPE] {
        found if found == expected as u8 => Ok(()),
        found => Err(PageError::WrongType { found, expected }),
    }
}

/// Checks that nothing follows a page's contents.
pub(super) fn check_unused(page: &Page, offset: usize) -> Result<(), PageError> {
    // A fold instead of `all`: without the early exit the compiler vectorises it.
    match page[offset..].iter().fold(0, |bits, byte| bits | byte) {
        0 => Ok(()),
        _ => Err(PageError::Unused { offset }),
    }
}

#[inline]
pub(super) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, offset))
}

#[inline]
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, offset))
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, offset))
}

/// A page number: 40 bits.
#[inline]
pub(super) fn u40_at(bytes: &[u8], offset: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..5].copy_from_slice(&bytes[offset..offset + 5]);
    u64::from_le_bytes(wide)
}

#[inline]
pub(super) fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[offset..offset + N]);
    array
}

#[inline]
pub(super) fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

#[inline]
fn put_u64(page: &mut Page, offset: usize, value: u64) {
    put(page, offset, &value.to_le_bytes());
}

fn checksum(page: &Page) -> u64 {
    XxHash3_64::oneshot(&page[PAGE_NO..PAGE_SIZE])
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the tag is the low half")]
fn low_half(checksum: u64) -> u32 {
    checksum as u32
}
