//! Ctrl-C and other signals end `nomt-bench` cleanly: what was measured is printed, and no child and
//! no temporary folder is left. A second signal ends it at once.
//!
//! Ctrl-C once left the temporary folder, 10 GB of it at 2^27 accounts, and no result.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);

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
    /// Entries that it left in the folder for temporary files.
    left: Vec<PathBuf>,
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Waits until `what` returns something.
fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "it did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Bench {
    /// In a process group of its own, as a shell starts it.
    fn start(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let process = Command::new(env!("CARGO_BIN_EXE_nomt-bench"))
            .args(arguments)
            .args(["--quiet", "--cache-mib", "64"])
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

    /// Waits until a backend's record has the load and this many batches.
    fn wait_for_batches(&self, backend: &str, batches: usize) {
        let record = self.folder().join(format!("{backend}.roots"));
        wait_for(|| {
            let text = std::fs::read_to_string(&record).unwrap_or_default();
            (text.split_whitespace().count() > 2 * batches).then_some(())
        });
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

    fn end(mut self) -> Ended {
        let status = wait_for(|| self.process.try_wait().expect("a child of ours"));
        let (mut out, mut err) = (String::new(), String::new());
        let pipes = (self.process.stdout.take(), self.process.stderr.take());
        pipes.0.expect("a pipe").read_to_string(&mut out).expect("text");
        pipes.1.expect("a pipe").read_to_string(&mut err).expect("text");
        Ended { code: status.code(), out, err, left: entries(self.temporary.path()) }
    }
}

impl Ended {
    /// Exit code, nothing left, one last line that says why.
    fn cleanly(&self, code: i32, words: &str) {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        assert!(self.left.is_empty(), "{:?}", self.left);
        let last = self.err.lines().last().unwrap_or_default();
        assert!(last.starts_with("nomt-bench: ended by") && last.contains(words), "{}", self.err);
    }
}

/// Waits until a process has ended, whether or not it has been reaped.
fn is_gone(id: u32) {
    wait_for(|| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
}

/// Far more batches than a test waits for.
const ENDLESS: [&str; 8] =
    ["--batch", "500", "--batches", "100000", "--warmup", "1", "--fresh", "0"];

#[test]
fn a_signal_ends_the_batches_and_prints_those_that_were_measured() {
    let cases = [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)];
    for (signal, code) in cases {
        let json = tempfile::tempdir().expect("a temporary folder");
        let json = json.path().join("result.json");
        let name = json.to_str().expect("a plain name");
        let arguments = ["transfer", "--log2", "12", "--json", name];
        let bench = Bench::start(&[&arguments[..], &ENDLESS].concat());
        bench.wait_for_batches("pleach", 4);
        let child = bench.child();
        bench.signal(signal);
        let ended = bench.end();
        ended.cleanly(code, "until then");
        is_gone(child);
        assert!(ended.out.contains("INTERRUPTED after"), "{}", ended.out);
        assert!(ended.out.contains("transfers/s, drained"), "{}", ended.out);
        let text = std::fs::read_to_string(&json).expect("the result");
        let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let run = &document["runs"][0];
        assert_eq!(run["interrupted"], true);
        assert!(run["batches"].as_u64() >= Some(2), "{run}");
        assert_eq!(run["batch_ms"].as_array().map(|all| all.len() as u64), run["batches"].as_u64());
        // Each batch that is in the result was verified.
        assert_eq!(run["verified"]["witnesses"], run["batches"]);
    }
}

#[test]
fn ctrl_c_of_a_terminal_reaches_the_children_too_and_does_the_same() {
    for more in [&[][..], &["--backend", "pleach,model", "--alternate", "2"]] {
        let bench = Bench::start(&[&["transfer", "--log2", "10"], &ENDLESS[..], more].concat());
        bench.wait_for_batches("pleach", 4);
        let child = bench.child();
        kill_process_group(bench.id(), Signal::INT).expect("it runs");
        // A second signal right after the first, as `timeout` sends it, counts as the same.
        kill_process(bench.id(), Signal::INT).expect("it runs");
        let ended = bench.end();
        ended.cleanly(130, "until then");
        is_gone(child);
        assert!(ended.out.contains("INTERRUPTED after"), "{}", ended.out);
    }
}

#[test]
fn a_load_is_ended_at_once_and_nothing_is_printed() {
    let bench = Bench::start(&["transfer", "--log2", "22"]);
    let folder = bench.folder();
    wait_for(|| folder.join("pleach").exists().then_some(()));
    let child = bench.child();
    bench.signal(Signal::INT);
    let ended = bench.end();
    ended.cleanly(130, "nothing was measured");
    assert_eq!(ended.out, "");
    is_gone(child);
}

#[test]
fn the_second_signal_ends_a_long_batch_at_once() {
    // One batch takes many seconds.
    let size = ["--log2", "16", "--batch", "10M", "--batches", "3", "--warmup", "0"];
    let bench = Bench::start(&[&["transfer"], &size[..]].concat());
    let load = bench.child();
    let child = wait_for(|| Some(bench.child()).filter(|&child| child != load));
    std::thread::sleep(Duration::from_millis(700));
    bench.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(500));
    assert!(Path::new(&format!("/proc/{child}")).exists(), "it waits for its batch");
    let start = Instant::now();
    bench.signal(Signal::INT);
    let ended = bench.end();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!((ended.code, ended.out.as_str()), (Some(130), ""), "{}", ended.err);
    assert!(ended.left.is_empty(), "{:?}", ended.left);
    is_gone(child);
}

#[test]
fn recover_and_device_print_what_they_had() {
    let bench = Bench::start(&["recover", "--log2", "8", "--batch", "20", "--kills", "1000"]);
    // The load has two children and each cycle three, so these are at least two kills.
    let mut children = std::collections::BTreeSet::new();
    wait_for(|| {
        children.insert(bench.child());
        (children.len() > 9).then_some(())
    });
    bench.signal(Signal::INT);
    let ended = bench.end();
    ended.cleanly(130, "until then");
    let kills = ended.out.lines().find(|line| line.trim_start().starts_with("kills"));
    let kills: u32 =
        kills.and_then(|line| line.split_whitespace().last()?.parse().ok()).expect("kills");
    assert!((1..1000).contains(&kills), "{}", ended.out);

    let at = tempfile::tempdir().expect("a temporary folder");
    let name = at.path().to_str().expect("a plain name");
    let mut device = Command::new(env!("CARGO_BIN_EXE_nomt-bench"))
        .args(["device", "--size-mib", "16", "--millis", "500", "--no-fio", "--dir", name])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    wait_for(|| (!entries(at.path()).is_empty()).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    kill_process(Pid::from_child(&device), Signal::INT).expect("it runs");
    let status = wait_for(|| device.try_wait().expect("a child of ours"));
    let mut out = String::new();
    device.stdout.take().expect("a pipe").read_to_string(&mut out).expect("text");
    assert_eq!(status.code(), Some(130), "{out}");
    assert!(out.contains("random read 4 KiB, depth 1 ") && !out.contains("log write"), "{out}");
    assert!(entries(at.path()).is_empty());
}

/// The second process once removed the database that the first had open.
#[test]
fn a_second_process_on_one_folder_is_refused_and_the_first_ends_right() {
    let db = tempfile::tempdir().expect("a temporary folder");
    let dir = db.path().to_str().expect("a plain name");
    let size = ["transfer", "--log2", "10", "--dir", dir];
    let second =
        |more: &[&str]| Bench::start(&[&size, more, &["--batch", "500", "--fresh", "0"]].concat());
    let first = Bench::start(&[&size, &ENDLESS[..]].concat());
    let parameters = db.path().join("pleach.json");
    let text = || std::fs::read_to_string(&parameters).unwrap_or_default();
    for more in [&[][..], &["--reset"]] {
        // While it loads, or while it runs.
        wait_for(|| parameters.exists().then_some(()));
        let ended = second(more).end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        assert!(ended.err.contains("another nomt-bench uses"), "{}", ended.err);
        let record = db.path().join("pleach.roots");
        wait_for(|| {
            std::fs::read_to_string(&record)
                .is_ok_and(|text| text.lines().count() > 4)
                .then_some(())
        });
    }
    assert!(text().contains("\"loaded\": {"), "{}", text());
    first.signal(Signal::INT);
    first.end().cleanly(130, "until then");
    let third = second(&["--batches", "2"]).end();
    assert_eq!(third.code, Some(0), "{}", third.err);
    assert!(third.out.contains("conserved"), "{}", third.out);
}
