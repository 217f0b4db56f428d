//! Readers in one process beside a live workload in another: each state that they read has its root, and every command works. Ten seconds, or
//! `PLEACH_SECONDS`.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::binaries;
use pleach::{Db, Error, Hasher, Options};
use pleach_ops::{FoldValue, RootFolder};

/// Ended with the test.
struct Workload(Child);

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path) -> Workload {
    let child = Command::new(binaries().join("nomt-bench"))
        .args([
            "transfer",
            "--log2",
            "15",
            "--batch",
            "500",
            "--batches",
            "1000000",
            "--history",
            "100",
        ])
        .args(["--fresh", "0", "--quiet", "--dir"])
        .arg(folder)
        .stdout(Stdio::null())
        .spawn();
    Workload(child.expect("nomt-bench starts"))
}

/// Reads a state as a whole. True when it was readable to its end.
fn read_all(reader: &Db, commit: u64) -> bool {
    let read = || -> Result<(), Error> {
        let session = reader.at(commit)?;
        let mut folder = RootFolder::new(Hasher::BLAKE3);
        let mut last = None;
        for pair in session.iter(..) {
            let (key, value) = pair?;
            folder.pair(&key, FoldValue::Bytes(&value)).expect("in order");
            last = Some((key, value));
        }
        assert_eq!(folder.root(), session.root(), "commit {commit}");
        let (key, value) = last.expect("accounts");
        assert_eq!(session.read(&key)?, Some(value), "commit {commit}");
        Ok(())
    };
    match read() {
        Ok(()) => true,
        Err(Error::SnapshotTooOld { .. } | Error::Overtaken { .. }) => false,
        Err(error) => panic!("commit {commit}: {error}"),
    }
}

#[test]
fn readers_beside_another_process_see_whole_commits() {
    let seconds = std::env::var("PLEACH_SECONDS").ok().and_then(|text| text.parse().ok());
    let folder = tempfile::tempdir().expect("a folder");
    let mut workload = start(&folder.path().join("node"));
    let state = folder.path().join("node/pleach");
    let options = Options::new(&state).cache_mib(32).read_only(true);
    let begun = Instant::now();
    let reader = loop {
        match Db::open(options.clone()) {
            Ok(reader) if reader.commit_number() > 100 => break reader,
            _ if begun.elapsed() > Duration::from_secs(120) => {
                panic!("the workload does not begin")
            }
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let begun = Instant::now();
    let (mut whole, mut too_old, mut commands, mut last) = (0, 0, 0, 0);
    while begun.elapsed() < Duration::from_secs(seconds.unwrap_or(10)) {
        let commit = reader.refresh().expect("goes on");
        assert!(commit >= last, "{commit} after {last}");
        last = commit;
        for commit in [commit, commit - 20] {
            *(if read_all(&reader, commit) { &mut whole } else { &mut too_old }) += 1;
        }
        // Each open finds all of the history, whatever the other process writes over meanwhile.
        let again = Db::open(options.clone()).expect("opens");
        assert!(again.opened().lost.is_none(), "{:?}", again.opened());
        let kept = again.history();
        assert!(kept.end() - kept.start() >= 99, "{kept:?}");
        *(if read_all(&again, *kept.start()) { &mut whole } else { &mut too_old }) += 1;
        drop(again);
        let at = state.to_str().expect("a plain name");
        let all: [&[&str]; 5] = [
            &["stat", at],
            &["scrub", at],
            &["export", at],
            &["history", at],
            &["top", at, "--count", "1"],
        ];
        let command = all[commands % all.len()];
        let output =
            Command::new(env!("CARGO_BIN_EXE_pleach")).args(command).output().expect("starts");
        let error = String::from_utf8_lossy(&output.stderr);
        let is_told = error.contains("cannot be read any more") || error.contains("has overtaken");
        assert!(output.status.success() || is_told, "{command:?}: {error}");
        commands += 1;
    }
    assert!(workload.0.try_wait().expect("asked").is_none(), "the workload has ended");
    println!(
        "{whole} states were read as a whole, {too_old} were not, {commands} commands, {last} commits"
    );
    assert!(whole > 0 && commands > 0);
}
