//! Reading an export stream.

use std::io::Read;

use pleach_core::{Key, Node, TERMINATOR};
use pleach_journal::format::bytes::{BodyCursor, BodyError};
use pleach_journal::format::commit_body::MAX_BLOB;

use super::blocks::BlockReader;
use super::change_head::database;
use super::records::RecordReader;
use crate::error::StreamError;
use crate::export::format::{BlockKind, VERSION};

/// The head of an export stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamHead {
    /// Number of the hasher ([`Hasher::id`](pleach_core::Hasher::id)).
    pub hasher: u8,
    /// Number of the database ([`Db::id`](pleach::Db::id)); none in a stream that a salvage has written.
    pub database: Option<u64>,
    /// Number of the commit.
    pub commit: u64,
    /// The application's blob.
    pub blob: Vec<u8>,
    /// The namespaces, ascending.
    pub namespaces: Vec<StreamNamespace>,
}

/// A namespace of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamNamespace {
    /// The namespace's number.
    pub number: u8,
    /// True for a plain namespace.
    pub plain: bool,
    /// The namespace's root, or its digest where it is plain.
    pub root: Node,
}

/// Reads a stream from its beginning to its end. The pairs of each namespace of the head are read in turn
/// ([`StreamReader::next`]).
pub struct StreamReader<R> {
    head: StreamHead,
    records: RecordReader<R>,
}

impl<R> std::fmt::Debug for StreamReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamReader").field("head", &self.head).finish_non_exhaustive()
    }
}

impl<R: Read> StreamReader<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn new(from: R) -> Result<Self, StreamError> {
        let blocks = BlockReader::new(from, (BlockKind::Head, VERSION), StreamError::NoStream)?;
        let head = head_of(&blocks.payload).map_err(|_| blocks.contents("the head"))?;
        let numbers = head.namespaces.iter().map(|one| one.number).collect();
        Ok(Self { head, records: RecordReader::new(blocks, BlockKind::Pairs, numbers) })
    }

    /// The head of the stream.
    pub fn head(&self) -> &StreamHead {
        &self.head
    }

    /// The next pair of the namespace that is read; `None` at its end, once. The first call begins with the first
    /// namespace of the head, and the call after the end of one with the next.
    ///
    /// # Errors
    /// [`StreamError`]; nothing is to be read after it.
    #[expect(clippy::should_implement_trait, reason = "an iterator ends once")]
    pub fn next(&mut self) -> Result<Option<(Key, &[u8])>, StreamError> {
        let (of, _) = self.records.position();
        let Some((key, value)) = self.records.next()? else { return Ok(None) };
        let of = &self.head.namespaces[of];
        if !of.plain && of.root == TERMINATOR {
            return Err(self.records.contents("a pair under the root of an empty trie"));
        }
        Ok(Some((key, self.records.value(value.unwrap_or_default()))))
    }

    /// Checks, after the last namespace, that the stream is whole and nothing follows.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn finish(self) -> Result<(), StreamError> {
        self.records.finish()
    }
}

fn head_of(payload: &[u8]) -> Result<StreamHead, BodyError> {
    let mut cursor = BodyCursor::new(payload);
    cursor.u16()?;
    let hasher = cursor.u8()?;
    cursor.reserved::<1>()?;
    let count = cursor.u16()?;
    cursor.reserved::<2>()?;
    let database = database(&mut cursor)?;
    let commit = cursor.u64()?;
    let length = cursor.u32()?;
    if length > MAX_BLOB {
        return Err(BodyError::Blob(length));
    }
    let blob = cursor.take(length.into())?.to_vec();
    let mut namespaces: Vec<StreamNamespace> = Vec::new();
    for _ in 0..count {
        let (number, kind) = (cursor.u8()?, cursor.u8()?);
        cursor.reserved::<2>()?;
        let root = Node::from(*cursor.array::<32>()?);
        if kind > 1 || (kind == 1 && number == 0) {
            return Err(BodyError::Trie(kind));
        }
        if namespaces.last().is_some_and(|last| last.number >= number) {
            return Err(BodyError::Unsorted);
        }
        namespaces.push(StreamNamespace { number, plain: kind == 1, root });
    }
    if !cursor.is_empty() {
        return Err(BodyError::Trailing);
    }
    if namespaces.first().is_none_or(|first| first.number != 0) {
        return Err(BodyError::Truncated);
    }
    Ok(StreamHead { hasher, database, commit, blob, namespaces })
}
