//! The buffered changes of an image, region by region, as one stream of bytes.
//!
//! ```text
//! region:   prefix length 2 | prefix 32 | number of changes 4 | number of replaced values 4
//! change:   key 32 | commit 8 | kind 1 (0 absent, 1 inline, 2 overflow cell) | length 4 | bytes
//! replaced: key 32 | commit 8 | commit that replaced it 8 | length 4 | overflow cell
//! ```

use std::sync::Arc;

use pleach_beatree::region::{BufferedChange, ReplacedValue};
use pleach_beatree::{RegionState, Stored, Value};
use pleach_core::page::overflow::OverflowCell;
use pleach_core::{Hasher, Prefix};

use super::image_error::{ImageError, Result};

const ABSENT: u8 = 0;
const INLINE: u8 = 1;
const OVERFLOW: u8 = 2;

/// Appends the buffered changes of a region; nothing when there are none.
///
/// # Panics
/// When a region has 2^32 changes, or a replaced value that is short.
pub fn encode(out: &mut Vec<u8>, region: &Prefix, state: &RegionState) {
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

/// A region's prefix, buffered changes and replaced values.
type RegionBuffered = (Prefix, Vec<BufferedChange>, Vec<ReplacedValue>);

/// Decodes buffered changes, region by region.
pub fn decode(hasher: Hasher, mut bytes: &[u8]) -> Result<Vec<RegionBuffered>> {
    let mut regions = Vec::new();
    while !bytes.is_empty() {
        let len = u16::from_le_bytes(take(&mut bytes)?);
        let prefix = Prefix::from_raw(take(&mut bytes)?, len).ok_or_else(bad)?;
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
                OVERFLOW if OverflowCell::parse(value).is_ok() => {
                    Stored::Overflow(Arc::from(value))
                }
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
            replaced.push(ReplacedValue {
                buffered: BufferedChange { key, stored, commit },
                replaced_by,
            });
        }
        regions.push((prefix, buffered, replaced));
    }
    Ok(regions)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N]> {
    bytes.split_off(..N).and_then(|taken| taken.first_chunk().copied()).ok_or_else(bad)
}

fn bad() -> ImageError {
    ImageError::Buffered
}
