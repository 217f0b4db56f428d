//! What a batch would take on other numbers of cores, computed from the phases that were recorded.
//!
//! *Model.* A phase is what the caller does alone, which takes as long on any number of cores, or tasks that
//! workers claim one by one in a given order. On N cores these take their *makespan*: each task goes to the core
//! that is free first (list scheduling, as the workers do it), for as long as it was recorded. What the
//! phase took beyond the makespan on the recorded number of cores (waking workers, waiting for the device, cores
//! that were somebody else's) is added as it was. Phases follow one another.
//!
//! *What it leaves out.* Tasks are as long on N cores as they were recorded: memory, caches and locks
//! that N cores share are not in it.

use core::fmt::Write as _;

use serde_json::{Value, json};

use crate::backend::Timing;
use crate::child::{BatchSample, RunResult};
use crate::measure::float;
use crate::outcome::Outcome;
use crate::report::Grid;

/// Time in which the device is waited for: no core makes it shorter.
const DEVICE: &str = "log";
/// What the caller waited for beside the phases, and did itself between finish and commit.
const BETWEEN: &str = "between";

/// When the last of these tasks ends on so many cores, if each is given to the core that is free first.
fn makespan(tasks: &[f64], cores: usize) -> f64 {
    let mut free = vec![0.0_f64; cores.max(1)];
    for task in tasks {
        let first = free.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("one core at least");
        *first += task;
    }
    free.into_iter().fold(0.0, f64::max)
}

/// One phase, in milliseconds a batch.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    phase: String,
    wall: f64,
    /// Sum, number and longest of its tasks.
    tasks: f64,
    count: f64,
    longest: f64,
    /// What is in it besides its tasks, on any number of cores.
    serial: f64,
    /// What it would take on each number of cores.
    on: Vec<f64>,
}

impl Row {
    /// What has no tasks.
    fn alone(phase: &str, wall: f64, cores: &[u16]) -> Self {
        let on = vec![wall; cores.len()];
        Self {
            phase: phase.to_owned(),
            wall,
            tasks: 0.0,
            count: 0.0,
            longest: 0.0,
            serial: wall,
            on,
        }
    }

    fn of(timing: &Timing, threads: usize, cores: &[u16]) -> Self {
        let tasks: Vec<f64> = timing.tasks_us.iter().map(|micros| micros / 1000.0).collect();
        let wall = timing.wall_us / 1000.0;
        let serial = (wall - makespan(&tasks, threads)).max(0.0);
        let on = cores.iter().map(|cores| serial + makespan(&tasks, usize::from(*cores)));
        Self {
            phase: timing.phase.clone(),
            wall,
            tasks: tasks.iter().fold(0.0, |sum, task| sum + task),
            count: float(tasks.len() as u64),
            longest: tasks.iter().copied().fold(0.0, f64::max),
            serial,
            on: on.collect(),
        }
    }

    /// Its figures.
    fn figures(&self) -> Vec<f64> {
        let Self { wall, tasks, count, longest, serial, on, .. } = self;
        [*wall, *tasks, *count, *longest, *serial].iter().chain(on).copied().collect()
    }

    /// A row of these figures.
    fn with(phase: &str, figures: &[f64]) -> Self {
        let ([wall, tasks, count, longest, serial], on) =
            figures.split_first_chunk().expect("the figures of a row");
        Self {
            phase: phase.to_owned(),
            wall: *wall,
            tasks: *tasks,
            count: *count,
            longest: *longest,
            serial: *serial,
            on: on.to_vec(),
        }
    }

    /// The sum of rows; the longest task is that of all.
    fn sum<'a>(phase: &str, rows: impl Iterator<Item = &'a Self>, cores: &[u16]) -> Self {
        rows.fold(Self::alone(phase, 0.0, cores), |sum, row| {
            let both = sum.figures().into_iter().zip(row.figures());
            let added: Vec<f64> = both.map(|(sum, row)| sum + row).collect();
            Self { longest: sum.longest.max(row.longest), ..Self::with(phase, &added) }
        })
    }
}

/// The phases of a batch, each once, in the order in which they begin, and what is between them.
fn batch(timings: &[Timing], total: f64, threads: usize, cores: &[u16]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for timing in timings {
        let row = Row::of(timing, threads, cores);
        match rows.iter_mut().find(|same| same.phase == row.phase) {
            Some(same) => *same = Row::sum(&row.phase, [&*same, &row].into_iter(), cores),
            None => rows.push(row),
        }
    }
    let between = (total - rows.iter().map(|row| row.wall).sum::<f64>()).max(0.0);
    rows.push(Row::alone(BETWEEN, between, cores));
    rows
}

/// The middle one of these; of an even number the upper.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Each phase of a run, by the medians over its batches, and their sums with the device and without it.
fn all(run: &RunResult, threads: usize, cores: &[u16]) -> Vec<Row> {
    let both = |batch: &BatchSample| batch.finish_ms + batch.commit_ms;
    let batches: Vec<Vec<Row>> = run
        .timings
        .iter()
        .zip(&run.series)
        .map(|(timings, sample)| batch(timings, both(sample), threads, cores))
        .collect();
    let mut phases: Vec<&str> = Vec::new();
    for row in batches.iter().flatten().filter(|row| row.phase != BETWEEN) {
        if !phases.contains(&row.phase.as_str()) {
            phases.push(&row.phase);
        }
    }
    phases.push(BETWEEN);
    let middle = |phase: &&str| {
        let of: Vec<Vec<f64>> = batches
            .iter()
            .map(|rows| rows.iter().find(|row| row.phase == *phase))
            .map(|row| row.map_or_else(|| Row::alone(phase, 0.0, cores).figures(), Row::figures))
            .collect();
        let figures = 0..5 + cores.len();
        let medians = figures.map(|at| median(of.iter().map(|figures| figures[at]).collect()));
        Row::with(phase, &medians.collect::<Vec<_>>())
    };
    let mut all: Vec<Row> = phases.iter().map(middle).collect();
    let own = Row::sum("without the log", all.iter().filter(|row| row.phase != DEVICE), cores);
    let total = Row::sum("finish and commit", all.iter(), cores);
    all.extend([own, total]);
    all
}

/// A table for each backend that has recorded its phases; nothing where no cores were asked for.
pub(crate) fn tables(outcomes: &[Outcome], threads: usize, cores: &[u16]) -> String {
    let mut text = String::new();
    for one in outcomes.iter().filter(|one| !one.run.timings.is_empty()) {
        let mut grid = Grid::default();
        let head = ["ms a batch (medians)", "wall", "tasks", "number", "longest", "serial"];
        let on = cores.iter().map(|cores| format!("on {cores}"));
        grid.row(head.map(str::to_owned).into_iter().chain(on));
        for row in all(&one.run, threads, cores) {
            let figures = [row.wall, row.tasks, row.count, row.longest, row.serial];
            let cells = figures.into_iter().chain(row.on);
            grid.row(core::iter::once(row.phase).chain(cells.map(|cell| format!("{cell:.2}"))));
        }
        let _ = write!(
            text,
            "\n{}: where the time of {} batches went on {threads} threads, and what it would be by list scheduling \
             of the recorded tasks\n{}",
            one.kind.name(),
            one.run.timings.len(),
            grid.render()
        );
    }
    text
}

/// The same for JSON, one object for each backend, with all that was recorded.
pub(crate) fn fields(outcomes: &[Outcome], threads: usize, cores: &[u16]) -> Vec<Value> {
    let fields = outcomes.iter().map(|one| {
        if one.run.timings.is_empty() {
            return json!({});
        }
        let rows = all(&one.run, threads, cores).into_iter().map(|row| {
            let on = cores.iter().zip(row.on).map(|(cores, on)| (cores.to_string(), json!(on)));
            json!({
                "phase": row.phase,
                "wall_ms": row.wall,
                "tasks_ms": row.tasks,
                "tasks": row.count,
                "longest_ms": row.longest,
                "serial_ms": row.serial,
                "ms_on_cores": on.collect::<serde_json::Map<_, _>>(),
            })
        });
        json!({ "phases": rows.collect::<Vec<_>>(), "batch_phases": one.run.timings })
    });
    fields.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(phase: &str, wall_us: f64, tasks_us: &[f64]) -> Timing {
        Timing { phase: phase.to_owned(), wall_us, tasks_us: tasks_us.to_vec() }
    }

    fn equal(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-9, "{left} and {right}");
    }

    #[test]
    fn tasks_go_to_the_core_that_is_free_first() {
        let tasks = [3.0, 1.0, 2.0, 2.0];
        for (cores, span) in [(1, 8.0), (2, 5.0), (3, 3.0), (4, 3.0), (16, 3.0)] {
            equal(makespan(&tasks, cores), span);
        }
        equal(makespan(&[], 2), 0.0);
    }

    #[test]
    fn what_no_core_makes_shorter_stays() {
        let sample = BatchSample { finish_ms: 14.0, commit_ms: 6.0, ..BatchSample::default() };
        let phases = [
            timing("sort", 2000.0, &[]),
            // Two cores need 6,000; 1,000 are waking them.
            timing("fold", 7000.0, &[3000.0, 3000.0, 3000.0, 3000.0]),
            timing("log", 4000.0, &[]),
        ];
        let run = RunResult {
            timings: vec![phases.to_vec(), phases.to_vec()],
            series: vec![sample, sample],
            ..RunResult::default()
        };
        let all = all(&run, 2, &[2, 4, 16]);
        let names: Vec<&str> = all.iter().map(|row| row.phase.as_str()).collect();
        assert_eq!(names, ["sort", "fold", "log", BETWEEN, "without the log", "finish and commit"]);
        let on = |at: usize, expected: [f64; 3]| {
            all[at].on.iter().zip(expected).for_each(|(on, expected)| equal(*on, expected));
        };
        on(0, [2.0; 3]);
        on(1, [7.0, 4.0, 4.0]);
        on(3, [7.0; 3]);
        on(4, [16.0, 13.0, 13.0]);
        on(5, [20.0, 17.0, 17.0]);
        equal(all[5].wall, 20.0);
        equal(all[4].serial, 2.0 + 1.0 + 7.0);
        equal(all[1].tasks, 12.0);
        equal(all[1].count, 4.0);
    }
}
