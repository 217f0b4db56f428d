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
    pub(super) connections: AtomicU64,
    /// Connections that were closed at once: their address had enough.
    pub(super) turned_away: AtomicU64,
    pub(super) feeds: AtomicU64,
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

    /// As Prometheus reads it.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut head = |name: &str, kind: &str, help: &str, lines: &[(String, &AtomicU64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (label, value) in lines {
                let _ = writeln!(text, "{name}{label} {}", value.load(Ordering::Relaxed));
            }
        };
        let labels = |label: &str, names: &[&str]| {
            names.iter().map(|name| format!("{{{label}=\"{name}\"}}")).collect::<Vec<_>>()
        };
        let of = |labels: Vec<String>, values| labels.into_iter().zip(values).collect::<Vec<_>>();
        let kinds = of(labels("kind", &KINDS), &self.questions[..]);
        head("pleach_serve_questions_total", "counter", "Questions, by kind.", &kinds);
        let refusals = of(labels("kind", &REFUSALS), &self.refusals[..]);
        head("pleach_serve_refusals_total", "counter", "Refusals, by kind.", &refusals);
        for (name, kind, help, value) in [
            ("pleach_serve_bytes_total", "counter", "Bytes of answers.", &self.bytes),
            ("pleach_serve_connections", "gauge", "Open connections.", &self.connections),
            (
                "pleach_serve_turned_away_total",
                "counter",
                "Connections closed at once, as their address had enough.",
                &self.turned_away,
            ),
            ("pleach_serve_feeds", "gauge", "Feeds that are followed.", &self.feeds),
        ] {
            head(name, kind, help, &[(String::new(), value)]);
        }
        text
    }
}
