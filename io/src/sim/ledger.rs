//! The record of everything that the simulator did wrong on purpose, so that a test can compare
//! what was injected with what was found.

use core::fmt;

use super::damage::Damage;
use super::faults::Fault;
use crate::error::Operation;

/// One injected fault.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerEntry {
    /// Number of the operation that was struck; for damage, operations done before.
    pub operation: u64,
    /// The file; empty for the folder.
    pub file: String,
    /// Byte offset in the file.
    pub offset: u64,
    /// What was done.
    pub injected: Injected,
}

/// What was injected.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Injected {
    /// A fault of an attempt at this operation; `None` is a queue's submission.
    Fault(Option<Operation>, Fault),
    /// A change of bytes at rest.
    Damage(Damage),
}

impl fmt::Display for LedgerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, file, offset, injected } = self;
        write!(f, "operation {operation}, {file:?} at byte {offset}: ")?;
        match injected {
            Injected::Fault(Some(of), fault) => write!(f, "{of:?} struck by {fault:?}"),
            Injected::Fault(None, fault) => write!(f, "submission struck by {fault:?}"),
            Injected::Damage(damage) => write!(f, "{damage:?}"),
        }
    }
}
