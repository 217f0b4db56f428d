//! What the recorder of the crate `metrics` is given is what has happened, over opens of a process, and by database.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use pleach::metrics::MetricKind;
use pleach::status::Phase;
use pleach::{Access, Db, Metrics, Options, SessionOptions, Value, observe};

fn open(folder: &Path, read_only: bool) -> Db {
    let options = Options::new(folder).create(!read_only).read_only(read_only);
    Db::open(options.small().cache_mib(16)).expect("opened")
}

fn commits(db: &Db, count: u64) {
    for number in 0..count {
        let value = Value::from(number.to_be_bytes().as_slice());
        let put = Access::write([u8::try_from(number).expect("few"); 32], Some(value));
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish([put]).expect("finished").commit().expect("committed");
    }
}

/// The counters of a rendered text with a label of a folder.
fn counters(handle: &PrometheusHandle, folder: &Path) -> BTreeMap<&'static str, u64> {
    let text = handle.render();
    let counters = Metrics::ALL.iter().filter(|info| info.kind == MetricKind::Counter);
    let value = |name: &str| {
        let begin = format!("{name}{{database=\"{}\"}} ", folder.display());
        let line = text.lines().find_map(|line| line.strip_prefix(&begin));
        line.map_or(0, |value| value.parse().expect("a number"))
    };
    counters.map(|info| (info.name, value(info.name))).collect()
}

/// Adds the counters of an open.
fn add(sums: &mut BTreeMap<&'static str, u64>, metrics: &Metrics) {
    for info in Metrics::ALL.iter().filter(|info| info.kind == MetricKind::Counter) {
        *sums.entry(info.name).or_default() += info.value(metrics);
    }
}

/// Counters were given as they stood. A recorder takes the larger of two: after 100 commits, a reopen and 50 more it said 100,
/// and of two databases it had the larger counter of both.
#[test]
fn counters_go_on_over_opens_and_databases_do_not_mix() {
    let folders = tempfile::tempdir().expect("a folder");
    let [one, other] = ["one", "other"].map(|name| folders.path().join(name));
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        observe::describe();
        let mut sums = BTreeMap::new();
        let second = open(&other, false);
        for (recorded, later) in [(100, 7), (50, 0), (0, 3)] {
            let db = open(&one, false);
            assert_eq!(Path::new(db.metrics().folder()), one);
            commits(&db, recorded);
            observe::record(&db.metrics());
            observe::record(&db.metrics());
            commits(&second, recorded / 10);
            observe::record(&second.metrics());
            commits(&db, later);
            // The rest is recorded by the end, and once.
            db.close().expect("closed");
            observe::record(&db.metrics());
            add(&mut sums, &db.metrics());
            assert_eq!(counters(&handle, &one), sums, "{recorded} and {later}");
        }
        assert_eq!(sums["pleach_commits_total"], 160);
        // A reader beside a writer, and one that is opened again; the last handle of a database that is not closed.
        let db = open(&one, false);
        for _ in 0..2 {
            let reader = open(&one, true);
            let session = reader.session(SessionOptions::new()).expect("a session");
            let reads = (0..50).map(|id| Access::read([id; 32]));
            drop(session.finish(reads).expect("finished"));
            observe::record(&reader.metrics());
            add(&mut sums, &reader.metrics());
        }
        commits(&db, 5);
        add(&mut sums, &db.metrics());
        drop(db);
        let found = counters(&handle, &one);
        for name in ["pleach_commits_total", "pleach_changes_total", "pleach_hashes_total"] {
            assert_eq!(found[name], sums[name], "{name}");
        }
        assert_eq!(found["pleach_commits_total"], 165);
        assert!(found["pleach_pages_folded_total"] >= sums["pleach_pages_folded_total"]);
        assert_eq!(counters(&handle, &other)["pleach_commits_total"], 15);
        let gauge =
            |db: &Db| format!("{{database=\"{}\"}} {}", other.display(), db.metrics().regions);
        let text = handle.render();
        assert!(text.contains(&format!("pleach_regions{}", gauge(&second))), "{text}");
        for folder in [&one, &other] {
            let label = format!("database=\"{}\"", folder.display());
            for name in ["pleach_commit_seconds", "pleach_finish_seconds"] {
                assert!(text.contains(&format!("{name}_count{{{label}}} ")), "{name} {label}");
            }
            let phase = format!("{{{label},phase=\"{}\"}} ", Phase::Apply.name());
            assert!(text.contains(&format!("pleach_phase_seconds_count{phase}")), "{phase}");
        }
        second.close().expect("closed");
    });
}

/// Without bounds the exporter makes summaries, of which the dashboard shows nothing.
#[test]
fn all_times_are_histograms_with_the_bounds_that_an_exporter_is_given() {
    let folder = tempfile::tempdir().expect("a folder");
    let pleach = Matcher::Prefix("pleach_".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(pleach, &observe::BUCKETS);
    let recorder = builder.expect("bounds").build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let options =
            Options::new(folder.path()).create(true).small().cache_mib(16).log_limit_mib(1);
        let db = Db::open(options).expect("opened");
        // Until the log is full and a commit waits.
        let mut commits = 0_u8;
        while db.metrics().stalled_micros == 0 {
            commits = commits.checked_add(1).expect("a commit has waited");
            let put = |id: u32| {
                let key = pleach::Hasher::BLAKE3.hash(&id.to_be_bytes());
                Access::write(key, Some(Value::from([commits; 1000].as_slice())))
            };
            let session = db.session(SessionOptions::new()).expect("a session");
            let block = session.finish((0..2000).map(put)).expect("finished");
            block.commit().expect("committed");
        }
        let text = handle.render();
        for (name, _) in observe::HISTOGRAMS {
            for bound in [&observe::BUCKETS[0].to_string(), "+Inf"] {
                let is_there = |line: &str| {
                    line.starts_with(&format!("{name}_bucket{{"))
                        && line.contains(&format!("le=\"{bound}\""))
                };
                assert!(text.lines().any(is_there), "{name} {bound}: {text}");
            }
        }
        let label = format!("{{database=\"{}\"}}", folder.path().display());
        assert!(
            text.contains(&format!("pleach_commit_seconds_count{label} {commits}\n")),
            "{text}"
        );
        let sum = format!("pleach_stall_seconds_sum{label} ");
        let sum = text.lines().find_map(|line| line.strip_prefix(&sum)).expect("a sum");
        let waited = Duration::from_micros(db.metrics().stalled_micros).as_secs_f64();
        assert!(sum.parse::<f64>().expect("a number") >= waited, "{sum} and {waited}");
        db.close().expect("closed");
    });
}
