//! What a witness proves.

use pleach_core::{Key, ValueHash};

/// A trie root.
pub(crate) type Root = [u8; 32];

/// What a witness proves, in any order.
#[derive(Debug, Default)]
pub(crate) struct Proven {
    /// The root after the batch.
    pub(crate) new_root: Root,
    /// Keys read, with the hash of the value seen.
    pub(crate) reads: Vec<(Key, Option<ValueHash>)>,
    /// Keys written, with the hash of the new value.
    pub(crate) writes: Vec<(Key, Option<ValueHash>)>,
}

/// A batch's witness in the engine's own form.
pub(crate) trait Witness: core::fmt::Debug + Sync {
    /// Its size.
    fn bytes(&self) -> u64;
    /// Verifies it against the previous root, without a database, and returns all that it proves.
    fn verify(&self, prev_root: &Root) -> core::result::Result<Proven, String>;
}
