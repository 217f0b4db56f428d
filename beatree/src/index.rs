//! The top of the index: all regions in key order, immutable and published whole.
//!
//! Invariant: the regions tile the key space. A table over the leading bits makes the search a
//! few steps long for uniform keys; for others it is a binary search.

use std::sync::Arc;

use pleach_core::Key;

use crate::region::Region;

/// All regions of one namespace.
#[derive(Debug)]
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
                let behind = starts.partition_point(|start| *start <= slot << shift);
                u32::try_from(behind - 1).expect("fewer than 2^32 regions")
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
        // Regions cut deeper than 64 bits share their leading bits: only then they are looked at.
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

    /// Bytes of this table and of what its regions have in any case: cuts, places, counts. Without
    /// nodes, treelets and pending changes.
    pub fn bytes(&self) -> usize {
        let table = self.regions.len() * 16 + self.jump.len() * 4;
        self.regions.iter().fold(table, |sum, region| sum + region.bytes())
    }
}

#[inline]
fn leading(key: &Key) -> u64 {
    u64::from_be_bytes(*key.first_chunk().expect("32 bytes"))
}
