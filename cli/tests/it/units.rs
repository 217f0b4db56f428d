//! The units of systemd in `packaging/systemd`: systemd takes them, and their commands run.

use std::fs::{read_dir, read_to_string};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pleach::{Access, Db, Options, SessionOptions, Value};

const PROGRAM: &str = "/usr/local/bin/pleach";

/// The units, and what is in each.
fn units() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    let files =
        read_dir(folder).expect("the folder of units").map(|file| file.expect("a file").path());
    let unit = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
        (name, read_to_string(path).expect("text"))
    };
    files.filter(|path| path.extension().is_none_or(|kind| kind != "conf")).map(unit).collect()
}

#[test]
fn systemd_takes_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return println!("SKIPPED: systemd-analyze is not installed here");
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in units() {
        let text = text.replace(PROGRAM, env!("CARGO_BIN_EXE_pleach"));
        // A template is verified as one of its instances.
        std::fs::write(folder.path().join(name.replace('@', "@state")), text).expect("written");
    }
    let files = read_dir(folder.path()).expect("read").map(|file| file.expect("a file").path());
    let mut verify = Command::new("systemd-analyze");
    let output = verify.args(["verify", "--man=no"]).args(files).output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    // A directive that it does not know is a line alone.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("pleach")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

/// The commands of a unit, with the variables of `state.conf` set so.
fn commands(unit: &str, variables: &[(&str, &str)]) -> Vec<Command> {
    let all = units();
    let (_, text) = all.iter().find(|(name, _)| name == unit).expect("a unit");
    let lines = text.lines().filter_map(|line| line.strip_prefix("ExecStart="));
    let command = |line: &str| {
        let words = line.strip_prefix(PROGRAM).expect("the program");
        let words = variables.iter().fold(words.to_owned(), |words, (name, value)| {
            words.replace(&format!("${{{name}}}"), value)
        });
        assert!(!words.contains('$'), "{words}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        command.args(words.split_whitespace());
        command
    };
    lines.map(command).collect()
}

#[test]
fn the_commands_of_the_units_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (state, archive) = (at("state"), at("archive"));
    let db = Db::open(Options::new(&state).create(true).small().cache_mib(64).history(9))
        .expect("opened");
    let session = db.session(SessionOptions::new()).expect("a session");
    let put = Access::write([7; 32], Some(Value::from(b"there")));
    session.finish([put]).expect("finished").commit().expect("committed");
    let variables = [("STATE", &*state), ("ARCHIVE", &archive), ("LISTEN", "127.0.0.1:0")];
    for unit in ["pleach-backup@.service", "pleach-scrub@.service", "pleach-backup@.service"] {
        for mut command in commands(unit, &variables) {
            let output = command.output().expect("started");
            assert!(output.status.success(), "{command:?}: {output:?}");
        }
    }
    let [mut serve] =
        commands("pleach-serve@.service", &variables).try_into().expect("one command");
    let mut server = serve.stdout(Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("serving commits 0 to 1 at http://127.0.0.1:"), "{line}");
    let ended = Command::new("kill").arg(server.id().to_string()).status().expect("sent");
    assert!(ended.success() && server.wait().expect("ended").success());
}
