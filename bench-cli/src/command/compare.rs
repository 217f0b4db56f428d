//! `nomt-bench compare`: plans, measures what is missing, and prints all of it.

use crate::args::compare::CompareArgs;
use crate::compare::{self, Done, Folder, Outcome, Plan};
use crate::error::{BenchError, Result};
use crate::machine::{self, Machine};
use crate::progress::Progress;
use crate::report::about::About;
use crate::report::comparison::Comparison;
use crate::text::{counted, gib};
use crate::{home, interrupt, output};

/// Measures and compares.
pub(crate) fn compare(args: &CompareArgs) -> Result<()> {
    output::check_file(args.results.json.as_deref())?;
    output::check_file(args.results.report.as_deref())?;
    let mut plan = compare::plan(args)?;
    home::make_usable(&args.dir)?;
    let folder = Folder::new(&args.dir)?;
    let names: Vec<&str> = plan.steps.iter().map(|step| step.name).collect();
    compare::correct(&mut plan.steps, &folder.measured(&names));
    let known: Vec<Option<Done>> =
        plan.steps.iter().map(|step| folder.find(step).filter(|_| !args.reset)).collect();
    let disk = plan.disk_mib(known.iter().map(Option::is_some)) << 20;
    check_disk(args, disk)?;
    interrupt::remove_at_end(folder.scratch());
    announce(args, &plan, &known, disk);

    let bar = Progress::new(args.results.quiet, "compare", "s");
    // Known steps have their measured time, the others what was expected.
    let expected: u64 = plan.steps.iter().map(|step| step.seconds).sum();
    let (mut passed, mut done) = (0, Vec::new());
    let mut stopped = Ok(());
    for (step, known) in plan.steps.iter().zip(known) {
        bar.name(step.name);
        bar.at(passed, expected);
        let outcome = match known {
            Some(known) => Ok(known),
            None => compare::run(&folder, step),
        };
        match outcome {
            Ok(one) => done.push(one),
            Err(error) => {
                stopped = Err(error);
                break;
            }
        }
        passed += step.seconds;
    }
    drop(bar);
    interrupt::left_out(stopped, !done.is_empty())?;

    let (about, machine) = (About::now(&args.dir), Machine::describe(&args.dir));
    let comparison =
        Comparison { about: &about, machine: &machine, steps: &done, planned: plan.steps.len() };
    let printed = output::print(&comparison.render());
    let (json, page) = (folder.file("compare.json"), folder.file("compare.html"));
    let (json, page) = (
        args.results.json.as_ref().unwrap_or(&json),
        args.results.report.as_ref().unwrap_or(&page),
    );
    comparison.write_json(json)?;
    comparison.write_page(page)?;
    printed?;
    output::print(&format!("JSON: {}\npage: {}\n", json.display(), page.display()))?;
    interrupt::after_printing()?;
    let failed = done.iter().filter(|one| matches!(one.outcome(), Outcome::Failed { .. }));
    let failed: Vec<_> = failed.map(Done::name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(BenchError::Wrong(format!("failed: {}; see the .err files", failed.join(", "))))
}

/// Refuses what has no room.
fn check_disk(args: &CompareArgs, needed: u64) -> Result<()> {
    match machine::free_disk(&args.dir) {
        Some(free) if free < needed => Err(BenchError::Usage(format!(
            "this needs about {} in {} and {} are free: name a larger device with --dir",
            gib(needed),
            args.dir.display(),
            gib(free)
        ))),
        _ => Ok(()),
    }
}

/// Says what is about to be done.
fn announce(args: &CompareArgs, plan: &Plan, known: &[Option<Done>], disk: u64) {
    let left = plan.steps.iter().zip(known).filter(|(_, known)| known.is_none());
    let seconds: u64 = left.map(|(step, _)| step.seconds).sum();
    let kept = known.iter().flatten().count();
    let time = match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3600)),
    };
    output::say(&format!(
        "nomt-bench: {} ({} size), {kept} measured already; about {time}, and {} of disk in {}",
        counted(plan.steps.len(), "workload"),
        args.size,
        gib(disk),
        args.dir.display()
    ));
}
