//! The script of docs/first-week.md runs as it stands there: a live workload, backups beside it, a node that joins, a kill, a bad
//! page, a repair.

use std::process::Command;

use crate::common::binaries;

/// The blocks of the page, in their order.
fn script() -> String {
    let page = include_str!("../../../docs/first-week.md");
    page.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n")).collect()
}

#[test]
fn the_first_week_of_the_manual_runs() {
    let folder = binaries();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    let output = Command::new("sh")
        .args(["-c", &script()])
        .env("PATH", std::env::join_paths(folders).expect("a path"))
        .output()
        .expect("a shell");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(
        out.lines().last().is_some_and(|line| line.starts_with("the root is ")),
        "{out}\n{err}"
    );
    // What each day must have said.
    for said in [
        "verified",
        "changes-",
        "under this root the key has the value",
        "page ",
        "of leaf",
        "archived commit",
        "commits that can be restored",
        "nothing is to be done",
        "pleach_newest_commit ",
        "root over all ",
    ] {
        assert!(out.contains(said), "nobody said `{said}`:\n{out}\n{err}");
    }
}
