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

    /// A row of something that is done once.
    pub(super) fn once(&mut self, case: &str, subject: &str, operations: u64, turn: Turn) {
        let mut phase = Phase::new();
        phase.record(turn.took);
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
