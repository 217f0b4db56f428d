//! What can happen next: the engine's steps in any order that the rules allow, and the faults.

use crate::medium::{AFTERMATHS, Aftermath, Media};
use crate::mutants::{Crashes, Mutant, Scenario};
use crate::state::{Budget, Engine, Ghost, Process, Rot, State};
use crate::{checkpoint, commit, flush, history, reader, recovery};

/// A step, as a counter-example prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Finish,
    Rollback,
    RollbackBeside,
    Hold,
    Squeeze,
    Ticket,
    LogWrite,
    LogSync,
    LogSyncFails(Aftermath),
    Publish,
    FlushFold { region: usize, recut: bool },
    FlushAwaitLog,
    FlushWrite,
    FlushSync,
    FlushSyncFails(Aftermath),
    FlushPublishEarly,
    FlushTicket,
    Free(u8),
    GiveUp(usize),
    Leave,
    Join,
    FreeExtent(usize),
    WriteHistory,
    RunWrite,
    MergeRuns,
    CheckpointCut,
    CheckpointRegion,
    ImageWrite,
    ImageSync,
    ImageSyncFails(Aftermath),
    CheckpointAwaitLog,
    SuperblockWrite,
    SuperblockSync,
    SuperblockSyncFails(Aftermath),
    LogDrop,
    Pin { snapshot: u8, key: usize },
    Lookup,
    Kill,
    PowerFailure,
    RotLog(usize),
    RotSuperblock,
    RotImage,
    Scan,
    Secure,
    Open,
}

/// A successor, or what the oracle found wrong with it.
pub(crate) type Outcome = Result<State, String>;

/// The parts of a state whose engine is up.
pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) media: &'a mut Media,
    pub(crate) engine: &'a mut Engine,
    pub(crate) ghost: &'a mut Ghost,
    pub(crate) budget: &'a mut Budget,
}

/// Collects the successors of one state.
pub(crate) struct Next<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) from: &'a State,
    pub(crate) out: Vec<(Action, Outcome)>,
}

impl Next<'_> {
    /// Adds a successor made by a step of the running engine.
    pub(crate) fn step(
        &mut self,
        action: Action,
        step: impl FnOnce(&mut World<'_>) -> Result<(), String>,
    ) {
        let mut next = self.from.clone();
        let State { media, process, ghost, budget } = &mut next;
        let Process::Up(engine) = process else {
            unreachable!("only called while the engine is up")
        };
        let done = step(&mut World { scenario: self.scenario, media, engine, ghost, budget });
        self.out.push((action, done.map(|()| next)));
    }

    /// Adds a failing sync of the units that `covered` lists, with each of its aftermaths.
    pub(crate) fn failing_sync(
        &mut self,
        action: fn(Aftermath) -> Action,
        fail: fn(&mut World<'_>, Aftermath),
        believe: fn(&mut World<'_>),
    ) {
        if self.from.budget.failed_syncs == 0 {
            return;
        }
        for aftermath in AFTERMATHS {
            self.step(action(aftermath), |world| {
                world.budget.failed_syncs -= 1;
                fail(world, aftermath);
                match world.scenario.mutant {
                    Mutant::RetryFailedSync => {}
                    Mutant::AckAfterFailedSync => believe(world),
                    _ => world.engine.poisoned = true,
                }
                Ok(())
            });
        }
    }
}

pub(crate) fn successors(scenario: &Scenario, from: &State) -> Vec<(Action, Outcome)> {
    let mut next = Next { scenario, from, out: Vec::new() };
    match &from.process {
        Process::Refused => return next.out,
        Process::Down => {
            rot(&mut next);
            recovery::scan(&mut next);
        }
        Process::Recovering(recovery) => recovery::secure(&mut next, recovery),
        Process::Up(engine) => {
            reader::steps(&mut next, engine);
            if !engine.poisoned {
                commit::steps(&mut next, engine);
                flush::steps(&mut next, engine);
                history::steps(&mut next, engine);
                checkpoint::steps(&mut next, engine);
            }
        }
    }
    crashes(&mut next);
    next.out
}

/// A kill leaves the cache, a power failure does not. Both may strike at any time, a recovery included.
fn crashes(next: &mut Next<'_>) {
    let from = next.from;
    let made = from.budget.checkpoints == 0;
    let done = matches!(&from.process, Process::Up(engine) if engine.checkpoint.is_none());
    let may = match next.scenario.crashes {
        Crashes::Always => true,
        Crashes::BehindLastCut => made,
        Crashes::BehindLastCheckpoint => made && done,
    };
    if !may {
        return;
    }
    if from.budget.kills > 0 && from.process != Process::Down {
        let mut state = from.clone();
        state.process = Process::Down;
        state.budget.kills -= 1;
        next.out.push((Action::Kill, Ok(state)));
    }
    let rotten = from.process == Process::Down && from.ghost.rot.is_some_and(|rot| rot != Rot::Cut);
    if from.budget.power_failures > 0 && !rotten {
        for media in from.media.after_power_failure() {
            let mut state = from.clone();
            state.media = media;
            state.process = Process::Down;
            state.budget.power_failures -= 1;
            next.out.push((Action::PowerFailure, Ok(state)));
        }
    }
}

/// At most one piece of rot at a time, found by the next recovery.
fn rot(next: &mut Next<'_>) {
    let from = next.from;
    if from.budget.rots == 0 {
        return;
    }
    let mut decay = |action, rot, destroy: &dyn Fn(&mut Media)| {
        let mut state = from.clone();
        state.budget.rots -= 1;
        state.ghost.rot = Some(rot);
        destroy(&mut state.media);
        next.out.push((action, Ok(state)));
    };
    let Some(truth) = recovery::find(from, Mutant::None) else { return };
    let start = usize::from(truth.superblock.replay_start);
    // Where a commit is cut off that was durable, what it replaced may have been written over.
    let records = if next.scenario.long_values { 0 } else { truth.records.len() };
    for at in start..start + records {
        let sealed = usize::from(truth.proven) > at;
        let kind = if sealed { Rot::Sealed } else { Rot::Unsealed };
        decay(Action::RotLog(at), kind, &|media| media.log[at].destroy());
    }
    if truth.complete_generations == 2 {
        decay(Action::RotSuperblock, Rot::Generation, &|media| {
            media.superblock[truth.slot].destroy();
        });
        decay(Action::RotImage, Rot::Generation, &|media| {
            media.image[truth.superblock.image].destroy();
        });
    }
}
