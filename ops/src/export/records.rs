//! Pairs and changes of namespaces, one namespace after the other: the part of both kinds of streams between head and
//! end. Every length is compared with the bytes that are there.

use std::io::{Read, Write};
use std::ops::Range;

use pleach::MAX_VALUE;
use pleach_core::Key;
use pleach_journal::format::bytes::{get_u32, get_u64, put};

use super::blocks::{BlockReader, BlockWriter};
use crate::error::StreamError;
use crate::export::format::{self, BlockKind, DELETED, END_OF_NAMESPACE, FULL, PAIRS_HEAD};

const _: () = assert!(format::MAX_VALUE == MAX_VALUE, "each value has a place");

/// A key, and the range of its value; none where it is deleted.
type ExportRecord = (Key, Option<Range<usize>>);

/// Reads the records of namespaces in turn.
pub(super) struct RecordReader<R> {
    blocks: BlockReader<R>,
    /// The kind of a block with records.
    kind: BlockKind,
    /// Numbers of the namespaces.
    numbers: Vec<u8>,
    /// Index of the namespace that is read, its records so far, and the last key.
    namespace: usize,
    count: u64,
    all: u64,
    last: Option<Key>,
    /// The offset of the next record in the payload, and the number of records left.
    at: usize,
    left: u32,
}

impl<R: Read> RecordReader<R> {
    /// A reader after the head.
    pub(super) fn new(blocks: BlockReader<R>, kind: BlockKind, numbers: Vec<u8>) -> Self {
        Self { blocks, kind, numbers, namespace: 0, count: 0, all: 0, last: None, at: 0, left: 0 }
    }

    /// Index of the namespace that is read, and the number of its records so far.
    pub(super) fn position(&self) -> (usize, u64) {
        (self.namespace, self.count)
    }

    /// The next record of the namespace that is read, and the range of its value, if it has one; `None` at the
    /// namespace's end, once.
    pub(super) fn next(&mut self) -> Result<Option<ExportRecord>, StreamError> {
        let Some(&number) = self.numbers.get(self.namespace) else { return Ok(None) };
        if self.left == 0 {
            match self.blocks.next()? {
                kind if kind == self.kind => self.begin(number)?,
                BlockKind::EndOfNamespace => {
                    self.end_namespace(number)?;
                    return Ok(None);
                }
                _ => return Err(self.contents("its kind")),
            }
        }
        self.record().map(Some)
    }

    /// The value of the last record.
    pub(super) fn value(&self, at: Range<usize>) -> &[u8] {
        &self.blocks.payload[at]
    }

    /// Checks, after the last namespace, that the stream is whole and nothing follows.
    pub(super) fn finish(mut self) -> Result<(), StreamError> {
        if self.namespace < self.numbers.len() || self.blocks.next()? != BlockKind::End {
            return Err(self.contents("an end before all namespaces"));
        }
        let payload = &self.blocks.payload;
        if payload.len() != 8 || get_u64(payload, 0) != self.all {
            return Err(self.contents("the number of records"));
        }
        self.blocks.finish()
    }

    /// The error of a last block with a right checksum and wrong contents.
    pub(super) fn contents(&self, what: &'static str) -> StreamError {
        self.blocks.contents(what)
    }

    fn begin(&mut self, number: u8) -> Result<(), StreamError> {
        let head = self.blocks.payload.first_chunk::<PAIRS_HEAD>().copied();
        let head = head.filter(|head| head[..4] == [number, 0, 0, 0]);
        let count = head.map_or(0, |head| get_u32(&head, 4));
        if count == 0 {
            return Err(self.contents("records of another namespace, or none"));
        }
        (self.at, self.left) = (PAIRS_HEAD, count);
        Ok(())
    }

    fn record(&mut self) -> Result<ExportRecord, StreamError> {
        let rest = &self.blocks.payload[self.at..];
        let Some((head, rest)) = rest.split_first_chunk::<36>() else {
            return Err(self.contents("a record that is cut off"));
        };
        let key: Key = *head.first_chunk::<32>().expect("36 bytes");
        let length = get_u32(head, 32);
        let value = if length == DELETED && self.kind == BlockKind::Changes {
            None
        } else {
            if length as usize > rest.len() || length as usize > MAX_VALUE {
                return Err(self.contents("the length of a value"));
            }
            Some(self.at + 36..self.at + 36 + length as usize)
        };
        if self.last.is_some_and(|last| last >= key) {
            return Err(self.contents("keys that do not ascend"));
        }
        self.at = value.as_ref().map_or(self.at + 36, |value| value.end);
        self.left -= 1;
        if self.left == 0 && self.at != self.blocks.payload.len() {
            return Err(self.contents("bytes after the last record"));
        }
        self.last = Some(key);
        self.count += 1;
        Ok((key, value))
    }

    fn end_namespace(&mut self, number: u8) -> Result<(), StreamError> {
        let payload = &self.blocks.payload;
        let fits = payload.first_chunk::<END_OF_NAMESPACE>().is_some_and(|payload| {
            payload[..8] == [number, 0, 0, 0, 0, 0, 0, 0] && get_u64(payload, 8) == self.count
        });
        if !fits || payload.len() != END_OF_NAMESPACE {
            return Err(self.contents("the end of a namespace"));
        }
        self.all += self.count;
        (self.namespace, self.count, self.last) = (self.namespace + 1, 0, None);
        Ok(())
    }
}

/// Writes the records of namespaces: of each all in order, then [`RecordWriter::finish`].
pub(super) struct RecordWriter<W> {
    blocks: BlockWriter<W>,
    /// The kind of a block with records.
    kind: BlockKind,
    /// The namespace in progress, and the number of its records.
    namespace: Option<(u8, u64)>,
    /// Records of the block in progress, and of all finished namespaces.
    in_block: u32,
    all: u64,
}

impl<W: Write> RecordWriter<W> {
    /// Writes a head; records are in blocks of this kind.
    pub(super) fn new(
        to: W,
        (head, payload): (BlockKind, Vec<u8>),
        kind: BlockKind,
    ) -> Result<Self, StreamError> {
        let mut blocks = BlockWriter::new(to);
        blocks.payload = payload;
        blocks.block(head)?;
        Ok(Self { blocks, kind, namespace: None, in_block: 0, all: 0 })
    }

    /// Begins the records of this namespace.
    pub(super) fn begin(&mut self, namespace: u8) {
        debug_assert!(self.namespace.is_none(), "the one before has its end");
        self.namespace = Some((namespace, 0));
    }

    /// Writes the next record; without a value the key is deleted.
    pub(super) fn record(&mut self, key: &Key, value: Option<&[u8]>) -> Result<(), StreamError> {
        if self.blocks.payload.len() + 36 + value.map_or(0, <[u8]>::len) > FULL {
            self.flush()?;
        }
        let (namespace, count) = self.namespace.as_mut().expect("a namespace was begun");
        let payload = &mut self.blocks.payload;
        if payload.is_empty() {
            payload.extend([*namespace, 0, 0, 0]);
            payload.extend([0; 4]);
        }
        payload.extend(key);
        let length =
            value.map_or(DELETED, |value| u32::try_from(value.len()).expect("no value is so long"));
        payload.extend(length.to_le_bytes());
        payload.extend(value.unwrap_or_default());
        self.in_block += 1;
        *count += 1;
        Ok(())
    }

    /// Ends the namespace.
    pub(super) fn end(&mut self) -> Result<(), StreamError> {
        self.flush()?;
        let (namespace, count) = self.namespace.take().expect("a namespace was begun");
        let payload = &mut self.blocks.payload;
        payload.extend([namespace, 0, 0, 0, 0, 0, 0, 0]);
        payload.extend(count.to_le_bytes());
        self.all += count;
        self.blocks.block(BlockKind::EndOfNamespace)
    }

    /// Ends the stream; returns its records and bytes.
    pub(super) fn finish(mut self) -> Result<(u64, u64), StreamError> {
        self.blocks.payload.extend(self.all.to_le_bytes());
        self.blocks.block(BlockKind::End)?;
        let written = (self.all, self.blocks.bytes);
        self.blocks.finish()?;
        Ok(written)
    }

    /// Writes the block of records in progress, if there is one.
    fn flush(&mut self) -> Result<(), StreamError> {
        if self.in_block == 0 {
            return Ok(());
        }
        let count = std::mem::take(&mut self.in_block);
        put(&mut self.blocks.payload, PAIRS_HEAD - 4, count.to_le_bytes());
        self.blocks.block(self.kind)
    }
}
