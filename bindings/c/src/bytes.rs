//! Bytes that C owns, without a copy of what the engine gives.

use std::ffi::c_char;
use std::ptr;

use pleach::{Value, Witness};

use crate::error::free;

/// Bytes that the caller owns. `data` is NULL where there are none: a key without a value, a witness that was not
/// made. An empty value has another `data`, and `len` 0.
#[repr(C)]
pub struct PleachBytes {
    /// The bytes, until they are freed.
    pub data: *const u8,
    /// How many they are.
    pub len: usize,
    /// For `pleach_bytes_free` alone.
    pub owner: *mut Owner,
}

/// The owner of the memory of bytes.
pub enum Owner {
    /// A value, which may lie in here or be shared.
    Value(Value),
    /// A proof, or text.
    Vec(Vec<u8>),
    /// A witness, whose memory the database uses again.
    Witness(Witness),
}

impl PleachBytes {
    /// The owner is at its final address before a pointer into it is made.
    pub(crate) fn new(owner: Option<Owner>) -> Self {
        let Some(owner) = owner.map(|owner| Box::into_raw(Box::new(owner))) else {
            return Self { data: ptr::null(), len: 0, owner: ptr::null_mut() };
        };
        // SAFETY: it was just made, and only `pleach_bytes_free` frees it.
        let bytes: &[u8] = match unsafe { &*owner } {
            Owner::Value(value) => value,
            Owner::Vec(bytes) => bytes,
            Owner::Witness(witness) => witness,
        };
        Self { data: bytes.as_ptr(), len: bytes.len(), owner }
    }

    pub(crate) fn of(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(Some(Owner::Vec(bytes.into())))
    }
}

/// Frees bytes, and makes the struct one without bytes, which may be freed again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_bytes_free(bytes: Option<&mut PleachBytes>) {
    let owner = bytes.map(|bytes| std::mem::replace(bytes, PleachBytes::new(None)).owner);
    if let Some(owner) = owner.filter(|owner| !owner.is_null()) {
        // SAFETY: the caller's duty: what a function has filled, and nobody has changed or copied and freed.
        free(unsafe { Box::from_raw(owner) });
    }
}

/// The version of the library, such as "0.1.0". It lives as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
