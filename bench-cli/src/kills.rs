//! The parent of [`recover`](crate::work::recover): kills the child that runs transfers, and inspects the database.

use std::process::Command;
use std::time::Duration;

use crate::draw::Draws;
use crate::error::{Error, Result, usage, wrong};
use crate::flags::Flags;
use crate::job_context::{ChildMessage, JobStage};
use crate::measure::Times;
use crate::run::{Bench, RunningChild};
use crate::work::Workload;
use crate::work::recover::RecoverArgs;

/// Earliest and latest kill, in milliseconds after the child's first commit began.
const KILL_AFTER: (u64, u64) = (5, 400);

/// Runs the workload, and reports.
pub fn run(args: &RecoverArgs, flags: Flags) -> Result<()> {
    let (mut bench, _) = Bench::new(Workload::Recover(args.clone()), flags)?;
    let measured = lead(args, &mut bench);
    bench.report(measured)
}

/// A state: its number of batches, and its root; zeros where there is none.
type BatchState = (u64, String);

/// Kills, engine by engine.
fn lead(args: &RecoverArgs, bench: &mut Bench) -> Result<()> {
    for lead in 0..bench.leads.len() {
        bench.run_to_end(lead, JobStage::Load)?;
        let mut draws = Draws::new(bench.flags.seed, b"pleach-bench kills    v1", 0);
        let (mut state, opened) = inspect(bench, lead)?;
        let (mut after_close, mut after_kill) = (Times::default(), Times::default());
        after_close.record(opened);
        let (mut acknowledged, mut interrupted) = (0, 0);
        for cycle in 1..=args.kills {
            let moment = KILL_AFTER.0 + draws.below(KILL_AFTER.1 - KILL_AFTER.0);
            let one = || {
                let promised =
                    run_until_killed(bench, lead, &state, Duration::from_millis(moment))?;
                if let Some(command) = &args.after_kill {
                    let done = Command::new("sh").args(["-c", command]).status();
                    if !done.is_ok_and(|status| status.success()) {
                        return usage(format!("kill {cycle}: the command `{command}` failed"));
                    }
                }
                let (found, opened) = inspect(bench, lead)?;
                Ok((promised, found, opened, inspect(bench, lead)?))
            };
            let (promised, found, opened, (again, after)) = match one() {
                // A cycle that a signal has cut short does not count.
                Err(Error::Interrupted(_)) if cycle > 1 => break,
                done => done?,
            };
            if found == promised.0 {
                acknowledged += 1;
            } else if Some(&found) == promised.1.as_ref() {
                interrupted += 1;
            } else {
                return wrong(format!(
                    "kill {cycle}: it opened after batch {} with root {}; acknowledged was {}, {}",
                    found.0, found.1, promised.0.0, promised.0.1
                ));
            }
            if again != found {
                return wrong(format!("kill {cycle}: a clean close has changed the state"));
            }
            after_kill.record(opened);
            after_close.record(after);
            state = found;
        }
        let kills = acknowledged + interrupted;
        let run = &mut bench.leads[lead].run;
        run.figures.push(after_kill.latencies("", "open after a kill"));
        run.figures.push(after_close.latencies("", "open after a close"));
        run.notes.push(format!(
            "{kills} kills: {acknowledged} times the last acknowledged batch was there, {interrupted} times the \
             interrupted one, never another; its balances were those of a replay each time"
        ));
    }
    Ok(())
}

/// Runs batches until the kill. Returns the state of the last acknowledged batch, and that of the interrupted one.
fn run_until_killed(
    bench: &Bench,
    lead: usize,
    state: &BatchState,
    moment: Duration,
) -> Result<(BatchState, Option<BatchState>)> {
    let mut child: RunningChild = bench.start(lead, JobStage::Run)?;
    let (mut acknowledged, mut begun, mut killer) = (state.clone(), None, None);
    let failed = loop {
        match child.next() {
            None => break None,
            Some(ChildMessage::Committing(number, root)) => {
                begun = Some((number, root));
                killer.get_or_insert_with(|| child.kill_after(moment));
            }
            Some(ChildMessage::Committed(number)) => match begun.take() {
                Some(state) if state.0 == number => acknowledged = state,
                _ => break Some(child.failed("a commit was not announced")),
            },
            Some(ChildMessage::Failed { code, message }) => {
                break Some(child.failure(code, message));
            }
            Some(_) => {}
        }
    };
    // It kills by an id, which is the child's only until the child is waited for.
    if let Some(killer) = killer {
        let _ = killer.join();
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let status = child.wait()?;
    if std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
        && crate::signals::caught().is_none()
    {
        return Ok((acknowledged, begun));
    }
    match crate::signals::caught() {
        Some(signal) => Err(Error::Interrupted(signal)),
        None => Err(child.failed(&format!("it ended before its kill: {status}"))),
    }
}

/// Opens and checks the database in a child; returns its state and the time of the open.
fn inspect(bench: &Bench, lead: usize) -> Result<(BatchState, Duration)> {
    let mut child = bench.start(lead, JobStage::Check)?;
    let (mut state, mut opened, mut done) = (None, None, false);
    while let Some(said) = child.next() {
        match said {
            ChildMessage::Committing(number, root) => state = Some((number, root)),
            ChildMessage::Figure(figure) if figure.name == "open" => {
                opened = Some(Duration::from_secs_f64(figure.p50 / 1000.0));
            }
            ChildMessage::Failed { code, message } => return Err(child.failure(code, message)),
            ChildMessage::Done => done = true,
            _ => {}
        }
    }
    let status = child.wait()?;
    match (state.zip(opened), crate::signals::caught()) {
        (Some(found), _) if done => Ok(found),
        (_, Some(signal)) => Err(Error::Interrupted(signal)),
        (_, None) => Err(child.failed(&format!("it gave no state: {status}"))),
    }
}
