//! The device under Pleach: one directory of files, read and written in pages of 4 KiB.
//!
//! [`Device`] is a directory; it opens, grows and removes files, and makes single transfers on the calling thread.
//! [`Queue`] is for many transfers at once: requests are pushed, submitted together, and come back in any order, each
//! with its buffer. [`Runtime`] is the only source of threads, time and randomness. Everything above uses them as trait
//! objects ([`Disk`], [`Executor`]), so the same compiled code runs on a real disk and in a simulation that can be cut
//! off at any moment.
//!
//! # Example
//!
//! A page is written to a simulated disk, the power fails, and what survives is read back. On a
//! real directory only the first line is another: [`OsDevice::open`].
//!
//! ```
//! use pleach_io::sim::{SimDisk, SimOptions};
//! use pleach_io::{Device, OpenMode, PAGE, PageBuf};
//!
//! let disk = SimDisk::new(1, SimOptions::default());
//! let file = disk.open("data", OpenMode::CreateNew)?;
//! disk.sync_folder()?;
//!
//! let mut page = PageBuf::zeroed(1);
//! page[..5].copy_from_slice(b"hello");
//! disk.write_at(&file, &page, 1, 0)?;
//! disk.sync(&file)?;
//!
//! // Each crash point has as many outcomes as the medium has ways to lose what was not synced.
//! // At the last one nothing is pending.
//! let last = disk.trace().crash_points().last().expect("something happened");
//! for outcome in last.outcomes(1, 8) {
//!     let survivor = outcome.disk();
//!     let file = survivor.open("data", OpenMode::Read)?;
//!     let mut found = PageBuf::zeroed(1);
//!     survivor.read_at(&file, &mut found, 0)?;
//!     assert_eq!(&found[..5], b"hello");
//!     assert_eq!(survivor.len(&file)?, PAGE as u64);
//! }
//! # Ok::<(), pleach_io::IoError>(())
//! ```
//!
//! # Implementations
//!
//! * [`os`]: a directory of the operating system, over io_uring where the kernel has it and over a
//!   pool of threads with blocking calls elsewhere;
//! * [`threads`]: named threads that sleep while there is nothing to do;
//! * `sim` (a feature): disk, queue and executor in memory, every choice drawn from a seed.
//!
//! # Memory
//!
//! Transfers own their memory: a [`PageBuf`] goes into a request and comes back in its completion,
//! so that nobody can touch it while the kernel may. A [`PagePool`] recycles buffers of one size
//! and runs of them, and a ring can register the pool's memory once ([`Queue::register`]).
//!
//! # Errors
//!
//! Every failure is an [`IoError`] that names file, offset and operation. A failed sync is never
//! repeated: what it covered may be lost although a later sync succeeds. `docs/io.md` has the
//! design, `docs/testing.md` says what the simulation models.
#![warn(missing_debug_implementations)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Pleach runs on Linux alone, and what verifies proofs elsewhere is the crate pleach-core; \
     docs/stability.md, \"Windows and macOS\", says what is missing"
);

mod buffer;
mod device;
mod error;
pub mod huge_pages;
pub mod os;
mod page;
mod pool;
mod process;
mod runtime;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod slab;
pub mod threads;

pub use buffer::PageBuf;
pub use device::{
    Completion, Device, DeviceInfo, Disk, File, LockMode, OpenFile, OpenMode, Queue, Request,
    RequestKind,
};
pub use error::{IoError, LockHolder, Operation, Result};
pub use os::{IoMode, OsDevice, OsOptions};
pub use page::PAGE;
pub use pool::PagePool;
pub use process::{ProcessBound, ProcessTag};
pub use runtime::{Event, Executor, Notify, Runtime, Step, Task, TaskHandle};
pub use threads::Threads;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
