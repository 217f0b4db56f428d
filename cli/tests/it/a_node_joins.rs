//! A node that joins, as an operator sees it: `serve`, `sync` and `metrics`, with real servers on ports of this machine.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use pleach::load::LoadOptions;
use pleach::{Access, Db, Hasher, Key, Options, SessionOptions, Value as Bytes};
use pleach_sync::http::{Peer, Url};
use pleach_sync::{Limits, Server};
use serde_json::Value;
use tempfile::TempDir;

#[path = "../../../sync/tests/it/strangers.rs"]
mod strangers;

const PATIENCE: Duration = Duration::from_secs(20);

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn commit(db: &Db, ids: std::ops::Range<u64>, value: &[u8]) {
    let put = |id| Access::write(key(id), Some(Bytes::from(value)));
    let session = db.session(SessionOptions::new()).expect("a session");
    session
        .finish(ids.map(put).collect::<Vec<_>>())
        .expect("finished")
        .commit()
        .expect("committed");
}

/// A database of so many accounts of 100 bytes, with a second namespace, that stays open for writing.
fn state(folder: &Path, accounts: u64) -> Db {
    let options = Options::new(folder).create(true).small().cache_mib(64).history(50);
    let db = Db::open(options).expect("opened");
    let mut pairs: Vec<_> = (0..accounts).map(|id| (key(id), Bytes::from(vec![1; 100]))).collect();
    pairs.sort_unstable_by_key(|(key, _)| *key);
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    db.add_namespace(7).expect("added");
    let session = db.session(SessionOptions::new()).expect("a session");
    let put = Access::write(key(1), Some(Bytes::from(&[7]))).in_namespace(7);
    session.finish([put]).expect("finished").commit().expect("committed");
    db
}

fn root(db: &Db) -> String {
    db.roots().over_all(Hasher::BLAKE3).to_string()
}

/// A server in a process of its own, killed when it is dropped.
struct Serving {
    process: Child,
    url: String,
}

impl Serving {
    fn start(folder: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        command.arg("serve").arg(folder).args(["--listen", "127.0.0.1:0", "--json"]).args(more);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        let output = process.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let line: Value = serde_json::from_str(&line).expect("a JSON object");
        let url = format!("http://{}", line["address"].as_str().expect("an address"));
        Self { process, url }
    }

    /// A page of the server by path.
    fn page(&self, path: &str) -> String {
        let at = self.url.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(at).expect("connected");
        let question = format!("GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).expect("sent");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("read");
        page
    }

    fn sent(&self) -> u64 {
        let page = self.page("/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix("pleach_serve_bytes_total "));
        line.and_then(|bytes| bytes.parse().ok()).expect("a counter")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A server whose parts have one wrong bit each.
fn liar(db: &Db) -> String {
    let server = Server::new(db.clone(), Limits::default());
    server.refresh().expect("refreshed");
    format!("http://{}", strangers::liar(server))
}

fn sync(folder: &Path, root: &str, from: &[&str], more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
    command.arg("sync").arg(folder).args(["--root", root]).args(more);
    for url in from {
        command.args(["--from", url]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn done(command: &mut Command) -> Value {
    let Output { status, stdout, stderr } = command.arg("--json").output().expect("run");
    let error = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{error}");
    serde_json::from_slice(&stdout).expect("one line")
}

/// The one line of a command that fails with this code.
fn refused(code: i32, command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().expect("run");
    let error = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!((status.code(), error.lines().count()), (Some(code), 1), "{error}");
    error
}

fn papers() -> (TempDir, impl Fn(&str) -> PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    (folder, move |name: &str| path.join(name))
}

/// All of docs/operating.md, "A node that joins".
#[test]
fn a_validator_joins_from_three_servers_of_which_one_lies_and_one_dies() {
    let (_papers, at) = papers();
    let db = state(&at("state"), 60_000);
    let target = root(&db);
    let liar = liar(&db);
    let mut mortal = Serving::start(&at("state"), &["--mib-per-second", "1"]);
    let honest = Serving::start(&at("state"), &["--mib-per-second", "4"]);
    let new = at("new");
    let mut joining =
        sync(&new, &target, &[&liar, &mortal.url, &honest.url], &["--follow", "--json"]);
    let mut joining = joining.stdin(Stdio::piped()).spawn().expect("started");
    // The chain goes on while it fetches.
    commit(&db, 0..500, b"later");
    let parts = at("new.sync").join("parts");
    while std::fs::metadata(&parts).map_or(0, |file| file.len()) == 0 {
        assert!(joining.try_wait().expect("waited").is_none(), "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    mortal.process.kill().expect("killed");
    let mut lines = BufReader::new(joining.stdout.take().expect("piped"));
    let mut told = || {
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        serde_json::from_str::<Value>(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    let first = told();
    assert_eq!(first["root_over_all"], *target);
    assert_eq!(first["pairs"], 60_001);
    assert_eq!(first["lies"][0]["server"], *liar, "{first}");
    assert!(!at("new.sync").exists());
    // Then it follows the roots that the chain says, each as soon as a server has it.
    let mut roots = joining.stdin.take().expect("piped");
    for round in 0..3_u8 {
        if round > 0 {
            commit(&db, 0..50, &[round; 9]);
        }
        writeln!(roots, "0x{}", root(&db)).expect("heard");
        assert_eq!(told()["root_over_all"], *root(&db));
    }
    drop(roots);
    let Output { status, stderr, .. } = joining.wait_with_output().expect("ended");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let copy = Db::open(Options::new(&new).read_only(true)).expect("a database like any other");
    assert_eq!(root(&copy), root(&db));
    assert_eq!(copy.get(&key(7)).expect("read").as_deref(), Some(&[2; 9][..]));
}

#[test]
fn a_sync_that_is_killed_again_and_again_fetches_no_byte_twice() {
    let (_papers, at) = papers();
    let db = state(&at("state"), 60_000);
    let target = root(&db);
    let server = Serving::start(&at("state"), &["--mib-per-second", "4"]);
    let new = at("new");
    let parts = at("new.sync").join("parts");
    let length = || std::fs::metadata(&parts).map_or(0, |file| file.len());
    let mut kills = 0;
    for each in 1..=4 {
        let mut run = sync(&new, &target, &[&server.url], &[]).spawn().expect("started");
        while length() < each * (1 << 20) {
            assert!(run.try_wait().expect("waited").is_none(), "it goes on");
            std::thread::sleep(Duration::from_millis(2));
        }
        run.kill().expect("killed");
        run.wait().expect("ended");
        kills += 1;
        let opened = Db::open(Options::new(&new));
        assert!(opened.is_err(), "no half database opens");
    }
    let held = length();
    let last = done(&mut sync(&new, &target, &[&server.url], &[]));
    let [bytes, before] =
        ["bytes", "bytes_held_before"].map(|name| last[name].as_u64().expect("a number"));
    assert!(before <= held && before >= 4 << 20, "{before} of {held}");
    // What was sent twice is no more than the answers that were on their way at a kill: of two questions, one of which the
    // system's buffers may have as well.
    let answer = (1 << 20) + (64 << 10);
    assert!(server.sent() <= bytes + kills * 3 * answer, "{} for {bytes}", server.sent());
    // Once more: nothing is to be done, and nothing is asked.
    let sent = server.sent();
    let again = done(&mut sync(&new, &target, &[&server.url], &[]));
    assert_eq!((&again["root_over_all"], server.sent()), (&target.clone().into(), sent));
    // A kill behind the load leaves what was fetched: it is removed.
    std::fs::create_dir(at("new.sync")).expect("made");
    pleach_sync::Fetch::open(
        &at("new.sync"),
        pleach_sync::Target::over_all(db.roots().over_all(Hasher::BLAKE3), Hasher::BLAKE3),
        Limits::default(),
    )
    .expect("opened");
    done(&mut sync(&new, &target, &[&server.url], &[]));
    assert!(!at("new.sync").exists());
}

#[test]
fn a_kill_while_what_was_fetched_is_loaded_costs_no_question() {
    let (_papers, at) = papers();
    let db = state(&at("state"), 60_000);
    let target = root(&db);
    let server = Serving::start(&at("state"), &["--mib-per-second", "0"]);
    let new = at("new");
    let mut run = sync(&new, &target, &[&server.url], &[]).spawn().expect("started");
    // The load begins with the folder.
    while !new.join("UNFINISHED").exists() && run.try_wait().expect("waited").is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    run.kill().expect("killed");
    run.wait().expect("ended");
    drop(server);
    // Nobody is there to be asked.
    let told = done(&mut sync(&new, &target, &["http://127.0.0.1:9"], &["--give-up", "2"]));
    assert_eq!(told["root_over_all"], *target);
}

#[test]
fn bad_servers_roots_and_folders_are_named_in_one_line() {
    let (_papers, at) = papers();
    let db = state(&at("state"), 300);
    let target = root(&db);
    let none = "77".repeat(32);
    let server = Serving::start(&at("state"), &[]);
    let new = at("new");
    // Without the target, older, or of another database.
    drop((state(&at("older"), 200), state(&at("foreign"), 5)));
    let [older, foreign] = ["older", "foreign"].map(|name| Serving::start(&at(name), &[]));
    let line = refused(2, &mut sync(&new, &target, &[&older.url, &foreign.url], &[]));
    assert!(line.contains(&format!("no server has the state of root {target}")), "{line}");
    assert!(line.contains(&format!("{} has commits", older.url)), "{line}");
    assert!(
        refused(2, &mut sync(&at("n2"), &none, &[&server.url], &[])).contains("give a newer root")
    );
    // What is no server.
    let html =
        strangers::other(|_| Some(strangers::http("200 OK\r\ncontent-type: text/html", b"<html>")));
    let html = format!("http://{html}");
    let stalls = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stalls_at = format!("http://{}", stalls.local_addr().expect("bound"));
    let give_up = ["--give-up", "2"];
    let line =
        refused(6, &mut sync(&new, &target, &[&html, "http://127.0.0.1:9", &stalls_at], &give_up));
    assert!(line.contains(&format!("{html}: no answer: no server of this kind")), "{line}");
    assert!(line.contains("http://127.0.0.1:9: no answer: "), "{line}");
    assert!(line.contains(&format!("{stalls_at}: ")), "{line}");
    // Liars alone; also by another hasher.
    let line = refused(1, &mut sync(&new, &target, &[&liar(&db)], &[]));
    assert!(line.contains("all servers lied") && line.contains("pairs of another root"), "{line}");
    let other_hasher = ["--hasher", "sha2-256"];
    let line = refused(1, &mut sync(&at("n3"), &target, &[&server.url], &other_hasher));
    assert!(line.contains("is not sha2-256 (--hasher)"), "{line}");
    refused(2, &mut sync(&at("n4"), &target, &[&server.url], &["--hasher", "md5"]));
    // Roots and addresses.
    refused(2, &mut sync(&new, "77", &[&server.url], &[]));
    refused(2, &mut sync(&new, &format!("{}g", &target[1..]), &[&server.url], &[]));
    refused(2, &mut sync(&new, &target, &[], &[]));
    for url in ["https://a:1", "a:1", "http://a/?q"] {
        assert!(
            refused(2, &mut sync(&new, &target, &[url], &[])).contains("http://HOST:PORT"),
            "{url}"
        );
    }
    // Folders.
    std::fs::create_dir(at("full")).expect("made");
    std::fs::write(at("full").join("letter"), "dear").expect("written");
    let line = refused(2, &mut sync(&at("full"), &target, &[&server.url], &[]));
    assert!(line.contains("is not empty, and not of a sync"), "{line}");
    refused(2, &mut sync(&at("full").join("letter"), &target, &[&server.url], &[]));
    let line = refused(2, &mut sync(&new, &none, &[&server.url], &[]));
    assert!(line.contains("the folder is of another target"), "{line}");
    assert!(
        refused(3, &mut sync(&at("state"), &none, &[&server.url], &[]))
            .contains("stop that process")
    );
    // No room, here by a limit of the system: what was kept stays, and the command goes on.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"]);
    let whole = sync(&new, &target, &[&server.url], &[]);
    limited.arg(whole.get_program()).args(whole.get_args());
    let line = refused(6, &mut limited);
    assert!(line.contains("File too large") && line.contains("free space"), "{line}");
    let kept = std::fs::metadata(at("new.sync").join("parts")).expect("there").len();
    assert!(kept > 4_000, "{kept}");
    let told = done(&mut sync(&new, &target, &[&server.url], &[]));
    assert_eq!(told["root_over_all"], *target);
    // A database that goes on: not from a root that is nobody's, and not to one that nobody has.
    let line = refused(2, &mut sync(&new, &none, &[&server.url], &["--give-up", "1"]));
    assert!(line.contains("no server has the changes from root"), "{line}");
    let mut follower = sync(&new, &target, &[&server.url], &["--follow"]);
    let mut follower = follower.stdin(Stdio::piped()).spawn().expect("started");
    follower.stdin.take().expect("piped").write_all(b"\nno root\n").expect("heard");
    let Output { status, stderr, .. } = follower.wait_with_output().expect("ended");
    assert_eq!(status.code(), Some(2));
    assert!(String::from_utf8_lossy(&stderr).contains("line 1 of standard input"));
}

#[test]
fn a_server_shows_metrics_and_a_feed_and_ends_when_it_is_asked_to() {
    let (_papers, at) = papers();
    let db = state(&at("state"), 300);
    let mut server = Serving::start(&at("state"), &[]);
    let page = server.page("/metrics");
    let (head, page) = page.split_once("\r\n\r\n").expect("a head");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let once = Command::new(env!("CARGO_BIN_EXE_pleach")).arg("metrics").arg(at("state")).output();
    let once = String::from_utf8(once.expect("run").stdout).expect("text");
    let folder = at("state").display().to_string();
    let lines = [
        format!("pleach_newest_commit{{database=\"{folder}\"}} {}", db.commit_number()),
        format!("pleach_oldest_commit{{database=\"{folder}\"}} {}", db.history().start()),
        format!(
            "pleach_history_kept{{database=\"{folder}\"}} {}",
            db.commit_number() - db.history().start()
        ),
        format!("pleach_leaf_pages{{database=\"{folder}\"}} {}", db.metrics().leaf_pages),
        format!("pleach_has_writer{{database=\"{folder}\"}} 1"),
    ];
    for line in lines {
        assert!(page.lines().any(|one| one == line), "{line} is missing: {page}");
        assert!(once.lines().any(|one| one == line), "{line} is missing: {once}");
    }
    // Nothing of a process that only reads.
    assert!(!page.contains("pleach_commits_total"));
    let mut peer = Peer::new(server.url.parse::<Url>().expect("a URL")).expect("a client");
    let newest = db.roots().over_all(Hasher::BLAKE3);
    let mut feed = peer.feed(db.commit_number(), &newest, PATIENCE).expect("a feed");
    commit(&db, 0..3, b"new");
    let fed = feed.next().expect("goes on").expect("read");
    assert_eq!(fed.head.root.to_string(), root(&db));
    // A feed that is open does not keep it from its end, nor does a connection that says nothing.
    let idle =
        std::net::TcpStream::connect(server.url.trim_start_matches("http://")).expect("connected");
    let id = server.process.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().expect("run").success());
    assert_eq!(server.process.wait().expect("ended").code(), Some(0));
    drop((feed, idle));
    // The node has noticed nothing.
    commit(&db, 0..3, b"more");
    // A port that is taken, and a folder without a database.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let serve = |folder: PathBuf, address: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        command.arg("serve").arg(folder).args(["--listen", address]);
        command
    };
    assert!(refused(6, &mut serve(at("state"), &address)).contains("a free port"));
    refused(2, &mut serve(at("state"), "here"));
    refused(2, &mut serve(at("nowhere"), "127.0.0.1:0"));
}
