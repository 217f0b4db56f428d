//! The root of a set of pairs that come in key order, in bounded memory.

use super::{FoldValue, Folder};
use crate::hasher::Hasher;
use crate::node::{Key, Node};

/// Pairs that are hashed together.
const PAIRS: usize = 4096;

/// A key is not behind the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the keys do not ascend: give each pair once, in key order")]
pub struct NotAscending;

/// Computes the root of pairs that are added one after the other, in key order. It takes some MiB of memory, whatever
/// the number of pairs.
///
/// ```
/// use pleach_core::fold::{FoldValue, RootFolder};
/// use pleach_core::naive::NaiveTrie;
/// use pleach_core::{Hasher, node::value_hash};
///
/// let mut folder = RootFolder::new(Hasher::BLAKE3);
/// folder.pair(&[1; 32], FoldValue::Bytes(b"one"))?;
/// folder.pair(&[2; 32], FoldValue::Hash(value_hash(Hasher::BLAKE3, b"two")))?;
/// let pairs = [([1; 32], &b"one"[..]), ([2; 32], b"two")];
/// let trie: NaiveTrie = pairs.iter().map(|(key, value)| (*key, value_hash(Hasher::BLAKE3, value))).collect();
/// assert_eq!(folder.root(), trie.root(Hasher::BLAKE3));
/// # Ok::<(), pleach_core::fold::NotAscending>(())
/// ```
#[derive(Debug)]
pub struct RootFolder {
    folder: Folder,
    last: Option<Key>,
}

impl RootFolder {
    /// A folder without pairs.
    pub fn new(hasher: Hasher) -> Self {
        Self { folder: Folder::new(hasher), last: None }
    }

    /// The folder's hash function.
    #[inline]
    pub fn hasher(&self) -> Hasher {
        self.folder.hasher()
    }

    /// Adds the next pair.
    ///
    /// # Errors
    /// When the key is not behind the one before it; the pair is not added.
    pub fn pair(&mut self, key: &Key, value: FoldValue<'_>) -> Result<(), NotAscending> {
        if self.last.is_some_and(|last| last >= *key) {
            return Err(NotAscending);
        }
        self.last = Some(*key);
        if self.folder.len() == PAIRS {
            self.folder.hash_so_far_unaccessed();
        }
        self.folder.span(0).push_unaccessed(key, value);
        Ok(())
    }

    /// The root of all pairs added.
    #[inline]
    pub fn root(mut self) -> Node {
        let fold = self.folder.span(0).end_fold();
        self.folder.run();
        *self.folder.node(fold)
    }
}
