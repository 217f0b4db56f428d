//! The buffered changes of an image, region by region, as one stream of bytes, and the sums over all regions.
//!
//! ```text
//! stream:   regions that have any | for each region of the namespace where its part ends 8
//! region:   prefix length 2 | prefix 32 | number of changes 4 | number of replaced values 4
//! change:   key 32 | commit 8 | kind 1 (0 absent, 1 inline, 2 overflow cell) | length 4 | bytes
//! replaced: key 32 | commit 8 | commit that replaced it 8 | length 4 | overflow cell
//! ```

use std::sync::Arc;

use pleach_beatree::region::{BufferedChange, ReplacedValue};
use pleach_beatree::{Error, RegionState, Result, Stored, Value};
use pleach_core::page::overflow::OverflowCell;
use pleach_core::{Hasher, Prefix};

use super::table::TrieSums;

const ABSENT: u8 = 0;
const INLINE: u8 = 1;
const OVERFLOW: u8 = 2;

/// The stream of a namespace and its sums, in the making.
#[derive(Debug, Default)]
pub struct TrieEncoder {
    changes: Vec<u8>,
    ends: Vec<u8>,
    sums: TrieSums,
}

impl TrieEncoder {
    /// Adds the next region.
    pub fn add(&mut self, region: &Prefix, state: &RegionState) {
        encode(&mut self.changes, region, state);
        self.ends.extend_from_slice(&(self.changes.len() as u64).to_le_bytes());
        self.sums += TrieSums::of(state);
    }

    /// The stream, without bytes when no region has any; and the sums.
    pub fn finish(mut self) -> (Vec<u8>, TrieSums) {
        if !self.changes.is_empty() {
            self.changes.append(&mut self.ends);
        }
        (self.changes, self.sums)
    }
}

/// Where the stream of a namespace with so many regions has their parts: `read` reads a part of the stream, which has
/// `len` bytes.
pub fn parts(
    len: u64,
    regions: usize,
    read: impl FnOnce([u64; 2]) -> Result<Vec<u8>>,
) -> Result<Vec<[u64; 2]>> {
    if len == 0 {
        return Ok(vec![[0; 2]; regions]);
    }
    let from = len.checked_sub(8 * regions as u64).ok_or_else(bad)?;
    let (ends, mut end) = (read([from, len])?, 0);
    let (ends, _) = ends.as_chunks::<8>();
    let ends =
        ends.iter().map(|next| [std::mem::replace(&mut end, u64::from_le_bytes(*next)), end]);
    let parts: Vec<[u64; 2]> = ends.collect();
    let fits = end == from && parts.is_sorted_by(|a, b| a[1] <= b[1]);
    if fits { Ok(parts) } else { Err(bad()) }
}

/// Appends the buffered changes of a region; nothing when there are none.
///
/// # Panics
/// When a region has 2^32 changes, or a replaced value that is short.
fn encode(out: &mut Vec<u8>, region: &Prefix, state: &RegionState) {
    let (buffered, replaced) = (state.buffered(), state.replaced_values());
    if buffered.is_empty() && replaced.is_empty() {
        return;
    }
    let count = |count: usize| {
        u32::try_from(count)
            .expect("fewer than 2^32 in a region, and values are limited")
            .to_le_bytes()
    };
    out.extend_from_slice(&region.len().to_le_bytes());
    out.extend_from_slice(region.first_key());
    out.extend_from_slice(&count(buffered.len()));
    out.extend_from_slice(&count(replaced.len()));
    for change in buffered {
        out.extend_from_slice(&change.key);
        out.extend_from_slice(&change.commit.to_le_bytes());
        let (kind, bytes): (u8, &[u8]) = match &change.stored {
            Stored::Absent => (ABSENT, &[]),
            Stored::Inline(value) => (INLINE, value),
            Stored::Long(large) => (INLINE, &large.bytes),
            Stored::Overflow(cell) => (OVERFLOW, cell),
        };
        out.push(kind);
        out.extend_from_slice(&count(bytes.len()));
        out.extend_from_slice(bytes);
    }
    for replaced in replaced {
        let Stored::Overflow(cell) = &replaced.buffered.stored else {
            unreachable!("only values with runs are kept when they are replaced")
        };
        out.extend_from_slice(&replaced.buffered.key);
        out.extend_from_slice(&replaced.buffered.commit.to_le_bytes());
        out.extend_from_slice(&replaced.replaced_by.to_le_bytes());
        out.extend_from_slice(&count(cell.len()));
        out.extend_from_slice(cell);
    }
}

/// Decodes the part of a region: buffered changes and replaced values.
pub fn decode(
    hasher: Hasher,
    prefix: &Prefix,
    mut bytes: &[u8],
) -> Result<(Vec<BufferedChange>, Vec<ReplacedValue>)> {
    let len = u16::from_le_bytes(take(&mut bytes)?);
    if Prefix::from_raw(take(&mut bytes)?, len) != Some(*prefix) {
        return Err(bad());
    }
    let count = u32::from_le_bytes(take(&mut bytes)?) as usize;
    let replaced_count = u32::from_le_bytes(take(&mut bytes)?);
    // A change takes at least 45 bytes: memory is reserved only for as many as the bytes can hold.
    let mut buffered: Vec<BufferedChange> = Vec::with_capacity(count.min(bytes.len() / 45));
    for _ in 0..count {
        let key = take::<32>(&mut bytes)?;
        let commit = u64::from_le_bytes(take(&mut bytes)?);
        let [kind] = take::<1>(&mut bytes)?;
        let len = u32::from_le_bytes(take(&mut bytes)?) as usize;
        let value = bytes.split_off(..len).ok_or_else(bad)?;
        let stored = match kind {
            ABSENT if len == 0 => Stored::Absent,
            INLINE => Stored::from_value(hasher, Value::from(value)),
            OVERFLOW if OverflowCell::parse(value).is_ok() => Stored::Overflow(Arc::from(value)),
            _ => return Err(bad()),
        };
        if !prefix.covers(&key) || buffered.last().is_some_and(|last| last.key >= key) {
            return Err(bad());
        }
        buffered.push(BufferedChange { key, stored, commit });
    }
    let mut replaced = Vec::new();
    for _ in 0..replaced_count {
        let key = take::<32>(&mut bytes)?;
        let commit = u64::from_le_bytes(take(&mut bytes)?);
        let replaced_by = u64::from_le_bytes(take(&mut bytes)?);
        let len = u32::from_le_bytes(take(&mut bytes)?) as usize;
        let cell = bytes
            .split_off(..len)
            .filter(|cell| OverflowCell::parse(cell).is_ok())
            .ok_or_else(bad)?;
        if !prefix.covers(&key) || commit >= replaced_by {
            return Err(bad());
        }
        let stored = Stored::Overflow(Arc::from(cell));
        replaced
            .push(ReplacedValue { buffered: BufferedChange { key, stored, commit }, replaced_by });
    }
    if bytes.is_empty() { Ok((buffered, replaced)) } else { Err(bad()) }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N]> {
    bytes.split_off(..N).and_then(|taken| taken.first_chunk().copied()).ok_or_else(bad)
}

fn bad() -> Error {
    Error::Buffered
}
