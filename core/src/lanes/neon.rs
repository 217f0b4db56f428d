//! Lanes of arm64: NEON (4 messages), where it is part of the target, as on all with an operating system.
#![expect(
    clippy::inline_always,
    reason = "the lanes' methods must become part of the kernel, as those of x86-64"
)]

use core::arch::aarch64::{
    uint32x4_t, vaddq_u32, vdupq_n_u32, veorq_u32, vld1q_u32, vreinterpretq_u16_u32,
    vreinterpretq_u32_u16, vrev32q_u16, vshlq_n_u32, vsriq_n_u32, vst1q_u32,
};

use super::kernel::Lanes;

/// Four words.
#[derive(Clone, Copy)]
pub(super) struct Wide4(uint32x4_t);

impl Lanes<4> for Wide4 {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        // SAFETY: the target has NEON, else this module is not compiled.
        Self(unsafe { vdupq_n_u32(word) })
    }

    #[inline(always)]
    fn load(words: &[u32; 4]) -> Self {
        // SAFETY: 16 readable bytes, any alignment; NEON as above.
        Self(unsafe { vld1q_u32(words.as_ptr()) })
    }

    #[inline(always)]
    fn store(self) -> [u32; 4] {
        let mut words = [0; 4];
        // SAFETY: 16 writable bytes, any alignment; NEON as above.
        unsafe { vst1q_u32(words.as_mut_ptr(), self.0) };
        words
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: NEON as above.
        Self(unsafe { vaddq_u32(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: NEON as above.
        Self(unsafe { veorq_u32(self.0, other.0) })
    }

    #[inline(always)]
    fn rotate_right<const BITS: i32, const REST: i32>(self) -> Self {
        // SAFETY: NEON as above.
        Self(unsafe { rotate::<BITS, REST>(self.0) })
    }
}

/// There is no such instruction, but 16 bits are an exchange of halves, and else the second shift keeps the first one's bits.
#[inline]
#[target_feature(enable = "neon")]
fn rotate<const BITS: i32, const REST: i32>(words: uint32x4_t) -> uint32x4_t {
    if BITS == 16 {
        return vreinterpretq_u32_u16(vrev32q_u16(vreinterpretq_u16_u32(words)));
    }
    vsriq_n_u32::<BITS>(vshlq_n_u32::<REST>(words), words)
}
