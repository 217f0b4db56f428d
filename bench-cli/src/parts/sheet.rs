//! What a workload of single parts has measured, and how its subjects take turns.

use core::time::Duration;
use std::time::Instant;

use serde::Serialize;

use crate::error::Result;
use crate::interrupt;
use crate::measure::{Phase, Quantiles, float};
use crate::progress::Progress;

/// One figure: what a subject has done in a case, over all rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) subject: String,
    /// Operations of a round.
    pub(crate) operations: u64,
    /// Time of a round, in milliseconds.
    pub(crate) round_ms: Quantiles,
    /// Bytes of what was made in a round, where that is a figure.
    pub(crate) bytes: Option<u64>,
    /// A count that belongs to the row, with its name.
    pub(crate) count: Option<(&'static str, f64)>,
    /// Median over that of the case's first subject.
    pub(crate) ratio: f64,
}

impl Row {
    /// Nanoseconds of an operation, at the median.
    pub(crate) fn nanos(&self) -> f64 {
        self.round_ms.p50 * 1e6 / float(self.operations.max(1))
    }
}

/// All rows of a workload, and what has to be said of them.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

/// What one turn of a subject came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    pub(super) took: Duration,
    pub(super) bytes: Option<u64>,
}

impl Turn {
    /// The time that some work takes, and what it gives.
    pub(super) fn of<T>(work: impl FnOnce() -> T) -> (Self, T) {
        let from = Instant::now();
        let made = work();
        (Self { took: from.elapsed(), bytes: None }, made)
    }
}

/// A subject of a case: its name, and its turn in a round.
pub(super) type Subject<'a> = (String, Box<dyn FnMut(u64) -> Result<Turn> + 'a>);

impl Sheet {
    /// Lets the subjects of a case take turns, once in each round and once before the first, which does not
    /// count. A signal ends it after the turn at hand: the case is left out.
    pub(super) fn case(
        &mut self,
        bar: &Progress,
        (name, operations): (&str, u64),
        rounds: u64,
        mut subjects: Vec<Subject<'_>>,
    ) -> Result<()> {
        let mut phases: Vec<Phase> = subjects.iter().map(|_| Phase::new()).collect();
        let mut bytes = vec![None; subjects.len()];
        for round in 0..=rounds {
            for turn in 0..subjects.len() {
                interrupt::check()?;
                let at = if round % 2 == 0 { turn } else { subjects.len() - 1 - turn };
                let done = subjects[at].1(round)?;
                bytes[at] = done.bytes;
                if round > 0 {
                    phases[at].record(done.took);
                }
            }
            bar.at(round, rounds);
        }
        let first = phases[0].quantiles().p50;
        for (((subject, _), phase), bytes) in subjects.iter().zip(&phases).zip(bytes) {
            let round_ms = phase.quantiles();
            let ratio = if first > 0.0 { round_ms.p50 / first } else { 0.0 };
            self.rows.push(Row {
                case: name.to_owned(),
                subject: subject.clone(),
                operations,
                round_ms,
                bytes,
                count: None,
                ratio,
            });
        }
        Ok(())
    }

    /// A row of rounds that were timed by whoever ran.
    pub(super) fn phase(&mut self, case: &str, subject: &str, operations: u64, phase: &Phase) {
        let round_ms = phase.quantiles();
        self.latencies(case, subject, round_ms, round_ms);
        if let Some(row) = self.rows.last_mut() {
            row.operations = operations;
        }
    }

    /// A row of latencies that were recorded by whoever ran; beside those of the first.
    pub(super) fn latencies(&mut self, case: &str, subject: &str, of: Quantiles, first: Quantiles) {
        self.rows.push(Row {
            case: case.to_owned(),
            subject: subject.to_owned(),
            operations: 1,
            round_ms: of,
            bytes: None,
            count: None,
            ratio: if first.p50 > 0.0 { of.p50 / first.p50 } else { 0.0 },
        });
    }

    /// Rows of what several stores did, one thing after the other, each beside the first of its subjects.
    pub(super) fn timings(&mut self, case: &str, timings: &Timings, subjects: &[&'static str]) {
        let mut done: Vec<&'static str> = Vec::new();
        for (Timed { what, .. }, _) in &timings.0 {
            if done.contains(what) {
                continue;
            }
            done.push(what);
            let rows: Vec<(&str, &Timing)> = subjects
                .iter()
                .filter_map(|subject| {
                    let key = Timed { what, subject };
                    timings
                        .0
                        .iter()
                        .find(|(one, _)| *one == key)
                        .map(|(_, timing)| (*subject, timing))
                })
                .collect();
            let Some((_, first)) = rows.first() else { continue };
            let first_ms = first.round_ms();
            for (subject, timing) in &rows {
                let name = format!("{what}, {subject}");
                if let Some(count) = timing.count {
                    let of = first.count.map_or(0.0, float);
                    self.count(case, &name, ("count", float(count)), of);
                    continue;
                }
                self.latencies(case, &name, timing.round_ms(), first_ms);
                let row = self.rows.last_mut().expect("just made");
                row.operations = timing.operations.unwrap_or(1);
                // Subjects may differ in what they have done: a ratio of each operation.
                let (one, other) = (float(row.operations), float(first.operations.unwrap_or(1)));
                row.ratio *= other / one;
            }
        }
    }

    /// A row of a single figure, which is no time.
    pub(super) fn count(&mut self, case: &str, subject: &str, count: (&'static str, f64), of: f64) {
        self.rows.push(Row {
            case: case.to_owned(),
            subject: subject.to_owned(),
            operations: 0,
            round_ms: Quantiles::default(),
            bytes: None,
            count: Some(count),
            ratio: if of > 0.0 { count.1 / of } else { 0.0 },
        });
    }
}

/// What was timed, and of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timed {
    pub(super) what: &'static str,
    pub(super) subject: &'static str,
}

/// Times of several things that several subjects did, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Timings(Vec<(Timed, Timing)>);

#[derive(Debug)]
struct Timing {
    /// Operations of the first round.
    operations: Option<u64>,
    phase: Phase,
    /// Latencies that were recorded elsewhere, rather than times of rounds.
    recorded: Option<Quantiles>,
    count: Option<u64>,
}

impl Timing {
    fn round_ms(&self) -> Quantiles {
        self.recorded.unwrap_or_else(|| self.phase.quantiles())
    }
}

impl Timings {
    fn of(&mut self, key: Timed) -> &mut Timing {
        let at = self.0.iter().position(|(one, _)| *one == key).unwrap_or(self.0.len());
        if at == self.0.len() {
            let phase = Phase::new();
            self.0.push((key, Timing { operations: None, phase, recorded: None, count: None }));
        }
        &mut self.0[at].1
    }

    /// The time of some operations in a round. Where rounds differ in their number, the time is that of as many
    /// as the first had.
    pub(super) fn add(&mut self, key: Timed, operations: u64, took: Duration) {
        let timing = self.of(key);
        let same = *timing.operations.get_or_insert(operations.max(1));
        timing.phase.record(took.mul_f64(float(same) / float(operations.max(1))));
    }

    /// Latencies of single operations, those of the last round.
    pub(super) fn latencies(&mut self, key: Timed, of: Quantiles) {
        self.of(key).recorded = Some(of);
    }

    /// A count, that of the last round.
    pub(super) fn count(&mut self, key: Timed, count: u64) {
        self.of(key).count = Some(count);
    }
}
