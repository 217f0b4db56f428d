//! `overlay`: the root of a block that stays in memory, over a state that is committed.

use core::time::Duration;

use hashbrown::HashSet;
use pleach_core::Key;
use serde::{Deserialize, Serialize};

use super::ledger::{Item, KnownItems, Ledger, contents, read};
use super::{WorkPlan, overlays};
use crate::draw::Draws;
use crate::engine::{Engine, Root, StateAccess};
use crate::error::{Result, wrong};
use crate::flags::{check, count};
use crate::job_context::JobContext;
use crate::machine;
use crate::measure::{Figure, Times, Unit, grouped, tried};

/// Name and version of the draws.
const DOMAIN: &[u8; 24] = b"pleach-bench overlay  v2";

/// `nomt-bench overlay`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct OverlayArgs {
    /// Contracts that are loaded
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = count::<u64>(1..=100_000_000))]
    accounts: u64,
    /// Slots of each
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count::<u64>(0..=1000))]
    slots: u64,
    /// Accounts that the overlay changes
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1000,10000",
        value_parser = count::<u64>(1..=10_000_000))]
    updates: Vec<u64>,
    /// Equal steps in which the overlay grows as well, each with a root
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count::<u64>(1..=100))]
    steps: u64,
}

impl OverlayArgs {
    const fn ledger(&self) -> Ledger {
        Ledger { eoa: 0, contracts: self.accounts, slots: self.slots, token: false }
    }

    pub fn plan(&self) -> Result<WorkPlan> {
        let most = self.updates.iter().max().copied().unwrap_or(0);
        check(
            most <= self.accounts,
            &format!(
                "--updates {most} are more than --accounts {}: lower the one or raise the other",
                self.accounts
            ),
        )?;
        Ok(WorkPlan {
            keys: self.ledger().keys() + 3 * most,
            writes: 3 * most,
            runs: overlays,
            ..WorkPlan::ROUNDS
        })
    }
}

/// Draws the overlay of a number of updates: accounts with a new nonce, of which 30 % are new addresses, and of 30 % of
/// them one to four new slots. First the existing accounts, one draw each, with another one for each that came before;
/// then of each account its nonce, whether it has new slots, how many, and the amount of each.
fn draw(ledger: &Ledger, updates: u64, seed: u64) -> Vec<(Item, u64)> {
    let mut random = Draws::new(seed, DOMAIN, updates);
    let new = updates * 3 / 10;
    let mut seen = HashSet::new();
    let mut accounts = Vec::new();
    while (accounts.len() as u64) < updates - new {
        let id = random.below(ledger.contracts);
        if seen.insert(id) {
            accounts.push(id);
        }
    }
    accounts.extend(ledger.contracts..ledger.contracts + new);
    let mut overlay = Vec::new();
    for contract in accounts {
        overlay.push((Item::Account(contract), random.bits()));
        if random.below(10) < 3 {
            for slot in 0..=random.below(4) {
                let slot = ledger.slots + slot;
                overlay.push((Item::Slot { contract, slot }, random.bits()));
            }
        }
    }
    overlay
}

/// The workload; a turn is a round of a case.
pub fn run(args: &OverlayArgs, side: &mut JobContext) -> Result<()> {
    args.updates.iter().try_for_each(|updates| of_updates(args, *updates, side))
}

/// An overlay over a state of its own, since it is committed in the end.
fn of_updates(args: &OverlayArgs, updates: u64, side: &mut JobContext) -> Result<()> {
    let (ledger, caps) = (args.ledger(), side.kind.caps());
    let overlay = draw(&ledger, updates, side.flags.seed);
    let open = |side: &JobContext| side.open(ledger.keys() + overlay.len() as u64);
    let items: Vec<Item> = ledger.items().collect();
    let _ = std::fs::remove_dir_all(&side.folder);
    let mut engine = open(side)?;
    ledger.load(&mut *engine, side.kind, &KnownItems::new())?;
    // What a load leaves to the background belongs to no round.
    side.settle(&mut *engine)?;
    let mut promised = None;
    for (is_cold, witness) in [(false, false), (false, true), (true, false), (true, true)] {
        // An engine that has no witnesses takes the turns all the same, as many as the others.
        let runs = caps.witness || !witness;
        engine.close()?;
        engine = open(side)?;
        if runs && !is_cold {
            contents(&mut *engine, &items)?;
        }
        let mut times = Times::default();
        for round in 0..=side.flags.rounds(10) {
            if !side.turn()? {
                break;
            }
            if !runs {
                continue;
            }
            if is_cold {
                engine.close()?;
                if side.flags.drop_caches
                    && let Err(why) = machine::drop_caches()
                {
                    side.note(why)?;
                }
                engine = open(side)?;
            }
            let (took, root) = one(&mut *engine, &overlay, witness)?;
            if round > 0 {
                times.record(took);
            }
            if *promised.get_or_insert(root) != root {
                return wrong("the same overlay has another root in another round");
            }
        }
        let case = format!("{}, {}", if is_cold { "cold" } else { "warm" }, grouped(updates));
        let name = if witness { "root + witness" } else { "root" };
        if times.count() > 0 {
            side.figure(times.latencies(&case, name))?;
        }
    }
    let Some(promised) = promised else { return engine.close() };
    grow(args.steps, &mut *engine, &overlay, promised, side)?;

    engine.close()?;
    engine = open(side)?;
    let accesses = accesses(&overlay);
    let (took, ()) = tried(|| {
        engine.begin(false)?;
        engine.finish(accesses)?;
        engine.commit()
    })?;
    let case = format!("at the end, {}", grouped(updates));
    let millis = took.as_secs_f64() * 1000.0;
    side.figure(Figure::one(&case, "root + commit", Unit::Ms, millis).committed())?;
    if engine.root() != promised {
        return wrong("the commit has another root than the overlay");
    }
    side.check_root(format!("root of {updates} updates"), promised.as_ref())?;
    let items: Vec<Item> = items.into_iter().chain(overlay.iter().map(|pair| pair.0)).collect();
    let digest = contents(&mut *engine, &items)?;
    side.check(format!("contents after {updates} updates"), digest.to_string())?;
    engine.close()
}

/// The overlay grows in steps, each over those before, as a block does while it is built: a root after each.
fn grow(
    steps: u64,
    engine: &mut dyn Engine,
    overlay: &[(Item, u64)],
    promised: Option<Root>,
    side: &mut JobContext,
) -> Result<()> {
    let count = usize::try_from(steps).expect("at most a hundred");
    // Each step has existing and new accounts.
    let step = |step: usize| overlay.iter().skip(step).step_by(count).copied().collect::<Vec<_>>();
    let parts: Vec<Vec<(Item, u64)>> = (0..count).map(step).collect();
    let mut times: Vec<Times> = parts.iter().map(|_| Times::default()).collect();
    let runs = side.kind.caps().overlays;
    for round in 0..=side.flags.rounds(10) {
        if !side.turn()? {
            break;
        }
        if !runs {
            continue;
        }
        for (part, times) in parts.iter().zip(&mut times) {
            let accesses = accesses(part);
            let (took, _) = tried(|| {
                engine.begin(false)?;
                engine.finish(accesses)
            })?;
            if round > 0 {
                times.record(took);
            }
        }
        if engine.root() != promised {
            return wrong("an overlay that grew in steps has another root");
        }
        engine.begin(false)?;
        engine.discard()?;
    }
    for step in [1, count] {
        let case = format!("step {step} of {count}, {} each", grouped(parts[0].len() as u64));
        if times[step - 1].count() > 0 {
            side.figure(times[step - 1].latencies(&case, "root"))?;
        }
    }
    Ok(())
}

fn accesses(overlay: &[(Item, u64)]) -> Vec<StateAccess> {
    overlay
        .iter()
        .map(|(item, number)| StateAccess::write(item.key(), item.value(*number)))
        .collect()
}

/// The overlay is made, read back in part, and forgotten.
fn one(
    engine: &mut dyn Engine,
    overlay: &[(Item, u64)],
    witness: bool,
) -> Result<(Duration, Option<Root>)> {
    let (before, accesses) = (engine.root(), accesses(overlay));
    let (took, made) = tried(|| {
        engine.begin(witness)?;
        engine.finish(accesses)
    })?;
    let root = engine.root();
    if made.is_some() != witness {
        return wrong("a witness is missing, or was not asked for");
    }
    let some = overlay.iter().step_by(overlay.len().div_ceil(100));
    let (items, numbers): (Vec<Item>, Vec<u64>) = some.copied().unzip();
    let keys: Vec<Key> = items.iter().map(|item| item.key()).collect();
    engine.begin(false)?;
    if read(engine, &items, &keys)? != numbers {
        return wrong("the overlay has another value");
    }
    engine.discard()?;
    if engine.root() != before {
        return wrong("an overlay that was forgotten has left another root");
    }
    Ok((took, root))
}
