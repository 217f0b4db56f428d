//! Where values are read from.

use crate::{Hasher, Key, Namespace, Value};
use pleach_io::{Device, Runtime};

/// A state of the namespace that the index is in: a session's [`Namespace`], or whatever else has values.
pub trait Source {
    /// The values of keys, in their order.
    ///
    /// # Errors
    /// Those of the database.
    fn read_many(&self, keys: &[Key]) -> crate::Result<Vec<Option<Value>>>;
}

impl<H: Hasher, D: Device, R: Runtime> Source for Namespace<'_, H, D, R> {
    fn read_many(&self, keys: &[Key]) -> crate::Result<Vec<Option<Value>>> {
        match keys {
            // Without the queue of reads in flight that many keys are worth.
            [key] => Ok(vec![self.read(key)?]),
            keys => Namespace::read_many(self, keys),
        }
    }
}

/// The value of one key.
pub(crate) fn read(source: &(impl Source + ?Sized), key: &Key) -> crate::Result<Option<Value>> {
    Ok(source.read_many(std::slice::from_ref(key))?.pop().flatten())
}
