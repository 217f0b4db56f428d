//! Threads that read beside the transfers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::accounts::{Accounts, balance, draws};
use super::check::conserved;
use crate::draws::{Distribution, Sampler};
use crate::error::{BenchError, Result};
use crate::stores::Store;

/// Reads of a round, all of one view.
pub(super) const READS: u64 = 100;
/// The sum of all accounts is taken in one of so many rounds, from the first on.
const SUM_EVERY: u64 = 256;

/// What readers have done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    pub(super) reads: u64,
    /// Time that they took, views included.
    pub(super) took: Duration,
    pub(super) sums: u64,
}

/// Rounds of reads, each of a view of its own, until told to stop.
pub(super) fn read(
    store: &dyn Store,
    accounts: &Accounts,
    (seed, reader): (u64, u64),
    stop: &AtomicBool,
) -> Result<Read> {
    let mut random = draws(seed, 1 + reader);
    let sampler = Sampler::new(Distribution::Pareto, accounts.keys.len() as u64);
    let (mut done, mut value) = (Read::default(), Vec::new());
    for round in 0_u64.. {
        let from = Instant::now();
        let Some(view) = store.view()? else { break };
        for _ in 0..READS {
            let id = usize::try_from(sampler.draw(&mut random)).expect("at most 2^30");
            if !view.get(&accounts.keys[id], &mut value)? {
                return Err(BenchError::Wrong(format!("a reader misses account {id}")));
            }
            balance(&value)?;
        }
        done.reads += READS;
        done.took += from.elapsed();
        if round % SUM_EVERY == 0 {
            conserved(&*view, accounts)?;
            done.sums += 1;
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(done)
}
