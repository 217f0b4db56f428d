//! A process with a database takes no more than the budget, a tenth of it, and 48 MiB.
//!
//! Each scenario runs in a process of its own, which is this program again: its peak is then that of the
//! database and of what uses it. The accounts are loaded before, by the process that starts it.

#[path = "../examples/memory/scenario.rs"]
mod scenario;

use std::path::Path;
use std::process::Command;

use scenario::{SCENARIOS, Scenario, promise, resident};

/// Where the database of a process that is measured lies.
const FOLDER: &str = "PLEACH_MEMORY_FOLDER";

/// Runs a scenario with this many commits; `test` is the name of the test that asks for it.
fn stays_within(test: &str, name: &str, commits: u64) {
    let find = SCENARIOS.iter().find(|scenario| scenario.name == name);
    let scenario = Scenario { commits, ..*find.expect("a scenario of this name") };
    if let Some(folder) = std::env::var_os(FOLDER) {
        let mut seen = 0;
        scenario.run(Path::new(&folder), |_, _| seen += 1).expect("all commits");
        assert_eq!(seen, commits);
        let (peak, promised) =
            (resident("VmHWM:").expect("a figure"), promise(scenario.budget_mib));
        assert!(peak <= promised, "{name}: {peak:.1} MiB, and {promised:.1} are promised");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    scenario.prepare(folder.path()).expect("loaded");
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let child = child.args(["--exact", test, "--nocapture"]).env(FOLDER, folder.path());
    let output = child.output().expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "it has run: {text}");
}

#[test]
fn small_batches() {
    stays_within("small_batches", "small", 300);
}

#[test]
fn small_batches_while_a_session_is_held() {
    stays_within("small_batches_while_a_session_is_held", "held", 300);
}

/// A batch of 50,000 accounts at 64 MiB: its arrays and its witness are as large as the budget.
#[test]
fn large_batches() {
    stays_within("large_batches", "large", 12);
}
