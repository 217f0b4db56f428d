//! The framing of streams: blocks with a chain of checksums. Payloads are read as they come, before anything is
//! allocated for them.

use std::io::{ErrorKind, Read, Write};

use pleach_journal::format::bytes::{get_u32, get_u64, put};

use crate::error::StreamError;
use crate::export::format::{self, BlockKind, HEADER, MAGIC, MAX_PAYLOAD, SUMMED};

/// Reads blocks.
pub(super) struct BlockReader<R> {
    from: R,
    /// The checksum of the block before.
    before: u64,
    /// Blocks that were read.
    blocks: u64,
    /// The payload of the last one.
    pub(super) payload: Vec<u8>,
}

impl<R: Read> BlockReader<R> {
    /// Reads the head, which has a kind and a version; `none` is the error of a stream without it.
    pub(super) fn new(
        from: R,
        (head, known): (BlockKind, u16),
        none: StreamError,
    ) -> Result<Self, StreamError> {
        let mut reader = Self { from, before: 0, blocks: 0, payload: Vec::new() };
        match reader.next() {
            Ok(kind) if kind == head => {}
            Err(error @ StreamError::Read(_)) => return Err(error),
            _ => return Err(none),
        }
        match reader.payload.first_chunk::<2>().map(|version| u16::from_le_bytes(*version)) {
            Some(found) if found != known => Err(StreamError::Version { found, known }),
            _ => Ok(reader),
        }
    }

    /// Reads the next block's payload, and returns its kind.
    pub(super) fn next(&mut self) -> Result<BlockKind, StreamError> {
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
        let checksum = format::checksum(self.before, summed, &self.payload);
        if checksum != get_u64(&header, SUMMED) {
            return Err(damaged);
        }
        self.before = checksum;
        self.blocks += 1;
        let kind = BlockKind::of_byte(header[4]);
        let zeros = header[5..8].iter().chain(&header[12..SUMMED]).all(|byte| *byte == 0);
        kind.filter(|_| zeros).ok_or_else(|| self.contents("its header"))
    }

    /// Checks that nothing follows.
    pub(super) fn finish(mut self) -> Result<(), StreamError> {
        match read_full(&mut self.from, &mut [0; 1])? {
            0 => Ok(()),
            _ => Err(StreamError::Trailing),
        }
    }

    /// The error of a last block with a right checksum and wrong contents.
    pub(super) fn contents(&self, what: &'static str) -> StreamError {
        StreamError::Contents { block: self.blocks.saturating_sub(1), what }
    }
}

/// Writes blocks.
pub(super) struct BlockWriter<W> {
    to: W,
    /// The checksum of the block before.
    before: u64,
    /// The payload of the block in progress.
    pub(super) payload: Vec<u8>,
    /// Bytes of all blocks.
    pub(super) bytes: u64,
}

impl<W: Write> BlockWriter<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, before: 0, payload: Vec::new(), bytes: 0 }
    }

    /// Writes the block in progress.
    pub(super) fn block(&mut self, kind: BlockKind) -> Result<(), StreamError> {
        let mut header = [0; HEADER];
        put(&mut header, 0, MAGIC);
        put(&mut header, 4, [kind as u8]);
        let length = u32::try_from(self.payload.len()).expect("blocks are bounded");
        put(&mut header, 8, length.to_le_bytes());
        let summed = header.first_chunk::<SUMMED>().expect("a part of it");
        self.before = format::checksum(self.before, summed, &self.payload);
        put(&mut header, SUMMED, self.before.to_le_bytes());
        self.to.write_all(&header).map_err(written)?;
        self.to.write_all(&self.payload).map_err(written)?;
        self.bytes += (HEADER + self.payload.len()) as u64;
        self.payload.clear();
        Ok(())
    }

    /// Ends the stream.
    pub(super) fn finish(mut self) -> Result<(), StreamError> {
        self.to.flush().map_err(written)
    }
}

/// Reads until the buffer is full or the input ends; returns the number of bytes.
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

#[expect(clippy::needless_pass_by_value, reason = "a function for map_err")]
fn written(error: std::io::Error) -> StreamError {
    StreamError::Write(error.to_string())
}
