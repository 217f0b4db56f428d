//! The pages of a tree on the device: they are read one by one and kept ([`Store`]), many at once ([`PageReader`]) or in
//! runs ([`RunReader`]), and quarantined where they cannot be used ([`Quarantine`]). [`PageSpace`] has those that are in
//! use; values too long for a page are in [`overflow`], and those that were read in [`LongValues`].
#![expect(missing_debug_implementations, reason = "devices, rings and maps")]

mod in_flight;
mod long_values;
pub mod overflow;
mod quarantine;
mod reader;
mod reader_pool;
mod run_reader;
mod space;
mod store;

/// What events of the log name as their origin.
const TARGET: &str = "pleach::pages";

pub use self::in_flight::{Claim, InFlight, ReadMode};
pub use self::long_values::{LongValueId, LongValues};
pub use self::quarantine::{LeafName, Quarantine, QuarantineReason, Quarantined, backoff};
pub use self::reader::{LoadedPage, PageReader, PageReaderPool, Submission};
pub use self::reader_pool::{PooledReader, ReaderPool, RingReader};
pub(crate) use self::run_reader::{RUN, RunNo, WantedPage, group_runs};
pub use self::run_reader::{RunPage, RunReader};
pub use self::space::{FileLengths, OverflowMapImage, PageSpace, RetiredExtents, SpaceDemand};
pub use self::space::{SpaceParts, TentativeExtents};
pub use self::store::{PageCounters, PageWaiters, Store};
