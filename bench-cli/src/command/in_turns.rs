//! `transfer --alternate N`: the children of all backends are alive at the same time and take turns
//! of N batches, so that whatever disturbs the machine disturbs all of them equally.
//!
//! One child runs at a time. The others wait for a line on their standard input, with their
//! background work paused. Every second round goes in the reverse order, so that a steady drift
//! during a round favours nobody.

use crate::args::values::Count;
use crate::child::spawn::Running;
use crate::child::{Event, Job, LoadResult, Order, RunPlan, RunResult};
use crate::command::prepare::{drop_caches, ensure_loaded};
use crate::command::verify::{check, count_witnesses};
use crate::error::Result;
use crate::interrupt;
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::setting::Setting;

/// A backend whose child is alive.
#[derive(Debug)]
struct Side {
    kind: crate::backend::Kind,
    load: LoadResult,
    loaded_now: bool,
    child: Running,
}

impl Side {
    /// Runs this many batches; is the plan fulfilled then?
    fn go(&mut self, batches: u64) -> Result<bool> {
        self.child.order(&Order::Go(batches))?;
        match self.child.next_of(|event| matches!(event, Event::Stepped { .. }))? {
            Event::Stepped { enough } => Ok(enough),
            _ => Err(self.child.silent()),
        }
    }

    /// Drains and closes the database, and returns the result.
    fn end(&mut self) -> Result<RunResult> {
        self.child.order(&Order::End)?;
        match self.child.next_of(|event| matches!(event, Event::Ran(_)))? {
            Event::Ran(result) => {
                self.child.wait()?;
                Ok(*result)
            }
            _ => Err(self.child.silent()),
        }
    }
}

/// Runs the plan on all backends, in turns of `step` batches.
pub(crate) fn run(
    setting: &Setting,
    mut plan: RunPlan,
    step: u64,
    drop: bool,
) -> Result<Vec<Outcome>> {
    plan.stepped = true;
    let mut loads = Vec::new();
    for &kind in &setting.kinds {
        loads.push((kind, ensure_loaded(setting, kind, Some(&setting.stream))?));
    }
    let dropped_caches = drop && drop_caches();
    let mut sides = Vec::new();
    for (kind, (load, loaded_now)) in loads {
        let mut child = Running::start(&setting.spec(kind, Job::Run(plan)))?;
        let bar = Progress::new(setting.common.quiet, &format!("{} warm-up", kind.name()), "");
        let ready = child.next_of(|event| {
            bar.hear(event);
            matches!(event, Event::Ready { .. })
        })?;
        if let Event::Ready { warmup } = ready {
            // The backends that follow do the same operations.
            plan.warmup = Count::Fixed(warmup);
        }
        sides.push(Side { kind, load, loaded_now, child });
    }
    take_turns(setting, &mut sides, plan.batches, step)?;
    let mut runs = Vec::new();
    for side in &mut sides {
        runs.push(side.end()?);
    }
    if runs.iter().all(|run| run.batches == 0) {
        interrupt::check()?;
    }
    sides
        .into_iter()
        .zip(runs)
        // A signal may have come before the first turn of a side.
        .filter(|(_, run)| run.batches > 0)
        .map(|(side, run)| {
            let check = interrupt::left_out(check(setting, side.kind), true)?;
            let Side { kind, load, loaded_now, .. } = side;
            let outcome = Outcome { kind, load, loaded_now, run, check, dropped_caches };
            count_witnesses(setting, &outcome.run)?;
            Ok(outcome)
        })
        .collect()
}

fn take_turns(setting: &Setting, sides: &mut [Side], batches: Count, step: u64) -> Result<()> {
    let bar = Progress::new(setting.common.quiet, "in turns", "batches");
    let mut done = 0;
    let mut backwards = false;
    loop {
        let (count, of) = match batches {
            Count::Fixed(all) => (step.min(all - done), all),
            Count::Auto => (step, 0),
        };
        if count == 0 || interrupt::caught().is_some() {
            return Ok(());
        }
        let mut enough = false;
        for turn in 0..sides.len() {
            let index = if backwards { sides.len() - 1 - turn } else { turn };
            let full = sides[index].go(count)?;
            // The first backend decides for all of them.
            enough |= index == 0 && full;
        }
        done += count;
        backwards = !backwards;
        bar.at(done, of);
        if enough {
            return Ok(());
        }
    }
}
