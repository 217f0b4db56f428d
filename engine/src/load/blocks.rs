//! Memory of a load: blocks of records, and the spill file for blocks that memory has no room for.
//!
//! Blocks have one size. Filled ones stay in memory while there is room; from then on each goes to the spill file,
//! several writes in flight, and its memory is used again. Room for all open blocks and all writes in flight is set
//! aside, so that no shape of keys takes more memory than there is.

use std::sync::atomic::{AtomicU64, Ordering};

use pleach_beatree::page_no::page_offset;
use pleach_io::{Disk, File, OpenMode, PAGE, PageBuf, Queue, Request, RequestKind};
use pleach_journal::format::names::LOAD_SPILL_FILE;

use super::sizes::{LoadSizes, WRITES};
use crate::error::{Error, NoRoom, Result, full_or};

/// Blocks by which the spill file grows.
const GROWTH: u64 = 256;

/// The place of a filled block.
pub(super) enum BlockPlace {
    Memory(PageBuf),
    /// In the spill file, at this block number.
    Spilled(u64),
}

/// A block and its number of bytes of records.
pub(super) struct LoadBlock {
    pub(super) place: BlockPlace,
    pub(super) filled: usize,
}

struct LoadSpill {
    file: File,
    queue: Box<dyn Queue>,
    /// Block numbers below `end` that are free.
    free: Vec<u64>,
    end: u64,
    reserved: u64,
}

/// Bytes of a load's blocks and buffers: now, and most at any time. An error may leave some in the count.
#[derive(Default)]
pub(super) struct BufferBytes {
    now: AtomicU64,
    peak: AtomicU64,
}

impl BufferBytes {
    pub(super) fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, bytes: usize) {
        self.now.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

/// All blocks of a load.
pub(super) struct LoadBlocks {
    device: Disk,
    pages: usize,
    /// Most blocks in memory.
    limit: usize,
    /// Blocks in memory, including those in `spare` and in flight.
    alive: usize,
    /// Most filled blocks that stay in memory, and how many do.
    most_stored: usize,
    stored: usize,
    spare: Vec<PageBuf>,
    bytes: BufferBytes,
    spill: Option<LoadSpill>,
    /// Bytes written to the spill file.
    pub(super) spilled: u64,
}

impl LoadBlocks {
    pub(super) fn new(device: &Disk, sizes: &LoadSizes) -> Result<Self> {
        // A file that an interrupted load left.
        match device.remove(LOAD_SPILL_FILE) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        Ok(Self {
            device: device.clone(),
            pages: sizes.block_pages,
            limit: sizes.blocks,
            alive: 0,
            most_stored: sizes.stored_blocks(),
            stored: 0,
            spare: Vec::new(),
            bytes: BufferBytes::default(),
            spill: None,
            spilled: 0,
        })
    }

    /// Bytes of a block.
    pub(super) fn block_len(&self) -> usize {
        self.pages * PAGE
    }

    /// A block to be filled.
    pub(super) fn take_buffer(&mut self) -> Result<PageBuf> {
        if self.spare.is_empty() && self.alive == self.limit {
            self.complete()?;
        }
        if let Some(spare) = self.spare.pop() {
            return Ok(spare);
        }
        debug_assert!(self.alive < self.limit, "what is stored leaves room for open blocks");
        self.alive += 1;
        self.bytes.add(self.block_len());
        Ok(PageBuf::zeroed(self.pages))
    }

    fn in_flight(&self) -> usize {
        self.spill.as_ref().map_or(0, |spill| spill.queue.in_flight())
    }

    /// Completes writes that have ended.
    fn complete(&mut self) -> Result<()> {
        let Some(spill) = &mut self.spill else { return Ok(()) };
        let mut failed = None;
        let mut next = spill.queue.wait()?;
        while let Some(completion) = next {
            failed = failed.or(completion.result.err());
            self.spare.push(completion.buf);
            next = spill.queue.poll();
        }
        failed.map_or(Ok(()), |error| Err(full_or(NoRoom::Load)(error)))
    }

    /// Stores a filled block, in memory if there is room.
    pub(super) fn store(&mut self, buf: PageBuf, filled: usize) -> Result<LoadBlock> {
        if self.stored < self.most_stored {
            self.stored += 1;
            return Ok(LoadBlock { place: BlockPlace::Memory(buf), filled });
        }
        if self.spill.is_none() {
            self.spill = Some(LoadSpill {
                file: self.device.open(LOAD_SPILL_FILE, OpenMode::CreateNew)?,
                queue: self.device.queue(WRITES)?,
                free: Vec::new(),
                end: 0,
                reserved: 0,
            });
        }
        if self.in_flight() == WRITES {
            self.complete()?;
        }
        let len = self.block_len() as u64;
        let spill = self.spill.as_mut().expect("just made");
        let number = match spill.free.pop() {
            Some(number) => number,
            None => spill.grow(&self.device, len)?,
        };
        spill.queue.push(Request {
            file: spill.file.clone(),
            kind: RequestKind::Write,
            offset: number * len,
            buf,
            token: number,
        });
        spill.queue.submit()?;
        self.spilled += len;
        Ok(LoadBlock { place: BlockPlace::Spilled(number), filled })
    }

    /// Waits for all writes: from here on spilled blocks can be read.
    pub(super) fn finish_writes(&mut self) -> Result<()> {
        while self.in_flight() > 0 {
            self.complete()?;
        }
        Ok(())
    }

    /// A block's bytes; writes must have finished. Return the buffer with [`LoadBlocks::recycle`].
    pub(super) fn read(&mut self, block: LoadBlock) -> Result<(PageBuf, usize)> {
        match block.place {
            BlockPlace::Memory(buf) => {
                self.stored -= 1;
                Ok((buf, block.filled))
            }
            BlockPlace::Spilled(number) => {
                let mut buf = self.take_buffer()?;
                let offset = number * self.block_len() as u64;
                let spill = self.spill.as_mut().expect("a spilled block has a file");
                self.device.read_at(&spill.file, &mut buf, offset)?;
                spill.free.push(number);
                Ok((buf, block.filled))
            }
        }
    }

    /// Calls `look` with a block's bytes; the block stays where it is. Writes must have finished.
    pub(super) fn with_block(&mut self, block: &LoadBlock, look: impl FnOnce(&[u8])) -> Result<()> {
        match &block.place {
            BlockPlace::Memory(buf) => look(&buf[..block.filled]),
            BlockPlace::Spilled(number) => {
                let mut buf = self.take_buffer()?;
                let offset = number * self.block_len() as u64;
                let spill = self.spill.as_ref().expect("a spilled block has a file");
                self.device.read_at(&spill.file, &mut buf, offset)?;
                look(&buf[..block.filled]);
                self.recycle(buf);
            }
        }
        Ok(())
    }

    /// Takes a buffer back for reuse.
    pub(super) fn recycle(&mut self, buf: PageBuf) {
        self.spare.push(buf);
    }

    /// Ends filling: releases spare memory, and keeps the spill file for reading.
    pub(super) fn freeze(mut self) -> Result<FrozenBlocks> {
        self.finish_writes()?;
        self.bytes.subtract(self.spare.len() * self.block_len());
        Ok(FrozenBlocks {
            device: self.device.clone(),
            pages: self.pages,
            file: self.spill.take().map(|spill| spill.file),
            bytes: std::mem::take(&mut self.bytes),
            spilled: self.spilled,
        })
    }
}

impl Drop for LoadBlocks {
    /// After an error: the next load removes the file if this drop cannot.
    fn drop(&mut self) {
        if let Some(mut spill) = self.spill.take() {
            while let Ok(Some(_)) = spill.queue.wait() {}
            drop(spill);
            remove(&self.device);
        }
    }
}

impl LoadSpill {
    fn grow(&mut self, device: &Disk, len: u64) -> Result<u64> {
        if self.end == self.reserved {
            device
                .allocate(&self.file, self.reserved * len, GROWTH * len)
                .map_err(full_or(NoRoom::Load))?;
            self.reserved += GROWTH;
        }
        self.end += 1;
        Ok(self.end - 1)
    }
}

/// Filled blocks that workers read.
pub(super) struct FrozenBlocks {
    device: Disk,
    pages: usize,
    file: Option<File>,
    pub(super) bytes: BufferBytes,
    pub(super) spilled: u64,
}

impl FrozenBlocks {
    /// The bytes of blocks; spilled ones are read, as far as they are filled, through a queue that is empty before and
    /// after.
    pub(super) fn read_blocks(
        &self,
        queue: &mut Box<dyn Queue>,
        blocks: Vec<LoadBlock>,
    ) -> Result<Vec<(PageBuf, usize)>> {
        let mut gathered = Vec::with_capacity(blocks.len());
        let mut failed = None;
        for block in blocks {
            match block.place {
                BlockPlace::Memory(buf) => gathered.push((buf, block.filled)),
                BlockPlace::Spilled(number) => {
                    if queue.in_flight() == queue.depth() {
                        failed = failed.or(completed(queue, &mut gathered)?);
                    }
                    let buf = PageBuf::zeroed(block.filled.div_ceil(PAGE));
                    self.bytes.add(buf.len());
                    queue.push(Request {
                        file: self.file.clone().expect("a spilled block has a file"),
                        kind: RequestKind::Read,
                        offset: page_offset(number * self.pages as u64),
                        buf,
                        token: block.filled as u64,
                    });
                }
            }
        }
        while queue.in_flight() > 0 {
            failed = failed.or(completed(queue, &mut gathered)?);
        }
        failed.map_or(Ok(gathered), Err)
    }
}

fn completed(
    queue: &mut Box<dyn Queue>,
    gathered: &mut Vec<(PageBuf, usize)>,
) -> Result<Option<Error>> {
    let Some(completion) = queue.wait()? else { return Ok(None) };
    let filled = usize::try_from(completion.token).expect("bytes of a block");
    gathered.push((completion.buf, filled));
    Ok(completion.result.err().map(Error::from))
}

impl Drop for FrozenBlocks {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            remove(&self.device);
        }
    }
}

fn remove(device: &Disk) {
    if let Err(error) = device.remove(LOAD_SPILL_FILE) {
        tracing::warn!(%error, "the load's spill file is left to the next load");
    }
}
