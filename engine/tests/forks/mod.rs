//! Children of a test's process, for what a process does to itself: forks, limits, descriptors.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

/// One test at a time: each forks the whole process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A child that is awaited when this is dropped.
pub(crate) struct Child {
    pid: libc::pid_t,
    says: std::io::PipeReader,
}

/// Forks: `None` in the child, which has a minute before it is killed.
pub(crate) fn fork() -> (Option<Child>, std::io::PipeWriter) {
    let (says, tells) = std::io::pipe().expect("a pipe");
    // SAFETY: the child of a process with threads goes on with what the tests are about: a library that was forked.
    // What it needs beside that, the C library sees to (its memory's locks).
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: sets a timer of this process.
            unsafe { libc::alarm(60) };
            (None, tells)
        }
        pid => (Some(Child { pid, says }), tells),
    }
}

impl Child {
    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// What the child has found wrong: nothing, if it came to a clean end.
    pub(crate) fn verdict(mut self) -> String {
        let mut text = String::new();
        self.says.read_to_string(&mut text).expect("what it says");
        let mut status = 0;
        // SAFETY: the status is written to a local variable.
        let ended = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(ended, self.pid);
        if text.is_empty() && status != 0 {
            text = format!("the child ended with status {status:#x} (14: it was hanging)");
        }
        text
    }
}

/// Ends the child with what was found; by way of `exit`, as a program does.
pub(crate) fn end(found: std::thread::Result<()>, mut tells: std::io::PipeWriter) -> ! {
    if let Err(panic) = found {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let _ = tells.write_all(text.as_bytes());
        std::process::exit(1);
    }
    std::process::exit(0)
}

/// Does something in a child that is forked here.
pub(crate) fn begin_in_child(what: impl FnOnce()) -> Child {
    match fork() {
        (Some(child), _) => child,
        (None, tells) => end(catch_unwind(AssertUnwindSafe(what)), tells),
    }
}

pub(crate) fn in_child(what: impl FnOnce()) {
    assert_eq!(begin_in_child(what).verdict(), "", "found in the child");
}
