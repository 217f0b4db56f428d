//! `pleach` as the first process of a container, whose signals the kernel drops unless the process has handlers.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use pleach::load::LoadOptions;
use pleach::{Db, Hasher, Options, Value};

const ENDS: [(&str, i32); 3] = [("TERM", 143), ("INT", 130), ("QUIT", 131)];

fn pleach(arguments: &[&str]) -> ExitStatus {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
    command.args(arguments).output().expect("the binary starts").status
}

/// Starts `pleach` as the first process of a pid namespace; `None` where that is not allowed.
fn start(arguments: &[&str]) -> Option<Child> {
    let allowed = ["-pf", "-rpf"].into_iter().find(|flags| {
        let mut probe = Command::new("unshare");
        let status = probe.args([flags, "true"]).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    });
    let mut unshare = Command::new("unshare");
    unshare.args([allowed?, "--kill-child", env!("CARGO_BIN_EXE_pleach")]).args(arguments);
    Some(unshare.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started"))
}

/// Sends a signal to that process, again as long as it may have come before the handler. Gives the exit code; `None` where
/// the signal is not heard.
fn end(unshare: &mut Child, signal: &str) -> Option<i32> {
    let id = unshare.id();
    for _ in 0..1_000 {
        if let Some(status) = unshare.try_wait().expect("waited") {
            return status.code();
        }
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        for child in children.unwrap_or_default().split_whitespace() {
            // It may have ended.
            let _ = Command::new("kill").args(["-s", signal, child]).stderr(Stdio::null()).status();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    unshare.kill().expect("killed");
    unshare.wait().expect("ended");
    None
}

fn database(folder: &Path) {
    let options = Options::new(folder).create(true).small().cache_mib(64);
    let db = Db::open(options).expect("opened");
    let pairs = (0..100_000_u64)
        .map(|id| (Hasher::BLAKE3.hash(&id.to_be_bytes()), Value::from(vec![1; 100])));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    db.close().expect("closed");
}

/// `docker stop` waited ten seconds and killed each of them, and Ctrl-C ended none.
#[test]
fn services_end_when_they_are_asked_to() {
    let papers = tempfile::tempdir().expect("a folder");
    let at = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let (state, archive, copy) = (at("state"), at("archive"), at("copy"));
    database(Path::new(&state));
    assert!(pleach(&["backup", &state, "--to", &archive]).success());
    let services: [&[&str]; 3] = [
        &["backup", &state, "--to", &archive, "--every", "60"],
        &["follow", &archive, "--to", &copy],
        &["top", &state],
    ];
    for (signal, code) in ENDS {
        for service in services {
            let Some(mut child) = start(service) else {
                return println!("SKIPPED: no pid namespaces here");
            };
            assert_eq!(end(&mut child, signal), Some(code), "{signal} {service:?}");
        }
    }
    assert!(pleach(&["check", &state]).success());
    assert!(pleach(&["follow", &archive, "--to", &copy, "--once"]).success());
}

/// A signal is an end as by a kill: a folder that was not filled says so, and the next run fills it.
#[test]
fn what_a_signal_leaves_half_filled_is_no_database() {
    let papers = tempfile::tempdir().expect("a folder");
    let at = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let (state, archive, stream) = (at("state"), at("archive"), at("state.plx"));
    database(Path::new(&state));
    assert!(pleach(&["backup", &state, "--to", &archive]).success());
    assert!(pleach(&["export", &state, "--to", &stream]).success());
    let half = std::fs::read(&stream).expect("written");
    let half = &half[..half.len() / 2];
    for (signal, code) in ENDS {
        // It waits for the other half.
        let import = ["import", &at("imported"), "--memory-mib", "64"];
        let Some(mut child) = start(&import) else {
            return println!("SKIPPED: no pid namespaces here");
        };
        child.stdin.as_mut().expect("piped").write_all(half).expect("taken");
        assert_eq!(end(&mut child, signal), Some(code));
        assert!(Path::new(&at("imported")).join("UNFINISHED").exists());
        assert_eq!(pleach(&["stat", &at("imported")]).code(), Some(2), "it is not whole");
    }
    assert!(pleach(&["import", &at("imported"), "--from", &stream]).success());

    // How far it comes is by chance.
    for (round, (signal, code)) in ENDS.into_iter().cycle().take(12).enumerate() {
        let folder = at(&format!("restored-{round}"));
        let mut child = start(&["restore", &archive, "--to", &folder]).expect("as before");
        std::thread::sleep(Duration::from_millis(25 * (1 << (round / 3))));
        match end(&mut child, signal) {
            Some(0) => {}
            ended => assert_eq!(ended, Some(code), "{signal}"),
        }
        let is_marked = Path::new(&folder).join("UNFINISHED").exists();
        assert!(!is_marked || pleach(&["stat", &folder]).code() == Some(2), "{round}");
        assert!(pleach(&["restore", &archive, "--to", &folder]).success(), "{round}");
        assert!(pleach(&["check", &folder]).success(), "{round}");
    }
    let mut child = start(&["check", &state]).expect("as before");
    let ended = end(&mut child, "TERM");
    assert!([Some(0), Some(143)].contains(&ended), "{ended:?}");
}
