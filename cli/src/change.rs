//! Commands that open the database for writing, and those that write other files.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::ProgressBar;
use pleach::export::{
    self, ExportReport, ImportOptions, ImportReport, StreamReader, import as import_stream,
};
use pleach::{Blake3, Db, Hasher, Key, Node, Options, Sha2, proof, tools};
use serde_json::{Value, json};

use crate::args::{
    self, ExportArgs, ImportArgs, ProveArgs, RollbackArgs, UpgradeArgs, VerifyArgs, bytes, command,
};
use crate::database::{Work, reading, with, writing};
use crate::error::{CliError, ErrorKind, Result};
use crate::output::{self, PARTS, bar, hex, part_of};

struct Prove<'a>(&'a ProveArgs);

impl Work for Prove<'_> {
    type Output = Value;

    fn run<H: Hasher>(self, db: &Db<H>) -> pleach::Result<Value> {
        let ProveArgs { key, at } = self.0;
        let session = match at {
            Some(commit) => db.at(*commit)?,
            None => db.snapshot()?,
        };
        let namespace = session.namespace(key.namespace)?;
        let value = namespace.read(&key.key)?;
        let proof = namespace.prove(&key.key)?;
        Ok(json!({
            "schema": 1,
            "commit": session.number(),
            "namespace": key.namespace,
            "hasher": H::ID,
            "root": namespace.root().map(|root| root.to_string()),
            "key": hex(&key.key),
            "value": value.as_deref().map(hex),
            "proof": hex(&proof),
        }))
    }
}

pub(crate) fn prove(args: &ProveArgs) -> Result<()> {
    let folder = args.key.folder.folder.path()?;
    let proven = reading(folder, Prove(args))?;
    if args.key.folder.json {
        return output::json(&proven);
    }
    let text = |name: &str| proven[name].as_str().unwrap_or("none").to_owned();
    output::print(&format!(
        "root  {}\nvalue {}\nproof {}\n",
        text("root"),
        text("value"),
        text("proof")
    ))
}

pub(crate) fn verify(args: &VerifyArgs) -> Result<()> {
    let mut text = String::new();
    let read = if args.proof == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        File::open(&args.proof).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(CliError::file(&args.proof))?;
    let no_proof = |what: &str| {
        CliError::usage(format!(
            "{} is not what `pleach prove --json` writes: {what}",
            args.proof.display()
        ))
    };
    let document: Value =
        serde_json::from_str(&text).map_err(|error| no_proof(&error.to_string()))?;
    let field = |name: &str| document[name].as_str().and_then(bytes).ok_or_else(|| no_proof(name));
    let key: Key = field("key")?.try_into().map_err(|_| no_proof("key"))?;
    let value = if document["value"].is_null() { None } else { Some(field("value")?) };
    let (proof, root) = (field("proof")?, Node::from(args.root));
    let proves = match document["hasher"].as_u64().and_then(|id| u8::try_from(id).ok()) {
        Some(Blake3::ID) => proves::<Blake3>(&proof, &root, &key, value.as_deref()),
        Some(Sha2::ID) => proves::<Sha2>(&proof, &root, &key, value.as_deref()),
        _ => return Err(no_proof("hasher")),
    };
    let proves = proves.map_err(|text| CliError::new(ErrorKind::Findings, text).after_document());
    if args.json {
        let error = proves.as_ref().err().map(CliError::document);
        output::json(&json!({
            "schema": 1, "valid": proves.is_ok(), "error": error,
            "key": document["key"], "value": document["value"], "root": hex(&args.root),
        }))?;
    } else if proves.is_ok() {
        let what = document["value"]
            .as_str()
            .map_or("no value".to_owned(), |value| format!("the value {value}"));
        output::print(&format!("under this root the key has {what}\n"))?;
    }
    proves
}

fn proves<H: Hasher>(
    proof: &[u8],
    root: &Node,
    key: &Key,
    value: Option<&[u8]>,
) -> core::result::Result<(), String> {
    let verified = proof::path::verify::<H>(proof, root).map_err(|error| error.to_string())?;
    match verified.proves(key, value) {
        Some(true) => Ok(()),
        Some(false) => Err("the proof is valid and says something else of the key".to_owned()),
        None => Err("the proof is valid and of another key".to_owned()),
    }
}

struct Rollback(u64);

impl Work for Rollback {
    type Output = (u64, Node);

    fn run<H: Hasher>(self, db: &Db<H>) -> pleach::Result<(u64, Node)> {
        let number = db.rollback_to(self.0)?;
        Ok((number, db.root()))
    }
}

pub(crate) fn rollback(args: &RollbackArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let (commit, root) = writing(folder, Rollback(args.to))?;
    if args.folder.json {
        return output::json(&json!({
            "schema": 1, "commit": commit, "state_of": args.to, "root": root.to_string()
        }));
    }
    output::print(&format!("commit {commit} has the state of commit {}, root {root}\n", args.to))
}

pub(crate) fn export(args: &ExportArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let bar = bar("export");
    let report = match &args.to {
        None if args.folder.json => {
            return Err(CliError::usage("--json says what was written: name a file with --to"));
        }
        None => {
            let to = &mut BufWriter::new(std::io::stdout().lock());
            reading(folder, Export { to, bar: &bar })?
        }
        Some(path) => {
            // Under another name until it is whole and synced.
            let unfinished = unfinished(path)?;
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&unfinished);
            let mut file = BufWriter::with_capacity(1 << 20, file.map_err(CliError::file(path))?);
            let report = reading(folder, Export { to: &mut file, bar: &bar })?;
            let synced = file.flush().and_then(|()| file.get_ref().sync_all());
            synced
                .and_then(|()| std::fs::rename(&unfinished, path))
                .and_then(|()| sync_parent(path))
                .map_err(CliError::file(path))?;
            report
        }
    };
    bar.finish_and_clear();
    let ExportReport { commit, namespaces, pairs, bytes, .. } = report;
    if args.folder.json {
        return output::json(&json!({
            "schema": 1, "commit": commit, "namespaces": namespaces, "pairs": pairs, "bytes": bytes
        }));
    }
    if args.to.is_none() {
        return Ok(());
    }
    output::print(&format!(
        "commit {commit}: {pairs} pairs of {namespaces} namespaces, {bytes} bytes\n"
    ))
}

struct Export<'a> {
    to: &'a mut dyn Write,
    bar: &'a ProgressBar,
}

impl Work for Export<'_> {
    type Output = ExportReport;

    fn run<H: Hasher>(self, db: &Db<H>) -> pleach::Result<ExportReport> {
        let mut told = 0_u32;
        export::export_telling(&db.snapshot()?, self.to, |_, key| {
            told = told.wrapping_add(1);
            if told.is_multiple_of(1 << 12) {
                self.bar.set_position(part_of(key));
            }
        })
    }
}

/// Makes the name of a file durable.
pub(crate) fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Refuses a folder for a new database that cannot be one.
pub(crate) fn check_new(folder: &Path) -> Result<()> {
    if folder.exists() && !folder.is_dir() {
        let text =
            format!("{} is a file: name a folder that is missing or empty", folder.display());
        return Err(CliError::usage(text));
    }
    Ok(())
}

/// The name of a file that is being written.
pub(crate) fn unfinished(path: &Path) -> Result<PathBuf> {
    if path.exists() {
        return Err(CliError::usage(format!("{} exists: name another file", path.display())));
    }
    let Some(name) = path.file_name() else {
        return Err(CliError::usage(format!("{} is no file name", path.display())));
    };
    let mut name = name.to_owned();
    name.push(".unfinished");
    Ok(path.with_file_name(name))
}

/// Counts what is read of a file, for a bar.
struct Counted<R> {
    from: R,
    read: u64,
    all: u64,
    bar: ProgressBar,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.read += count as u64;
        let part = u128::from(self.read) * u128::from(PARTS) / u128::from(self.all.max(1));
        self.bar.set_position(u64::try_from(part).unwrap_or(PARTS));
        Ok(count)
    }
}

struct Import<R> {
    from: StreamReader<R>,
    options: ImportOptions,
}

impl<R: Read> Work for Import<R> {
    type Output = ImportReport;

    fn run<H: Hasher>(self, db: &Db<H>) -> pleach::Result<ImportReport> {
        import_stream(db, self.from, &self.options)
    }
}

/// Opens the database of a stream, which is made where there is none, and imports it.
fn import_into<R: Read>(
    folder: &Path,
    from: StreamReader<R>,
    memory_mib: u64,
    progress: Option<pleach::export::ImportProgress>,
) -> Result<ImportReport> {
    let hasher = from.head().hasher;
    let load_mib = (memory_mib / 2).max(1);
    let options = Options::new(folder).create(true).cache_mib((memory_mib / 2).max(64));
    let work =
        Import { from, options: ImportOptions::new().memory_mib(load_mib).progress(progress) };
    with(folder, options, hasher, work)
}

pub(crate) fn import(args: &ImportArgs) -> Result<()> {
    check_new(&args.folder)?;
    let bar = bar("import");
    let (from, all): (Box<dyn Read>, u64) = match &args.from {
        None => (Box::new(std::io::stdin().lock()), 0),
        Some(path) if path.is_dir() => {
            let text = format!("{} is a folder: name the file of an export stream", path.display());
            return Err(CliError::usage(text));
        }
        Some(path) => {
            let file = File::open(path).map_err(CliError::file(path))?;
            let length = file.metadata().map_err(CliError::file(path))?.len();
            (Box::new(file), length)
        }
    };
    let counted = Counted { from, read: 0, all, bar: bar.clone() };
    // Before a folder is made: what is no stream leaves nothing behind.
    let from = StreamReader::new(BufReader::with_capacity(1 << 20, counted))
        .map_err(|error| CliError::engine(&args.folder)(error.into()))?;
    let progress: Option<pleach::export::ImportProgress> = (all > 0).then(|| {
        let bar = bar.clone();
        Arc::new(move |namespace, _| bar.set_message(format!("import, namespace {namespace}"))) as _
    });
    let report = import_into(&args.folder, from, args.memory_mib, progress)?;
    bar.finish_and_clear();
    print_import(&report, args.json)
}

fn print_import(report: &ImportReport, json: bool) -> Result<()> {
    let roots = report.roots.iter();
    if json {
        let roots =
            roots.map(|(number, root)| json!({"namespace": number, "root": root.to_string()}));
        return output::json(&json!({
            "schema": 1, "commit": report.commit, "exported_commit": report.exported_commit,
            "namespaces": report.namespaces, "already_there": report.already_there,
            "pairs": report.pairs, "roots": roots.collect::<Value>(),
        }));
    }
    output::write(|to| {
        writeln!(
            to,
            "{} pairs of {} namespaces, {} of which were there",
            report.pairs, report.namespaces, report.already_there
        )?;
        roots
            .into_iter()
            .try_for_each(|(number, root)| writeln!(to, "namespace {number} root {root}"))
    })
}

/// Reads with one thread and loads with another: what `export` and `import` do, without a file between them.
pub(crate) fn upgrade(args: &UpgradeArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let stat = tools::stat(folder).map_err(CliError::engine(folder))?;
    let Some(to) = &args.to else {
        let format = stat.superblock.created_by;
        let text = format!(
            "the database is of format {format}, which this version creates: nothing is to be done\n"
        );
        return if args.folder.json {
            output::json(&json!({"schema": 1, "format": format, "current": true}))
        } else {
            output::print(&text)
        };
    };
    check_new(to)?;
    let bar = bar("upgrade");
    let (reader, mut writer) =
        std::io::pipe().map_err(|error| CliError::new(ErrorKind::System, error.to_string()))?;
    let (exported, imported) = std::thread::scope(|scope| {
        let bar = &bar;
        let exporting = scope.spawn(move || {
            let mut to = BufWriter::with_capacity(1 << 20, &mut writer);
            let exported = reading(folder, Export { to: &mut to, bar });
            let flushed = to.flush();
            exported.and_then(|report| {
                flushed.map_err(|error| CliError::new(ErrorKind::System, error.to_string()))?;
                Ok(report)
            })
        });
        let imported = StreamReader::new(BufReader::with_capacity(1 << 20, reader))
            .map_err(|error| CliError::engine(to)(error.into()))
            .and_then(|from| import_into(to, from, args.memory_mib, None));
        (exporting.join(), imported)
    });
    bar.finish_and_clear();
    let exported = exported
        .map_err(|_| CliError::new(ErrorKind::System, "the thread that reads has panicked"))?;
    match (exported, imported) {
        (Ok(_), Ok(report)) => print_import(&report, args.folder.json),
        // Where both fail one has ended because of the other: who could not write to the pipe was not the first.
        (Err(error), Err(_)) if error.kind != ErrorKind::System => Err(error),
        (_, Err(error)) | (Err(error), Ok(_)) => Err(error),
    }
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "pleach", &mut text);
    output::write(|to| to.write_all(&text))
}

pub(crate) fn man(folder: &Path) -> Result<()> {
    clap_mangen::generate_to(command(), folder).map_err(CliError::file(folder))?;
    for command in command().get_subcommands() {
        let name = command.get_name();
        let path = folder.join(format!("pleach-{name}.1"));
        let mut page = std::fs::read(&path).map_err(CliError::file(&path))?;
        page.extend(args::man_sections(name).bytes());
        std::fs::write(&path, page).map_err(CliError::file(&path))?;
    }
    Ok(())
}
