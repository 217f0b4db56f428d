//! Comparisons that a result holds: the engine's figures beside those of each other subject, in words.

use serde::Serialize;
use serde_json::Value;

use crate::args::values::Durability;
use crate::report::figures::{Better, Judgement};
use crate::stores::Engine;
use crate::text::number;
use crate::trees::Ground;

/// This project's subjects, which those of others are held against.
const OURS: [&str; 2] = ["pleach", "pleach-plain"];

/// One of our figures beside one of another subject.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Claim {
    pub(crate) workload: String,
    /// What was measured. It names the durability of what is written: figures of different ones are no comparison.
    pub(crate) case: String,
    /// Which of ours.
    pub(crate) subject: String,
    pub(crate) other: String,
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
    pub(crate) unit: String,
    /// How many times better we are; below 1, worse.
    pub(crate) gain: f64,
}

/// A figure of a case.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) case: String,
    pub(crate) subject: String,
    pub(crate) value: f64,
    /// `ns` for the time of an operation, or the name of a count.
    pub(crate) unit: String,
    /// p50, p90, p99 and the slowest, in milliseconds, of a round; none for a count.
    pub(crate) quantiles: Option<[f64; 4]>,
    pub(crate) bytes: Option<u64>,
}

impl Figure {
    fn better(&self) -> Better {
        if self.unit.ends_with("/s") { Better::High } else { Better::Low }
    }

    /// With its unit.
    pub(crate) fn text(&self) -> String {
        amount(self.value, &self.unit)
    }
}

/// A value with its unit.
fn amount(value: f64, unit: &str) -> String {
    if unit == "bytes" && value >= 1024.0 {
        let (size, unit) = match value {
            bytes if bytes >= 1024.0 * 1024.0 => (bytes / 1024.0 / 1024.0, "MiB"),
            bytes => (bytes / 1024.0, "KiB"),
        };
        return format!("{} {unit}", number(size));
    }
    if unit != "ns" {
        return format!("{} {unit}", number(value));
    }
    match value {
        ns if ns >= 1e9 => format!("{} s", number(ns / 1e9)),
        ns if ns >= 1e6 => format!("{} ms", number(ns / 1e6)),
        ns if ns >= 1e3 => format!("{} us", number(ns / 1e3)),
        ns => format!("{} ns", number(ns)),
    }
}

/// The text of a field; empty if there is none.
fn text(of: &Value, field: &str) -> String {
    of[field].as_str().unwrap_or_default().to_owned()
}

/// The figures of a result, in its order: those of its rows, or of its runs.
pub(crate) fn figures(document: &Value) -> Vec<Figure> {
    let rows = document["rows"].as_array().into_iter().flatten().filter_map(row);
    let runs = document["runs"].as_array().into_iter().flatten();
    // Side by side by figure, not by run.
    let of_runs = RUN.iter().flat_map(|figure| {
        runs.clone().filter_map(move |run| {
            let value = run.pointer(figure.1)?.as_f64()?;
            let milliseconds = figure.2 == "ns";
            let value = if milliseconds { value * 1e6 } else { value };
            let parent = figure.1.strip_suffix("/p50").filter(|_| milliseconds);
            let durability = run["durability"].as_str().and_then(|text| text.parse().ok());
            let level = durability.map(|it: Durability| format!(", {}", it.level()));
            Some(Figure {
                case: format!("{}{}", figure.0, level.unwrap_or_default()),
                subject: text(run, "backend"),
                value,
                unit: figure.2.to_owned(),
                quantiles: parent.and_then(|parent| quantiles(run.pointer(parent)?)),
                bytes: None,
            })
        })
    });
    rows.chain(of_runs).collect()
}

/// What is compared of runs: name, place in the JSON, unit.
const RUN: [(&str, &str, &str); 7] = [
    ("transfers a second, drained", "/transfers_per_second", "/s"),
    ("execute a batch", "/execute_ms/p50", "ns"),
    ("finish and witness of a batch", "/finish_ms/p50", "ns"),
    ("commit of a batch", "/commit_ms/p50", "ns"),
    ("bytes written an account", "/bytes_written_per_account", "bytes"),
    ("SSD reads an account", "/ssd_reads_per_account", "reads"),
    ("peak memory", "/peak_rss_bytes", "bytes"),
];

fn quantiles(of: &Value) -> Option<[f64; 4]> {
    let at = |name: &str| of[name].as_f64();
    Some([at("p50")?, at("p90")?, at("p99")?, at("max")?])
}

/// A subject such as `load, pleach` or `pleach, 10 changes` is a store, and the rest a part of the case.
fn parted(case: String, subject: String) -> (String, String) {
    let is_store = |name: &str| {
        Ground::all().any(|ground| ground.name() == name)
            || Engine::ALL.iter().any(|engine| engine.name() == name)
    };
    let ends = [subject.split_once(", "), subject.rsplit_once(", ").map(|(rest, end)| (end, rest))];
    let found = ends.into_iter().flatten().find(|(end, _)| is_store(end));
    let found = found.map(|(store, rest)| (format!("{case}, {rest}"), store.to_owned()));
    found.unwrap_or((case, subject))
}

fn row(row: &Value) -> Option<Figure> {
    // Measurements of the device have names of their own.
    if let Some(name) = row["name"].as_str() {
        return Some(Figure {
            case: name.to_owned(),
            subject: "device".to_owned(),
            value: row["per_second"].as_f64()?,
            unit: "/s".to_owned(),
            quantiles: quantiles(&row["latency_ms"]),
            bytes: None,
        });
    }
    let (case, subject) = parted(text(row, "case"), text(row, "subject"));
    if let Some(count) = row["count"].as_array() {
        let (unit, value) = (count.first()?.as_str()?.to_owned(), count.get(1)?.as_f64()?);
        return Some(Figure { case, subject, value, unit, quantiles: None, bytes: None });
    }
    let quantiles = quantiles(&row["round_ms"])?;
    let operations = row["operations"].as_f64().unwrap_or(1.0).max(1.0);
    Some(Figure {
        case,
        subject,
        value: quantiles[0] * 1e6 / operations,
        unit: "ns".to_owned(),
        quantiles: Some(quantiles),
        bytes: row["bytes"].as_u64(),
    })
}

/// Our figures beside those of the others, case by case.
pub(crate) fn claims(workload: &str, figures: &[Figure]) -> Vec<Claim> {
    let mut claims = Vec::new();
    let is_ours = |figure: &&Figure| OURS.contains(&figure.subject.as_str());
    for ours in figures.iter().filter(is_ours).filter(|figure| figure.value > 0.0) {
        // A count of checks is no figure of merit.
        if ours.unit == "count" {
            continue;
        }
        let same = |other: &&Figure| other.case == ours.case && other.unit == ours.unit;
        for other in figures.iter().filter(same) {
            if is_ours(&other) || other.value <= 0.0 {
                continue;
            }
            let gain = match ours.better() {
                Better::High => ours.value / other.value,
                _ => other.value / ours.value,
            };
            claims.push(Claim {
                workload: workload.to_owned(),
                case: ours.case.clone(),
                subject: ours.subject.clone(),
                other: other.subject.clone(),
                ours: ours.value,
                theirs: other.value,
                unit: ours.unit.clone(),
                gain,
            });
        }
    }
    claims
}

impl Claim {
    /// Better, level or worse.
    pub(crate) fn judgement(&self) -> Judgement {
        Better::High.judge(self.gain, 1.0).unwrap_or(Judgement::Level)
    }

    /// `3.2 x faster`, `level`, `2 x more`.
    pub(crate) fn words(&self) -> String {
        let speed = self.unit == "ns" || self.unit.ends_with("/s");
        match (self.judgement(), speed) {
            (Judgement::Level, _) => "level".to_owned(),
            (Judgement::Better, true) => format!("{} x faster", times(self.gain)),
            (Judgement::Worse, true) => format!("{} x slower", times(1.0 / self.gain)),
            (Judgement::Better, false) => format!("{} x less", times(self.gain)),
            (Judgement::Worse, false) => format!("{} x more", times(1.0 / self.gain)),
        }
    }

    /// Our figure with its unit, and theirs.
    pub(crate) fn both(&self) -> (String, String) {
        (amount(self.ours, &self.unit), amount(self.theirs, &self.unit))
    }

    /// A sentence.
    pub(crate) fn sentence(&self) -> String {
        let ((ours, theirs), words) = (self.both(), self.words());
        let how = if words == "level" { "level with".to_owned() } else { format!("{words} than") };
        let (workload, case, subject, other) =
            (&self.workload, &self.case, &self.subject, &self.other);
        format!("{workload}, {case}: {subject} is {how} {other} ({ours}, {theirs})")
    }
}

/// A ratio in as many digits as are worth reading.
fn times(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.0}") } else { format!("{ratio:.1}") }
}

/// `Of 12 comparisons, Pleach is ahead in 7, level in 1 and behind in 4.`
pub(crate) fn tally(claims: &[Claim]) -> String {
    let count = |what| claims.iter().filter(|claim| claim.judgement() == what).count();
    format!(
        "Of {}, Pleach is ahead in {}, level in {} and behind in {}.",
        crate::text::counted(claims.len(), "comparison"),
        count(Judgement::Better),
        count(Judgement::Level),
        count(Judgement::Worse)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(case: &str, subject: &str, p50: f64) -> Value {
        let round = json!({"p50": p50, "p90": p50, "p99": p50, "max": p50});
        json!({"case": case, "subject": subject, "operations": 1000, "round_ms": round})
    }

    #[test]
    fn claims_say_who_is_better_and_by_how_much() {
        let rows = [
            row("get", "pleach", 4.0),
            row("get", "map", 1.0),
            row("get", "redb", 8.0),
            row("set", "map", 1.0),
            json!({"case": "bank", "subject": "pleach", "count": ["transfers/s", 300.0]}),
            json!({"case": "bank", "subject": "redb", "count": ["transfers/s", 100.0]}),
            json!({"case": "files", "subject": "pleach", "count": ["bytes", 300.0]}),
            json!({"case": "files", "subject": "redb", "count": ["bytes", 100.0]}),
        ];
        let claims = claims("auth", &figures(&json!({ "rows": rows })));
        let words: Vec<_> =
            claims.iter().map(|claim| (claim.other.as_str(), claim.words())).collect();
        let expected = [
            ("map", "4.0 x slower"),
            ("redb", "2.0 x faster"),
            ("redb", "3.0 x faster"),
            ("redb", "3.0 x more"),
        ];
        assert_eq!(words, expected.map(|(other, words)| (other, words.to_owned())));
        assert_eq!(claims[0].both(), ("4.00 us".to_owned(), "1.00 us".to_owned()));
        let tally = tally(&claims);
        assert!(tally.contains("4 comparisons") && tally.contains("ahead in 2"), "{tally}");
    }

    #[test]
    fn stores_are_known_wherever_their_names_are_and_counts_of_checks_are_no_claims() {
        let rows = [
            row("10 a commit", "write-only, pleach", 2.0),
            row("10 a commit", "write-only, btreemap", 1.0),
            json!({"case": "10 a commit", "subject": "sums beside, conserved, pleach", "count": ["count", 9.0]}),
            json!({"case": "10 a commit", "subject": "sums beside, conserved, btreemap", "count": ["count", 3.0]}),
        ];
        let figures = figures(&json!({ "rows": rows }));
        let sums = "10 a commit, sums beside, conserved";
        assert!(figures[2..].iter().all(|figure| figure.case == sums), "{figures:?}");
        let claims = claims("bank", &figures);
        assert_eq!(claims.len(), 1);
        assert_eq!((&*claims[0].case, &*claims[0].other), ("10 a commit, write-only", "btreemap"));
    }

    /// It once split the rows of a case, so that neither of ours stood beside the others.
    #[test]
    fn a_plain_namespace_is_held_against_others_in_the_same_case() {
        let rows = [
            row("10 a commit", "write-only, pleach", 4.0),
            row("10 a commit", "write-only, pleach-plain", 2.0),
            row("10 a commit", "write-only, btreemap", 1.0),
        ];
        let figures = figures(&json!({ "rows": rows }));
        assert!(
            figures.iter().all(|figure| figure.case == "10 a commit, write-only"),
            "{figures:?}"
        );
        let claims = claims("bank", &figures);
        let said: Vec<_> = claims.iter().map(|it| (&*it.subject, &*it.other, it.words())).collect();
        let slower = |times: &str| format!("{times} x slower");
        let expected =
            [("pleach", "btreemap", slower("4.0")), ("pleach-plain", "btreemap", slower("2.0"))];
        assert_eq!(said, expected);
    }

    #[test]
    fn what_a_kill_may_take_is_not_compared_with_what_it_leaves() {
        let rows = [
            row("10 a commit", "write-only, survives a kill, pleach", 4.0),
            row("10 a commit", "write-only, may be lost on a kill, btreemap", 1.0),
            row("10 a commit", "scan, pleach", 4.0),
            row("10 a commit", "scan, btreemap", 1.0),
        ];
        let claims = claims("bank", &figures(&json!({ "rows": rows })));
        let cases: Vec<_> = claims.iter().map(|claim| claim.case.as_str()).collect();
        assert_eq!(cases, ["10 a commit, scan"]);
    }

    #[test]
    fn runs_are_compared_figure_by_figure() {
        let run = |name: &str, rate: f64| {
            let quantiles = json!({"p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 4.0});
            json!({
                "backend": name,
                "durability": "commit",
                "transfers_per_second": rate,
                "execute_ms": quantiles
            })
        };
        let figures = figures(&json!({"runs": [run("pleach", 50.0), run("nomt", 10.0)]}));
        assert_eq!(figures.len(), 4);
        assert_eq!(figures[2].quantiles, Some([1.0, 2.0, 3.0, 4.0]));
        let claims = claims("transfer", &figures);
        assert_eq!(claims[0].words(), "5.0 x faster");
        assert!(claims[0].sentence().contains("than nomt"), "{}", claims[0].sentence());
        assert!(claims[0].case.ends_with(", each commit synced"), "{}", claims[0].case);
        assert_eq!(claims[1].words(), "level");
    }
}
