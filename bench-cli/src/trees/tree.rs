//! What a state under test can do, block by block.

use std::borrow::Cow;

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
        not(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt")),
        allow(dead_code, reason = "only these make witnesses here")
    )]
    pub(crate) witness: Option<Box<dyn Witness>>,
}

/// Pairs a block of a load, of the states that have no load of their own.
#[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
const LOAD_BATCH: usize = 65_536;

/// The pairs of a load, block by block.
#[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
pub(super) fn in_blocks(
    pairs: &mut dyn Iterator<Item = Pair>,
    mut each: impl FnMut(Vec<Change>) -> Result<()>,
) -> Result<()> {
    loop {
        let some: Vec<Change> =
            pairs.take(LOAD_BATCH).map(|(key, value)| (key, Some(value))).collect();
        if some.is_empty() {
            return Ok(());
        }
        each(some)?;
    }
}

/// Is shown the values of keys, one by one. They are copied only where the engine does so itself.
pub(crate) type See<'a> = dyn FnMut(Option<Cow<'_, [u8]>>) + 'a;

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
        not(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt")),
        allow(dead_code, reason = "only these make witnesses here")
    )]
    fn begin_witnessed(&mut self) -> Result<()> {
        Err(BenchError::Usage("this backend makes no witness here: say --witness off".to_owned()))
    }

    /// Shows the values of keys, in their order, as the block that was begun sees them, or else the newest one.
    fn visit(&mut self, keys: &[Key], see: &mut See<'_>) -> Result<()>;

    /// The same values, as a block is read that knows all its keys: an engine may be told them beforehand.
    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = Vec::with_capacity(keys.len());
        self.visit(keys, &mut |value| values.push(value.map(Cow::into_owned)))?;
        Ok(values)
    }

    /// Finishes the block that was begun: keys in any order, no key twice.
    fn finish(&mut self, changes: Vec<Change>) -> Result<Finished>;

    /// Commits the oldest finished block. Durable on return if the tree was opened so.
    fn commit(&mut self) -> Result<()>;

    /// Forgets the block that was begun and all that are finished and not committed.
    fn discard(&mut self) -> Result<()>;

    /// Waits until nothing is left to be done in the background for what was committed. Only for engines that
    /// cannot stop that for as long as a clock stands: others have nothing to do.
    #[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
    fn drain(&mut self) -> Result<()> {
        Ok(())
    }

    /// Does background work go on, whatever the clock does? Then [`drain`](Tree::drain) waits for it.
    #[cfg(any(feature = "peer-nomt", feature = "peer-sp-trie", feature = "peer-jmt"))]
    fn works_on(&self) -> bool {
        false
    }

    /// Loads pairs into an empty state, in any order. Durable on return.
    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()>;

    /// Ends what runs in the background, and closes the files.
    fn close(self: Box<Self>) -> Result<()>;
}
