//! A namespace of a session's state.

use std::fmt;
use std::ops::{RangeBounds, RangeInclusive};

use pleach_beatree::Value;
use pleach_core::{Blake3, Hasher, Key, Node};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use crate::engine::Engine;
use crate::error::{Hex, Result};
use crate::iter::Iter;
use crate::reading::Reading;

/// A namespace as a session reads it. From [`Session::namespace`](crate::Session::namespace), which says what a
/// session sees. All that it does goes as for namespace 0, whose methods are the session's own.
pub struct Namespace<'a, H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    engine: &'a Engine<H, D, R>,
    reading: &'a Reading<D, R>,
}

impl<H: Hasher, D: Device, R: Runtime> Clone for Namespace<'_, H, D, R> {
    fn clone(&self) -> Self {
        Self { engine: self.engine, reading: self.reading }
    }
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Namespace<'_, H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace")
            .field("number", &self.number())
            .field("root", &Hex(self.reading.root().node.as_ref()))
            .finish_non_exhaustive()
    }
}

impl<'a, H: Hasher, D: Device, R: Runtime> Namespace<'a, H, D, R> {
    pub(crate) fn new(engine: &'a Engine<H, D, R>, reading: &'a Reading<D, R>) -> Self {
        Self { engine, reading }
    }

    /// Its number.
    pub fn number(&self) -> u8 {
        self.reading.view().namespace
    }

    /// Its root in the session's state; none of a plain one.
    pub fn root(&self) -> Option<Node> {
        self.reading.root().merkle()
    }

    /// The digest of a plain namespace in the session's state; see [`Roots::digest`](crate::Roots::digest).
    pub fn digest(&self) -> Option<[u8; 32]> {
        self.reading.root().digest()
    }

    /// The value of a key; see [`Session::read`](crate::Session::read).
    ///
    /// # Errors
    /// As [`Session::read`](crate::Session::read).
    pub fn read(&self, key: &Key) -> Result<Option<Value>> {
        self.reading.read(self.engine, key)
    }

    /// The values of many keys; see [`Session::read_many`](crate::Session::read_many).
    ///
    /// # Errors
    /// As [`Session::read_many`](crate::Session::read_many).
    pub fn read_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.reading.read_many(self.engine, keys)
    }

    /// Starts to bring in what these keys need; see [`Session::prefetch`](crate::Session::prefetch).
    pub fn prefetch(&self, keys: &[Key]) {
        self.reading.prefetch(self.engine, keys);
    }

    /// The pairs of a range of keys; see [`Session::iter`](crate::Session::iter).
    pub fn iter(&self, range: impl RangeBounds<Key>) -> Iter<'a, H, D, R> {
        Iter::new(self.reading.scan(self.engine, &range))
    }

    /// Proves what it says of a key, against [`Self::root`]; see [`Session::prove`](crate::Session::prove).
    ///
    /// # Errors
    /// As [`Session::prove`](crate::Session::prove); [`Plain`](crate::Error::Plain) of a plain namespace, as from all
    /// that prove.
    pub fn prove(&self, key: &Key) -> Result<Vec<u8>> {
        self.reading.prove(self.engine, key)
    }

    /// Proves what it says of many keys, against [`Self::root`]; see
    /// [`Session::prove_many`](crate::Session::prove_many).
    ///
    /// # Errors
    /// As [`Session::prove_many`](crate::Session::prove_many).
    pub fn prove_many(&self, keys: &[Key]) -> Result<Vec<u8>> {
        self.reading.prove_many(self.engine, keys)
    }

    /// Proves all pairs of a range of keys, against [`Self::root`]; see
    /// [`Session::prove_range`](crate::Session::prove_range).
    ///
    /// # Errors
    /// As [`Session::prove_range`](crate::Session::prove_range).
    pub fn prove_range(&self, range: &RangeInclusive<Key>) -> Result<Vec<u8>> {
        self.reading.prove_range(self.engine, range)
    }

    /// Proves which keys of a range differ between this namespace here and in the state of another session,
    /// against the roots of both; see [`Session::prove_change`](crate::Session::prove_change).
    ///
    /// # Errors
    /// As [`Session::prove_change`](crate::Session::prove_change);
    /// [`ForeignSession`](crate::Error::ForeignSession) for another namespace, too.
    pub fn prove_change(
        &self,
        to: &Namespace<'_, H, D, R>,
        range: &RangeInclusive<Key>,
    ) -> Result<Vec<u8>> {
        self.reading.prove_change(self.engine, to.reading, range)
    }
}
