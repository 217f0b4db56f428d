//! Each example runs to its end.

use std::process::Command;

fn runs(program: &str) {
    says(program, &[]);
}

fn says(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.is_empty(), "it says what it has done");
    String::from_utf8(output.stdout).expect("text")
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
fn evm() {
    let said = says(env!("CARGO_BIN_EXE_evm"), &["4", "500"]);
    for fact in [
        "4 blocks, 803 transactions of which 799 succeeded",
        "after a restart: block 4, the same root",
        "on a second database: the same root after each block",
        "destroyed under Shanghai: 0 words of storage left; under Cancun: 50",
        " tokens: proven, ",
    ] {
        assert!(said.contains(fact), "{fact} is not in\n{said}");
    }
}

#[test]
fn parallel_reads() {
    runs(env!("CARGO_BIN_EXE_parallel_reads"));
}
