//! The device under Pleach.
//!
//! [`Device`] is a folder of files on one device; [`Queue`] is an asynchronous submission queue
//! on it. Implementations: io_uring and a blocking pool ([`os`]), and, with feature `sim`, a
//! simulated disk. [`Runtime`] is the only source of threads, time and randomness.
//! `docs/io.md` is the design page.

pub mod buffer;
pub mod device;
pub mod error;
pub mod os;
mod page;
pub mod pool;
pub mod runtime;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod slab;
pub mod threads;

pub use buffer::PageBuf;
pub use device::{Completion, Device, DeviceInfo, LockMode, OpenMode, Queue, Request, Transfer};
pub use error::{IoError, Operation};
pub use os::{IoMode, OsDevice, OsFile, OsOptions, OsQueue};
pub use page::PAGE;
pub use pool::PagePool;
pub use runtime::{Event, Runtime, Step};
pub use threads::Threads;
