//! Sizes that follow from the memory of a load.

use pleach_beatree::load::MAX_RECORD;
use pleach_beatree::page_no::page_offset;

/// Writes of blocks in flight.
pub(super) const WRITES: usize = 16;
/// A worker's requests in flight.
pub(super) const DEPTH: usize = 8;
/// A worker's buffers of a batch each: those in flight, and one that is filled.
pub(super) const BUFFERS: usize = DEPTH + 1;
/// Most pages that are folded and written at once.
const MAX_BATCH: usize = 256;
/// A prefix is divided into units only when its records have more bytes than this: its cells then take more than a
/// page, however deep it is.
pub(super) const MIN_UNIT: u64 = 64 << 10;
/// Bytes of records of the largest unit.
const MAX_UNIT: u64 = 8 << 20;
/// Bits by which pairs are distributed in one pass.
const MAX_BITS: u16 = 10;

const _: () = assert!(MIN_UNIT > 16 * MAX_RECORD as u64);

/// Sizes that follow from the memory of a load. Three quarters are for blocks, of which at most a quarter is open; the
/// rest is for workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadSizes {
    /// Pages of a block.
    pub(super) block_pages: usize,
    /// Most blocks in memory.
    pub(super) blocks: usize,
    /// Most bits by which pairs are distributed.
    pub(super) bits: u16,
    /// Bytes of records of the largest unit.
    pub(super) unit: u64,
    /// Workers that build pages.
    pub(super) workers: usize,
    /// Most pages that a worker folds and writes at once.
    pub(super) batch: usize,
}

impl LoadSizes {
    pub(super) fn new(memory: u64, workers: usize) -> Self {
        let blocks = memory / 4 * 3;
        let block_pages = (blocks / 4 / page_offset(32)).clamp(1, 16);
        let open = (blocks / 4 / page_offset(block_pages)).max(2);
        let bits = u16::try_from(open.ilog2()).expect("at most 64").min(MAX_BITS);
        let few = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let workers = workers.clamp(1, few(memory / 4 / (2 * MIN_UNIT)).max(1));
        let share = memory / 4 / workers as u64;
        Self {
            block_pages: few(block_pages),
            blocks: few(blocks / page_offset(block_pages)),
            bits,
            // Sorting takes three quarters of a unit's bytes again.
            unit: (share / 4).clamp(MIN_UNIT, MAX_UNIT),
            workers,
            batch: few(share / 2 / page_offset(BUFFERS as u64)).clamp(1, MAX_BATCH),
        }
    }

    /// Most filled blocks that stay in memory, beside all open ones, one that is read and the writes in flight.
    pub(super) fn stored_blocks(&self) -> usize {
        self.blocks - (1 << self.bits) - 1 - WRITES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stay_within_the_memory() {
        for mib in [1, 4, 64, 1024, 8192] {
            for workers in [1, 2, 64] {
                let memory = mib << 20;
                let sizes = LoadSizes::new(memory, workers);
                let block = page_offset(sizes.block_pages as u64);
                assert!(4 << sizes.bits <= sizes.blocks, "{mib} MiB: {sizes:?}");
                assert!(2 * sizes.stored_blocks() > sizes.blocks, "{mib} MiB: {sizes:?}");
                assert!((MIN_UNIT..=MAX_UNIT).contains(&sizes.unit));
                // A block more, since the last one of a unit may be nearly empty.
                let worker = sizes.unit * 7 / 4 + page_offset((sizes.batch * BUFFERS) as u64);
                let most = sizes.blocks as u64 * block + sizes.workers as u64 * worker;
                assert!(most <= memory / 10 * 11, "{mib} MiB: {most} bytes of {sizes:?}");
            }
        }
    }
}
