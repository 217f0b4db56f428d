//! What can be left out of the protocol, and the scope that is explored.

use crate::state::{Budget, Changes};

/// One rule left out or bent. Each must be noticed; the table in `docs/commit-and-recovery.md` says what each
/// one breaks, and [`Mutant::rule`] has its name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mutant {
    /// The protocol as it is.
    None,
    AckBeforeSync,
    RetryFailedSync,
    AckAfterFailedSync,
    ChildOutlivesParent,
    ChildBeforeParent,
    BufferedBeforeUndo,
    NumberBeforeBuffered,
    RefoldSkipped,
    LocationNodesAtFold,
    FlushAheadOfLog,
    ThroughIsTip,
    PagesNotSynced,
    PublishBeforeAppend,
    RemoveBeforeIndex,
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
    EndNamedUnconfirmed,
    GenerationReused,
    HistoryDroppedByCheckpoint,
    HistoryFromLate,
    UndoNotInRecord,
    TooOldUnnoticed,
    RollbackByParts,
    RecordByNamespace,
    LocationWithoutNamespace,
    TableFromLate,
    ExistenceNotInUndo,
    GivenUpInWindow,
    GivenUpByMemory,
    GivenUpUnderReaders,
    GivenUpWithoutRecord,
    GivenUpInImage,
    LeftWithPieces,
    AddOverDropped,
    ParentUnchecked,
    ParentByNumber,
    ShrinkBehindNewest,
    JoinedInImage,
    JoinedBesideBatch,
    ValueAfterRecord,
    RunsByMemory,
    RunsNotSynced,
    RunNamedUnfinished,
    LogDroppedByRun,
    RunFreedWithList,
    RunFreedAtCut,
    RunFreedUnderReader,
    RecordsBehindCut,
    MergeLeavesOut,
    RunBeginsEarly,
    RunValuesUnread,
    RunsBeforePresent,
}

/// All rules that can be left out.
pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant::AckBeforeSync,
    Mutant::RetryFailedSync,
    Mutant::AckAfterFailedSync,
    Mutant::ChildOutlivesParent,
    Mutant::ChildBeforeParent,
    Mutant::BufferedBeforeUndo,
    Mutant::NumberBeforeBuffered,
    Mutant::RefoldSkipped,
    Mutant::LocationNodesAtFold,
    Mutant::FlushAheadOfLog,
    Mutant::ThroughIsTip,
    Mutant::PagesNotSynced,
    Mutant::PublishBeforeAppend,
    Mutant::RemoveBeforeIndex,
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
    Mutant::EndNamedUnconfirmed,
    Mutant::GenerationReused,
    Mutant::HistoryDroppedByCheckpoint,
    Mutant::HistoryFromLate,
    Mutant::UndoNotInRecord,
    Mutant::TooOldUnnoticed,
    Mutant::RollbackByParts,
    Mutant::RecordByNamespace,
    Mutant::LocationWithoutNamespace,
    Mutant::TableFromLate,
    Mutant::ExistenceNotInUndo,
    Mutant::GivenUpInWindow,
    Mutant::GivenUpByMemory,
    Mutant::GivenUpUnderReaders,
    Mutant::GivenUpWithoutRecord,
    Mutant::GivenUpInImage,
    Mutant::LeftWithPieces,
    Mutant::AddOverDropped,
    Mutant::ParentUnchecked,
    Mutant::ParentByNumber,
    Mutant::ShrinkBehindNewest,
    Mutant::JoinedInImage,
    Mutant::JoinedBesideBatch,
    Mutant::ValueAfterRecord,
    Mutant::RunsByMemory,
    Mutant::RunsNotSynced,
    Mutant::RunNamedUnfinished,
    Mutant::LogDroppedByRun,
    Mutant::RunFreedWithList,
    Mutant::RunFreedAtCut,
    Mutant::RunFreedUnderReader,
    Mutant::RecordsBehindCut,
    Mutant::MergeLeavesOut,
    Mutant::RunBeginsEarly,
    Mutant::RunValuesUnread,
    Mutant::RunsBeforePresent,
];

impl Mutant {
    /// The rule that it leaves out, by the name that it has in `docs/commit-and-recovery.md`.
    pub(crate) fn rule(self) -> &'static str {
        match self {
            Self::None => "",
            Self::AckBeforeSync => "ack-after-sync",
            Self::RetryFailedSync => "sync-once",
            Self::AckAfterFailedSync => "failed-sync-acks-nothing",
            Self::ChildOutlivesParent => "parent-fails-child",
            Self::ChildBeforeParent => "parents-first",
            Self::BufferedBeforeUndo => "undo-before-buffered",
            Self::NumberBeforeBuffered => "buffered-before-number",
            Self::RefoldSkipped => "refold-after-layout",
            Self::LocationNodesAtFold => "location-nodes-at-record",
            Self::FlushAheadOfLog => "log-before-pages",
            Self::ThroughIsTip => "through-of-region",
            Self::PagesNotSynced => "pages-before-location",
            Self::PublishBeforeAppend => "location-before-index",
            Self::RemoveBeforeIndex => "index-before-removal",
            Self::FreeBeforeDurable => "free-after-durable",
            Self::FreeIgnoresReaders => "free-after-readers",
            Self::DeletionUncovers => "deletion-covers",
            Self::ReaderUndoFirst => "undo-last",
            Self::ReaderIndexFirst => "buffered-before-index",
            Self::CutAtTicket => "cut-at-published",
            Self::ImageOverNewest => "image-elsewhere",
            Self::SuperblockOverNewest => "superblock-elsewhere",
            Self::SuperblockBeforeImage => "image-before-superblock",
            Self::SuperblockBeforeLog => "log-before-superblock",
            Self::LogDroppedByNewest => "log-for-both",
            Self::NoIncarnation => "incarnation-in-records",
            Self::IncarnationNotSynced => "incarnation-before-append",
            Self::IncarnationInPlace => "incarnation-whole",
            Self::DurableThroughIgnored => "evidence-of-damage",
            Self::RegionPositionIgnored => "region-position",
            Self::RecoveryTrustsReads => "reads-prove-nothing",
            Self::RecoverySyncsOnly => "confirm-by-copy",
            Self::SuperblockNotConfirmed => "superblocks-confirmed",
            Self::SuperblockConfirmedInPlace => "superblocks-by-copy",
            Self::EndNamedUnconfirmed => "end-after-log",
            Self::GenerationReused => "generations-once",
            Self::HistoryDroppedByCheckpoint | Self::LogDroppedByRun => "log-for-history",
            Self::HistoryFromLate | Self::RecordsBehindCut => "history-at-cut",
            Self::UndoNotInRecord => "undo-in-record",
            Self::TooOldUnnoticed => "too-old-is-told",
            Self::RollbackByParts => "rollback-is-one-commit",
            Self::RecordByNamespace => "one-record-for-all",
            Self::LocationWithoutNamespace => "location-names-namespace",
            Self::TableFromLate => "table-at-cut",
            Self::ExistenceNotInUndo => "existence-in-undo",
            Self::GivenUpInWindow => "kept-through-window",
            Self::GivenUpByMemory => "window-in-record",
            Self::GivenUpUnderReaders => "kept-for-readers",
            Self::GivenUpWithoutRecord => "given-up-by-record",
            Self::GivenUpInImage | Self::LeftWithPieces => "leave-outside-image",
            Self::AddOverDropped => "add-after-give-up",
            Self::ParentUnchecked | Self::ParentByNumber => "parent-by-state",
            Self::ShrinkBehindNewest => "shrink-behind-both",
            Self::JoinedInImage => "join-outside-image",
            Self::JoinedBesideBatch => "join-without-batch",
            Self::ValueAfterRecord => "values-before-record",
            Self::RunsByMemory | Self::RunValuesUnread => "runs-after-window",
            Self::RunsNotSynced | Self::RunNamedUnfinished => "run-before-image",
            Self::RunFreedWithList | Self::RunFreedAtCut | Self::RunFreedUnderReader => {
                "run-until-image"
            }
            Self::MergeLeavesOut => "merge-has-all",
            Self::RunBeginsEarly => "run-says-its-begin",
            Self::RunsBeforePresent => "map-without-runs",
        }
    }
}

/// When a commit is acknowledged. `Periodic` is `None` with a sync now and then, which the explorer tries everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Durability {
    Commit,
    None,
}

/// When there may be a kill or a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Crashes {
    Always,
    BehindLastCut,
    BehindLastCheckpoint,
}

/// The scope of one exploration.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says of one thing whether the scope has it"
)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) durability: Durability,
    /// Commit n makes the changes `script[n - 1]`, also when it is executed again after a crash.
    pub(crate) script: &'static [Changes],
    /// Flushes may keep the layout of region 0, or change it.
    pub(crate) keep_layout: bool,
    pub(crate) change_layout: bool,
    pub(crate) budget: Budget,
    /// A rollback may come between a block's finish and its ticket.
    pub(crate) rivals: bool,
    /// The page that region 0 begins with. Where it is not the first one, checkpoints cut the leaf file.
    pub(crate) first_page: u8,
    /// Region 2 has a page from the beginning, and a checkpoint copies it in a step of its own.
    pub(crate) apart: bool,
    /// The values of key 2 are long. Such a scenario has a history, and no flushes and rollbacks.
    pub(crate) long_values: bool,
    /// Later ones alone where earlier ones say nothing new, so that it ends soon.
    pub(crate) crashes: Crashes,
    /// Commits before the newest that can be read, across crashes; without it undo is in memory alone, and
    /// all of it.
    pub(crate) history: Option<u8>,
    pub(crate) mutant: Mutant,
}

impl Scenario {
    pub(crate) fn without(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }
}
