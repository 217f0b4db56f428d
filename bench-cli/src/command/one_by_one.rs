//! Runs the backends one after the other, each on the same operations.

use crate::args::values::Count;
use crate::backend::Kind;
use crate::child::spawn::{run_job, unexpected};
use crate::child::{Event, Job, RunPlan};
use crate::command::prepare::{drop_caches, ensure_loaded};
use crate::command::verify::{check, count_witnesses};
use crate::error::Result;
use crate::interrupt;
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::setting::Setting;

/// Runs the plan on each backend. After a signal, it returns what was measured until then.
pub(crate) fn run(setting: &Setting, mut plan: RunPlan, drop: bool) -> Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for &kind in &setting.kinds {
        let outcome = one(setting, kind, plan, drop);
        let Some(outcome) = interrupt::left_out(outcome, !outcomes.is_empty())? else { break };
        // The backends that follow do the same operations.
        plan.warmup = Count::Fixed(outcome.run.warmup);
        plan.batches = Count::Fixed(outcome.run.batches);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

fn one(setting: &Setting, kind: Kind, plan: RunPlan, drop: bool) -> Result<Outcome> {
    let (load, loaded_now) = ensure_loaded(setting, kind, Some(&setting.stream))?;
    let dropped_caches = drop && drop_caches();
    let quiet = setting.common.quiet;
    let spec = setting.spec(kind, Job::Run(plan));
    let bar = Progress::new(quiet, &format!("{} run", kind.name()), "batches");
    let Event::Ran(run) = run_job(&spec, |event| bar.hear(event))? else {
        return Err(unexpected(&spec));
    };
    std::mem::drop(bar);
    if run.batches == 0 {
        interrupt::check()?;
    }
    let check = interrupt::left_out(check(setting, kind), true)?;
    count_witnesses(setting, &run)?;
    Ok(Outcome { kind, load, loaded_now, run: *run, check, dropped_caches })
}
