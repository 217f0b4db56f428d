//! Lanes of x86-64: AVX2 (8 messages) and AVX-512 (16).
//!
//! The methods of [`Lanes`] are inlined into the two `target_feature` functions at the end and
//! run nowhere else, so that the intrinsics become single instructions there.
#![expect(
    clippy::inline_always,
    reason = "the lanes' methods must become part of their target_feature callers"
)]

use core::arch::x86_64::{
    __m256i, __m512i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi32,
    _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_xor_si256, _mm512_add_epi32,
    _mm512_loadu_si512, _mm512_ror_epi32, _mm512_set1_epi32, _mm512_storeu_si512, _mm512_xor_si512,
};

use super::kernel::{Lanes, short_lanes};

/// The feature is known at compile time, or detected where there is an operating system.
macro_rules! detected {
    ($feature:tt) => {{
        #[cfg(feature = "std")]
        let found = std::arch::is_x86_feature_detected!($feature);
        #[cfg(not(feature = "std"))]
        let found = cfg!(target_feature = $feature);
        found
    }};
}

#[inline]
pub(super) fn has_avx2() -> bool {
    detected!("avx2")
}

#[inline]
pub(super) fn has_avx512() -> bool {
    detected!("avx512f")
}

/// The kernel with 8 lanes.
#[target_feature(enable = "avx2")]
pub(super) fn short_avx2<const BYTES: usize>(
    messages: &[[u8; BYTES]],
    lens: &[u8],
    out: &mut [[u8; 32]],
) {
    short_lanes::<8, BYTES, Wide8>(messages, lens, out);
}

/// The kernel with 16 lanes.
#[target_feature(enable = "avx512f")]
pub(super) fn short_avx512<const BYTES: usize>(
    messages: &[[u8; BYTES]],
    lens: &[u8],
    out: &mut [[u8; 32]],
) {
    short_lanes::<16, BYTES, Wide16>(messages, lens, out);
}

/// Eight words. Private: made only below [`short_avx2`].
#[derive(Clone, Copy)]
struct Wide8(__m256i);

impl Lanes<8> for Wide8 {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: only reached from `short_avx2`, whose caller has checked for AVX2.
        Self(unsafe { _mm256_set1_epi32(word.cast_signed()) })
    }

    #[inline(always)]
    fn load(words: &[u32; 8]) -> Self {
        // SAFETY: 32 readable bytes, any alignment; AVX2 as above.
        Self(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self) -> [u32; 8] {
        let mut words = [0; 8];
        // SAFETY: 32 writable bytes, any alignment; AVX2 as above.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) };
        words
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: AVX2 as above.
        Self(unsafe { _mm256_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: AVX2 as above.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn rotate_right<const BITS: i32, const REST: i32>(self) -> Self {
        // SAFETY: AVX2 as above.
        let low = unsafe { _mm256_srli_epi32::<BITS>(self.0) };
        // SAFETY: AVX2 as above.
        let high = unsafe { _mm256_slli_epi32::<REST>(self.0) };
        // SAFETY: AVX2 as above.
        Self(unsafe { _mm256_or_si256(low, high) })
    }
}

/// Sixteen words. Private: made only below [`short_avx512`].
#[derive(Clone, Copy)]
struct Wide16(__m512i);

impl Lanes<16> for Wide16 {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: only reached from `short_avx512`, whose caller has checked for AVX-512 F.
        Self(unsafe { _mm512_set1_epi32(word.cast_signed()) })
    }

    #[inline(always)]
    fn load(words: &[u32; 16]) -> Self {
        // SAFETY: 64 readable bytes, any alignment; AVX-512 F as above.
        Self(unsafe { _mm512_loadu_si512(words.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self) -> [u32; 16] {
        let mut words = [0; 16];
        // SAFETY: 64 writable bytes, any alignment; AVX-512 F as above.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self.0) };
        words
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: AVX-512 F as above.
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: AVX-512 F as above.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn rotate_right<const BITS: i32, const REST: i32>(self) -> Self {
        // SAFETY: AVX-512 F as above.
        Self(unsafe { _mm512_ror_epi32::<BITS>(self.0) })
    }
}

#[cfg(test)]
pub(super) mod tests {
    //! What this processor can run, for the lane tests of the parent.

    use alloc::vec::Vec;

    use super::super::tests::Kernel;

    /// Each kernel that the processor has.
    pub(in super::super) fn kernels<const BYTES: usize>() -> Vec<Kernel<BYTES>> {
        let mut all: Vec<Kernel<BYTES>> = Vec::new();
        if super::has_avx2() {
            // SAFETY: just checked.
            all.push(|blocks, lens, out| unsafe { super::short_avx2(blocks, lens, out) });
        }
        if super::has_avx512() {
            // SAFETY: just checked.
            all.push(|blocks, lens, out| unsafe { super::short_avx512(blocks, lens, out) });
        }
        all
    }
}
