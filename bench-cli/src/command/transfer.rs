//! `nomt-bench transfer`: load or reuse, run, check, compare, print.

use crate::args::values::{Count, Switch};
use crate::args::{StreamArgs, TransferArgs};
use crate::backend::Kind;
use crate::backend::batches::Batches;
use crate::child::spawn::{run_job, unexpected};
use crate::child::{CheckResult, Event, Job, LoadResult, RunPlan, RunResult, ViewPlan};
use crate::command::{Extra, Setting, alternate, check_output, drop_caches};
use crate::draws::Stream;
use crate::error::{BenchError, Result};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::report::{self, html, json};
use crate::{interrupt, output};

/// Everything about one backend's run.
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) load: LoadResult,
    /// Was it loaded by this command?
    pub(crate) loaded_now: bool,
    pub(crate) run: RunResult,
    /// Absent when a signal came before its end.
    pub(crate) check: Option<CheckResult>,
    /// Was the system's page cache dropped before the run?
    pub(crate) dropped_caches: bool,
}

/// The stream that the flags describe.
pub(crate) fn stream_of(seed: u64, args: &StreamArgs) -> Stream {
    let StreamArgs { batch, fresh, distribution, .. } = *args;
    Stream { seed, batch, fresh, distribution, closing: None }
}

/// Runs the workload on each backend.
pub(crate) fn transfer(args: TransferArgs) -> Result<()> {
    let stream = stream_of(args.common.seed, &args.stream);
    let fixed = |count, auto| if let Count::Fixed(fixed) = count { fixed } else { auto };
    if args.batches == Count::Fixed(0) {
        return Err(BenchError::Usage("--batches 0 measures nothing: say 1 or more".to_owned()));
    }
    let batches = fixed(args.warmup, 100) + fixed(args.batches, 400);
    let extra = Extra {
        stream,
        witness: args.stream.witness,
        prefetch: args.stream.prefetch,
        overlay_window: args.overlay_window,
        batches,
        written: batches,
        alternate: args.alternate,
    };
    check_output(args.report.as_deref())?;
    let setting = Setting::new(args.common, &extra)?;
    let plan = RunPlan {
        warmup: args.warmup,
        batches: args.batches,
        verify_every: args.verify_every,
        seconds: None,
        stepped: false,
        views: ViewPlan::default(),
    };
    let outcomes = match setting.alternate {
        Some(step) => alternate::run(&setting, plan, step.into(), args.drop_caches)?,
        None => one_by_one(&setting, plan, args.drop_caches)?,
    };
    let compared = compare(&setting, &outcomes)?;
    let machine = Machine::describe(setting.home.root());
    let summary = report::table::transfer(&setting, &machine, &outcomes, &compared);
    let printed = output::print(&summary.render());
    if let Some(path) = &setting.common.json {
        json::write_runs(path, &machine, &setting, &outcomes, &compared, &[])?;
    }
    if let Some(path) = &args.report {
        html::write(path, "nomt-bench transfer", &summary, &html::plots(&outcomes))?;
    }
    printed?;
    interrupt::after_printing()
}

/// Runs the plan on each backend in turn. After a signal, what was measured until then.
pub(crate) fn one_by_one(setting: &Setting, mut plan: RunPlan, drop: bool) -> Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for &kind in &setting.kinds {
        let outcome = one(setting, kind, plan, drop);
        let Some(outcome) = interrupt::left_out(outcome, !outcomes.is_empty())? else { break };
        // The same operations for those that follow.
        plan.warmup = Count::Fixed(outcome.run.warmup);
        plan.batches = Count::Fixed(outcome.run.batches);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

fn one(setting: &Setting, kind: Kind, plan: RunPlan, drop: bool) -> Result<Outcome> {
    let (load, loaded_now) = setting.ensure_loaded(kind, Some(&setting.stream))?;
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

/// An engine that gives witnesses gives one a batch.
pub(crate) fn count_witnesses(setting: &Setting, run: &RunResult) -> Result<()> {
    if setting.options.witness == Switch(true) && run.witnesses > 0 && run.witnesses != run.batches
    {
        let text = format!("{} batches gave {} witnesses", run.batches, run.witnesses);
        return Err(BenchError::Wrong(text));
    }
    Ok(())
}

/// Compares a backend's balances with the replay, in a child.
pub(crate) fn check(setting: &Setting, kind: Kind) -> Result<CheckResult> {
    let spec = setting.spec(kind, Job::Check);
    let bar = Progress::new(setting.common.quiet, &format!("{} check", kind.name()), "batches");
    match run_job(&spec, |event| bar.hear(event))? {
        Event::Checked(result) => Ok(result),
        _ => Err(unexpected(&spec)),
    }
}

/// How the backends' roots were compared.
pub(crate) struct Compared {
    /// States (the load and each batch) that all backends have a root for.
    pub(crate) states: u64,
}

/// Compares the records of roots: the load and every batch that several backends have done.
pub(crate) fn compare(setting: &Setting, outcomes: &[Outcome]) -> Result<Compared> {
    let mut states = 0;
    let mut first: Option<(Kind, Batches)> = None;
    for kind in outcomes.iter().map(|one| one.kind) {
        let record = Batches::read(&setting.home.place(kind).roots)?;
        let Some((other, known)) = &first else {
            states = record.0.len() as u64;
            first = Some((kind, record));
            continue;
        };
        let (differs, common) = known.compare(&record);
        if let Some(number) = differs {
            return Err(BenchError::Wrong(format!(
                "after {number} batches {} and {} have different roots",
                other.name(),
                kind.name()
            )));
        }
        states = states.min(common);
    }
    Ok(Compared { states })
}
