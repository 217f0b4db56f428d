//! Huge pages for memory that is read at random.
//!
//! A read of cold memory first waits for the translation of its address. On a virtual machine that takes as long as the
//! read itself. Memory in huge pages needs 512 times fewer translations, which mostly stay cached. Most systems give
//! huge pages only on request.
#![expect(unsafe_code, reason = "advice to the kernel")]

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use zerocopy::FromZeros;

/// Bytes of a huge page, and its alignment.
pub const HUGE_PAGE: usize = 2 << 20;

/// Not in the crate `libc` for musl; the same on all architectures (include/uapi/asm-generic/mman-common.h of Linux).
const MADV_COLLAPSE: i32 = 25;

/// A list of this many zero words, in huge pages where the kernel has some. Their memory comes when it is first
/// written.
///
/// # Panics
/// When there is no memory.
pub fn zeroed(words: usize) -> Vec<AtomicU64> {
    let words = AtomicU64::new_vec_zeroed(words).expect("memory");
    let addresses = words.as_ptr_range();
    let start = addresses.start.addr().next_multiple_of(HUGE_PAGE);
    if start < addresses.end.addr() {
        madvise(start..addresses.end.addr(), libc::MADV_HUGEPAGE);
    }
    words
}

/// Moves the memory around an address into the huge page of that address. The memory's contents and addresses stay,
/// only its next access is slower; untouched memory takes room from then on. True when it is in a huge page; kernels
/// before Linux 6.1 and those without a free huge page change nothing.
///
/// Blocks for as long as copying the memory takes, and until each processor has done a little work for it.
pub fn collapse_around(address: usize) -> bool {
    let start = address / HUGE_PAGE * HUGE_PAGE;
    madvise(start..start + HUGE_PAGE, MADV_COLLAPSE)
}

fn madvise(addresses: Range<usize>, advice: i32) -> bool {
    let start = std::ptr::without_provenance_mut(addresses.start);
    // SAFETY: both kinds of advice change what backs the addresses, and not what they hold.
    unsafe { libc::madvise(start, addresses.len(), advice) == 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn memory_that_moves_into_a_huge_page_is_as_it_was() {
        let written = || (0..=250_u8).cycle().take(4 * HUGE_PAGE);
        let bytes: Vec<u8> = written().collect();
        let start = bytes.as_ptr().addr().next_multiple_of(HUGE_PAGE);
        // A free huge page is not certain.
        let moved = [start + HUGE_PAGE + 9, start + 7, start].map(collapse_around);
        println!("moved: {moved:?}");
        assert!(bytes.into_iter().eq(written()));
    }

    #[test]
    fn addresses_without_memory_are_refused() {
        assert!(!collapse_around(HUGE_PAGE));
    }

    #[test]
    fn words_are_zero() {
        for count in [0, 1, HUGE_PAGE / 2] {
            let words = zeroed(count);
            assert_eq!(words.len(), count);
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        }
    }
}
