//! `nomt-bench compare` as a user runs it: what it measures it keeps, a run that was stopped goes on, and the
//! page needs nothing else.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(120);

fn command(folder: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nomt-bench"));
    command.args(["compare", "--size", "smallest", "--cache-mib", "64", "--quiet", "--dir"]);
    command.arg(folder).args(more);
    command
}

fn run(folder: &Path, more: &[&str]) -> Output {
    command(folder, more).output().expect("the binary starts")
}

fn succeed(folder: &Path, more: &[&str]) -> Value {
    let output = run(folder, more);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{more:?}\n{err}");
    read(folder)
}

fn read(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("compare.json")).expect("the result");
    serde_json::from_str(&text).expect("JSON")
}

fn names(document: &Value) -> Vec<&str> {
    let steps = document["steps"].as_array().expect("steps");
    steps.iter().map(|step| step["name"].as_str().expect("a name")).collect()
}

/// Which steps were measured by an earlier command.
fn kept(document: &Value) -> Vec<bool> {
    let steps = document["steps"].as_array().expect("steps");
    steps.iter().map(|step| step["kept"].as_bool().expect("known")).collect()
}

#[test]
fn everything_is_measured_once_and_shown_on_one_page() {
    let at = tempfile::tempdir().expect("a temporary folder");
    let only = ["--only", "auth,transfer"];
    let first = succeed(at.path(), &only);
    assert_eq!(names(&first), ["auth", "transfer"]);
    assert_eq!(kept(&first), [false, false]);
    let claims = first["claims"].as_array().expect("claims");
    assert!(claims.iter().any(|claim| claim["other"] == "btreemap"), "{claims:?}");
    let result = &first["steps"][1]["result"]["runs"][0];
    assert_eq!(result["backend"], "pleach");
    assert_eq!(result["verified"]["all_balances"], true);
    assert!(!at.path().join("databases").exists());

    let page = std::fs::read_to_string(at.path().join("compare.html")).expect("the page");
    for elsewhere in ["<script", "http:", "https:", "<link", "@import"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    for part in ["<h2 id=\"auth\">", "<h2 id=\"transfer\">", "OTHER HARDWARE", "class=\"worse\""] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("INCOMPLETE"));

    let again = succeed(at.path(), &only);
    assert_eq!(kept(&again), [true, true]);
    assert_eq!(again["steps"][0]["result"], first["steps"][0]["result"]);
    // Other parameters are another measurement; what stays the same stays.
    let other = succeed(at.path(), &[&only[..], &["--seed", "7"]].concat());
    assert_eq!(kept(&other), [false, false]);
    assert_eq!(kept(&succeed(at.path(), &[&only[..], &["--reset"]].concat())), [false, false]);
}

#[test]
fn a_run_that_was_stopped_goes_on() {
    let at = tempfile::tempdir().expect("a temporary folder");
    let only = ["--only", "hash,grind,auth,proof,overlay,threshold,flatten,erc20"];
    let mut process = command(at.path(), &only)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let start = Instant::now();
    while !at.path().join("hash.step").exists() {
        assert!(start.elapsed() < PATIENCE, "no first step");
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(Pid::from_child(&process), Signal::INT).expect("it runs");
    assert_eq!(process.wait().expect("it ends").code(), Some(130));
    assert!(!at.path().join("databases").exists());
    let part = read(at.path());
    let done = names(&part).len();
    assert!((1..8).contains(&done), "{done} steps");
    assert_eq!(part["planned"], 8);
    let page = std::fs::read_to_string(at.path().join("compare.html")).expect("the page");
    assert!(page.contains("INCOMPLETE"), "{page}");

    let whole = succeed(at.path(), &only);
    assert_eq!(names(&whole).len(), 8);
    let kept = kept(&whole);
    assert!(kept[..done].iter().all(|&kept| kept), "{kept:?}");
    assert!(kept[done..].iter().all(|&kept| !kept), "{kept:?}");
}

/// The children of a process, and theirs.
fn descendants(id: u32) -> Vec<u32> {
    let path = format!("/proc/{id}/task/{id}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let children = children.split_whitespace().map(|id| id.parse().expect("a process"));
    children.flat_map(|id| [vec![id], descendants(id)].concat()).collect()
}

/// Does a process run? One that has ended and that nobody has waited for does not.
fn runs(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// A comparison that was killed once left its steps, and their children, running for minutes.
#[test]
fn nothing_outlives_a_comparison_that_is_killed() {
    let at = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nomt-bench"));
    command.args(["compare", "--size", "quick", "--only", "transfer", "--backend", "pleach"]);
    command.args(["--cache-mib", "64", "--quiet", "--dir"]);
    let mut process = command
        .arg(at.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let start = Instant::now();
    // A step, and the child that does its load.
    let family = loop {
        let family = descendants(process.id());
        if family.len() >= 2 {
            break family;
        }
        let ended = process.try_wait().expect("it is ours");
        assert!(ended.is_none(), "it ended before it could be killed: {ended:?}");
        assert!(start.elapsed() < PATIENCE, "no children: {family:?}");
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(family.iter().copied().all(runs), "{family:?}");
    process.kill().expect("killed");
    process.wait().expect("it ends");
    while family.iter().copied().any(runs) {
        assert!(start.elapsed() < PATIENCE, "{family:?} still run");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// fio once went on for seconds. A stand-in that measures for a minute says whose it is.
#[test]
fn fio_ends_with_its_measurement() {
    let at = tempfile::tempdir().expect("a temporary folder");
    let (fio, id) = (at.path().join("fio"), at.path().join("id"));
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec echo fio-0\necho $$ > {0}.new\nmv {0}.new {0}\nexec sleep 60\n",
        id.display()
    );
    std::fs::write(&fio, text).expect("a script");
    std::fs::set_permissions(&fio, std::fs::Permissions::from_mode(0o755)).expect("it can run");
    let found = std::env::var("PATH").unwrap_or_default();
    let mut process = Command::new(env!("CARGO_BIN_EXE_nomt-bench"))
        .args(["device", "--size-mib", "16", "--millis", "10", "--dir"])
        .arg(at.path())
        .env("PATH", format!("{}:{found}", at.path().display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let start = Instant::now();
    let fio = loop {
        let ended = process.try_wait().expect("it is ours");
        assert!(ended.is_none(), "it ended before fio began: {ended:?}");
        if let Ok(text) = std::fs::read_to_string(&id) {
            break text.trim().parse().expect("a process");
        }
        assert!(start.elapsed() < PATIENCE, "no fio");
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(runs(fio));
    process.kill().expect("killed");
    process.wait().expect("it ends");
    // Far less than the stand-in's minute.
    let killed = Instant::now();
    while runs(fio) {
        assert!(killed.elapsed() < Duration::from_secs(20), "fio still runs");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn what_does_not_exist_is_refused_before_anything_is_made() {
    let at = tempfile::tempdir().expect("a temporary folder");
    let folder = at.path().join("none");
    for (case, word) in [
        (["--only", "dance"], "transfer"),
        (["--only", "hash,hash"], "twice"),
        (["--backend", "abacus"], "pleach"),
        (["--seed", "many"], "number"),
        (["--report", "/nonexistent/folder/page.html"], "page.html"),
    ] {
        let output = run(&folder, &case);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{case:?}: {err}");
        assert!(err.contains(word) && err.lines().count() == 1, "{case:?}: {err}");
    }
    assert!(!folder.exists());
    // What is not a comparison's stays as it is.
    let other = at.path().join("databases");
    std::fs::create_dir(&other).expect("a folder");
    std::fs::write(other.join("mine"), "mine").expect("a file");
    let output = run(at.path(), &["--only", "hash"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("other files"));
    assert!(other.join("mine").exists());
}

#[test]
fn a_workload_of_single_parts_has_a_page_too() {
    let at = tempfile::tempdir().expect("a temporary folder");
    let file = at.path().join("page.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nomt-bench"));
    command.args(["auth", "--sizes", "100", "--rounds", "1", "--quiet", "--report"]).arg(&file);
    assert!(command.output().expect("the binary starts").status.success());
    let page = std::fs::read_to_string(&file).expect("the page");
    for part in
        ["comparisons, Pleach is ahead", "btreemap", "<rect ", "SparseTrie", "OTHER HARDWARE"]
    {
        assert!(page.contains(part), "{part}\n{page}");
    }
    for elsewhere in ["<script", "http:", "https:", "<link", "@import"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
}
