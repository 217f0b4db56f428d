//! Verifiers of Pleach's proofs and witnesses for WebAssembly.
//!
//! The module has no imports, so any runtime can load it. Its functions ([`exports`]) take a *request* in memory, the
//! roots, keys and the proof one after the other, and return a *reply*; [`requests`] has the formats. `pleach.js` wraps
//! the functions for JavaScript. On other targets this is a plain library, which the tests call.
#![cfg_attr(target_family = "wasm", no_std)]

extern crate alloc;

pub mod exports;
pub mod requests;
