//! What a plain store can do.

use crate::error::Result;
use crate::measure::Quantiles;

/// A change of a key: its new value, or `None` to delete it.
pub(crate) type Change<'a> = (&'a [u8], Option<&'a [u8]>);
/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// A plain ordered key-value store under test. Keys are ordered as bytes, and have 1 to 31 of them: no engine
/// here takes none, and [`super::pleach`] no more.
pub(crate) trait Store: Send + Sync {
    /// Settings worth printing beside the figures: names and values.
    fn settings(&self) -> Vec<(String, String)>;

    /// The newest value of a key, in `value`, which is cleared first; false if the key has none.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Tells which keys are read next: those of the batch that is written then. False where the engine has no use for
    /// that, and nothing was done.
    fn announce(&self, _keys: &mut dyn Iterator<Item = &[u8]>) -> Result<bool> {
        Ok(false)
    }

    /// One atomic batch: keys in any order, no key twice. Durable on return when `sync`.
    fn write(&self, changes: &[Change<'_>], sync: bool) -> Result<()>;

    /// A consistent view of this moment, beside which writes go on. None when the engine has none.
    fn view(&self) -> Result<Option<Box<dyn StoreView + '_>>>;

    /// All that was written is durable.
    fn sync(&self) -> Result<()>;

    /// Loads pairs in ascending order of their keys into an empty store, as the engine's documentation
    /// advises. Durable on return.
    fn load(&self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()>;

    /// Root of the state, where the engine has one.
    fn root(&self) -> Result<Option<[u8; 32]>>;

    /// Latencies of the parts of writes since the last call, where the engine tells them apart.
    fn parts_of_writes(&self) -> Vec<(&'static str, Quantiles)> {
        Vec::new()
    }

    /// Ends what runs in the background, and closes the files.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A consistent view of a store. It stays on the thread that took it.
pub(crate) trait StoreView {
    /// The value of a key, in `value`, which is cleared first; false if the key has none.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Shows the pairs from `from` on in the order of keys, until `each` says false.
    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;
}
