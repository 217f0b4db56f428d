//! Where values are read from.

use pleach::{Key, Namespace, Value};

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

impl Source for Namespace {
    fn read_many(&self, keys: &[Key]) -> pleach::Result<Vec<Option<Value>>> {
        Namespace::read_many(self, keys)
    }

    fn read(&self, key: &Key) -> pleach::Result<Option<Value>> {
        Namespace::read(self, key)
    }
}
