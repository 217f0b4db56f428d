//! The functions of the WebAssembly module: plain numbers, and memory by pointer and length.
//!
//! The caller allocates a request by [`alloc()`], writes it, and calls a function with the number of the hash function
//! (1 BLAKE3, 2 SHA-256), the request's address and its length. The function returns the reply's address: the length of
//! what follows (4 bytes, little-endian), 1 for an answer or 0 for a refusal, and the answer ([`requests`]) or the
//! reason as UTF-8. Request and reply are then freed by [`free`], the reply with the length and 4 more.
#![expect(unsafe_code, reason = "the caller's memory comes as pointer and length")]

use alloc::{boxed::Box, string::String, vec::Vec};
use core::{ptr, slice};

use pleach_core::Hasher;

use crate::requests::{self, Answer};

#[cfg(target_family = "wasm")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// A panic ends the call with a trap, which the runtime reports.
#[cfg(target_family = "wasm")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

/// Memory for a request of `len` bytes, all zero; null when there is not so much.
#[cfg_attr(target_family = "wasm", unsafe(no_mangle))]
pub extern "C" fn alloc(len: usize) -> *mut u8 {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(len).is_err() {
        return ptr::null_mut();
    }
    bytes.resize(len, 0);
    given(bytes)
}

/// Hands bytes to the caller, until [`free`]. The element stays a byte, since `free` counts bytes.
fn given(bytes: Vec<u8>) -> *mut u8 {
    Box::into_raw(bytes.into_boxed_slice()).cast()
}

/// Frees a request or a reply.
///
/// # Safety
/// `at` comes from [`alloc()`] with this length, or is a reply with this length, and is freed once.
#[cfg_attr(target_family = "wasm", unsafe(no_mangle))]
pub unsafe extern "C" fn free(at: *mut u8, len: usize) {
    // SAFETY: the caller's duty: a boxed slice of this length, which is nobody else's.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(at, len)) });
}

/// # Safety
/// `at` comes from [`alloc()`] with this length and is not freed yet.
unsafe fn reply(
    verify: fn(Hasher, &[u8]) -> Answer,
    hasher: u32,
    at: *const u8,
    len: usize,
) -> *mut u8 {
    // SAFETY: the caller's duty: so many bytes, which nobody writes during the call.
    let request = unsafe { slice::from_raw_parts(at, len) };
    let known = u8::try_from(hasher).ok().and_then(Hasher::of_id);
    let answer = known
        .ok_or_else(|| String::from("unknown hash function"))
        .and_then(|hasher| verify(hasher, request));
    let held = answer.is_ok();
    let body = answer.unwrap_or_else(String::into_bytes);
    // Never so in the 32 bits of WebAssembly's memory.
    let Ok(len) = u32::try_from(body.len().saturating_add(1)) else { return ptr::null_mut() };
    given([len.to_le_bytes().as_slice(), &[u8::from(held)], &body].concat())
}

macro_rules! exported {
    ($($name:ident)*) => {$(
        #[doc = concat!("[`requests::", stringify!($name), "`].")]
        ///
        /// # Safety
        /// `at` comes from [`alloc()`] with this length and is not freed yet.
        #[cfg_attr(target_family = "wasm", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(hasher: u32, at: *const u8, len: usize) -> *mut u8 {
            // SAFETY: the caller's duty is the same.
            unsafe { reply(requests::$name, hasher, at, len) }
        }
    )*};
}

exported! {
    verify_key verify_keys verify_range verify_change verify_witness open_namespace open_namespace_change hash
}
