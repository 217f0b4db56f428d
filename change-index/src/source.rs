//! Where values are read from.

use pleach::{Hasher, Key, Namespace, Value};
use pleach_io::{Device, Runtime};

/// A state of the namespace that the index is in: a session's [`Namespace`], or whatever else has values.
pub trait Source {
    /// The values of keys, in their order.
    ///
    /// # Errors
    /// Those of the database.
    fn read_many(&self, keys: &[Key]) -> pleach::Result<Vec<Option<Value>>>;

    /// The value of one key.
    ///
    /// # Errors
    /// Those of the database.
    fn read(&self, key: &Key) -> pleach::Result<Option<Value>> {
        Ok(self.read_many(std::slice::from_ref(key))?.pop().flatten())
    }
}

impl<H: Hasher, D: Device, R: Runtime> Source for Namespace<'_, H, D, R> {
    fn read_many(&self, keys: &[Key]) -> pleach::Result<Vec<Option<Value>>> {
        Namespace::read_many(self, keys)
    }

    fn read(&self, key: &Key) -> pleach::Result<Option<Value>> {
        Namespace::read(self, key)
    }
}
