//! Stream page: a piece of a byte stream too long for one page. Owner of bytes 36 to 44 of it.
//!
//! ```text
//! 0        36       37  38      40      44        44 + length     4096
//! | common | stream | 0 | length | index | payload | zeros           |
//! ```
//!
//! The buffered changes, the free map and the namespace table of an image are streams, and so is each value in the
//! overflow file. All pages of these streams but the last are full, which only a reader that knows the stream's length
//! can check: [`StreamView::expect_payload`]. Each page of the history has its own payload.
//!
//! ```
//! use pleach_core::page::stream::{StreamHeader, StreamId, StreamView, build, payload_len};
//! use pleach_core::page::{FileKind, Identity, PAGE_SIZE, PageError};
//!
//! let identity = Identity { kind: FileKind::Overflow, page_no: 40, db_id: 0xdb };
//! let stream = StreamId::Value;
//! let header = StreamHeader { identity, flush: 1, namespace: 0, stream, index: 0 };
//! let mut page = [0; PAGE_SIZE];
//! build(&mut page, &header, b"all of it");
//!
//! let view = StreamView::parse(&page, &identity)?;
//! assert_eq!(view.expect_payload(stream, 0, payload_len(9, 0))?, b"all of it");
//! # Ok::<(), PageError>(())
//! ```

use crate::page::error::PageError;
use crate::page::header::Identity;
use crate::page::header::{self, put, u16_at, u32_at};
use crate::page::kinds::PageType;
pub use crate::page::kinds::StreamId;
use crate::page::{PAGE_SIZE, Page};

const STREAM: usize = header::END;
const RESERVED: usize = STREAM + 1;
const LENGTH: usize = RESERVED + 1;
const INDEX: usize = LENGTH + 2;
const BODY: usize = INDEX + 4;

/// Stream bytes in a page.
pub const PAYLOAD: usize = PAGE_SIZE - BODY;

const _: () = assert!(BODY == 44 && PAYLOAD == 4052, "the header of a stream page is 44 bytes");
const _: () = assert!(PAYLOAD <= u16::MAX as usize, "the length field holds a full page");

/// The header fields of a stream page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    /// File, page number and database of the page.
    pub identity: Identity,
    /// The flush or checkpoint that writes it.
    pub flush: u64,
    /// The namespace of a value; 0 for streams that belong to all.
    pub namespace: u8,
    /// What the stream holds.
    pub stream: StreamId,
    /// The page's index in the stream.
    pub index: u32,
}

/// Fills and seals one page of a stream; returns its tag.
///
/// # Panics
/// When the payload is longer than [`PAYLOAD`] or the page number has more than 40 bits.
pub fn build(page: &mut Page, header: &StreamHeader, payload: &[u8]) -> u32 {
    assert!(payload.len() <= PAYLOAD, "a payload longer than a page's");
    #[expect(clippy::cast_possible_truncation, reason = "no more than PAYLOAD")]
    let length = payload.len() as u16;
    header::write_header(page, &header.identity, PageType::Stream, header.flush, header.namespace);
    page[STREAM] = header.stream as u8;
    put(page, LENGTH, &length.to_le_bytes());
    put(page, INDEX, &header.index.to_le_bytes());
    put(page, BODY, payload);
    header::seal(page)
}

/// A stream page, parsed.
#[derive(Clone, Copy, Debug)]
pub struct StreamView<'a> {
    page: &'a Page,
    stream: StreamId,
}

impl<'a> StreamView<'a> {
    /// Validates a page.
    pub fn parse(page: &'a Page, identity: &Identity) -> Result<Self, PageError> {
        header::check_typed(page, identity, PageType::Stream)?;
        let found = page[STREAM];
        let stream = StreamId::from_byte(found).ok_or(PageError::UnknownStream { found })?;
        if page[RESERVED] != 0 {
            return Err(PageError::ReservedBits { offset: RESERVED });
        }
        let len = u16_at(page, LENGTH);
        if usize::from(len) > PAYLOAD {
            return Err(PageError::PayloadLength { len });
        }
        header::check_unused(page, BODY + usize::from(len))?;
        Ok(Self { page, stream })
    }

    /// The payload, if this is page `index` of a stream of that kind and has `len` bytes: a reader knows all three
    /// beforehand ([`payload_len`]).
    pub fn expect_payload(
        &self,
        stream: StreamId,
        index: u32,
        len: usize,
    ) -> Result<&'a [u8], PageError> {
        if self.stream != stream || self.index() != index {
            return Err(PageError::WrongStream {
                found: self.stream,
                found_index: self.index(),
                expected: stream,
                index,
            });
        }
        let payload = self.payload();
        if payload.len() == len {
            Ok(payload)
        } else {
            Err(PageError::PayloadLength { len: u16_at(self.page, LENGTH) })
        }
    }

    /// What the stream holds.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The page's index in its stream.
    pub fn index(&self) -> u32 {
        u32_at(self.page, INDEX)
    }

    /// The stream's bytes in this page.
    pub fn payload(&self) -> &'a [u8] {
        &self.page[BODY..BODY + usize::from(u16_at(self.page, LENGTH))]
    }

    /// The flush or checkpoint that wrote the page.
    pub fn flush(&self) -> u64 {
        header::flush(self.page)
    }

    /// The namespace of a value; 0 for streams that belong to all.
    pub fn namespace(&self) -> u8 {
        header::namespace(self.page)
    }
}

/// Bytes that page `index` carries of a stream of `total` bytes: full pages, then the rest.
pub fn payload_len(total: u64, index: u32) -> usize {
    let before = u64::from(index) * PAYLOAD as u64;
    let rest = total.saturating_sub(before).min(PAYLOAD as u64);
    usize::try_from(rest).unwrap_or(PAYLOAD)
}
