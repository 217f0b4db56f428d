//! Reading an export stream. Every length is compared with what is there, and payloads are read as they come, before
//! anything is allocated for them.

use std::io::{ErrorKind, Read};

use pleach_core::{Key, Node, TERMINATOR};

use crate::format::bytes::{BodyError, Cursor, get_u32, get_u64};
use crate::format::commit_body::MAX_BLOB;
use crate::format::export_block::{
    self, END_OF_NAMESPACE, HEADER, Kind, MAGIC, MAX_PAYLOAD, MAX_VALUE, SUMMED, StreamError,
    VERSION,
};

/// What a stream is of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamHead {
    /// Number of the hasher ([`Hasher::ID`](pleach_core::Hasher::ID)).
    pub hasher: u8,
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
    /// Its number.
    pub number: u8,
    /// Is it plain?
    pub plain: bool,
    /// Its root, or its digest where it is plain.
    pub root: Node,
}

/// Reads a stream from its beginning to its end. The pairs of each namespace of the head are read in turn
/// ([`StreamReader::next`]).
pub struct StreamReader<R> {
    from: R,
    /// The checksum of the block before.
    before: u64,
    /// Blocks that were read.
    blocks: u64,
    head: StreamHead,
    payload: Vec<u8>,
    /// Where the next pair of the payload is, and how many there are.
    at: usize,
    left: u32,
    /// The namespace of the head that is read, its pairs until now, and the last key.
    namespace: usize,
    pairs: u64,
    all_pairs: u64,
    last: Option<Key>,
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
        let head = StreamHead { hasher: 0, commit: 0, blob: Vec::new(), namespaces: Vec::new() };
        let mut reader = Self {
            from,
            before: 0,
            blocks: 0,
            head,
            payload: Vec::new(),
            at: 0,
            left: 0,
            namespace: 0,
            pairs: 0,
            all_pairs: 0,
            last: None,
        };
        match reader.block() {
            Ok(Kind::Head) => {}
            Err(error @ (StreamError::Read(_) | StreamError::Version { .. })) => return Err(error),
            _ => return Err(StreamError::NoStream),
        }
        if let Some(version) = reader.payload.first_chunk::<2>()
            && u16::from_le_bytes(*version) != VERSION
        {
            return Err(StreamError::Version { found: u16::from_le_bytes(*version) });
        }
        reader.head = head_of(&reader.payload).map_err(|_| reader.contents("the head"))?;
        reader.payload.clear();
        Ok(reader)
    }

    /// What the stream is of.
    pub fn head(&self) -> &StreamHead {
        &self.head
    }

    /// The next pair of the namespace that is read; `None` at its end, once. The first call begins with the first namespace of the
    /// head, and the call after the end of one with the next.
    ///
    /// # Errors
    /// [`StreamError`]; nothing is to be read after it.
    #[expect(clippy::should_implement_trait, reason = "an iterator ends once")]
    pub fn next(&mut self) -> Result<Option<(Key, &[u8])>, StreamError> {
        let Some(number) = self.head.namespaces.get(self.namespace).map(|one| one.number) else {
            return Ok(None);
        };
        if self.left == 0 {
            match self.block()? {
                Kind::Pairs => self.begin_pairs(number)?,
                Kind::EndOfNamespace => {
                    self.end_namespace(number)?;
                    return Ok(None);
                }
                Kind::Head | Kind::End => return Err(self.contents("its kind")),
            }
        }
        let pair = self.pair()?;
        let (key, value) = (pair.0, pair.1);
        Ok(Some((key, &self.payload[value])))
    }

    /// After the last namespace: the stream is whole, and nothing follows.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn finish(mut self) -> Result<(), StreamError> {
        if self.namespace < self.head.namespaces.len() || self.block()? != Kind::End {
            return Err(self.contents("an end before all namespaces"));
        }
        if self.payload.len() != 8 || get_u64(&self.payload, 0) != self.all_pairs {
            return Err(self.contents("the number of pairs"));
        }
        match read_full(&mut self.from, &mut [0; 1])? {
            0 => Ok(()),
            _ => Err(StreamError::Trailing),
        }
    }

    fn begin_pairs(&mut self, number: u8) -> Result<(), StreamError> {
        let head = self.payload.first_chunk::<8>().copied();
        let head = head.filter(|head| head[..4] == [number, 0, 0, 0]);
        let count = head.map_or(0, |head| get_u32(&head, 4));
        if count == 0 {
            return Err(self.contents("pairs of another namespace, or none"));
        }
        (self.at, self.left) = (8, count);
        Ok(())
    }

    /// The next pair of the payload: its key, and where its value is.
    fn pair(&mut self) -> Result<(Key, std::ops::Range<usize>), StreamError> {
        let rest = &self.payload[self.at..];
        let Some((head, rest)) = rest.split_first_chunk::<36>() else {
            return Err(self.contents("a pair that is cut off"));
        };
        let key: Key = *head.first_chunk::<32>().expect("36 bytes");
        let length = get_u32(head, 32) as usize;
        if length > rest.len() || length > MAX_VALUE {
            return Err(self.contents("the length of a value"));
        }
        if self.last.is_some_and(|last| last >= key) {
            return Err(self.contents("keys that do not ascend"));
        }
        let start = self.at + 36;
        (self.at, self.left) = (start + length, self.left - 1);
        if self.left == 0 && self.at != self.payload.len() {
            return Err(self.contents("bytes after the last pair"));
        }
        let of = &self.head.namespaces[self.namespace];
        if !of.plain && of.root == TERMINATOR {
            return Err(self.contents("a pair under the root of an empty trie"));
        }
        self.last = Some(key);
        self.pairs += 1;
        Ok((key, start..start + length))
    }

    fn end_namespace(&mut self, number: u8) -> Result<(), StreamError> {
        let payload = self.payload.first_chunk::<END_OF_NAMESPACE>();
        let fits = payload.is_some_and(|payload| {
            payload[..8] == [number, 0, 0, 0, 0, 0, 0, 0] && get_u64(payload, 8) == self.pairs
        });
        if !fits || self.payload.len() != END_OF_NAMESPACE {
            return Err(self.contents("the end of a namespace"));
        }
        self.all_pairs += self.pairs;
        (self.namespace, self.pairs, self.last) = (self.namespace + 1, 0, None);
        Ok(())
    }

    /// Reads the next block's payload, and gives its kind.
    fn block(&mut self) -> Result<Kind, StreamError> {
        let mut header = [0; HEADER];
        if read_full(&mut self.from, &mut header)? < HEADER {
            return Err(StreamError::Cut { blocks: self.blocks });
        }
        let summed = header.first_chunk::<SUMMED>().expect("a part of it");
        let length = get_u32(&header, 8) as usize;
        let damaged = StreamError::Damaged { block: self.blocks };
        if header[..4] != MAGIC || length > MAX_PAYLOAD {
            return Err(damaged);
        }
        self.payload.clear();
        let mut payload = (&mut self.from).take(length as u64);
        payload.read_to_end(&mut self.payload).map_err(read)?;
        if self.payload.len() < length {
            return Err(StreamError::Cut { blocks: self.blocks });
        }
        let checksum = export_block::checksum(self.before, summed, &self.payload);
        if checksum != get_u64(&header, SUMMED) {
            return Err(damaged);
        }
        self.before = checksum;
        self.blocks += 1;
        let kind = Kind::of_byte(header[4]);
        let zeros = header[5..8].iter().chain(&header[12..SUMMED]).all(|byte| *byte == 0);
        kind.filter(|_| zeros).ok_or_else(|| self.contents("its header"))
    }

    /// The last block has a right checksum and wrong contents.
    fn contents(&self, what: &'static str) -> StreamError {
        StreamError::Contents { block: self.blocks.saturating_sub(1), what }
    }
}

fn head_of(payload: &[u8]) -> Result<StreamHead, BodyError> {
    let mut cursor = Cursor::new(payload);
    cursor.u16()?;
    let hasher = cursor.u8()?;
    cursor.reserved::<1>()?;
    let count = cursor.u16()?;
    cursor.reserved::<2>()?;
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
    Ok(StreamHead { hasher, commit, blob, namespaces })
}

/// Reads until the buffer is full, or nothing comes any more; gives how many bytes came.
fn read_full(from: &mut impl Read, buffer: &mut [u8]) -> Result<usize, StreamError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(read(error)),
        }
    }
    Ok(filled)
}

#[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn read(error: std::io::Error) -> StreamError {
    StreamError::Read(error.to_string())
}
