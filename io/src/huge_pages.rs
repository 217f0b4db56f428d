//! Huge pages for memory that is read at random.
//!
//! A read of cold memory first waits for the translation of its address. On a virtual machine that takes as long as the
//! read itself. Memory in huge pages needs 512 times fewer translations, so that the processor has them at hand. Most systems
//! give huge pages only to those who ask.
#![expect(unsafe_code, reason = "advice to the kernel")]

use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of a huge page, and its alignment.
pub const HUGE_PAGE: usize = 2 << 20;

/// Asks for huge pages where a range of addresses, which nobody has touched yet, will be touched. Says whether the kernel
/// agrees.
pub fn advise(addresses: Range<usize>) -> bool {
    let start = addresses.start.next_multiple_of(HUGE_PAGE);
    start >= addresses.end || madvise(start..addresses.end, libc::MADV_HUGEPAGE)
}

/// Moves the memory around some addresses into huge pages: of each the huge page that it lies in. Whoever owns memory there
/// notices nothing but the time of its next access; memory that nobody has touched takes room from then on. Says whether all
/// of it is in huge pages; kernels before Linux 6.1 and those that have no free ones leave it as it is.
///
/// Blocks for as long as copying the memory takes, and for each stretch of neighbours until each processor has done a little
/// work for it.
pub fn collapse_around(addresses: impl IntoIterator<Item = usize>) -> bool {
    let blocks = addresses.into_iter().map(|address| address / HUGE_PAGE * HUGE_PAGE);
    let blocks: BTreeSet<usize> = blocks.collect();
    let blocks: Vec<usize> = blocks.into_iter().collect();
    let mut stretches = blocks.chunk_by(|block, next| next - block == HUGE_PAGE);
    stretches
        .all(|blocks| madvise(blocks[0]..blocks[blocks.len() - 1] + HUGE_PAGE, libc::MADV_COLLAPSE))
}

fn madvise(addresses: Range<usize>, advice: i32) -> bool {
    let start = std::ptr::without_provenance_mut(addresses.start);
    // SAFETY: both kinds of advice change what backs the addresses, and not what they hold.
    unsafe { libc::madvise(start, addresses.len(), advice) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_moves_into_a_huge_page_is_as_it_was() {
        let written = || (0..=250_u8).cycle().take(4 * HUGE_PAGE);
        let bytes: Vec<u8> = written().collect();
        let start = bytes.as_ptr().addr().next_multiple_of(HUGE_PAGE);
        // Whether there is a free one is the system's affair.
        let moved = collapse_around([start + HUGE_PAGE + 9, start + 7, start]);
        println!("moved: {moved}");
        assert!(bytes.into_iter().eq(written()));
    }

    #[test]
    fn addresses_without_memory_are_refused() {
        assert!(!collapse_around([HUGE_PAGE]) && !advise(HUGE_PAGE..2 * HUGE_PAGE));
        assert!(advise(1..HUGE_PAGE), "no huge page begins there");
    }
}
