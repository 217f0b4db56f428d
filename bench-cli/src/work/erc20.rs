//! `erc20`: blocks of token transfers over a large state of accounts and contracts' slots.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::ledger::{KnownItems, Ledger};
use super::meter::{Meter, Phases};
use super::{WorkPlan, draws};
use crate::error::Result;
use crate::flags::count;
use crate::job_context::JobContext;
use crate::measure::{Unit, float, grouped, tried};

/// Accounts that are no contracts, where `--eoa` does not say another number.
pub const ACCOUNTS: u64 = 2_000_000;

/// `nomt-bench erc20`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct Erc20Args {
    /// Accounts that are no contracts
    #[arg(long, value_name = "N", default_value_t = ACCOUNTS, value_parser = count::<u64>(1..=1_000_000_000))]
    eoa: u64,
    /// Contracts
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = count::<u64>(1..=1_000_000_000))]
    contracts: u64,
    /// Slots of each contract
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count::<u64>(1..=1000))]
    slots: u64,
    /// Blocks that are measured; one more comes before
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count::<u64>(1..=1_000_000))]
    blocks: u64,
    /// Transfers of a block
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = count::<u64>(1..=10_000_000))]
    transfers: u64,
    /// Transfers of any contract to any account, rather than of one token between 2,000 hot accounts
    #[arg(long)]
    cold: bool,
}

impl Erc20Args {
    const fn ledger(&self) -> Ledger {
        Ledger { eoa: self.eoa, contracts: self.contracts, slots: self.slots, token: !self.cold }
    }

    pub fn plan(&self) -> WorkPlan {
        let writes = (self.blocks + 1).saturating_mul(self.transfers).saturating_mul(3);
        WorkPlan { keys: self.ledger().keys(), writes, ..WorkPlan::ROUNDS }
    }
}

/// The workload; a turn is a block.
pub fn run(args: &Erc20Args, side: &mut JobContext) -> Result<()> {
    let ledger = args.ledger();
    let mut opened = side.open(ledger.keys())?;
    let engine = &mut *opened;
    let mut known = KnownItems::new();
    // What a load leaves to the background belongs to it.
    let (import, ()) = tried(|| {
        ledger.load(engine, side.kind, &known)?;
        side.settle(engine)
    })?;
    let rate = float(ledger.keys()) / import.as_secs_f64();
    side.value("genesis", "import of keys", Unit::PerSecond, rate)?;
    side.check_root("root of the genesis", engine.root().as_ref())?;
    engine.pause(true);

    let mut meter = Meter::new(engine, side);
    let mut random = draws(side.flags.seed, 0);
    let mut done = 0;
    while done <= args.blocks && side.turn()? {
        let block = ledger.block(args.transfers, &mut random);
        meter.go(engine);
        let start = Instant::now();
        let numbers = block.execute(engine)?;
        let executed = Instant::now();
        engine.finish(block.accesses(&numbers[1]))?;
        let finished = Instant::now();
        engine.commit()?;
        let commit = finished.elapsed();
        meter.halt(engine);
        block.check(&numbers, &mut known)?;
        if done > 0 {
            let (execute, finish) = (executed - start, finished - executed);
            meter.record(&Phases { execute, finish, commit }, 1, block.items.len() as u64);
        }
        meter.hand_over(engine, side)?;
        if done == 0 {
            // It has paid for what the load had not cached, and for what it has left to the background itself.
            side.settle(engine)?;
            meter = Meter::new(engine, side);
        }
        done += 1;
        side.check_root(format!("root after {done} blocks"), engine.root().as_ref())?;
        side.progress(done, args.blocks + 1)?;
    }
    if meter.batches() > 0 {
        meter.end(engine, side, 0, "blocks")?;
    }
    engine.pause(false);
    ledger.check(engine, side, &known, done)?;
    let (transfers, touched) = (grouped(done * args.transfers), grouped(known.len() as u64));
    side.note(format!("{transfers} transfers touched {touched} keys; all of them were read back"))?;
    opened.close()
}
