//! The ranks of locks, 1 to 6 of the table in [`super`]; a region has rank 7.

use pleach_beatree::lock_order::Rank;

/// Read while nodes must stay in memory. A batch holds it in its finish, and in a commit around a refold.
pub(super) const NODE_GATE: Rank = Rank::new(1, "the node gate").repeatable();
/// Held while regions or their layouts are replaced.
pub(super) const STRUCTURE: Rank = Rank::new(2, "the structure");
/// The log's writer.
pub(super) const WRITER: Rank = Rank::new(3, "the log writer");
/// The sequencer's state.
pub(super) const SEQUENCER: Rank = Rank::new(4, "the sequencer");
/// The newest published commit.
pub(super) const TIP: Rank = Rank::new(5, "the tip");
/// Held while a region's nodes move to another page.
pub(super) const MOVES: Rank = Rank::new(6, "node moves");
