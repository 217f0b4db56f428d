//! `pleach` as a user runs it: results, one-line errors, an exit code for each kind.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pleach::internals::hexadecimal::hex;
use pleach::load::LoadOptions;
use pleach::{Access, Db, Hasher, Key, Options, SessionOptions, Value as Bytes};
use pleach_archive::{Archive, BackupOptions, backup};
use pleach_journal::format::superblock::{FORMAT_VERSION, SLOT_DISTANCE, Superblock};
use pleach_ops::export::export;
use serde_json::{Value, json};
use tempfile::TempDir;
use twox_hash::XxHash3_64;

const PAIRS: u64 = 300;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn pleach(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pleach")).args(arguments).output().expect("the binary starts")
}

/// Runs a command that must succeed, and gives what it printed.
fn told(arguments: &[&str]) -> String {
    let output = pleach(arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{arguments:?}\n{out}\n{err}");
    assert_eq!(err, "", "{arguments:?}");
    out
}

fn document(arguments: &[&str]) -> Value {
    let document: Value = serde_json::from_str(&told(arguments)).expect("one JSON document");
    assert_eq!(document["schema"], 1, "{arguments:?}");
    document
}

/// Runs a command that must fail with this code and one line, and gives the line.
fn refusal(code: i32, arguments: &[&str]) -> String {
    let output = pleach(arguments);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{err}");
    assert_eq!(err.lines().count(), 1, "{arguments:?}\n{err}");
    err
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn name(folder: &TempDir) -> &str {
    folder.path().to_str().expect("a plain name")
}

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn commit(db: &Db, accesses: Vec<Access>) {
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(accesses).expect("finished").commit().expect("committed");
}

fn put(id: u64, len: usize) -> Access {
    Access::write(key(id), Some(Bytes::from(vec![7; len])))
}

fn open(folder: &TempDir) -> Db {
    let options = Options::new(folder.path()).create(true).small().cache_mib(64).history(20);
    Db::open(options).expect("opened")
}

/// A closed database with two more namespaces, five commits and a long value; with its root.
fn database() -> (TempDir, String) {
    let folder = folder();
    let db = open(&folder);
    commit(&db, (0..PAIRS).map(|id| put(id, 9)).collect());
    db.add_namespace(3).expect("added");
    db.add_plain_namespace(9).expect("added");
    commit(&db, vec![put(1, 5000).in_namespace(3), put(2, 3).in_namespace(9)]);
    commit(&db, vec![put(0, 20), Access::write(key(1), None)]);
    let root = db.root().to_string();
    db.drain(0).expect("in pages");
    db.close().expect("closed");
    (folder, root)
}

#[test]
fn a_database_is_described_checked_dumped_and_explained() {
    let (db, root) = database();
    let at = name(&db);
    assert!(told(&["stat", at]).contains(&root));
    assert!(told(&["check", at, "--root", &root]).starts_with("nothing found"));
    assert!(told(&["check", at, "--newest"]).starts_with("nothing found"));
    let dump = told(&["dump", at]);
    assert_eq!(dump.lines().count() as u64, PAIRS - 1);
    assert!(dump.lines().is_sorted());
    let line = format!("{} {}", hex(key(2)), hex([7; 9]));
    assert!(dump.lines().any(|one| one == line));
    let found = told(&["dump", at, "--prefix", &format!("0x{}", &hex(key(2))[..6].to_uppercase())]);
    assert_eq!(found.trim_end(), line);
    assert_eq!(told(&["dump", at, "--limit", "7"]).lines().count(), 7);
    assert!(told(&["explain", at, &hex(key(2))]).lines().count() > 1);
    assert!(!told(&["explain", at, &hex(key(0))]).contains("\nhistory"));
    assert!(
        told(&["explain", at, &hex(key(0)), "--history"]).contains("\nhistory  before commit 5")
    );
    let pairs = document(&["dump", at, "--namespace", "3", "--json"]);
    assert_eq!(pairs["pairs"][0]["value"], hex([7; 5000]));
    assert_eq!(
        document(&["dump", at, "--prefix", "00000000", "--json"])["pairs"].as_array().map(Vec::len),
        Some(0)
    );
    let explained = document(&["explain", at, &hex(key(1)), "--json"]);
    assert_eq!((&explained["present"], &explained["pending_since"]), (&false.into(), &Value::Null));
    let text = told(&["explain", at, &hex(key(1))]);
    let page = explained["page"].as_u64().expect("a page");
    assert!(text.contains(&format!("page     number {page},")), "{text}");
    assert_eq!((&explained["commit"], &explained["region"]), (&5.into(), &0.into()));
    assert_eq!(document(&["check", at, "--json"])["verdict"], "clean");
    std::fs::remove_file(db.path().join("super.spare")).expect("removed");
    let noted = told(&["check", at]);
    assert!(noted.starts_with("note: super.spare: missing; the next open"), "{noted}");
    let wrong = refusal(1, &["check", at, "--root", &"0".repeat(64)]);
    assert!(wrong.ends_with("1 finding; the database opens\n"), "{wrong}");
}

/// Validates by docs/data/stat.schema.json, in which each object has all of its fields, and no other in the strict form.
fn is_valid_stat(document: &Value, strict: bool) -> bool {
    let text = include_str!("../../../docs/data/stat.schema.json");
    let closed = "\"type\": \"object\", \"additionalProperties\": false";
    let text = if strict { text.replace("\"type\": \"object\"", closed) } else { text.to_owned() };
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    let name = "file:///stat.schema.json";
    compiler.add_resource(name, serde_json::from_str(&text).expect("JSON")).expect("a schema");
    let schema = compiler.compile(name, &mut schemas).expect("compiled");
    schemas.validate(document, schema).inspect_err(|error| println!("{error}")).is_ok()
}

#[test]
fn stat_is_as_its_schema_promises() {
    let (db, _) = database();
    let closed = document(&["stat", name(&db), "--json"]);
    assert!(is_valid_stat(&closed, true), "{closed}");
    // Bytes of the second slot of the superblock.
    let file = std::fs::File::options().write(true).open(db.path().join("super")).expect("opened");
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 64], SLOT_DISTANCE).expect("written");
    let damaged = document(&["stat", name(&db), "--json"]);
    assert!(is_valid_stat(&damaged, true), "{damaged}");
    assert!(damaged["other_slot"]["error"].is_string(), "{damaged}");
    let folder = folder();
    let writer = open(&folder);
    commit(&writer, vec![put(1, 9)]);
    writer.add_namespace(5).expect("added");
    writer.drop_namespace(5).expect("dropped");
    let mut beside = document(&["stat", name(&folder), "--json"]);
    assert!(is_valid_stat(&beside, true) && beside["in_use"] == true, "{beside}");
    // Fields may be added, and none may go or become another.
    beside["later"] = json!(1);
    assert!(is_valid_stat(&beside, false) && !is_valid_stat(&beside, true));
    for (at, other) in
        [("/commit", json!("1")), ("/root", json!("7")), ("/namespaces/0/root", json!(7))]
    {
        let mut changed = beside.clone();
        *changed.pointer_mut(at).expect("there") = other;
        assert!(!is_valid_stat(&changed, false), "{at}");
    }
    beside.as_object_mut().expect("an object").remove("hasher");
    assert!(!is_valid_stat(&beside, false));
}

#[test]
fn keys_namespaces_and_commits_are_shown() {
    let (db, root) = database();
    let at = name(&db);
    assert_eq!(told(&["get", at, &hex(key(0))]).trim_end(), hex([7; 20]));
    assert_eq!(told(&["get", at, &hex(key(1)), "--namespace", "3"]).trim_end(), hex([7; 5000]));
    let none = refusal(1, &["get", at, &hex(key(1))]);
    assert!(none.contains("no value"), "{none}");
    let output = pleach(&["get", at, &hex(key(1)), "--json"]);
    let none: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert!(none["value"].is_null() && none["error"].is_null(), "{none}");
    let line = refusal(2, &["get", at, &hex(key(1)), "--namespace", "8"]);
    assert!(line.contains("no namespace 8"), "{line}");

    let all = document(&["namespaces", at, "--json"]);
    let numbers: Vec<_> = all["namespaces"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["number"].as_u64())
        .collect();
    assert_eq!(numbers, [Some(0), Some(3), Some(9)]);
    assert!(all["namespaces"][2]["digest"].is_string());
    let lines = told(&["namespaces", at]);
    assert!(lines.contains(&root) && lines.contains("plain"), "{lines}");

    let history = document(&["history", at, "--json"]);
    let commits = history["commits"].as_array().expect("a list");
    let numbers: Vec<_> = commits.iter().map(|one| one["number"].as_u64()).collect();
    assert_eq!(numbers, (0..=5).map(Some).collect::<Vec<_>>());
    assert_eq!(commits[5]["root"], root);
    // Of the oldest only the state is kept.
    let known = |commit: &Value| commit["time"].as_u64().is_some_and(|time| time > 1_700_000_000);
    assert!(commits[0]["time"].is_null() && commits[1..].iter().all(known), "{commits:?}");
    let lines = told(&["history", at]);
    assert_eq!(lines.lines().count(), 6);
    assert!(lines.starts_with("0          at an unknown time   root "), "{lines}");
    let lines = told(&["history", at, "--last", "2"]);
    assert!(lines.lines().count() == 2 && lines.starts_with("4          20"), "{lines}");
    assert_eq!(told(&["history", at, "--last", "1000"]).lines().count(), 6);
}

/// The log had no times, so that a node that runs, or was killed, had none for its newest commits.
#[test]
fn commits_of_the_log_have_times_and_rollbacks_are_marked() {
    let folder = folder();
    let (db, at) = (open(&folder), name(&folder));
    for id in 0..3 {
        commit(&db, vec![put(id, 9)]);
    }
    db.rollback(2).expect("rolled back");
    let of = |at: &str| {
        let commits = document(&["history", at, "--json"])["commits"].clone();
        let known =
            |commit: &Value| commit["time"].as_u64().is_some_and(|time| time > 1_700_000_000);
        assert!(commits.as_array().expect("a list")[1..].iter().all(known), "{commits}");
        assert_eq!(
            (&commits[3]["rolled_back_to"], &commits[4]["rolled_back_to"]),
            (&Value::Null, &json!(1))
        );
        let lines = told(&["history", at]);
        assert!(lines.trim_end().ends_with("blob of 0 bytes, goes back to commit 1"), "{lines}");
        assert_eq!(lines.matches("unknown time").count(), 1, "{lines}");
    };
    of(at);
    // As a kill leaves it.
    drop(db);
    of(at);
    drop(open(&folder));
    of(at);
}

#[test]
fn a_proof_is_verified_without_the_database() {
    let (db, root) = database();
    let at = name(&db);
    let papers = folder();
    let file = papers.path().join("proof.json");
    let file = file.to_str().expect("a plain name");
    // Absent by now, and present back then.
    for commit in [None, Some("1")] {
        let digits = hex(key(1));
        let mut arguments = vec!["prove", at, &digits, "--json"];
        arguments.extend(commit.iter().flat_map(|commit| ["--at", commit]));
        let mut proven = document(&arguments);
        let root = if commit.is_some() {
            proven["root"].as_str().expect("a root").to_owned()
        } else {
            root.clone()
        };
        assert_eq!(proven["value"].is_null(), commit.is_none());
        std::fs::write(file, proven.to_string()).expect("written");
        told(&["verify", file, "--root", &root]);
        assert_eq!(document(&["verify", file, "--root", &root, "--json"])["valid"], true);
        refusal(1, &["verify", file, "--root", &"1".repeat(64)]);
        let output = pleach(&["verify", file, "--root", &"1".repeat(64), "--json"]);
        let wrong: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        assert_eq!((&wrong["valid"], &wrong["error"]["exit_code"]), (&false.into(), &1.into()));
        proven["value"] = "00".into();
        std::fs::write(file, proven.to_string()).expect("written");
        let line = refusal(1, &["verify", file, "--root", &root]);
        assert!(line.contains("something else"), "{line}");
    }
    std::fs::write(file, "{}").expect("written");
    let line = refusal(2, &["verify", file, "--root", &root]);
    assert!(line.contains("pleach prove --json"), "{line}");
}

/// Every command takes the hasher that the database, the stream, the archive or the proof names.
#[test]
fn databases_of_other_hashers_are_served_or_refused_with_a_cure() {
    let own = Hasher::new("test-hash", |bytes| Hasher::BLAKE3.hash(&[bytes, b"!"].concat()));
    let (papers, digits) = (folder(), hex(key(1)));
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let made = |name: &str, hasher| {
        let options = Options::new(place(name)).create(true).small().hasher(hasher);
        let db = Db::open(options).expect("created");
        commit(&db, vec![put(1, 9), put(2, 9)]);
        let archive = Archive::create(place(&format!("{name}.archive"))).expect("an archive");
        backup(&archive, &db, &BackupOptions::new()).expect("backed up");
        let stream = std::fs::File::create(place(&format!("{name}.plx"))).expect("made");
        export(&db.snapshot().expect("a snapshot"), stream).expect("exported");
        let root = db.root().to_string();
        db.close().expect("closed");
        root
    };
    let root = made("sha", Hasher::SHA2_256);
    let proof = document(&["prove", &place("sha"), &digits, "--json"]);
    assert_eq!(proof["hasher"], "sha2-256");
    std::fs::write(place("proof.json"), proof.to_string()).expect("written");
    told(&["verify", &place("proof.json"), "--root", &root]);
    let (imported, stream) = (place("imported"), place("sha.plx"));
    let line = refusal(5, &["import", &imported, "--from", &stream, "--root", &digits]);
    assert!(line.contains(&root) && !papers.path().join("imported").exists(), "{line}");
    told(&["import", &imported, "--from", &stream, "--root", &root]);
    told(&["restore", &place("sha.archive"), "--to", &place("restored")]);
    for copy in ["imported", "restored"] {
        assert!(told(&["check", &place(copy), "--root", &root]).starts_with("nothing found"));
        assert_eq!(document(&["stat", &place(copy), "--json"])["hasher"], "sha2-256");
    }
    made("own", own);
    let cases: [&[&str]; 4] = [
        &["stat", &place("own")],
        &["get", &place("own"), &digits],
        &["import", &place("new"), "--from", &place("own.plx")],
        &["restore", &place("own.archive"), "--to", &place("new")],
    ];
    for arguments in cases {
        let line = refusal(2, arguments);
        assert!(line.contains("that application"), "{line}");
    }
    assert!(!Path::new(&place("new")).exists(), "nothing was begun");
}

/// Flags that there are not, numbers that are none, archives that are none: the refusals named a wrong cause, or
/// advised a cure that was none.
#[test]
fn refusals_say_what_there_is_instead() {
    let (db, _) = database();
    let (at, papers) = (name(&db), folder());
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let (nowhere, new) = (place("nowhere"), place("new"));
    let line = refusal(2, &["restore", at, "--list"]);
    assert!(
        line.contains("'--list' found; restore has --to, --check, --at") && !line.contains("tip"),
        "{line}"
    );
    for command in [&["top", at, "--count", "abc"], &["get", at, "--namespace", "x"]] {
        let line = refusal(2, command);
        assert!(line.contains("say a number"), "{line}");
    }
    for command in [
        &["restore", &nowhere, "--to", &new][..],
        &["repair", at, "--from", &nowhere, "--to", &new],
    ] {
        let line = refusal(2, command);
        assert!(line.contains("give that of an archive") && line.contains(&nowhere), "{line}");
    }
    for command in
        [&["restore", at][..], &["restore", at, "--to", &new], &["follow", at, "--to", &new]]
    {
        let line = refusal(2, command);
        assert!(line.contains("is a database and no archive"), "{line}");
    }
    told(&["man", &place("pages/of/pleach")]);
    assert!(Path::new(&place("pages/of/pleach/pleach-get.1")).is_file());
    let text = told(&["repair", at]);
    assert!(text.starts_with("nothing was to be repaired: the newest commit is"), "{text}");
}

#[test]
fn a_rollback_is_one_commit() {
    let (db, root) = database();
    let at = name(&db);
    let then = document(&["history", at, "--json"])["commits"][1]["root"].clone();
    let done = document(&["rollback", at, "--at", "1", "--json"]);
    assert_eq!((done["commit"].as_u64(), &done["root"]), (Some(6), &then));
    assert!(told(&["stat", at]).contains(then.as_str().expect("a root")));
    told(&["rollback", at, "--at", "5"]);
    // The first commit had the key.
    let before = document(&["get", at, &hex(key(1)), "--at", "1", "--json"]);
    assert_eq!((&before["commit"], &before["value"]), (&json!(1), &json!(hex([7; 9]))));
    refusal(1, &["get", at, &hex(key(1))]);
    assert!(told(&["stat", at]).contains(&root));
    let line = refusal(2, &["rollback", at, "--at", "90"]);
    assert!(line.contains("there is no commit 90"), "{line}");
}

#[test]
fn an_export_is_imported_and_an_import_that_was_cut_off_goes_on() {
    let (db, root) = database();
    let (at, papers) = (name(&db), folder());
    let stream = papers.path().join("state.plx");
    let (file, copy) = (stream.to_str().expect("a plain name"), papers.path().join("copy"));
    let copy = copy.to_str().expect("a plain name");
    let report = document(&["export", at, "--to", file, "--json"]);
    assert_eq!(
        (report["pairs"].as_u64(), report["namespaces"].as_u64()),
        (Some(PAIRS + 1), Some(3))
    );
    let line = refusal(2, &["export", at, "--to", file]);
    assert!(line.contains("exists"), "{line}");
    let whole = std::fs::read(&stream).expect("written");
    assert!(pleach(&["export", at]).stdout == whole, "to standard output");
    assert!(pleach(&["export", at, "--to", "-"]).stdout == whole, "to standard output");
    let line = refusal(2, &["export", at, "--to", &format!("{at}/state.plx")]);
    assert!(line.contains("would lie in the folder of the database"), "{line}");

    let cut = papers.path().join("cut.plx");
    std::fs::write(&cut, &whole[..whole.len() - 3000]).expect("written");
    let cut = cut.to_str().expect("a plain name");
    let line = refusal(5, &["import", copy, "--from", cut, "--memory-mib", "64"]);
    assert!(line.contains("cut off"), "{line}");
    is_no_database(copy);
    let report = document(&["import", copy, "--from", file, "--memory-mib", "64", "--json"]);
    assert_eq!(
        (report["already_there"].as_u64(), report["pairs"].as_u64()),
        (Some(1), Some(PAIRS + 1))
    );
    assert!(told(&["check", copy, "--root", &root]).starts_with("nothing found"));
    let again = told(&["import", copy, "--from", file, "--memory-mib", "64"]);
    assert!(again.contains(" of 3 namespaces, all of which were there\n"), "{again}");
    // A database that is whole stays so, whatever is imported into it.
    refusal(5, &["import", copy, "--from", cut, "--memory-mib", "64"]);
    assert!(told(&["check", copy, "--root", &root]).starts_with("nothing found"));
    for namespace in ["0", "3", "9"] {
        let dump = |folder| told(&["dump", folder, "--namespace", namespace]);
        assert_eq!(dump(copy), dump(at), "namespace {namespace}");
    }
    // By a pipe.
    let piped = papers.path().join("piped");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(["import", piped.to_str().expect("a plain name"), "--memory-mib", "64"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), &whole).expect("taken");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let line = refusal(2, &["import", copy, "--from", at]);
    assert!(line.contains("is a folder"), "{line}");
    let line = refusal(
        2,
        &[
            "import",
            papers.path().join("none").to_str().expect("a plain name"),
            "--from",
            env!("CARGO_MANIFEST_PATH"),
        ],
    );
    assert!(line.contains("no export stream"), "{line}");
    assert!(!papers.path().join("none").exists(), "nothing is left behind");
    let line = refusal(2, &["import", file, "--from", file]);
    assert!(line.contains("is a file"), "{line}");
}

/// Backups beside the process that writes: the first has all, the next ones what has changed; each can be restored and
/// followed.
#[test]
fn backups_of_a_running_database_are_restored_and_followed() {
    let (db, _) = database();
    let open = open(&db);
    let (at, papers) = (name(&db), folder());
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let archive = place("archive");
    let mut roots = Vec::new();
    for round in 0..4_u8 {
        commit(
            &open,
            vec![Access::write(key(7), Some(Bytes::from(vec![round; 3000]))), put(500, 9)],
        );
        if round == 2 {
            open.drop_namespace(9).expect("dropped");
        }
        let report = document(&["backup", at, "--to", &archive, "--json"]);
        assert_eq!(report["commit"], open.commit_number());
        assert_eq!(report["full_because"].is_null(), round > 0, "{report}");
        assert_eq!(report["written"].as_array().map(Vec::len), Some(1), "{report}");
        roots.push((open.commit_number(), open.root().to_string()));
    }
    assert!(told(&["backup", at, "--to", &archive]).contains("in the archive already"));
    let listing = document(&["restore", &archive, "--json"]);
    let numbers: Vec<Value> = roots.iter().map(|(number, _)| (*number).into()).collect();
    assert_eq!(listing["restorable"], Value::from(numbers));
    assert!(told(&["restore", &archive]).contains("can be restored"));
    let copy = place("copy");
    for (number, root) in &roots {
        let to = place(&format!("restored-{number}"));
        let wanted = number.to_string();
        let report = document(&["restore", &archive, "--to", &to, "--at", &wanted, "--json"]);
        assert_eq!(
            (&report["archived_commit"], &report["roots"][0]["root"]),
            (&(*number).into(), &root.clone().into())
        );
        assert!(told(&["check", &to, "--root", root]).starts_with("nothing found"));
        // Again, there is nothing to be done.
        told(&["restore", &archive, "--to", &to, "--at", &wanted]);
        if *number == roots[1].0 {
            let line =
                refusal(2, &["restore", &archive, "--to", &to, "--at", &roots[0].0.to_string()]);
            assert!(line.contains("restore into a new folder"), "{line}");
        }
        let followed = told(&["follow", &archive, "--to", &copy, "--once"]);
        assert!(followed.contains(&roots[3].1), "{followed}");
    }
    assert_eq!(told(&["dump", &copy]), told(&["dump", at]));
    // One that is followed goes on with what comes.
    commit(&open, vec![put(600, 9)]);
    let lines = told(&["backup", at, "--to", &archive, "--every", "1", "--count", "2"]);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    let root = open.root().to_string();
    assert!(told(&["follow", &archive, "--to", &copy, "--once", "--json"]).contains(&root));
    let report = document(&["backup", at, "--to", &archive, "--full", "--keep", "1", "--json"]);
    assert_eq!(report["full_because"], "it was asked for");
    assert_eq!(
        document(&["restore", &archive, "--json"])["restorable"].as_array().map(Vec::len),
        Some(1)
    );
    // Mistakes.
    let line = refusal(2, &["restore", &archive, "--to", &place("none"), "--at", "1"]);
    assert!(line.contains("commit 1 cannot be restored"), "{line}");
    let line = refusal(2, &["restore", &place("missing"), "--to", &place("none")]);
    assert!(line.contains("no folder"), "{line}");
    let line = refusal(3, &["restore", &archive, "--to", at]);
    assert!(line.contains("in use"), "{line}");
    let (other, _) = database();
    let line = refusal(2, &["restore", &archive, "--to", name(&other)]);
    assert!(line.contains("not a restore"), "{line}");
    let line = refusal(2, &["backup", name(&other), "--to", &archive]);
    assert!(line.contains("use another archive"), "{line}");
    for object in std::fs::read_dir(&archive).expect("a folder").flatten() {
        if object.file_name().to_string_lossy().starts_with("full") {
            let bytes = std::fs::read(object.path()).expect("read");
            std::fs::write(object.path(), &bytes[..bytes.len() / 2]).expect("cut");
        }
    }
    let line = refusal(5, &["restore", &archive, "--check"]);
    assert!(line.contains("objects are damaged"), "{line}");
    let line = refusal(5, &["restore", &archive, "--to", &place("damaged")]);
    assert!(line.contains("is damaged"), "{line}");
}

/// Beside the process that writes a scrub and a check find what is bad; a repair has it from the archive, or says what
/// is lost.
#[test]
fn bad_pages_are_found_and_what_was_in_them_is_repaired() {
    let (db, _) = database();
    let at = name(&db);
    let papers = folder();
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let archive = place("archive");
    let running = open(&db);
    told(&["backup", at, "--to", &archive]);
    commit(&running, vec![put(3, 7), put(4, 6000)]);
    running.drain(0).expect("in pages");
    // The record of the move may still be queued: other processes would see the replaced page.
    running.pause_background();
    running.sync().expect("in the log");
    let root = running.root().to_string();
    assert!(told(&["scrub", at]).starts_with("nothing found"));
    assert!(told(&["check", at, "--root", &root]).starts_with("nothing found"));
    let spoil = || {
        let told = told(&["explain", at, &hex(key(3))]);
        let line = told.lines().find_map(|line| line.strip_prefix("page     number "));
        let page = line.and_then(|line| line.split(',').next()).and_then(|page| page.parse().ok());
        let page: u64 = page.expect("it has a page");
        let leaf = std::fs::OpenOptions::new().write(true).open(db.path().join("leaf"));
        let leaf = leaf.expect("there");
        std::os::unix::fs::FileExt::write_all_at(&leaf, &[0xa5; 64], page * 4096 + 100)
            .expect("written");
        page
    };
    let page = spoil();
    for command in ["scrub", "check"] {
        let output = pleach(&[command, at, "--json"]);
        assert_eq!(output.status.code(), Some(1));
        let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        assert_eq!(
            (&found["bad_pages"][0]["file"], &found["bad_pages"][0]["page"]),
            (&"leaf".into(), &page.into())
        );
        assert_eq!(found["bad_pages"].as_array().map(Vec::len), Some(1), "{found}");
    }
    let line = refusal(3, &["repair", at]);
    assert!(line.contains("in use by process"), "{line}");
    running.close().expect("closed");
    // The process may have written it anew, from its cache: else it is as bad as it was, and where the key lies cannot
    // be told.
    let is_bad = pleach(&["explain", at, &hex(key(3))]).status.code() == Some(5);
    let page = if is_bad { page } else { spoil() };
    let line = refusal(1, &["repair", at]);
    assert!(line.contains("--from ARCHIVE"), "{line}");
    let stream = place("salvaged.plx");
    let output = pleach(&["repair", at, "--salvage", &stream, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let salvaged: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert!(salvaged["lost"][0]["page"] == page && salvaged["expected_root"] == root, "{salvaged}");
    assert_eq!(
        document(&["import", &place("whole"), "--from", &stream, "--json"])["pairs"],
        salvaged["pairs"]
    );
    let mended = place("mended");
    let report = document(&["repair", at, "--from", &archive, "--to", &mended, "--json"]);
    assert_eq!(report["root"], root);
    assert!(told(&["check", &mended, "--root", &root]).starts_with("nothing found"));
    assert_eq!(told(&["get", &mended, &hex(key(4))]).trim_end(), hex([7; 6000]));
}

/// A database of 23 commits whose log is damaged at commit 16, an archive with commit 18, and the newest root.
fn damaged_behind_15(archive: &str) -> (TempDir, String) {
    let (db, _) = database();
    let running = open(&db);
    let newest = 23;
    for id in running.commit_number()..newest {
        if id == 18 {
            told(&["backup", name(&db), "--to", archive]);
        }
        commit(&running, vec![put(id, 50)]);
    }
    let root = running.root().to_string();
    drop(running);
    let log = db.path().join("log-0000000000000000");
    let mut bytes = std::fs::read(&log).expect("read");
    let damaged = bytes
        .windows(8)
        .rposition(|word| word == 16_u64.to_le_bytes())
        .expect("a record of commit 16");
    bytes[damaged..damaged + 8].fill(0xff);
    std::fs::write(&log, bytes).expect("written");
    (db, root)
}

/// The files of a folder but the lock, with their bytes.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let read = std::fs::read_dir(folder).expect("read").map(|entry| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read(path).expect("read"))
    });
    let mut files: Vec<_> = read.filter(|(name, _)| name != "LOCK").collect();
    files.sort();
    files
}

fn failing(code: i32, arguments: &[&str]) -> Value {
    let output = pleach(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// A repair in place cut 8 acknowledged commits at once and ended with 0; the roll forward after it said that no commit was
/// lost, and without the repair it kept them all.
#[test]
fn no_order_of_repairs_loses_commits_that_another_order_keeps() {
    let papers = folder();
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let archive = place("archive");
    let (db, root) = damaged_behind_15(&archive);
    let at = name(&db);
    let line = refusal(4, &["dump", at]);
    assert!(line.contains("damaged") && line.contains(&format!("`pleach repair {at}`")), "{line}");
    let before = files(db.path());
    let lost = json!({"from": 16, "to": 23});
    let output = pleach(&["repair", at]);
    let (said, line) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}\n{line}");
    assert!(said.contains("behind commit 15; lost commits: 16 to 23 (8)"), "{said}");
    let archived = format!("`pleach repair {at} --from ARCHIVE --to NEW`");
    assert!(line.contains("nothing was changed") && line.contains(&archived), "{line}");
    let told_of = failing(1, &["repair", at, "--json"]);
    assert_eq!((&told_of["changed"], &told_of["lost_commits"]), (&false.into(), &lost));
    assert!(files(db.path()) == before, "a refused repair changes nothing");
    // The archive first.
    let first = place("first");
    let report = document(&["repair", at, "--from", &archive, "--to", &first, "--json"]);
    assert_eq!((&report["through"], &report["root"]), (&23.into(), &root.clone().into()));
    assert!(files(db.path()) == before, "a roll forward changes nothing");
    // The cut first: it is said, and what it put aside has the commits.
    let cut = failing(1, &["repair", at, "--cut", "--json"]);
    assert_eq!((&cut["changed"], &cut["commit"]), (&true.into(), &15.into()), "{cut}");
    assert_eq!(cut["log_cut"]["lost_commits"], lost);
    let aside = cut["log_cut"]["aside"].as_array().expect("a list");
    assert!(aside.iter().all(|file| db.path().join(file.as_str().expect("a name")).exists()));
    told(&["check", at]);
    let salvaged = failing(1, &["repair", at, "--salvage", &place("salvaged"), "--json"]);
    assert_eq!(salvaged["lost_commits"], lost, "{salvaged}");
    let second = place("second");
    let report = document(&["repair", at, "--from", &archive, "--to", &second, "--json"]);
    assert_eq!((&report["archived_commit"], &report["through"]), (&18.into(), &23.into()));
    assert_eq!((&report["lost_commits"], &report["root"]), (&Value::Null, &root.clone().into()));
    assert!(told(&["check", &second, "--root", &root]).starts_with("nothing found"));
    // Commits made since the cut do not go together with those of the originals.
    let running = open(&db);
    commit(&running, vec![put(1, 3)]);
    running.close().expect("closed");
    let third = place("third");
    let report = failing(1, &["repair", at, "--from", &archive, "--to", &third, "--json"]);
    assert_eq!(
        (&report["through"], &report["lost_commits"]),
        (&18.into(), &json!({"from": 19, "to": 23}))
    );
    // Once they have gone further, the originals are of the past.
    let running = open(&db);
    for id in 0..9 {
        commit(&running, vec![put(id, 7)]);
    }
    let root = running.root().to_string();
    let later = place("later");
    told(&["backup", at, "--to", &later]);
    drop(running);
    let report = document(&["repair", at, "--from", &later, "--to", &place("fourth"), "--json"]);
    assert_eq!((&report["lost_commits"], &report["root"]), (&Value::Null, &root.into()));
}

/// A history that a repair gave up was "healed", by a file that was whole, and the exit code was 0.
#[test]
fn a_history_that_is_given_up_is_no_healing() {
    let db = folder();
    let (at, running) = (name(&db), open(&db));
    for id in 0..9 {
        commit(&running, vec![put(id, 50)]);
    }
    running.close().expect("closed");
    let mut bytes = std::fs::read(db.path().join("overflow")).expect("read");
    bytes.chunks_mut(4096).for_each(|page| page[100] ^= 1);
    std::fs::write(db.path().join("overflow"), bytes).expect("written");
    let before = files(db.path());
    let output = pleach(&["repair", at]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("would give up the states before commit 9"), "{said}");
    assert!(files(db.path()) == before, "a refused repair changes nothing");
    let output = pleach(&["repair", at, "--cut"]);
    let (said, line) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    let given_up = "given up: overflow: commits before 9 are lost to the history: page ";
    assert!(said.contains(given_up) && !said.contains("healed"), "{said}");
    assert!(line.contains("older states are given up"), "{line}");
    assert!(told(&["repair", at]).starts_with("nothing was to be repaired"));
}

/// Changes both superblocks of a folder, and gives them a version of the format.
fn change_superblocks(folder: &Path, version: u32, change: impl Fn(&mut Superblock)) {
    let path = folder.join("super");
    let mut bytes = std::fs::read(&path).expect("read");
    for slot in 0..2 {
        let at = usize::try_from(u64::from(slot) * SLOT_DISTANCE).expect("small");
        let page = &mut bytes[at..at + 4096];
        let decoded = Superblock::decode((&*page).try_into().expect("a page"), slot);
        let mut block = decoded.expect("a superblock");
        change(&mut block);
        page.copy_from_slice(block.encode(slot).page(0));
        page[16..20].copy_from_slice(&version.to_le_bytes());
        let checksum = XxHash3_64::oneshot(&page[8..]);
        page[..8].copy_from_slice(&checksum.to_le_bytes());
    }
    std::fs::write(path, bytes).expect("written");
}

/// A newer format was damage: exit code 4, and the advice to repair.
#[test]
fn what_a_newer_version_has_made_is_no_damage() {
    let papers = folder();
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let archive = place("archive");
    let (db, root) = database();
    let at = name(&db);
    told(&["backup", at, "--to", &archive]);
    told(&["export", at, "--to", &place("stream")]);
    std::fs::write(place("proof"), told(&["prove", at, &hex(key(0)), "--json"])).expect("written");
    let zeros = hex([0; 32]);
    let new = place("new");
    let commands: [&[&str]; 19] = [
        &["stat", at],
        &["namespaces", at],
        &["history", at],
        &["get", at, &zeros],
        &["dump", at],
        &["explain", at, &zeros],
        &["prove", at, &zeros],
        &["top", at, "--count", "1"],
        &["check", at],
        &["scrub", at],
        &["backup", at, "--to", &archive],
        &["export", at, "--to", &place("none")],
        &["upgrade", at],
        &["upgrade", at, "--to", &new],
        &["rollback", at, "--at", "0"],
        &["repair", at],
        &["repair", at, "--cut"],
        &["repair", at, "--salvage", &place("salvaged")],
        &["repair", at, "--from", &archive, "--to", &new],
    ];
    let whole = files(db.path());
    for (version, incompatible) in [(FORMAT_VERSION + 1, 0), (FORMAT_VERSION, 1 << 40)] {
        change_superblocks(db.path(), version, |block| block.incompatible = incompatible);
        let newer = files(db.path());
        for command in commands {
            let line = refusal(7, command);
            assert!(line.contains("a newer version has made this database"), "{command:?}: {line}");
            assert!(line.contains("open it with that version"), "{command:?}: {line}");
            assert!(!line.contains("pleach repair") && !line.contains("--salvage"), "{line}");
        }
        let error = &failing(7, &["check", at, "--json"])["error"];
        assert_eq!((&error["kind"], &error["code"]), (&"other version".into(), &204.into()));
        let names = |files: &[(String, Vec<u8>)]| {
            files.iter().map(|file| file.0.clone()).collect::<Vec<_>>()
        };
        let after = files(db.path());
        assert_eq!(names(&after), names(&newer));
        assert!(after == newer, "nothing was changed");
        assert!(!Path::new(&new).exists(), "nothing was made");
        let old = whole.iter().find(|(name, _)| name == "super").expect("the superblocks");
        std::fs::write(db.path().join("super"), &old.1).expect("written");
    }
    // What forbids writing alone: it can be read, and no command says that all is well.
    change_superblocks(db.path(), FORMAT_VERSION, |block| block.read_only_compatible = 1 << 40);
    assert!(told(&["stat", at]).contains(&root));
    for command in [&["upgrade", at][..], &["rollback", at, "--at", "0"], &["repair", at]] {
        let line = refusal(7, command);
        assert!(line.contains("or for reading alone"), "{line}");
    }
    let line = refusal(1, &["check", at]);
    assert!(!line.contains("repair"), "{line}");
    // Streams, objects of archives and proofs.
    let mut stream = std::fs::read(place("stream")).expect("read");
    let length = u32::from_le_bytes(stream[8..12].try_into().expect("4 bytes")) as usize;
    let mut summed = stream[..16].to_vec();
    stream[24..26].copy_from_slice(&99_u16.to_le_bytes());
    summed.extend(&stream[24..24 + length]);
    stream[16..24].copy_from_slice(&XxHash3_64::oneshot(&summed).to_le_bytes());
    std::fs::write(place("newer"), &stream).expect("written");
    let object =
        std::fs::read_dir(&archive).expect("read").map(|entry| entry.expect("an entry").path());
    let object = object.into_iter().find(|path| path.extension().is_some_and(|it| it == "plx"));
    std::fs::write(object.expect("a full"), &stream).expect("written");
    let old = whole.iter().find(|(name, _)| name == "super").expect("the superblocks");
    std::fs::write(db.path().join("super"), &old.1).expect("written");
    let commands: [&[&str]; 8] = [
        &["backup", at, "--to", &archive],
        &["backup", at, "--to", &archive, "--full", "--keep", "1"],
        &["import", &new, "--from", &place("newer")],
        &["restore", &archive],
        &["restore", &archive, "--check"],
        &["restore", &archive, "--to", &new],
        &["follow", &archive, "--to", &new, "--once"],
        &["repair", at, "--from", &archive, "--to", &new],
    ];
    for command in commands {
        let line = refusal(7, command);
        assert!(line.contains("another version has written this stream"), "{command:?}: {line}");
    }
    let proof = std::fs::read_to_string(place("proof")).expect("read");
    let mut document: Value = serde_json::from_str(&proof).expect("a document");
    let mut bytes = document["proof"].as_str().expect("digits").to_owned();
    bytes.replace_range(8..10, "63");
    document["proof"] = bytes.into();
    std::fs::write(place("proof"), document.to_string()).expect("written");
    let line = refusal(7, &["verify", &place("proof"), "--root", &root]);
    assert!(line.contains("another version has made this proof"), "{line}");
}

/// A copy made of hard links opened, and its first commit damaged the original.
#[test]
fn a_folder_of_hard_links_is_read_and_not_written() {
    let (db, root) = database();
    let (at, linked) = (name(&db), folder());
    for (file, _) in files(db.path()) {
        std::fs::hard_link(db.path().join(&file), linked.path().join(&file)).expect("linked");
    }
    let before = files(db.path());
    for folder in [name(&linked), at] {
        assert!(told(&["stat", folder]).contains(&root));
        told(&["check", folder]);
        for command in [&["rollback", folder, "--at", "0"][..], &["repair", folder]] {
            let line = refusal(2, command);
            assert!(line.contains("a hard link is no copy"), "{line}");
            assert!(line.contains("super of ") && line.contains("cp -a"), "{line}");
        }
    }
    assert!(files(db.path()) == before, "nothing was written");
    linked.close().expect("removed");
    told(&["rollback", at, "--at", "1"]);
}

/// The commits of a log whose superblocks are lost were left out without a word: a restored database has another id.
/// Nor is a log that is gone a log without commits.
#[test]
fn a_repair_from_an_archive_makes_the_commits_of_the_log_again_without_superblocks() {
    let (db, _) = database();
    let (at, papers) = (name(&db), folder());
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let archive = place("archive");
    let running = open(&db);
    told(&["backup", at, "--to", &archive]);
    let archived = running.commit_number();
    for id in 0..9 {
        commit(&running, vec![put(id, 50 + usize::try_from(id).expect("small"))]);
    }
    let (newest, root) = (running.commit_number(), running.root().to_string());
    drop(running);
    let whole = told(&["repair", at, "--from", &archive, "--to", &place("with-superblocks")]);
    assert!(whole.contains("no commit is lost\n"), "{whole}");
    std::fs::remove_file(db.path().join("super")).expect("removed");
    let to = place("whole");
    // A bulk load would leave no trace.
    let output = pleach(&["repair", at, "--from", &archive, "--to", &to, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!((&report["through"], &report["root"]), (&newest.into(), &root.clone().into()));
    assert_eq!(report["lost_commits"], Value::Null);
    assert!(report["superblocks"].is_string(), "{report}");
    assert!(told(&["check", &to, "--root", &root]).starts_with("nothing found"));
    // An archive of another database is refused, though only the log tells whose it is.
    let (other, _) = database();
    let foreign = place("foreign");
    told(&["backup", name(&other), "--to", &foreign]);
    let line = refusal(2, &["repair", at, "--from", &foreign, "--to", &place("other")]);
    assert!(line.contains("database"), "{line}");
    // Without a log nothing tells what is lost.
    for entry in std::fs::read_dir(db.path()).expect("read") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-")) {
            std::fs::remove_file(path).expect("removed");
        }
    }
    let output = pleach(&["repair", at, "--from", &archive, "--to", &place("old"), "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!((&report["through"], &report["more_may_be_lost"]), (&archived.into(), &true.into()));
    assert!(text(&output.stderr).contains("lost"), "{}", text(&output.stderr));
}

/// Processes that are killed while they back up or restore: the archive is whole, and the next one goes on.
#[test]
fn a_backup_or_a_restore_that_was_killed_goes_on() {
    let (from, papers) = (folder(), folder());
    let db = open(&from);
    let pairs = (0..200_000).map(|id| (key(id), Bytes::from(vec![1; 100])));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    let root = db.root().to_string();
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let (archive, to) = (place("archive"), place("to"));
    let killed_after = |arguments: &[&str], milliseconds: u64| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        let was_running = child.try_wait().expect("asked").is_none();
        let _ = child.kill();
        child.wait().expect("ended");
        was_running
    };
    let backup: &[&str] = &["backup", name(&from), "--to", &archive];
    // Later and later, until one is done.
    let kills = |arguments| {
        let moments = std::iter::successors(Some(15), |moment| Some(moment * 4 / 3));
        moments.take(30).take_while(|moment| killed_after(arguments, *moment)).count()
    };
    let killed = kills(backup);
    told(backup);
    let restore: &[&str] = &["restore", &archive, "--to", &to];
    let killed = killed + kills(restore);
    told(restore);
    assert!(killed > 1, "nothing was killed");
    assert!(told(&["check", &to, "--root", &root]).starts_with("nothing found"));
}

/// What an import, a restore or an upgrade has left that failed: it opened as an empty database, and a node that was
/// started next ran on the root of an empty state.
fn is_no_database(folder: &str) {
    let archive = format!("{folder}-archive");
    let salvaged = format!("{folder}-salvaged");
    let commands: [&[&str]; 12] = [
        &["stat", folder],
        &["namespaces", folder],
        &["upgrade", folder],
        &["repair", folder],
        &["repair", folder, "--salvage", &salvaged],
        &["check", folder],
        &["dump", folder],
        &["history", folder],
        &["scrub", folder],
        &["export", folder],
        &["rollback", folder, "--at", "0"],
        &["backup", folder, "--to", &archive],
    ];
    for command in commands {
        let line = refusal(2, command);
        assert!(line.contains("UNFINISHED"), "{command:?}: {line}");
    }
    for options in [Options::new(folder).create(true), Options::new(folder).read_only(true)] {
        let refused = Db::open(options).expect_err("not whole");
        assert!(refused.to_string().contains("UNFINISHED"), "{refused}");
    }
}

/// A process that is killed while it imports leaves whole namespaces, or none; the next import goes on.
#[test]
fn an_import_that_was_killed_goes_on() {
    let (from, papers) = (folder(), folder());
    let db = open(&from);
    db.add_namespace(1).expect("added");
    for namespace in [0, 1] {
        let pairs = (0..100_000).map(|id| (key(id), Bytes::from(vec![namespace; 100])));
        db.bulk_load(pairs, &LoadOptions::new().namespace(namespace)).expect("loaded");
    }
    let roots = db.roots();
    db.close().expect("closed");
    let stream = papers.path().join("state.plx");
    let file = stream.to_str().expect("a plain name");
    told(&["export", name(&from), "--to", file]);
    let copy = papers.path().join("copy");
    let at = copy.to_str().expect("a plain name");
    let import = ["import", at, "--from", file, "--memory-mib", "64"];
    // Killed in the middle, where it waits for the rest of the stream.
    let mut child = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(["import", at, "--memory-mib", "64"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let whole = std::fs::read(&stream).expect("written");
    let mut input = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, &whole[..whole.len() / 2]).expect("taken");
    child.kill().expect("killed");
    child.wait().expect("it ends");
    is_no_database(at);
    for wait in [5, 40, 80, 120, 200, 300] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args(import)
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        std::thread::sleep(std::time::Duration::from_millis(wait));
        let _ = child.kill();
        let ended = child.wait().expect("it ends");
        if !ended.success() && copy.join("super").exists() && copy.join("UNFINISHED").exists() {
            is_no_database(at);
        } else if !ended.success() {
            // Killed before there was anything, or behind the last pair.
            let stat = pleach(&["stat", at, "--json"]);
            let stat = stat.status.success().then(|| text(&stat.stdout));
            assert!(stat.is_none_or(|stat| stat.contains("200000")), "it is whole");
        }
    }
    told(&import);
    assert!(!copy.join("UNFINISHED").exists());
    assert!(told(&["check", at]).starts_with("nothing found"));
    let copy = Db::open(Options::new(&copy)).expect("opened");
    assert!(copy.roots().iter().eq(roots.iter()));
}

#[test]
fn an_upgrade_has_the_pairs_and_roots_of_the_database() {
    let (db, root) = database();
    let at = name(&db);
    assert!(told(&["upgrade", at]).contains("nothing is to be done"));
    let to = folder();
    let to = to.path().join("new");
    let to = to.to_str().expect("a plain name");
    let report = document(&["upgrade", at, "--to", to, "--json"]);
    assert_eq!(report["roots"][0]["root"], root);
    assert!(told(&["check", to, "--root", &root]).starts_with("nothing found"));
    assert_eq!(told(&["dump", to]), told(&["dump", at]));
    // Again, it finds all there.
    assert_eq!(document(&["upgrade", at, "--to", to, "--json"])["already_there"], 3);
    // What cannot be read is the error, not the stream that ends.
    let image = std::fs::read(db.path().join("leaf")).expect("read");
    std::fs::write(db.path().join("leaf"), vec![0; image.len()]).expect("written");
    let other = format!("{to}-2");
    let line = refusal(5, &["upgrade", at, "--to", &other]);
    assert!(line.contains("leaf"), "{line}");
    is_no_database(&other);
}

/// A full disk is met when the last bytes are written. The file was left under its other name.
#[test]
fn an_export_that_cannot_be_written_leaves_no_file() {
    let ((db, _), papers) = (database(), folder());
    let file = papers.path().join("state.plx");
    let shell = "trap '' XFSZ; ulimit -f 1; exec \"$0\" export \"$1\" --to \"$2\"";
    let output = Command::new("bash")
        .args(["-c", shell, env!("CARGO_BIN_EXE_pleach"), name(&db)])
        .arg(&file)
        .output()
        .expect("bash starts");
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    let left = std::fs::read_dir(papers.path()).expect("a folder").count();
    assert_eq!(left, 0, "nothing is left behind");
}

#[test]
fn commands_that_read_work_beside_the_process_that_writes() {
    let (db, _) = database();
    let open = open(&db);
    let (at, key_1, key_2) = (name(&db), hex(key(1)), hex(key(2)));
    for round in 1..=5_u8 {
        commit(&open, vec![Access::write(key(2), Some(Bytes::from(vec![round; 9])))]);
        if round.is_multiple_of(2) {
            open.drain(0).expect("in pages");
        }
        let root = open.root().to_string();
        let stat = document(&["stat", at, "--json"]);
        assert_eq!((&stat["root"], &stat["in_use"]), (&root.clone().into(), &true.into()));
        assert_eq!(told(&["get", at, &key_2]).trim_end(), hex([round; 9]));
        refusal(1, &["get", at, &key_1]);
        assert_eq!(told(&["dump", at]).lines().count() as u64, PAIRS - 1);
        assert_eq!(document(&["explain", at, &key_2, "--json"])["present"], true);
        assert_eq!(document(&["prove", at, &key_2, "--json"])["root"], root);
        let commits = document(&["history", at, "--json"])["commits"].clone();
        assert_eq!(commits.as_array().and_then(|list| list.last()).expect("one")["root"], root);
        let stream = db.path().parent().expect("a folder").join(format!("{root}.plx"));
        let stream = stream.to_str().expect("a plain name");
        let exported = document(&["export", at, "--to", stream, "--json"]);
        assert_eq!(exported["commit"], open.commit_number());
        std::fs::remove_file(stream).expect("removed");
    }
    let lines = told(&["top", at, "--count", "2"]);
    assert!(lines.lines().count() == 3 && !lines.contains("nobody writes"), "{lines}");
    let line = document(&["top", at, "--count", "1", "--json"]);
    assert_eq!(
        (&line["commit"], &line["has_writer"]),
        (&json!(open.commit_number()), &json!(true))
    );
    let before = open.commit_number();
    let commands: [&[&str]; 2] = [&["repair", at], &["rollback", at, "--at", "0"]];
    for command in commands {
        let line = refusal(3, command);
        assert!(line.contains("in use by process") && line.contains("stop that process"), "{line}");
    }
    // Programs read the same in a document.
    let output = pleach(&["repair", at, "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(
        (&document["error"]["kind"], &document["error"]["exit_code"]),
        (&"in use".into(), &3.into())
    );
    assert_eq!(document["error"]["code"], 102, "the engine's number of a locked folder");
    assert_eq!(open.commit_number(), before);
    open.close().expect("closed");
    told(&["check", at]);
    assert!(told(&["top", at, "--count", "1"]).trim_end().ends_with("nobody writes"));
}

#[test]
fn errors_are_one_line() {
    let folder = folder();
    let empty = name(&folder);
    let cases: [(&[&str], i32); 7] = [
        (&[], 2),
        (&["stat", "/nonexistent/folder"], 2),
        (&["explain", empty, "12"], 2),
        (&["wander", empty], 2),
        (&["stat", empty], 2),
        (&["export", empty, "--json"], 2),
        (&["verify", "/nonexistent/file", "--root", &"0".repeat(64)], 2),
    ];
    for (arguments, code) in cases {
        let line = refusal(code, arguments);
        assert!(line.starts_with("pleach: "), "{line}");
    }
}

/// Whoever asked for JSON has an object to read, whatever was wrong.
#[test]
fn errors_of_arguments_are_json_too() {
    let folder = folder();
    let empty = name(&folder);
    let cases: [&[&str]; 4] = [
        &["stat", "--json"],
        &["wander", empty, "--json"],
        &["explain", empty, "12", "--json"],
        &["stat", empty, "--json"],
    ];
    for arguments in cases {
        let output = pleach(arguments);
        let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        let error = &document["error"];
        assert_eq!((&document["schema"], &error["kind"]), (&1.into(), &"usage".into()));
        assert_eq!(error["exit_code"], 2, "{arguments:?}");
        let line = text(&output.stderr);
        assert!(line.starts_with("pleach: "), "{line}");
    }
}

/// Errors named functions of the library, which an operator does not have.
#[test]
fn errors_name_commands_and_options() {
    let (db, _) = database();
    let at = name(&db);
    let digits = hex(key(2));
    let cases: [(&[&str], &str); 4] = [
        (&["get", at, &digits, "--namespace", "7"], "`pleach namespaces"),
        (&["explain", at, &digits, "--namespace", "7"], "`pleach namespaces"),
        (&["import", "/nonexistent/new", "--from", "/proc/self/exe"], "`pleach export`"),
        (&["backup", at, "--to", "s3://bucket/path"], "`--features aws`"),
    ];
    for (arguments, wanted) in cases {
        if cfg!(feature = "aws") && wanted.contains("aws") {
            continue;
        }
        let line = refusal(2, arguments);
        assert!(line.contains(wanted), "{line}");
    }
    let open = open(&db);
    for id in 0..400 {
        commit(&open, vec![put(id, 9)]);
    }
    let line = refusal(2, &["prove", at, &digits, "--at", "5"]);
    assert!(line.contains("`pleach history"), "{line}");
}

#[test]
fn paths_need_not_be_utf_8() {
    let (db, root) = database();
    let papers = folder();
    let path = |bytes: &[u8]| papers.path().join(OsStr::from_bytes(bytes));
    let (archive, copy, follower) = (path(b"archive \xff"), path(b"copy \xfe"), path(b"\xfd"));
    let run = |arguments: &[&OsStr]| {
        let output = Command::new(env!("CARGO_BIN_EXE_pleach")).args(arguments).output();
        let output = output.expect("the binary starts");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}\n{}", text(&output.stderr));
        text(&output.stdout)
    };
    let [archive, copy, follower] = [&archive, &copy, &follower].map(|path| path.as_os_str());
    run(&["backup".as_ref(), db.path().as_ref(), "--to".as_ref(), archive]);
    assert!(run(&["restore".as_ref(), archive]).contains("can be restored"));
    assert!(run(&["restore".as_ref(), archive, "--to".as_ref(), copy]).contains(&root));
    run(&["follow".as_ref(), archive, "--to".as_ref(), follower, "--once".as_ref()]);
    assert!(run(&["check".as_ref(), copy]).starts_with("nothing found"));
    assert!(run(&["stat".as_ref(), follower]).contains(&root));
}

#[test]
fn an_archive_in_the_folder_of_the_database_is_refused() {
    let (db, _) = database();
    let at = name(&db);
    let link = folder();
    let linked = link.path().join("link");
    std::os::unix::fs::symlink(db.path(), &linked).expect("a link");
    let linked = linked.to_str().expect("a plain name");
    let inside = [
        at.to_owned(),
        format!("{at}/archive"),
        format!("{at}/new/../archive"),
        format!("file://{at}/archive"),
        format!("{linked}/archive"),
    ];
    for to in inside {
        let line = refusal(2, &["backup", at, "--to", &to]);
        assert!(line.contains("would lie in the folder of the database"), "{line}");
    }
    assert!(!db.path().join("archive").exists());
}

/// An object of another database was listed, and restored as a commit of this one.
#[test]
fn objects_of_another_database_are_named() {
    let ((db, _), (other, _)) = (database(), database());
    let papers = folder();
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let (archive, foreign) = (place("archive"), place("foreign"));
    told(&["backup", name(&db), "--to", &archive]);
    let open = open(&other);
    commit(&open, vec![put(1, 9)]);
    told(&["backup", name(&other), "--to", &foreign]);
    let full = "full-0000000000000006.plx";
    std::fs::copy(format!("{foreign}/{full}"), format!("{archive}/{full}")).expect("put in");
    let new = place("new");
    let cases: [&[&str]; 4] = [
        &["restore", &archive],
        &["restore", &archive, "--check"],
        &["restore", &archive, "--to", &new],
        &["follow", &archive, "--to", &new, "--once"],
    ];
    for arguments in cases {
        let output = pleach(arguments);
        let all = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(5), "{arguments:?}\n{all}");
        assert!(all.contains(&format!("{full} (commit 6)")), "{all}");
        assert!(all.contains("is of database"), "{all}");
    }
    let mark = |database: u64| format!("{archive}/database-{database:016x}");
    std::fs::write(mark(open.id().expect("open")), "").expect("put in");
    for arguments in cases {
        let line = refusal(5, arguments);
        assert!(line.contains("both database-"), "{line}");
    }
}

/// As through FUSE, or after the process that had the database open has executed another program without a close.
#[test]
fn a_free_lock_that_names_a_living_process_has_commands_read_and_not_write() {
    let (db, root) = database();
    let (at, lock) = (name(&db), db.path().join("LOCK"));
    let open = Db::open(Options::new(db.path())).expect("opened");
    let owner = std::fs::read(&lock).expect("read");
    open.close().expect("closed");
    drop(open);
    std::fs::write(&lock, &owner).expect("as if it were open");
    for command in [&["repair", at][..], &["rollback", at, "--at", "0"]] {
        let line = refusal(3, command);
        let process = format!("in use by process {}", std::process::id());
        assert!(line.contains(&process) && line.contains("does not share its locks"), "{line}");
        assert!(line.trim_end().ends_with("remove LOCK"), "{line}");
    }
    assert_eq!(document(&["stat", at, "--json"])["root"], root);
    told(&["check", at]);
    assert_eq!(std::fs::read(&lock).expect("read"), owner, "a reader leaves it");
    std::fs::remove_file(&lock).expect("removed");
    told(&["rollback", at, "--at", "0"]);
}

/// An unmounted disk leaves an empty folder. A service wrote a full of the whole state there, or made the folder again, and
/// said nothing; nor did a follower.
#[test]
fn a_service_whose_archive_goes_away_ends_with_an_error() {
    let (db, _) = database();
    let papers = folder();
    let place = |name: &str| papers.path().join(name).to_str().expect("a plain name").to_owned();
    let (archive, copy, away) = (place("archive"), place("copy"), place("away"));
    let services = [
        vec!["backup", name(&db), "--to", &archive, "--every", "1"],
        vec!["follow", &archive, "--to", &copy, "--every", "1"],
    ];
    told(&["backup", name(&db), "--to", &archive]);
    for arguments in services {
        for empty in [true, false] {
            let mut service = Command::new(env!("CARGO_BIN_EXE_pleach"))
                .args(&arguments)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the binary starts");
            let mut first = String::new();
            let mut out = BufReader::new(service.stdout.take().expect("its output"));
            out.read_line(&mut first).expect("a line");
            assert!(!first.is_empty(), "{arguments:?}");
            std::fs::rename(&archive, &away).expect("moved");
            if empty {
                std::fs::create_dir(&archive).expect("made");
            }
            let ended = service.wait_with_output().expect("it ends");
            let err = text(&ended.stderr);
            assert_eq!(ended.status.code(), Some(6), "{arguments:?}\n{err}");
            assert!(err.contains("has no database-") && err.contains(&archive), "{err}");
            assert_eq!(Path::new(&archive).exists(), empty, "{arguments:?} makes no folder");
            if empty {
                std::fs::remove_dir(&archive).expect("nothing is written into it");
            }
            std::fs::rename(&away, &archive).expect("moved back");
        }
    }
    std::fs::create_dir(&away).expect("made");
    let line = refusal(6, &["follow", &away, "--to", &copy, "--once"]);
    assert!(line.contains("has no database-"), "{line}");
    told(&["follow", &archive, "--to", &copy, "--once"]);
}

#[test]
fn a_wrong_folder_is_answered_with_the_right_one() {
    let outer = folder();
    let inside = outer.path().join("state");
    Db::open(Options::new(&inside).create(true).small()).expect("made").close().expect("closed");
    let (dir, inside) = (name(&outer), inside.to_str().expect("a plain name"));
    for command in ["stat", "check", "dump", "history"] {
        let line = refusal(2, &[command, dir]);
        assert!(line.contains(&format!("give {inside}")), "{line}");
        let line = refusal(2, &[command, &format!("{dir}/nowhere")]);
        assert!(line.contains("there is no folder"), "{line}");
        let line = refusal(2, &[command, &format!("{inside}/super")]);
        assert!(line.contains("is a file"), "{line}");
    }
    let empty = folder();
    let line = refusal(2, &["stat", name(&empty)]);
    assert!(line.contains("no database"), "{line}");
}

#[test]
fn roots_and_keys_may_begin_with_0x() {
    let (db, root) = database();
    let at = name(&db);
    for root in [format!("0x{root}"), format!("0X{}", root.to_uppercase())] {
        told(&["check", at, "--root", &root]);
    }
    told(&["explain", at, &format!("0x{}", "0".repeat(64))]);
    let line = refusal(2, &["check", at, "--root", "0x12"]);
    assert!(
        line.contains("64 hexadecimal digits") && line.contains("not these 2 characters"),
        "{line}"
    );
}

#[test]
fn stat_says_the_same_to_programs() {
    let (db, _) = database();
    let at = name(&db);
    let (text, document) = (told(&["stat", at]), document(&["stat", at, "--json"]));
    assert!(text.contains(document["root"].as_str().expect("a root")));
    for field in [
        "commit",
        "oldest_commit",
        "history",
        "history_bytes",
        "history_bytes_a_commit",
        "leaf_pages",
        "regions",
        "pending_entries",
        "log_replay_bytes",
        "incarnation",
        "files_bytes",
    ] {
        let number = document[field].as_u64().unwrap_or_else(|| panic!("{field}"));
        assert!(text.contains(&number.to_string()), "{field} {number}\n{text}");
    }
    assert_eq!(document["notes"], Value::Array(Vec::new()));
    let files = document["files"].as_array().expect("files");
    assert!(files.iter().any(|file| file["name"] == "leaf" && file["bytes"].as_u64() > Some(0)));
}

/// Exit codes 1, 4 and 5: findings that an open survives, what does not open, and damage that is met.
#[test]
fn lost_files_and_damaged_pages_are_told_apart() {
    let (db, _) = database();
    let at = name(&db);
    let file = |name: &str| db.path().join(name);
    let leaf = std::fs::read(file("leaf")).expect("the leaf file");
    std::fs::remove_file(file("leaf")).expect("removed");
    for arguments in [&["stat", at][..], &["stat", at, "--json"], &["dump", at], &["export", at]] {
        let err = refusal(4, arguments);
        assert!(err.contains("`leaf` is missing"), "{err}");
    }
    let output = pleach(&["stat", at, "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(document["error"]["kind"], "does not open");
    let output = pleach(&["check", at, "--json"]);
    assert_eq!(output.status.code(), Some(4), "it does not open");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!((&report["verdict"], &report["root"]), (&"does not open".into(), &Value::Null));
    assert_eq!(report["findings"][0]["fatal"], true);
    // All pages, so that some page that is in use is among them.
    let mut damaged = leaf.clone();
    damaged.chunks_mut(4096).for_each(|page| page[100] ^= 1);
    std::fs::write(file("leaf"), damaged).expect("written");
    let output = pleach(&["check", at]);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("page ") && !said.contains("pleach check"), "{said}");
    let archive = folder();
    for command in [&["dump", at][..], &["export", at], &["backup", at, "--to", name(&archive)]] {
        let line = refusal(5, command);
        assert!(line.contains(&format!("`pleach check {at}`")), "{line}");
    }
    std::fs::write(file("leaf"), leaf).expect("written");

    let elsewhere = folder();
    std::fs::copy(file("super"), elsewhere.path().join("super")).expect("copied");
    std::fs::remove_file(file("super")).expect("removed");
    for command in ["stat", "check", "dump"] {
        let output = pleach(&[command, at]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("`super` is missing"), "{said}");
        assert!(said.contains(&format!("`pleach repair {at}`")), "{said}");
    }
    std::fs::copy(elsewhere.path().join("super"), file("super")).expect("copied back");

    // A dead copy is a finding that an open survives; a file that nobody may write is not survived.
    let mut copies = std::fs::read(file("incarnation")).expect("the incarnation file");
    copies[100] ^= 1;
    std::fs::write(file("incarnation"), &copies).expect("written");
    let output = pleach(&["check", at, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(report["verdict"], "findings");
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(1), "{report}");
    copies[100] ^= 1;
    std::fs::write(file("incarnation"), &copies).expect("written");
    told(&["check", at]);
    let mut rights = std::fs::metadata(file("leaf")).expect("there").permissions();
    rights.set_readonly(true);
    std::fs::set_permissions(file("leaf"), rights).expect("changed");
    let output = pleach(&["check", at]);
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stdout).contains("chmod u+rw"), "{}", text(&output.stdout));
}

#[test]
fn a_full_device_is_an_error_and_a_reader_that_stops_is_none() {
    let (db, _) = database();
    let at = name(&db);
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let commands: [&[&str]; 6] = [
        &["--version"],
        &["stat", at],
        &["stat", at, "--json"],
        &["check", at],
        &["dump", at],
        &["completions", "bash"],
    ];
    for arguments in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        let output = command.args(arguments).stdout(full()).output().expect("it starts");
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{arguments:?}\n{err}");
        assert!(err.lines().count() == 1 && err.contains("standard output"), "{err}");
        // A reader that is gone before the first byte.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        let output = command.args(arguments).stdout(writer).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
    }
    let line = refusal(2, &["export", at, "--to", "/nonexistent/state.plx"]);
    assert!(line.contains("/nonexistent/state.plx: No such file"), "{line}");
}

#[test]
fn help_manual_pages_and_completions_name_every_command() {
    let help = told(&["--help"]);
    assert!(help.starts_with("Looks at the folder"), "{help}");
    assert!(help.contains("Examples:") && help.contains("pleach stat /"), "{help}");
    assert!(help.contains("Exit codes:"), "{help}");
    let pages = folder();
    told(&["man", name(&pages)]);
    let commands = [
        "stat",
        "namespaces",
        "history",
        "check",
        "get",
        "explain",
        "dump",
        "prove",
        "verify",
        "rollback",
        "backup",
        "serve",
        "sync",
        "metrics",
        "export",
        "import",
        "completions",
        "man",
    ];
    let page = |name: &str| std::fs::read_to_string(pages.path().join(name)).expect("a page");
    assert!(page("pleach.1").contains("Exit codes"));
    assert!(page("pleach-backup.1").contains("EXAMPLES\n.nf\npleach backup"));
    for command in commands {
        assert!(page(&format!("pleach-{command}.1")).contains("EXIT STATUS"), "{command}");
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
        assert!(Path::new(&page(&format!("pleach-{command}.1"))).as_os_str().len() > 100);
    }
    for shell in ["bash", "zsh", "fish"] {
        let completions = told(&["completions", shell]);
        assert!(commands.iter().all(|command| completions.contains(command)), "{shell}");
    }
}

#[test]
fn a_table_in_csv_is_exported_and_imported() {
    let (db, root) = database();
    let (at, beside) = (name(&db), folder());
    let path = |file: &str| beside.path().join(file).to_str().expect("text").to_owned();
    let (csv, copy, again) = (path("state.csv"), path("copy"), path("again.csv"));
    let exported = document(&["export", at, "--to", &csv, "--format", "csv", "--json"]);
    assert_eq!((&exported["namespaces"], &exported["pairs"]), (&json!(3), &json!(PAIRS + 1)));
    let text = std::fs::read_to_string(&csv).expect("read");
    assert_eq!(exported["bytes"], text.len());
    assert_eq!(told(&["export", at, "--format", "csv"]), text);
    let row = format!("\n3,{},{}\n", hex(key(1)), hex([7; 5000]));
    assert!(text.starts_with("namespace,key,value\n0,") && text.contains(&row));

    let import = ["import", &copy, "--from", &csv, "--format", "csv"];
    let plain = ["--plain", "9", "--root", &root, "--json"];
    let imported = document(&[&import[..], &plain].concat());
    assert_eq!((&imported["namespaces"], &imported["pairs"]), (&json!(3), &json!(PAIRS + 1)));
    assert_eq!(imported["roots"][0], json!({"namespace": 0, "root": root}));
    assert!(told(&["check", &copy, "--root", &root]).starts_with("nothing found"));
    assert!(document(&["namespaces", &copy, "--json"])["namespaces"][2]["digest"].is_string());
    told(&["export", &copy, "--to", &again, "--format", "csv"]);
    assert!(std::fs::read_to_string(&again).expect("read") == text);
    let line = refusal(2, &import);
    assert!(line.contains("is not empty, and an import of a table begins anew"), "{line}");

    // The order of keys is free, and lines may end as on other systems.
    let mut lines: Vec<_> = text.lines().collect();
    lines[1..].sort_by_key(|line| core::cmp::Reverse((line.starts_with("0,"), *line)));
    std::fs::write(&again, lines.join("\r\n") + "\r\n").expect("written");
    let other = path("other");
    let imported = told(&["import", &other, "--from", &again, "--format", "csv"]);
    assert!(imported.contains(&format!("namespace 0 root {root}\n")), "{imported}");
}

#[test]
fn a_wrong_row_of_a_table_is_named_by_its_line() {
    let folder = folder();
    let path = |file: &str| folder.path().join(file).to_str().expect("text").to_owned();
    let (csv, new) = (path("rows.csv"), path("new"));
    let (header, one) = ("namespace,key,value\n", format!("0,{},07\n", hex(key(1))));
    let two = |namespace: u8| format!("{namespace},{},07\n", hex(key(2)));
    for (text, said) in [
        (String::new(), "line 1: the header is not"),
        (format!("key,value\n{one}"), "line 1: the header is not"),
        (format!("{header}{one}0,07,07\n"), "line 3: the key has not 64"),
        (format!("{header}{one}256,{},07\n", hex(key(2))), "line 3: the namespace is no number"),
        (format!("{header}0,{},7\n", hex(key(2))), "line 2: the value has other"),
        (format!("{header}{one}\n"), "line 3: it has 1 fields"),
        (format!("{header}{one}{}", two(0).trim_end()), "line 3: the file is cut off"),
        (format!("{header}{one}{}{one}", two(1)), "line 4: rows of namespace 0 came before"),
    ] {
        std::fs::write(&csv, &text).expect("written");
        let line = refusal(5, &["import", &new, "--from", &csv, "--format", "csv"]);
        assert!(line.contains(&format!("rows.csv, {said}")), "{line}");
        assert!(!Path::new(&new).exists(), "{line}");
    }
    std::fs::write(&csv, format!("{header}{one}{}", two(0))).expect("written");
    let zeros = "0".repeat(64);
    let line = refusal(5, &["import", &new, "--from", &csv, "--format", "csv", "--root", &zeros]);
    assert!(line.contains("the root of the rows is ") && !Path::new(&new).exists(), "{line}");
    std::fs::write(&csv, format!("{header}{one}{one}")).expect("written");
    let line = refusal(2, &["import", &new, "--from", &csv, "--format", "csv"]);
    assert!(line.contains(&hex(key(1))), "{line}");
    // Nothing opens what is not whole.
    assert!(Path::new(&new).join("UNFINISHED").exists());
    let line = refusal(2, &["export", &new, "--to", &path("x"), "--format", "table"]);
    assert!(line.contains("stream, csv, parquet"), "{line}");
    if !cfg!(feature = "parquet") {
        let (db, _) = database();
        let line = refusal(2, &["export", name(&db), "--to", &path("x"), "--format", "parquet"]);
        assert!(line.contains("without Parquet") && !Path::new(&path("x")).exists(), "{line}");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn a_table_in_parquet_has_all_pairs() {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    let (db, _) = database();
    let beside = folder();
    let file = beside.path().join("state.parquet");
    let to = file.to_str().expect("text");
    let exported = document(&["export", name(&db), "--to", to, "--format", "parquet", "--json"]);
    assert_eq!((&exported["namespaces"], &exported["pairs"]), (&json!(3), &json!(PAIRS + 1)));
    assert_eq!(exported["bytes"], std::fs::metadata(&file).expect("there").len());
    let reader =
        SerializedFileReader::new(std::fs::File::open(&file).expect("there")).expect("read");
    let rows = reader.get_row_iter(None).expect("rows").map(|row| {
        let row = row.expect("a row");
        let bytes = |column| hex(row.get_bytes(column).expect("bytes").data());
        format!("{},{},{}\n", row.get_ubyte(0).expect("a number"), bytes(1), bytes(2))
    });
    let csv = told(&["export", name(&db), "--format", "csv"]);
    assert_eq!(format!("namespace,key,value\n{}", rows.collect::<String>()), csv);

    let program = "import sys, duckdb
query = 'select count(*), sum(octet_length(value)), min(octet_length(key)), max(namespace) from read_parquet(?)'
print(*duckdb.execute(query, [sys.argv[1]]).fetchone())";
    let output = Command::new("python3").args(["-c", program, to]).output();
    match output {
        Ok(output) if output.status.success() => {
            let bytes = 9 * (PAIRS - 2) + 20 + 5000 + 3;
            assert_eq!(text(&output.stdout), format!("{} {bytes} 32 9\n", PAIRS + 1));
        }
        Ok(output) if text(&output.stderr).contains("No module named") => {
            println!("SKIPPED: Python has no module duckdb here");
        }
        Ok(output) => panic!("{output:?}"),
        Err(_) => println!("SKIPPED: no python3 here"),
    }
}
