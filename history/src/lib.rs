//! The past states of Pleach: the values that commits replaced, as sorted runs. The value of a key as of a commit is
//! the one that the oldest later commit which changed the key has replaced. See `docs/history-runs.md`.
//!
//! Each commit adds a *run*, which never changes ([`Runs`], [`Merges`]). Runs are in a list, the oldest first, each
//! with the commits that follow those of the one before. A lookup takes the list once and searches the runs with
//! commits after its own, the oldest first; a filter shows of most runs that they do not have a key. Four neighbours of
//! the same length are merged, in steps, one with each commit, and are removed when the longer run is in the list. No
//! merged run has more than a quarter of the commits, and a run is removed as a whole, so that the list has up to a
//! quarter more commits than are wanted.
//!
//! Runs in memory are written to the device as one ([`Runs::write_after`]), and merged there ([`DiskMerge`]). A
//! [`DiskRun`] is found by its [`RunDescriptor`], which the caller stores. Whatever form undo has, a [`Tier`] looks it up.

mod changing_commits;
mod disk;
mod filter;
mod find;
mod merge;
mod neighbours;
mod run;
mod runs;
mod table;
#[cfg(test)]
mod tests;
mod tier;

pub use self::changing_commits::ChangingCommits;
#[doc(hidden)]
pub use self::disk::entries_of;
pub use self::disk::{DiskMerge, DiskRun, RunDescriptor, RunFile};
pub use self::run::{CommitRun, RunSize};
pub use self::runs::{Merges, Runs};
pub use self::tier::{
    AsOf, CommitOrder, CommitSearch, NodeScope, NodesAround, ReplacedNode, Tier, Tiers, Version,
};
