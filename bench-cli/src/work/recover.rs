//! `recover`: a child runs transfers, is killed with SIGKILL at a random moment, and the database must open in the state
//! before or after the commit that was interrupted, and never in another. All balances are read back, each time.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Plan;
use super::transfer::{Runner, StreamArgs, batches_done, load, read_back};
use crate::cli::{Durability, Flags, count};
use crate::draw::Draws;
use crate::engine::{Kind, Level, pleach};
use crate::error::{Error, Result, wrong};
use crate::job::{Said, Side, Stage};
use crate::measure::Times;
use crate::run::{Bench, Running};

/// Earliest and latest kill, in milliseconds after the child's first commit began.
const KILL_AFTER: (u64, u64) = (5, 400);

/// `nomt-bench recover`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct RecoverArgs {
    #[command(flatten)]
    stream: StreamArgs,
    /// How often the process is killed
    #[arg(long, value_name = "K", default_value_t = 20, value_parser = count::<u64>(1..=1_000_000))]
    kills: u64,
}

impl RecoverArgs {
    pub fn plan(&self, flags: &Flags) -> Plan {
        let runs = match flags.asked_durability.unwrap_or_default() {
            Durability::Commit => |kind| survives(kind, Durability::Commit),
            _ => |kind| survives(kind, Durability::None),
        };
        Plan { runs, ..self.stream.plan(self.kills * 20) }
    }
}

/// Only engines whose commits are there after a kill.
fn survives(kind: Kind, durability: Durability) -> core::result::Result<(), &'static str> {
    if kind.level(durability) > Level::Nothing {
        Ok(())
    } else {
        Err("its commits survive no kill with this --durability")
    }
}

/// What is done in the child: a load, batches until it is killed, and a look at what is there.
pub fn run(args: &RecoverArgs, side: &mut Side) -> Result<()> {
    let stream = args.stream.stream(side.flags.seed);
    match side.stage {
        Stage::Load => load(stream.initial, side),
        Stage::Run => {
            // Kills have to meet flushes and checkpoints, and no verification.
            side.flags.log_limit_mib = side.flags.log_limit_mib.min(4);
            let stream_args = StreamArgs { verify_every: u64::MAX, ..args.stream.clone() };
            let keys = args.plan(&side.flags).keys;
            let mut runner = Runner::open(&stream_args, stream, keys, side)?;
            runner.tells = true;
            loop {
                runner.batch(None, side)?;
            }
        }
        Stage::Check => {
            let is_ours = matches!(side.kind, Kind::Pleach | Kind::PleachPlain);
            if is_ours {
                pleach::check(&side.folder)?;
            }
            let from = Instant::now();
            let mut engine = side.open(args.plan(&side.flags).keys)?;
            let mut times = Times::default();
            times.record(from.elapsed());
            let number = batches_done(&mut *engine, side)?;
            let root = engine.root().unwrap_or_default();
            read_back(&stream, number, &mut *engine, side)?;
            engine.close()?;
            if is_ours {
                pleach::check(&side.folder)?;
            }
            side.figure(times.latencies("", "open"))?;
            side.committing(number, &root)
        }
    }
}

/// A state: the batches that it has, and its root; zeros where there is none.
type State = (u64, String);

/// What is done in the parent, engine by engine.
pub fn lead(args: &RecoverArgs, bench: &mut Bench) -> Result<()> {
    for lead in 0..bench.leads.len() {
        bench.run_to_end(lead, Stage::Load)?;
        let mut draws = Draws::new(bench.flags.seed, b"pleach-bench kills    v1", 0);
        let (mut state, opened) = inspect(bench, lead)?;
        let (mut after_close, mut after_kill) = (Times::default(), Times::default());
        after_close.record(opened);
        let (mut acknowledged, mut interrupted) = (0, 0);
        for cycle in 1..=args.kills {
            let moment = KILL_AFTER.0 + draws.below(KILL_AFTER.1 - KILL_AFTER.0);
            let one = || {
                let promised = killed(bench, lead, &state, Duration::from_millis(moment))?;
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

/// Runs batches until the kill. Gives the state of the last batch that was acknowledged, and that of the one that was
/// interrupted.
fn killed(
    bench: &Bench,
    lead: usize,
    state: &State,
    moment: Duration,
) -> Result<(State, Option<State>)> {
    let mut child: Running = bench.start(lead, Stage::Run)?;
    let (mut acknowledged, mut begun, mut killer) = (state.clone(), None, None);
    let failed = loop {
        match child.next() {
            None => break None,
            Some(Said::Committing(number, root)) => {
                begun = Some((number, root));
                killer.get_or_insert_with(|| child.kill_after(moment));
            }
            Some(Said::Committed(number)) => match begun.take() {
                Some(state) if state.0 == number => acknowledged = state,
                _ => break Some(child.failed("a commit was not announced")),
            },
            Some(Said::Failed { code, message }) => break Some(child.failure(code, message)),
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

/// Opens and checks the database in a child; gives its state and how long the open took.
fn inspect(bench: &Bench, lead: usize) -> Result<(State, Duration)> {
    let mut child = bench.start(lead, Stage::Check)?;
    let (mut state, mut opened, mut done) = (None, None, false);
    while let Some(said) = child.next() {
        match said {
            Said::Committing(number, root) => state = Some((number, root)),
            Said::Figure(figure) if figure.name == "open" => {
                opened = Some(Duration::from_secs_f64(figure.p50 / 1000.0));
            }
            Said::Failed { code, message } => return Err(child.failure(code, message)),
            Said::Done => done = true,
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
