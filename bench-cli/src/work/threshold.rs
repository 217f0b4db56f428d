//! `threshold`: executed blocks stay in memory over each other, and the oldest is committed when there are enough.

use core::time::Duration;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::ledger::{KnownItems, Ledger};
use super::{WorkPlan, draws, overlays};
use crate::error::Result;
use crate::flags::{check, count};
use crate::job_context::JobContext;
use crate::machine::ResourceUsage;
use crate::measure::{Figure, Times, Unit, float, grouped, tried};
use crate::signals;

/// Accounts, contracts and slots of each as the paper has them.
const FULL: Ledger = Ledger { eoa: 2_000_000, contracts: 500_000, slots: 10, token: false };

/// `nomt-bench threshold`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct ThresholdArgs {
    /// Blocks that stay in memory
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2,8,32,128,512",
        value_parser = count::<u64>(1..=4096))]
    window: Vec<u64>,
    /// Blocks of a round of the largest window. What comes when it is full is measured, and as much of the others
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = count::<u64>(1..=1_000_000))]
    blocks: u64,
    /// Transfers of a block
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = count::<u64>(1..=10_000_000))]
    transfers: u64,
    /// Accounts that are no contracts
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = count::<u64>(1..=1_000_000_000))]
    eoa: u64,
    /// Contracts
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = count::<u64>(1..=1_000_000_000))]
    contracts: u64,
    /// Slots of each contract
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = count::<u64>(1..=1000))]
    slots: u64,
    /// The paper's size: 2,000,000 accounts, 500,000 contracts, 10 slots
    #[arg(long, conflicts_with_all = ["eoa", "contracts", "slots"])]
    full: bool,
}

impl ThresholdArgs {
    const fn ledger(&self) -> Ledger {
        let Self { eoa, contracts, slots, .. } = *self;
        if self.full { FULL } else { Ledger { eoa, contracts, slots, token: false } }
    }

    fn largest(&self) -> u64 {
        self.window.iter().max().copied().unwrap_or(0)
    }

    pub fn plan(&self) -> Result<WorkPlan> {
        let largest = self.largest();
        check(
            self.blocks > largest,
            &format!(
                "--blocks {} never fills a window of {largest}: say more, or a smaller --window",
                self.blocks
            ),
        )?;
        let keys = self.ledger().keys();
        let writes = self.blocks.saturating_mul(self.transfers).saturating_mul(3);
        Ok(WorkPlan { keys, writes, runs: overlays, ..WorkPlan::ROUNDS })
    }
}

/// Figures of a window.
#[derive(Default)]
struct WindowTimes {
    block: Times,
    finish: Times,
    commit: Times,
    clock: Duration,
    /// Processor time of blocks, and of their commits alone.
    processor: Duration,
    committing: Duration,
}

/// The workload; a turn is a round of a window.
pub fn run(args: &ThresholdArgs, side: &mut JobContext) -> Result<()> {
    for window in &args.window {
        let mut figures = WindowTimes::default();
        for _ in 0..side.flags.rounds(1) {
            if !side.turn()? {
                break;
            }
            round(args, *window, side, &mut figures)?;
        }
        let WindowTimes { block, finish, commit, clock, processor, committing } = figures;
        if block.count() == 0 {
            break;
        }
        let case = format!("window {window}");
        let rate = float(block.count()) / clock.as_secs_f64();
        side.figure(Figure::one(&case, "blocks, drained", Unit::PerSecond, rate).committed())?;
        side.figure(block.latencies(&case, "a block").committed())?;
        side.figure(finish.latencies(&case, "finish"))?;
        side.figure(commit.latencies(&case, "commit").committed())?;
        let share = committing.as_secs_f64() / processor.as_secs_f64();
        let name = "share of commits in processor time";
        side.figure(Figure::one(&case, name, Unit::Ratio, share).committed())?;
    }
    let (keys, transfers) = (grouped(args.ledger().keys()), grouped(args.transfers));
    side.note(format!("{keys} keys, blocks of {transfers} transfers"))
}

/// All blocks on a state of its own.
fn round(
    args: &ThresholdArgs,
    window: u64,
    side: &mut JobContext,
    figures: &mut WindowTimes,
) -> Result<()> {
    let ledger = args.ledger();
    let (_folder, mut opened) = side.open_new(ledger.keys())?;
    let engine = &mut *opened;
    let mut known = KnownItems::new();
    ledger.load(engine, side.kind, &known)?;
    side.settle(engine)?;
    let mut random = draws(side.flags.seed, 0);
    let blocks = window + (args.blocks - args.largest());
    let (mut pending, mut waiting) = (0, 0);
    for number in 0..blocks {
        if signals::is_stop_requested() {
            return Ok(());
        }
        let block = ledger.block(args.transfers, &mut random);
        let is_full = waiting == window;
        if number == window {
            pending = engine.pending();
        }
        engine.pause(false);
        let before = ResourceUsage::now();
        let start = Instant::now();
        let numbers = block.execute(engine)?;
        let execute = start.elapsed();
        let (finish, _) = tried(|| engine.finish(block.accesses(&numbers[1])))?;
        if is_full {
            let used = ResourceUsage::now();
            let (commit, ()) = tried(|| engine.commit())?;
            let now = ResourceUsage::now();
            let whole = execute + finish + commit;
            figures.block.record(whole);
            figures.finish.record(finish);
            figures.commit.record(commit);
            figures.clock += whole;
            figures.processor += now.since(&before).processor;
            figures.committing += now.since(&used).processor;
        } else {
            waiting += 1;
        }
        engine.pause(true);
        block.check(&numbers, &mut known)?;
        side.check_root(format!("root after {} blocks", number + 1), engine.root().as_ref())?;
        side.progress(number + 1, blocks)?;
    }
    engine.pause(false);
    // What the commits have left to the background belongs to them.
    let before = ResourceUsage::now();
    let (drain, ()) = tried(|| engine.drain(pending))?;
    figures.clock += drain;
    let late = ResourceUsage::now().since(&before).processor;
    figures.processor += late;
    figures.committing += late;
    for _ in 0..waiting {
        engine.commit()?;
    }
    ledger.check(engine, side, &known, blocks)?;
    opened.close()
}
