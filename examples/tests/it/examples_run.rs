//! Each example runs to its end.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

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
fn old_blocks() {
    let said = says(env!("CARGO_BIN_EXE_old_blocks"), &["100", "500"]);
    for fact in [
        "100 blocks, ",
        "http://127.0.0.1:",
        "50 blocks asked for: balances and storage are proven; ",
        " tokens at block 50, and has ",
        "there is no block 101 yet, the newest one is 100",
    ] {
        assert!(said.contains(fact), "{fact} is not in\n{said}");
    }
}

/// `--serve` answers until it is killed, from the folder that an earlier run has made.
#[test]
fn old_blocks_of_a_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    says(env!("CARGO_BIN_EXE_old_blocks"), &["4", "100", "--folder", path]);
    let mut server = Command::new(env!("CARGO_BIN_EXE_old_blocks"))
        .args(["--folder", path, "--serve", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = BufReader::new(server.stdout.take().expect("piped")).lines();
    let mut line = || said.next().expect("a line").expect("text");
    assert!(line().starts_with("4 blocks, "));
    let line = line();
    let address = line.strip_prefix("http://").and_then(|rest| rest.split(' ').next());
    let mut stream = TcpStream::connect(address.expect("an address")).expect("connected");
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}"#;
    let length = call.len();
    let head = format!("POST / HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), call.as_bytes()].concat()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.contains(r#""result":"0x4""#), "{answer}");
    server.kill().expect("killed");
    server.wait().expect("ended");
}

/// As the first process of a container, which hears no signal without a handler.
#[test]
fn os_a_service_in_a_container_ends_when_it_is_asked_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    says(env!("CARGO_BIN_EXE_old_blocks"), &["4", "100", "--folder", path]);
    let allowed = ["-pf", "-rpf"].into_iter().find(|flags| {
        let mut probe = Command::new("unshare");
        let status = probe.args([flags, "true"]).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    });
    let Some(flags) = allowed else { return println!("SKIPPED: no pid namespaces here") };
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let mut server = Command::new("unshare")
            .args([flags, "--kill-child", env!("CARGO_BIN_EXE_old_blocks")])
            .args(["--folder", path, "--serve", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = BufReader::new(server.stdout.take().expect("piped")).lines();
        let address = said.nth(1).expect("two lines").expect("text");
        assert!(address.starts_with("http://"), "{address}");
        let id = server.id();
        let child = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let mut kill = Command::new("kill");
        kill.args(["-s", signal, child.expect("its children").trim()]);
        assert!(kill.status().expect("sent").success());
        let ended = (0..1_000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            server.try_wait().expect("waited")
        });
        // It goes with its parent where it has not heard.
        server.kill().expect("killed, or ended before");
        assert_eq!(ended.and_then(|status| status.code()), Some(code), "{signal}");
    }
}

#[test]
fn parallel_reads() {
    runs(env!("CARGO_BIN_EXE_parallel_reads"));
}
