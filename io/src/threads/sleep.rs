//! What the runtime and its workers sleep on, and the error of a thread that the system does not give.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{IoError, Operation};

/// Takes a lock of the runtime: none of them is held over what may panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until `woken` is notified, or for no reason.
pub(super) fn sleep<'a, T>(woken: &Condvar, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    woken.wait(held).unwrap_or_else(PoisonError::into_inner)
}

/// The system gives no thread for what is named.
pub(crate) fn no_thread(what: &str, error: &std::io::Error) -> IoError {
    IoError::Os {
        file: what.to_owned(),
        offset: 0,
        operation: Operation::StartThread,
        code: error.raw_os_error().unwrap_or(0),
        kind: error.kind(),
        message: format!(
            "no further thread: {error}; raise the limit (ulimit -u, pids.max of the cgroup, TasksMax of the service)"
        ),
    }
}
