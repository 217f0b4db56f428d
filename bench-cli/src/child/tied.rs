//! Processes that do not outlive the one that has started them, even if that is killed with SIGKILL: the kernel kills
//! them when it goes.
//!
//! The kernel watches the *thread* that has started a process, not the process. So only the main thread starts
//! any, which ends with its process. And a parent may be gone before its child has asked to be killed: the child
//! knows from its environment whose it is, and looks. A program of others knows nothing of that: this executable is
//! started in its place, ties itself, and becomes that program, which stays tied.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
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

/// A program of others, to be given to [`spawn`].
pub(crate) fn other(program: &str) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["__become", program]);
    Ok(command)
}

/// In the process that [`other`] has started, once it is tied: becomes that program. Returns only if it cannot.
pub(crate) fn become_other(words: &[OsString]) -> BenchError {
    let Some((program, arguments)) = words.split_first().filter(|_| is_tied()) else {
        return BenchError::Usage("this subcommand is internal".to_owned());
    };
    let error = Command::new(program).args(arguments).env_remove(PARENT).exec();
    BenchError::Child(format!("{}: {error}", program.display()))
}

/// Was this process started by [`spawn`]?
fn is_tied() -> bool {
    std::env::var_os(PARENT).is_some()
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
