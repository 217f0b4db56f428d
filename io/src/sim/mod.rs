//! A disk and an executor that exist only in memory and whose every choice comes from a seed.
//!
//! [`SimDisk`] is a [`Device`](crate::Device) that knows what is durable, what reads see and what is pending in
//! between; it injects faults and lists them in a ledger. It records what happens: a [`Trace`] is walked afterwards,
//! and at each [`CrashPoint`] gives images of what a power failure could have left, each of which is a fresh disk to
//! recover on. [`SimRuntime`] is a [`Runtime`](crate::Runtime) that runs background tasks on the caller's thread.
//!
//! `docs/testing.md` says what is modelled and what is not.
//!
//! ```
//! use pleach_io::sim::{SimDisk, SimOptions};
//! use pleach_io::{Device, OpenMode, PageBuf};
//!
//! let disk = SimDisk::new(1, SimOptions::default());
//! let file = disk.open("data", OpenMode::CreateNew)?;
//! disk.sync_folder()?;
//! disk.write_at(&file, &PageBuf::zeroed(1), 1, 0)?;
//! disk.sync(&file)?;
//! disk.mark(1);
//! for point in disk.trace().crash_points() {
//!     for outcome in point.outcomes(1, 16) {
//!         let survivor = outcome.disk();
//!         if point.marks().contains(&1) {
//!             let file = survivor.open("data", OpenMode::Read)?;
//!             assert_eq!(survivor.len(&file)?, 4096, "{outcome}");
//!         }
//!     }
//! }
//! # Ok::<(), pleach_io::IoError>(())
//! ```

mod clock;
mod content;
mod crash;
mod damage;
mod disk;
mod faults;
mod file;
mod image;
mod inner;
mod ledger;
mod options;
mod outcome;
mod queue;
mod rng;
mod rot;
mod runtime;
mod state;
mod trace;

pub use clock::SimClock;
pub use content::{Content, SECTOR};
pub use crash::CrashPoint;
pub use damage::{Damage, DamageKind, DamagedPage};
pub use disk::SimDisk;
pub use faults::{Aftermath, Fault, FaultRates, FaultRepeats, FaultRule, FaultTrigger, code};
pub use image::Image;
pub use ledger::{Injected, LedgerEntry};
pub use options::{Asserts, Quota, SimOptions, Unpolled};
pub use outcome::{CrashMode, CrashOutcome, CrashOutcomes, Grain, Subsets};
pub use rng::Rng;
pub use runtime::SimRuntime;
pub use trace::{CrashPoints, Trace};
