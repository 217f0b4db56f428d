//! The root of a set of pairs that come in key order, in bounded memory.
//!
//! Pairs wait until they are many. Then all subtries that are complete, since the last key lies behind them, become
//! one node each: their hashes are one run of a [`BatchFolder`]. What stays is the last pair and the nodes beside its path,
//! at most one a bit.

use alloc::vec::Vec;

use super::{BatchFolder, FoldValue};
use crate::hasher::Hasher;
use crate::node::{Key, Node, TERMINATOR, ValueHash, value_hash};
use crate::prefix::{Prefix, common_len};

/// Items that wait.
const ITEMS: usize = 4096;
const _: () = assert!(ITEMS > 257, "more than what stays");
/// Values up to this length wait with their keys, so that they are hashed together.
const SHORT: usize = 128;

/// A key is not behind the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the keys do not ascend: give each pair once, in key order")]
pub struct NotAscending;

/// What lies below a prefix.
#[derive(Clone, Copy)]
enum Content {
    /// A pair: the hash of its value.
    Hashed(ValueHash),
    /// A pair: the place of its value in the memory of those that wait.
    Short(usize, usize),
    /// A complete subtrie: its depth and its node.
    Subtrie(u16, Node),
}

/// Computes the root of pairs that are given one after the other, in key order. It takes some MiB of memory,
/// however many come.
///
/// ```
/// use pleach_core::fold::{FoldValue, RootFolder};
/// use pleach_core::naive::Naive;
/// use pleach_core::{Hasher, node::value_hash};
///
/// let mut folder = RootFolder::new(Hasher::BLAKE3);
/// folder.pair(&[1; 32], FoldValue::Bytes(b"one"))?;
/// folder.pair(&[2; 32], FoldValue::Hash(value_hash(Hasher::BLAKE3, b"two")))?;
/// let pairs = [([1; 32], &b"one"[..]), ([2; 32], b"two")];
/// let trie: Naive = pairs.iter().map(|(key, value)| (*key, value_hash(Hasher::BLAKE3, value))).collect();
/// assert_eq!(folder.root(), trie.root(Hasher::BLAKE3));
/// # Ok::<(), pleach_core::fold::NotAscending>(())
/// ```
pub struct RootFolder {
    folder: BatchFolder,
    /// In key order; of a subtrie the first key.
    items: Vec<(Key, Content)>,
    /// Values that wait.
    bytes: Vec<u8>,
    last: Option<Key>,
    /// Memory for the items that stay.
    stay: Vec<(Key, Content)>,
}

impl core::fmt::Debug for RootFolder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RootFolder").field("last", &self.last).finish_non_exhaustive()
    }
}

impl RootFolder {
    /// A folder that has no pair.
    pub fn new(hasher: Hasher) -> Self {
        Self {
            folder: BatchFolder::new(hasher),
            items: Vec::new(),
            bytes: Vec::new(),
            last: None,
            stay: Vec::new(),
        }
    }

    /// Its hash function.
    #[inline]
    pub fn hasher(&self) -> Hasher {
        self.folder.hasher()
    }

    /// The next pair.
    ///
    /// # Errors
    /// Its key is not behind the one before it; the pair is not taken.
    pub fn pair(&mut self, key: &Key, value: FoldValue<'_>) -> Result<(), NotAscending> {
        if self.last.is_some_and(|last| last >= *key) {
            return Err(NotAscending);
        }
        if self.items.len() == ITEMS {
            self.settle();
        }
        self.last = Some(*key);
        let content = match value {
            FoldValue::Hash(hash) => Content::Hashed(hash),
            FoldValue::Bytes(bytes) if bytes.len() > SHORT => {
                Content::Hashed(value_hash(self.folder.hasher(), bytes))
            }
            FoldValue::Bytes(bytes) => {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(bytes);
                Content::Short(start, self.bytes.len())
            }
        };
        self.items.push((*key, content));
        Ok(())
    }

    /// The root of all pairs that were given.
    #[inline]
    pub fn root(mut self) -> Node {
        self.folder.clear();
        let fold = fold(&mut self.folder, 0, &self.items, &self.bytes);
        self.folder.run();
        self.folder.node(fold)
    }

    /// Makes a node of each subtrie that is complete.
    fn settle(&mut self) {
        let Self { folder, items, bytes, stay, .. } = self;
        folder.clear();
        stay.clear();
        // From the last pair, which stays, to the left: what shares more bits among itself than with what comes behind it.
        let mut behind = items.len() - 1;
        stay.push(items[behind]);
        while behind > 0 {
            let shared = |right: usize| common_len(&items[right - 1].0, &items[right].0);
            let (end, depth) = (behind, shared(behind) + 1);
            behind -= 1;
            while behind > 0 && shared(behind) >= depth {
                behind -= 1;
            }
            fold(folder, depth, &items[behind..end], bytes);
            // Its node is not known yet.
            stay.push((items[behind].0, Content::Subtrie(depth, TERMINATOR)));
        }
        folder.run();
        for (at, (key, content)) in stay[1..].iter_mut().enumerate() {
            if let Content::Subtrie(depth, node) = content {
                *node = folder.node(at);
                *key = *Prefix::new(key, *depth).first_key();
            }
        }
        // The last pair alone has a value that waits.
        let mut kept = Vec::new();
        if let Content::Short(start, end) = &mut stay[0].1 {
            kept.extend_from_slice(&bytes[*start..*end]);
            (*start, *end) = (0, kept.len());
        }
        bytes.clear();
        bytes.extend(kept);
        items.clear();
        items.extend(stay.drain(..).rev());
    }
}

/// Gives items to the folder as one fold whose node is at a depth.
fn fold(folder: &mut BatchFolder, depth: u16, items: &[(Key, Content)], bytes: &[u8]) -> usize {
    folder.begin(depth);
    for (key, content) in items {
        match content {
            Content::Hashed(hash) => folder.unaccessed(key, FoldValue::Hash(*hash)),
            Content::Short(start, end) => {
                folder.unaccessed(key, FoldValue::Bytes(&bytes[*start..*end]));
            }
            Content::Subtrie(depth, node) => folder.subtrie(&Prefix::new(key, *depth), node),
        }
    }
    folder.end().expect("nothing is accessed, so no leaf has to be known")
}
