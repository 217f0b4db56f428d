//! `nomt-bench` as a user runs it: exit codes, one-line errors, a complete tiny run on
//! each backend that this build has, golden roots, reuse of a folder.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Roots after the load and after each of 4 batches of 100 transfers on 2^10 accounts, 25 %
/// fresh: `docs/workloads.md` has them too. A change is a new version of the workload.
const LOADED: &str = "48c02c35a8b79dbef9859f84445b79995cdd18754c18f3394fa73708905b69a9";
const GOLDEN: [(&str, &str, &str); 5] = [
    ("1", "uniform", "4098751e56fe63ae788030c690dd734319b71d1247250b93f6dec8282f7a0da0"),
    ("2", "uniform", "529cb6ab99cc9c97b849dc85d14d58f4eea74639cf039f42373ecc46f87290ce"),
    ("3", "uniform", "1f7a8ce0123b1783f327df79e7b3eaf5f48817322a9631d1e716a8972e794997"),
    ("1", "zipf:0.99", "3bc9d3ec377b6417580f20f301913b9b00a8197ce065111c32d10597e302d625"),
    ("1", "pareto", "39995ec78793a05474e1c9c736d79ca0619096c9f89a0b9f785773de02fb1c3a"),
];

/// The oracle, then every engine that this build has.
fn backends() -> Vec<&'static str> {
    let mut all = vec!["model", "pleach"];
    if cfg!(feature = "peer-nomt") {
        all.push("nomt");
    }
    all
}

fn bench_output(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nomt-bench"));
    command.args(arguments).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must succeed, and returns what it printed.
fn succeed(arguments: &[&str]) -> String {
    let output = bench_output(arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{arguments:?}\n{out}\n{err}");
    out
}

/// Runs a command that must fail with this code and one line, and returns the line.
fn fail(code: i32, arguments: &[&str]) -> String {
    let output = bench_output(arguments);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{err}");
    assert_eq!(err.lines().count(), 1, "{arguments:?}\n{err}");
    assert!(output.stdout.is_empty(), "{arguments:?}\n{}", text(&output.stdout));
    err
}

/// Runs a tiny transfer and returns its JSON.
fn transfer(folder: &TempDir, more: &[&str]) -> Value {
    let file = folder.path().join("result.json");
    let name = file.to_str().expect("a plain name");
    let mut arguments = vec!["transfer", "--quiet", "--json", name];
    let tiny = [
        ["--log2", "8"],
        ["--batch", "50"],
        ["--batches", "3"],
        ["--warmup", "1"],
        ["--cache-mib", "64"],
        ["--log-limit-mib", "1"],
    ];
    for pair in tiny {
        if !more.contains(&pair[0]) {
            arguments.extend(pair);
        }
    }
    arguments.extend(more);
    succeed(&arguments);
    read(&file)
}

fn read(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).expect("the result is there");
    serde_json::from_str(&text).expect("the result is JSON")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn a_bare_call_prints_help_and_a_missing_peer_names_its_feature() {
    assert!(succeed(&[]).contains("Examples:"));
    if !cfg!(feature = "peer-redb") {
        assert!(fail(2, &["bank", "--backend", "redb"]).contains("`--features peer-redb`"));
    }
}

#[test]
fn bad_arguments_exit_2_with_one_line() {
    let cases: [&[&str]; 17] = [
        &["wander"],
        &["transfer", "--log2", "99"],
        &["transfer", "--log2", "0"],
        &["transfer", "--batch", "0"],
        &["transfer", "--batches", "0"],
        &["transfer", "--batches", "several"],
        &["transfer", "--fresh", "101"],
        &["transfer", "--distribution", "zipf:0"],
        &["transfer", "--distribution", "normal"],
        &["transfer", "--durability", "periodic:0"],
        &["transfer", "--witness", "maybe"],
        &["transfer", "--cache-mib", "0"],
        &["transfer", "--verify-every", "0"],
        &["transfer", "--backend", "model,model"],
        &["transfer", "--backend", "abacus"],
        &["transfer", "--backend", "model", "--peer-arg", "readers=16"],
        &["transfer", "--reset"],
    ];
    for case in cases {
        let line = fail(2, case);
        assert!(line.starts_with("nomt-bench: "), "{line}");
    }
    let line = fail(2, &["transfer", "--backend", "model", "--peer-arg", "nomt.readers=16"]);
    assert!(line.contains("--backend"), "{line}");
    let line = fail(2, &["transfer", "--backend", "model", "--prefetch", "off", "--ahead"]);
    assert!(line.contains("leave one of them out"), "{line}");
    let line = fail(2, &["init", "--backend", "model"]);
    assert!(line.contains("--dir"), "{line}");
    let line = fail(2, &["recover", "--backend", "model", "--durability", "none"]);
    assert!(line.contains("--durability commit"), "{line}");
    let line = fail(2, &["device", "--dir", "/nonexistent/folder"]);
    assert!(line.contains("--dir"), "{line}");
    let line = fail(2, &["__become", "true"]);
    assert!(line.contains("internal"), "{line}");
    let line = fail(2, &["__child"]);
    assert!(line.contains("internal"), "{line}");
}

#[test]
fn a_need_beyond_the_machine_is_stated_before_anything_is_made() {
    let at = folder();
    let dir = at.path().join("db");
    let name = dir.to_str().expect("a plain name");
    let line = fail(2, &["init", "--backend", "model", "--log2", "32", "--dir", name]);
    assert!(line.contains("GiB") && line.contains("free"), "{line}");
    assert!(!dir.exists());
}

#[test]
fn states_that_are_open_at_once_fit_the_machine_together() {
    for case in [
        &["erc20", "--eoa", "10", "--contracts", "1", "--blocks", "1", "--transfers", "1"][..],
        &["overlay", "--accounts", "10", "--updates", "1"],
        &["auth", "--sizes", "10"],
    ] {
        let line = fail(2, &[case, &["--cache-mib", "16777216", "--quiet"]].concat());
        assert!(line.contains("memory") && line.contains("--cache-mib"), "{line}");
    }
}

/// What a row of a result is of, and whether a claim may be made of it, is said by its name.
#[test]
fn a_store_without_a_root_stands_apart() {
    let at = folder();
    let (json, page) = (at.path().join("out.json"), at.path().join("page.html"));
    for (case, ours, flat) in [
        (
            &["erc20", "--eoa", "100", "--contracts", "5", "--blocks", "2", "--transfers", "50"][..],
            "finish + commit, synced, pleach",
            "write, in memory, flat, btreemap",
        ),
        (&["auth", "--sizes", "50", "--rounds", "1"], "pleach", "btreemap"),
    ] {
        let files = [&json, &page].map(|path| path.to_str().expect("a plain name"));
        let more = ["--cache-mib", "64", "--quiet", "--json", files[0], "--report", files[1]];
        let erc20 = case[0] == "erc20";
        let backend = if erc20 { "pleach,btreemap" } else { "pleach" };
        succeed(&[case, &more, &["--backend", backend]].concat());
        let document = read(&json);
        let rows = document["rows"].as_array().expect("rows");
        for subject in [ours, flat] {
            assert!(rows.iter().any(|row| row["subject"] == subject), "{subject}: {rows:?}");
        }
        let page = std::fs::read_to_string(&page).expect("the page");
        assert_eq!(page.contains("Pleach is ahead"), !erc20, "{case:?}");
    }
}

#[test]
fn golden_roots_hold_on_every_backend() {
    for (seed, distribution, last) in GOLDEN {
        for backend in backends() {
            let at = folder();
            let size = ["--log2", "10", "--batch", "100", "--batches", "4", "--warmup", "0"];
            let which = ["--seed", seed, "--distribution", distribution, "--backend", backend];
            let file = at.path().join("result.json");
            let name = file.to_str().expect("a plain name");
            let rest = ["--quiet", "--cache-mib", "64", "--json", name];
            succeed(&[&["transfer"], &size[..], &which[..], &rest[..]].concat());
            let run = &read(&file)["runs"][0];
            assert_eq!(run["load_root"], LOADED, "{backend} {seed} {distribution}");
            assert_eq!(run["root"], last, "{backend} {seed} {distribution}");
        }
    }
}

/// Root after 24 batches of a soak: 2^10 accounts, batches of 100, 25 % fresh, seed 1.
const SOAKED: &str = "71f195d9230df7238d9fd16839f5ceb51b2a97fb77b8cc41b68d537d482499ab";

#[test]
fn soaks_agree_and_old_sessions_read_old_balances() {
    for backend in backends() {
        let at = folder();
        let (json, page) = (at.path().join("result.json"), at.path().join("report.html"));
        let names = [&json, &page].map(|path| path.to_str().expect("a plain name"));
        let sessions = if backend == "nomt" { "0" } else { "4" };
        let mut arguments = vec!["soak", "--quiet", "--backend", backend, "--json", names[0]];
        for pair in [
            ["--log2", "10"],
            ["--batch", "100"],
            ["--batches", "24"],
            ["--warmup", "0"],
            ["--seed", "1"],
            ["--cache-mib", "64"],
            ["--log-limit-mib", "1"],
            ["--sessions", sessions],
            ["--report", names[1]],
        ] {
            arguments.extend(pair);
        }
        succeed(&arguments);
        let run = &read(&json)["runs"][0];
        let count = |field: &str| run["verified"][field].as_u64().expect("a number");
        assert_eq!(run["workload"], "soak");
        assert_eq!(run["root"], SOAKED, "{backend}");
        assert_eq!(count("sum"), 1_024_000);
        assert!(run["accounts_closed"].as_u64() > Some(200));
        assert_eq!(count("sessions") > 0, sessions != "0");
        assert_eq!(count("session_accounts_changed") > 0, sessions != "0");
        assert_eq!(run["rows"].as_array().map(Vec::len), Some(1));
        // Those of a transfer, and the five figures of the rows, which have no ratios.
        let page = std::fs::read_to_string(&page).expect("the page");
        assert!(page.matches("<svg ").count() >= 14, "{backend}");
    }
}

/// Batches of a session change more than an eighth of the budget remembers, which once ended the run.
#[test]
fn a_soak_of_little_memory_keeps_its_sessions() {
    let size = ["--log2", "16", "--batch", "2000", "--batches", "24", "--warmup", "0"];
    let size =
        [&["soak", "--cache-mib", "64", "--session-batches", "20", "--quiet"], &size[..]].concat();
    let out = succeed(&size);
    assert!(out.contains("undo may take") && out.contains("sessions of 20 batches"), "{out}");
    let line = fail(1, &[&size[..], &["--history-mib", "8"]].concat());
    assert!(line.contains("history"), "{line}");
}

#[test]
fn a_soak_ends_with_its_time_and_knows_its_folder() {
    let (at, db) = (folder(), folder());
    let file = at.path().join("result.json");
    let dir = db.path().to_str().expect("a plain name");
    let size = ["--log2", "8", "--batch", "50", "--cache-mib", "64", "--dir", dir];
    let time = ["--minutes", "0.03", "--row-seconds", "1", "--quiet", "--log-limit-mib", "1"];
    let json = ["--json", file.to_str().expect("a plain name")];
    succeed(&[&["soak", "--backend", "pleach,model"], &size[..], &time[..], &json[..]].concat());
    let document = read(&file);
    let runs = document["runs"].as_array().expect("runs");
    assert_eq!(runs[0]["batches"], runs[1]["batches"]);
    assert_eq!(runs[0]["root"], runs[1]["root"]);
    let wall = runs[0]["batch_wall_seconds"].as_array().expect("a series");
    assert!(wall.last().and_then(Value::as_f64) >= Some(1.2), "{wall:?}");
    let line = fail(2, &[&["transfer", "--backend", "pleach"], &size[..]].concat());
    assert!(line.contains("--life 16"), "{line}");
    let line = fail(2, &["soak", "--minutes", "2", "--require-level"]);
    assert!(line.contains("--minutes"), "{line}");
    fail(2, &["soak", "--minutes", "0"]);
    fail(2, &["soak", "--minutes", "1", "--batches", "5"]);
}

#[test]
fn all_backends_agree_and_all_fields_are_there() {
    let at = folder();
    let document = transfer(&at, &["--backend", &backends().join(",")]);
    assert_eq!(document["schema"], 1);
    assert_eq!(document["states_with_equal_roots"], 5);
    let runs = document["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), backends().len());
    for (run, backend) in runs.iter().zip(backends()) {
        assert_eq!(run["backend"], backend);
        for field in [
            "workload",
            "seed",
            "log2",
            "batch",
            "batches",
            "durability",
            "witness",
            "cache_mib",
            "device",
            "root",
            "verified",
            "transfers_per_second",
            "transfers_per_second_acknowledged",
            "accounts_per_second",
            "execute_ms",
            "finish_ms",
            "commit_ms",
            "total_ms",
            "ssd_reads",
            "cache_misses",
            "ssd_reads_per_miss",
            "upper_trie_pages_read",
            "bytes_written_per_account",
            "witness_bytes_per_batch",
            "checkpoints",
            "peak_rss_bytes",
            "files_bytes",
            "load_seconds",
        ] {
            assert!(run.get(field).is_some(), "{backend}: {field}");
        }
        assert!(run["finish_ms"]["p50"].as_f64() > Some(0.0), "{backend}");
        // 2^8 loaded and 4 batches of 12 new ones.
        assert_eq!(run["verified"]["balances"], 256 + 4 * 12, "{backend}");
        assert_eq!(run["verified"]["sum"], 256_000, "{backend}");
        let witnesses = if backend == "model" { 0 } else { 3 };
        assert_eq!(run["verified"]["witnesses"], witnesses, "{backend}");
    }
}

/// Roots of another kind are in no comparison, and witnesses of theirs are verified.
#[cfg(all(feature = "peer-sp-trie", feature = "peer-jmt"))]
#[test]
fn trees_with_another_commitment_have_the_same_balances() {
    let at = folder();
    let document = transfer(&at, &["--backend", "sp-trie,model,jmt,pleach"]);
    assert_eq!(document["states_with_equal_roots"], 5);
    let runs = document["runs"].as_array().expect("runs");
    let root = |run: usize| runs[run]["root"].as_str().expect("a root");
    assert_eq!(root(1), root(3));
    assert!(root(0) != root(1) && root(2) != root(1) && root(0) != root(2));
    for run in [&runs[0], &runs[2]] {
        assert_eq!(run["verified"]["sum"], 256_000, "{run}");
        assert_eq!(run["verified"]["witnesses"], 3, "{run}");
    }
    let behind = ["--backend", "sp-trie,jmt", "--overlay-window", "2", "--witness", "off"];
    let other = transfer(&folder(), &behind);
    for (run, same) in other["runs"].as_array().expect("runs").iter().zip([0, 2]) {
        assert_eq!(run["root"], runs[same]["root"]);
    }
    let line = fail(2, &["transfer", "--backend", "jmt", "--peer-arg", "jmt.readers=16"]);
    assert!(line.contains("no such setting"), "{line}");
}

#[test]
fn every_flag_that_steers_an_engine_leaves_the_roots_alone() {
    let plain = transfer(&folder(), &["--backend", "model"])["runs"][0]["root"].clone();
    let variants: [&[&str]; 9] = [
        &["--io", "blocking"],
        &["--io", "auto"],
        &["--prefetch", "off"],
        &["--witness", "off"],
        &["--overlay-window", "2"],
        &["--ahead"],
        &["--durability", "periodic:20"],
        &["--durability", "none", "--threads", "1"],
        &["--trie-cache-kib", "0", "--in-flight", "1", "--verify-every", "2"],
    ];
    for backend in backends() {
        for variant in variants {
            let document = transfer(&folder(), &[&["--backend", backend], variant].concat());
            assert_eq!(document["runs"][0]["root"], plain, "{backend} {variant:?}");
        }
    }
}

#[test]
fn backends_that_take_turns_do_the_same_as_one_after_the_other() {
    let plain = transfer(&folder(), &["--backend", "model", "--batches", "7"]);
    let list = backends().join(",");
    // Turns that divide the number of batches, that do not, and that are longer.
    for turn in ["1", "3", "100"] {
        let at = folder();
        let more = ["--backend", &list, "--batches", "7", "--alternate", turn];
        let document = transfer(&at, &more);
        assert_eq!(document["states_with_equal_roots"], 9);
        for run in document["runs"].as_array().expect("runs") {
            assert_eq!(run["root"], plain["runs"][0]["root"]);
            assert_eq!(run["batches"], 7);
            assert_eq!(run["alternate"].to_string(), turn);
            assert_eq!(run["batch_ms"].as_array().expect("a series").len(), 7);
        }
    }
    let document = transfer(
        &folder(),
        &["--backend", "pleach,model", "--batches", "auto", "--alternate", "9", "--batch", "400"],
    );
    let count = |run: usize| document["runs"][run]["batches"].as_u64().expect("a number");
    assert!(count(0) == count(1) && count(0) >= 40 && count(0).is_multiple_of(9));
    let line = fail(2, &["transfer", "--backend", "model", "--alternate", "5"]);
    assert!(line.contains("--backend"), "{line}");
}

#[test]
fn a_report_is_one_page_with_everything_inside() {
    let at = folder();
    let file = at.path().join("report.html");
    let name = file.to_str().expect("a plain name");
    let document = transfer(&at, &["--backend", &backends().join(","), "--report", name]);
    let page = std::fs::read_to_string(&file).expect("the page");
    // 4 phases, 6 figures over time, 4 ratios.
    assert_eq!(page.matches("<svg ").count(), 14);
    assert_eq!(page.matches("</svg>").count(), 14);
    for elsewhere in ["<script", "http:", "https:", "<link", "@import"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    for run in document["runs"].as_array().expect("runs") {
        assert!(page.contains(run["root"].as_str().expect("a root")));
        for series in
            ["ms", "execute_ms", "read_bytes", "written_bytes", "rss_bytes", "files_bytes"]
        {
            let values = run[format!("batch_{series}")].as_array().expect("a series");
            assert_eq!(values.len(), 3, "{series}");
        }
        let sum = |name: &str| -> u64 {
            run[name].as_array().expect("a series").iter().filter_map(Value::as_u64).sum()
        };
        let total = run["bytes_written"].as_u64().expect("a number");
        assert!(sum("batch_written_bytes") <= total, "{run}");
    }
    let nowhere = ["--report", "/nonexistent/folder/report.html"];
    let line = fail(2, &[&["transfer", "--backend", "model"], &nowhere[..]].concat());
    assert!(line.contains("report.html"), "{line}");
}

#[cfg(feature = "peer-nomt")]
#[test]
fn peer_arguments_are_checked_printed_and_leave_the_roots_alone() {
    for wrong in ["nomt.reader=2", "nomt.readers=0", "nomt.buckets=-1", "nomt.warm_up=perhaps"] {
        let line = fail(2, &["transfer", "--backend", "nomt", "--peer-arg", wrong]);
        assert!(line.contains("--peer-arg"), "{line}");
    }
    // A ratio beside an engine that syncs nothing would be one of syncs.
    for durability in ["none", "periodic:20"] {
        let line = fail(2, &["transfer", "--backend", "pleach,nomt", "--durability", durability]);
        assert!(line.contains("nomt syncs each commit") && line.contains("--durability"), "{line}");
    }
    // The same settings where single parts are measured.
    let size = ["import", "--backend", "nomt", "--leaves", "100", "--quiet"];
    let out = succeed(&[&size[..], &["--peer-arg", "nomt.readers=3"]].concat());
    assert!(out.contains("readers=3") && out.contains("buckets=64000"), "{out}");
    assert!(
        fail(2, &[&size[..], &["--peer-arg", "nomt.reader=3"]].concat())
            .contains("no such setting")
    );
    let plain = transfer(&folder(), &["--backend", "model"])["runs"][0]["root"].clone();
    let settings = [
        "readers=16",
        "commit_workers=1",
        "io_workers=2",
        "page_cache_mib=16",
        "leaf_cache_mib=16",
        "prepopulate=true",
        "warm_up=true",
    ];
    for prefetch in ["on", "off"] {
        let names: Vec<_> = settings.iter().map(|one| format!("nomt.{one}")).collect();
        let mut arguments = vec!["--backend", "nomt", "--prefetch", prefetch];
        for name in &names {
            arguments.extend(["--peer-arg", name]);
        }
        let run = transfer(&folder(), &arguments)["runs"][0].clone();
        assert_eq!(run["root"], plain);
        let note = run["notes"][0].as_str().expect("a note");
        for setting in settings {
            assert!(note.contains(setting), "{note}");
        }
    }
}

#[test]
fn a_folder_is_reused_and_the_stream_goes_on() {
    for backend in backends() {
        let (at, db) = (folder(), folder());
        let dir = db.path().to_str().expect("a plain name");
        let with =
            |more: &[&str]| transfer(&at, &[&["--backend", backend, "--dir", dir], more].concat());
        let first = with(&[]);
        let second = with(&["--batches", "2", "--warmup", "0"]);
        assert_eq!(first["runs"][0]["loaded_now"], true);
        assert_eq!(second["runs"][0]["loaded_now"], false);
        assert_eq!(second["runs"][0]["first_batch"], 4);
        // The same six batches in one go.
        let whole = transfer(&at, &["--backend", "model", "--batches", "5"]);
        assert_eq!(second["runs"][0]["root"], whole["runs"][0]["root"], "{backend}");
        // --reset starts again.
        let again = with(&["--reset"]);
        assert_eq!(again["runs"][0]["loaded_now"], true);
        assert_eq!(again["runs"][0]["root"], first["runs"][0]["root"]);
    }
}

#[test]
fn a_folder_with_other_parameters_or_of_someone_else_is_refused_untouched() {
    let (at, db) = (folder(), folder());
    let dir = db.path().to_str().expect("a plain name");
    transfer(&at, &["--backend", "model", "--dir", dir]);
    let state = std::fs::read(db.path().join("model/state")).expect("the state");
    for other in [["--log2", "9"], ["--batch", "60"], ["--seed", "2"], ["--distribution", "pareto"]]
    {
        let mut arguments = vec!["transfer", "--backend", "model", "--dir", dir];
        for pair in [["--log2", "8"], ["--batch", "50"]] {
            if pair[0] != other[0] {
                arguments.extend(pair);
            }
        }
        arguments.extend(other);
        let line = fail(2, &arguments);
        assert!(line.contains(other[0]) && line.contains("--reset"), "{line}");
    }
    assert_eq!(std::fs::read(db.path().join("model/state")).expect("the state"), state);

    let foreign = folder();
    std::fs::create_dir(foreign.path().join("model")).expect("a folder");
    std::fs::write(foreign.path().join("model/thesis.txt"), "years").expect("a file");
    let name = foreign.path().to_str().expect("a plain name");
    for reset in [&[][..], &["--reset"]] {
        let line = fail(2, &[&["transfer", "--backend", "model", "--dir", name], reset].concat());
        assert!(line.contains("another --dir"), "{line}");
    }
    assert!(foreign.path().join("model/thesis.txt").exists());
}

#[test]
fn a_wrong_balance_is_printed_and_exits_1() {
    let (at, db) = (folder(), folder());
    let dir = db.path().to_str().expect("a plain name");
    transfer(&at, &["--backend", "model", "--dir", dir]);
    // The model's file has no checksum: the last byte of the last balance goes up by 2^56.
    let path = db.path().join("model/state");
    let mut state = std::fs::read(&path).expect("the state");
    *state.last_mut().expect("a balance") += 1;
    std::fs::write(&path, state).expect("written");
    let size = ["--log2", "8", "--batch", "50", "--batches", "1", "--warmup", "0", "--quiet"];
    let line = fail(1, &[&["transfer", "--backend", "model", "--dir", dir], &size[..]].concat());
    assert!(line.contains("wrong result") && line.contains("account"), "{line}");
}

#[test]
fn killed_databases_reopen_at_an_announced_root() {
    let synced = backends().into_iter().map(|backend| (backend, "commit"));
    // A kill takes nothing that was written, synced or not.
    for (backend, durability) in synced.chain([("pleach", "none"), ("pleach", "periodic:50")]) {
        let at = folder();
        let file = at.path().join("result.json");
        let name = file.to_str().expect("a plain name");
        let size = ["--log2", "8", "--batch", "20", "--kills", "3", "--cache-mib", "64"];
        let rest = ["--backend", backend, "--durability", durability, "--quiet", "--json", name];
        succeed(&[&["recover"], &size[..], &rest[..]].concat());
        let run = &read(&file)["runs"][0];
        let count = |field: &str| run[field].as_u64().expect("a number");
        assert_eq!(count("reopened_at_acknowledged") + count("reopened_at_interrupted"), 3);
        assert!(count("batches") > 0, "{backend}");
    }
}

#[test]
fn init_loads_once_and_agrees() {
    let db = folder();
    let dir = db.path().to_str().expect("a plain name");
    let list = backends().join(",");
    let arguments = ["init", "--log2", "10", "--backend", &list, "--dir", dir, "--quiet"];
    let out = succeed(&arguments);
    assert_eq!(out.matches(LOADED).count(), backends().len(), "{out}");
    let out = succeed(&arguments);
    assert_eq!(out.matches("(was there)").count(), backends().len(), "{out}");
}

#[test]
fn device_measures_a_small_file_and_removes_it() {
    let at = folder();
    let name = at.path().to_str().expect("a plain name");
    for io in ["auto", "blocking"] {
        let size = ["--size-mib", "16", "--millis", "10", "--no-fio", "--io", io];
        let out = succeed(&[&["device", "--dir", name], &size[..]].concat());
        for row in ["random read 4 KiB, depth 256", "log write + sync beside 40000 writes/s"] {
            assert!(out.contains(row), "{out}");
        }
    }
    assert_eq!(std::fs::read_dir(at.path()).expect("the folder").count(), 0);
}

/// Arguments, the workload's name, words of its table and the number of its rows.
type Measured<'a> = (&'a [&'a str], &'a str, &'a [&'a str], usize);

/// Runs workloads of single parts: all rows have figures, and nothing is left in the folder.
fn measure(cases: &[Measured<'_>], dir: &str, json: &str) {
    for &(arguments, name, words, rows) in cases {
        // These two have none.
        let rounds: &[&str] =
            if ["erc20", "grind"].contains(&name) { &[] } else { &["--rounds", "2"] };
        let out = succeed(&[arguments, rounds, &["--quiet", "--json", json]].concat());
        assert_eq!(out.contains(" rounds, "), !rounds.is_empty(), "{name}: {out}");
        for word in words {
            assert!(out.contains(word), "{name}, {word}: {out}");
        }
        let result = read(Path::new(json));
        assert_eq!((&result["workload"], &result["schema"]), (&name.into(), &1.into()));
        let found = result["rows"].as_array().expect("rows");
        assert_eq!(found.len(), rows, "{name}: {out}");
        for row in found {
            let timed = row["round_ms"]["p50"].as_f64().expect("a time") > 0.0;
            assert!(timed || row["count"][1].as_f64().expect("a count") > 0.0, "{name}: {row}");
            assert!(row["ratio"].as_f64().expect("a ratio") > 0.0, "{name}: {row}");
        }
    }
    assert_eq!(std::fs::read_dir(dir).expect("the folder").count(), 0, "nothing is left");
}

#[test]
fn single_parts_are_measured_checked_and_leave_nothing_behind() {
    let at = folder();
    let dir = at.path().join("db");
    let dir = dir.to_str().expect("a plain name");
    let json = at.path().join("out.json");
    let json = json.to_str().expect("a plain name");
    let cases: [Measured<'_>; 8] = [
        (
            &["overlay", "--accounts", "300", "--updates", "50,200,900", "--dir", dir],
            "overlay",
            &["root, then overlay", "cold, 200", "900 updates are more"],
            16,
        ),
        (
            &["threshold", "--window", "2,5", "--blocks", "9", "--dir", dir],
            "threshold",
            &["window 5", "its finish", "9 blocks, each commit synced"],
            8,
        ),
        (
            &["flatten", "--layers", "3,8", "--keys-per-layer", "60", "--dir", dir],
            "flatten",
            &["merged commit", "one block of the same", "reads beside the merge"],
            8,
        ),
        (
            &[
                "erc20",
                "--eoa",
                "2500",
                "--contracts",
                "40",
                "--blocks",
                "3",
                "--transfers",
                "200",
                "--dir",
                dir,
            ],
            "erc20",
            &["genesis import", "finish (the root)", "finish + commit", "600 transfers"],
            5,
        ),
        (&["hash"], "hash", &["blake3", "sha-256", "keccak-256", "pleach, 16 a call"], 19),
        (
            &["proof", "--log2", "8", "--count", "1,150,256,300", "--dir", dir],
            "proof",
            &["path", "multiproof", "witness", "range", "300 accounts are more"],
            24,
        ),
        (
            &["auth", "--sizes", "7,300", "--dir", dir],
            "auth",
            &["hashmap", "btreemap", "rolling", "get, 300", "sequential, 7", "set, synced, 300"],
            22,
        ),
        (
            &["grind", "--keys", "600", "--dir", dir],
            "grind",
            &["shared 64", "last byte", "longest path, siblings", "leaf pages"],
            28,
        ),
    ];
    measure(&cases, dir, json);
    // All paths of 64 equal bits and more are at least that long.
    let result = read(Path::new(json));
    let longest = |subject: &str| {
        let rows = result["rows"].as_array().expect("rows");
        let row = rows
            .iter()
            .find(|row| row["case"] == "longest path, siblings" && row["subject"] == subject);
        row.expect("a row")["count"][1].as_f64().expect("a count")
    };
    assert!(longest("shared 64") >= 65.0 && longest("uniform") < 40.0);
    fail(2, &["auth", "--sizes", "1"]);
    // They once loaded everything, printed an empty table and exited 0.
    for (arguments, flag) in [
        (["overlay", "--accounts", "10", "--updates", "1M,11"], "--accounts"),
        (["proof", "--log2", "3", "--count", "9,10"], "--log2"),
    ] {
        let line = fail(2, &arguments);
        assert!(line.contains("has nothing up to") && line.contains(flag), "{line}");
    }
    fail(2, &["proof", "--count", "0"]);
    fail(2, &["grind", "--keys", "3"]);
}

#[test]
fn stores_loads_and_indexes_are_measured_checked_and_leave_nothing_behind() {
    let at = folder();
    let dir = at.path().join("db");
    let dir = dir.to_str().expect("a plain name");
    let json = at.path().join("out.json");
    let json = json.to_str().expect("a plain name");
    let announced = "bank --accounts 500 --transfers 700 --batch 70 --readers 0 --prefetch on \
                     --backend pleach-plain,btreemap --dir";
    let announced: Vec<&str> = announced.split_whitespace().chain([dir]).collect();
    let cases: [Measured<'_>; 4] = [
        (
            &announced,
            "bank",
            &[
                "pleach-plain: the accounts of a batch are announced to it",
                "btreemap: the accounts of a batch cannot be announced to it",
                "load, pleach-plain",
            ],
            10,
        ),
        (
            &["bank", "--accounts", "500", "--transfers", "700", "--batch", "7,300", "--dir", dir],
            "bank",
            &[
                "7 a commit, no commit synced",
                "write-only, survives a kill, pleach",
                "write-only, may be lost on a kill, btreemap",
                "sums beside, conserved",
                "a finish, pleach",
                "1,400 transfers",
            ],
            26,
        ),
        (
            &["import", "--leaves", "30000", "--load-mib", "1", "--kill", "--dir", dir],
            "import",
            &["sorted, 30,000 pairs", "peak RSS", "commits of the same", "was killed half way"],
            12,
        ),
        (
            &["history", "--shards", "none,50", "--len", "200,3000", "--keys", "100", "--dir", dir],
            "history",
            &[
                "append one, no commit synced, survives a kill, no shards",
                "unwind 100, no commit synced, may be lost on a kill, shards of 50",
                "btreemap, 3,000 changes",
            ],
            32,
        ),
    ];
    measure(&cases, dir, json);
    fail(2, &["bank", "--backend", "pleach,nothing"]);
    fail(2, &["bank", "--backend", "pleach", "--peer-arg", "btreemap.a=1"]);
    fail(2, &["history", "--shards", "1"]);
    fail(2, &["import", "--from", "/nonexistent/file"]);
    // Nothing that is said is left undone.
    for (args, why) in [
        (&["--peer-arg", "pleach.a=1"][..], "no such setting"),
        (&["--from", "/dev/null", "--peer-arg", "pleach.a=1"], "no such setting"),
        (&["--from", "/dev/null", "--backend", "btreemap"], "no --backend runs"),
        (&["--kill", "--backend", "btreemap"], "--kill is for pleach"),
    ] {
        let line = fail(2, &[&["import", "--quiet"][..], args].concat());
        assert!(line.contains(why), "{args:?}: {line}");
    }
    let out = succeed(&["import", "--leaves", "100", "--load-mib", "5", "--quiet"]);
    assert!(
        out.contains("pleach: budget 69 MiB") && out.contains("64 MiB are the database's"),
        "{out}"
    );
}

#[test]
fn a_dump_is_imported_from_a_file_and_what_is_no_pair_is_refused_by_its_line() {
    let at = folder();
    let file = at.path().join("pairs");
    let line =
        |id: u8| format!("{} {}\n", format!("{id:02x}").repeat(32), "07".repeat(usize::from(id)));
    let pairs: String = (1..200).rev().map(line).collect();
    std::fs::write(&file, &pairs).expect("written");
    let name = file.to_str().expect("a plain name");
    let out = succeed(&["import", "--from", name, "--quiet"]);
    assert!(out.contains("a file, 199 pairs") && out.contains("commits of the same"), "{out}");
    std::fs::write(&file, pairs + "0102 03\n").expect("written");
    let refused = fail(2, &["import", "--from", name, "--quiet"]);
    assert!(refused.contains("line 200"), "{refused}");
}

#[test]
fn numbers_take_separators_and_units_and_refusals_say_what_is_accepted() {
    let at = folder();
    let document = transfer(
        &at,
        &["--batch", "1_00", "--cache-mib", "64 MiB", "--log-limit-mib", "1m", "--seed", "1,000"],
    );
    let run = &document["runs"][0];
    assert_eq!((&run["batch"], &run["cache_mib"]), (&Value::from(100), &Value::from(64)));
    assert_eq!((&run["log_limit_mib"], &run["seed"]), (&Value::from(1), &Value::from(1000)));
    let cases: [(&[&str], &str); 8] = [
        (&["--cache-mib", "4"], "8 to 16,777,216 MiB"),
        (&["--cache-mib", "99999999999999999999"], "1GiB"),
        (&["--cache-mib", "1XB"], "1GiB"),
        (&["--batch", "25,00"], "25,000"),
        (&["--batch", "many"], "64k"),
        (&["--batches", "1.5"], "auto or a number"),
        (&["--threads", "2000"], "1 to 1,024"),
        (&["--log2", "2^20"], "1 to 32"),
    ];
    for (arguments, words) in cases {
        let line = fail(2, &[&["transfer", "--backend", "model"], arguments].concat());
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn folders_that_cannot_be_used_are_refused_with_a_cure() {
    for (dir, words) in [
        ("/etc/passwd", "is a file"),
        ("/etc/passwd/db", "cannot be made"),
        ("/proc", "no file can be made in /proc"),
    ] {
        for command in ["transfer", "device"] {
            let line = fail(2, &[command, "--dir", dir]);
            assert!(line.contains("--dir"), "{line}");
            assert!(command == "device" || line.contains(words), "{line}");
        }
    }
}

#[test]
fn a_database_that_is_missing_is_not_made_anew() {
    for backend in backends() {
        let (at, db) = (folder(), folder());
        let dir = db.path().to_str().expect("a plain name");
        let first = transfer(&at, &["--backend", backend, "--dir", dir]);
        let inside = db.path().join(backend);
        std::fs::remove_dir_all(&inside).expect("removed");
        let size = ["--log2", "8", "--batch", "50", "--cache-mib", "64", "--quiet"];
        let again = [&["transfer", "--backend", backend, "--dir", dir], &size[..]].concat();
        for _ in 0..2 {
            let line = fail(2, &again);
            assert!(line.contains("missing") && line.contains("--reset"), "{line}");
            // The second time, an empty folder is there instead.
            std::fs::create_dir_all(&inside).expect("made");
        }
        let reset = transfer(&at, &["--backend", backend, "--dir", dir, "--reset"]);
        assert_eq!(reset["runs"][0]["root"], first["runs"][0]["root"]);
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_a_closed_pipe_is_none() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let db = folder();
    let dir = db.path().to_str().expect("a plain name");
    let tiny = ["--log2", "8", "--batch", "50", "--batches", "2", "--cache-mib", "64", "--quiet"];
    let run = [&["transfer", "--dir", dir], &tiny[..]].concat();
    succeed(&run);
    let bench = env!("CARGO_BIN_EXE_nomt-bench");
    let commands: [&[&str]; 3] = [&run, &["--help"], &["transfer", "--help"]];
    for arguments in commands {
        let mut command = Command::new(bench);
        let output = command.args(arguments).stdout(full()).output().expect("it starts");
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}\n{err}");
        assert!(err.lines().count() == 1 && err.contains("standard output"), "{err}");

        // A reader that is gone before the first byte.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(bench);
        let output = command.args(arguments).stdout(writer).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
    }
    let output = bench_output(&[&run[..], &["--json", "/dev/full"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let err = text(&output.stderr);
    assert!(err.lines().count() == 1 && err.contains("/dev/full"), "{err}");
    // Nobody can be told of a wrong argument here, but the exit code remains.
    let mut command = Command::new(bench);
    let output = command.args(["transfer", "--batch", "0"]).stderr(full()).status();
    assert_eq!(output.expect("it starts").code(), Some(2));
}

#[test]
fn help_begins_with_what_the_program_is_and_ends_with_examples() {
    let help = succeed(&["--help"]);
    assert!(help.starts_with("Measures the state database"), "{help}");
    assert!(help.contains("Examples:") && help.contains("nomt-bench transfer --"), "{help}");
    assert!(help.contains("Exit codes:"), "{help}");
}

#[test]
fn the_help_of_a_workload_names_all_backends() {
    let [merkle, flat] =
        [["nomt", "sp-trie", "jmt"].as_slice(), &["redb", "fjall", "sqlite", "mdbx", "rocksdb"]];
    for (workload, peers) in
        [("transfer", [merkle, &[]]), ("erc20", [merkle, flat]), ("bank", [&[], flat])]
    {
        let help = succeed(&[workload, "--help"]);
        for name in peers.concat() {
            assert!(help.contains(name), "{workload}, {name}: {help}");
        }
    }
}

#[test]
fn counts_are_printed_as_counts_and_nothing_as_0() {
    let size = ["--log2", "10", "--batch", "100", "--batches", "2", "--cache-mib", "64", "--quiet"];
    let out = succeed(&[&["transfer"], &size[..]].concat());
    let cell = |name: &str| {
        let line = out.lines().find(|line| line.trim_start().starts_with(name));
        line.and_then(|line| line.split_whitespace().last()).expect("a row").to_owned()
    };
    for row in ["leaf misses", "upper trie pages read", "pages reread", "checkpoints"] {
        let count = cell(row);
        assert!(count.bytes().all(|byte| byte.is_ascii_digit() || byte == b','), "{row} {count}");
    }
    assert!(!out.contains(" 0.000"), "{out}");
}
