//! `nomt-bench recover`: a child runs transfers, is killed with SIGKILL at a random moment, and
//! the database must reopen at the root before or after the interrupted commit.
//!
//! What the child has promised is known from its events, `Committing` before each commit and
//! `Committed` after it, and starts afresh with each cycle.

use std::time::{Duration, Instant};

use crate::args::RecoverArgs;
use crate::args::values::{Count, Durability};
use crate::backend::{Kind, Root, has_checker};
use crate::child::spawn::{Running, run_job, unexpected};
use crate::child::{Event, InspectResult, Job, RunPlan, ViewPlan};
use crate::command::prepare::ensure_loaded;
use crate::command::verify::check;
use crate::draws::Draws;
use crate::error::{BenchError, Result};
use crate::machine::Machine;
use crate::measure::Phase;
use crate::outcome::Recovered;
use crate::progress::Progress;
use crate::report::{self, json};
use crate::setting::{Extra, Setting};
use crate::text::{counted, hex};
use crate::{interrupt, output};

/// Earliest and latest kill, in milliseconds after the child's first commit began.
const KILL_AFTER: (u64, u64) = (5, 400);

/// What a child promised before it was killed.
#[derive(Clone, Copy, Debug)]
struct Promise {
    acknowledged: (u64, Root),
    interrupted: Option<(u64, Root)>,
}

/// Runs the cycles on each backend.
pub(crate) fn recover(args: RecoverArgs) -> Result<()> {
    let extra = Extra {
        stream: args.stream.of(args.common.seed),
        witness: args.stream.witness,
        prefetch: args.stream.prefetch,
        overlay_window: 0,
        ahead: false,
        batches: u64::from(args.kills) * 20,
        written: u64::from(args.kills) * 20,
        alternate: None,
        timed: false,
    };
    let setting = Setting::new(args.common, &extra)?;
    // A kill takes what a process has in its memory, and nothing that the kernel has. Of others it is not known what
    // they keep to themselves until a sync.
    let ours = setting.kinds.iter().all(|kind| *kind == Kind::Pleach);
    if setting.common.durability != Durability::Commit && !ours {
        let text =
            "recover checks acknowledged commits: others than pleach need --durability commit";
        return Err(BenchError::Usage(text.to_owned()));
    }
    let mut results = Vec::new();
    for &kind in &setting.kinds {
        let result = interrupt::left_out(cycles(&setting, kind, args.kills), !results.is_empty())?;
        let Some(result) = result else { break };
        results.push(result);
    }
    let printed = output::print(&report::table::recover(&setting, &results));
    if let Some(path) = &setting.common.json {
        json::write_recover(path, &Machine::describe(setting.home.root()), &setting, &results)?;
    }
    printed?;
    interrupt::after_printing()
}

fn cycles(setting: &Setting, kind: Kind, kills: u32) -> Result<Recovered> {
    ensure_loaded(setting, kind, Some(&setting.stream))?;
    let start = Instant::now();
    let opened = inspect(setting, kind)?;
    let mut open_after_close = Phase::new();
    open_after_close.record(Duration::from_secs_f64(opened.open_seconds));
    let mut state = (opened.batches, opened.root.0);
    let mut result = Recovered {
        kind,
        kills: 0,
        at_acknowledged: 0,
        at_interrupted: 0,
        clean_checks: 0,
        open_after_kill: Phase::new(),
        open_after_close,
        check: None,
        root: state.1,
        seconds: 0.0,
    };
    let mut draws = Draws::new(setting.stream.seed, b"pleach-bench kills    v1", 0);
    let bar = Progress::new(setting.common.quiet, &format!("{} kills", kind.name()), "kills");
    for cycle in 1..=kills {
        let promise = kill_one(setting, kind, state, &mut draws);
        // A cycle that a signal ended does not count.
        let Some(promise) = interrupt::left_out(promise, cycle > 1)? else { break };
        let opened = interrupt::left_out(inspect(setting, kind), cycle > 1)?;
        let Some(opened) = opened else { break };
        // Once more, now that the database was closed cleanly.
        let Some(again) = interrupt::left_out(inspect(setting, kind), cycle > 1)? else { break };
        judge(cycle, &promise, &opened, &mut result)?;
        state = (opened.batches, opened.root.0);
        if again.root != opened.root || again.batches != opened.batches {
            return Err(BenchError::Wrong(format!(
                "cycle {cycle}: a clean reopening changed the root"
            )));
        }
        result.open_after_close.record(Duration::from_secs_f64(again.open_seconds));
        result.kills = cycle;
        bar.at(cycle.into(), kills.into());
    }
    result.check = interrupt::left_out(check(setting, kind), true)?;
    result.root = state.1;
    result.seconds = start.elapsed().as_secs_f64();
    Ok(result)
}

/// Runs batches until the kill, and returns what was promised by then.
fn kill_one(
    setting: &Setting,
    kind: Kind,
    state: (u64, Root),
    draws: &mut Draws,
) -> Result<Promise> {
    let plan = RunPlan {
        warmup: Count::Fixed(0),
        // Far more than can be run before the kill.
        batches: Count::Fixed(10_000_000),
        verify_every: u64::MAX,
        seconds: None,
        stepped: false,
        views: ViewPlan::default(),
    };
    let moment = KILL_AFTER.0 + draws.below(KILL_AFTER.1 - KILL_AFTER.0);
    let mut child = Running::start(&setting.spec(kind, Job::Run(plan)))?;
    let mut promise = Promise { acknowledged: state, interrupted: None };
    let mut killer = None;
    while let Some(event) = child.next() {
        match event {
            Event::Committing { number, root } => {
                promise.interrupted = Some((number, root.0));
                killer.get_or_insert_with(|| child.kill_after(Duration::from_millis(moment)));
            }
            Event::Committed { number } => {
                promise.acknowledged =
                    promise.interrupted.take().filter(|commit| commit.0 == number).ok_or_else(
                        || BenchError::Child(format!("commit {number} was not announced")),
                    )?;
            }
            Event::Failed { code, message } => return Err(child.failure(code, message)),
            _ => {}
        }
    }
    if let Some(killer) = killer {
        let _ = killer.join();
    }
    let status = child.wait()?;
    if std::os::unix::process::ExitStatusExt::signal(&status) == Some(9) {
        Ok(promise)
    } else {
        interrupt::check()?;
        Err(BenchError::Child(format!("the {} child ended before its kill: {status}", kind.name())))
    }
}

fn inspect(setting: &Setting, kind: Kind) -> Result<InspectResult> {
    let spec = setting.spec(kind, Job::Inspect);
    match run_job(&spec, |_| {})? {
        Event::Inspected(result) => Ok(result),
        _ => Err(unexpected(&spec)),
    }
}

fn judge(
    cycle: u32,
    promise: &Promise,
    opened: &InspectResult,
    result: &mut Recovered,
) -> Result<()> {
    let state = (opened.batches, opened.root.0);
    if state == promise.acknowledged {
        result.at_acknowledged += 1;
    } else if Some(state) == promise.interrupted {
        result.at_interrupted += 1;
    } else {
        return Err(BenchError::Wrong(format!(
            "cycle {cycle}: reopened after batch {} with root {}; acknowledged was batch {} with root {}",
            state.0,
            hex(&state.1),
            promise.acknowledged.0,
            hex(&promise.acknowledged.1)
        )));
    }
    if let Some(first) = opened.findings.first() {
        let text = format!(
            "cycle {cycle}: {}, the first: {first}",
            counted(opened.findings.len(), "finding")
        );
        return Err(BenchError::Wrong(text));
    }
    result.clean_checks += u32::from(has_checker(result.kind));
    result.open_after_kill.record(Duration::from_secs_f64(opened.open_seconds));
    Ok(())
}
