//! The history on the device: runs are written, merged and removed. What an image names of them is taken at its cut.
//!
//! A run takes one extent of the overflow file. Readers, the image in the making and the one that is durable hold the runs
//! that they name; where nobody has a run any more its extent is free at once.

use std::rc::Rc;

use crate::actions::{Action, Next, World};
use crate::mutants::Mutant;
use crate::state::{Engine, Undone};

/// What commits have replaced, on the device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    /// Incarnation and counter: no other run's.
    pub(crate) number: (u8, u8),
    /// It has what the commits after this one replaced, through another.
    pub(crate) after: u8,
    pub(crate) through: u8,
    pub(crate) undone: Vec<Undone>,
}

/// What leads to a run: its extent, and what is to be there. Equality stands for tag and checksums.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamedRun {
    pub(crate) extent: usize,
    pub(crate) run: Rc<Run>,
}

/// What an image says of the history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Past {
    /// Oldest first.
    pub(crate) runs: Vec<NamedRun>,
    /// Where the records of the commits behind them begin, at or below the replay start.
    pub(crate) records: u8,
    /// The oldest commit that can be read, as the newest record said.
    pub(crate) kept_from: u8,
}

/// What an extent of the overflow file has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Extent {
    Value(u8),
    Run(Rc<Run>),
}

impl Engine {
    /// The history as an image has it whose replay starts at `replay_start`.
    pub(crate) fn past(&self, replay_start: u8) -> Past {
        let runs = self.runs.iter().filter(|named| named.run.through > self.kept_from).cloned();
        let unwritten = self.undo.iter().filter(|undone| undone.number > self.written_out());
        let records = unwritten.map(|undone| undone.start).chain([replay_start]).min();
        let records = records.unwrap_or(replay_start);
        Past { runs: runs.collect(), records, kept_from: self.recorded }
    }

    /// What commits through this one have replaced is on the device, or nobody needs it.
    fn written_out(&self) -> u8 {
        let last = self.runs.last().map_or(0, |last| last.run.through);
        last.max(self.kept_from)
    }

    /// Puts another list of runs in the place of the one that there is.
    pub(crate) fn put_runs(&mut self, runs: Vec<NamedRun>) {
        let before = std::mem::replace(&mut self.runs, runs);
        let gone = before.into_iter().filter(|one| !self.runs.contains(one));
        self.unlisted.extend(gone);
    }

    /// Extents of runs that nobody has are free.
    pub(crate) fn release_extents(&mut self, mutant: Mutant) {
        let Self { unlisted, free_extents, named, checkpoint, reader, .. } = self;
        let named = (mutant != Mutant::RunFreedWithList).then_some(named);
        let making = checkpoint.as_ref().map(|checkpoint| &checkpoint.past.runs);
        let reader = reader.as_ref().filter(|_| mutant != Mutant::RunFreedUnderReader);
        let read = reader.map(|reader| &reader.runs);
        unlisted.retain(|one| {
            let mut held = named.iter().map(|runs| &**runs).chain(making).chain(read);
            let held = held.any(|runs| runs.contains(one));
            if !held {
                free_extents[one.extent] = true;
            }
            held
        });
    }
}

pub(crate) fn steps(next: &mut Next<'_>, engine: &Engine) {
    if let Some(named) = &engine.unwritten_run {
        next.step(Action::RunWrite, |world| {
            world.media.overflow[named.extent].write(Extent::Run(Rc::clone(&named.run)));
            world.engine.unwritten_run = None;
            world.engine.undo.retain(|undone| undone.number > named.run.through);
            Ok(())
        });
        return;
    }
    if next.scenario.history.is_none() {
        return;
    }
    let room = engine.free_extents.contains(&true);
    let budget = next.from.budget;
    if room && budget.write_outs > 0 && !engine.undo.is_empty() {
        next.step(Action::WriteHistory, |world| {
            world.budget.write_outs -= 1;
            write_out(world);
            Ok(())
        });
    }
    if engine.checkpoint.is_none() && room && budget.merges > 0 && engine.runs.len() > 1 {
        next.step(Action::MergeRuns, |world| {
            world.budget.merges -= 1;
            merge(world);
            Ok(())
        });
    }
}

/// Checkpoint `write-history`: what is in memory alone becomes a run, and may leave memory. Nothing is synced.
fn write_out(world: &mut World<'_>) {
    let engine = &mut *world.engine;
    let last = engine.runs.last().map_or(0, |last| last.run.through);
    let early = world.scenario.without(Mutant::RunBeginsEarly);
    // Undo that was evicted before it was written is in no run.
    let after = if early { last } else { engine.written_out() };
    let undone: Vec<Undone> = engine.undo.clone();
    let through = undone.last().map_or(after, |last| last.number);
    let named = new_run(engine, after, through, undone);
    let mut runs = engine.runs.clone();
    runs.push(named.clone());
    engine.put_runs(runs);
    if world.scenario.without(Mutant::RunNamedUnfinished) {
        engine.unwritten_run = Some(named);
        return;
    }
    engine.undo.clear();
    let records = engine.past(engine.published).records;
    world.media.overflow[named.extent].write(Extent::Run(named.run));
    if world.scenario.without(Mutant::LogDroppedByRun) {
        // The newest generation's replay still has its own.
        let newest = world.media.superblock[engine.slot].visible();
        let below = newest.map_or(0, |superblock| superblock.replay_start.min(records));
        for unit in world.media.log.iter_mut().take(usize::from(below)) {
            unit.destroy();
        }
    }
}

/// All runs become one.
fn merge(world: &mut World<'_>) {
    let engine = &mut *world.engine;
    let of = engine.runs.clone();
    let (after, through) = (of[0].run.after, of[of.len() - 1].run.through);
    let left_out = usize::from(world.scenario.without(Mutant::MergeLeavesOut));
    let sources = of.iter().skip(left_out);
    let undone = sources.flat_map(|named| named.run.undone.iter().cloned()).collect();
    let merged = new_run(engine, after, through, undone);
    world.media.overflow[merged.extent].write(Extent::Run(Rc::clone(&merged.run)));
    engine.put_runs(vec![merged]);
    engine.release_extents(world.scenario.mutant);
}

/// Takes an extent for a run.
fn new_run(engine: &mut Engine, after: u8, through: u8, undone: Vec<Undone>) -> NamedRun {
    let extent = engine.free_extents.iter().position(|free| *free).expect("there is room");
    engine.free_extents[extent] = false;
    engine.flush_counter += 1;
    let number = (engine.incarnation, engine.flush_counter);
    NamedRun { extent, run: Rc::new(Run { number, after, through, undone }) }
}
