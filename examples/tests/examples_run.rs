//! Each example runs to its end.

use std::process::Command;

fn runs(program: &str) {
    let output = Command::new(program).output().expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.is_empty(), "it says what it has done");
}

#[test]
fn rollup() {
    runs(env!("CARGO_BIN_EXE_rollup"));
}

#[test]
fn reader() {
    runs(env!("CARGO_BIN_EXE_reader"));
}

#[test]
fn proof_service() {
    runs(env!("CARGO_BIN_EXE_proof_service"));
}

#[test]
fn parallel_reads() {
    runs(env!("CARGO_BIN_EXE_parallel_reads"));
}
