//! One step as a process of its own.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::child::spawn::{await_end, pid};
use crate::child::tied;
use crate::compare::folder::{Done, Folder};
use crate::compare::plan::Step;
use crate::error::{BenchError, Result};
use crate::measure::float;
use crate::{interrupt, machine};

/// How often a step's files are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// The most MiB that a folder had while something was waited for.
fn most_of(folder: &Path, wait: impl FnOnce()) -> f64 {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let most = std::thread::scope(|scope| {
        let looking = scope.spawn(move || {
            let mut most = 0;
            loop {
                most = machine::folder_bytes(folder).max(most);
                // The other end goes when the wait is over.
                if ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                    return most;
                }
            }
        });
        wait();
        drop(end);
        looking.join().unwrap_or(0)
    });
    float(most) / 1024.0 / 1024.0
}

/// Measures a step, unless a signal was caught. A step that fails is [`Outcome::Failed`](super::Outcome); an
/// error is one of this program, or a signal.
pub(crate) fn run(folder: &Folder, step: &Step) -> Result<Done> {
    interrupt::check()?;
    folder.forget(step)?;
    let scratch = folder.scratch();
    std::fs::create_dir_all(&scratch).map_err(BenchError::file(&scratch))?;
    let file = |ending: &str| folder.file(&format!("{}.{ending}", step.name));
    let open = |ending: &str| {
        let path = file(ending);
        File::create(&path).map_err(BenchError::file(&path))
    };
    let failed = |error: std::io::Error| BenchError::Child(format!("{}: {error}", step.name));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg(step.name).args(&step.arguments).arg("--json").arg(file("json"));
    // The hash functions have no folder.
    if step.disk_mib > 0 {
        command.arg("--dir").arg(&scratch);
    }
    command.stdin(Stdio::null()).stdout(open("txt")?).stderr(open("err")?);
    let start = Instant::now();
    let mut process = tied::spawn(&mut command).map_err(failed)?;
    if let Some(id) = pid(&process) {
        // It prints what it has when it is asked to stop.
        interrupt::add_child(id, true);
    }
    let disk_mib = most_of(&scratch, || await_end(&process));
    let status = process.wait().map_err(failed)?;
    let seconds = start.elapsed().as_secs_f64();
    folder.clear_scratch()?;
    // What a signal cut short is measured again.
    interrupt::check()?;
    if status.success() {
        return folder.keep(step, seconds, disk_mib);
    }
    let said = std::fs::read_to_string(file("err")).unwrap_or_default();
    let why = said.lines().last().unwrap_or("it said nothing").to_owned();
    Ok(Folder::failed(step, seconds, format!("{status}: {why}")))
}
