//! Ctrl-C (SIGINT), SIGTERM and SIGHUP.
//!
//! In the parent, a thread waits for signals. The first one asks for an end: a child that runs
//! batches finishes the current one and reports its result; any other child is killed. The main
//! thread sees its children end, prints what was measured, removes the temporary folder and exits
//! with 128 + the number of the signal (130, 143, 129). The second signal ends the program at once:
//! children are killed, the folder is removed, and nothing is printed.
//!
//! A terminal sends its signal to the children as well, and `timeout` sends its signal twice. So a
//! child only notes a signal ([`note_in_child`]), and the parent takes another one within [`SAME`] for
//! the same.

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
/// A signal this soon after the first one does not count as a second.
const SAME: Duration = Duration::from_millis(250);
/// How long to keep trying to remove the folder of a killed child.
const PATIENCE: Duration = Duration::from_secs(5);

/// The signal that was caught; 0 if none was.
static CAUGHT: AtomicI32 = AtomicI32::new(0);
static STATE: Mutex<State> = Mutex::new(State { children: Vec::new(), paths: Vec::new() });
/// Was this child asked to stop?
static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

#[derive(Debug)]
struct State {
    children: Vec<Child>,
    /// Files and folders to remove when the process ends at once.
    paths: Vec<PathBuf>,
}

/// A child that has not been reaped, so that its id belongs to no other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Child {
    id: Pid,
    /// It stops by itself when asked to.
    stops: bool,
}

fn state() -> MutexGuard<'static, State> {
    // No holder of the lock can leave it in a half-changed state.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to listen for signals, in the parent.
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
        output::say("nomt-bench: ending after this batch; another signal ends at once");
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
    // A child that is being killed may still create a file.
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

/// Fails if a signal was caught, so that nothing new is begun.
pub(crate) fn check() -> Result<()> {
    caught().map_or(Ok(()), |signal| Err(BenchError::Interrupted { signal, partial: false }))
}

/// The outcome of a command that has printed its result: an error if a signal cut it short.
pub(crate) fn after_printing() -> Result<()> {
    caught().map_or(Ok(()), |signal| Err(BenchError::Interrupted { signal, partial: true }))
}

/// The outcome of a part of a command. If it was interrupted, the part is left out, provided that
/// there is something to print without it (`partial`).
pub(crate) fn left_out<T>(outcome: Result<T>, partial: bool) -> Result<Option<T>> {
    match outcome {
        Err(BenchError::Interrupted { .. }) if partial => Ok(None),
        other => other.map(Some),
    }
}

/// Notes that a child was started; `stops`: it reports a result when it is asked to stop.
pub(crate) fn add_child(id: Pid, stops: bool) {
    let child = Child { id, stops };
    let mut state = state();
    state.children.push(child);
    if caught().is_some() {
        ask(child);
    }
}

/// Notes that a child has ended and is about to be reaped.
pub(crate) fn remove_child(id: Pid) {
    state().children.retain(|child| child.id != id);
}

/// Notes a file or folder of this process, to be removed if it ends at once.
pub(crate) fn remove_at_end(path: PathBuf) {
    state().paths.push(path);
}

/// In a child: signals are only noted, whether they come from the terminal, from the parent or from
/// both. The parent kills children that do not stop by themselves.
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
