//! The same measurements by fio, if it is installed, as an independent check.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::child::tied;
use crate::device::{Case, Pattern};

/// The version of fio; `None` if it is not installed.
pub(crate) fn version() -> Option<String> {
    let output = Command::new("fio").arg("--version").stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Operations per second that fio reaches on the same file.
pub(crate) fn measure(path: &Path, bytes: u64, case: Case, time: Duration) -> Option<f64> {
    let pattern = match case.pattern {
        Pattern::Read => "randread",
        Pattern::Write => "randwrite",
        Pattern::Mixed => "randrw",
        Pattern::ReadInOrder => "read",
        Pattern::WriteInOrder => "write",
    };
    // A thread, not a process of its own that would go on without fio.
    let mut command = tied::other("fio").ok()?;
    command
        .args(["--name=device", "--ioengine=io_uring", "--direct=1", "--rwmixread=70", "--thread"])
        .args(["--time_based", "--randrepeat=1", "--norandommap", "--output-format=json"])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--size={bytes}"))
        .arg(format!("--rw={pattern}"))
        .arg(format!("--bs={}k", case.pages * 4))
        .arg(format!("--iodepth={}", case.depth))
        .arg(format!("--runtime={}ms", time.as_millis().max(100)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let output = tied::spawn(&mut command).ok()?.wait_with_output().ok()?;
    // fio may print notes before the document.
    let text = String::from_utf8_lossy(&output.stdout);
    let document: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = document.get("jobs")?.get(0)?;
    let rate = |direction: &str| job.get(direction)?.get("iops")?.as_f64();
    Some(rate("read")? + rate("write")?).filter(|&rate| rate > 0.0)
}
