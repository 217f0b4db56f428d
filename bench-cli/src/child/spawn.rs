//! The parent's side: starts a child, receives its events, and kills it if the workload wants that.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::child::{Event, Job, Order, Spec, tied};
use crate::error::{BenchError, Result};
use crate::{interrupt, output};

/// A running child.
#[derive(Debug)]
pub(crate) struct Running {
    process: Child,
    events: Lines<BufReader<ChildStdout>>,
    /// Present if the job takes orders.
    orders: Option<ChildStdin>,
    what: String,
    /// It has been waited for, so its process id may belong to another process by now.
    reaped: bool,
}

impl Running {
    /// Starts this executable again with a job, unless a signal was caught.
    pub(crate) fn start(spec: &Spec) -> Result<Self> {
        interrupt::check()?;
        let what = format!("the {} child ({})", spec.backend.name(), job_name(spec));
        let failed = |error: std::io::Error| BenchError::Child(format!("{what}: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.arg("__child").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = tied::spawn(&mut command).map_err(failed)?;
        if let Some(id) = pid(&process) {
            interrupt::add_child(id, matches!(spec.job, Job::Run(_)));
        }
        let mut text = serde_json::to_string(spec)
            .map_err(|error| BenchError::Child(format!("{what}: {error}")))?;
        text.push('\n');
        let (Some(mut input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(BenchError::Child(format!("{what}: no pipes")));
        };
        let stepped = matches!(spec.job, Job::Run(plan) if plan.stepped);
        let sent = input.write_all(text.as_bytes()).map_err(failed);
        let orders = stepped.then_some(input);
        // From here on, dropping `running` waits for the child, whatever happens.
        let running =
            Self { process, events: BufReader::new(output).lines(), orders, what, reaped: false };
        // If a signal has ended the child, that is why it did not take its job.
        sent.map_err(|error| interrupt::check().err().unwrap_or(error))?;
        Ok(running)
    }

    /// The next event; `None` once the child has closed its output. Lines that are not events, such
    /// as those that an engine prints, are passed on to standard error.
    pub(crate) fn next(&mut self) -> Option<Event> {
        loop {
            let line = self.events.next()?.ok()?;
            match serde_json::from_str(&line) {
                Ok(event) => return Some(event),
                Err(_) => output::say(&line),
            }
        }
    }

    /// Skips events until the one that is wanted.
    ///
    /// # Errors
    /// If the child fails, or ends before that event.
    pub(crate) fn next_of(&mut self, mut wanted: impl FnMut(&Event) -> bool) -> Result<Event> {
        while let Some(event) = self.next() {
            match event {
                Event::Failed { code, message } => return Err(self.failure(code, message)),
                event if wanted(&event) => return Ok(event),
                _ => {}
            }
        }
        self.wait()?;
        interrupt::check()?;
        Err(self.silent())
    }

    /// Tells a stepped run what to do next.
    pub(crate) fn order(&mut self, order: &Order) -> Result<()> {
        let text = serde_json::to_string(order)
            .map_err(|error| BenchError::Child(format!("{}: {error}", self.what)))?;
        let Some(orders) = &mut self.orders else {
            return Err(BenchError::Child(format!("{} takes no orders", self.what)));
        };
        // A child that has failed closes its input, and has reported why.
        let written = writeln!(orders, "{text}").and_then(|()| orders.flush());
        match written {
            Ok(()) => Ok(()),
            Err(_) => self.next_of(|_| false).map(|_| ()),
        }
    }

    /// The error when the child has ended without a result.
    pub(crate) fn silent(&self) -> BenchError {
        BenchError::Child(format!("{} ended without a result", self.what))
    }

    /// Kills the child with SIGKILL after some time. The process is reaped by [`Running::wait`] at
    /// the earliest, so until then its id cannot belong to another process.
    pub(crate) fn kill_after(&self, time: Duration) -> std::thread::JoinHandle<()> {
        let id = pid(&self.process);
        std::thread::spawn(move || {
            std::thread::sleep(time);
            if let Some(id) = id {
                // It may have ended by itself.
                let _ = kill_process(id, Signal::KILL);
            }
        })
    }

    /// Waits until the child has ended.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        if !self.reaped {
            await_end(&self.process);
            self.reaped = true;
        }
        self.process.wait().map_err(|error| BenchError::Child(format!("{}: {error}", self.what)))
    }

    /// The error of a child that reported `Failed`.
    pub(crate) fn failure(&self, code: u8, message: String) -> BenchError {
        match code {
            2 => BenchError::Usage(message),
            _ => BenchError::Child(format!("{message} (in {})", self.what)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // There is a child left only if the parent failed. After `wait`, neither call does anything.
        let _ = self.process.kill();
        let _ = self.wait();
    }
}

/// Waits until a child has ended, and notes that; it is not reaped yet.
pub(crate) fn await_end(process: &Child) {
    if let Some(id) = pid(process) {
        // Until it is reaped, no other process can have its id and be killed by mistake.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(id), options).err() == Some(rustix::io::Errno::INTR) {}
        interrupt::remove_child(id);
    }
}

/// The id of a child.
pub(crate) fn pid(process: &Child) -> Option<Pid> {
    i32::try_from(process.id()).ok().and_then(Pid::from_raw)
}

fn job_name(spec: &Spec) -> String {
    let text = format!("{:?}", spec.job).to_lowercase();
    text.split('(').next().unwrap_or_default().to_owned()
}

/// Runs a job to its end and returns its last event.
pub(crate) fn run_job(spec: &Spec, mut hear: impl FnMut(&Event)) -> Result<Event> {
    let mut child = Running::start(spec)?;
    let mut last = None;
    while let Some(event) = child.next() {
        hear(&event);
        last = Some(event);
    }
    let status = child.wait()?;
    match last {
        Some(Event::Failed { code, message }) => Err(child.failure(code, message)),
        Some(event) if status.success() => Ok(event),
        _ => {
            // It may have been killed because of a signal.
            interrupt::check()?;
            Err(BenchError::Child(format!("{} ended without a result: {status}", child.what)))
        }
    }
}

/// The error when the last event of a child is not the result of its job.
pub(crate) fn unexpected(spec: &Spec) -> BenchError {
    BenchError::Child(format!(
        "the {} child ({}) gave no result",
        spec.backend.name(),
        job_name(spec)
    ))
}
