//! The table at the end of an image: what belongs to each namespace, and where it lies.
//!
//! ```text
//! offset  size
//! 0       4     bytes of the whole table
//! 4       4     number of namespaces (1 in this version)
//! 8       8     first page of the delta stream
//! 16      8     bytes of the delta stream
//! 24      8     first page of the overflow map stream
//! 32      8     bytes of the overflow map stream
//! 40      4     bytes of the blob
//! 44      4     zero
//! 48      48    per namespace: number 1, level of its top branch page 1, zero 2, tag 4, page 8, node 32
//! ..      ..    blob
//! ```

use pleach_core::Node;

use crate::error::{Error, Result};
use crate::log::layout::{get, get_u32, get_u64};

const HEAD: usize = 48;
const ENTRY: usize = 48;

/// The table of an image with one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) delta_page: u64,
    pub(crate) delta_len: u64,
    pub(crate) map_page: u64,
    pub(crate) map_len: u64,
    pub(crate) level: u8,
    pub(crate) top_tag: u32,
    pub(crate) top_page: u64,
    pub(crate) top_node: Node,
    pub(crate) blob: Vec<u8>,
}

impl Table {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let len = HEAD + ENTRY + self.blob.len();
        let mut bytes = Vec::with_capacity(len);
        let len = u32::try_from(len).expect("a blob has at most 64 KiB");
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&1u32.to_le_bytes());
        for field in [self.delta_page, self.delta_len, self.map_page, self.map_len] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        let blob = u32::try_from(self.blob.len()).expect("a blob has at most 64 KiB");
        bytes.extend_from_slice(&blob.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&[0, self.level, 0, 0]);
        bytes.extend_from_slice(&self.top_tag.to_le_bytes());
        bytes.extend_from_slice(&self.top_page.to_le_bytes());
        bytes.extend_from_slice(&self.top_node);
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
        let blob = get_u32(bytes, 40) as usize;
        let entry = &bytes[HEAD..HEAD + ENTRY];
        if blob != bytes.len() - HEAD - ENTRY
            || get_u32(bytes, 44) != 0
            || entry[0] != 0
            || entry[2..4] != [0; 2]
        {
            return Err(bad());
        }
        Ok(Self {
            delta_page: get_u64(bytes, 8),
            delta_len: get_u64(bytes, 16),
            map_page: get_u64(bytes, 24),
            map_len: get_u64(bytes, 32),
            level: entry[1],
            top_tag: get_u32(entry, 4),
            top_page: get_u64(entry, 8),
            top_node: get::<32>(entry, 16),
            blob: bytes[HEAD + ENTRY..].to_vec(),
        })
    }
}

fn bad() -> Error {
    Error::Corrupt("the table of the image makes no sense".to_owned())
}
