//! Ctrl-C and other signals end `nomt-bench` cleanly: what was measured is printed, and no child and no temporary folder
//! is left. A second signal ends it at once.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// Small batches, of which `ENDLESS` are far more than a test waits for.
const SMALL: [&str; 6] =
    ["transfer", "--batch=500", "--warmup=1", "--fresh=0", "--log2=10", "--quiet"];
const ENDLESS: &str = "--batches=100000";

/// A running `nomt-bench` whose temporary folders are in a folder of the test.
struct Bench {
    process: Child,
    temporary: TempDir,
}

/// How it ended.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Waits until `what` returns something, a minute at most.
fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process has ended, whether or not it was reaped.
fn is_gone(id: u32) {
    wait_for(|| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
}

impl Bench {
    /// In a process group of its own, as a shell starts it.
    fn start(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let process = Command::new(env!("CARGO_BIN_EXE_nomt-bench"))
            .args(arguments)
            .arg("--cache-mib=64")
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("the binary starts");
        Self { process, temporary }
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// The folder of the run, once it is there.
    fn folder(&self) -> PathBuf {
        wait_for(|| entries(self.temporary.path()).pop())
    }

    /// The process of the job that runs.
    fn child(&self) -> u32 {
        let id = self.process.id();
        let list = format!("/proc/{id}/task/{id}/children");
        wait_for(|| std::fs::read_to_string(&list).ok()?.split_whitespace().next()?.parse().ok())
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).expect("it runs");
    }

    /// Waits for its end. Nothing is left of its folders.
    fn end(mut self) -> Ended {
        let status = wait_for(|| self.process.try_wait().expect("a child of ours"));
        let (mut out, mut err) = (String::new(), String::new());
        let pipes = (self.process.stdout.take(), self.process.stderr.take());
        pipes.0.expect("a pipe").read_to_string(&mut out).expect("text");
        pipes.1.expect("a pipe").read_to_string(&mut err).expect("text");
        let left = entries(self.temporary.path());
        assert!(left.is_empty(), "{left:?}");
        Ended { code: status.code(), out, err }
    }
}

impl Ended {
    /// The exit code, and one line that says why.
    fn says(&self, code: i32, words: &str) {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        assert!(self.err.starts_with("nomt-bench: ") && self.err.contains(words), "{}", self.err);
    }
}

/// Waits until four batches were committed in a folder.
fn wait_for_batches(folder: &Path) {
    let record = folder.join("pleach.roots");
    wait_for(|| {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        (text.split_whitespace().count() > 8).then_some(())
    });
}

#[test]
fn a_signal_ends_the_batches_and_prints_those_that_were_measured() {
    let two = ["--backend=pleach,model", "--alternate=2"];
    let (alone, beside) = (&[][..], &two[..]);
    let signals = [
        (Signal::INT, 130, alone),
        (Signal::TERM, 143, alone),
        (Signal::HUP, 129, alone),
        (Signal::INT, 130, beside),
    ];
    for (signal, code, more) in signals {
        let json = tempfile::NamedTempFile::new().expect("a temporary file");
        let file = format!("--json={}", json.path().display());
        let bench = Bench::start(&[&SMALL[..], &[ENDLESS, &file], more].concat());
        wait_for_batches(&bench.folder());
        let child = bench.child();
        // Ctrl-C of a terminal is one of the whole group.
        kill_process_group(bench.id(), signal).expect("it runs");
        // A second signal right after the first, as `timeout` sends it, counts as the same.
        bench.signal(signal);
        let ended = bench.end();
        ended.says(code, "until then");
        is_gone(child);
        assert!(ended.out.contains("transfers, drained"), "{}", ended.out);
        let text = std::fs::read_to_string(json.path()).expect("the result");
        let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(document["interrupted"], true);
        let figures = document["runs"][0]["figures"].as_array().expect("figures");
        let executed = figures.iter().find(|figure| figure["name"] == "execute");
        assert!(executed.is_some_and(|one| one["samples"].as_u64() >= Some(2)), "{text}");
    }
}

#[test]
fn a_load_is_ended_at_once_and_nothing_is_printed() {
    let bench = Bench::start(&["transfer", "--log2=22"]);
    let folder = bench.folder();
    wait_for(|| folder.join("pleach").exists().then_some(()));
    let child = bench.child();
    bench.signal(Signal::INT);
    let ended = bench.end();
    ended.says(130, "nothing was measured");
    assert_eq!(ended.out, "");
    is_gone(child);
}

#[test]
fn the_second_signal_ends_a_long_batch_at_once() {
    // One batch takes many seconds.
    let bench =
        Bench::start(&["transfer", "--log2=16", "--batch=10M", "--batches=3", "--warmup=0"]);
    let load = bench.child();
    let child = wait_for(|| Some(bench.child()).filter(|child| *child != load));
    std::thread::sleep(Duration::from_millis(700));
    bench.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(500));
    assert!(Path::new(&format!("/proc/{child}")).exists(), "it waits for its batch");
    let start = Instant::now();
    bench.signal(Signal::INT);
    let ended = bench.end();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!((ended.code, ended.out.as_str()), (Some(130), ""), "{}", ended.err);
    is_gone(child);
}

#[test]
fn a_killed_parent_leaves_no_children() {
    let two = [ENDLESS, "--backend=pleach,model", "--alternate=2"];
    let mut bench = Bench::start(&[&SMALL[..], &two].concat());
    wait_for_batches(&bench.folder());
    let id = bench.process.id();
    let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("it runs");
    let children: Vec<u32> = list.split_whitespace().map(|id| id.parse().expect("an id")).collect();
    assert_eq!(children.len(), 2);
    bench.process.kill().expect("it runs");
    bench.process.wait().expect("a child of ours");
    children.into_iter().for_each(is_gone);
}

#[test]
fn recover_ends_between_two_kills() {
    let bench = Bench::start(&["recover", "--log2=8", "--batch=20", "--kills=1000"]);
    // The load has a child, and each cycle three: these are at least two kills.
    let mut children = std::collections::BTreeSet::new();
    wait_for(|| {
        children.insert(bench.child());
        (children.len() > 9).then_some(())
    });
    bench.signal(Signal::INT);
    bench.end().says(130, "until then");
}

#[test]
fn device_prints_what_it_had() {
    let at = tempfile::tempdir().expect("a temporary folder");
    let dir = format!("--dir={}", at.path().display());
    let bench = Bench::start(&["device", "--size-mib=16", "--millis=500", "--no-fio", &dir]);
    wait_for(|| (!entries(at.path()).is_empty()).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    bench.signal(Signal::INT);
    let ended = bench.end();
    ended.says(130, "until then");
    let out = ended.out;
    assert!(out.contains("\nrandom read 4 KiB, depth 1\n") && !out.contains("log write"), "{out}");
    assert!(entries(at.path()).is_empty());
}

/// The second process once removed the database that the first had open.
#[test]
fn a_second_process_on_one_folder_is_refused_and_the_first_ends_right() {
    let at = tempfile::tempdir().expect("a temporary folder");
    let dir = format!("--dir={}", at.path().display());
    let start = |more: &[&str]| Bench::start(&[&SMALL[..], &[&dir], more].concat());
    let first = start(&[ENDLESS]);
    wait_for_batches(at.path());
    for more in [&[ENDLESS][..], &[ENDLESS, "--reset"]] {
        let ended = start(more).end();
        ended.says(2, "another nomt-bench uses");
        assert_eq!(ended.out, "");
    }
    first.signal(Signal::INT);
    first.end().says(130, "until then");
    let third = start(&["--batches=2"]).end();
    assert_eq!(third.code, Some(0), "{}", third.err);
}
