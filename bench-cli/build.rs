//! Compiles the commit into the program: its results name it.

use std::path::Path;
use std::process::Command;

/// The packages that the program is made of.
const PACKAGES: [&str; 6] = [".", "../core", "../io", "../beatree", "../history", "../engine"];

fn main() {
    let files = PACKAGES.iter().flat_map(|at| [format!("{at}/src"), format!("{at}/Cargo.toml")]);
    let mut sources: Vec<String> = files.collect();
    sources.extend(["build.rs", "../Cargo.toml", "../Cargo.lock"].map(str::to_owned));
    // A package has its own alone.
    sources.retain(|path| Path::new(path).exists());
    let commit = commit(&sources).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=NOMT_BENCH_COMMIT={commit}");
    for name in ["HEAD", "refs/heads", "packed-refs"] {
        sources.extend(git(&["rev-parse", "--git-path", name]));
    }
    // With a path that is not there it would run each time.
    for path in sources.iter().filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
}

fn commit(sources: &[String]) -> Option<String> {
    // A package may lie in a checkout of something else.
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let changed =
        git(&[&status[..], &sources.iter().map(String::as_str).collect::<Vec<_>>()].concat())?;
    Some(if changed.is_empty() { commit } else { commit + "-dirty" })
}

fn git(arguments: &[&str]) -> Option<String> {
    // Without its locks it changes nothing.
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
