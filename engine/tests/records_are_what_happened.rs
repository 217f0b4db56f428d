//! What the recorder of the crate `metrics` is given is what has happened, over opens of a process, and by database.

use std::collections::BTreeMap;
use std::path::Path;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
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
