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
pub(crate) fn soak(mut args: SoakArgs) -> Result<()> {
    check(&args)?;
    let undo = undo(&args)?;
    args.common.history_mib = args.common.history_mib.or(undo);
    let mut stream = args.stream.of(args.common.seed);
    stream.closing = Some(Closing { deletes: args.deletes, life: args.life });
    let extra = Extra {
        stream,
        witness: args.stream.witness,
        prefetch: args.stream.prefetch,
        overlay_window: 0,
        ahead: false,
        // After this many batches, the number of accounts does not grow any more.
        batches: u64::from(args.life) + 1,
        // As long as it takes.
        written: u64::MAX,
        alternate: None,
        timed: false,
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
    if let Some(mib) = undo {
        let _ = writeln!(
            summary.verdict,
            "pleach: undo may take {mib} MiB, for sessions of {} batches (--history-mib)",
            args.session_batches
        );
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

/// The most that changes of so many batches take in undo, in bytes: as docs/memory.md has it, plus a quarter.
fn undo_bytes(args: &SoakArgs) -> u64 {
    let SoakArgs { common, stream, deletes, life, session_batches, .. } = args;
    let (batch, fresh) = (u64::from(stream.batch), u64::from(stream.fresh));
    // Both sides of a transfer; an account that closes, and its heir.
    let changes = 2 * batch + 2 * (batch * (u64::from(*deletes) + fresh) / 100);
    // The oldest session ends after a commit of its last batch.
    let commits = u64::from(*session_batches) + 1;
    let accounts = (1 << common.log2) + batch * fresh / 100 * (u64::from(*life) + commits + 1);
    let versions = changes.min(accounts) * commits;
    // With a history the nodes that changed are kept, too.
    let version = if common.history > 0 { 32 + 56 + 2 * 32 } else { 32 };
    (versions * version + versions.min(accounts) * 160) * 5 / 4
}

/// The limit of undo that sessions need, in MiB, where the engine's own is less. Without it, the engine would forget
/// what they read, which ends the run.
fn undo(args: &SoakArgs) -> Result<Option<u64>> {
    let ours = args.common.backend.iter().any(|name| name == "pleach");
    if args.sessions == 0 || args.common.history_mib.is_some() || !ours {
        return Ok(None);
    }
    let (needed, budget) = (undo_bytes(args).div_ceil(1 << 20), args.common.cache_mib);
    // An eighth is the engine's own limit.
    if needed * 8 <= budget {
        return Ok(None);
    }
    if needed * 2 <= budget {
        return Ok(Some(needed));
    }
    Err(BenchError::Usage(format!(
        "sessions of {} batches of {} transfers need up to {needed} MiB of undo, which is more than half of \
         --cache-mib {budget}: raise it to {}, or lower --batch or --session-batches, or say --sessions 0",
        args.session_batches,
        args.stream.batch,
        2 * needed
    )))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: SoakArgs,
    }

    fn undo_of(words: &[&str]) -> Result<Option<u64>> {
        undo(&Flags::parse_from([&["soak"], words].concat()).args)
    }

    /// A soak of small memory once ended early, as its own sessions were forgotten.
    #[test]
    fn sessions_get_the_undo_that_they_need() {
        let small = ["--cache-mib", "64", "--batch", "2000"];
        let chosen = undo_of(&small).expect("it fits").expect("more than an eighth");
        assert!((16..=32).contains(&chosen), "{chosen}");
        let with = |more: &[&str]| undo_of(&[&small[..], more].concat());
        assert_eq!(with(&["--sessions", "0"]).expect("none"), None);
        assert_eq!(with(&["--history-mib", "9"]).expect("as told"), None);
        assert_eq!(with(&["--backend", "model"]).expect("it has no limit"), None);
        assert_eq!(with(&["--log2", "10"]).expect("few accounts"), None);
        let longer = with(&["--session-batches", "20"]).expect("it fits").expect("more");
        assert!(longer > chosen, "{longer}");
        let error = with(&["--session-batches", "200"]).expect_err("too much");
        assert_eq!(error.code(), 2);
        assert!(error.to_string().contains("--session-batches"), "{error}");
    }
}
