//! Accesses: the reads, writes and deletes of a batch, by key.

use pleach_beatree::Value;
use pleach_core::Key;

/// Most bytes of a value.
pub const MAX_VALUE: usize = 64 << 20;

/// What a batch does with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessKind {
    /// The value was read: the witness proves it.
    Read,
    /// The key gets this value, or none, without having been read.
    Write(Option<Value>),
    /// The value was read, and the key gets this value, or none.
    ReadWrite(Option<Value>),
    /// All keys that share this many leading bytes with the key are deleted, except keys that the batch writes.
    DeletePrefix(u8),
}

/// An access to one key in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The key's namespace.
    pub namespace: u8,
    /// The key: all 32 bytes are a hash of the application's key.
    pub key: Key,
    /// The kind of the access.
    pub kind: AccessKind,
}

impl Access {
    /// A read in namespace 0.
    pub fn read(key: Key) -> Self {
        Self { namespace: 0, key, kind: AccessKind::Read }
    }

    /// A blind write in namespace 0; `None` deletes.
    pub fn write(key: Key, value: Option<Value>) -> Self {
        Self { namespace: 0, key, kind: AccessKind::Write(value) }
    }

    /// A read and a write in namespace 0; `None` deletes.
    pub fn read_write(key: Key, value: Option<Value>) -> Self {
        Self { namespace: 0, key, kind: AccessKind::ReadWrite(value) }
    }

    /// Deletes all keys of namespace 0 that begin with these bytes, such as the storage of an account, except keys that
    /// the same batch writes; a key that the batch reads was read before the delete. The finish finds the keys by an
    /// iteration, and deletes each like any other key: the witness proves each deletion, and not that there were no
    /// more keys. Keys with a long common prefix have long proofs, with a hash for each bit of it: use few bytes
    /// ([`range`](crate::range) gives the keys with a prefix).
    ///
    /// # Panics
    /// When there are more than 32 bytes.
    pub fn delete_prefix(prefix: &[u8]) -> Self {
        let mut key = [0; 32];
        key[..prefix.len()].copy_from_slice(prefix);
        let bytes = u8::try_from(prefix.len()).expect("at most 32");
        Self { namespace: 0, key, kind: AccessKind::DeletePrefix(bytes) }
    }

    /// The same access in another namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: u8) -> Self {
        Self { namespace, ..self }
    }
}
