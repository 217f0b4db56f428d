//! `nomt-bench import`: a bulk load of a stream, under a limit of memory, in a process of its own.

mod load;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pleach::{Access, Key, Node, SessionOptions, Value};
use rustix::process::Pid;

use super::Sheet;
use super::engine::{open, open_durable, wrap};
use super::states::States;
use crate::args::stores::{ImportArgs, Order};
use crate::child::tied;
use crate::error::{BenchError, Result};
use crate::measure::{Phase, float, ratio};
use crate::progress::Progress;
use crate::stores::Engine;
use crate::text::{grouped, hex};
use crate::trees::Ground;
use crate::{interrupt, machine, output};
pub(crate) use load::load;
use load::{Loaded, Said, pair};

/// Up to so many pairs the root is that of commits of the same, too.
const COMMITTED: u64 = 1 << 17;
/// Pairs of such a commit.
const BATCH: usize = 10_000;
/// Pairs that are read back.
const SAMPLE: u64 = 1000;

/// Measures all orders; databases are made in a folder.
pub(crate) fn run(args: &ImportArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    let runs = |ground: Ground| match ground {
        // It leaves nothing behind that could be read back.
        Ground::Flat(Engine::BTreeMap) => Err("it is loaded in a process that ends"),
        _ => Ok(()),
    };
    if args.kill && !args.states.backend.iter().any(|name| name == "pleach") {
        let text = "--kill is for pleach: name it with --backend";
        return Err(BenchError::Usage(text.to_owned()));
    }
    let states = States::new(&args.states, (args.whole_mib(), args.leaves), runs, sheet)?;
    let ours = states.grounds.contains(&Ground::Pleach);
    if args.from.is_some() {
        if args.parts.rounds() > 1 {
            let text = "--from is read once: leave --rounds out";
            return Err(BenchError::Usage(text.to_owned()));
        }
        if states.grounds[..] != [Ground::Pleach] {
            let text = "--from is for pleach alone: leave --backend out";
            return Err(BenchError::Usage(text.to_owned()));
        }
    }
    for &ground in &states.grounds {
        // Settings that do not exist are refused before anything is measured.
        let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
        let tree = states.open(ground, folder.path())?;
        states.note(ground, &*tree, sheet);
        tree.close()?;
    }
    if ours {
        let (base, load) = (args.storage.cache_mib(), args.load_mib);
        sheet.notes.push(format!(
            "pleach: of its budget {base} MiB are the database's, {load} the load's"
        ));
    }
    if args.kill {
        let others = states.grounds.iter().filter(|ground| **ground != Ground::Pleach);
        let others: Vec<&str> = others.map(|ground| ground.name()).collect();
        if !others.is_empty() {
            let others = others.join(", ");
            sheet.notes.push(format!("--kill is for pleach alone: no load of {others} was killed"));
        }
    }
    if let Some(path) = &args.from {
        let name = if path == Path::new("-") { "standard input" } else { "a file" };
        let import = Import { args, states: &states, at, order: Order::Random };
        return import.measure(name, bar, sheet).map(|_| ());
    }
    for &order in &args.order {
        let import = Import { args, states: &states, at, order };
        let mut roots = Roots::default();
        for &ground in &states.grounds {
            let root = if ground == Ground::Pleach {
                import.measure(order.name(), bar, sheet)?
            } else {
                import.elsewhere(ground, bar, sheet)?
            };
            if ground.has_our_roots() {
                roots.add(ground.name(), root)?;
            }
        }
        if let [_, _, ..] = roots.0[..] {
            let names: Vec<&str> = roots.0.iter().map(|(name, _)| *name).collect();
            sheet.notes.push(format!("{}: same root: {}", order.name(), names.join(", ")));
        }
    }
    Ok(())
}

/// Roots of loads of the same pairs, by states with the same commitment.
#[derive(Default)]
struct Roots(Vec<(&'static str, String)>);

impl Roots {
    /// An error if it differs from those before.
    fn add(&mut self, name: &'static str, root: String) -> Result<()> {
        if let Some((other, _)) = self.0.iter().find(|(_, one)| *one != root) {
            let text = format!("{other} and {name} have different roots after a load of the same");
            return Err(BenchError::Wrong(text));
        }
        self.0.push((name, root));
        Ok(())
    }
}

struct Import<'a> {
    args: &'a ImportArgs,
    states: &'a States,
    at: &'a Path,
    order: Order,
}

impl Import<'_> {
    /// Gives the root.
    fn measure(&self, name: &str, bar: &Progress, sheet: &mut Sheet) -> Result<String> {
        let mut phase = Phase::new();
        let mut last = None;
        for round in 0..self.args.parts.rounds() {
            let folder = tempfile::tempdir_in(self.at).map_err(BenchError::file(self.at))?;
            if self.args.kill && round == 0 {
                self.killed(folder.path(), bar, sheet)?;
            }
            let loaded = self.whole(folder.path(), Ground::Pleach, bar)?;
            phase.record(Duration::from_secs_f64(loaded.seconds));
            let size = machine::folder_bytes(folder.path());
            let compared = self.check(folder.path(), &loaded)?;
            last = Some((loaded, size, compared));
        }
        let Some((loaded, size, compared)) = last else { return Err(nothing()) };
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
        Ok(loaded.root)
    }

    /// The same pairs loaded by another state, and a sample of them read back. Gives the root, where there is one.
    fn elsewhere(&self, ground: Ground, bar: &Progress, sheet: &mut Sheet) -> Result<String> {
        let (name, part) = (ground.name(), ground.part());
        let case = format!("{}, {} pairs", self.order.name(), grouped(self.args.leaves));
        let mut phase = Phase::new();
        let mut last = None;
        for _ in 0..self.args.parts.rounds() {
            let folder = tempfile::tempdir_in(self.at).map_err(BenchError::file(self.at))?;
            let loaded = self.whole(folder.path(), ground, bar)?;
            phase.record(Duration::from_secs_f64(loaded.seconds));
            let size = machine::folder_bytes(folder.path());
            let mut tree = self.states.open(ground, folder.path())?;
            let wrong = |what: &str| Err(BenchError::Wrong(format!("{name}: {what}")));
            if tree.root().map(|root| hex(&root)).unwrap_or_default() != loaded.root {
                return wrong("the root is not the one of the load");
            }
            let ids: Vec<u64> = self.sample().collect();
            let pairs = ids.iter().map(|&id| pair(id, self.order, self.args.leaves));
            let (keys, values): (Vec<Key>, Vec<Value>) = pairs.unzip();
            let found = tree.read(&keys)?;
            tree.close()?;
            let same =
                |(found, value): (&Option<Vec<u8>>, &Value)| found.as_deref() == Some(&**value);
            if !found.iter().zip(&values).all(same) {
                return wrong("a pair is not there");
            }
            last = Some((loaded, size));
        }
        let Some((loaded, size)) = last else { return Err(nothing()) };
        sheet.phase(&case, &format!("load, {part}{name}"), loaded.pairs, &phase);
        for (what, bytes) in [("size of the files", size), ("peak RSS", loaded.peak_rss)] {
            let count = float(bytes);
            sheet.count(&case, &format!("{what}, bytes, {part}{name}"), ("bytes", count), count);
        }
        Ok(loaded.root)
    }

    /// A load that nobody kills.
    fn whole(&self, folder: &Path, ground: Ground, bar: &Progress) -> Result<Loaded> {
        let loaded = self.load(folder, ground, bar, None)?;
        loaded.ok_or_else(|| BenchError::Child("the load was killed".to_owned()))
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
        // What a load of ours has beside the database, the others have in one.
        let ours = matches!(ground, Ground::Pleach);
        let cache_mib = if ours { self.args.storage.cache_mib() } else { self.args.whole_mib() };
        command.args(["--cache-mib", &cache_mib.to_string()]);
        for arg in &self.args.states.settings.peer_arg {
            command.args(["--peer-arg", arg]);
        }
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

fn nothing() -> BenchError {
    BenchError::Child("nothing was loaded".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_with_the_same_commitment_have_the_same_root() {
        let mut roots = Roots::default();
        roots.add("pleach", "ab".to_owned()).expect("the first");
        roots.add("nomt", "ab".to_owned()).expect("the same");
        let error = roots.add("another", "cd".to_owned()).expect_err("it differs");
        assert!(error.to_string().contains("pleach and another"), "{error}");
    }
}
