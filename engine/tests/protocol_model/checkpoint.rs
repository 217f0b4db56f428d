//! Checkpoint: a fuzzy image into the older file, then the older superblock slot, then the log that nobody needs goes.
//! `write-history`, its first step, is in `history`: without room for a run a checkpoint does without.

use std::rc::Rc;

use crate::actions::{Action, Next, World};
use crate::history::Past;
use crate::mutants::{Mutant, Scenario};
use crate::region::Region;
use crate::state::{Body, Checkpoint, CheckpointStep, Engine, Image, REGIONS, Superblock};

pub(crate) fn steps(next: &mut Next<'_>, engine: &Engine) {
    let Some(checkpoint) = &engine.checkpoint else {
        if next.from.budget.checkpoints > 0 && engine.publishing == 0 {
            next.step(Action::CheckpointCut, |world| {
                cut(world);
                Ok(())
            });
        }
        return;
    };
    match checkpoint.step {
        CheckpointStep::Cut => next.step(Action::CheckpointRegion, |world| {
            let alone = world.scenario.apart || checkpoint.regions.is_empty();
            for _ in checkpoint.regions.len()..REGIONS {
                serialise(world)?;
                if alone {
                    break;
                }
            }
            Ok(())
        }),
        CheckpointStep::AllRegions => next.step(Action::ImageWrite, |world| {
            let generation = checkpoint.superblock.generation;
            let regions: [_; REGIONS] =
                checkpoint.regions.clone().try_into().expect("all are there");
            let late = world.scenario.without(Mutant::TableFromLate);
            let table = if late { world.engine.table } else { checkpoint.table };
            let past = past_for_image(world, checkpoint);
            let image = Image { generation, table, past, regions };
            world.media.image[checkpoint.superblock.image].write(Rc::new(image));
            set(world, CheckpointStep::ImageWritten)
        }),
        CheckpointStep::ImageWritten => image_sync(next),
        CheckpointStep::ImageSynced => {
            let highest = checkpoint.regions.iter().map(|region| region.applied).max().unwrap_or(0);
            if engine.durable >= highest || next.scenario.without(Mutant::SuperblockBeforeLog) {
                next.step(Action::CheckpointAwaitLog, |world| {
                    set(world, CheckpointStep::LogSynced)
                });
            }
        }
        CheckpointStep::LogSynced => next.step(Action::SuperblockWrite, |world| {
            let mut superblock = checkpoint.superblock.clone();
            superblock.durable_through = world.engine.durable;
            world.media.superblock[checkpoint.slot].write(Rc::new(superblock));
            set(world, CheckpointStep::SuperblockWritten)
        }),
        CheckpointStep::SuperblockWritten => superblock_sync(next),
        CheckpointStep::SuperblockSynced => next.step(Action::LogDrop, |world| {
            if world.scenario.first_page > 0 {
                shrink(world, checkpoint);
            }
            drop_log(world, checkpoint);
            Ok(())
        }),
    }
}

fn cut(world: &mut World<'_>) {
    world.budget.checkpoints -= 1;
    let engine = &mut *world.engine;
    let published =
        (engine.published, engine.published_checksum, engine.published_incarnation, engine.number);
    let ticketed = (engine.tail, engine.previous, engine.incarnation, engine.ticketed);
    let at_ticket = world.scenario.without(Mutant::CutAtTicket);
    let (replay_start, previous, incarnation, number) =
        if at_ticket { ticketed } else { published };
    let superblock = Superblock {
        generation: engine.generation + 1,
        image: if world.scenario.without(Mutant::ImageOverNewest) {
            engine.image
        } else {
            1 - engine.image
        },
        replay_start,
        log_from: 0,
        durable_through: 0,
        previous,
        incarnation,
        number,
        root: world.ghost.history[usize::from(number)].0,
    };
    let past = past(world.scenario, engine, replay_start);
    let superblock = Superblock { log_from: past.records, ..superblock };
    let slot = if world.scenario.without(Mutant::SuperblockOverNewest) {
        engine.slot
    } else {
        1 - engine.slot
    };
    if world.scenario.without(Mutant::RunFreedAtCut) {
        engine.named.clone_from(&past.runs);
    }
    engine.checkpoint = Some(Checkpoint {
        step: CheckpointStep::Cut,
        superblock,
        slot,
        table: engine.table,
        past,
        regions: Vec::new(),
    });
    engine.release_extents(world.scenario.mutant);
}

/// The history as of now. There is none where undo is in memory alone.
fn past(scenario: &Scenario, engine: &Engine, replay_start: u8) -> Past {
    match scenario.history {
        Some(_) => engine.past(replay_start),
        None => Past { runs: Vec::new(), records: replay_start, kept_from: engine.number },
    }
}

/// What the image says of the history: that of the cut.
fn past_for_image(world: &mut World<'_>, checkpoint: &Checkpoint) -> Past {
    let replay_start = checkpoint.superblock.replay_start;
    match world.scenario.mutant {
        Mutant::HistoryFromLate => {
            let late = past(world.scenario, world.engine, replay_start);
            let checkpoint = world.engine.checkpoint.as_mut().expect("this one");
            (checkpoint.superblock.log_from, checkpoint.past) = (late.records, late.clone());
            late
        }
        Mutant::RecordsBehindCut => Past { records: replay_start, ..checkpoint.past.clone() },
        _ => checkpoint.past.clone(),
    }
}

/// Copies one region under its lock: entries, nodes, buffered changes and position belong together.
fn serialise(world: &mut World<'_>) -> Result<(), String> {
    let Engine { checkpoint, regions, table, .. } = &mut *world.engine;
    let Some(checkpoint) = checkpoint else { return Ok(()) };
    let other = (table.kept, table.born) != (checkpoint.table.kept, checkpoint.table.born);
    if !checkpoint.regions.is_empty() && checkpoint.table.kept && other {
        return Err("a region of the image's table is not there to be copied".into());
    }
    let mut region = regions[checkpoint.regions.len()].clone();
    // Untouched since the cut: everything below the cut is in it.
    region.applied = region.applied.max(checkpoint.superblock.replay_start);
    checkpoint.regions.push(region);
    if checkpoint.regions.len() == REGIONS {
        checkpoint.step = CheckpointStep::AllRegions;
    }
    Ok(())
}

/// Image and overflow file.
fn image_sync(next: &mut Next<'_>) {
    next.step(Action::ImageSync, |world| {
        if !world.scenario.without(Mutant::SuperblockBeforeImage) {
            world.media.image.iter_mut().for_each(super::medium::Unit::sync);
        }
        if !world.scenario.without(Mutant::RunsNotSynced) {
            world.media.overflow.iter_mut().for_each(super::medium::Unit::sync);
        }
        set(world, CheckpointStep::ImageSynced)
    });
    next.failing_sync(
        Action::ImageSyncFails,
        |world, aftermath| {
            world.media.image.iter_mut().for_each(|unit| unit.fail_sync(aftermath));
            world.media.overflow.iter_mut().for_each(|unit| unit.fail_sync(aftermath));
        },
        |world| {
            let _: Result<(), String> = set(world, CheckpointStep::ImageSynced);
        },
    );
}

fn superblock_sync(next: &mut Next<'_>) {
    next.step(Action::SuperblockSync, |world| {
        world.media.superblock.iter_mut().for_each(super::medium::Unit::sync);
        set(world, CheckpointStep::SuperblockSynced)
    });
    next.failing_sync(
        Action::SuperblockSyncFails,
        |world, aftermath| {
            world.media.superblock.iter_mut().for_each(|unit| unit.fail_sync(aftermath));
        },
        |world| {
            let _: Result<(), String> = set(world, CheckpointStep::SuperblockSynced);
        },
    );
}

/// The leaf file ends behind all that is in use or that a recovery from either generation would read.
fn shrink(world: &mut World<'_>, checkpoint: &Checkpoint) {
    let media = &mut *world.media;
    let mut named: Vec<u8> = pages(&checkpoint.regions).collect();
    let older = media.superblock[1 - checkpoint.slot].visible();
    if let Some(older) = older.filter(|_| !world.scenario.without(Mutant::ShrinkBehindNewest)) {
        let image = media.image[older.image].visible();
        named.extend(image.iter().flat_map(|image| pages(&image.regions)));
        let records = media.log.iter().skip(usize::from(older.replay_start));
        for record in records.filter_map(|unit| unit.visible()) {
            if let Body::Location(location) = &record.body {
                named.extend(location.pages());
            }
        }
    }
    let free =
        |at: &usize| world.engine.free[*at] && !named.iter().any(|no| usize::from(*no) == *at);
    let cut = (0..media.leaf_len).rev().take_while(free).last();
    if let Some(cut) = cut {
        media.leaf_len = cut;
        media.leaf[cut..].iter_mut().for_each(super::medium::Unit::destroy);
    }
}

fn pages(regions: &[Region]) -> impl Iterator<Item = u8> {
    let entries = regions.iter().flat_map(|region| &region.entries);
    entries.filter_map(|entry| entry.page.as_ref().map(|(page_no, _)| *page_no))
}

/// A record goes when neither superblock would replay it, nor read it for its history; a run, when the older one alone names it.
fn drop_log(world: &mut World<'_>, checkpoint: &Checkpoint) {
    let replay_only = world.scenario.without(Mutant::HistoryDroppedByCheckpoint);
    let from = |superblock: &Superblock| {
        if replay_only { superblock.replay_start } else { superblock.log_from }
    };
    let newest = from(&checkpoint.superblock);
    let other =
        world.media.superblock[1 - checkpoint.slot].visible().map_or(newest, |other| from(other));
    let below =
        if world.scenario.without(Mutant::LogDroppedByNewest) { newest } else { newest.min(other) };
    for unit in world.media.log.iter_mut().take(usize::from(below)) {
        unit.destroy();
    }
    let engine = &mut *world.engine;
    engine.slot = checkpoint.slot;
    engine.image = checkpoint.superblock.image;
    engine.generation = checkpoint.superblock.generation;
    engine.named.clone_from(&checkpoint.past.runs);
    engine.checkpoint = None;
    engine.release_extents(world.scenario.mutant);
}

#[expect(clippy::unnecessary_wraps, reason = "it ends steps, which can fail")]
fn set(world: &mut World<'_>, step: CheckpointStep) -> Result<(), String> {
    if let Some(checkpoint) = &mut world.engine.checkpoint {
        checkpoint.step = step;
    }
    Ok(())
}
