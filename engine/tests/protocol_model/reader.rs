//! One lookup as of a snapshot: buffered changes, index, undo last of what changes, and then the page, which does not.
//! A grace guard covers it. The runs that it takes with undo are read then, too.

use std::rc::Rc;

use crate::actions::{Action, Next, World};
use crate::history::{Extent, NamedRun};
use crate::mutants::Mutant;
use crate::region::region_of;
use crate::state::{Engine, KEYS, Reader, ReaderStep, THERE, comes_and_goes};

pub(crate) fn steps(next: &mut Next<'_>, engine: &Engine) {
    match &engine.reader {
        None if next.from.budget.reads > 0 => {
            let in_memory = engine.undo.first().map(|undone| undone.number - 1);
            let on_device = engine.runs.first().map(|first| first.run.after);
            let oldest = on_device.or(in_memory).unwrap_or(engine.number);
            for snapshot in oldest.min(engine.number)..=engine.number {
                for key in 0..KEYS {
                    pin(next, snapshot, key);
                }
            }
        }
        None => {}
        Some(reader) => next.step(Action::Lookup, |world| lookup(world, reader.clone())),
    }
}

fn pin(next: &mut Next<'_>, snapshot: u8, key: usize) {
    next.step(Action::Pin { snapshot, key }, |world| {
        world.budget.reads -= 1;
        world.engine.reader = Some(Reader {
            step: ReaderStep::Pinned,
            snapshot,
            key,
            entry: None,
            value: None,
            undo: None,
            runs: Vec::new(),
            there: 0,
            outdated: false,
        });
        Ok(())
    });
}

fn lookup(world: &mut World<'_>, mut reader: Reader) -> Result<(), String> {
    let region = region_of(&world.engine.regions, reader.key);
    let pending = region.pending[reader.key].map(|(value, _)| value);
    let entry = region.entry(reader.key).clone();
    let undo = world.engine.undone(reader.snapshot, reader.key);
    reader.step = match reader.step {
        ReaderStep::Pinned => {
            reader.there = u8::from(world.engine.table.exists());
            match world.scenario.mutant {
                Mutant::ReaderIndexFirst => reader.entry = Some(entry),
                mutant => {
                    reader.value = pending;
                    if mutant == Mutant::ReaderUndoFirst {
                        reader.undo = undo;
                    }
                }
            }
            ReaderStep::SawPending
        }
        ReaderStep::SawPending => {
            match world.scenario.mutant {
                Mutant::ReaderIndexFirst => reader.value = pending,
                _ if reader.value.is_none() => reader.entry = Some(entry),
                _ => {}
            }
            ReaderStep::SawIndex
        }
        ReaderStep::SawIndex => {
            if reader.snapshot < world.engine.begin()
                && !world.scenario.without(Mutant::TooOldUnnoticed)
            {
                // Undo that nobody promised to keep goes for want of memory, here never.
                if world.scenario.history.is_none() {
                    return Err("a reader saw the end of what it reads".into());
                }
                // Told, and none the wiser.
                world.engine.reader = None;
                return Ok(());
            }
            if !world.scenario.without(Mutant::ReaderUndoFirst) {
                reader.undo = undo;
            }
            reader.there = world.engine.undone(reader.snapshot, THERE).unwrap_or(reader.there);
            let later = |named: &&NamedRun| named.run.through > reader.snapshot;
            reader.runs = world.engine.runs.iter().filter(later).cloned().collect();
            ReaderStep::SawUndo
        }
        ReaderStep::SawUndo => {
            for named in &reader.runs {
                let found = world.media.overflow[named.extent].visible();
                let is_there = found == Some(&Extent::Run(Rc::clone(&named.run)));
                if !is_there && world.engine.poisoned {
                    // Told: a failed sync has lost it.
                    world.engine.reader = None;
                    return Ok(());
                }
                if !is_there {
                    return Err("a reader met something else where its run was".into());
                }
            }
            if let (None, None, Some(entry)) = (reader.undo, reader.value, &reader.entry) {
                reader.value = Some(match &entry.page {
                    None => 0,
                    Some((page_no, page)) => {
                        if world.media.leaf[usize::from(*page_no)].visible() != Some(page) {
                            return Err(
                                "a reader met another page under the number it was sent to".into(),
                            );
                        }
                        page.position.value_in(page.values, reader.key)
                    }
                });
            }
            let then = world.ghost.history[usize::from(reader.snapshot)].0;
            let seen = |there: u8, value: Option<u8>| {
                value.filter(|_| !comes_and_goes(reader.key) || there == 1)
            };
            let found = seen(reader.there, reader.undo.or(reader.value));
            let expected = seen(then[THERE], Some(then[reader.key]));
            if found != expected {
                return Err(format!(
                    "a reader saw {found:?} instead of {expected:?} as of {}",
                    reader.snapshot
                ));
            }
            world.engine.reader = None;
            world.engine.release_extents(world.scenario.mutant);
            return Ok(());
        }
    };
    world.engine.reader = Some(reader);
    Ok(())
}
