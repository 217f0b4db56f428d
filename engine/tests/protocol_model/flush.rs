//! Flush, from `gather` to `free`.

use std::rc::Rc;

use crate::actions::{Action, Next, World};
use crate::commit::{append, published};
use crate::mutants::Mutant;
use crate::region::{Entry, Page, Position, cut, joined};
use crate::state::{Body, Engine, Flush, FlushStep, Leaving, Location, REGIONS, SLOTS, Values};

pub(crate) fn steps(next: &mut Next<'_>, engine: &Engine) {
    match &engine.flush {
        None => starts(next, engine),
        Some(flush) => advance(next, engine, flush),
    }
    let settled = engine.queue.is_empty() && engine.publishing == 0;
    if settled && engine.flush.is_none() && may_be_given_up(next, engine) {
        gives_up(next, engine);
    }
    if settled && engine.flush.is_none() && may_join(next, engine) {
        next.step(Action::Join, |world| {
            world.budget.joins -= 1;
            join(world);
            Ok(())
        });
    }
    for leaving in &engine.leaving {
        let durable = leaving.behind <= engine.durable;
        let unread = !engine.reader.as_ref().is_some_and(|reader| reader.outdated);
        let durable = durable || next.scenario.without(Mutant::FreeBeforeDurable);
        let unread = unread || next.scenario.without(Mutant::FreeIgnoresReaders);
        if durable && unread {
            let page_no = leaving.page_no;
            next.step(Action::Free(page_no), |world| {
                world.engine.leaving.retain(|leaving| leaving.page_no != page_no);
                world.engine.free[usize::from(page_no)] = true;
                Ok(())
            });
        }
    }
}

/// The dropped trie is reclaimed when no state that can be read has it.
fn may_be_given_up(next: &Next<'_>, engine: &Engine) -> bool {
    let without = |mutant| next.scenario.without(mutant);
    let Some(dropped) = engine.table.dropped.filter(|_| engine.table.kept) else { return false };
    let window = if without(Mutant::GivenUpByMemory) { engine.kept_from } else { engine.recorded };
    let window = window >= dropped || without(Mutant::GivenUpInWindow);
    let read = engine.reader.as_ref().is_some_and(|reader| reader.snapshot < dropped);
    let read = read && !without(Mutant::GivenUpUnderReaders);
    // A rollback reads what it goes back to.
    let back = engine.finished.is_some_and(|finished| finished.back_to.is_some());
    window && !read && !back
}

/// Each record reclaims one region of it. A trie with nothing left is removed without a record.
fn gives_up(next: &mut Next<'_>, engine: &Engine) {
    let image = engine.checkpoint.is_some() && !next.scenario.without(Mutant::GivenUpInImage);
    let left = (1..REGIONS).find(|at| !engine.regions[*at].is_bare());
    if let Some(at) = left {
        next.step(Action::GiveUp(at), |world| {
            give_up(world, at);
            Ok(())
        });
    }
    let begun = engine.regions[1].is_bare() && next.scenario.without(Mutant::LeftWithPieces);
    if (left.is_none() || begun) && !image && engine.finished.is_none() {
        next.step(Action::Leave, |world| {
            let dropped = world.engine.table.dropped.unwrap_or(0);
            world.engine.table.leave();
            world.engine.forget(dropped);
            world.engine.release_extents(world.scenario.mutant);
            outdate(world.engine);
            Ok(())
        });
    }
}

/// Record and publication in one moment, as nothing is between ticket and publication.
fn give_up(world: &mut World<'_>, at: usize) {
    let engine = &mut *world.engine;
    if !world.scenario.without(Mutant::GivenUpWithoutRecord) {
        append(engine, Body::GiveUp(at));
        published(engine);
    }
    let (behind, number) = (engine.published, engine.number);
    let dropped = engine.table.dropped.unwrap_or(0);
    // Without a history all undo is in memory, and what it reaches back to has lost its trie.
    engine.forget(dropped);
    engine.release_extents(world.scenario.mutant);
    let emptied = engine.regions[at].emptied(behind, number);
    let left = std::mem::replace(&mut engine.regions[at], emptied);
    outdate(engine);
    for (page_no, _) in left.entries.iter().filter_map(|entry| entry.page.as_ref()) {
        engine.leaving.push(Leaving { page_no: *page_no, behind });
    }
}

/// Regions 1 and 2 become one: their trie is there, and whoever would be wrong about them is not under way.
fn may_join(next: &Next<'_>, engine: &Engine) -> bool {
    let without = |mutant| next.scenario.without(mutant);
    let image = engine.checkpoint.is_some() && !without(Mutant::JoinedInImage);
    let batch = engine.finished.is_some_and(|finished| finished.held.is_some());
    let batch = batch && !without(Mutant::JoinedBesideBatch);
    let there = engine.table.exists() && !joined(&engine.regions);
    next.from.budget.joins > 0 && there && !image && !batch
}

/// Record and publication in one moment.
fn join(world: &mut World<'_>) {
    let engine = &mut *world.engine;
    append(engine, Body::Join);
    published(engine);
    let behind = engine.published;
    let [_, left, right] = &mut engine.regions;
    left.join(right, behind);
    outdate(engine);
}

fn starts(next: &mut Next<'_>, engine: &Engine) {
    if next.from.budget.flushes == 0 {
        return;
    }
    for region in 0..REGIONS {
        let pending = |position: &Position| {
            position.keys().any(|key| engine.regions[region].pending[key].is_some())
        };
        let there = region == 0 || engine.table.kept;
        if !there || !engine.regions[region].pends() {
            continue;
        }
        let now: Vec<Position> =
            engine.regions[region].entries.iter().map(|entry| entry.position).collect();
        if next.scenario.keep_layout {
            let touched: Vec<Position> =
                now.iter().copied().filter(|position| pending(position)).collect();
            start(next, engine, region, &touched, &touched);
        }
        if next.scenario.change_layout && region == 0 {
            start(next, engine, region, &now, cut(now.len() == 1));
        }
    }
}

fn start(
    next: &mut Next<'_>,
    engine: &Engine,
    region: usize,
    replaced: &[Position],
    new: &[Position],
) {
    if engine.free.iter().filter(|free| **free).count() < new.len() {
        return;
    }
    let recut = replaced != new;
    next.step(Action::FlushFold { region, recut }, |world| {
        world.budget.flushes -= 1;
        fold(world, region, replaced, new)
    });
}

/// Page and buffered changes make the new page; page numbers are taken from the free ones.
fn fold(
    world: &mut World<'_>,
    region: usize,
    replaced: &[Position],
    new: &[Position],
) -> Result<(), String> {
    let engine = &mut *world.engine;
    // What the region has, under its lock: a commit may be published here and not yet everywhere.
    let tip = world.scenario.without(Mutant::ThroughIsTip);
    let through = if tip { engine.number } else { engine.regions[region].changed };
    let mut values: Values = [0; SLOTS];
    for key in replaced.iter().flat_map(|position| position.keys()) {
        let entry = engine.regions[region].entry(key);
        if let Some((page_no, page)) = &entry.page {
            if world.media.leaf[usize::from(*page_no)].visible() != Some(page) {
                return Err("a flush read a page that is not the one its entry names".into());
            }
            values[key] = page.position.value_in(page.values, key);
        }
        if let Some((value, number)) = engine.regions[region].pending[key]
            && number <= through
        {
            values[key] = value;
        }
    }
    engine.flush_counter += 1;
    let old =
        engine.regions[region].entries.iter().filter(|entry| replaced.contains(&entry.position));
    let freed = old.filter_map(|entry| entry.page.as_ref().map(|(page_no, _)| *page_no)).collect();
    let mut flush = Flush {
        step: FlushStep::Folded,
        region,
        replaced: replaced.to_vec(),
        pages: Vec::new(),
        bare: Vec::new(),
        freed,
        contains: world.ghost.history[usize::from(through)].1,
        folded: values,
    };
    for position in new {
        let node = position.node(values);
        if world.scenario.without(Mutant::DeletionUncovers)
            && position.keys().all(|key| values[key] == 0)
        {
            flush.bare.push(*position);
            continue;
        }
        let page_no = engine.free.iter().position(|free| *free).expect("counted before");
        engine.free[page_no] = false;
        world.media.leaf_len = world.media.leaf_len.max(page_no + 1);
        let flush_number = (engine.incarnation, engine.flush_counter);
        let page = Page { flush: flush_number, position: *position, through, values: node };
        flush.pages.push((u8::try_from(page_no).expect("few pages"), Rc::new(page)));
    }
    engine.flush = Some(flush);
    Ok(())
}

fn advance(next: &mut Next<'_>, engine: &Engine, flush: &Flush) {
    match flush.step {
        FlushStep::Folded => {
            if engine.durable >= flush.contains || next.scenario.without(Mutant::FlushAheadOfLog) {
                next.step(Action::FlushAwaitLog, |world| set(world, FlushStep::LogDurable));
            }
        }
        FlushStep::LogDurable => next.step(Action::FlushWrite, |world| {
            for (page_no, page) in &flush.pages {
                world.media.leaf[usize::from(*page_no)].write(Rc::clone(page));
            }
            set(world, FlushStep::Written)
        }),
        FlushStep::Written => {
            next.step(Action::FlushSync, |world| {
                if !world.scenario.without(Mutant::PagesNotSynced) {
                    world.media.leaf.iter_mut().for_each(super::medium::Unit::sync);
                }
                set(world, FlushStep::Synced)
            });
            next.failing_sync(
                Action::FlushSyncFails,
                |world, aftermath| {
                    world.media.leaf.iter_mut().for_each(|unit| unit.fail_sync(aftermath));
                },
                |world| {
                    let _: Result<(), String> = set(world, FlushStep::Synced);
                },
            );
        }
        FlushStep::Synced if next.scenario.without(Mutant::PublishBeforeAppend) => {
            next.step(Action::FlushPublishEarly, |world| {
                let location = location(flush, world.engine.values);
                let region = &mut world.engine.regions[flush.region];
                region.apply_location(&location);
                region.retire();
                outdate(world.engine);
                set(world, FlushStep::PublishedEarly)
            });
        }
        FlushStep::Synced | FlushStep::PublishedEarly => next.step(Action::FlushTicket, |world| {
            // Nodes as of this place in the log, which may lie behind commits that came after the fold.
            let at_fold = world.scenario.without(Mutant::LocationNodesAtFold);
            let values = if at_fold { flush.folded } else { world.engine.values };
            let location = location(flush, values);
            if flush.region == 0 {
                let mut after = world.engine.regions[0].clone();
                after.apply_location(&location);
                world.engine.fine = after.is_fine();
            }
            append(world.engine, Body::Location(location));
            set(world, FlushStep::Ticketed)
        }),
        FlushStep::Ticketed => {}
    }
}

fn location(flush: &Flush, values: Values) -> Location {
    let paged = flush
        .pages
        .iter()
        .map(|(page_no, page)| (page.position, Some((*page_no, Rc::clone(page)))));
    let bare = flush.bare.iter().map(|position| (*position, None));
    let entries = paged
        .chain(bare)
        .map(|(position, page)| Entry { position, page, node: position.node(values) })
        .collect();
    Location {
        region: flush.region,
        replaced: flush.replaced.clone(),
        entries,
        freed: flush.freed.clone(),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it ends steps, which can fail")]
fn set(world: &mut World<'_>, step: FlushStep) -> Result<(), String> {
    if let Some(flush) = &mut world.engine.flush {
        flush.step = step;
    }
    Ok(())
}

fn outdate(engine: &mut Engine) {
    if let Some(reader) = &mut engine.reader {
        reader.outdated = true;
    }
}

/// The old pages are out of the index. Rules `free-after-durable` and `free-after-readers` say when they
/// are free.
pub(crate) fn leave(world: &mut World<'_>, location: &Location, behind: u8) {
    outdate(world.engine);
    for page_no in &location.freed {
        world.engine.leaving.push(Leaving { page_no: *page_no, behind });
    }
}
