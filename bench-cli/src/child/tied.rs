//! Processes that do not outlive the one that has started them, even if that is killed with SIGKILL: the kernel kills
//! them when it goes.
//!
//! The kernel watches the *thread* that has started a process, not the process. So only the main thread starts
//! any, which ends with its process. And a parent may be gone before its child has asked to be killed: the child
//! knows from its environment whose it is, and looks.

use std::process::{Child, Command};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::error::{BenchError, Result};

/// In a child's environment: the process that has started it.
const PARENT: &str = "NOMT_BENCH_PARENT";

/// Starts this executable again. Only the main thread may.
pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Child> {
    if std::thread::current().name() != Some("main") {
        return Err(std::io::Error::other("only the main thread starts processes"));
    }
    command.env(PARENT, getpid().as_raw_nonzero().to_string());
    command.spawn()
}

/// In a process that [`spawn`] has started: it ends when its parent does. In any other, nothing.
pub(crate) fn tie() -> Result<()> {
    let Some(parent) = std::env::var_os(PARENT) else { return Ok(()) };
    let parent = parent.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    let failed = |error: rustix::io::Errno| BenchError::Child(format!("the parent: {error}"));
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    if parent.is_none() || getppid() != parent {
        return Err(BenchError::Child("the parent is gone".to_owned()));
    }
    Ok(())
}
