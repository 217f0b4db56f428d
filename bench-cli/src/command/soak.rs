//! `nomt-bench soak`: for some minutes, transfers with new accounts, closed accounts and sessions that
//! stay open. It is checked as `transfer` is, and the figures must stay level.

use core::fmt::Write as _;

use crate::args::SoakArgs;
use crate::args::values::Count;
use crate::child::{RunPlan, ViewPlan};
use crate::command::{one_by_one, verify};
use crate::draws::Closing;
use crate::error::{BenchError, Result};
use crate::machine::Machine;
use crate::report::about::About;
use crate::report::soak::{Level, Soak};
use crate::report::{self, html, json};
use crate::setting::{Extra, Setting};
use crate::{interrupt, output};

/// Runs the workload on each backend.
pub(crate) fn soak(args: SoakArgs) -> Result<()> {
    check(&args)?;
    let mut stream = args.stream.of(args.common.seed);
    stream.closing = Some(Closing { deletes: args.deletes, life: args.life });
    let extra = Extra {
        stream,
        witness: args.stream.witness,
        prefetch: args.stream.prefetch,
        overlay_window: 0,
        // After this many batches, the number of accounts does not grow any more.
        batches: u64::from(args.life) + 1,
        // As long as it takes.
        written: u64::MAX,
        alternate: None,
    };
    let setting = Setting::new(args.common, &extra)?;
    let plan = RunPlan {
        warmup: args.warmup,
        batches: args.batches.map_or(Count::Auto, Count::Fixed),
        seconds: Some(args.minutes.0 * 60.0),
        verify_every: args.verify_every,
        stepped: false,
        views: ViewPlan { sessions: args.sessions, batches: args.session_batches },
    };
    let outcomes = one_by_one::run(&setting, plan, false)?;
    let compared = verify::compare(&setting, &outcomes)?;
    let machine = Machine::describe(setting.home.root());
    let mut summary = report::table::transfer(&setting, &machine, &outcomes, &compared);
    let soaks: Vec<Soak> =
        outcomes.iter().map(|one| Soak::new(&one.run.series, args.row_seconds)).collect();
    for (one, soak) in outcomes.iter().zip(&soaks) {
        let (name, run) = (one.kind.name(), &one.run);
        let _ = writeln!(summary.verdict, "{name}: {} accounts closed", run.closed);
        if run.sessions_ended > 0 {
            let _ = writeln!(
                summary.verdict,
                "  {} sessions of {} batches read {} old balances right; {} accounts had changed",
                run.sessions_ended, args.session_batches, run.session_reads, run.session_changes
            );
        }
        summary.verdict.push_str(&soak.verdict());
    }
    let tables: Vec<_> = outcomes.iter().zip(&soaks).map(|(one, soak)| soak.grid(one)).collect();
    let mut text = summary.render();
    for table in &tables {
        let _ = write!(text, "\n{}", table.render());
    }
    let printed = output::print(&text);
    if let Some(path) = &setting.common.json {
        let more: Vec<_> = soaks.iter().map(Soak::json).collect();
        json::write_runs(path, &machine, &setting, &outcomes, &compared, &more)?;
    }
    if let Some(path) = &args.report {
        let mut parts = report::soak::parts(&outcomes, &soaks, tables);
        parts.extend(html::plots(&outcomes));
        let about = About::now(setting.home.root());
        html::write(path, "nomt-bench soak", (&about, &machine), &summary, &parts)?;
    }
    printed?;
    interrupt::after_printing()?;
    if args.require_level
        && let Some(level) = soaks.iter().flat_map(|soak| &soak.levels).find(|level| !level.holds)
    {
        return Err(BenchError::Wrong(format!("not level: {}", Level::say(level))));
    }
    Ok(())
}

fn check(args: &SoakArgs) -> Result<()> {
    output::check_file(args.report.as_deref())?;
    let without = |name: &&String| ["nomt", "sp-trie", "jmt"].contains(&name.as_str());
    if args.sessions > 0
        && let Some(name) = args.common.backend.iter().find(without)
    {
        let text = format!("{name} keeps no session open beside commits: say --sessions 0");
        return Err(BenchError::Usage(text));
    }
    let rows = args.minutes.0 * 60.0 / f64::from(args.row_seconds);
    if args.require_level && args.batches.is_none() && rows < Soak::FEWEST {
        let text = format!(
            "--require-level compares {} rows or more: raise --minutes or lower --row-seconds",
            Soak::FEWEST
        );
        return Err(BenchError::Usage(text));
    }
    Ok(())
}
