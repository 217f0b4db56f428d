//! Pairs to be written to pages, packed into blocks of bytes.
//!
//! ```text
//! 0     32                      34
//! | key | length, top bit: cell | value, or raw overflow cell |
//! ```
//!
//! A block holds whole records from its start on; its owner knows how many bytes are filled. The format lives only as
//! long as a load.

use pleach_core::Key;
use pleach_core::page::leaf::MAX_INLINE;

use crate::page_plan::CellRef;

const LEN: usize = 32;
const BYTES: usize = LEN + 2;
/// In the length: the bytes are an overflow cell.
const OVERFLOW: u16 = 1 << 15;

const _: () = assert!(MAX_INLINE < OVERFLOW as usize, "a length and a flag");

/// Bytes of the longest record.
pub const MAX_RECORD: usize = BYTES + MAX_INLINE;

/// Bytes of a record whose value has `bytes` bytes.
#[inline]
pub const fn record_len(bytes: usize) -> usize {
    BYTES + bytes
}

/// A pair in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadRecord<'a> {
    /// The key.
    pub key: &'a Key,
    /// The value, or a raw overflow cell.
    pub bytes: &'a [u8],
    /// True when `bytes` is an overflow cell.
    pub overflow: bool,
}

impl<'a> LoadRecord<'a> {
    /// The record at an offset of a block.
    ///
    /// # Panics
    /// When there is no record.
    #[inline]
    pub fn at(block: &'a [u8], offset: usize) -> Self {
        let record = &block[offset..];
        let (key, rest) = record.split_first_chunk::<LEN>().expect("a record has a key");
        let (len, rest) = rest.split_first_chunk::<2>().expect("a record has a length");
        let len = u16::from_le_bytes(*len);
        Self { key, bytes: &rest[..usize::from(len & !OVERFLOW)], overflow: len & OVERFLOW != 0 }
    }

    /// Writes the record at an offset and returns the offset after it; `None` when the block has no room.
    ///
    /// # Panics
    /// When the bytes are longer than [`MAX_INLINE`].
    #[inline]
    pub fn write(&self, block: &mut [u8], offset: usize) -> Option<usize> {
        assert!(self.bytes.len() <= MAX_INLINE, "longer values are cells");
        let end = offset + record_len(self.bytes.len());
        let to = block.get_mut(offset..end)?;
        to[..LEN].copy_from_slice(self.key);
        let flag = if self.overflow { OVERFLOW } else { 0 };
        let len = u16::try_from(self.bytes.len()).expect("checked above") | flag;
        to[LEN..BYTES].copy_from_slice(&len.to_le_bytes());
        to[BYTES..].copy_from_slice(self.bytes);
        Some(end)
    }

    /// Bytes that the record takes in a block.
    #[inline]
    pub fn size(&self) -> usize {
        record_len(self.bytes.len())
    }

    /// The cell of the record.
    #[inline]
    pub fn cell(&self) -> CellRef<'a> {
        CellRef { key: *self.key, bytes: self.bytes, overflow: self.overflow }
    }
}

/// The records of a block's filled part, with their offsets.
#[derive(Clone, Debug)]
pub struct LoadRecords<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> LoadRecords<'a> {
    /// All records of the filled bytes of a block.
    pub fn new(filled: &'a [u8]) -> Self {
        Self { block: filled, at: 0 }
    }
}

impl<'a> Iterator for LoadRecords<'a> {
    type Item = (usize, LoadRecord<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.block.len() {
            return None;
        }
        let at = self.at;
        let record = LoadRecord::at(self.block, at);
        self.at += record.size();
        Some((at, record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_went_in_and_stop_at_the_blocks_end() {
        let values: Vec<Vec<u8>> =
            [0, 1, 8, 1024, 300].iter().map(|len| vec![0xc3; *len]).collect();
        let total: usize = values.iter().map(|value| record_len(value.len())).sum();
        let mut block = vec![0xff; total];
        let mut end = 0;
        for (index, bytes) in values.iter().enumerate() {
            let key = [u8::try_from(index).unwrap(); 32];
            let record = LoadRecord { key: &key, bytes, overflow: index == 4 };
            end = record.write(&mut block, end).expect("room");
        }
        assert_eq!(end, total);
        let more = LoadRecord { key: &[9; 32], bytes: &[], overflow: false };
        assert_eq!(more.write(&mut block, end), None);
        let found: Vec<_> = LoadRecords::new(&block[..end]).map(|(_, record)| record).collect();
        assert_eq!(found.len(), values.len());
        for (index, record) in found.iter().enumerate() {
            assert_eq!(record.key[0], u8::try_from(index).unwrap());
            assert_eq!((record.bytes, record.overflow), (&values[index][..], index == 4));
        }
    }
}
