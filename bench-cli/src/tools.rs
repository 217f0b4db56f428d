//! The binary `pleach`: look into a database folder. Reading only; one clear line on errors.
//! Exit code 0: fine; 1: the database is damaged, busy, or holds findings; 2: bad arguments.

use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use pleach::tools::{self, CheckOptions};
use pleach_core::Key;

use crate::account::{from_hex, hex};
use crate::args;
use crate::error::{BenchError, Result};

/// Look into a Pleach database.
#[derive(Debug, Parser)]
#[command(name = "pleach", version, about)]
struct ToolsCli {
    #[command(subcommand)]
    command: ToolsCommand,
}

#[derive(Debug, Subcommand)]
enum ToolsCommand {
    /// What is in the folder: root, counts, sizes
    Stat(Folder),
    /// Reads everything and lists what does not fit; exit code 1 with findings
    Check(CheckArgs),
    /// All pairs in key order, one a line, in hexadecimal
    Dump(Folder),
    /// Where a key lies, page by page
    Explain(ExplainArgs),
}

#[derive(Debug, Args)]
struct Folder {
    /// The database folder
    folder: PathBuf,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    folder: Folder,
    /// The root that the database must have, 64 hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = digits)]
    root: Option<Key>,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    #[command(flatten)]
    folder: Folder,
    /// The key, 64 hexadecimal digits
    #[arg(value_name = "HEX", value_parser = digits)]
    key: Key,
}

fn digits(text: &str) -> core::result::Result<Key, String> {
    from_hex(text).ok_or_else(|| "say 64 hexadecimal digits".to_owned())
}

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("database")(error)
}

/// The whole of `pleach`.
pub(crate) fn main() -> ExitCode {
    let cli = match args::parse::<ToolsCli>() {
        Ok(cli) => cli,
        Err(None) => return ExitCode::SUCCESS,
        Err(Some(error)) => return error.report("pleach"),
    };
    let outcome = match cli.command {
        ToolsCommand::Stat(folder) => stat(&folder),
        ToolsCommand::Check(args) => check(&args),
        ToolsCommand::Dump(folder) => dump(&folder),
        ToolsCommand::Explain(args) => explain(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report("pleach"),
    }
}

impl Folder {
    /// The folder, if it is one: a typing error is the caller's, not the database's.
    fn path(&self) -> Result<&Path> {
        if self.folder.is_dir() {
            return Ok(&self.folder);
        }
        Err(BenchError::Usage(format!("{} is no folder", self.folder.display())))
    }
}

fn stat(folder: &Folder) -> Result<()> {
    let stat = tools::stat(folder.path()?).map_err(wrap)?;
    out(|to| writeln!(to, "{stat}"))
}

fn check(args: &CheckArgs) -> Result<()> {
    let path = args.folder.path()?;
    let report = tools::check(path, CheckOptions::default()).map_err(wrap)?;
    let mut findings = report.findings;
    if let Some(wanted) = args.root {
        let stat = tools::stat(path).map_err(wrap)?;
        if stat.root != wanted {
            findings.push(format!("the root is {}", hex(&stat.root)));
        }
    }
    out(|to| {
        findings.iter().try_for_each(|finding| writeln!(to, "{finding}"))?;
        if findings.is_empty() { writeln!(to, "nothing found") } else { Ok(()) }
    })?;
    match findings.len() {
        0 => Ok(()),
        count => Err(BenchError::Wrong(format!("{count} findings"))),
    }
}

fn dump(folder: &Folder) -> Result<()> {
    let path = folder.path()?;
    let mut failed = Ok(());
    out(|to| {
        let mut broken = Ok(());
        failed = tools::dump(path, &mut |key: &Key, value: &[u8]| {
            broken = writeln!(to, "{} {}", hex(key), hex(value));
            broken.is_ok()
        })
        .map_err(wrap);
        broken
    })?;
    failed
}

fn explain(args: &ExplainArgs) -> Result<()> {
    let explanation = tools::explain(args.folder.path()?, &args.key).map_err(wrap)?;
    out(|to| writeln!(to, "{explanation}"))
}

/// Writes to standard output. A reader that has enough (`head`) is no error.
fn out(
    write: impl FnOnce(&mut BufWriter<std::io::StdoutLock<'static>>) -> std::io::Result<()>,
) -> Result<()> {
    let mut to = BufWriter::new(std::io::stdout().lock());
    match write(&mut to).and_then(|()| to.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(BenchError::file(Path::new("standard output"))(error))
        }
        _ => Ok(()),
    }
}
