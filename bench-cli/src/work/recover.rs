//! `recover`: a child runs transfers, is killed with SIGKILL at a random moment, and the database must open in the state
//! before or after the commit that was interrupted, and never in another. All balances are read back, each time.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::WorkPlan;
use super::transfer::{Runner, StreamArgs, batches_done, load, read_back};
use crate::engine::{EngineKind, pleach};
use crate::error::Result;
use crate::flags::{Durability, Flags, count};
use crate::job_context::{JobContext, JobStage};
use crate::machine::Level;
use crate::measure::Times;

/// `nomt-bench recover`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct RecoverArgs {
    #[command(flatten)]
    stream: StreamArgs,
    /// How often the process is killed
    #[arg(long, value_name = "K", default_value_t = 20, value_parser = count::<u64>(1..=1_000_000))]
    pub kills: u64,
    /// Run this after each kill, before the database is opened: `.ci/power_cuts` cuts the power of the device then
    #[arg(long, value_name = "COMMAND")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_kill: Option<String>,
}

impl RecoverArgs {
    pub fn plan(&self, flags: &Flags) -> WorkPlan {
        let runs = match flags.asked_durability.unwrap_or_default() {
            Durability::Commit => |kind| survives(kind, Durability::Commit),
            _ => |kind| survives(kind, Durability::None),
        };
        WorkPlan { runs, ..self.stream.plan(self.kills * 20) }
    }
}

/// Only engines whose commits are there after a kill.
fn survives(kind: EngineKind, durability: Durability) -> core::result::Result<(), &'static str> {
    if kind.level(durability) > Level::Nothing {
        Ok(())
    } else {
        Err("its commits survive no kill with this --durability")
    }
}

/// What is done in the child: a load, batches until it is killed, and a look at what is there.
pub fn run(args: &RecoverArgs, side: &mut JobContext) -> Result<()> {
    let stream = args.stream.stream(side.flags.seed);
    match side.stage {
        JobStage::Load => load(stream.initial, side),
        JobStage::Run => {
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
        JobStage::Check => {
            let is_ours = matches!(side.kind, EngineKind::Pleach | EngineKind::PleachPlain);
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
