//! What is verified after a run: the balances, the number of witnesses, and that all backends have
//! the same roots.

use crate::args::values::Switch;
use crate::backend::Kind;
use crate::backend::roots::Roots;
use crate::child::spawn::{run_job, unexpected};
use crate::child::{CheckResult, Event, Job, RunResult};
use crate::error::{BenchError, Result};
use crate::outcome::{Compared, Outcome};
use crate::progress::Progress;
use crate::setting::Setting;

/// An engine that gives witnesses must give one per batch.
pub(crate) fn count_witnesses(setting: &Setting, run: &RunResult) -> Result<()> {
    if setting.options.witness == Switch(true) && run.witnesses > 0 && run.witnesses != run.batches
    {
        let text = format!("{} batches gave {} witnesses", run.batches, run.witnesses);
        return Err(BenchError::Wrong(text));
    }
    Ok(())
}

/// Compares a backend's balances with the replay, in a child.
pub(crate) fn check(setting: &Setting, kind: Kind) -> Result<CheckResult> {
    let spec = setting.spec(kind, Job::Check);
    let bar = Progress::new(setting.common.quiet, &format!("{} check", kind.name()), "batches");
    match run_job(&spec, |event| bar.hear(event))? {
        Event::Checked(result) => Ok(result),
        _ => Err(unexpected(&spec)),
    }
}

/// Compares the records of roots, for the load and every batch that several backends have done. Backends with
/// another commitment are left out: their balances are compared with the replay, as all are.
pub(crate) fn compare(setting: &Setting, outcomes: &[Outcome]) -> Result<Compared> {
    let mut states = 0;
    let mut first: Option<(Kind, Roots)> = None;
    let kinds = outcomes.iter().map(|one| one.kind);
    let kinds: Vec<Kind> = kinds.filter(|kind| kind.has_our_roots()).collect();
    for &kind in &kinds {
        let record = Roots::read(&setting.home.place(kind).roots)?;
        let Some((other, known)) = &first else {
            states = record.0.len() as u64;
            first = Some((kind, record));
            continue;
        };
        let (differs, common) = known.compare(&record);
        if let Some(number) = differs {
            return Err(BenchError::Wrong(format!(
                "after {number} batches {} and {} have different roots",
                other.name(),
                kind.name()
            )));
        }
        states = states.min(common);
    }
    Ok(Compared { backends: kinds.len(), states })
}
