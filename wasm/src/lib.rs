//! Verifiers of Pleach's proofs and witnesses for WebAssembly.
//!
//! The module has no imports, so any runtime can load it. Its functions ([`exports`]) take a *request* in memory, the
//! roots, keys and the proof one after the other, and give a *reply*; [`requests`] says what is in them. `pleach.js` wraps
//! them for JavaScript. On other targets this is a plain library, which the tests call.
#![cfg_attr(target_family = "wasm", no_std)]

extern crate alloc;

pub mod exports;
pub mod requests;
