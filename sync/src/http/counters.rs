//! What a server has done, for its page of metrics.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Refusal;

/// Kinds of questions: the first words of their paths.
pub(super) const KINDS: [&str; 9] =
    ["head", "roots", "place", "part", "keys", "changes", "feed", "metrics", "other"];
const REFUSALS: [&str; 5] = ["busy", "gone", "unknown", "malformed", "failed"];

/// Counts and levels of a server.
#[derive(Debug, Default)]
pub(super) struct Counters {
    questions: [AtomicU64; KINDS.len()],
    refusals: [AtomicU64; REFUSALS.len()],
    pub(super) bytes: AtomicU64,
    /// Connections that were closed at once: their address had enough.
    pub(super) turned_away: AtomicU64,
}

/// The name of a refusal.
pub(super) fn name(refusal: &Refusal) -> &'static str {
    let [busy, gone, unknown, malformed, failed] = REFUSALS;
    match refusal {
        Refusal::Busy(_) => busy,
        Refusal::Gone { .. } => gone,
        Refusal::Unknown => unknown,
        Refusal::Malformed => malformed,
        Refusal::Failed(_) => failed,
    }
}

impl Counters {
    pub(super) fn count_question(&self, kind: &str) {
        let at = KINDS.iter().position(|one| *one == kind).unwrap_or(KINDS.len() - 1);
        self.questions[at].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refusal(&self, refusal: &Refusal) {
        let at = REFUSALS.iter().position(|one| *one == name(refusal)).unwrap_or_default();
        self.refusals[at].fetch_add(1, Ordering::Relaxed);
    }

    /// As Prometheus reads it, with the levels of the moment.
    pub(super) fn text(&self, connections: usize, feeds: usize) -> String {
        let mut text = String::new();
        for (name, help, kinds, values) in [
            ("questions", "Questions, by kind.", &KINDS[..], &self.questions[..]),
            ("refusals", "Refusals, by kind.", &REFUSALS, &self.refusals),
        ] {
            let name = format!("pleach_serve_{name}_total");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
            for (kind, value) in kinds.iter().zip(values) {
                let value = value.load(Ordering::Relaxed);
                let _ = writeln!(text, "{name}{{kind=\"{kind}\"}} {value}");
            }
        }
        let (bytes, turned_away) = (&self.bytes, &self.turned_away);
        for (name, kind, help, value) in [
            ("bytes_total", "counter", "Bytes of answers.", bytes.load(Ordering::Relaxed)),
            (
                "turned_away_total",
                "counter",
                "Connections that were closed at once, as their address had enough.",
                turned_away.load(Ordering::Relaxed),
            ),
            ("connections", "gauge", "Open connections.", connections as u64),
            ("feeds", "gauge", "Feeds that are followed.", feeds as u64),
        ] {
            let name = format!("pleach_serve_{name}");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        text
    }
}
