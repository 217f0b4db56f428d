//! What the tests with a live workload share.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that has `pleach` and `nomt-bench`.
pub(crate) fn binaries() -> PathBuf {
    let pleach = Path::new(env!("CARGO_BIN_EXE_pleach"));
    let folder = pleach.parent().expect("a folder of binaries");
    if !folder.join("nomt-bench").exists() {
        // Of another package: `cargo test -p pleach-cli` does not make it.
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let built = Command::new(env!("CARGO"))
            .args(["build", "-p", "pleach-bench", "--bin", "nomt-bench", "--profile", profile])
            .status()
            .expect("cargo starts");
        assert!(built.success(), "nomt-bench is built");
    }
    folder.to_path_buf()
}
