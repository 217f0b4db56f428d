//! The C interface of Pleach.
//!
//! Errors: a function that can fail returns NULL, or an error that the caller frees (`pleach_error_free`). After an
//! error nothing is written to results. A NULL pointer, a bad length or a handle of another kind gives
//! `PLEACH_ARGUMENT`, unless the function says that NULL has a meaning, and a spent handle `PLEACH_SPENT`; a panic inside of
//! the library gives `PLEACH_PANIC`. Compilers warn where nobody looks at the error that a function returns.
//!
//! Ownership: the caller frees each handle once, by the function `_free` of its type, whatever became of it. NULL is
//! allowed there, and a handle of another kind stays as it is. Handles may be freed in any order. A `pleach_bytes` that a
//! function fills belongs to the caller, who frees it by `pleach_bytes_free`: start with `{0}`, which may be freed, too.
//! What the caller passes in is copied, and stays the caller's; no other thread changes it during the call.
//!
//! Spent handles: a block that was committed, a block that became an overlay, and a session or load that was finished are
//! spent.
//! They still have to be freed. When the call fails, they are as they were before it, and the call can be repeated.
//!
//! Threads: handles move between threads, and all functions may be called from any number of threads at the same time,
//! on the same handle, too, with two exceptions: the `_free` of a handle comes after its last use, and a
//! `pleach_pair` or `pleach_pairs` is overwritten by the next move of its cursor. Calls that change a handle (a batch, a cursor, a finish,
//! a commit of a block) wait for each other. There is no global
//! state but the function of `pleach_log` and the histograms of `pleach_metrics`. After a `fork` the child opens the database itself.
//!
//! Keys, roots and hashes have 32 bytes. A pointer to `n` keys points to 32 * n bytes. Pointers are aligned as C aligns
//! their types; results of one call do not overlap each other or its arguments.
#![expect(unsafe_code, reason = "the interface of a C library: pointers come from the caller")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the rules above, which are in pleach.h, hold for all functions"
)]

mod batch;
mod block;
mod bytes;
mod cursor;
mod db;
mod error;
mod handle;
mod histograms;
mod load;
mod session;
mod verify;
mod watch;

pub use batch::*;
pub use block::*;
pub use bytes::*;
pub use cursor::*;
pub use db::*;
pub use error::*;
pub use handle::*;
pub use load::*;
pub use session::*;
pub use verify::*;
pub use watch::*;
