//! The commit protocol: finish, ticket, write, sync, publish. Location records of flushes are tickets too.

use std::rc::Rc;

use crate::actions::{Action, Next, World};
use crate::history::Extent;
use crate::medium::{Aftermath, Media};
use crate::mutants::{Durability, Mutant, Scenario};
use crate::region::{Region, cut, first_positions, joined};
use crate::state::{
    Body, Changes, Commit, Engine, Finished, KEYS, Location, REGIONS, Record, SLOTS, THERE, Undone,
    Values, comes_and_goes, content, extent_of, long,
};
use crate::table::Fate;

/// Commits that may be ticketed ahead of publication: a parent and its child.
const GROUP: usize = 2;

/// The part of a publication that one step makes visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Undo,
    Table,
    Pending(usize),
    Number,
    Index,
    Retire,
    /// The index is already out (mutant).
    Late,
}

pub(crate) fn steps(next: &mut Next<'_>, engine: &Engine) {
    let scenario = next.scenario;
    let waiting =
        engine.queue.iter().filter(|record| matches!(record.body, Body::Commit(_))).count();
    let more = usize::from(engine.ticketed) < scenario.script.len();
    if engine.finished.is_none() && more && waiting < GROUP {
        next.step(Action::Finish, |world| {
            // A session folds against the index that is published.
            world.engine.finished = Some(finish(world.engine, None));
            Ok(())
        });
    }
    let settled = engine.queue.is_empty() && engine.ticketed == engine.number;
    let past = engine.kept_from < engine.number && scenario.history.is_some();
    if engine.finished.is_none() && settled && past && next.from.budget.rollbacks > 0 {
        next.step(Action::Rollback, |world| {
            world.budget.rollbacks -= 1;
            // As far back as can be.
            let back_to = world.engine.kept_from;
            world.engine.finished = Some(finish(world.engine, Some(back_to)));
            Ok(())
        });
    }
    let rival = engine.finished.is_some_and(|finished| finished.back_to.is_none());
    if scenario.rivals && rival && settled && past && next.from.budget.rollbacks > 0 {
        next.step(Action::RollbackBeside, |world| {
            world.budget.rollbacks -= 1;
            let waiting = world.engine.finished;
            let back_to = world.engine.kept_from;
            let rollback = finish(world.engine, Some(back_to));
            ticket(world, rollback)?;
            world.engine.finished = waiting;
            Ok(())
        });
    }
    // A rollback has taken what it goes back by.
    let back = engine.finished.is_some_and(|finished| finished.back_to.is_some());
    if next.from.budget.squeezes > 0 && past && engine.publishing == 0 && !back {
        next.step(Action::Squeeze, |world| {
            world.budget.squeezes -= 1;
            let number = world.engine.number;
            world.ghost.squeezed = world.ghost.squeezed.max(number);
            world.engine.forget(number);
            world.engine.release_extents(world.scenario.mutant);
            Ok(())
        });
    }
    if let Some(finished) = engine.finished
        && (finished.back_to.is_none() || settled)
        && may_add(scenario, engine, finished)
        && has_extent(scenario, engine)
    {
        if scenario.budget.joins > 0 && finished.held.is_none() {
            // A finish that is under way is the same to a join.
            next.step(Action::Hold, |world| {
                hold(world.engine);
                Ok(())
            });
        } else {
            next.step(Action::Ticket, |world| ticket(world, finished));
        }
    }
    free_extents(next, engine);
    if engine.written < engine.tail {
        next.step(Action::LogWrite, |world| {
            for record in world.engine.unwritten.drain(..) {
                world.media.write_record(&record);
            }
            world.engine.written = world.engine.tail;
            Ok(())
        });
    }
    if engine.durable < engine.written {
        next.step(Action::LogSync, |world| {
            world.media.log.iter_mut().for_each(super::medium::Unit::sync);
            synced(world);
            Ok(())
        });
        next.failing_sync(Action::LogSyncFails, fail_log_sync, synced);
    }
    if let Some(record) = engine.queue.first()
        && may_publish(scenario, engine, record)
    {
        next.step(Action::Publish, |world| {
            publish(world);
            Ok(())
        });
    }
}

fn finish(engine: &Engine, back_to: Option<u8>) -> Finished {
    Finished {
        fine: engine.regions[0].is_fine(),
        back_to,
        on: engine.values,
        parent: engine.ticketed,
        rest: false,
        held: None,
    }
}

/// How regions are joined, which stays so up to publication.
fn hold(engine: &mut Engine) {
    let held = Some(joined(&engine.regions));
    if let Some(finished) = &mut engine.finished {
        finished.held = held;
    }
}

/// A long value needs an extent.
fn has_extent(scenario: &Scenario, engine: &Engine) -> bool {
    !scenario.long_values || engine.free_extents.contains(&true)
}

/// Extents whose value no commit of the window had.
fn free_extents(next: &mut Next<'_>, engine: &Engine) {
    let history = next.scenario.history.unwrap_or(0);
    let states = &next.from.ghost.history;
    let durable = states.iter().rposition(|(_, behind)| *behind <= engine.durable).unwrap_or(0);
    // What the newest durable record says at least.
    let recorded = u8::try_from(durable).expect("few commits").saturating_sub(history);
    let by_memory = next.scenario.without(Mutant::RunsByMemory);
    let from = if by_memory { engine.kept_from } else { engine.kept_from.min(recorded) };
    for &(number, extent) in &engine.replaced_extents {
        if number <= from {
            next.step(Action::FreeExtent(extent), |world| {
                world.engine.replaced_extents.retain(|(_, other)| *other != extent);
                world.engine.free_extents[extent] = true;
                Ok(())
            });
        }
    }
}

/// A namespace is added where no trie of that name is kept.
fn may_add(scenario: &Scenario, engine: &Engine, finished: Finished) -> bool {
    let script = scenario.script.get(usize::from(finished.parent));
    let adds =
        finished.back_to.is_none() && script.is_some_and(|changes| changes[THERE] == Some(1));
    !adds || !engine.table.kept || scenario.without(Mutant::AddOverDropped)
}

/// One of the two halves of what touches both namespaces (mutant).
fn halved(changes: Changes, rest: bool) -> Changes {
    let [zero, one, two, three, there] = changes;
    if rest { [None, None, two, three, there] } else { [zero, one, None, None, None] }
}

/// What a commit does to the namespace that comes and goes, and its changes without those that say nothing.
fn fate(engine: &Engine, mut changes: Changes) -> (Changes, Option<Fate>) {
    if changes[THERE] == Some(engine.values[THERE]) {
        changes[THERE] = None;
    }
    if changes[THERE].unwrap_or(engine.values[THERE]) == 0 {
        changes[2..KEYS].fill(None);
    }
    let fate = changes[THERE].map(|there| match (there, engine.table.kept) {
        (0, _) => Fate::Dropped,
        (_, true) => Fate::Restored,
        (_, false) => Fate::Added,
    });
    (changes, fate)
}

/// Two states are the same to whoever may read them.
fn same(one: Values, other: Values) -> bool {
    let seen =
        |values: Values| if values[THERE] == 0 { [values[0], values[1], 0, 0, 0] } else { values };
    seen(one) == seen(other)
}

fn ticket(world: &mut World<'_>, finished: Finished) -> Result<(), String> {
    let engine = &mut *world.engine;
    engine.finished = None;
    let newest = finished.on == engine.values;
    let taken = match world.scenario.mutant {
        Mutant::ParentUnchecked => true,
        Mutant::ParentByNumber => finished.parent == engine.ticketed || finished.rest,
        _ => newest,
    };
    if !taken {
        // `StaleParent`.
        let refused = || "a commit was refused whose parent is the newest state".into();
        return if newest { Err(refused()) } else { Ok(()) };
    }
    // What its finish has folded.
    let mut folded = finished.on;
    let mut half = false;
    let changes = match finished.back_to {
        None => {
            let changes = world.scenario.script[usize::from(finished.parent)];
            if world.scenario.without(Mutant::RecordByNamespace) {
                half = !finished.rest;
                halved(changes, finished.rest)
            } else {
                changes
            }
        }
        Some(back_to) => {
            let by_parts = world.scenario.without(Mutant::RollbackByParts);
            let to = if by_parts { back_to.max(engine.ticketed - 1) } else { back_to };
            half = to > back_to;
            std::array::from_fn(|key| engine.undone(to, key))
        }
    };
    let (changes, fate) = fate(engine, changes);
    engine.ticketed += 1;
    let changes = spill(world.media, engine, world.scenario, changes);
    let mut replaced = [None; SLOTS];
    for slot in 0..SLOTS {
        if let Some(value) = changes[slot] {
            replaced[slot] = Some(engine.values[slot]);
            engine.values[slot] = value;
            folded[slot] = value;
        }
    }
    if finished.back_to.is_none() && changes[THERE] == Some(1) {
        // Added: what an older trie of that name had is not replaced, and not there.
        for key in (0..KEYS).filter(|key| comes_and_goes(*key)) {
            replaced[key] = None;
            engine.values[key] = changes[key].unwrap_or(0);
            folded[key] = engine.values[key];
        }
    }
    if world.scenario.without(Mutant::ExistenceNotInUndo) {
        replaced[THERE] = None;
    }
    // The layout version is checked under the sequencer; what has changed since `finish` is refolded first.
    let fine =
        if world.scenario.without(Mutant::RefoldSkipped) { finished.fine } else { engine.fine };
    let others = (1..REGIONS).flat_map(first_positions);
    let nodes = cut(fine)
        .iter()
        .chain(others)
        .filter(|position| position.keys().any(|key| changes[key].is_some()))
        .map(|position| (*position, position.node(folded)))
        .collect();
    let history = world.scenario.history.unwrap_or(0);
    let commit = Commit {
        number: engine.ticketed,
        changes,
        fate,
        replaced,
        kept_from: engine.kept_from.max(engine.ticketed.saturating_sub(history)),
        nodes,
        joined: finished.held.unwrap_or_else(|| joined(&engine.regions)),
        root: engine.values,
    };
    append(engine, Body::Commit(commit));
    world.ghost.history.push((engine.values, engine.tail));
    if half {
        world.ghost.half = Some(engine.ticketed);
        engine.finished = Some(Finished { rest: true, on: engine.values, ..finished });
    } else if let Some(back_to) = finished.back_to
        && !same(engine.values, world.ghost.history[usize::from(back_to)].0)
    {
        return Err(format!("a rollback to {back_to} leads to {:?}", engine.values));
    }
    Ok(())
}

/// A long value goes to an extent of its own, synced. The one that it replaces is free when the window has moved on.
fn spill(
    media: &mut Media,
    engine: &mut Engine,
    scenario: &Scenario,
    mut changes: Changes,
) -> Changes {
    if let Some(value) = changes[2].filter(|_| scenario.long_values) {
        let extent = engine.free_extents.iter().position(|free| *free).expect("there is one");
        engine.free_extents[extent] = false;
        media.overflow[extent].write(Extent::Value(content(value)));
        if !scenario.without(Mutant::ValueAfterRecord) {
            media.overflow[extent].sync();
        }
        changes[2] = Some(long(value, extent));
        let replaced = extent_of(engine.values[2]).expect("all its values are long");
        engine.replaced_extents.push((engine.ticketed, replaced));
    }
    changes
}

/// Takes the next log position and queues the record. Microseconds, under the sequencer; no I/O.
pub(crate) fn append(engine: &mut Engine, body: Body) {
    let record = Record {
        position: engine.tail,
        incarnation: engine.incarnation,
        durable_through: engine.durable,
        previous: engine.previous,
        body,
    };
    engine.tail += 1;
    engine.previous = record.checksum();
    let record = Rc::new(record);
    engine.queue.push(Rc::clone(&record));
    engine.unwritten.push(record);
}

/// The engine takes everything written for durable; so may the user.
fn synced(world: &mut World<'_>) {
    world.engine.durable = world.engine.written;
    let durable = world.engine.durable;
    let newest =
        world.ghost.history.iter().rposition(|(_, behind)| *behind <= durable).unwrap_or(0);
    world.ghost.floor = world.ghost.floor.max(u8::try_from(newest).expect("few commits"));
}

fn fail_log_sync(world: &mut World<'_>, aftermath: Aftermath) {
    world.media.log.iter_mut().for_each(|unit| unit.fail_sync(aftermath));
    if world.scenario.without(Mutant::ChildOutlivesParent) {
        // The failed batch is discarded, what is queued behind it goes on.
        let engine = &mut *world.engine;
        engine.queue.retain(|record| record.position >= engine.written);
        engine.publishing = 0;
        engine.published = engine.published.max(engine.written);
        engine.durable = engine.written;
    }
}

/// A commit waits for its bytes, and as the mode says for their sync. A flush need not: only its
/// `free` waits for its record.
fn may_publish(scenario: &Scenario, engine: &Engine, record: &Record) -> bool {
    if !matches!(record.body, Body::Commit(_)) {
        return true;
    }
    let synced =
        scenario.durability == Durability::Commit && !scenario.without(Mutant::AckBeforeSync);
    record.position < if synced { engine.durable } else { engine.written }
}

fn phases(mutant: Mutant, regions: &[Region; REGIONS], body: &Body) -> Vec<Phase> {
    match body {
        Body::Commit(commit) => {
            let regions = (0..REGIONS).filter(|at| regions[*at].touched_by(commit));
            let regions = regions.map(Phase::Pending);
            let pending = commit.fate.map(|_| Phase::Table).into_iter().chain(regions);
            match mutant {
                Mutant::BufferedBeforeUndo => pending.chain([Phase::Undo, Phase::Number]).collect(),
                Mutant::NumberBeforeBuffered => {
                    [Phase::Undo, Phase::Number].into_iter().chain(pending).collect()
                }
                _ => [Phase::Undo].into_iter().chain(pending).chain([Phase::Number]).collect(),
            }
        }
        Body::GiveUp(_) | Body::Join => unreachable!("published with its ticket"),
        Body::Location(_) => match mutant {
            Mutant::PublishBeforeAppend => vec![Phase::Late],
            Mutant::RemoveBeforeIndex => vec![Phase::Retire, Phase::Index],
            _ => vec![Phase::Index, Phase::Retire],
        },
    }
}

/// One step of publishing the oldest ticket.
fn publish(world: &mut World<'_>) {
    if world.scenario.without(Mutant::ChildBeforeParent) && publish_child(world) {
        return;
    }
    let record = Rc::clone(&world.engine.queue[0]);
    let phases = phases(world.scenario.mutant, &world.engine.regions, &record.body);
    let phase = phases[world.engine.publishing];
    match &record.body {
        Body::Commit(commit) => publish_commit(world, phase, commit, record.position + 1),
        Body::Location(location) => publish_location(world, phase, location, record.position + 1),
        Body::GiveUp(_) | Body::Join => unreachable!("published with its ticket"),
    }
    let engine = &mut *world.engine;
    engine.publishing += 1;
    if engine.publishing == phases.len() {
        engine.publishing = 0;
        published(engine);
        if matches!(record.body, Body::Location(_)) {
            engine.flush = None;
        }
    }
}

/// The oldest ticket is wholly published.
pub(crate) fn published(engine: &mut Engine) {
    let record = engine.queue.remove(0);
    engine.published = record.position + 1;
    engine.published_checksum = record.checksum();
    engine.published_incarnation = record.incarnation;
}

/// Publishes the child before its parent, where both are commits and are ready (mutant).
fn publish_child(world: &mut World<'_>) -> bool {
    let [parent, child, ..] = world.engine.queue.as_slice() else { return false };
    let ready = may_publish(world.scenario, world.engine, child);
    let (Body::Commit(_), Body::Commit(commit)) = (&parent.body, &child.body) else { return false };
    if world.engine.publishing > 0 || !ready {
        return false;
    }
    let (commit, behind) = (commit.clone(), child.position + 1);
    for phase in phases(Mutant::None, &world.engine.regions, &Body::Commit(commit.clone())) {
        publish_commit(world, phase, &commit, behind);
    }
    world.engine.queue.remove(1);
    true
}

fn publish_commit(world: &mut World<'_>, phase: Phase, commit: &Commit, behind: u8) {
    match phase {
        Phase::Undo => world.engine.undo.push(Undone {
            number: commit.number,
            replaced: commit.replaced,
            start: behind - 1,
        }),
        Phase::Pending(region) => {
            // A node without a position stays behind: the invariant on nodes is to notice.
            world.engine.regions[region].apply_commit(commit, behind);
        }
        Phase::Table => {
            let Some(fate) = commit.fate else { return };
            world.engine.table.apply(fate, commit.number);
            if fate == Fate::Added {
                for (at, region) in world.engine.regions.iter_mut().enumerate().skip(1) {
                    *region = Region::empty(first_positions(at), behind, commit.number);
                }
            }
        }
        Phase::Number => {
            world.engine.number = commit.number;
            let history = world.scenario.history.is_some();
            world.engine.recorded = if history { commit.kept_from } else { commit.number };
            world.engine.trim(world.scenario.history, commit.number);
            world.engine.release_extents(world.scenario.mutant);
            if world.scenario.durability == Durability::Commit {
                world.ghost.floor = world.ghost.floor.max(commit.number);
            }
        }
        Phase::Index | Phase::Retire | Phase::Late => unreachable!("a commit has no such phase"),
    }
}

fn publish_location(world: &mut World<'_>, phase: Phase, location: &Location, behind: u8) {
    let engine = &mut *world.engine;
    match phase {
        Phase::Index => {
            engine.regions[location.region].apply_location(location);
            engine.regions[location.region].applied = behind;
            super::flush::leave(world, location, behind);
        }
        Phase::Retire if world.scenario.without(Mutant::RemoveBeforeIndex) => {
            let mut after = engine.regions[location.region].clone();
            after.apply_location(location);
            after.retire();
            engine.regions[location.region].pending = after.pending;
        }
        Phase::Retire => engine.regions[location.region].retire(),
        Phase::Late => super::flush::leave(world, location, behind),
        Phase::Undo | Phase::Table | Phase::Pending(_) | Phase::Number => {
            unreachable!("a flush has no such phase")
        }
    }
}
