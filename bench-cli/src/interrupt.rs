//! Ctrl-C (SIGINT), SIGTERM and SIGHUP.
//!
//! The parent of a run hears a signal on a thread of its own. The first one asks for an end: a
//! child that runs batches stops after the one at hand and gives its result, any other child is
//! killed, and the main thread, which sees its children end, prints what was measured, removes
//! the temporary folder and exits with 128 + the signal's number (130, 143, 129). The second
//! signal ends at once: children are killed, the folder is removed, nothing is printed.
//!
//! A terminal sends its signal to the children as well, and `timeout` sends its own twice. So a
//! child only notes it ([`note_in_child`]), and what follows within [`SAME`] is the same signal.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{BenchError, Result, code_after};
use crate::output;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// A signal so soon after the first is not a second one.
const SAME: Duration = Duration::from_millis(250);
/// How long a killed child's folder is tried to be removed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The signal that was caught; 0: none.
static CAUGHT: AtomicI32 = AtomicI32::new(0);
static STATE: Mutex<State> = Mutex::new(State { children: Vec::new(), paths: Vec::new() });
/// Was this child asked to stop?
static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

struct State {
    children: Vec<Child>,
    /// Files and folders that go when the process ends at once.
    paths: Vec<PathBuf>,
}

/// A child that has not been reaped, so that its id is its own.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Child {
    id: Pid,
    /// It stops by itself when asked.
    stops: bool,
}

fn state() -> MutexGuard<'static, State> {
    // Nothing in it is left half done.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to listen, in the parent.
pub(crate) fn listen() -> Result<()> {
    let failed = |error: std::io::Error| BenchError::Child(format!("signals: {error}"));
    let mut signals = Signals::new(SIGNALS).map_err(failed)?;
    let heard = move || {
        let mut first = None;
        for signal in signals.forever() {
            let first = *first.get_or_insert_with(|| {
                begin(signal);
                Instant::now()
            });
            if first.elapsed() > SAME {
                end_at_once(signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(heard).map_err(failed)?;
    Ok(())
}

/// The first signal.
fn begin(signal: i32) {
    let state = state();
    CAUGHT.store(signal, Ordering::Release);
    if state.children.iter().any(|child| child.stops) {
        output::say("nomt-bench: ending after this batch; once more ends at once");
    }
    state.children.iter().copied().for_each(ask);
}

fn ask(child: Child) {
    // It may have ended by itself.
    let _ = kill_process(child.id, if child.stops { Signal::INT } else { Signal::KILL });
}

/// The second signal.
fn end_at_once(signal: i32) -> ! {
    let state = state();
    for child in &state.children {
        let _ = kill_process(child.id, Signal::KILL);
    }
    // A child that is being killed may still make a file.
    let start = Instant::now();
    for path in &state.paths {
        while path.symlink_metadata().is_ok() && start.elapsed() < PATIENCE {
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(path)
            } else {
                std::fs::remove_file(path)
            };
            if removed.is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    std::process::exit(code_after(signal).into())
}

/// The signal that was caught.
pub(crate) fn caught() -> Option<i32> {
    Some(CAUGHT.load(Ordering::Acquire)).filter(|&signal| signal != 0)
}

/// Fails when a signal was caught: nothing new is begun.
pub(crate) fn check() -> Result<()> {
    caught().map_or(Ok(()), |signal| Err(BenchError::Interrupted { signal, partial: false }))
}

/// The outcome of a command that has printed what it has: complete, unless a signal was caught.
pub(crate) fn after_printing() -> Result<()> {
    caught().map_or(Ok(()), |signal| Err(BenchError::Interrupted { signal, partial: true }))
}

/// The outcome of a part of a command: an interruption leaves it out, when `partial` says that
/// there is something to print without it.
pub(crate) fn left_out<T>(outcome: Result<T>, partial: bool) -> Result<Option<T>> {
    match outcome {
        Err(BenchError::Interrupted { .. }) if partial => Ok(None),
        other => other.map(Some),
    }
}

/// A child was started; `stops`: it gives a result when it is asked to stop.
pub(crate) fn add_child(id: Pid, stops: bool) {
    let child = Child { id, stops };
    let mut state = state();
    state.children.push(child);
    if caught().is_some() {
        ask(child);
    }
}

/// A child has ended and is about to be reaped.
pub(crate) fn remove_child(id: Pid) {
    state().children.retain(|child| child.id != id);
}

/// A file or folder of this process that must not stay when it ends at once.
pub(crate) fn remove_at_end(path: PathBuf) {
    state().paths.push(path);
}

/// In a child: signals are noted, be they the terminal's or the parent's, which may both come. The
/// parent kills those that do not stop by themselves.
pub(crate) fn note_in_child() -> Result<()> {
    let failed = |error: std::io::Error| BenchError::Child(format!("signals: {error}"));
    let asked = ASKED.get_or_init(Arc::default);
    for signal in SIGNALS {
        signal_hook::flag::register(signal, asked.clone()).map_err(failed)?;
    }
    Ok(())
}

/// Was this child asked to stop?
pub(crate) fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Acquire))
}
