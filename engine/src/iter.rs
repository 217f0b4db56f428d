//! Iterators over the pairs of a session's state.

use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;

use pleach_beatree::{Stored, Value};
use pleach_core::{Blake3, Hasher, Key};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Homed, Runtime};

use crate::error::Result;
use crate::read::scan::Scan;

/// The pairs of a range, in key order from the front and against it from the back. From
/// [`Session::iter`](crate::Session::iter), which says more.
///
/// After an error it is at its end, from both sides: all pairs before the failure were given, and none after
/// it, so that no gap goes unnoticed. Another iterator can go on behind the last key that was given.
pub struct Iter<'a, H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    scan: Homed<Scan<'a, D, R>>,
    hasher: PhantomData<H>,
}

impl<'a, H: Hasher, D: Device, R: Runtime> Iter<'a, H, D, R> {
    pub(crate) fn new(scan: Scan<'a, D, R>) -> Self {
        Self { scan: Homed::new(scan), hasher: PhantomData }
    }

    /// A pair with its value, which may have to be read.
    fn pair(&mut self, (key, stored): (Key, Stored)) -> Result<(Key, Value)> {
        if let Stored::Inline(value) = stored {
            return Ok((key, value));
        }
        let value = self.scan.long_value::<H>(&key, stored);
        let value = value.inspect_err(|_| self.scan.end())?;
        Ok((key, value.expect("a scan gives what is present")))
    }
}

impl<H: Hasher, D: Device, R: Runtime> Iterator for Iter<'_, H, D, R> {
    type Item = Result<(Key, Value)>;

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        // Nearly all pairs, made where the caller wants them. Inlined, they are made elsewhere and moved.
        if let Some((key, value)) = self.scan.next_inline() {
            return Some(Ok((key, Value::from(value))));
        }
        let next = self.scan.next::<H>()?;
        Some(next.and_then(|pair| self.pair(pair)))
    }
}

impl<H: Hasher, D: Device, R: Runtime> DoubleEndedIterator for Iter<'_, H, D, R> {
    #[inline(never)]
    fn next_back(&mut self) -> Option<Self::Item> {
        if let Some((key, value)) = self.scan.next_back_inline() {
            return Some(Ok((key, Value::from(value))));
        }
        let last = self.scan.next_back::<H>()?;
        Some(last.and_then(|pair| self.pair(pair)))
    }
}

impl<H: Hasher, D: Device, R: Runtime> FusedIterator for Iter<'_, H, D, R> {}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Iter<'_, H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").finish_non_exhaustive()
    }
}
