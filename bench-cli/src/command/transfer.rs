//! `nomt-bench transfer`: loads or reuses the databases, runs, checks, compares and prints.

use crate::args::TransferArgs;
use crate::args::values::Count;
use crate::child::{RunPlan, ViewPlan};
use crate::command::{in_turns, one_by_one, verify};
use crate::error::{BenchError, Result};
use crate::machine::Machine;
use crate::report::about::About;
use crate::report::{self, html, json, makespan};
use crate::setting::{Extra, Setting};
use crate::{interrupt, output};

/// Runs the workload on each backend.
pub(crate) fn transfer(args: TransferArgs) -> Result<()> {
    if args.batches == Count::Fixed(0) {
        return Err(BenchError::Usage("--batches 0 measures nothing: say 1 or more".to_owned()));
    }
    let extra = Extra::of_transfer(&args);
    output::check_file(args.report.as_deref())?;
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
        Some(step) => in_turns::run(&setting, plan, step.into(), args.drop_caches)?,
        None => one_by_one::run(&setting, plan, args.drop_caches)?,
    };
    let compared = verify::compare(&setting, &outcomes)?;
    let machine = Machine::describe(setting.home.root());
    let summary = report::table::transfer(&setting, &machine, &outcomes, &compared);
    let spans = makespan::tables(&outcomes, setting.options.threads, &args.cores);
    let printed = output::print(&format!("{}{spans}", summary.render()));
    if let Some(path) = &setting.common.json {
        let more = makespan::fields(&outcomes, setting.options.threads, &args.cores);
        json::write_runs(path, &machine, &setting, &outcomes, &compared, &more)?;
    }
    if let Some(path) = &args.report {
        let about = About::now(setting.home.root());
        html::write(
            path,
            "nomt-bench transfer",
            (&about, &machine),
            &summary,
            &html::plots(&outcomes),
        )?;
    }
    printed?;
    interrupt::after_printing()
}
