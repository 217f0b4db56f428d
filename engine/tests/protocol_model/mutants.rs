//! What can be left out of the protocol, and the scope that a run explores.

use crate::state::{Budget, Changes};

/// One rule left out or bent. Each must be noticed; the table in `docs/commit-and-recovery.md` says what each one breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mutant {
    /// The protocol as it is.
    None,
    AckBeforeSync,
    RetryFailedSync,
    AckAfterFailedSync,
    ChildOutlivesParent,
    DeltaBeforeUndo,
    NumberBeforeDelta,
    RefoldSkipped,
    LocationNodesAtFold,
    FlushAheadOfLog,
    ThroughIsTip,
    PagesNotSynced,
    PublishBeforeAppend,
    RetireBeforeIndex,
    FreeBeforeDurable,
    FreeIgnoresReaders,
    DeletionUncovers,
    ReaderUndoFirst,
    ReaderIndexFirst,
    CutAtTicket,
    ImageOverNewest,
    SuperblockOverNewest,
    SuperblockBeforeImage,
    SuperblockBeforeLog,
    LogDroppedByNewest,
    NoIncarnation,
    IncarnationNotSynced,
    IncarnationInPlace,
    DurableThroughIgnored,
    RegionPositionIgnored,
    RecoveryTrustsReads,
    RecoverySyncsOnly,
    SuperblockNotConfirmed,
    SuperblockConfirmedInPlace,
    GenerationReused,
}

/// All rules that can be left out.
pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant::AckBeforeSync,
    Mutant::RetryFailedSync,
    Mutant::AckAfterFailedSync,
    Mutant::ChildOutlivesParent,
    Mutant::DeltaBeforeUndo,
    Mutant::NumberBeforeDelta,
    Mutant::RefoldSkipped,
    Mutant::LocationNodesAtFold,
    Mutant::FlushAheadOfLog,
    Mutant::ThroughIsTip,
    Mutant::PagesNotSynced,
    Mutant::PublishBeforeAppend,
    Mutant::RetireBeforeIndex,
    Mutant::FreeBeforeDurable,
    Mutant::FreeIgnoresReaders,
    Mutant::DeletionUncovers,
    Mutant::ReaderUndoFirst,
    Mutant::ReaderIndexFirst,
    Mutant::CutAtTicket,
    Mutant::ImageOverNewest,
    Mutant::SuperblockOverNewest,
    Mutant::SuperblockBeforeImage,
    Mutant::SuperblockBeforeLog,
    Mutant::LogDroppedByNewest,
    Mutant::NoIncarnation,
    Mutant::IncarnationNotSynced,
    Mutant::IncarnationInPlace,
    Mutant::DurableThroughIgnored,
    Mutant::RegionPositionIgnored,
    Mutant::RecoveryTrustsReads,
    Mutant::RecoverySyncsOnly,
    Mutant::SuperblockNotConfirmed,
    Mutant::SuperblockConfirmedInPlace,
    Mutant::GenerationReused,
];

/// When a commit is acknowledged. `Periodic` is `None` with a sync now and then, which the explorer tries everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Durability {
    Commit,
    None,
}

/// The scope of one exploration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) durability: Durability,
    /// Commit n makes the changes `script[n - 1]`, also when it is executed again after a crash.
    pub(crate) script: &'static [Changes],
    /// Flushes may keep the cuts of region 0, or change them.
    pub(crate) keep_cuts: bool,
    pub(crate) change_cuts: bool,
    pub(crate) budget: Budget,
    pub(crate) mutant: Mutant,
}

impl Scenario {
    pub(crate) fn without(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }
}
