//! Collects pairs in buckets by the bits after a prefix, and makes units of the buckets.
//!
//! A unit is sorted and divided into pages by one worker at once: all pairs below a prefix whose parent has more than
//! one page can hold. Small neighbouring buckets become one unit. A bucket that is too large is distributed again, by
//! the bits after those that all its keys share, as often as necessary.

use pleach_beatree::load::{LoadRecord, LoadRecords};
use pleach_core::prefix::common_len;
use pleach_core::{Key, Prefix, cpu_prefetch};
use pleach_io::PageBuf;

use super::blocks::{LoadBlock, LoadBlocks};
use super::sizes::{LoadSizes, MIN_UNIT};
use crate::error::{Error, Result};

struct Bucket {
    full: Vec<LoadBlock>,
    open: Option<PageBuf>,
    filled: usize,
    keys: u64,
    bytes: u64,
}

/// Pairs below a prefix, distributed by the bits after it.
pub(super) struct Buckets {
    at: Prefix,
    bits: u16,
    parts: Vec<Bucket>,
}

/// All pairs below a prefix.
pub(super) struct UnitSource {
    pub(super) prefix: Prefix,
    pub(super) blocks: Vec<LoadBlock>,
    pub(super) keys: u64,
}

impl Buckets {
    pub(super) fn new(at: Prefix, sizes: &LoadSizes) -> Self {
        Self::with_bits(at, sizes.bits)
    }

    fn with_bits(at: Prefix, bits: u16) -> Self {
        let bits = bits.min(256 - at.len());
        let empty = |_| Bucket { full: Vec::new(), open: None, filled: 0, keys: 0, bytes: 0 };
        Self { at, bits, parts: (0..1usize << bits).map(empty).collect() }
    }

    /// Adds a pair.
    #[inline]
    pub(super) fn push(&mut self, blocks: &mut LoadBlocks, record: &LoadRecord<'_>) -> Result<()> {
        let index = bits_of(record.key, self.at.len(), self.bits);
        let bucket = &mut self.parts[index];
        bucket.keys += 1;
        bucket.bytes += record.size() as u64;
        if let Some(open) = &mut bucket.open
            && let Some(end) = record.write(open, bucket.filled)
        {
            bucket.filled = end;
            // The bucket's next record comes a thousand records later, and its cache lines should be here by then: a
            // write that waits for memory delays the next atomic operation, such as that of dropping a value.
            cpu_prefetch(&open[end..open.len().min(end + record.size())]);
            return Ok(());
        }
        bucket.renew(blocks, record)
    }

    /// Makes units of all pairs, in key order; their prefixes tile the key space.
    pub(super) fn into_units(
        self,
        blocks: &mut LoadBlocks,
        sizes: &LoadSizes,
    ) -> Result<Vec<UnitSource>> {
        let total: u64 = self.parts.iter().map(|bucket| bucket.bytes).sum();
        let limit = (total / (sizes.workers as u64 * 8)).clamp(MIN_UNIT, sizes.unit);
        let mut units = Vec::new();
        UnitDivider { blocks, sizes, limit, out: &mut units }.divide_buckets(self)?;
        Ok(units)
    }
}

impl Bucket {
    /// Stores the open block, which has no room for this record, and puts the record into a new one.
    #[cold]
    fn renew(&mut self, blocks: &mut LoadBlocks, record: &LoadRecord<'_>) -> Result<()> {
        self.close(blocks)?;
        let mut open = blocks.take_buffer()?;
        self.filled = record.write(&mut open, 0).expect("a block holds any record");
        self.open = Some(open);
        Ok(())
    }

    fn close(&mut self, blocks: &mut LoadBlocks) -> Result<()> {
        if let Some(full) = self.open.take() {
            self.full.push(blocks.store(full, self.filled)?);
            self.filled = 0;
        }
        Ok(())
    }
}

struct UnitDivider<'a> {
    blocks: &'a mut LoadBlocks,
    sizes: &'a LoadSizes,
    limit: u64,
    out: &'a mut Vec<UnitSource>,
}

impl UnitDivider<'_> {
    fn divide_buckets(&mut self, from: Buckets) -> Result<()> {
        let mut buckets = from.parts;
        for bucket in &mut buckets {
            bucket.close(self.blocks)?;
        }
        let mut todo = vec![(from.at, buckets)];
        while let Some((prefix, mut buckets)) = todo.pop() {
            let bytes: u64 = buckets.iter().map(|bucket| bucket.bytes).sum();
            if bytes <= self.limit || (buckets.len() == 1 && bytes <= self.sizes.unit) {
                let keys = buckets.iter().map(|bucket| bucket.keys).sum();
                let blocks = buckets.into_iter().flat_map(|bucket| bucket.full).collect();
                self.out.push(UnitSource { prefix, blocks, keys });
            } else if let [bucket] = &mut buckets[..] {
                let full = std::mem::take(&mut bucket.full);
                self.redistribute(prefix, full)?;
            } else {
                let right = buckets.split_off(buckets.len() / 2);
                todo.push((prefix.child(true), right));
                todo.push((prefix.child(false), buckets));
            }
        }
        Ok(())
    }

    /// Distributes a large bucket by the bits after those that all its keys share.
    fn redistribute(&mut self, at: Prefix, full: Vec<LoadBlock>) -> Result<()> {
        self.blocks.finish_writes()?;
        let shared = self.shared_prefix(&full)?;
        // Four blocks a part, so that those that are not full waste an eighth.
        let bits = u16::try_from((full.len() / 4).max(2).ilog2()).expect("at most 64");
        let mut buckets = Buckets::with_bits(shared, bits.min(self.sizes.bits));
        for block in full {
            let (buf, filled) = self.blocks.read(block)?;
            for (_, record) in LoadRecords::new(&buf[..filled]) {
                buckets.push(self.blocks, &record)?;
            }
            self.blocks.recycle(buf);
        }
        let empty = |prefix| UnitSource { prefix, blocks: Vec::new(), keys: 0 };
        let mut right = Vec::new();
        for depth in at.len()..shared.len() {
            let step = Prefix::new(shared.first_key(), depth + 1);
            let sibling = empty(step.sibling().expect("not the root"));
            if step.is_right() { self.out.push(sibling) } else { right.push(sibling) }
        }
        self.divide_buckets(buckets)?;
        self.out.extend(right.into_iter().rev());
        Ok(())
    }

    /// The longest prefix that all keys in these blocks share; writes must have finished.
    fn shared_prefix(&mut self, full: &[LoadBlock]) -> Result<Prefix> {
        let mut shared: Option<Prefix> = None;
        for block in full {
            self.blocks.with_block(block, |filled| {
                for (_, record) in LoadRecords::new(filled) {
                    let prefix = shared.get_or_insert(Prefix::new(record.key, 256));
                    let len = common_len(prefix.first_key(), record.key).min(prefix.len());
                    if len < prefix.len() {
                        *prefix = Prefix::new(record.key, len);
                    }
                }
            })?;
        }
        let shared = shared.expect("a large bucket has keys");
        if shared.len() == 256 {
            return Err(Error::RepeatedKey(*shared.first_key()));
        }
        Ok(shared)
    }
}

/// `bits` bits of a key, from bit `depth` on, as a number.
#[inline]
fn bits_of(key: &Key, depth: u16, bits: u16) -> usize {
    let skip = usize::from(depth / 8).min(24);
    let window = u64::from_be_bytes(*key[skip..].first_chunk().expect("8 bytes"));
    let from = usize::from(depth) - skip * 8;
    if bits == 0 {
        return 0;
    }
    #[expect(clippy::cast_possible_truncation, reason = "few bits are left")]
    let number = ((window << from) >> (64 - bits)) as usize;
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_behind_the_prefix() {
        let mut key = [0; 32];
        key[31] = 0b0000_0101;
        key[2] = 0b1100_0000;
        assert_eq!(bits_of(&key, 16, 2), 3);
        assert_eq!(bits_of(&key, 15, 4), 0b0110);
        assert_eq!(bits_of(&key, 253, 3), 5);
        assert_eq!(bits_of(&key, 255, 1), 1);
        assert_eq!(bits_of(&key, 0, 10), 0);
    }
}
