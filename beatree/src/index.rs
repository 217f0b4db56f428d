//! All regions of the key space in order, immutable and published whole.
//!
//! A split or a join of regions makes a new index ([`crate::split_regions`]) and publishes it in place of the old one; both
//! share the unchanged regions.
//!
//! Invariant: the regions tile the key space. A table over the leading bits makes the search a few steps long for
//! uniform keys; for others it is a binary search.
//!
//! ```
//! use std::sync::Arc;
//!
//! use pleach_beatree::{ChildRef, ChildTable, Region, RegionIndex};
//! use pleach_core::prefix::Prefix;
//! use pleach_core::{Hasher, TERMINATOR};
//!
//! // Two regions, each with one child that has no page.
//! let region = |prefix| {
//!     let children = ChildTable::new(prefix, &[ChildRef { prefix, page: None, tag: 0 }]);
//!     Arc::new(Region::new(Hasher::BLAKE3, 0, children, vec![TERMINATOR], 0))
//! };
//! let halves = [false, true].map(|right| region(Prefix::ROOT.child(right)));
//! let index = RegionIndex::new(halves.to_vec());
//! assert_eq!(index.find(&[0x7f; 32]), 0);
//! assert!(Arc::ptr_eq(index.region(&[0x80; 32]), &halves[1]));
//! ```

use std::sync::Arc;

use pleach_core::Key;

use crate::region::Region;

/// All regions of one namespace.
#[derive(Clone, Debug)]
pub struct RegionIndex {
    regions: Vec<Arc<Region>>,
    /// First 64 bits of each region's first key.
    starts: Vec<u64>,
    /// `jump[b]`: the last region that starts at or before the keys whose leading bits are `b`.
    jump: Vec<u32>,
    shift: u32,
}

impl RegionIndex {
    /// The index over these regions.
    ///
    /// # Panics
    /// When the regions do not tile the key space in order.
    pub fn new(regions: Vec<Arc<Region>>) -> Self {
        let mut next = Some([0u8; 32]);
        for region in &regions {
            assert_eq!(
                next.as_ref(),
                Some(region.prefix().first_key()),
                "regions tile the key space"
            );
            next = region.prefix().next().map(|prefix| *prefix.first_key());
        }
        assert!(next.is_none(), "regions tile the key space to its end");
        let starts: Vec<u64> =
            regions.iter().map(|region| leading(region.prefix().first_key())).collect();
        let bits = starts.len().next_power_of_two().trailing_zeros().clamp(1, 24);
        let shift = 64 - bits;
        let jump = (0..1u64 << bits)
            .map(|slot| {
                let after = starts.partition_point(|start| *start <= slot << shift);
                u32::try_from(after - 1).expect("fewer than 2^32 regions")
            })
            .collect();
        Self { regions, starts, jump, shift }
    }

    /// The regions in key order.
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// Index of the region that covers a key.
    ///
    /// # Panics
    /// Never: regions tile the key space.
    #[inline]
    pub fn find(&self, key: &Key) -> usize {
        let wanted = leading(key);
        let slot = usize::try_from(wanted >> self.shift).expect("at most 24 bits");
        let from = self.jump[slot] as usize;
        let to = self.jump.get(slot + 1).map_or(self.regions.len(), |next| *next as usize + 1);
        let mut at = from + self.starts[from..to].partition_point(|start| *start <= wanted) - 1;
        // Only regions with prefixes longer than 64 bits share their leading bits and are compared.
        while self.starts[at] == wanted && !self.regions[at].prefix().covers(key) {
            at -= 1;
        }
        debug_assert!(self.regions[at].prefix().covers(key));
        at
    }

    /// The region that covers a key.
    #[inline]
    pub fn region(&self, key: &Key) -> &Arc<Region> {
        &self.regions[self.find(key)]
    }

    /// True when there is no page, no buffered change and no replaced value.
    pub fn is_bare(&self) -> bool {
        self.regions.iter().all(|region| region.read().is_bare())
    }

    /// Bytes of this table and of every region's child table, counts and nodes, without lines and buffered changes.
    pub fn bytes(&self) -> usize {
        let table = self.regions.len() * 16 + self.jump.len() * 4;
        self.regions.iter().fold(table, |sum, region| sum + region.bytes())
    }
}

#[inline]
fn leading(key: &Key) -> u64 {
    u64::from_be_bytes(*key.first_chunk().expect("32 bytes"))
}
