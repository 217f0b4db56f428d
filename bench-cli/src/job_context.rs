//! A child process's side: what it says to its parent, a line of JSON each ([`ChildMessage`]), and what it is told. A
//! workload is a function in the child that runs from its first line to its last. Where another engine may have its
//! turn it asks for one ([`JobContext::turn`]), and waits.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pleach_core::hexadecimal::hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::{self, Engine, EngineKind, Root, Setup};
use crate::error::{Error, Result, usage};
use crate::flags::Flags;
use crate::measure::{Figure, Unit};
use crate::signals;

/// Version of the files beside a database.
const VERSION: u64 = 2;

/// The stages of a workload that have processes of their own, so that memory and caches of one are not those of the
/// next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobStage {
    /// Loads a database, unless there is one that fits.
    Load,
    /// Measures.
    Run,
    /// Reads everything back.
    Check,
}

/// A message of a child.
#[derive(Debug, Serialize, Deserialize)]
pub enum ChildMessage {
    /// Progress; `of` is 0 where the total is unknown.
    Progress {
        done: u64,
        of: u64,
    },
    /// Asks for a turn.
    Turn,
    /// The first engine has decided a number.
    Decided(String, u64),
    Figure(Figure),
    /// A value that must be the same with other engines.
    Check(Check),
    Note(String),
    Setting(String, String),
    /// Columns over time, for charts.
    Series(Value),
    /// The commit of this block begins; this will be the root.
    Committing(u64, String),
    /// The commit is acknowledged.
    Committed(u64),
    Failed {
        code: u8,
        message: String,
    },
    Done,
}

/// A value that engines must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub value: String,
    /// True for a root, on which only engines with the same kind of root have to agree.
    pub is_root: bool,
}

/// The parent's answer to a child that has asked for a turn.
#[derive(Debug, Serialize, Deserialize)]
pub enum ParentMessage {
    /// Run this many turns.
    Go(u64),
    /// End: the figures so far count.
    Stop,
}

/// The child: its job, and its channel to the parent.
pub struct JobContext {
    pub kind: EngineKind,
    pub flags: Flags,
    pub stage: JobStage,
    pub folder: PathBuf,
    /// True for the first engine.
    pub first: bool,
    decided: BTreeMap<String, u64>,
    /// Turns left before the child has to ask.
    turns: u64,
    stopped: bool,
    told: Instant,
}

impl JobContext {
    /// A child without a message from its parent, except the numbers that the first engine has `decided`.
    pub fn new(
        (kind, stage, first): (EngineKind, JobStage, bool),
        flags: Flags,
        folder: PathBuf,
        decided: BTreeMap<String, u64>,
    ) -> Self {
        let (turns, stopped, told) = (0, false, Instant::now());
        Self { kind, flags, stage, folder, first, decided, turns, stopped, told }
    }

    /// Asks for a turn, unless some are left. False when the child must end.
    pub fn turn(&mut self) -> Result<bool> {
        if signals::is_stop_requested() || self.stopped {
            self.stopped = true;
            return Ok(false);
        }
        if self.turns == 0 {
            self.say(&ChildMessage::Turn)?;
            match line()? {
                Some(ParentMessage::Go(turns)) => self.turns = turns,
                Some(ParentMessage::Stop) => {
                    self.stopped = true;
                    return Ok(false);
                }
                None => return Err(Error::Failed("the parent is gone".to_owned())),
            }
        }
        self.turns -= 1;
        Ok(true)
    }

    /// True when the next turn is another engine's: work in the background has to end first.
    pub const fn is_turn_ending(&self) -> bool {
        self.turns == 0
    }

    /// True when this engine can say that enough was measured: the first one, at the end of a turn, so that all run the
    /// same turns.
    pub const fn can_decide(&self) -> bool {
        self.first && (self.turns == 0 || self.turns > u64::MAX / 2)
    }

    /// True when the engine was told to stop.
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// A number that is the same for all engines: the first one's.
    pub fn decided(&self, name: &str) -> Option<u64> {
        self.decided.get(name).copied()
    }

    /// Decides a number for the following engines.
    pub fn decide(&mut self, name: &str, number: u64) -> Result<()> {
        self.decided.insert(name.to_owned(), number);
        self.say(&ChildMessage::Decided(name.to_owned(), number))
    }

    #[expect(clippy::unused_self, reason = "only a child has a line to a parent")]
    pub fn say(&self, said: &ChildMessage) -> Result<()> {
        let mut text = serde_json::to_string(said)
            .map_err(|error| Error::Failed(format!("a line to the parent: {error}")))?;
        text.push('\n');
        let mut out = std::io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|error| Error::Failed(format!("the parent is gone: {error}")))
    }

    /// Reports progress, ten times a second at most.
    pub fn progress(&mut self, done: u64, of: u64) -> Result<()> {
        if self.told.elapsed() < Duration::from_millis(100) {
            return Ok(());
        }
        self.told = Instant::now();
        self.say(&ChildMessage::Progress { done, of })
    }

    pub fn figure(&self, figure: Figure) -> Result<()> {
        self.say(&ChildMessage::Figure(figure))
    }

    /// Reports a single number.
    pub fn value(&self, case: &str, name: &str, unit: Unit, value: f64) -> Result<()> {
        self.figure(Figure::one(case, name, unit, value))
    }

    pub fn note(&self, text: impl Into<String>) -> Result<()> {
        self.say(&ChildMessage::Note(text.into()))
    }

    /// Columns over time: an array of numbers for each name.
    pub fn series(&self, columns: Value) -> Result<()> {
        self.say(&ChildMessage::Series(columns))
    }

    /// Reports a value that engines must agree on.
    pub fn check(&self, name: impl Into<String>, value: impl Into<String>) -> Result<()> {
        self.say(&ChildMessage::Check(Check {
            name: name.into(),
            value: value.into(),
            is_root: false,
        }))
    }

    /// Reports a root; engines with the same commitment must have the same.
    pub fn check_root(&self, name: impl Into<String>, root: Option<&Root>) -> Result<()> {
        let Some(root) = root else { return Ok(()) };
        self.say(&ChildMessage::Check(Check { name: name.into(), value: hex(root), is_root: true }))
    }

    /// Reports that the commit of a block begins.
    pub fn committing(&self, number: u64, root: &Root) -> Result<()> {
        self.say(&ChildMessage::Committing(number, hex(root)))
    }

    /// Reports that the commit is acknowledged.
    pub fn committed(&self, number: u64) -> Result<()> {
        self.say(&ChildMessage::Committed(number))
    }

    /// Opens or creates the database in the child's folder, and reports its settings.
    pub fn open(&self, keys: u64) -> Result<Box<dyn Engine>> {
        let engine = self.open_in(self.folder.clone(), keys)?;
        self.settings(&*engine)?;
        Ok(engine)
    }

    /// Reports an engine's settings.
    pub fn settings(&self, engine: &dyn Engine) -> Result<()> {
        for (name, value) in engine.settings() {
            self.say(&ChildMessage::Setting(name.to_owned(), value))?;
        }
        Ok(())
    }

    /// Opens or creates a database in a folder of its own.
    pub fn open_in(&self, folder: PathBuf, keys: u64) -> Result<Box<dyn Engine>> {
        let cache_mib = self.flags.cache_mib;
        engine::open(self.kind, &Setup { folder, flags: &self.flags, keys, cache_mib })
    }

    /// Creates a database in a new folder below the child's, and reports its settings. Dropping the folder removes it.
    pub fn open_new(&self, keys: u64) -> Result<(tempfile::TempDir, Box<dyn Engine>)> {
        let folder = self.scratch()?;
        let engine = self.open_in(folder.path().to_owned(), keys)?;
        self.settings(&*engine)?;
        Ok((folder, engine))
    }

    /// Ends background work that would go on while the clock stands still.
    pub fn settle(&self, engine: &mut dyn Engine) -> Result<()> {
        if self.kind.caps().works_on { engine.drain(0) } else { Ok(()) }
    }

    /// Another engine in a folder, as an oracle.
    pub fn open_other(&self, kind: EngineKind, folder: PathBuf) -> Result<Box<dyn Engine>> {
        let setup = Setup { folder, flags: &self.flags, keys: 0, cache_mib: 64 };
        engine::open(kind, &setup)
    }

    /// An empty folder below the child's, which the caller removes by dropping the value.
    pub fn scratch(&self) -> Result<tempfile::TempDir> {
        std::fs::create_dir_all(&self.folder).map_err(Error::file(&self.folder))?;
        tempfile::tempdir_in(&self.folder).map_err(Error::file(&self.folder))
    }

    /// A file beside the child's folder.
    pub fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.folder.as_os_str().to_owned();
        name.push(ending);
        name.into()
    }

    /// True when there is a loaded database that was made with these parameters. If not, the child's folder is empty.
    pub fn find_loaded(&self, parameters: &Value) -> Result<bool> {
        let file = self.beside(".json");
        let text = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if self.folder.exists() {
                    let at = self.folder.display();
                    return usage(format!(
                        "{at} exists and is no benchmark's: choose another --dir"
                    ));
                }
                return Ok(false);
            }
            read => read.map_err(Error::file(&file))?,
        };
        let known = serde_json::from_str::<Value>(&text).unwrap_or_default();
        // What follows may remove the database: only one that this version has made.
        if known["nomt-bench"] != VERSION {
            let file = file.display();
            return usage(format!("{file} is not of this version: choose another --dir"));
        }
        if self.flags.reset || known["loaded"] != true {
            let [roots, blocks, stream] =
                [".roots", ".blocks", ".stream"].map(|one| self.beside(one));
            for path in [&self.folder, &roots, &blocks, &stream, &file] {
                let removed = if path.is_dir() {
                    std::fs::remove_dir_all(path)
                } else {
                    std::fs::remove_file(path)
                };
                match removed {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(Error::file(path)(error));
                    }
                    _ => {}
                }
            }
            return Ok(false);
        }
        if known["parameters"] != *parameters {
            return usage(format!(
                "{} was made with {}, and this run wants {parameters}: use that, another --dir, or --reset",
                self.folder.display(),
                known["parameters"]
            ));
        }
        // An engine would make an empty database there, and every value would be wrong.
        if std::fs::read_dir(&self.folder).into_iter().flatten().next().is_none() {
            let at = self.folder.display();
            return usage(format!(
                "{at} is empty, though a database was loaded there: say --reset"
            ));
        }
        Ok(true)
    }

    /// Notes that a load with these parameters begins, or has ended.
    pub fn note_loaded(&self, parameters: &Value, loaded: bool) -> Result<()> {
        let file = self.beside(".json");
        let text = serde_json::json!({
            "nomt-bench": VERSION, "parameters": parameters, "loaded": loaded
        });
        let fresh = self.beside(".json.new");
        std::fs::write(&fresh, text.to_string()).map_err(Error::file(&fresh))?;
        std::fs::rename(&fresh, &file).map_err(Error::file(&file))
    }
}

/// A line of standard input; none at its end.
pub fn line<T: for<'a> Deserialize<'a>>() -> Result<Option<T>> {
    let line = std::io::stdin().lines().next().transpose();
    let Some(text) = line.map_err(|error| Error::Failed(format!("the parent: {error}")))? else {
        return Ok(None);
    };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|error| Error::Usage(format!("this subcommand is internal ({error})")))
}
