//! A process with a database takes no more than the budget, a tenth of it, and 48 MiB.
//!
//! Each scenario runs in a process of its own, which is this program again: its peak is then that of the
//! database and of what uses it. The accounts are loaded before, by another one.

#[path = "../examples/memory/scenario.rs"]
mod scenario;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pleach::Metrics;
use scenario::{SCENARIOS, Scenario, promise, resident};

/// Where the database of a process that is measured lies.
const FOLDER: &str = "PLEACH_MEMORY_FOLDER";
/// What the process does: loads, or runs.
const STAGE: &str = "PLEACH_MEMORY_STAGE";
const LOAD: &str = "load";
const RUN: &str = "run";
/// A process that comes no further for so long has stopped.
const PATIENCE: Duration = Duration::from_secs(240);

/// Runs a scenario with this many commits; `test` is the name of the test that asks for it.
fn stays_within(test: &str, name: &str, commits: u64) {
    let find = SCENARIOS.iter().find(|scenario| scenario.name == name);
    let scenario = Scenario { commits, ..*find.expect("a scenario of this name") };
    if let Some(folder) = std::env::var_os(FOLDER) {
        if std::env::var_os(STAGE).is_some_and(|stage| stage == LOAD) {
            return scenario.prepare(&Path::new(&folder).join("db")).expect("loaded");
        }
        return run(&scenario, &PathBuf::from(folder));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for stage in [LOAD, RUN] {
        let said = folder.path().join(stage);
        let file = fs::File::create(&said).expect("created");
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        let child = child.args(["--exact", test, "--nocapture"]);
        let child = child.env(FOLDER, folder.path()).env(STAGE, stage).stdin(Stdio::null());
        let child = child.stderr(file.try_clone().expect("another handle")).stdout(file);
        let ended = watch(child.spawn().expect("started"), &progress(folder.path()));
        let text = fs::read_to_string(&said).expect("what it said");
        if let Err(stopped) = &ended {
            panic!("{name} has stopped: {stage}.\n{stopped}\n{text}");
        }
        assert!(ended == Ok(true) && text.contains("1 passed"), "{text}");
    }
}

/// Does all commits, and looks at the peak.
fn run(scenario: &Scenario, folder: &Path) {
    let (mut seen, progress) = (0, progress(folder));
    let each = |commit: u64, _: &Metrics| {
        seen += 1;
        fs::write(&progress, commit.to_string()).expect("written");
    };
    scenario.run(&folder.join("db"), each).expect("all commits");
    assert_eq!(seen, scenario.commits);
    let (peak, promised) = (resident("VmHWM:").expect("a figure"), promise(scenario.budget_mib));
    assert!(peak <= promised, "{}: {peak:.1} MiB, and {promised:.1} are promised", scenario.name);
}

/// The file in which the process says which commit it has come to.
fn progress(folder: &Path) -> PathBuf {
    folder.join("progress")
}

/// Waits for the end of a process, and says whether it succeeded; one that comes no further is killed, and the error
/// says where its threads were.
fn watch(mut child: Child, progress: &Path) -> Result<bool, String> {
    let (mut last, mut since) = (None, Instant::now());
    loop {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            return Ok(status.success());
        }
        let now = fs::read_to_string(progress).ok();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            let mut text = format!("Commits: {last:?}\n");
            for task in fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten() {
                let at = task.expect("a thread").path();
                let of = |file| fs::read_to_string(at.join(file)).unwrap_or_default();
                let _ = writeln!(text, "{} {} {}", of("comm").trim(), of("wchan"), of("syscall"));
            }
            child.kill().expect("killed");
            child.wait().expect("it has ended");
            return Err(text);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// By the hundredth commit nearly all accounts were written; `PLEACH_CASES` asks for more.
fn commits() -> u64 {
    if std::env::var_os("PLEACH_CASES").is_some() { 300 } else { 100 }
}

#[test]
fn small_batches() {
    stays_within("small_batches", "small", commits());
}

#[test]
fn small_batches_while_a_session_is_held() {
    stays_within("small_batches_while_a_session_is_held", "held", commits());
}

/// A batch of 50,000 accounts at 64 MiB: its arrays and its witness are as large as the budget.
#[test]
fn large_batches() {
    stays_within("large_batches", "large", 12);
}
