//! The changes of a block or an overlay, for applications that keep something beside the state: an index, a cache, the
//! changes of a block in a peer's format.

use std::fmt;

use pleach_beatree::Value;
use pleach_core::Key;

use crate::error::{Hex, Result};
use crate::state::NamespaceDb;
use crate::state::undo::changes::{ChangeList, KeyUpdate};
use crate::state::values;

/// A key that a block or an overlay writes, with its namespace and its values before and after. Keys that are only read
/// are no changes; a key that is written with the same value is one.
///
/// Values of up to 22 bytes are stored in it, longer ones are shared, and those that lie in the overflow file are read
/// when they are asked for.
pub struct Change<'a> {
    db: &'a NamespaceDb,
    base: u64,
    namespace: u8,
    changed: &'a KeyUpdate,
}

impl<'a> Change<'a> {
    /// The key's namespace.
    pub fn namespace(&self) -> u8 {
        self.namespace
    }

    /// The key.
    pub fn key(&self) -> &'a Key {
        &self.changed.key
    }

    /// The value that is written; `None` when the key is deleted.
    ///
    /// # Errors
    /// As [`Namespace::read`](crate::Namespace::read); none of a block or overlay that is not committed, which
    /// has its new values in memory.
    pub fn value(&self) -> Result<Option<Value>> {
        values::value(self.db, self.base, self.changed.new.clone(), false)
    }

    /// The value before; `None` when there was none.
    ///
    /// # Errors
    /// As [`Namespace::read`](crate::Namespace::read), for values of more than 1 KiB, which may lie in the
    /// overflow file.
    pub fn prior(&self) -> Result<Option<Value>> {
        values::value(self.db, self.base, self.changed.prior.clone(), false)
    }
}

impl fmt::Debug for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyUpdate { key, new, prior } = self.changed;
        f.debug_struct("Change")
            .field("namespace", &self.namespace)
            .field("key", &Hex(key))
            .field("writes", &new.is_present())
            .field("had", &prior.is_present())
            .finish_non_exhaustive()
    }
}

/// The changes in these lists, each of one namespace, in their order; values before are as of commit `base`.
pub(super) fn changes<'a>(
    db: &'a NamespaceDb,
    base: u64,
    lists: impl Iterator<Item = (u8, &'a ChangeList)>,
) -> impl Iterator<Item = Change<'a>> {
    lists.flat_map(move |(namespace, list)| {
        list.iter().map(move |changed| Change { db, base, namespace, changed })
    })
}
