//! The parent: gives each engine a child process, grants them turns, and compares their messages.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::engine::EngineKind;
use crate::error::{Error, Result, usage, wrong};
use crate::flags::Flags;
use crate::job::Job;
use crate::job_context::{Check, ChildMessage, JobStage, ParentMessage};
use crate::machine::{self, gib};
use crate::measure::grouped;
use crate::progress::ProgressReporter;
use crate::results::EngineRun;
use crate::work::{self, Workload};
use crate::{report, signals};

/// An engine, and the executable of its children.
pub struct Backend {
    pub label: String,
    pub kind: EngineKind,
    program: PathBuf,
    folder: PathBuf,
    pub run: EngineRun,
}

/// A child of a lead.
pub struct RunningChild {
    process: Child,
    said: Lines<BufReader<ChildStdout>>,
    told: ChildStdin,
    what: String,
    reaped: bool,
}

impl RunningChild {
    /// The child's next message; none when it has closed its output. Other lines, such as those that an engine prints,
    /// go to standard error.
    pub fn next(&mut self) -> Option<ChildMessage> {
        loop {
            let line = match self.said.next()? {
                Ok(line) => line,
                // An engine may print anything.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => continue,
                Err(_) => return None,
            };
            match serde_json::from_str(&line) {
                Ok(said) => return Some(said),
                Err(_) => crate::output::say(&line),
            }
        }
    }

    /// Grants a turn, or ends it.
    fn tell(&mut self, told: &ParentMessage) {
        // A failed child has closed its input, and reports why.
        let _ = writeln!(self.told, "{}", serde_json::json!(told));
    }

    /// Kills the child with SIGKILL after some time, from another thread.
    pub fn kill_after(&self, time: core::time::Duration) -> std::thread::JoinHandle<()> {
        let id = signals::pid(&self.process);
        std::thread::spawn(move || {
            std::thread::sleep(time);
            if let Some(id) = id {
                // It may have ended by itself; it is not reaped before this thread is joined.
                let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
            }
        })
    }

    /// Waits until the child has ended.
    pub fn wait(&mut self) -> Result<std::process::ExitStatus> {
        self.reaped = true;
        signals::wait(&mut self.process)
    }

    pub fn failed(&self, why: &str) -> Error {
        Error::Failed(format!("{}: {why}", self.what))
    }

    /// The error of a child that has reported its failure.
    pub fn failure(&self, code: u8, message: String) -> Error {
        match (signals::caught(), code) {
            (Some(signal), 128..) => Error::Interrupted(signal),
            (_, 2) => Error::Usage(message),
            _ => Error::Failed(format!("{message} ({})", self.what)),
        }
    }

    /// The error of a child that has ended without a message.
    fn silent(&mut self) -> Error {
        let status = self.wait();
        match (signals::caught(), status) {
            (Some(signal), _) => Error::Interrupted(signal),
            (None, Ok(status)) if status.code() == Some(2) => Error::Usage(format!(
                "{}: it takes no jobs of this build: --beside wants a build of the same version",
                self.what
            )),
            (None, Ok(status)) => self.failed(&format!("ended without a result: {status}")),
            (None, Err(error)) => error,
        }
    }
}

impl Drop for RunningChild {
    fn drop(&mut self) {
        // One is left only if the parent has failed.
        if !self.reaped {
            let _ = self.process.kill();
            let _ = self.wait();
        }
    }
}

/// A command that runs a workload: its flags, its leads, and where they are.
pub struct Bench {
    pub work: Workload,
    pub flags: Flags,
    pub leads: Vec<Backend>,
    pub root: PathBuf,
    decided: BTreeMap<String, u64>,
    notes: Vec<String>,
    progress: ProgressReporter,
    /// Locked by the process that uses a `--dir`.
    _lock: Option<std::fs::File>,
    _temporary: Option<tempfile::TempDir>,
}

/// The end of a child, or its request for another turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChildRequest {
    Turn,
    Done,
}

/// Runs a workload, and reports.
pub fn run(work: Workload, flags: Flags) -> Result<()> {
    let (mut bench, plan) = Bench::new(work, flags)?;
    let measured = bench.stages(&plan);
    bench.report(measured)
}

/// Refuses files of results that cannot be written, and the folder of a database, before anything is measured.
pub fn check_files(flags: &Flags) -> Result<()> {
    for path in [&flags.json, &flags.report].into_iter().flatten() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
            return usage(format!("{} cannot be written: name a file in a folder", path.display()));
        }
    }
    if let Some(dir) = flags.dir.as_ref().filter(|dir| pleach_ops::id(dir).is_ok()) {
        let dir = dir.display();
        return usage(format!("{dir} is a database: choose another --dir"));
    }
    Ok(())
}

impl Bench {
    /// Finds engines and their folders for a workload; refuses invalid combinations.
    pub fn new(work: Workload, mut flags: Flags) -> Result<(Self, work::WorkPlan)> {
        check_files(&flags)?;
        let plan = work::plan(&work, &flags)?;
        flags.durability = flags.asked_durability.unwrap_or(plan.durability);
        signals::listen()?;
        let mut kinds = Vec::new();
        let mut notes = Vec::new();
        for name in &flags.backend {
            let kind = EngineKind::parse(name)?;
            if kinds.contains(&kind) {
                return usage(format!(
                    "--backend names {name} twice: --beside compares two builds"
                ));
            }
            match (plan.runs)(kind) {
                Ok(()) => kinds.push(kind),
                Err(why) => notes.push(format!("{name} is left out: {why}")),
            }
        }
        if kinds.is_empty() {
            let why = notes.join("; ");
            return usage(format!("no engine of --backend runs {}: {why}", work.name()));
        }
        for arg in &flags.peer_arg {
            let peer = arg.split_once('.').map_or(arg.as_str(), |(peer, _)| peer);
            if !flags.backend.iter().any(|name| name == peer) {
                return usage(format!(
                    "--peer-arg {arg}: say ENGINE.NAME=VALUE, of an engine in --backend"
                ));
            }
        }
        // With another build three of them run.
        let all = if flags.beside.is_some() { kinds.repeat(3) } else { kinds.clone() };
        plan.check_fits(&all, &flags)?;
        let (root, temporary, lock) = root(&flags, plan.reuses)?;
        notes.extend(machine::note(&root));
        let bench = Self {
            leads: leads(&flags, &kinds, &root)?,
            work,
            progress: ProgressReporter::new(flags.quiet),
            flags,
            root,
            decided: BTreeMap::new(),
            notes,
            _lock: lock,
            _temporary: temporary,
        };
        Ok((bench, plan))
    }

    /// Starts a lead's child.
    pub fn start(&self, lead: usize, stage: JobStage) -> Result<RunningChild> {
        let Backend { label, kind, program, folder, .. } = &self.leads[lead];
        let what = format!("{label}, {stage:?}");
        let job = Job {
            work: self.work.clone(),
            flags: self.flags.clone(),
            stage,
            kind: *kind,
            folder: folder.clone(),
            first: lead == 0,
            decided: self.decided.clone(),
        };
        let mut command = Command::new(program);
        command.arg("__job").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = signals::spawn(&mut command)?;
        let (Some(mut told), Some(said)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Error::Failed(format!("{what}: no pipes")));
        };
        let text = serde_json::to_string(&job)
            .map_err(|error| Error::Failed(format!("{what}: {error}")))?;
        // One that was killed by a signal does not take it, which its silence will tell.
        let _ = writeln!(told, "{text}");
        Ok(RunningChild { process, said: BufReader::new(said).lines(), told, what, reaped: false })
    }

    /// Runs a lead's child to its end, whatever turns it asks for.
    pub fn run_to_end(&mut self, lead: usize, stage: JobStage) -> Result<()> {
        let mut child = self.start(lead, stage)?;
        while self.read_until_turn(lead, &mut child)? == ChildRequest::Turn {
            signals::stops(&child.process, true);
            child.tell(&ParentMessage::Go(u64::MAX));
        }
        Ok(())
    }

    fn stages(&mut self, plan: &work::WorkPlan) -> Result<()> {
        for stage in plan.stages {
            if *stage == JobStage::Run && self.flags.drop_caches {
                let cure = |why| {
                    Error::Usage(format!("{why}: run it as root, or leave --drop-caches out"))
                };
                machine::drop_caches().map_err(cure)?;
            }
            let step = self.flags.alternate.unwrap_or(plan.alternate);
            if *stage == JobStage::Run && step > 0 && self.leads.len() > 1 {
                self.in_turns(step)?;
            } else {
                for lead in 0..self.leads.len() {
                    self.run_to_end(lead, *stage)?;
                }
            }
            if let Some(signal) = signals::caught() {
                return Err(Error::Interrupted(signal));
            }
        }
        Ok(())
    }

    /// Grants turns to living children, in reversed order every second time, so that disturbances of the machine affect
    /// all, and a steady drift favours none.
    fn in_turns(&mut self, step: u64) -> Result<()> {
        let mut alive = Vec::new();
        for lead in 0..self.leads.len() {
            let mut child = self.start(lead, JobStage::Run)?;
            if self.read_until_turn(lead, &mut child)? == ChildRequest::Turn {
                signals::stops(&child.process, true);
                alive.push((lead, child));
            }
        }
        while !alive.is_empty() {
            let mut done = false;
            let mut asking = Vec::new();
            for (lead, mut child) in alive.drain(..) {
                child.tell(&ParentMessage::Go(step));
                match self.read_until_turn(lead, &mut child)? {
                    ChildRequest::Turn => asking.push((lead, child)),
                    ChildRequest::Done => done = true,
                }
            }
            // The first to be done decides for all: they have done the same by then.
            if done || signals::caught().is_some() {
                for (lead, mut child) in asking.drain(..) {
                    child.tell(&ParentMessage::Stop);
                    self.read_until_turn(lead, &mut child)?;
                }
            }
            asking.reverse();
            alive = asking;
        }
        Ok(())
    }

    /// Takes a child's messages until it asks for a turn or ends.
    fn read_until_turn(&mut self, lead: usize, child: &mut RunningChild) -> Result<ChildRequest> {
        let heard = loop {
            let Some(said) = child.next() else { break Err(child.silent()) };
            let run = &mut self.leads[lead].run;
            match said {
                ChildMessage::Turn => break Ok(ChildRequest::Turn),
                ChildMessage::Done => {
                    child.wait()?;
                    break Ok(ChildRequest::Done);
                }
                ChildMessage::Failed { code, message } => break Err(child.failure(code, message)),
                ChildMessage::Progress { done, of } => {
                    let of = if of > 0 { format!(" of {}", grouped(of)) } else { String::new() };
                    self.progress.show(&format!("{}: {}{of}", child.what, grouped(done)));
                }
                ChildMessage::Decided(name, number) => {
                    self.decided.entry(name).or_insert(number);
                }
                ChildMessage::Figure(figure) => run.figures.push(figure),
                ChildMessage::Check(check) => {
                    if check.is_root {
                        run.root = Some(check.value.clone());
                    }
                    run.checks.push(check);
                }
                ChildMessage::Note(text) if !run.notes.contains(&text) => run.notes.push(text),
                ChildMessage::Setting(name, value) => {
                    run.settings.insert(name, value);
                }
                ChildMessage::Series(columns) => run.series = columns,
                ChildMessage::Note(_)
                | ChildMessage::Committing(..)
                | ChildMessage::Committed(_) => {}
            }
        };
        self.progress.clear();
        heard
    }

    /// Checks that equal values are equal, and reports those that were not compared.
    fn compare(&mut self) -> Result<()> {
        let mut known: BTreeMap<(bool, &str), (&str, &str)> = BTreeMap::new();
        let (mut compared, mut engines) = (0_u64, BTreeSet::new());
        // Where each engine has ended, such as `7 batches`: that is in the name of its last root or digest.
        let mut ends: BTreeMap<&str, &str> = BTreeMap::new();
        for Backend { label, kind, run, .. } in &self.leads {
            for Check { name, value, is_root } in &run.checks {
                if let Some((_, end)) = name.split_once(" after ") {
                    ends.insert(label, end);
                }
                if *is_root && !kind.caps().our_root {
                    continue;
                }
                let first = known.entry((*is_root, name)).or_insert((label, value));
                if first.1 != value {
                    return wrong(format!(
                        "{name}: {} has {}, and {label} has {value}",
                        first.0, first.1
                    ));
                }
                if first.0 != label {
                    compared += 1;
                    engines.extend([first.0, label]);
                }
            }
        }
        if compared > 0 {
            let engines: Vec<&str> = engines.into_iter().collect();
            self.notes
                .push(format!("{compared} roots and digests are the same: {}", engines.join(", ")));
        } else if self.leads.len() > 1 {
            self.notes.push(
                "no root or digest was compared between engines: each was checked alone".to_owned(),
            );
        }
        if ends.values().collect::<BTreeSet<_>>().len() > 1 {
            let ends: Vec<_> = ends.iter().map(|(label, end)| format!("{label} {end}")).collect();
            let ends = ends.join(", ");
            self.notes.push(format!("NOT THE SAME WORK: the engines are now after: {ends}"));
        }
        Ok(())
    }

    /// Compares and publishes what was measured.
    pub fn report(mut self, measured: Result<()>) -> Result<()> {
        // What was measured until then is worth something.
        let has_figures = self.leads.iter().any(|lead| !lead.run.figures.is_empty());
        let failed = match measured {
            Err(Error::Interrupted(_)) if has_figures => Ok(()),
            Err(error) if !has_figures || error.code() == 2 => return Err(error),
            measured => measured,
        };
        let outcome = failed.and(self.compare());
        if let Err(error) = &outcome {
            self.notes.insert(0, format!("FAILED: {error}"));
        }
        let runs =
            self.leads.into_iter().map(|lead| lead.run).filter(|run| !run.figures.is_empty());
        report::publish(self.work.name(), &self.root, &self.flags, runs.collect(), self.notes)?;
        outcome?;
        signals::caught().map_or(Ok(()), |signal| Err(Error::CutShort(signal)))
    }
}

/// The engines, each in a folder of its own; with another build beside this one three of them.
fn leads(flags: &Flags, kinds: &[EngineKind], root: &Path) -> Result<Vec<Backend>> {
    let most = machine::most(root);
    let own = std::env::current_exe().map_err(Error::file(Path::new("this program")))?;
    let lead = |label: &str, kind: EngineKind, program: &Path| Backend {
        label: label.to_owned(),
        kind,
        program: program.to_owned(),
        folder: root.join(label),
        run: EngineRun::new(label, kind.version(), kind.level(flags.durability).min(most)),
    };
    let mut leads: Vec<Backend> = kinds.iter().map(|kind| lead(kind.name(), *kind, &own)).collect();
    if let Some(other) = &flags.beside {
        if *kinds != [EngineKind::Pleach] {
            return usage("--beside compares two builds of pleach: leave --backend out");
        }
        let other = other
            .canonicalize()
            .map_err(|error| Error::Usage(format!("--beside {}: {error}", other.display())))?;
        leads.push(lead("other build", EngineKind::Pleach, &other));
        leads[1].run.version = other.display().to_string();
        leads.push(lead("pleach again", EngineKind::Pleach, &own));
    }
    Ok(leads)
}

/// The folder of all leads, what removes it, and what locks it.
type RunRoot = (PathBuf, Option<tempfile::TempDir>, Option<std::fs::File>);

fn root(flags: &Flags, reuses: bool) -> Result<RunRoot> {
    let named = |at: &Path, error: std::io::Error| {
        let text = format!("no folder can be made in {} ({error})", at.display());
        Error::Usage(format!("{text}: name another with --dir or TMPDIR"))
    };
    if let Some(dir) = &flags.dir {
        std::fs::create_dir_all(dir).map_err(|error| named(dir, error))?;
    }
    if let Some(dir) = flags.dir.as_ref().filter(|_| reuses) {
        // The folder itself is locked, and a file without a name tried: one that is refused later stays as it is.
        let lock = std::fs::File::open(dir).map_err(|error| named(dir, error))?;
        tempfile::tempfile_in(dir).map_err(|error| named(dir, error))?;
        return match lock.try_lock() {
            Ok(()) => Ok((dir.clone(), None, Some(lock))),
            Err(std::fs::TryLockError::WouldBlock) => usage(format!(
                "another nomt-bench uses {}: wait until it ends, or name another --dir",
                dir.display()
            )),
            Err(std::fs::TryLockError::Error(error)) => Err(Error::file(dir)(error)),
        };
    }
    let at = flags.dir.clone().unwrap_or_else(machine::temporary);
    let made = tempfile::Builder::new().prefix("nomt-bench-").tempdir_in(&at);
    let made = made.map_err(|error| named(&at, error))?;
    if flags.keep {
        let kept = made.keep();
        crate::output::say(&format!("nomt-bench: keeping {}", kept.display()));
        return Ok((kept, None, None));
    }
    signals::remove_at_end(made.path().to_owned());
    Ok((made.path().to_owned(), Some(made), None))
}

impl work::WorkPlan {
    /// Refuses what the machine has no room for, and says how much it is.
    fn check_fits(&self, kinds: &[EngineKind], flags: &Flags) -> Result<()> {
        let together = flags.alternate.unwrap_or(self.alternate) > 0;
        let memory = kinds.iter().map(|kind| kind.memory(flags.cache_mib, self.keys));
        let memory: u64 = if together { memory.sum() } else { memory.max().unwrap_or(0) };
        let free = machine::free_memory().unwrap_or(u64::MAX);
        if memory > free {
            return usage(format!(
                "this needs about {} of memory and {} are free: lower --cache-mib, or name fewer engines",
                gib(memory),
                gib(free)
            ));
        }
        let disk: u64 = kinds.iter().map(|kind| kind.disk(flags, self.keys, self.writes)).sum();
        let at = flags.dir.clone().unwrap_or_else(machine::temporary);
        let there: u64 = match &flags.dir {
            Some(dir) if self.reuses => {
                kinds.iter().map(|kind| machine::folder_bytes(&dir.join(kind.name()))).sum()
            }
            _ => 0,
        };
        let free = machine::free_disk(&at).unwrap_or(u64::MAX);
        if disk.saturating_sub(there) > free {
            return usage(format!(
                "this needs about {} in {} and {} are free: name a larger device with --dir, or do less",
                gib(disk),
                at.display(),
                gib(free)
            ));
        }
        Ok(())
    }
}
