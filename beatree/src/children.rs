//! The children of one region: the prefixes of its leaf pages, and where these pages are.
//!
//! Invariant: the children tile the region's prefix in order, without gaps. So a child ends where the next one begins,
//! and its depth follows. A child's start is kept as the 32 bits after the region's prefix (12 bytes a leaf page in
//! all); a region with a child whose prefix is longer than that keeps whole prefixes, too.
//!
//! ```
//! use pleach_beatree::{ChildRef, ChildTable, PageNo};
//! use pleach_core::prefix::Prefix;
//!
//! let (left, right) = (Prefix::ROOT.child(false), Prefix::ROOT.child(true));
//! let children = ChildTable::new(
//!     Prefix::ROOT,
//!     &[
//!         ChildRef { prefix: left, page: Some(PageNo::new(5)), tag: 0xfeed },
//!         ChildRef { prefix: right, page: None, tag: 0 },
//!     ],
//! );
//! let child = children.find(&[0x13; 32]);
//! assert_eq!((child, children.prefix(child)), (0, left));
//! assert_eq!((children.page(child), children.tag(child)), (Some(PageNo::new(5)), 0xfeed));
//! assert_eq!(children.page(children.find(&[0xff; 32])), None);
//! ```

use std::ops::Range;

use pleach_core::Key;
use pleach_core::cpu_prefetch;
use pleach_core::prefix::{Prefix, bits_after, common_len};
use pleach_core::search::{guess, lower_bound_bits, partition};

use crate::page_no::PageNo;

/// One child of a region, as its parent names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildRef {
    /// The child's prefix.
    pub prefix: Prefix,
    /// The child's page in the leaf file; `None` for a prefix without one.
    pub page: Option<PageNo>,
    /// The tag that this page must have; 0 without a page.
    pub tag: u32,
}

/// A child as it is kept: what a lookup reads is in one cache line.
#[derive(Clone, Copy, Debug)]
struct Child {
    /// The 32 bits of its first key after the region's prefix.
    start: u32,
    /// A packed [`PageNo`], or none.
    page: u32,
    tag: u32,
}

/// The children of a region. A flush moves single ones, or replaces all when prefixes change.
#[derive(Clone, Debug)]
pub struct ChildTable {
    region: Prefix,
    children: Box<[Child]>,
    /// Prefixes, when 32 bits do not distinguish the children.
    whole: Option<Box<[Prefix]>>,
}

impl ChildTable {
    /// The children of `region`.
    ///
    /// # Panics
    /// When the children do not tile the region.
    pub fn new(region: Prefix, children: &[ChildRef]) -> Self {
        assert_tiling(&region, children);
        let short = children.iter().all(|child| child.prefix.len() <= region.len() + 32);
        let whole = (!short).then(|| children.iter().map(|child| child.prefix).collect());
        let pack = |child: &ChildRef| Child {
            start: bits_after(child.prefix.first_key(), region.len()),
            page: PageNo::pack(child.page),
            tag: child.tag,
        };
        Self { region, children: children.iter().map(pack).collect(), whole }
    }

    /// No children: those of a region that is away.
    pub(crate) fn none(region: Prefix) -> Self {
        Self { region, children: Box::default(), whole: None }
    }

    /// The region's own prefix.
    pub fn region(&self) -> &Prefix {
        &self.region
    }

    /// Number of children, at least 1 but in a region that is away.
    #[expect(clippy::len_without_is_empty, reason = "a region in memory has at least one child")]
    pub fn len(&self) -> usize {
        self.children.len()
    }

    /// Index of the child that covers `key`, which lies in the region.
    #[inline]
    pub fn find(&self, key: &Key) -> usize {
        debug_assert!(self.region.covers(key));
        let after = match &self.whole {
            None => {
                let wanted = bits_after(key, self.region.len());
                lower_bound_bits(wanted, self.len(), |at| self.children[at].start <= wanted)
            }
            Some(prefixes) => prefixes.partition_point(|prefix| prefix.first_key() <= key),
        };
        after - 1
    }

    /// True when this range, which is in the region, is that of one or more whole children.
    pub fn has_boundaries_of(&self, range: &Prefix) -> bool {
        let [first, last] = [*range.first_key(), range.last_key()].map(|key| self.find(&key));
        self.prefix(first).first_key() == range.first_key()
            && self.prefix(last).last_key() == range.last_key()
    }

    /// Prefetches the memory where [`ChildTable::find`] looks first.
    #[inline]
    pub fn cpu_prefetch(&self, key: &Key) {
        let guess = guess(bits_after(key, self.region.len()), self.len());
        // The guess is a few children off as often as not.
        let near = guess.saturating_sub(3)..(guess + 4).min(self.len());
        cpu_prefetch(&self.children[near]);
    }

    /// The prefix of a child.
    ///
    /// # Panics
    /// When there is no such child.
    pub fn prefix(&self, index: usize) -> Prefix {
        if let Some(prefixes) = &self.whole {
            return prefixes[index];
        }
        let start = self.children[index].start;
        // Of the next child; behind the last one it would be 2^32.
        let end = self.children.get(index + 1).map_or(0, |next| next.start);
        let below = match end.wrapping_sub(start) {
            0 => 32,
            keys => keys.trailing_zeros(),
        };
        let depth = self.region.len() + 32 - u16::try_from(below).expect("at most 32");
        Prefix::new(&with_bits(&self.region, start), depth)
    }

    /// The number of bits that the children on the two sides of a boundary share. Boundary 0 is between children 0 and
    /// 1.
    ///
    /// # Panics
    /// When there is no such boundary.
    #[inline]
    pub fn shared_bits_at(&self, boundary: usize) -> u16 {
        if let Some(prefixes) = &self.whole {
            return common_len(prefixes[boundary].first_key(), prefixes[boundary + 1].first_key());
        }
        let zeros = self.children[boundary + 1].start.trailing_zeros();
        self.region.len() + 31 - u16::try_from(zeros).expect("at most 31")
    }

    /// The same of all boundaries, in order.
    pub fn shared_bits(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.len() - 1).map(|boundary| self.shared_bits_at(boundary))
    }

    /// Index of the first child in the right half of a position, `level` bits below the region, that the `children` are
    /// below. None of them is the position itself.
    pub fn split(&self, level: u8, children: Range<usize>) -> usize {
        debug_assert!(level < 32);
        let is_left = |at: usize| self.children[at].start >> (31 - level) & 1 == 0;
        partition(children.start, children.end, is_left)
    }

    /// A child's page; `None` when it has none.
    #[inline]
    pub fn page(&self, index: usize) -> Option<PageNo> {
        PageNo::unpack(self.children[index].page)
    }

    /// The tag of a child's page.
    #[inline]
    pub fn tag(&self, index: usize) -> u32 {
        self.children[index].tag
    }

    /// Sets a child's page and tag.
    pub(crate) fn set_page(&mut self, index: usize, page: Option<PageNo>, tag: u32) {
        let child = &mut self.children[index];
        (child.page, child.tag) = (PageNo::pack(page), tag);
    }

    /// A child with prefix, page and tag.
    pub fn get(&self, index: usize) -> ChildRef {
        ChildRef { prefix: self.prefix(index), page: self.page(index), tag: self.tag(index) }
    }

    /// One more than the highest page number of all children.
    pub fn page_end(&self) -> u32 {
        (0..self.len())
            .filter_map(|child| self.page(child))
            .map(|page| page.get() + 1)
            .max()
            .unwrap_or(0)
    }

    /// All children in order.
    pub fn iter(&self) -> impl Iterator<Item = ChildRef> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Bytes outside of the struct, for the budget.
    pub fn heap_bytes(&self) -> usize {
        let whole = self.whole.as_ref().map_or(0, |prefixes| size_of_val(&**prefixes));
        self.len() * size_of::<Child>() + whole
    }
}

fn assert_tiling(region: &Prefix, children: &[ChildRef]) {
    let mut next = Some(*region.first_key());
    for child in children {
        assert!(
            region.contains(&child.prefix),
            "{:?} lies outside the region {region:?}",
            child.prefix
        );
        assert_eq!(next.as_ref(), Some(child.prefix.first_key()), "children tile {region:?}");
        next = child.prefix.next().map(|next| *next.first_key());
    }
    let end = region.next().map(|next| *next.first_key());
    assert_eq!(next, end, "children tile {region:?} to its end");
}

/// The region's first key with `bits` after its prefix.
fn with_bits(region: &Prefix, bits: u32) -> Key {
    let mut key = *region.first_key();
    let byte = usize::from(region.len() / 8);
    let window = ((u64::from(bits) << 32) >> (region.len() % 8)).to_be_bytes();
    for (to, from) in key[byte.min(32)..].iter_mut().zip(window) {
        *to |= from;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(prefix: Prefix, depth: u16, out: &mut Vec<ChildRef>) {
        // A lopsided tiling: always deeper on the right.
        if prefix.len() == depth {
            out.push(ChildRef { prefix, page: Some(PageNo::new(7)), tag: 9 });
            return;
        }
        out.push(ChildRef { prefix: prefix.child(false), page: None, tag: 0 });
        split(prefix.child(true), depth, out);
    }

    #[test]
    fn children_are_found_and_rebuilt_at_every_offset() {
        for (from, to) in [
            (0, 5),
            (3, 20),
            (7, 39),
            (13, 60),
            (200, 230),
            (216, 255),
            (240, 255),
            (0, 255),
            (9, 9),
        ] {
            let region = Prefix::new(&[0xa7; 32], from);
            let mut children = Vec::new();
            split(region, to, &mut children);
            let table = ChildTable::new(region, &children);
            assert_eq!(table.iter().collect::<Vec<_>>(), children);
            let shared = children
                .windows(2)
                .map(|two| common_len(two[0].prefix.first_key(), two[1].prefix.first_key()));
            assert!(table.shared_bits().eq(shared));
            for (index, child) in children.iter().enumerate() {
                assert_eq!(table.find(child.prefix.first_key()), index);
                assert_eq!(table.find(&child.prefix.last_key()), index);
            }
        }
    }

    #[test]
    #[should_panic(expected = "tile")]
    fn a_gap_is_refused() {
        let right = Prefix::ROOT.child(true);
        drop(ChildTable::new(Prefix::ROOT, &[ChildRef { prefix: right, page: None, tag: 0 }]));
    }
}
