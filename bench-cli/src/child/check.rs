//! The check job, which compares balances with the replay, and the inspect job, which finds out what
//! state a database opens with.

use std::time::Instant;

use crate::account;
use crate::backend::{self, Backend};
use crate::child::pipe::say;
use crate::child::{CheckResult, Event, HexRoot, InspectResult, Spec};
use crate::draws::Draws;
use crate::error::{BenchError, Result};
use crate::workload::replay::Replay;

/// Up to this many accounts, all are read back; if there are more, a sample.
const ALL: u64 = 1 << 22;
/// Size of the sample.
const SAMPLE: u64 = 1 << 17;
/// Keys per read.
const CHUNK: usize = 16_384;

/// Reads balances back and compares them with the replay of all batches so far.
pub(crate) fn check(spec: &Spec) -> Result<CheckResult> {
    let mut engine = backend::open(spec.backend, &spec.place, &spec.options)?;
    let batches = engine.batches()?;
    let initial = spec.initial();
    let ids = spec.stream.accounts_before(initial, batches);
    let replay = Replay::new(&spec.stream, initial, batches, |done| {
        let _ = say(&Event::Progress { done, of: batches });
    })?;
    let expected = replay.sum(initial)?;
    let all = ids <= ALL;
    let found = if all {
        let sum = compare(engine.as_mut(), &replay, 0..ids)?;
        if sum != expected {
            let text = format!("balances sum to {sum}, {expected} were loaded");
            return Err(BenchError::Wrong(text));
        }
        ids
    } else {
        compare(engine.as_mut(), &replay, sample(spec, batches, ids).into_iter())?;
        SAMPLE
    };
    engine.close()?;
    Ok(CheckResult { batches, balances: found, all, sum: expected })
}

/// Half of the sample is drawn from all accounts, half from those of the last batch.
fn sample(spec: &Spec, batches: u64, ids: u64) -> Vec<u64> {
    let mut draws = Draws::new(spec.stream.seed, b"pleach-bench sample   v1", batches);
    let recent = match batches.checked_sub(1) {
        Some(last) => spec.stream.batch(spec.initial(), last).accounts,
        None => Vec::new(),
    };
    let mut sample: Vec<u64> = Vec::new();
    for index in 0..SAMPLE {
        let touched = usize::try_from(draws.below(recent.len().max(1) as u64)).unwrap_or(0);
        match recent.get(touched) {
            Some(&id) if index % 2 == 0 => sample.push(id),
            _ => sample.push(draws.below(ids)),
        }
    }
    sample
}

/// Compares accounts with the replay and returns the sum of the balances found.
fn compare(
    engine: &mut dyn Backend,
    replay: &Replay,
    mut ids: impl Iterator<Item = u64>,
) -> Result<u64> {
    let mut sum = 0;
    loop {
        let chunk: Vec<u64> = ids.by_ref().take(CHUNK).collect();
        if chunk.is_empty() {
            return Ok(sum);
        }
        let keys: Vec<_> = chunk.iter().map(|&id| account::key(id)).collect();
        let values = engine.read(&keys)?;
        if values.len() != keys.len() {
            let text = format!("{} values for {} keys", values.len(), keys.len());
            return Err(BenchError::Wrong(text));
        }
        for (id, value) in chunk.into_iter().zip(values) {
            let found = value.as_deref().map(account::decode).transpose()?;
            let expected = replay.balance(id);
            if found != expected {
                let text =
                    format!("account {id} holds {}, should hold {}", name(found), name(expected));
                return Err(BenchError::Wrong(text));
            }
            sum += found.unwrap_or(0);
        }
    }
}

fn name(balance: Option<u64>) -> String {
    balance.map_or_else(|| "nothing (absent)".to_owned(), |balance| balance.to_string())
}

/// Checks the closed database, opens it and notes its state, closes it and checks it again.
pub(crate) fn inspect(spec: &Spec) -> Result<InspectResult> {
    let mut findings = backend::check(spec.backend, &spec.place.folder)?;
    let start = Instant::now();
    let engine = backend::open(spec.backend, &spec.place, &spec.options)?;
    let open_seconds = start.elapsed().as_secs_f64();
    let (root, batches) = (HexRoot(engine.root()), engine.batches()?);
    engine.close()?;
    findings.extend(backend::check(spec.backend, &spec.place.folder)?);
    Ok(InspectResult { root, batches, open_seconds, findings })
}
