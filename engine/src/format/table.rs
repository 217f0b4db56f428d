//! The table at the end of an image: what belongs to each namespace, and where it lies. The superblock
//! has the table's hash; the table has a checksum of each stream, and the tag of the root's branch page,
//! which leads to all others. So no part of an image can be exchanged for a part of another one.
//!
//! ```text
//! offset  size
//! 0       4     bytes of the whole table
//! 4       4     number of namespaces (1 in this version)
//! 8       8     first page of the stream of pending changes
//! 16      8     bytes of the stream of pending changes
//! 24      8     first page of the overflow map stream
//! 32      8     bytes of the overflow map stream
//! 40      8     checksum of the stream of pending changes: XXH3-64 of its bytes
//! 48      8     checksum of the overflow map stream
//! 56      4     bytes of the blob
//! 60      4     zero
//! 64      48    per namespace: number 1, level of its root branch page 1, zero 2, tag 4, page 8, node 32
//! ..      ..    blob
//! ```

use pleach_core::Node;
use twox_hash::XxHash3_64;

use super::bytes::{get, get_u32, get_u64};
use super::image_error::{ImageError, Result};

const HEAD: usize = 64;
const ENTRY: usize = 48;

/// A stream of the image: where it is and what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamRef {
    /// First page.
    pub(crate) page: u64,
    /// Bytes.
    pub(crate) len: u64,
    pub(crate) checksum: u64,
}

impl StreamRef {
    pub(crate) fn of(page: u64, bytes: &[u8]) -> Self {
        Self { page, len: bytes.len() as u64, checksum: XxHash3_64::oneshot(bytes) }
    }

    /// Are these the stream's bytes?
    pub(crate) fn fits(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.len && XxHash3_64::oneshot(bytes) == self.checksum
    }
}

/// The table of an image with one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) pending: StreamRef,
    /// The overflow map.
    pub(crate) map: StreamRef,
    pub(crate) level: u8,
    pub(crate) root_tag: u32,
    pub(crate) root_page: u64,
    pub(crate) root_node: Node,
    pub(crate) blob: Vec<u8>,
}

impl Table {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let len = HEAD + ENTRY + self.blob.len();
        let mut bytes = Vec::with_capacity(len);
        let len = u32::try_from(len).expect("a blob has at most 64 KiB");
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&1u32.to_le_bytes());
        for stream in [&self.pending, &self.map] {
            bytes.extend_from_slice(&stream.page.to_le_bytes());
            bytes.extend_from_slice(&stream.len.to_le_bytes());
        }
        bytes.extend_from_slice(&self.pending.checksum.to_le_bytes());
        bytes.extend_from_slice(&self.map.checksum.to_le_bytes());
        let blob = u32::try_from(self.blob.len()).expect("a blob has at most 64 KiB");
        bytes.extend_from_slice(&blob.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&[0, self.level, 0, 0]);
        bytes.extend_from_slice(&self.root_tag.to_le_bytes());
        bytes.extend_from_slice(&self.root_page.to_le_bytes());
        bytes.extend_from_slice(self.root_node.as_ref());
        bytes.extend_from_slice(&self.blob);
        bytes
    }

    /// Bytes of a table, from the first page's payload.
    pub(crate) fn len_of(first: &[u8]) -> Result<u64> {
        let len = first.first_chunk::<4>().map(|len| u64::from(u32::from_le_bytes(*len)));
        len.filter(|len| (HEAD as u64 + ENTRY as u64..=1 << 20).contains(len)).ok_or_else(bad)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < HEAD + ENTRY
            || get_u32(bytes, 0) as usize != bytes.len()
            || get_u32(bytes, 4) != 1
        {
            return Err(bad());
        }
        let blob = get_u32(bytes, 56) as usize;
        let entry = &bytes[HEAD..HEAD + ENTRY];
        if blob != bytes.len() - HEAD - ENTRY
            || get_u32(bytes, 60) != 0
            || entry[0] != 0
            || entry[2..4] != [0; 2]
        {
            return Err(bad());
        }
        let stream = |at: usize, checksum: usize| StreamRef {
            page: get_u64(bytes, at),
            len: get_u64(bytes, at + 8),
            checksum: get_u64(bytes, checksum),
        };
        Ok(Self {
            pending: stream(8, 40),
            map: stream(24, 48),
            level: entry[1],
            root_tag: get_u32(entry, 4),
            root_page: get_u64(entry, 8),
            root_node: get::<32>(entry, 16).into(),
            blob: bytes[HEAD + ENTRY..].to_vec(),
        })
    }
}

fn bad() -> ImageError {
    ImageError::Table
}
