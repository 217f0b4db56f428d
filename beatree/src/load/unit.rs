//! The pairs below one prefix: sorted, and divided among pages.
//!
//! Sorting moves 16 bytes a pair (8 bytes of the key, where the record is, and the length of its value), and dividing
//! reads no record: the bytes that cells take are kept as running totals. Records are in no order, so a pass by key
//! prefetches their memory ([`LoadUnit::cells`]).

use core::ops::Range;

use pleach_core::page::leaf;
use pleach_core::prefix::{Prefix, bit};
use pleach_core::{Key, cpu_prefetch};

use crate::page_plan::{CellRef, PagePlan, divide, levels};

use super::record::{LoadRecord, LoadRecords, record_len};

/// A key that was loaded twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key came twice")]
pub struct RepeatedKey(pub Key);

/// Pairs whose memory is prefetched ahead of the one that is read.
const AHEAD: usize = 8;

/// Where a record is and the bytes of its value, after the leading bytes of its key.
#[derive(Clone, Copy, Debug)]
struct RecordSlot {
    lead: u64,
    block: u32,
    offset: u16,
    len: u16,
}

const _: () = assert!(size_of::<RecordSlot>() == 16, "what sorting moves");

/// Sorted pairs below a prefix.
#[derive(Debug)]
pub struct LoadUnit<'a> {
    prefix: Prefix,
    blocks: &'a [&'a [u8]],
    slots: Vec<RecordSlot>,
    /// Bytes of the values before each pair, and of all.
    totals: Vec<u64>,
    /// The first bit of a key that its slot's leading bytes hold.
    from: u16,
}

impl<'a> LoadUnit<'a> {
    /// Sorts the records of the filled parts of blocks; all keys lie below `prefix`.
    ///
    /// # Errors
    /// [`RepeatedKey`] with the first key that is there twice.
    ///
    /// # Panics
    /// When there are 2^32 blocks, or one has more than 64 KiB.
    pub fn new(prefix: Prefix, blocks: &'a [&'a [u8]]) -> Result<Self, RepeatedKey> {
        let skip = usize::from(prefix.len() / 8).min(24);
        // Not more than are needed: a vector that grows takes three times as much.
        let most = blocks.iter().map(|block| block.len() / record_len(0)).sum();
        let mut slots = Vec::with_capacity(most);
        for (index, block) in blocks.iter().enumerate() {
            let block_no = u32::try_from(index).expect("few blocks");
            for (offset, record) in LoadRecords::new(block) {
                debug_assert!(prefix.covers(record.key));
                slots.push(RecordSlot {
                    lead: u64::from_be_bytes(*record.key[skip..].first_chunk().expect("8 bytes")),
                    block: block_no,
                    offset: u16::try_from(offset).expect("blocks are small"),
                    len: u16::try_from(record.bytes.len()).expect("values of records are short"),
                });
            }
        }
        let key = |slot: &RecordSlot| {
            LoadRecord::at(blocks[slot.block as usize], usize::from(slot.offset)).key
        };
        slots.sort_unstable_by(|a, b| a.lead.cmp(&b.lead).then_with(|| key(a).cmp(key(b))));
        let twice = slots.windows(2).find(|w| w[0].lead == w[1].lead && key(&w[0]) == key(&w[1]));
        if let Some([first, ..]) = twice {
            return Err(RepeatedKey(*key(first)));
        }
        let from = u16::try_from(skip * 8).expect("at most 192");
        let mut totals = Vec::with_capacity(slots.len() + 1);
        let mut total = 0;
        for slot in &slots {
            totals.push(total);
            total += u64::from(slot.len);
        }
        totals.push(total);
        Ok(Self { prefix, blocks, slots, totals, from })
    }

    /// Bytes of memory that it takes beside the blocks.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.slots[..]) + size_of_val(&self.totals[..])
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True when there is no pair.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Pair number `index` in key order.
    ///
    /// # Panics
    /// When there is no such pair.
    #[inline]
    pub fn record(&self, index: usize) -> LoadRecord<'a> {
        let slot = self.slots[index];
        LoadRecord::at(self.blocks[slot.block as usize], usize::from(slot.offset))
    }

    /// The cells of these pairs, in key order.
    ///
    /// # Panics
    /// When there are no such pairs.
    pub fn cells(&self, pairs: Range<usize>) -> impl Iterator<Item = CellRef<'a>> {
        let end = pairs.end;
        pairs.map(move |index| {
            if let Some(ahead) = self.slots[..end].get(index + AHEAD) {
                let (from, len) = (usize::from(ahead.offset), record_len(usize::from(ahead.len)));
                cpu_prefetch(&self.blocks[ahead.block as usize][from..from + len]);
            }
            self.record(index).cell()
        })
    }

    /// Divides the pairs among pages, as [`crate::page_plan::plan_pages`] does; the prefixes tile the unit's.
    pub fn plan(&self) -> Vec<PagePlan> {
        let fits = |page: &PagePlan| {
            let Range { start, end } = page.cells;
            let values = self.totals[end] - self.totals[start];
            let filled = ((end - start) * leaf::cell_size(page.prefix.len(), 0)) as u64 + values;
            filled <= leaf::capacity(levels(&page.prefix)) as u64
        };
        divide(&self.prefix, self.slots.len(), fits, |pair, depth| self.is_left(pair, depth))
    }

    /// True when a pair has a zero at `depth`. The pairs compared agree in the bits before.
    fn is_left(&self, pair: usize, depth: u16) -> bool {
        let at = depth - self.from;
        if at < 64 {
            self.slots[pair].lead << at >> 63 == 0
        } else {
            !bit(self.record(pair).key, depth)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_plan::plan_pages;

    fn keys(shared: usize, count: u64) -> Vec<Key> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..count)
            .map(|_| {
                let mut key = [0x5a; 32];
                for byte in &mut key[shared..] {
                    *byte = next().to_be_bytes()[2];
                }
                key
            })
            .collect()
    }

    #[test]
    fn pages_are_those_of_the_plan_over_all_cells() {
        for (shared, count) in
            [(0, 0), (0, 1), (0, 100), (0, 5000), (7, 3000), (20, 3000), (28, 900)]
        {
            let keys = keys(shared, count);
            let values: Vec<Vec<u8>> = keys
                .iter()
                .map(|key| vec![1; usize::from(key[31]) * usize::from(key[30] & 4)])
                .collect();
            let mut blocks: Vec<Vec<u8>> = vec![Vec::new(); 30];
            for (index, (key, bytes)) in keys.iter().zip(&values).enumerate() {
                let block = &mut blocks[index % 30];
                let end = block.len();
                block.resize(end + super::super::record_len(bytes.len()), 0);
                LoadRecord { key, bytes, overflow: false }.write(block, end).expect("room");
            }
            let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
            let mut cells: Vec<CellRef<'_>> = keys
                .iter()
                .zip(&values)
                .map(|(key, bytes)| CellRef { key: *key, bytes, overflow: false })
                .collect();
            cells.sort_by_key(|cell| cell.key);
            let at = Prefix::new(&[0x5a; 32], u16::try_from(shared * 8).unwrap());
            let unit = LoadUnit::new(at, &blocks).expect("distinct keys");
            let parts = |cell: CellRef<'_>| (cell.key, cell.bytes.to_vec(), cell.overflow);
            assert_eq!(unit.len(), cells.len());
            assert!(unit.cells(0..unit.len()).map(parts).eq(cells.iter().copied().map(parts)));
            let (from, to) = (cells.len() / 3, cells.len() / 2);
            let some = unit.cells(from..to).map(parts);
            assert!(some.eq(cells[from..to].iter().copied().map(parts)));
            let (found, expected) = (unit.plan(), plan_pages(&at, &cells));
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(
                    (found.prefix, found.cells.clone()),
                    (expected.prefix, expected.cells.clone())
                );
            }
        }
    }

    #[test]
    fn a_key_that_comes_twice_is_named() {
        let mut block = vec![0; 3 * super::super::record_len(0)];
        let mut end = 0;
        for byte in [7, 3, 7] {
            let record = LoadRecord { key: &[byte; 32], bytes: &[], overflow: false };
            end = record.write(&mut block, end).expect("room");
        }
        let blocks = [block.as_slice()];
        assert_eq!(LoadUnit::new(Prefix::ROOT, &blocks).expect_err("twice"), RepeatedKey([7; 32]));
    }
}
