//! Ctrl-C (SIGINT), SIGTERM and SIGHUP, and children that do not outlive their parent.
//!
//! The first signal asks for an end: a child that measures comes to its end and reports, any other is killed. The
//! second ends the program at once: children are killed, temporary folders removed, and nothing is printed. Children
//! have a process group of their own, so that a terminal's signal reaches the parent alone.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Error, Result};

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// A signal this soon after the first is the same: `timeout` sends its signal twice.
const SAME: Duration = Duration::from_millis(250);
/// In a child's environment: the process that has started it.
const PARENT: &str = "NOMT_BENCH_PARENT";

/// The signal that was caught; 0 if none was.
static CAUGHT: AtomicI32 = AtomicI32::new(0);
static STATE: Mutex<SignalState> =
    Mutex::new(SignalState { children: Vec::new(), folders: Vec::new() });
/// Set when this child is asked to stop.
static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

struct SignalState {
    /// Children that were not waited for yet, and whether they stop when asked to.
    children: Vec<(Pid, bool)>,
    /// To be removed when the process ends at once.
    folders: Vec<PathBuf>,
}

fn state() -> MutexGuard<'static, SignalState> {
    // No holder of the lock can leave it half changed.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` has it")]
fn failed(error: std::io::Error) -> Error {
    Error::Failed(format!("signals: {error}"))
}

/// Starts to listen, in the parent. One that is itself a child (of `compare`) ends with what has started it.
pub fn listen() -> Result<()> {
    if std::env::var_os(PARENT).is_some() {
        end_with_parent()?;
    }
    let mut signals = Signals::new(SIGNALS).map_err(failed)?;
    let heard = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            if first.get_or_insert_with(Instant::now).elapsed() > SAME {
                end_at_once(signal);
            }
            CAUGHT.store(signal, Ordering::Release);
            state().children.iter().copied().for_each(ask);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(heard).map_err(failed)?;
    Ok(())
}

fn ask((id, stops): (Pid, bool)) {
    // It may have ended by itself.
    let _ = kill_process(id, if stops { Signal::INT } else { Signal::KILL });
}

fn end_at_once(signal: i32) -> ! {
    let state = state();
    for (id, _) in &state.children {
        let _ = kill_process(*id, Signal::KILL);
    }
    let start = Instant::now();
    for folder in &state.folders {
        // A child that is being killed may still make a file.
        while folder.exists() && start.elapsed() < Duration::from_secs(5) {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
    std::process::exit(128 + signal)
}

/// The signal that was caught.
pub fn caught() -> Option<i32> {
    Some(CAUGHT.load(Ordering::Acquire)).filter(|signal| *signal != 0)
}

/// A folder of this process, to be removed if it ends at once.
pub fn remove_at_end(folder: PathBuf) {
    state().folders.push(folder);
}

/// Starts a child that ends with this process. Only the main thread may: the kernel watches the thread that starts it.
pub fn spawn(command: &mut Command) -> Result<Child> {
    if let Some(signal) = caught() {
        return Err(Error::Interrupted(signal));
    }
    command.env(PARENT, getpid().as_raw_nonzero().to_string()).process_group(0);
    let child = command.spawn().map_err(|error| Error::Failed(format!("a child: {error}")))?;
    if let Some(id) = pid(&child) {
        state().children.push((id, false));
    }
    // A signal may have come meanwhile.
    stops(&child, false);
    Ok(child)
}

/// Notes whether a child measures, and so stops when asked to.
pub fn stops(child: &Child, stops: bool) {
    let id = pid(child);
    for one in state().children.iter_mut().filter(|one| Some(one.0) == id) {
        one.1 = stops;
        if caught().is_some() {
            ask(*one);
        }
    }
}

/// Waits for a child.
pub fn wait(child: &mut Child) -> Result<std::process::ExitStatus> {
    let id = pid(child);
    if let Some(id) = id {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        // Until it is reaped, no other process can have its id and be killed by mistake.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(id), options).err() == Some(rustix::io::Errno::INTR) {}
    }
    state().children.retain(|one| Some(one.0) != id);
    child.wait().map_err(|error| Error::Failed(format!("a child: {error}")))
}

/// The id of a child.
pub fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// In a child: only notes signals, and ends with the parent.
pub fn note_in_child() -> Result<()> {
    let asked = ASKED.get_or_init(Arc::default);
    for signal in SIGNALS {
        signal_hook::flag::register(signal, asked.clone()).map_err(failed)?;
    }
    end_with_parent()
}

/// Ends this process with the one that has started it.
fn end_with_parent() -> Result<()> {
    let parent = std::env::var(PARENT).ok().and_then(|text| text.parse().ok());
    let Some(parent) = parent.and_then(Pid::from_raw) else {
        return Err(Error::Usage("this subcommand is internal".to_owned()));
    };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
    if getppid() == Some(parent) {
        Ok(())
    } else {
        Err(Error::Failed("the parent is gone".to_owned()))
    }
}

/// True when this child was asked to stop.
pub fn is_stop_requested() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Acquire))
}
