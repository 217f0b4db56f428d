//! `nomt-bench` as a user runs it: exit codes, errors of one line, a complete tiny run of each workload, golden roots,
//! reuse of a folder.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Roots after the load and after 4 batches of 100 transfers on 2^10 accounts, 25 % new: `docs/workloads.md` has them,
/// too. A change is a new version of the workload.
const LOADED: &str = "48c02c35a8b79dbef9859f84445b79995cdd18754c18f3394fa73708905b69a9";
const GOLDEN: [(&str, &str, &str); 5] = [
    ("1", "uniform", "4098751e56fe63ae788030c690dd734319b71d1247250b93f6dec8282f7a0da0"),
    ("2", "uniform", "529cb6ab99cc9c97b849dc85d14d58f4eea74639cf039f42373ecc46f87290ce"),
    ("3", "uniform", "1f7a8ce0123b1783f327df79e7b3eaf5f48817322a9631d1e716a8972e794997"),
    ("1", "zipf:0.99", "3bc9d3ec377b6417580f20f301913b9b00a8197ce065111c32d10597e302d625"),
    ("1", "pareto", "39995ec78793a05474e1c9c736d79ca0619096c9f89a0b9f785773de02fb1c3a"),
];
/// Root after 24 batches of a soak: 2^10 accounts, batches of 100, 25 % new, seed 1.
const SOAKED: &str = "71f195d9230df7238d9fd16839f5ceb51b2a97fb77b8cc41b68d537d482499ab";

/// Engines of this build whose roots are pleach's.
fn backends() -> &'static str {
    if cfg!(feature = "peer-nomt") { "model,pleach,nomt" } else { "model,pleach" }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn output(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nomt-bench"));
    command.args(arguments).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must succeed, and returns what it printed.
fn succeed(line: &str) -> String {
    let output = output(&words(line));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{line}\n{out}\n{err}");
    out
}

/// Runs a command that must fail with this code and one line, and returns the line.
fn fail(code: i32, line: &str) -> String {
    let output = output(&words(line));
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}\n{err}");
    assert_eq!(err.lines().count(), 1, "{line}\n{err}");
    assert!(err.starts_with("nomt-bench: ") && output.stdout.is_empty(), "{line}\n{err}");
    err
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn name(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

/// Runs a workload and returns its document.
fn run(line: &str) -> Value {
    let at = folder();
    let file = at.path().join("out.json");
    succeed(&format!("{line} --quiet --json {}", name(&file)));
    let text = std::fs::read_to_string(&file).expect("the result is there");
    serde_json::from_str(&text).expect("the result is JSON")
}

/// A tiny transfer.
fn transfer(more: &str) -> Value {
    let mut line = format!("transfer {more}");
    for (flag, value) in [
        ("--log2", "8"),
        ("--batch", "50"),
        ("--batches", "3"),
        ("--warmup", "1"),
        ("--cache-mib", "64"),
        ("--log-limit-mib", "1"),
    ] {
        if !words(more).contains(&flag) {
            line.extend([" ", flag, " ", value]);
        }
    }
    run(&line)
}

fn runs(document: &Value) -> &[Value] {
    document["runs"].as_array().expect("runs")
}

fn root(document: &Value, run: usize) -> &str {
    runs(document)[run]["root"].as_str().expect("a root")
}

/// All names of a run's figures, behind their cases.
fn figures(run: &Value) -> Vec<String> {
    let list = run["figures"].as_array().expect("figures");
    let part = |figure: &Value, part: &str| figure[part].as_str().expect("a text").to_owned();
    list.iter().map(|one| format!("{}/{}", part(one, "case"), part(one, "name"))).collect()
}

fn figure(run: &Value, wanted: &str) -> f64 {
    let list = run["figures"].as_array().expect("figures");
    let found = list.iter().find(|figure| figure["name"] == wanted);
    found.and_then(|figure| figure["p50"].as_f64()).unwrap_or_else(|| panic!("{wanted}: {run}"))
}

#[test]
fn a_bare_call_prints_help() {
    let help = succeed("");
    assert!(help.starts_with("Measures the state database"), "{help}");
    assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    assert!(succeed("bank --help").contains("redb"));
}

#[test]
fn bad_arguments_exit_2_with_one_line_that_says_what_to_change() {
    for line in [
        "wander",
        "transfer --log2 99",
        "transfer --log2 2^20",
        "transfer --batch 0",
        "transfer --batches 0",
        "transfer --batches 1.5",
        "transfer --fresh 101",
        "transfer --distribution zipf:0",
        "transfer --durability periodic:0",
        "transfer --witness maybe",
        "transfer --verify-every 0",
        "transfer --threads 2000",
        "transfer --reset",
        "soak --minutes 0",
        "soak --minutes 1 --batches 5",
        "soak --backend model --maintenance",
        "block --rate 0",
        "proof --count 0",
        "bank --backend pleach,nothing",
        "__job",
    ] {
        fail(2, line);
    }
    for (line, cure) in [
        ("transfer --cache-mib 4", "1GiB"),
        ("transfer --batch many", "64k"),
        ("transfer --backend model,model", "--beside"),
        ("transfer --backend abacus", "this build has"),
        ("transfer --backend model --peer-arg nomt.readers=16", "--backend"),
        ("transfer --backend model --peer-arg model.speed=16", "has these settings"),
        ("transfer --backend model --prefetch off --ahead", "leave one of them out"),
        ("transfer --backend pleach-plain", "no root"),
        ("block --backend pleach-plain", "no root"),
        ("recover --backend model", "survive no kill"),
        ("block --distribution zipf:3", "zipf"),
        ("transfer --backend model --report /nonexistent/folder/report.html", "report.html"),
        ("transfer --beside /nonexistent/nomt-bench", "--beside"),
        ("transfer --dir /etc/passwd/db", "--dir"),
        ("transfer --dir /proc", "--dir"),
        ("init --backend model", "--dir"),
        ("init --backend model --log2 32 --keep", "free"),
        ("transfer --cache-mib 16777216", "--cache-mib"),
        ("block --log2 4", "--log2"),
        ("soak --cache-mib 64 --batch 2000 --log2 16 --session-batches 200", "--session-batches"),
        ("device --dir /nonexistent/folder", "--dir"),
    ] {
        let error = fail(2, line);
        assert!(error.contains(cure), "{line}: {error}");
    }
    if !cfg!(feature = "peer-redb") {
        assert!(fail(2, "bank --backend redb").contains("`--features peer-redb`"));
    }
}

#[test]
fn golden_roots_hold_on_every_engine() {
    for (seed, distribution, last) in GOLDEN {
        let document = transfer(&format!(
            "--log2 10 --batch 100 --batches 4 --warmup 0 --seed {seed} --distribution {distribution} --backend {}",
            backends()
        ));
        for run in 0..runs(&document).len() {
            assert_eq!(root(&document, run), last, "{seed} {distribution}");
        }
    }
    let at = folder();
    let line =
        format!("init --log2 10 --cache-mib 64 --backend {} --dir {}", backends(), name(at.path()));
    let loaded = run(&line);
    for run in 0..runs(&loaded).len() {
        assert_eq!(root(&loaded, run), LOADED);
    }
}

#[test]
fn all_engines_agree_and_all_figures_are_there() {
    let document = transfer(&format!("--backend {} --alternate 1", backends()));
    assert_eq!(document["schema"], 2);
    assert_eq!(document["workload"], "transfer");
    let notes = document["notes"].to_string();
    assert!(notes.contains("are the same: model"), "{notes}");
    for run in runs(&document) {
        let names = figures(run);
        for wanted in [
            "load/accounts",
            "/transfers, drained",
            "/transfers, acknowledged",
            "/distinct keys, drained",
            "/execute",
            "/finish",
            "/commit",
            "/finish + commit",
            "/processor time of a key, all threads",
            "/device reads of a key",
            "/bytes written of a key",
            "/peak resident memory",
            "/size of the files",
        ] {
            assert!(names.iter().any(|name| name == wanted), "{wanted}: {names:?}");
        }
        assert!(figure(run, "finish") > 0.0);
        let notes = run["notes"].to_string();
        // 2^8 loaded, and 4 batches of 12 new ones.
        assert!(notes.contains("304 balances are those of a replay, all of them"), "{notes}");
        assert!(notes.contains("their sum is 256,000"), "{notes}");
        if run["backend"] != "model" {
            assert!(notes.contains("3 of 3 witnesses verified"), "{notes}");
        }
        assert_eq!(run["series"]["batch_ms"].as_array().map(Vec::len), Some(3));
    }
}

#[test]
fn every_flag_that_steers_an_engine_leaves_the_roots_alone() {
    let plain = transfer("--backend model");
    for variant in [
        "--io blocking",
        "--prefetch off",
        "--witness off",
        "--overlay-window 2",
        "--ahead",
        "--durability periodic:20",
        "--durability none --threads 1",
        "--trie-cache-kib 0 --in-flight 1 --verify-every 2",
        "--alternate 2",
        "--alternate 100",
    ] {
        let document = transfer(&format!("--backend {} {variant}", backends()));
        for run in 0..runs(&document).len() {
            assert_eq!(root(&document, run), root(&plain, 0), "{variant}");
        }
    }
    let auto =
        transfer("--backend pleach,model --batches auto --warmup auto --alternate 9 --batch 400");
    assert_eq!(root(&auto, 0), root(&auto, 1));
    let batches =
        |run: usize| runs(&auto)[run]["series"]["batch_ms"].as_array().expect("a series").len();
    assert!(batches(0) == batches(1) && batches(0) >= 40, "{} {}", batches(0), batches(1));
}

#[test]
fn two_builds_stand_beside_each_other_with_the_noise() {
    let document =
        transfer(&format!("--beside {} --alternate 1", env!("CARGO_BIN_EXE_nomt-bench")));
    let names: Vec<&str> =
        runs(&document).iter().filter_map(|run| run["backend"].as_str()).collect();
    assert_eq!(names, ["pleach", "other build", "pleach again"]);
    assert!(root(&document, 0) == root(&document, 1) && root(&document, 0) == root(&document, 2));
}

#[test]
fn soaks_agree_and_old_sessions_read_old_balances() {
    let line =
        "--log2 10 --batch 100 --batches 24 --warmup 0 --seed 1 --cache-mib 64 --log-limit-mib 1";
    let document = run(&format!("soak {line} --backend {}", backends()));
    for at in 0..runs(&document).len() {
        assert_eq!(root(&document, at), SOAKED);
    }
    let notes = runs(&document)[1]["notes"].to_string();
    assert!(notes.contains("sessions of 16 batches read"), "{notes}");
    assert!(notes.contains("their sum is 1,024,000"), "{notes}");
    let maintained =
        run("soak --log2 8 --batch 50 --cache-mib 64 --minutes 0.08 --history 64 --maintenance");
    let notes = runs(&maintained)[0]["notes"].to_string();
    assert!(notes.contains("scrubs and backups, all of them clean"), "{notes}");
    let timed = run("soak --log2 8 --batch 50 --cache-mib 64 --minutes 0.02 --backend model");
    assert!(figure(&runs(&timed)[0], "batches") > 3.0);
}

#[test]
fn a_folder_is_reused_and_the_stream_goes_on() {
    for backend in backends().split(',') {
        let at = folder();
        let with =
            |more: &str| transfer(&format!("--backend {backend} --dir {} {more}", name(at.path())));
        let first = with("");
        let second = with("--batches 2 --warmup 0");
        assert!(
            runs(&second)[0]["notes"].to_string().contains("loaded by a run before"),
            "{second}"
        );
        // The same six batches in one go.
        let whole = transfer("--backend model --batches 5");
        assert_eq!(root(&second, 0), root(&whole, 0), "{backend}");
        assert_eq!(root(&with("--reset"), 0), root(&first, 0), "{backend}");
        let small = "--batch 50 --batches 1 --cache-mib 64 --quiet";
        let line = |more: &str| {
            format!("transfer --backend {backend} --dir {} {small} {more}", name(at.path()))
        };
        for other in ["--log2 9", "--log2 8 --seed 2", "--log2 8 --distribution pareto"] {
            assert!(fail(2, &line(other)).contains("--reset"), "{other}");
        }
        std::fs::remove_dir_all(at.path().join(backend)).expect("removed");
        let missing = fail(2, &line("--log2 8"));
        assert!(missing.contains("--reset"), "{missing}");
    }
    let foreign = folder();
    std::fs::create_dir(foreign.path().join("model")).expect("a folder");
    std::fs::write(foreign.path().join("model/thesis.txt"), "years").expect("a file");
    for reset in ["", "--reset"] {
        let line =
            format!("transfer --backend model --log2 8 --dir {} {reset}", name(foreign.path()));
        assert!(fail(2, &line).contains("another --dir"));
    }
    // A file of another program, or of another version, once let the folder beside it be removed.
    for other in ["{\"chapters\":9}", "{\"schema\":1,\"loaded\":null}", "no JSON"] {
        std::fs::write(foreign.path().join("model.json"), other).expect("a file");
        let line = format!("transfer --backend model --log2 8 --dir {}", name(foreign.path()));
        assert!(fail(2, &format!("{line} --reset")).contains("not of this version"), "{other}");
    }
    assert!(foreign.path().join("model/thesis.txt").exists());
}

#[test]
fn a_wrong_balance_is_printed_and_exits_1() {
    let at = folder();
    transfer(&format!("--backend model --dir {}", name(at.path())));
    // The model's file has no checksum: the last byte of the last balance goes up by 2^56.
    let path = at.path().join("model/state");
    let mut bytes = std::fs::read(&path).expect("the state");
    *bytes.last_mut().expect("a byte") += 1;
    std::fs::write(&path, bytes).expect("written");
    let line = format!(
        "transfer --backend model --log2 8 --batch 50 --batches 1 --cache-mib 64 --quiet --dir {}",
        name(at.path())
    );
    let output = output(&words(&line));
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("wrong result"), "{err}");
}

#[test]
fn kills_are_survived() {
    for durability in ["commit", "none"] {
        let document = run(&format!(
            "recover --log2 10 --batch 200 --kills 2 --cache-mib 64 --durability {durability} \
             --backend pleach,pleach-plain,model{}{}{}",
            if cfg!(feature = "peer-redb") { ",redb" } else { "" },
            if cfg!(feature = "peer-fjall") { ",fjall" } else { "" },
            if cfg!(feature = "peer-sqlite") { ",sqlite" } else { "" }
        ));
        let notes = document["notes"].to_string();
        assert!(notes.contains("model is left out: its commits survive no kill"), "{notes}");
        assert!(runs(&document).len() >= 2);
        for run in runs(&document) {
            let notes = run["notes"].to_string();
            assert!(notes.contains("2 kills:") && notes.contains("those of a replay"), "{notes}");
            assert!(figure(run, "open after a kill") > 0.0);
        }
    }
}

#[test]
fn blocks_in_closed_and_open_loop() {
    let size = "--log2 12 --accounts 30 --written 35 --read 50 --warmup 3 --cache-mib 64";
    let closed = run(&format!(
        "block {size} --blocks 20 --witness off --backend pleach,pleach-plain,model --alternate 4"
    ));
    let notes = closed["notes"].to_string();
    assert!(notes.contains("are the same: model, pleach, pleach-plain"), "{notes}");
    assert!(figure(&runs(&closed)[0], "finish + commit") > 0.0);
    let open =
        run(&format!("block {size} --rate 50 --minutes 0.05 --backend pleach --witness off"));
    let names = figures(&runs(&open)[0]);
    for case in ["alone", "beside backups", "beside scrubs"] {
        let wanted = format!("{case}, 50 blocks a second/from due to committed");
        assert!(names.contains(&wanted), "{wanted}: {names:?}");
    }
}

#[test]
fn a_page_has_everything_inside() {
    let at = folder();
    let page = at.path().join("page.html");
    let document = transfer(&format!("--backend {} --report {}", backends(), name(&page)));
    let page = std::fs::read_to_string(&page).expect("the page");
    assert!(page.contains(root(&document, 0)));
    // The name of SVG is no address.
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for elsewhere in ["src=", "http:", "https:", "<link", "@import"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
}

#[test]
fn engines_that_end_at_different_batches_are_said() {
    let at = folder();
    let dir = name(at.path());
    let first = transfer(&format!("--backend pleach --dir {dir}"));
    assert!(!first["notes"].to_string().contains("compared"), "{first}");
    let notes = transfer(&format!("--backend pleach,model --dir {dir}"))["notes"].to_string();
    assert!(notes.contains("are now after: model 4 batches, pleach 8 batches"), "{notes}");
}

#[test]
fn readmes_tables_stand_between_the_marks() {
    let at = folder();
    let [results, table] = ["results.json", "table.md"].map(|file| at.path().join(file));
    let document =
        run("bank --accounts 500 --transfers 500 --batch 1,100 --rounds 1 --cache-mib 64 \
                        --durability commit --backend pleach,pleach-plain,model");
    std::fs::write(&results, format!("[{document}]")).expect("written");
    std::fs::write(&table, "before <!-- figures -->old<!-- /figures --> after").expect("written");
    succeed(&format!("report {} --readme {}", name(&results), name(&table)));
    let text = std::fs::read_to_string(&table).expect("the table");
    assert!(text.starts_with("before <!-- figures -->\n") && !text.contains("old<"), "{text}");
    assert!(text.ends_with("\n<!-- /figures --> after"), "{text}");
    for table in [
        "| with a root, each commit synced | Pleach |",
        "| plain stores, each commit synced | Pleach |",
    ] {
        assert!(text.contains(table), "{text}");
    }
    let words = "| transfers a second, 100 a commit, 500 accounts, a budget of 64 MiB | ";
    assert_eq!(text.matches(words).count(), 2, "{text}");
}

/// What was measured after the system's page cache was emptied says so in its row.
#[test]
fn rows_with_cold_pages_say_so() {
    let at = folder();
    let [results, table] = ["results.json", "table.md"].map(|file| at.path().join(file));
    let work = "import --leaves 300 --cache-mib 64 --backend pleach";
    let document = run(work)
        .to_string()
        .replace("\"import\",\"--leaves\"", "\"import\",\"--drop-caches\",\"--leaves\"");
    assert!(document.contains("--drop-caches"), "{document}");
    std::fs::write(&results, format!("[{document}]")).expect("written");
    std::fs::write(&table, "<!-- figures --><!-- /figures -->").expect("written");
    succeed(&format!("report {} --readme {}", name(&results), name(&table)));
    let text = std::fs::read_to_string(&table).expect("the table");
    assert!(text.contains("300 pairs, cold, a budget of 64 MiB |"), "{text}");
}

/// A row is of one machine, and rows of two can stand below each other; figures of two commits say nothing together.
#[test]
fn results_of_two_machines_are_named_and_of_two_commits_refused() {
    let at = folder();
    let [results, table] = ["results.json", "README.md"].map(|file| at.path().join(file));
    let one = run("import --leaves 300 --cache-mib 64 --rounds 1 --backend pleach");
    let report = format!("report {} --readme {}", name(&results), name(&table));
    let write = |field: &str, value: &str| {
        let mut other = one.clone();
        *other.pointer_mut(field).expect("a field") = value.into();
        std::fs::write(&results, Value::from(vec![one.clone(), other]).to_string())
            .expect("written");
        std::fs::write(&table, "<!-- figures --><!-- /figures -->").expect("written");
    };
    write("/machine/kernel", "another");
    succeed(&report);
    let text = std::fs::read_to_string(&table).expect("the table");
    // The second one's row was dropped, and no row said of which machine it is.
    for row in ["300 pairs, a budget of 64 MiB (A) |", "300 pairs, a budget of 64 MiB (B) |"] {
        assert_eq!(text.matches(row).count(), 1, "{row}: {text}");
    }
    assert!(text.contains("Machine A: kernel "), "{text}");
    assert!(text.contains("; machine B: kernel another, "), "{text}");
    let page = at.path().join("page.html");
    succeed(&format!("report {} --page {}", name(&results), name(&page)));
    let text = std::fs::read_to_string(&page).expect("the page");
    assert!(text.contains("\"machine\":\"A\"") && text.contains("\"machine\":\"B\""), "{text}");
    write("/commit", "another");
    assert!(fail(2, &report).contains("of different commits"));
    succeed(&format!("{report} --mixed"));
}

/// Of two rows with the same words the second one was dropped, whatever differed.
#[test]
fn rows_of_the_same_words_say_what_differs() {
    let at = folder();
    let [results, table] = ["results.json", "README.md"].map(|file| at.path().join(file));
    let one = run("transfer --log2 8 --batch 25000 --batches 1 --cache-mib 64 --backend pleach");
    let with = |warmup: &str| {
        let mut document = one.clone();
        document["arguments"] = json!(["transfer", "--log2", "8", "--warmup", warmup]);
        document
    };
    let documents = Value::from(["5", "1", "1", "0"].map(with).to_vec());
    std::fs::write(&results, documents.to_string()).expect("written");
    std::fs::write(&table, "<!-- figures --><!-- /figures -->").expect("written");
    succeed(&format!("report {} --readme {} --mixed", name(&results), name(&table)));
    let text = std::fs::read_to_string(&table).expect("the table");
    let count = |flag| text.matches(&format!("a budget of 64 MiB, --warmup {flag} |")).count();
    assert_eq!((count(5), count(1)), (1, 2), "{text}");
    assert_eq!(text.matches(", right after the load, a budget of 64 MiB |").count(), 1, "{text}");
}

/// A line went from steady states to a larger one right after its load.
#[test]
fn a_plot_has_no_run_right_after_a_load() {
    let at = folder();
    let results = at.path().join("results.json");
    let one = run("transfer --log2 8 --batch 25000 --batches 1 --cache-mib 64 --backend pleach");
    let of = |log2: &str, warmup: &str| {
        let mut document = one.clone();
        document["arguments"] = json!(["transfer", "--log2", log2, "--warmup", warmup]);
        document
    };
    let bank = run("bank --accounts 100 --transfers 100 --batch 1,100 --rounds 1 --durability \
                    commit --cache-mib 64 --backend pleach");
    let documents = Value::from(vec![of("8", "1"), of("9", "1"), of("10", "0"), bank]);
    std::fs::write(&results, documents.to_string()).expect("written");
    succeed(&format!("report {} --plots {} --mixed", name(&results), name(at.path())));
    let plot = at.path().join("throughput-by-state.svg");
    let plot = std::fs::read_to_string(plot).expect("the plot");
    let sizes = ["2^8", "2^9", "2^10"].map(|size| plot.contains(&format!("\n{size}\n")));
    assert_eq!(sizes, [true, true, false], "{plot}");
}

#[test]
fn a_size_that_the_command_does_not_name_is_its_default() {
    let at = folder();
    let [results, table] = ["results.json", "README.md"].map(|file| at.path().join(file));
    let mut one =
        run("erc20 --eoa 1000 --contracts 100 --blocks 2 --transfers 100 --cache-mib 64 \
                       --backend pleach");
    one["arguments"] = json!(["erc20"]);
    std::fs::write(&results, Value::from(vec![one]).to_string()).expect("written");
    std::fs::write(&table, "<!-- figures --><!-- /figures -->").expect("written");
    succeed(&format!("report {} --readme {}", name(&results), name(&table)));
    let text = std::fs::read_to_string(&table).expect("the table");
    let row = "token transfers a second, between 2,000 of 2,000,000 accounts, a budget of 64 MiB |";
    assert!(text.contains(row), "{text}");
}

/// Two builds outside of a checkout passed as one commit, results of any schema as those of this one, and a long name
/// ended the program with 101.
#[test]
fn results_that_say_too_little_or_too_much_are_refused() {
    let at = folder();
    let [results, table] = ["results.json", "README.md"].map(|file| at.path().join(file));
    let mut one = run("import --leaves 300 --cache-mib 64 --rounds 1 --backend pleach");
    let report = format!("report {} --readme {}", name(&results), name(&table));
    let write = |documents: &[&Value]| {
        std::fs::write(&results, json!(documents).to_string()).expect("written");
        std::fs::write(&table, "<!-- figures --><!-- /figures -->").expect("written");
    };
    one["commit"] = "unknown".into();
    write(&[&one]);
    succeed(&report);
    write(&[&one, &one]);
    assert!(fail(2, &report).contains("of unknown commits"));
    succeed(&format!("{report} --mixed"));
    for schema in [1, 3, 99] {
        one["schema"] = schema.into();
        write(&[&one]);
        for command in [&report, &format!("report {}", name(&results))] {
            let line = fail(2, command);
            assert!(line.contains(&format!("results of schema {schema}, ")), "{line}");
        }
    }
    one["schema"] = 2.into();
    for field in
        ["/workload", "/runs/0/backend", "/runs/0/figures/0/name", "/runs/0/figures/0/case"]
    {
        let mut long = one.clone();
        *long.pointer_mut(field).expect("a field") = "x".repeat(100_000).into();
        write(&[&long]);
        let line = fail(2, &format!("report {}", name(&results)));
        assert!(line.contains("a name of 100000 bytes"), "{field}: {line}");
    }
}

/// 30 rows of 190 columns had no result before them.
#[test]
fn a_bank_has_its_result_first_and_a_table_that_a_terminal_has_room_for() {
    let text = succeed(
        "bank --accounts 500 --transfers 500 --batch 1,100 --rounds 1 --cache-mib 64 \
         --backend pleach,pleach-plain,model",
    );
    let mut lines = text.lines().skip_while(|line| line.starts_with("NOT A RELEASE"));
    for engine in ["pleach", "pleach-plain", "model"] {
        let line = lines.next().expect("a result");
        let (start, end) =
            (format!("{engine}: "), ", a second, 1 / 100 a commit, no commit synced; ");
        assert!(line.starts_with(&start) && line.contains(end), "{line}");
    }
    let table = lines.skip(1).take_while(|line| !line.starts_with("pleach ("));
    let widths: Vec<_> = table.map(|line| line.chars().count()).collect();
    assert!(widths.len() > 30 && widths.iter().all(|width| *width <= 120), "{text}");
}

#[test]
fn manual_pages_and_completions_name_every_command() {
    let at = folder();
    succeed(&format!("man {}", name(at.path())));
    for command in ["transfer", "block", "bank", "device", "compare", "report"] {
        let page = at.path().join(format!("nomt-bench-{command}.1"));
        assert!(std::fs::read_to_string(page).expect("a page").contains("SYNOPSIS"), "{command}");
        assert!(succeed("completions bash").contains(command), "{command}");
    }
}

/// README's table had ratios under the names of the others, of commits that survive different things.
#[test]
fn the_rows_of_the_readme_and_the_plots_are_those_of_the_results() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let (docs, at) = (workspace.join("docs"), folder());
    if !docs.exists() {
        return; // A package alone.
    }
    let read = |path: &Path| std::fs::read_to_string(path).expect("a text");
    let [page, tables] = ["results.html", "tables.md"].map(|file| at.path().join(file));
    std::fs::write(&tables, "<!-- figures -->\n<!-- /figures -->\n").expect("written");
    let results = docs.join("data/results.json");
    let [results, to] = [&*results, at.path()].map(name);
    let line = format!("report {results} --page {} --readme {}", name(&page), name(&tables));
    succeed(&format!("{line} --plots {to}"));
    for made in ["throughput-by-state.svg", "throughput-by-batch.svg"] {
        let same = read(&at.path().join(made)) == read(&docs.join("data").join(made));
        assert!(same, "{made} is not that of the results: docs/performance.md says how it is made");
    }
    assert!(read(&page).contains("mainnet blocks a second"), "the page has the tables");
    let rows = read(&tables);
    // README has some of the rows, word by word.
    let readme = read(&workspace.join("README.md"));
    // Its tables begin with these words; what stands between head and rows is not compared.
    let tables = readme.split("\n\n").filter(|part| part.contains("commit synced |"));
    let chosen = tables.flat_map(str::lines).filter(|line| line.starts_with("| "));
    assert!(chosen.clone().count() >= 12);
    for row in chosen {
        assert!(rows.lines().any(|line| line == row), "not of the results: {row}");
    }
    assert!(rows.contains("token transfers a second, between 2,000 of 200,000 accounts"), "{rows}");
    let rows = rows.lines().filter(|line| line.starts_with("| ") && line.contains(" a commit, "));
    assert!(rows.clone().count() >= 6);
    // The best of each row is bold, and there is one where several have a value.
    for row in rows {
        let values = row.split('|').skip(2).filter(|cell| !cell.trim().is_empty()).count();
        assert_eq!(row.matches("**").count(), if values > 1 { 2 } else { 0 }, "{row}");
    }
}

/// "device reads of a key, times" says nothing to a newcomer.
#[test]
fn rows_are_in_words_and_the_last_line_names_the_page_that_explains_them() {
    let out = succeed(
        "transfer --log2 8 --batch 50 --batches 3 --warmup 1 --cache-mib 64 --backend pleach --quiet",
    );
    for words in ["reads of the device, a key ", "bytes written, a key ", "finish and commit "] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let last = out.lines().next_back().expect("a line");
    assert!(last.starts_with("docs/workloads.md") && last.contains("transfer"), "{last}");
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_a_closed_pipe_is_none() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let bench = env!("CARGO_BIN_EXE_nomt-bench");
    let tiny = "transfer --backend model --log2 8 --batch 50 --batches 2 --cache-mib 64 --quiet";
    let output = Command::new(bench).args(words(tiny)).stdout(full()).output().expect("it starts");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.lines().count() == 1 && err.contains("standard output"), "{err}");
    // A reader that is gone before the first byte.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Command::new(bench).args(words(tiny)).stdout(writer).output().expect("it starts");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

/// A run on tmpfs said that its commits survive a power cut, since syncs are free there, and then that they survive a
/// kill, with the reason at the end.
#[test]
fn results_from_memory_say_so() {
    let Ok(shared) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIPPED: there is no /dev/shm here");
        return;
    };
    let document = transfer(&format!("--dir {}", name(shared.path())));
    if document["machine"]["file_system"] != "tmpfs" {
        eprintln!("SKIPPED: /dev/shm is no tmpfs here");
        return;
    }
    for run in
        document["runs"].as_array().expect("runs").iter().filter(|run| run["backend"] != "model")
    {
        assert_eq!(run["survives"], "nothing", "{run}");
    }
    let line = format!("transfer --log2 8 --batch 9 --batches 2 --dir {}", name(shared.path()));
    let out = succeed(&format!("{line} --reset --quiet"));
    assert!(out.starts_with("WARNING: the folder is on tmpfs"), "{out}");
    assert!(out.contains("with a root each, a commit survives nothing\n"), "{out}");
    let own = "transfer --log2 8 --batch 9 --batches 2 --warmup 0 --backend pleach --keep";
    let mut command = Command::new(env!("CARGO_BIN_EXE_nomt-bench"));
    let here = folder();
    let output =
        command.args(words(own)).env("TMPDIR", shared.path()).current_dir(here.path()).output();
    assert_eq!(output.expect("the binary starts").status.code(), Some(0));
    assert_eq!(
        std::fs::read_dir(here.path()).expect("a folder").count(),
        1,
        "beside the user's files"
    );
}

/// A database got a folder `pleach`, and a refused folder kept `nomt-bench.lock`.
#[test]
fn a_folder_that_is_refused_stays_as_it_is() {
    let (made, files) = (folder(), folder());
    let of = |at: &Path| {
        let names =
            std::fs::read_dir(at).expect("a folder").map(|one| one.expect("one").file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let tiny = "--log2 8 --batch 9 --batches 2 --warmup 0 --backend pleach --quiet";
    succeed(&format!("transfer {tiny} --dir {}", name(made.path())));
    let database = made.path().join("pleach");
    let before = of(&database);
    for workload in ["transfer", "bank", "device"] {
        let line = match workload {
            "transfer" => format!("transfer {tiny}"),
            other => other.to_owned(),
        };
        let line = fail(2, &format!("{line} --dir {}", name(&database)));
        assert!(line.contains("is a database: choose another --dir"), "{line}");
        assert_eq!(of(&database), before, "{workload}");
    }
    std::fs::create_dir(files.path().join("pleach")).expect("made");
    let line = fail(2, &format!("transfer {tiny} --dir {}", name(files.path())));
    assert!(line.contains("is no benchmark's"), "{line}");
    assert_eq!(of(files.path()).len(), 1, "{:?}", of(files.path()));
}
