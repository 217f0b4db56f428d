//! A hint to the processor. (Reading pages before they are needed is the engine's prefetch.)
#![cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "the prefetch instruction is an intrinsic, or written as it is")
)]

/// Bytes of a cache line; some processors of arm64 have larger ones.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const LINE: usize = 64;

/// Prefetches the cache lines of values that will be read soon. Does nothing on processors without such an instruction.
///
/// ```
/// let keys = vec![[0u8; 32]; 100];
/// pleach_core::cpu_prefetch(&keys[50..52]);
/// ```
#[inline]
pub fn cpu_prefetch<T>(values: &[T]) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let start = values.as_ptr().cast::<i8>();
        // From the line of the first byte to that of the last.
        let before = start.addr() % LINE;
        for at in (0..before + size_of_val(values)).step_by(LINE) {
            let line = start.wrapping_sub(before).wrapping_add(at);
            prefetch_line(line);
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = values;
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch_line(line: *const i8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    // SAFETY: SSE is part of x86-64, and a prefetch neither faults nor changes memory, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
}

/// The intrinsic is not stable.
#[cfg(target_arch = "aarch64")]
#[inline]
fn prefetch_line(line: *const i8) {
    // SAFETY: a prefetch neither faults nor changes memory or flags, whatever the address.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{line}]",
            line = in(reg) line.addr(),
            options(nomem, nostack, preserves_flags)
        );
    }
}
