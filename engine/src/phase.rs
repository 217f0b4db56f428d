//! The phases of a batch, of which each is timed.

/// A phase of a finish or a commit. A caller's other waits are between phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Of a finish: the accesses are sorted by key.
    Sort,
    /// Chunks of the trie are gathered, read and folded; for a plain namespace the values before are read.
    Fold,
    /// The regions' nodes are folded into the root, and the witness's part of them is emitted.
    Root,
    /// The witness is assembled.
    Witness,
    /// Of a commit, all steps before its record: checks, long values, nodes that must be in memory.
    Prepare,
    /// The record is encoded, with the replaced items where there is a history.
    Record,
    /// The record is written and synced, as the durability says.
    Log,
    /// Undo is added, then changes and nodes go to the index.
    Apply,
    /// The commit becomes the newest one.
    Publish,
    /// Undo that is not needed any more is discarded, and undo of a history is sorted.
    Settle,
}

impl Phase {
    /// All phases, in their order.
    pub const ALL: [Self; 10] = [
        Self::Sort,
        Self::Fold,
        Self::Root,
        Self::Witness,
        Self::Prepare,
        Self::Record,
        Self::Log,
        Self::Apply,
        Self::Publish,
        Self::Settle,
    ];

    /// The names, in the same order.
    const NAMES: [&str; 10] = [
        "sort", "fold", "root", "witness", "prepare", "record", "log", "apply", "publish", "settle",
    ];

    /// The phase's name, in lower case.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}
