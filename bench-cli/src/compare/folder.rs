//! The folder of a comparison: `NAME.json` is the result of a step, `NAME.step` says what it was measured with,
//! and `NAME.txt` and `NAME.err` are what the step printed. A step that has both of the first is not measured
//! again by the same build.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::compare::estimate::Measured;
use crate::compare::plan::Step;
use crate::error::{BenchError, Result};
use crate::home;
use crate::measure::float;
use crate::text::hex;

/// Says that a folder is a comparison's, which may remove and overwrite what it has made there. Locked while one
/// runs.
const MARK: &str = "nomt-bench-compare.lock";
/// Where databases are while a step runs, in the folder.
const SCRATCH: &str = "databases";

/// What a result was measured with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    arguments: Vec<String>,
    /// Digest of the executable.
    build: String,
    seconds: f64,
    /// What the plan had for it; older records have none.
    #[serde(default)]
    planned_seconds: f64,
    /// The most that its files had.
    #[serde(default)]
    disk_mib: Option<f64>,
}

/// What became of a step.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Measured {
        /// The JSON that the step wrote.
        result: Box<Value>,
    },
    Failed {
        /// Its last words.
        why: String,
    },
}

/// A step that was measured, now or before, or that failed.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    step: Step,
    seconds: f64,
    kept: bool,
    outcome: Outcome,
}

impl Done {
    pub(crate) const fn name(&self) -> &'static str {
        self.step.name
    }

    pub(crate) fn arguments(&self) -> &[String] {
        &self.step.arguments
    }

    pub(crate) const fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Was it measured by an earlier command?
    pub(crate) const fn kept(&self) -> bool {
        self.kept
    }

    pub(crate) const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    pub(crate) fn result(&self) -> Option<&Value> {
        match &self.outcome {
            Outcome::Measured { result } => Some(result),
            Outcome::Failed { .. } => None,
        }
    }
}

/// Locks a folder that is a comparison's, or empty.
fn own(at: &Path) -> Result<File> {
    let mark = at.join(MARK);
    let mut entries = std::fs::read_dir(at).map_err(BenchError::file(at))?;
    if !mark.exists() && entries.next().is_some() {
        let text = format!("{} has other files: name a new folder with --dir", at.display());
        return Err(BenchError::Usage(text));
    }
    home::lock(&mark)
}

/// The folder, and which build measures.
#[derive(Debug)]
pub(crate) struct Folder {
    at: PathBuf,
    build: String,
    /// Held until the end.
    _lock: File,
}

impl Folder {
    /// A folder that is there and can be written.
    pub(crate) fn new(at: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| BenchError::Child(format!("this program: {error}"));
        let program = std::env::current_exe().and_then(std::fs::read).map_err(failed)?;
        let build = hex(blake3::hash(&program).as_bytes());
        // Absolute: the steps get it as an argument.
        let at = std::path::absolute(at).map_err(BenchError::file(at))?;
        let lock = own(&at)?;
        let folder = Self { at, build, _lock: lock };
        // A command that was killed may have left databases.
        folder.clear_scratch()?;
        Ok(folder)
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// Where a step may put its databases.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.file(SCRATCH)
    }

    /// Removes the databases of a step.
    pub(crate) fn clear_scratch(&self) -> Result<()> {
        let scratch = self.scratch();
        match std::fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(BenchError::file(&scratch)(error))
            }
            _ => Ok(()),
        }
    }

    /// The result of a step that this build has measured with these arguments.
    pub(crate) fn find(&self, step: &Step) -> Option<Done> {
        let record = self.record(step.name)?;
        if record.arguments != step.arguments || record.build != self.build {
            return None;
        }
        let result = self.read(step).ok()?;
        let outcome = Outcome::Measured { result: Box::new(result) };
        Some(Done { step: step.clone(), seconds: record.seconds, kept: true, outcome })
    }

    fn record(&self, name: &str) -> Option<Record> {
        let text = std::fs::read_to_string(self.file(&format!("{name}.step"))).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// What workloads of these names took, measured by any build with any arguments.
    pub(crate) fn measured(&self, names: &[&str]) -> Vec<Measured> {
        let of = |name: &&str| {
            let Record { arguments, seconds, planned_seconds, disk_mib, .. } = self.record(name)?;
            let name = (*name).to_owned();
            Some(Measured { name, arguments, planned_seconds, seconds, disk_mib })
        };
        names.iter().filter_map(of).collect()
    }

    fn read(&self, step: &Step) -> Result<Value> {
        let path = self.file(&format!("{}.json", step.name));
        let text = std::fs::read_to_string(&path).map_err(BenchError::file(&path))?;
        let broken = |error| BenchError::Child(format!("{}: {error}", path.display()));
        serde_json::from_str(&text).map_err(broken)
    }

    /// Forgets what a step has measured, before it measures again.
    pub(crate) fn forget(&self, step: &Step) -> Result<()> {
        let path = self.file(&format!("{}.step", step.name));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(BenchError::file(&path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Notes that a step has written its result. The record comes last: without it, the step is measured again.
    pub(crate) fn keep(&self, step: &Step, seconds: f64, disk_mib: f64) -> Result<Done> {
        let result = Box::new(self.read(step)?);
        let record = Record {
            arguments: step.arguments.clone(),
            build: self.build.clone(),
            seconds,
            planned_seconds: float(step.planned_seconds),
            disk_mib: Some(disk_mib),
        };
        let path = self.file(&format!("{}.step", step.name));
        let fresh = path.with_extension("step.new");
        let text = serde_json::to_string_pretty(&record)
            .map_err(|error| BenchError::Child(format!("{}: {error}", path.display())))?;
        std::fs::write(&fresh, text).map_err(BenchError::file(&fresh))?;
        std::fs::rename(&fresh, &path).map_err(BenchError::file(&path))?;
        let outcome = Outcome::Measured { result };
        Ok(Done { step: step.clone(), seconds, kept: false, outcome })
    }

    /// Notes that a step has failed.
    pub(crate) fn failed(step: &Step, seconds: f64, why: String) -> Done {
        Done { step: step.clone(), seconds, kept: false, outcome: Outcome::Failed { why } }
    }
}
