//! What a simulated disk is told at its start.

use super::faults::{FaultRates, FaultRule};

/// A limit of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes that files may occupy together, holes excepted.
    pub bytes: u64,
    /// Error number when it is exceeded: [`ENOSPC`](super::code::ENOSPC) or [`EDQUOT`](super::code::EDQUOT).
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
    /// Faults set by hand; they come before drawn ones.
    pub rules: Vec<FaultRule>,
    /// Space limit; a disk without one has 16 GiB.
    pub quota: Option<Quota>,
    /// Whether two names can be exchanged in one step.
    pub exchanges: bool,
    /// Misuse that panics.
    pub asserts: Asserts,
    /// Whether a trace is recorded from the start.
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

/// What dropping a queue does about requests whose completion nobody took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpolled {
    /// Nothing.
    Ignore,
    /// Panic when one of them failed.
    Errors,
    /// Panic when one of them failed, or was a write or a sync.
    ErrorsAndWrites,
}
