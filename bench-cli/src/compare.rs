//! `compare`: many workloads as children of this executable, each with its result kept in a folder, so that a run that
//! was stopped goes on; one page of all of them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};

use clap::{Parser, Subcommand};

use crate::device::DeviceArgs;
use crate::engine::EngineKind;
use crate::error::{Error, Result, usage};
use crate::flags::Flags;
use crate::results::Document;
use crate::run::check_files;
use crate::work::{self, Workload};
use crate::{report, signals};

/// How large the workloads are.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Size {
    /// Under a minute: whether all engines run
    Smallest,
    /// Some minutes with the engines of a plain build, an hour with all
    Quick,
    /// What README and docs/performance.md show: quick, and states beyond memory; half a day
    Figures,
    /// As the papers have them: many hours
    Full,
}

impl Size {
    const fn steps(self) -> &'static [&'static str] {
        match self {
            Self::Smallest => &[SMALLEST],
            Self::Quick => &[QUICK],
            Self::Figures => &[QUICK, FIGURES],
            Self::Full => &[FULL],
        }
    }
}

/// Where the databases of a step are, in the folder.
const DATABASES: &str = "databases";

// The steps of each size, a line each: the name, which begins with the workload's, and the arguments; with --backend
// where not all engines that can are to run it.

const SMALLEST: &str = "\
transfer --log2 10 --batch 100 --batches 3 --warmup 1
block --log2 12 --blocks 3 --warmup 1
block-plain --log2 12 --blocks 3 --warmup 1 --witness off
bank --accounts 500 --transfers 500 --batch 100 --rounds 1
overlay --accounts 200 --updates 20 --rounds 1
threshold --window 2,4 --blocks 10 --transfers 100 --eoa 1000 --contracts 100 --rounds 1
flatten --layers 4 --keys-per-layer 100 --rounds 1
erc20 --eoa 1000 --contracts 100 --blocks 2 --transfers 100
import --leaves 1000
history --shards 100 --len 200 --keys 10 --rounds 1
proof --log2 10 --count 1,16 --rounds 1
auth --sizes 100 --rounds 1
soak --log2 10 --batch 100 --batches 8 --warmup 1
recover --log2 10 --batch 100 --kills 1
device --size-mib 16 --millis 10 --no-fio";

const QUICK: &str = "\
transfer-20 --log2 20 --batches 20
transfer-plain --log2 20 --batches 20 --witness off
block --log2 18 --blocks 200
block-plain --log2 18 --blocks 200 --witness off
bank --accounts 50000 --transfers 20000 --batch 1,100,10000 --rounds 3
bank-synced --accounts 50000 --transfers 5000 --batch 1,100,1000 --rounds 3 --durability commit
overlay --accounts 20000 --updates 1000 --rounds 5
threshold --window 2,32,128 --blocks 150 --transfers 2000 --rounds 1
flatten --layers 4,16,64 --rounds 3
erc20 --eoa 200000 --contracts 50000 --blocks 10
erc20-cold --eoa 200000 --contracts 50000 --blocks 10 --cold
import --leaves 300000
history --shards none,100,2000 --len 10000 --keys 1000 --rounds 3
history-synced --shards 100,2000 --len 10000 --keys 1000 --rounds 3 --durability commit
proof --log2 18 --rounds 5
auth --sizes 100,1000,10000 --rounds 5
soak --log2 18 --batch 5000 --batches 100
recover --log2 16 --batch 1000 --kills 5
device --millis 200 --no-fio";

/// Beside those of [`QUICK`]. States beyond memory have their engines in turns, three times.
const FIGURES: &str = "\
transfer-24 --log2 24 --batches 24 --alternate 8 --drop-caches --backend=pleach,nomt
transfer-24-plain --log2 24 --batches 24 --alternate 8 --drop-caches --witness off --backend=pleach,nomt
transfer-27 --log2 27 --batches 24 --alternate 8 --drop-caches --backend=pleach,nomt
transfer-27-loaded --log2 27 --warmup 0 --batches 40 --alternate 8 --drop-caches --backend=pleach,nomt
transfer-27-plain --log2 27 --batches 24 --alternate 8 --drop-caches --witness off --backend=pleach,nomt
transfer-29 --log2 29 --batches 24 --drop-caches --backend=pleach
transfer-29-loaded --log2 29 --warmup 0 --batches 30 --drop-caches --backend=pleach
overlay-grows --accounts 100000 --updates 28600 --steps 10 --rounds 11 --alternate 1 --backend=pleach,nomt,jmt
block-22 --log2 22 --blocks 100 --witness off --drop-caches --backend=pleach-plain,redb,fjall,sqlite,mdbx,rocksdb";

const FULL: &str = "\
transfer-20 --log2 20 --batches auto
transfer-24 --log2 24 --batches auto
transfer-27 --log2 27 --batches auto --backend=pleach,nomt
transfer-16 --log2 16
transfer-18 --log2 18
transfer-22 --log2 22
transfer-threads-1 --log2 20 --threads 1
transfer-threads-2 --log2 20 --threads 2
transfer-unsynced --log2 20 --durability none
transfer-plain --log2 20 --witness off
block --log2 24 --blocks 2000
block-plain --log2 24 --blocks 2000 --witness off
block-rate --log2 24 --rate 5 --minutes 10
bank-1 --accounts 1M --transfers 10M --batch 1
bank-100 --accounts 1M --transfers 10M --batch 100
bank-1000 --accounts 1M --transfers 10M --batch 1000
bank-10000 --accounts 1M --transfers 10M --batch 10000
bank-100000 --accounts 1M --transfers 10M --batch 100000
bank-1M --accounts 1M --transfers 10M --batch 1M
bank-synced --accounts 1M --transfers 100k --batch 1,100,10000 --durability commit
overlay --updates 1000,10000
threshold --full
flatten
erc20
erc20-cold --cold
erc20-large --eoa 8M --contracts 2M --slots 40 --backend=pleach,pleach-plain,fjall,rocksdb
import --leaves 2^24
history --shards none,100,500,1000,2000,5000,10000,50000 --len 10000,100000,500000,1M
history-synced --shards 100,2000 --len 10000,100000 --durability commit
proof --log2 22
auth
soak --minutes 10
recover --kills 50
device --millis 5000";

/// `nomt-bench compare`.
#[derive(Clone, Debug, clap::Args)]
pub struct CompareArgs {
    /// How large the workloads are
    #[arg(long, value_enum, default_value = "quick")]
    size: Size,
    /// Steps or workloads (default: all)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,
    /// Engines (default: all of this build but model); each step is run on those that can
    // It takes the place of the flag of all workloads, whose default is another.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all")]
    backend: Vec<String>,
}

impl CompareArgs {
    fn engines(&self) -> Result<Vec<EngineKind>> {
        if self.backend == ["all"] {
            return Ok(EngineKind::all().filter(|kind| *kind != EngineKind::Model).collect());
        }
        self.backend.iter().map(|name| EngineKind::parse(name)).collect()
    }
}

/// A step as its child will parse it.
#[derive(Debug, Parser)]
struct Step {
    #[command(subcommand)]
    what: StepKind,
    #[command(flatten)]
    flags: Flags,
}

/// What a step measures.
#[derive(Debug, Subcommand)]
enum StepKind {
    #[command(flatten)]
    Work(Workload),
    Device(DeviceArgs),
}

pub fn run(args: &CompareArgs, flags: &Flags) -> Result<()> {
    check_files(flags)?;
    let at = flags.dir.clone().unwrap_or_else(|| PathBuf::from("nomt-bench-compare"));
    let at = std::path::absolute(&at).map_err(Error::file(&at))?;
    let steps = plan(args, flags, &at)?;
    signals::listen()?;
    let _lock = lock(&at)?;
    signals::remove_at_end(at.join(DATABASES));
    let (mut documents, mut failed, mut left) = (Vec::new(), Vec::new(), 0);
    for (number, (name, arguments)) in (1..).zip(&steps) {
        if let Some(document) = kept(&at, name, arguments).filter(|_| !flags.reset) {
            documents.push(document);
            continue;
        }
        if !flags.quiet && signals::caught().is_none() {
            crate::output::say(&format!("{number} of {}: {name}", steps.len()));
        }
        match measure(&at, name, arguments) {
            Ok(document) => documents.push(document),
            Err(Error::Interrupted(_)) => left += 1,
            Err(error) => failed.push(format!("{name} FAILED: {error}")),
        }
    }
    let mut missing = failed.clone();
    if left > 0 {
        let all = steps.len();
        missing
            .push(format!("INCOMPLETE: {left} of {all} steps are left: the same command goes on"));
    }
    let page = flags.report.clone().unwrap_or_else(|| at.join("compare.html"));
    report::write_page(&page, &documents, &missing)?;
    report::write_json(&flags.json.clone().unwrap_or_else(|| at.join("compare.json")), &documents)?;
    if !documents.is_empty() {
        crate::output::print(&format!(
            "{}\nthe page: {}\n",
            report::matrix(&documents),
            page.display()
        ))?;
    }
    for text in &missing {
        crate::output::say(&format!("nomt-bench: {text}"));
    }
    match (signals::caught(), failed.len()) {
        (Some(signal), _) if documents.is_empty() => Err(Error::Interrupted(signal)),
        (Some(signal), _) => Err(Error::CutShort(signal)),
        (None, 0) => Ok(()),
        (None, some) => Err(Error::Failed(format!("{some} of {} steps have failed", steps.len()))),
    }
}

/// The names and arguments of all steps that were asked for. Each is parsed as its child will parse it.
fn plan(args: &CompareArgs, flags: &Flags, at: &Path) -> Result<Vec<(&'static str, Vec<String>)>> {
    let parsed = |words: &[String]| {
        let step = Step::try_parse_from([&["nomt-bench".to_owned()], words].concat());
        step.map_err(|error| Error::Failed(format!("{words:?}: {error}")))
    };
    let plain = parsed(&["auth".to_owned()])?.flags;
    let Flags { seed, cache_mib, reset, quiet, .. } = *flags;
    let Flags { backend, peer_arg, dir, json, report, .. } = flags.clone();
    let taken =
        Flags { backend, peer_arg, seed, cache_mib, dir, reset, json, report, quiet, ..plain };
    if format!("{taken:?}") != format!("{flags:?}") {
        return usage(
            "compare takes --backend, --peer-arg, --seed, --cache-mib, --dir, --reset, --json, --report and --quiet: \
             its steps say all else",
        );
    }
    let chosen = args.engines()?;
    let all = args.size.steps().iter().flat_map(|steps| steps.lines());
    let all = all.map(|line| line.split_once(' ').unwrap_or((line, "")));
    let workload = |name: &'static str| name.split('-').next().unwrap_or(name);
    let fits = |only: &String, name| only == name || only == workload(name);
    if let Some(only) = args.only.iter().find(|only| !all.clone().any(|step| fits(only, step.0))) {
        let all: Vec<&str> = all.map(|step| step.0).collect();
        return usage(format!("--only {only}: this size has {}", all.join(", ")));
    }
    let mut steps = Vec::new();
    let wanted = |name| args.only.is_empty() || args.only.iter().any(|only| fits(only, name));
    for (name, text) in all.filter(|step| wanted(step.0)) {
        let (folder, seed) = (at.display(), flags.seed);
        let common = format!("--seed {seed} --cache-mib {} --quiet", flags.cache_mib);
        let mut words: Vec<String> = [workload(name), text, &common]
            .iter()
            .flat_map(|text| text.split_whitespace().map(str::to_owned))
            .collect();
        words.extend([
            format!("--json={folder}/{name}.part"),
            format!("--dir={folder}/{DATABASES}"),
        ]);
        let Step { what, flags: own } = parsed(&words)?;
        let runs = match &what {
            StepKind::Work(work) => work::plan(work, &own)?.runs,
            StepKind::Device(_) => |kind| {
                if kind == EngineKind::Pleach { Ok(()) } else { Err("it is about no engine") }
            },
        };
        let named = |kind: &EngineKind| {
            !text.contains("--backend=") || own.backend.iter().any(|name| name == kind.name())
        };
        let kinds = chosen.iter().filter(|kind| named(kind) && runs(**kind).is_ok());
        let kinds: Vec<&str> = kinds.map(|kind| kind.name()).collect();
        if !kinds.is_empty() {
            words.retain(|word| !word.starts_with("--backend="));
            words.push(format!("--backend={}", kinds.join(",")));
            // Those of engines that run the step.
            let own = |arg: &&String| kinds.iter().any(|kind| arg.starts_with(&format!("{kind}.")));
            words.extend(flags.peer_arg.iter().filter(own).map(|arg| format!("--peer-arg={arg}")));
            steps.push((name, words));
        }
    }
    if steps.is_empty() {
        return usage("no step of --only runs on an engine of --backend: name others");
    }
    Ok(steps)
}

/// Makes the folder, or finds it as one of ours, and locks it: databases in it will be removed.
fn lock(at: &Path) -> Result<File> {
    let mark = at.join("nomt-bench-compare.lock");
    if !mark.exists() && std::fs::read_dir(at).is_ok_and(|mut entries| entries.next().is_some()) {
        return usage(format!("{} has other files: name a new folder with --dir", at.display()));
    }
    std::fs::create_dir_all(at).map_err(Error::file(at))?;
    let lock = File::create(&mark).map_err(Error::file(&mark))?;
    if lock.try_lock().is_err() {
        let at = at.display();
        return usage(format!("another nomt-bench uses {at}: wait, or name another --dir"));
    }
    // One that was killed has left them.
    let left = at.join(DATABASES);
    if left.exists() {
        std::fs::remove_dir_all(&left).map_err(Error::file(&left))?;
    }
    Ok(lock)
}

/// The result of a step that was measured with these arguments, of this commit, and since this program was built.
fn kept(at: &Path, name: &str, arguments: &[String]) -> Option<Document> {
    let path = at.join(format!("{name}.json"));
    let made = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let fresh = made(&path)? >= made(&std::env::current_exe().ok()?)?;
    let document = report::read(&path).ok()?.pop()?;
    let same =
        document.arguments == report::deciding(arguments) && document.commit == report::COMMIT;
    (fresh && same && !document.interrupted).then_some(document)
}

/// Measures a step. What a signal has cut short counts for nothing, and is measured again.
fn measure(at: &Path, name: &str, arguments: &[String]) -> Result<Document> {
    signals::caught().map_or(Ok(()), |signal| Err(Error::Interrupted(signal)))?;
    let file = |ending: &str| at.join(format!("{name}.{ending}"));
    let open = |ending: &str| File::create(file(ending)).map_err(Error::file(&file(ending)));
    let databases = tempfile::Builder::new().prefix(DATABASES).rand_bytes(0).tempdir_in(at);
    let _databases = databases.map_err(Error::file(at))?;
    let own = std::env::current_exe().map_err(Error::file(Path::new("this program")))?;
    let mut command = process::Command::new(own);
    command.args(arguments).stdin(Stdio::null()).stdout(open("txt")?).stderr(open("err")?);
    let mut child = signals::spawn(&mut command)?;
    signals::stops(&child, true);
    let status = signals::wait(&mut child)?;
    if !status.success() {
        if let Some(signal) = signals::caught() {
            return Err(Error::Interrupted(signal));
        }
        let said = std::fs::read_to_string(file("err")).unwrap_or_default();
        let last = said.lines().last().unwrap_or("").trim_start_matches("nomt-bench: ");
        return Err(Error::Failed(format!("{status}: {last}")));
    }
    // Only what has succeeded has this name.
    let (part, path) = (file("part"), file("json"));
    std::fs::rename(&part, &path).map_err(Error::file(&part))?;
    report::read(&path)?.pop().ok_or_else(|| Error::Failed(format!("{} is empty", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_steps_are_valid_and_their_files_have_different_names() {
        let flags = Step::parse_from(["nomt-bench", "auth"]).flags;
        for size in [Size::Smallest, Size::Quick, Size::Figures, Size::Full] {
            let all = size.steps().iter().flat_map(|steps| steps.lines()).count();
            let args = CompareArgs { size, only: Vec::new(), backend: vec!["all".to_owned()] };
            let steps = plan(&args, &flags, Path::new("/tmp")).expect("a plan");
            let names: std::collections::BTreeSet<&str> = steps.iter().map(|step| step.0).collect();
            assert_eq!((steps.len(), names.len()), (all, all), "{size:?}");
        }
    }
}
