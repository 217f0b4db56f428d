//! Commands that open the database for writing, and those that write other files.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

use indicatif::ProgressBar;
use pleach::internals::hexadecimal::{from_hex, hex};
use pleach::proof::{self, DecodeError, VerifyError};
use pleach::{Db, Hasher, Key, Node, Options, Progress};
use pleach_ops::export::{
    self, ExportReport, ImportOptions, ImportReport, StreamError, StreamReader,
};
use pleach_ops::{finish, open_unfinished};
use serde_json::{Value, json};

use crate::args::{
    self, AtArgs, ExportArgs, Format, ImportArgs, RollbackArgs, Source, UpgradeArgs, VerifyArgs,
    command,
};
use crate::database::{reading, session};
use crate::error::{CliError, ErrorKind, Result};
use crate::output::{self, bar, part_of};
use crate::table::{self, Csv, LoadError, Rows};

/// The document of a proof.
fn proven(db: &Db, AtArgs { key, at }: &AtArgs) -> pleach::Result<Value> {
    let session = session(db, *at)?;
    let namespace = session.namespace(key.namespace)?;
    let value = namespace.read(&key.key)?;
    let proof = namespace.prove(&key.key)?;
    Ok(json!({
        "schema": 1,
        "commit": session.commit_number(),
        "namespace": key.namespace,
        "hasher": db.hasher()?.name(),
        "root": namespace.root().map(|root| root.to_string()),
        "key": hex(key.key),
        "value": value.as_deref().map(hex),
        "proof": hex(&*proof),
    }))
}

pub(crate) fn prove(args: &AtArgs) -> Result<()> {
    let folder = args.key.folder.folder.path()?;
    let proven = reading(folder, |db| proven(db, args))?;
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
    let field =
        |name: &str| document[name].as_str().and_then(from_hex).ok_or_else(|| no_proof(name));
    let key: Key = field("key")?.try_into().map_err(|_| no_proof("key"))?;
    let value = if document["value"].is_null() { None } else { Some(field("value")?) };
    let (proof, root) = (field("proof")?, Node::from(args.root));
    let name = document["hasher"].as_str().ok_or_else(|| no_proof("hasher"))?;
    let hasher = Hasher::of_name(name);
    let hasher = hasher.ok_or_else(|| no_proof(&format!("there is no hasher {name}")))?;
    let proves = proves(hasher, &proof, &root, &key, value.as_deref())
        .map_err(|(kind, text)| CliError::new(kind, text).after_document());
    if args.json {
        let error = proves.as_ref().err().map(CliError::document);
        output::json(&json!({
            "schema": 1, "valid": proves.is_ok(), "error": error,
            "key": document["key"], "value": document["value"], "root": hex(args.root),
        }))?;
    } else if proves.is_ok() {
        let what = document["value"]
            .as_str()
            .map_or("no value".to_owned(), |value| format!("the value {value}"));
        output::print(&format!("under this root the key has {what}\n"))?;
    }
    proves
}

fn proves(
    hasher: Hasher,
    proof: &[u8],
    root: &Node,
    key: &Key,
    value: Option<&[u8]>,
) -> core::result::Result<(), (ErrorKind, String)> {
    let verified = proof::path::verify(hasher, proof, root).map_err(|error| match error {
        VerifyError::Decode(DecodeError::Version(found)) => (
            ErrorKind::OtherVersion,
            format!(
                "another version has made this proof, in encoding {found}: verify it with that version"
            ),
        ),
        error => (ErrorKind::Findings, error.to_string()),
    })?;
    let not_proven =
        |what: &str| Err((ErrorKind::Findings, format!("the proof is valid and {what}")));
    match verified.proves(key, value) {
        Some(true) => Ok(()),
        Some(false) => not_proven("says something else of the key"),
        None => not_proven("of another key"),
    }
}

pub(crate) fn rollback(args: &RollbackArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let roll_back = || {
        let db = Db::open(Options::new(folder))?;
        let (commit, root) = (db.rollback_to(args.at)?, db.root());
        db.close()?;
        Ok::<_, pleach::Error>((commit, root))
    };
    let (commit, root) = roll_back().map_err(CliError::engine(folder))?;
    if args.folder.json {
        return output::json(&json!({
            "schema": 1, "commit": commit, "state_of": args.at, "root": root.to_string()
        }));
    }
    output::print(&format!("commit {commit} has the state of commit {}, root {root}\n", args.at))
}

pub(crate) fn export(args: &ExportArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let bar = bar("export");
    let to = args.to.as_deref().filter(|to| *to != Path::new("-"));
    if let Some(to) = to {
        check_outside(folder, to)?;
    }
    let report = match to {
        None if args.folder.json => {
            return Err(CliError::usage("--json says what was written: name a file with --to"));
        }
        None => export_to(folder, &mut BufWriter::new(std::io::stdout()), args.format, &bar)?,
        Some(path) => write_file(path, |file| export_to(folder, file, args.format, &bar))?,
    };
    bar.finish_and_clear();
    let ExportReport { commit, namespaces, pairs, bytes, .. } = report;
    if args.folder.json {
        return output::json(&json!({
            "schema": 1, "commit": commit, "namespaces": namespaces, "pairs": pairs, "bytes": bytes
        }));
    }
    if to.is_none() {
        return Ok(());
    }
    output::print(&format!(
        "commit {commit}: {pairs} pairs of {namespaces} namespaces, {bytes} bytes\n"
    ))
}

fn export_to(
    folder: &Path,
    to: &mut (impl Write + Send),
    format: Format,
    bar: &ProgressBar,
) -> Result<ExportReport> {
    let mut told = 0_u32;
    let mut tell = |_, key: &Key| {
        told = told.wrapping_add(1);
        if told.is_multiple_of(1 << 12) {
            bar.set_position(part_of(key));
        }
    };
    let failed = |error: std::io::Error| StreamError::Write(error.to_string());
    match format {
        Format::Stream => reading(folder, |db| export::export_with(&db.snapshot()?, to, tell)),
        Format::Csv => {
            let each = |key: &Key| tell(0, key);
            reading(folder, |db| table::export(db, Csv::new(to).map_err(failed)?, each))
        }
        #[cfg(feature = "parquet")]
        Format::Parquet => {
            let each = |key: &Key| tell(0, key);
            reading(folder, |db| table::export(db, table::Parquet::new(to).map_err(failed)?, each))
        }
        #[cfg(not(feature = "parquet"))]
        Format::Parquet => Err(CliError::usage(
            "this `pleach` was built without Parquet: build it with `--features parquet`, or give --format csv",
        )),
    }
}

/// Refuses what would be written into the database's folder.
pub(crate) fn check_outside(folder: &Path, to: &Path) -> Result<()> {
    let absolute = std::path::absolute(to).ok();
    // The existing part of the path: the rest will be made.
    let there = absolute.iter().flat_map(|to| to.ancestors());
    let there = there.into_iter().find_map(|folder| folder.canonicalize().ok());
    match (there, folder.canonicalize()) {
        (Some(there), Ok(inside)) if there.starts_with(&inside) => {
            let (to, folder) = (to.display(), folder.display());
            Err(CliError::usage(format!(
                "{to} would lie in the folder of the database, {folder}: give a place outside of it, best on another disk"
            )))
        }
        _ => Ok(()),
    }
}

/// Writes a file that does not exist yet: under another name until it is whole and synced.
pub(crate) fn write_file<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<T>,
) -> Result<T> {
    if path.exists() {
        return Err(CliError::usage(format!("{} exists: name another file", path.display())));
    }
    let Some(name) = path.file_name() else {
        return Err(CliError::usage(format!("{} is no file name", path.display())));
    };
    let mut unfinished = name.to_owned();
    unfinished.push(".unfinished");
    let unfinished = path.with_file_name(unfinished);
    let file = File::create(&unfinished).map_err(CliError::file(path))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let whole = write(&mut file).and_then(|written| {
        file.flush()
            .and_then(|()| file.get_ref().sync_all())
            .and_then(|()| std::fs::rename(&unfinished, path))
            .and_then(|()| File::open(parent.unwrap_or(Path::new(".")))?.sync_all())
            .map_err(CliError::file(path))?;
        Ok(written)
    });
    whole.inspect_err(|_| drop(std::fs::remove_file(&unfinished)))
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

/// Imports a stream into its database, which is made where there is none.
fn import_into(
    folder: &Path,
    from: StreamReader<impl Read>,
    memory_mib: u64,
    progress: Option<Progress>,
) -> Result<ImportReport> {
    let number = from.head().hasher;
    let hasher = Hasher::of_id(number).ok_or_else(|| {
        CliError::usage(format!(
            "the stream is of a database with hasher number {number}, which an application has made: import it with that application"
        ))
    })?;
    let options = Options::new(folder).create(true).cache_mib(memory_mib / 2);
    let how = ImportOptions::new().memory_mib(memory_mib / 2).progress(progress);
    let import = || {
        let db = open_unfinished(options.hasher(hasher))?;
        let report = export::import(&db, from, &how)?;
        db.close()?;
        finish(folder)?;
        Ok::<_, pleach_ops::Error>(report)
    };
    import().map_err(CliError::engine(folder))
}

/// Imports a table in CSV. A folder that was empty is empty again where a row is wrong.
fn import_csv(args: &ImportArgs, from: impl BufRead) -> Result<()> {
    let name =
        args.from.as_deref().map_or("standard input".to_owned(), |path| path.display().to_string());
    let rows = Rows::new(from, name)?;
    let folder = &args.folder;
    let is_empty =
        |folder: &Path| std::fs::read_dir(folder).is_ok_and(|mut it| it.next().is_none());
    let was_there = folder.exists();
    if was_there && !is_empty(folder) {
        let text = format!(
            "{} is not empty, and an import of a table begins anew: name another folder",
            folder.display()
        );
        return Err(CliError::usage(text));
    }
    let options = Options::new(folder).create(true).cache_mib(args.memory_mib / 2);
    let import = || {
        let db = open_unfinished(options.hasher(args.hasher))?;
        let loaded = table::import(&db, rows, &args.plain, args.memory_mib / 2)?;
        if let Some(wanted) = args.root.filter(|wanted| db.root() != (*wanted).into()) {
            let text = format!("the root of the rows is {}, and not {}", db.root(), hex(wanted));
            return Err(CliError::new(ErrorKind::Damaged, text).into());
        }
        db.close()?;
        Ok::<_, LoadError>(loaded)
    };
    let loaded = import().map_err(|error| match error {
        LoadError::Row(error) => {
            // Otherwise `UNFINISHED` says that it is not whole.
            let _ = std::fs::remove_dir_all(folder);
            if was_there {
                let _ = std::fs::create_dir(folder);
            }
            error
        }
        LoadError::Db(error) => CliError::engine(folder)(error),
    })?;
    finish(folder).map_err(CliError::engine(folder))?;
    let table::Loaded { commit, namespaces, pairs, roots } = loaded;
    if args.json {
        return output::json(&json!({
            "schema": 1, "commit": commit, "namespaces": namespaces, "pairs": pairs,
            "roots": output::roots(&roots),
        }));
    }
    output::write(|to| {
        writeln!(to, "{pairs} pairs of {namespaces} namespaces")?;
        roots.iter().try_for_each(|(number, root)| writeln!(to, "namespace {number} root {root}"))
    })
}

pub(crate) fn import(args: &ImportArgs) -> Result<()> {
    check_new(&args.folder)?;
    let bar = bar("import");
    let from: Box<dyn Read> = match &args.from {
        None => Box::new(std::io::stdin().lock()),
        Some(path) if path.is_dir() => {
            let text = format!("{} is a folder: name the file of an export stream", path.display());
            return Err(CliError::usage(text));
        }
        Some(path) => {
            let file = File::open(path).map_err(CliError::file(path))?;
            bar.set_length(file.metadata().map_err(CliError::file(path))?.len());
            Box::new(bar.wrap_read(file))
        }
    };
    let from = BufReader::with_capacity(1 << 20, from);
    if args.format == Source::Csv {
        let imported = import_csv(args, from);
        bar.finish_and_clear();
        return imported;
    }
    // Before a folder is made: input that is no stream leaves nothing behind.
    let from = StreamReader::new(from).map_err(|error| CliError::engine(&args.folder)(error))?;
    // The pairs must lead to the root in the head.
    let first = from.head().namespaces.iter().find(|namespace| namespace.number == 0);
    let found = first.map(|namespace| namespace.root);
    if let Some(wanted) = args.root.filter(|wanted| found != Some((*wanted).into())) {
        let found = found.map_or_else(|| "none".to_owned(), |root| root.to_string());
        let text =
            format!("the stream's root is {found}, and not {}: nothing was imported", hex(wanted));
        return Err(CliError::new(ErrorKind::Damaged, text));
    }
    let shown = bar.clone();
    let progress: Progress =
        Arc::new(move |pairs, _| shown.set_message(format!("import, {pairs} pairs")));
    let report = import_into(&args.folder, from, args.memory_mib, Some(progress))?;
    bar.finish_and_clear();
    print_import(&report, args.json)
}

fn print_import(report: &ImportReport, json: bool) -> Result<()> {
    if json {
        return output::json(&json!({
            "schema": 1, "commit": report.commit, "exported_commit": report.exported_commit,
            "namespaces": report.namespaces, "already_there": report.already_there,
            "pairs": report.pairs, "roots": output::roots(&report.roots),
        }));
    }
    output::write(|to| {
        writeln!(
            to,
            "{} pairs of {} namespaces{}",
            report.pairs,
            report.namespaces,
            match report.already_there {
                0 => String::new(),
                all if all == report.namespaces => ", all of which were there".to_owned(),
                some => format!(", {some} of which were there"),
            }
        )?;
        report
            .roots
            .iter()
            .try_for_each(|(number, root)| writeln!(to, "namespace {number} root {root}"))
    })
}

/// Reads with one thread and loads with another: `export` and `import` without a file between them.
pub(crate) fn upgrade(args: &UpgradeArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let stat = pleach_ops::stat(folder).map_err(CliError::engine(folder))?;
    let Some(to) = &args.to else {
        stat.superblock.check_features(true).map_err(CliError::engine(folder))?;
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
            let exported = export_to(folder, &mut to, Format::Stream, bar);
            let flushed = to.flush();
            exported.and_then(|report| {
                flushed.map_err(|error| CliError::new(ErrorKind::System, error.to_string()))?;
                Ok(report)
            })
        });
        let imported = StreamReader::new(BufReader::with_capacity(1 << 20, reader))
            .map_err(|error| CliError::engine(to)(error))
            .and_then(|from| import_into(to, from, args.memory_mib, None));
        (exporting.join(), imported)
    });
    bar.finish_and_clear();
    let exported = exported
        .map_err(|_| CliError::new(ErrorKind::System, "the thread that reads has panicked"))?;
    match (exported, imported) {
        (Ok(_), Ok(report)) => print_import(&report, args.folder.json),
        // Where both fail one has ended because of the other: a failed write to the pipe was not the first error.
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
    std::fs::create_dir_all(folder).map_err(CliError::file(folder))?;
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
