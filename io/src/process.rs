//! The current process: a fork copies the memory of a process, without its threads.
//!
//! The memory of a database belongs to the process that opened it. In a child that was forked since, its workers and
//! tasks are missing, locks may be held by missing threads, and a ring is the parent's. So the child refuses every
//! call, and drops nothing: a drop would wait, or end what the parent uses.
//!
//! A handler that the C library calls in the child at each fork counts; a check is one load. A child that a raw system
//! call makes is not noticed.
#![expect(
    unsafe_code,
    reason = "a handler for forks, and values that a forked child does not drop"
)]

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{IoError, Result};

/// Forks between this process and the one in which the program began.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The result of registering the handler: 0, or an errno.
static REGISTERED: OnceLock<i32> = OnceLock::new();

extern "C" fn count_fork() {
    // All that may be done here is what a signal handler may do.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Registers the counting of forks; to be called before a value's process matters.
pub(crate) fn count_forks() -> std::io::Result<()> {
    // SAFETY: the handler is a function that lives as long as the program, and calls nothing.
    let register = || unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    match *REGISTERED.get_or_init(register) {
        0 => Ok(()),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}

/// The process in which the tag was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessTag(u64);

impl ProcessTag {
    /// This process.
    pub fn current() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// True for this process.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Refuses in a process that was forked since.
    ///
    /// # Errors
    /// [`IoError::Forked`].
    #[inline]
    pub fn check_current(self) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(IoError::Forked) }
    }
}

/// A value that is dropped only by the process that made it.
#[derive(Debug)]
pub struct ProcessBound<T> {
    process: ProcessTag,
    value: ManuallyDrop<T>,
}

impl<T> ProcessBound<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { process: ProcessTag::current(), value: ManuallyDrop::new(value) }
    }

    /// The value's process.
    #[inline]
    pub fn process(&self) -> ProcessTag {
        self.process
    }
}

impl<T> Deref for ProcessBound<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ProcessBound<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
