//! `nomt-bench import`: a bulk load of a stream, under a limit of memory, in a process of its own.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pleach::{Access, Key, LoadOptions, Node, SessionOptions, Value};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::Sheet;
use super::engine::{open, open_durable, wrap};
use crate::account;
use crate::args::stores::{ImportArgs, LoadJob, Order};
use crate::child::tied;
use crate::error::{BenchError, Result};
use crate::measure::{Phase, float, ratio};
use crate::progress::Progress;
use crate::stores::{Engine, StoreOptions};
use crate::text::{from_hex, grouped, hex};
use crate::trees::{self, Ground};
use crate::{interrupt, machine, output};

/// Up to so many pairs the root is that of commits of the same, too.
const COMMITTED: u64 = 1 << 17;
/// Pairs of such a commit.
const BATCH: usize = 10_000;
/// Pairs that are read back.
const SAMPLE: u64 = 1000;
/// Pairs between two words of how far a load is.
const STEP: u64 = 1 << 14;

/// What a child says, a line each: progress, then its result.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Progress { done: u64 },
    Loaded(Loaded),
    Failed { code: u8, message: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct Loaded {
    pairs: u64,
    seconds: f64,
    written: u64,
    spilled: u64,
    peak_rss: u64,
    root: String,
}

/// Measures all orders; databases are made in a folder.
pub(crate) fn run(args: &ImportArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    if let Some(path) = &args.from {
        if args.parts.rounds() > 1 {
            let text = "--from is read once: leave --rounds out";
            return Err(BenchError::Usage(text.to_owned()));
        }
        let ours = args.states.backend.iter().all(|name| name == "pleach");
        if !ours {
            let text = "--from is for pleach alone: leave --backend out";
            return Err(BenchError::Usage(text.to_owned()));
        }
        let name = if path == Path::new("-") { "standard input" } else { "a file" };
        return Import { args, at, order: Order::Random }.measure(name, bar, sheet);
    }
    let mut grounds = Ground::chosen(&args.states.backend)?;
    // A map in memory leaves nothing behind that could be read back.
    grounds.retain(|ground| *ground != Ground::Flat(Engine::BTreeMap));
    if grounds.len() < args.states.backend.len() {
        sheet.notes.push("btreemap left out: it is loaded in a process that ends".to_owned());
    }
    grounds.retain(|ground| match ground.holds(args.leaves) {
        Ok(()) => true,
        Err(why) => {
            sheet.notes.push(format!("{} left out: {why}", ground.name()));
            false
        }
    });
    if grounds.is_empty() {
        return Err(BenchError::Usage("no --backend runs this workload".to_owned()));
    }
    if !args.states.settings.peer_arg.is_empty() {
        return Err(BenchError::Usage("import takes no --peer-arg".to_owned()));
    }
    for &order in &args.order {
        for &ground in &grounds {
            let import = Import { args, at, order };
            if ground == Ground::Pleach {
                import.measure(order.name(), bar, sheet)?;
            } else {
                import.elsewhere(ground, bar, sheet)?;
            }
        }
    }
    Ok(())
}

struct Import<'a> {
    args: &'a ImportArgs,
    at: &'a Path,
    order: Order,
}

impl Import<'_> {
    fn measure(&self, name: &str, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
        let mut phase = Phase::new();
        let mut last = None;
        for round in 0..self.args.parts.rounds() {
            let folder = tempfile::tempdir_in(self.at).map_err(BenchError::file(self.at))?;
            if self.args.kill && round == 0 {
                self.killed(folder.path(), bar, sheet)?;
            }
            let Some(loaded) = self.load(folder.path(), Ground::Pleach, bar, None)? else {
                return Err(BenchError::Child("the load was killed".to_owned()));
            };
            phase.record(Duration::from_secs_f64(loaded.seconds));
            let size = machine::folder_bytes(folder.path());
            let compared = self.check(folder.path(), &loaded)?;
            last = Some((loaded, size, compared));
        }
        let Some((loaded, size, compared)) = last else { return Ok(()) };
        let case = format!("{name}, {} pairs", grouped(loaded.pairs));
        sheet.phase(&case, "load, pleach", loaded.pairs, &phase);
        for (what, bytes) in [
            ("written", loaded.written),
            ("of it to the spill file", loaded.spilled),
            ("size of the files", size),
            ("peak RSS", loaded.peak_rss),
        ] {
            if bytes > 0 {
                let count = float(bytes);
                sheet.count(&case, &format!("{what}, bytes, pleach"), ("bytes", count), count);
            }
        }
        let times = ratio(loaded.written, size);
        sheet.count(&case, "written / size of the files", ("ratio", times), times);
        if compared {
            sheet.notes.push(format!("{case}: the root is that of commits of the same pairs"));
        }
        Ok(())
    }

    /// The same pairs loaded by another state, and a sample of them read back.
    fn elsewhere(&self, ground: Ground, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
        let name = ground.name();
        let case = format!("{}, {} pairs", self.order.name(), grouped(self.args.leaves));
        let mut phase = Phase::new();
        let mut last = None;
        for _ in 0..self.args.parts.rounds() {
            let folder = tempfile::tempdir_in(self.at).map_err(BenchError::file(self.at))?;
            let Some(loaded) = self.load(folder.path(), ground, bar, None)? else {
                return Err(BenchError::Child("the load was killed".to_owned()));
            };
            phase.record(Duration::from_secs_f64(loaded.seconds));
            let size = machine::folder_bytes(folder.path());
            let mut tree = trees::open(ground, &self.options(folder.path()), true)?;
            let ids: Vec<u64> = self.sample().collect();
            let pairs = ids.iter().map(|&id| pair(id, self.order, self.args.leaves));
            let (keys, values): (Vec<Key>, Vec<Value>) = pairs.unzip();
            let found = tree.read(&keys)?;
            tree.close()?;
            let same =
                |(found, value): (&Option<Vec<u8>>, &Value)| found.as_deref() == Some(&**value);
            if !found.iter().zip(&values).all(same) {
                return Err(BenchError::Wrong(format!("{name}: a pair is not there")));
            }
            last = Some((loaded, size));
        }
        let Some((loaded, size)) = last else { return Ok(()) };
        sheet.phase(&case, &format!("load, {name}"), loaded.pairs, &phase);
        for (what, bytes) in [("size of the files", size), ("peak RSS", loaded.peak_rss)] {
            let count = float(bytes);
            sheet.count(&case, &format!("{what}, bytes, {name}"), ("bytes", count), count);
        }
        Ok(())
    }

    /// What another state is opened with.
    fn options(&self, folder: &Path) -> StoreOptions {
        options(folder, self.args.storage.cache_mib())
    }

    /// Pairs that are read back.
    fn sample(&self) -> impl Iterator<Item = u64> + use<> {
        let step = usize::try_from((self.args.leaves / SAMPLE).max(1)).expect("small");
        (0..self.args.leaves).step_by(step)
    }

    /// Kills a load when half of its pairs are taken, and looks at what is there: an empty database.
    fn killed(&self, folder: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
        if self.load(folder, Ground::Pleach, bar, Some(self.args.leaves / 2))?.is_some() {
            return self.over(folder, sheet);
        }
        let db = open_durable(folder, self.args.storage.cache_mib())?;
        let session = db.session(SessionOptions::new()).map_err(wrap)?;
        let there = session.iter(..).next().is_some();
        drop(session);
        if there && db.commit_number() == 1 {
            // The signal came too late: what is there is whole, which the load after it shows.
            db.close().map_err(wrap)?;
            return self.over(folder, sheet);
        }
        if there || db.commit_number() != 0 || db.root() != Node::default() {
            return Err(BenchError::Wrong("a killed load has left something".to_owned()));
        }
        db.close().map_err(wrap)?;
        let text =
            "a load was killed half way: the database was empty, and took the whole load after it";
        sheet.notes.push(text.to_owned());
        Ok(())
    }

    /// There was nothing left to be killed: the folder is emptied for the next load.
    fn over(&self, folder: &Path, sheet: &mut Sheet) -> Result<()> {
        let text = format!("{}: the load was over before it could be killed", self.order.name());
        sheet.notes.push(text);
        std::fs::remove_dir_all(folder).map_err(BenchError::file(folder))?;
        std::fs::create_dir(folder).map_err(BenchError::file(folder))
    }

    /// Loads in a child; killed after some pairs if told so, which gives nothing.
    fn load(
        &self,
        folder: &Path,
        ground: Ground,
        bar: &Progress,
        kill: Option<u64>,
    ) -> Result<Option<Loaded>> {
        interrupt::check()?;
        let failed = |error: std::io::Error| BenchError::Child(format!("the load: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("__load").arg("--folder").arg(folder).args(["--backend", ground.name()]);
        command.args(["--leaves", &self.args.leaves.to_string(), "--order", self.order.name()]);
        command.args(["--load-mib", &self.args.load_mib.to_string()]);
        command.args(["--cache-mib", &self.args.storage.cache_mib().to_string()]);
        if let Some(path) = &self.args.from {
            command.arg("--from").arg(path);
        }
        let mut child = Reaped::new(tied::spawn(command.stdout(Stdio::piped())).map_err(failed)?);
        let Some(said) = child.process.stdout.take() else {
            return Err(BenchError::Child("the load has no output".to_owned()));
        };
        for line in BufReader::new(said).lines() {
            match serde_json::from_str(&line.map_err(failed)?) {
                Ok(Said::Progress { done }) => {
                    bar.at(done, self.args.leaves);
                    if kill.is_some_and(|kill| done >= kill) {
                        child.process.kill().map_err(failed)?;
                        return Ok(None);
                    }
                }
                Ok(Said::Loaded(loaded)) => return Ok(Some(loaded)),
                Ok(Said::Failed { code: 2, message }) => return Err(BenchError::Usage(message)),
                Ok(Said::Failed { message, .. }) => return Err(BenchError::Child(message)),
                Err(_) => output::say("the load said something else"),
            }
        }
        interrupt::check()?;
        Err(BenchError::Child("the load ended without a result".to_owned()))
    }

    /// Root, number and a sample of the pairs. Gives whether the root was compared with that of commits.
    fn check(&self, folder: &Path, loaded: &Loaded) -> Result<bool> {
        let wrong = |text: String| Err(BenchError::Wrong(text));
        let db = open_durable(folder, self.args.storage.cache_mib())?;
        if hex(db.root().as_bytes()) != loaded.root {
            return wrong("the root is not the one of the load".to_owned());
        }
        let session = db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        if self.args.from.is_none() {
            if loaded.pairs != self.args.leaves {
                return wrong(format!("{} pairs of {}", loaded.pairs, self.args.leaves));
            }
            for id in self.sample() {
                let (key, value) = pair(id, self.order, self.args.leaves);
                if session.read(&key).map_err(wrap)? != Some(value) {
                    return wrong(format!("pair {id} is not there"));
                }
            }
        }
        if loaded.pairs <= COMMITTED {
            let other = tempfile::tempdir_in(self.at).map_err(BenchError::file(self.at))?;
            let root = committed(other.path(), &session)?;
            if root != db.root() {
                return wrong("the root is not that of commits of the same pairs".to_owned());
            }
        }
        drop(session);
        db.close().map_err(wrap)?;
        Ok(loaded.pairs <= COMMITTED)
    }
}

/// Commits the pairs of a state to another database, in another order.
fn committed(folder: &Path, state: &pleach::Session) -> Result<Node> {
    let mut pairs: Vec<(Key, Value)> =
        state.iter(..).collect::<core::result::Result<_, _>>().map_err(wrap)?;
    pairs.sort_unstable_by_key(|(key, _)| *blake3::hash(key).as_bytes());
    let db = open(folder, 64)?;
    for batch in pairs.chunks(BATCH) {
        let session = db.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        let writes = batch.iter().map(|(key, value)| Access::write(*key, Some(value.clone())));
        session.finish(writes.collect()).map_err(wrap)?.commit().map_err(wrap)?;
    }
    let root = db.root();
    db.close().map_err(wrap)?;
    Ok(root)
}

/// A child that is killed and waited for at the latest when it goes.
struct Reaped {
    process: Child,
    id: Option<Pid>,
}

impl Reaped {
    fn new(process: Child) -> Self {
        let id = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        if let Some(id) = id {
            interrupt::add_child(id, false);
        }
        Self { process, id }
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        // One that has said its result has closed its database.
        let _ = self.process.kill();
        if let Some(id) = self.id {
            interrupt::remove_child(id);
        }
        let _ = self.process.wait();
    }
}

/// A pair: the key is a hash, or ascends evenly over all keys; the value has 32 bytes.
fn pair(id: u64, order: Order, leaves: u64) -> (Key, Value) {
    let mut key = account::key(id);
    if order == Order::Sorted {
        let at = (u128::from(id) << 64) / u128::from(leaves);
        let front = u64::try_from(at).expect("below 2^64");
        key[..8].copy_from_slice(&front.to_be_bytes());
    }
    let value: [u8; 32] = core::array::from_fn(|at| id.to_be_bytes()[at % 8]);
    (key, Value::from(&value))
}

/// The child: loads, and says how it goes on standard output.
pub(crate) fn load(job: &LoadJob) -> Result<()> {
    interrupt::note_in_child()?;
    say(&match loaded(job) {
        Ok(loaded) => Said::Loaded(loaded),
        Err(error) => Said::Failed { code: error.code(), message: error.to_string() },
    })
}

fn say(said: &Said) -> Result<()> {
    let text = serde_json::to_string(said);
    let text = text.map_err(|error| BenchError::Child(format!("the load: {error}")))?;
    output::print(&(text + "\n"))
}

/// What a state of others is opened with.
fn options(folder: &Path, cache_mib: u64) -> StoreOptions {
    let threads = machine::cores();
    StoreOptions { folder: folder.to_owned(), cache_mib, threads, peer_args: Vec::new() }
}

/// A load by another state.
fn loaded_elsewhere(ground: Ground, job: &LoadJob) -> Result<Loaded> {
    let mut tree = trees::open(ground, &options(&job.folder, job.cache_mib), true)?;
    machine::reset_peak_rss();
    let mut pairs = (0..job.leaves).map(|id| {
        if id % STEP == 0 {
            // A parent that is gone does not listen.
            let _ = say(&Said::Progress { done: id });
        }
        let (key, value) = pair(id, job.order, job.leaves);
        (key, value.to_vec())
    });
    let start = Instant::now();
    tree.load(&mut pairs)?;
    let seconds = start.elapsed().as_secs_f64();
    let peak_rss = machine::peak_rss();
    let root = tree.root().map(|root| hex(&root)).unwrap_or_default();
    tree.close()?;
    Ok(Loaded { pairs: job.leaves, seconds, written: 0, spilled: 0, peak_rss, root })
}

fn loaded(job: &LoadJob) -> Result<Loaded> {
    match Ground::chosen(std::slice::from_ref(&job.backend))?[..] {
        [Ground::Pleach] => {}
        [other] => return loaded_elsewhere(other, job),
        _ => return Err(BenchError::Usage("this subcommand is internal".to_owned())),
    }
    let db = open_durable(&job.folder, job.cache_mib)?;
    let told = Box::new(|done| {
        // A parent that is gone does not listen.
        let _ = say(&Said::Progress { done });
    });
    let options = LoadOptions::new().memory_mib(job.load_mib).progress(Some(told));
    machine::reset_peak_rss();
    let mut failed = None;
    let report = match &job.from {
        None => {
            let pairs = (0..job.leaves).map(|id| pair(id, job.order, job.leaves));
            db.bulk_load(pairs, &options)
        }
        Some(path) => {
            let lines: Box<dyn BufRead> = if path == Path::new("-") {
                Box::new(stdin().lock())
            } else {
                Box::new(BufReader::with_capacity(
                    1 << 20,
                    File::open(path).map_err(|error| {
                        BenchError::Usage(format!("{}: {error}", path.display()))
                    })?,
                ))
            };
            let parsed = (1_u64..).zip(lines.lines()).map_while(|(number, line)| {
                let parsed = line.map_err(|error| error.to_string()).and_then(|line| {
                    parse(&line)
                        .ok_or_else(|| "a key of 64 and a value of hexadecimal digits".into())
                });
                parsed.map_err(|error| failed = Some(format!("line {number}: {error}"))).ok()
            });
            db.bulk_load(parsed, &options)
        }
    };
    if let Some(text) = failed {
        return Err(BenchError::Usage(format!("--from, {text}")));
    }
    let report = report.map_err(wrap)?;
    let peak_rss = machine::peak_rss();
    db.close().map_err(wrap)?;
    Ok(Loaded {
        pairs: report.accounts,
        seconds: report.seconds,
        written: report.bytes_written,
        spilled: report.spilled_bytes,
        peak_rss,
        root: hex(report.root.as_bytes()),
    })
}

/// A line `KEY VALUE`, in hexadecimal.
fn parse(line: &str) -> Option<(Key, Value)> {
    let (key, value) = line.split_once(' ')?;
    let key = from_hex(key)?;
    let digit = |at: usize| char::from(value.as_bytes()[at]).to_digit(16);
    if !value.len().is_multiple_of(2) {
        return None;
    }
    let byte = |at: usize| u8::try_from(digit(2 * at)? * 16 + digit(2 * at + 1)?).ok();
    let bytes = (0..value.len() / 2).map(byte).collect::<Option<Vec<u8>>>()?;
    Some((key, Value::from(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_that_dump_prints() {
        let key = "ab".repeat(32);
        let parsed = parse(&format!("{key} 00ff10")).expect("a pair");
        assert_eq!(parsed, ([0xab; 32], Value::from(&[0, 0xff, 0x10])));
        assert_eq!(parse(&format!("{key} ")).expect("an empty value").1.len(), 0);
        for bad in [key.as_str(), "ab 00", &format!("{key} 0"), &format!("{key} 0g")] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn sorted_pairs_ascend_and_random_ones_do_not() {
        let keys = |order| (0..1000).map(move |id| pair(id, order, 1000).0);
        assert!(keys(Order::Sorted).is_sorted_by(|a, b| a < b));
        assert!(!keys(Order::Random).is_sorted());
        assert_eq!(pair(7, Order::Sorted, 10).1.len(), 32);
    }
}
