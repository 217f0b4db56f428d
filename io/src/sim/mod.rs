//! A disk and an executor that exist only in memory and whose every choice comes from a seed.
//!
//! [`SimDisk`] is a [`Device`](crate::Device) that knows what is durable, what reads see and what
//! hangs in between; it injects faults and keeps a ledger of them. It records what happens on it:
//! a [`Trace`] is walked afterwards, and at each [`CrashPoint`] gives images of what a power
//! failure could have left, each of which is a fresh disk to recover on. [`SimRuntime`] is a
//! [`Runtime`](crate::Runtime) that runs background tasks on the caller's thread.
//!
//! `docs/simulation.md` says what is modelled and what is not.
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
mod inner;
mod ledger;
mod outcome;
mod queue;
mod rng;
mod runtime;
mod state;
mod trace;

pub use clock::SimClock;
pub use content::{Content, SECTOR};
pub use crash::{CrashMode, CrashPoint, Grain, Image, Outcome};
pub use damage::{Damage, DamageKind, PageOf};
pub use disk::{SimDisk, SimFile};
pub use faults::{Aftermath, Fault, FaultRates, Rule, Times, When, code};
pub use ledger::{Injected, LedgerEntry};
pub use outcome::{Outcomes, Subsets};
pub use queue::{SimQueue, Unpolled};
pub use rng::Rng;
pub use runtime::{SimEvent, SimHandle, SimRuntime};
pub use trace::{CrashPoints, Trace};

/// A limit of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes that files may occupy together, holes excepted.
    pub bytes: u64,
    /// Error number of what goes beyond: [`code::ENOSPC`] or [`code::EDQUOT`].
    pub code: i32,
}

/// Misuse that panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asserts {
    /// Two writes in flight on one page of a file: their order is undefined on any disk.
    pub overlapping_writes: bool,
    /// Results in a dropped queue that nobody took.
    pub unpolled: Unpolled,
}

impl Default for Asserts {
    /// Everything is asserted.
    fn default() -> Self {
        Self { overlapping_writes: true, unpolled: Unpolled::ErrorsAndWrites }
    }
}

/// What a simulated disk does besides storing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Faults drawn from the seed.
    pub rates: FaultRates,
    /// Faults set by hand; they go before drawn ones.
    pub rules: Vec<Rule>,
    /// Space limit; a disk without one has 16 GiB.
    pub quota: Option<Quota>,
    /// Can two names be exchanged in one step?
    pub exchanges: bool,
    /// Misuse that panics.
    pub asserts: Asserts,
    /// Is a trace kept from the start?
    pub record: bool,
}

impl Default for SimOptions {
    /// No faults, no quota, everything asserted, recording.
    fn default() -> Self {
        Self {
            rates: FaultRates::default(),
            rules: Vec::new(),
            quota: None,
            exchanges: true,
            asserts: Asserts::default(),
            record: true,
        }
    }
}
