//! What a state under test can do, block by block.

use pleach_core::Key;

use super::witness::{Root, Witness};
use crate::error::{BenchError, Result};

/// A key and its new value, or `None` to delete it.
pub(crate) type Change = (Key, Option<Vec<u8>>);
/// A key and its value.
pub(crate) type Pair = (Key, Vec<u8>);

/// What a finished block gives.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    /// None of a plain store.
    pub(crate) root: Option<Root>,
    #[cfg_attr(
        not(any(feature = "peer-sp-trie", feature = "peer-jmt")),
        allow(dead_code, reason = "only these two make witnesses here")
    )]
    pub(crate) witness: Option<Box<dyn Witness>>,
}

/// A state, changed by one block after the other. A block is begun over the newest one, reads, and is finished,
/// which gives its root and persists nothing; finished blocks are committed later, the oldest first.
pub(crate) trait Tree {
    /// Settings worth printing beside the figures: names and values.
    fn settings(&self) -> Vec<(String, String)>;

    /// Root of the newest block, committed or not; none of a plain store.
    fn root(&self) -> Option<Root>;

    /// Begins a block.
    fn begin(&mut self) -> Result<()>;

    /// Begins a block that gives a witness.
    #[cfg_attr(
        not(any(feature = "peer-sp-trie", feature = "peer-jmt")),
        allow(dead_code, reason = "only these two make witnesses here")
    )]
    fn begin_witnessed(&mut self) -> Result<()> {
        Err(BenchError::Usage("this backend makes no witness here: say --witness off".to_owned()))
    }

    /// Values of keys, as the block that was begun sees them, or else the newest one.
    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>>;

    /// Finishes the block that was begun: keys in any order, no key twice.
    fn finish(&mut self, changes: Vec<Change>) -> Result<Finished>;

    /// Commits the oldest finished block. Durable on return if the tree was opened so.
    fn commit(&mut self) -> Result<()>;

    /// Forgets the block that was begun and all that are finished and not committed.
    fn discard(&mut self) -> Result<()>;

    /// Loads pairs into an empty state, in any order. Durable on return.
    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()>;

    /// Ends what runs in the background, and closes the files.
    fn close(self: Box<Self>) -> Result<()>;
}
