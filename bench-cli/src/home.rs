//! The folder of a run: one subfolder per backend, and next to each its parameters (`BACKEND.json`)
//! and its record of roots (`BACKEND.roots`).
//!
//! A database is reused only with the parameters that it was made with. What is not ours is never
//! removed.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::backend::{Kind, Place};
use crate::child::LoadResult;
use crate::draws::{Closing, Stream};
use crate::error::{BenchError, Result};
use crate::{interrupt, output};

/// Version of the parameter file.
const SCHEMA: u32 = 1;
/// Locked by the process that uses a `--dir`. It is never removed: all processes lock the same file.
const LOCK: &str = "nomt-bench.lock";

/// What a database was made with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Parameters {
    schema: u32,
    pub(crate) log2: u32,
    /// Absent until the load has ended.
    pub(crate) loaded: Option<LoadResult>,
    /// Absent until the first batches are run.
    pub(crate) stream: Option<Stream>,
}

/// The folder.
#[derive(Debug)]
pub(crate) struct Home {
    root: PathBuf,
    /// Removed with this value.
    _temporary: Option<TempDir>,
    /// Held as long as this value: another process would remove the databases that are open here.
    _lock: Option<File>,
}

impl Home {
    /// `--dir`, or a temporary folder that is removed with this value unless it is to be kept.
    pub(crate) fn new(dir: Option<&Path>, keep: bool) -> Result<Self> {
        if let Some(dir) = dir {
            make_usable(dir)?;
            let lock = lock(&dir.join(LOCK))?;
            return Ok(Self { root: dir.to_owned(), _temporary: None, _lock: Some(lock) });
        }
        let made = tempfile::Builder::new().prefix("nomt-bench-").tempdir();
        let temporary = made.map_err(|error| {
            let at = std::env::temp_dir();
            let text = format!("no folder can be made in {} ({error})", at.display());
            BenchError::Usage(format!("{text}: name another with --dir or TMPDIR"))
        })?;
        let root = temporary.path().to_owned();
        if keep {
            let root = temporary.keep();
            output::say(&format!("nomt-bench: keeping {}", root.display()));
            return Ok(Self { root, _temporary: None, _lock: None });
        }
        interrupt::remove_at_end(root.clone());
        Ok(Self { root, _temporary: Some(temporary), _lock: None })
    }

    /// The folder itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where a backend's files are.
    pub(crate) fn place(&self, kind: Kind) -> Place {
        Place {
            folder: self.root.join(kind.name()),
            roots: self.root.join(format!("{}.roots", kind.name())),
        }
    }

    fn parameter_file(&self, kind: Kind) -> PathBuf {
        self.root.join(format!("{}.json", kind.name()))
    }

    /// The parameters of a loaded database that fits. `None` if it must be loaded; then the place for
    /// it is empty.
    pub(crate) fn find(
        &self,
        kind: Kind,
        log2: u32,
        stream: Option<&Stream>,
        reset: bool,
    ) -> Result<Option<Parameters>> {
        let known = self.read(kind)?;
        let Some(parameters) = known else {
            let place = self.place(kind);
            if place.folder.exists() {
                let text = format!(
                    "{} exists and is no benchmark's database: choose another --dir",
                    place.folder.display()
                );
                return Err(BenchError::Usage(text));
            }
            return Ok(None);
        };
        if reset || parameters.loaded.is_none() {
            self.clear(kind)?;
            return Ok(None);
        }
        self.compare(kind, &parameters, log2, stream)?;
        // An engine would create an empty database there, and every account would be wrong.
        let folder = self.place(kind).folder;
        let mut entries = std::fs::read_dir(&folder).into_iter().flatten();
        if entries.next().is_none() {
            let file = self.parameter_file(kind);
            return Err(BenchError::Usage(format!(
                "{} says that {} holds a database, but that is missing: put it back, or say \
                 --reset to load it again",
                file.display(),
                folder.display()
            )));
        }
        Ok(Some(parameters))
    }

    fn compare(
        &self,
        kind: Kind,
        parameters: &Parameters,
        log2: u32,
        stream: Option<&Stream>,
    ) -> Result<()> {
        let mut differences = Vec::new();
        let mut differ = |flag: &str, theirs: String, ours: String| {
            if theirs != ours {
                differences.push(format!("--{flag} {theirs} (not {ours})"));
            }
        };
        differ("log2", parameters.log2.to_string(), log2.to_string());
        if let (Some(theirs), Some(ours)) = (&parameters.stream, stream) {
            differ("seed", theirs.seed.to_string(), ours.seed.to_string());
            differ("batch", theirs.batch.to_string(), ours.batch.to_string());
            differ("fresh", theirs.fresh.to_string(), ours.fresh.to_string());
            let of = |stream: &Stream| stream.distribution.to_string();
            differ("distribution", of(theirs), of(ours));
            let closing = |of: fn(&Closing) -> u32, stream: &Stream| {
                stream.closing.map_or_else(|| "of no soak".to_owned(), |one| of(&one).to_string())
            };
            let both = |of| (closing(of, theirs), closing(of, ours));
            for (flag, (theirs, ours)) in
                [("deletes", both(|one| one.deletes)), ("life", both(|one| one.life))]
            {
                differ(flag, theirs, ours);
            }
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(BenchError::Usage(format!(
            "the {} database in {} was made with {}: use that, another --dir, or --reset",
            kind.name(),
            self.root.display(),
            differences.join(", ")
        )))
    }

    /// Reads a backend's parameters.
    pub(crate) fn read(&self, kind: Kind) -> Result<Option<Parameters>> {
        let path = self.parameter_file(kind);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(BenchError::file(&path)(error)),
        };
        let unknown =
            || BenchError::Usage(format!("{} is not ours: choose another --dir", path.display()));
        let parameters: Parameters = serde_json::from_str(&text).map_err(|_| unknown())?;
        if parameters.schema == SCHEMA { Ok(Some(parameters)) } else { Err(unknown()) }
    }

    /// Writes a backend's parameters.
    pub(crate) fn write(
        &self,
        kind: Kind,
        log2: u32,
        loaded: Option<&LoadResult>,
        stream: Option<&Stream>,
    ) -> Result<()> {
        let parameters =
            Parameters { schema: SCHEMA, log2, loaded: loaded.cloned(), stream: stream.copied() };
        let path = self.parameter_file(kind);
        let fresh = path.with_extension("json.new");
        let text = serde_json::to_string_pretty(&parameters)
            .map_err(|error| BenchError::Child(format!("{}: {error}", path.display())))?;
        std::fs::write(&fresh, text).map_err(BenchError::file(&fresh))?;
        std::fs::rename(&fresh, &path).map_err(BenchError::file(&path))
    }

    /// Removes one of our databases. Its parameters go last, so that a second attempt finds it again.
    fn clear(&self, kind: Kind) -> Result<()> {
        let place = self.place(kind);
        let gone = |path: &Path, result: std::io::Result<()>| match result {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(BenchError::file(path)(error))
            }
            _ => Ok(()),
        };
        gone(&place.folder, std::fs::remove_dir_all(&place.folder))?;
        gone(&place.roots, std::fs::remove_file(&place.roots))?;
        let path = self.parameter_file(kind);
        gone(&path, std::fs::remove_file(&path))
    }
}

/// Locks a file in a folder until the value goes; makes the file if there is none.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).map_err(BenchError::file(path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let at = path.parent().unwrap_or(path).display();
            let text = format!(
                "another nomt-bench uses {at}: wait until it ends, or name another folder with --dir"
            );
            Err(BenchError::Usage(text))
        }
        Err(TryLockError::Error(error)) => Err(BenchError::file(path)(error)),
    }
}

/// Makes the folder if there is none, and tries to make a file in it.
pub(crate) fn make_usable(dir: &Path) -> Result<()> {
    let cure = "name another folder with --dir";
    if dir.exists() && !dir.is_dir() {
        return Err(BenchError::Usage(format!("{} is a file: {cure}", dir.display())));
    }
    std::fs::create_dir_all(dir).map_err(|error| {
        BenchError::Usage(format!("{} cannot be made ({error}): {cure}", dir.display()))
    })?;
    check_writable(dir)
}

/// Tries to make a file in a folder.
pub(crate) fn check_writable(dir: &Path) -> Result<()> {
    let probe = dir.join(format!(".nomt-bench-{}", std::process::id()));
    std::fs::File::create_new(&probe).and_then(|_| std::fs::remove_file(&probe)).map_err(|error| {
        let at = dir.display();
        BenchError::Usage(format!(
            "no file can be made in {at} ({error}): name another folder with --dir"
        ))
    })
}
