//! Recovery, the mirror of commit and checkpoint: find, replay, raise the incarnation, secure what was only read, open.

use std::rc::Rc;

use crate::actions::{Action, Next};
use crate::medium::{Media, Unit};
use crate::mutants::{Mutant, Scenario};
use crate::oracle;
use crate::region::{Region, first_positions};
use crate::state::{
    Body, Commit, Engine, Image, Location, PLACES, Process, REGIONS, RUNS, Record, Recovery,
    RecoveryStep, Rot, SLOTS, State, Superblock, Undone, Values, run_of,
};
use crate::table::{Fate, Table};

/// What a scan finds on the medium, before it is replayed.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) slot: usize,
    pub(crate) superblock: Rc<Superblock>,
    pub(crate) image: Rc<Image>,
    /// From the replay start to the cut.
    pub(crate) records: Vec<Rc<Record>>,
    /// From where the history begins to the replay start; nothing when they do not all follow each other.
    pub(crate) past: Vec<Rc<Record>>,
    /// Everything below was synced when some record or superblock was written.
    pub(crate) proven: u8,
    pub(crate) complete_generations: usize,
    /// The highest that a slot names, complete or not: never given out again.
    pub(crate) generation: u8,
    /// The log is broken below something that was durable.
    pub(crate) broken: bool,
}

/// Newest complete generation, and the log from its replay start to the first record that is not the next one.
pub(crate) fn find(state: &State, mutant: Mutant) -> Option<Found> {
    let media = &state.media;
    let slots = [0, 1].map(|slot| media.superblock[slot].visible());
    let mut complete = Vec::new();
    for (slot, superblock) in slots.iter().enumerate() {
        let Some(superblock) = superblock else { continue };
        if let Some(image) = media.image[superblock.image].visible()
            && image.generation == superblock.generation
        {
            complete.push((superblock.generation, slot, Rc::clone(superblock), Rc::clone(image)));
        }
    }
    complete.sort_by_key(|(generation, ..)| *generation);
    let complete_generations = complete.len();
    let (_, slot, superblock, image) = complete.pop()?;

    let mut records: Vec<Rc<Record>> = Vec::new();
    let (mut previous, mut incarnation) = (superblock.previous, superblock.incarnation);
    let mut at = usize::from(superblock.replay_start);
    while let Some(record) = media.log.get(at).and_then(|unit| unit.visible()) {
        if record.previous != previous || record.incarnation < incarnation {
            break;
        }
        (previous, incarnation) = (record.checksum(), record.incarnation);
        records.push(Rc::clone(record));
        at += 1;
    }

    let past = past(state, &superblock).unwrap_or_default();
    let claims = slots.iter().flatten().map(|superblock| superblock.durable_through);
    let accepted = records.iter().map(|record| record.durable_through);
    let behind = media.log.iter().skip(at).filter_map(|unit| unit.visible());
    // Whatever its incarnation: what a record knew was true when it was written.
    let later = behind.map(|record| record.durable_through);
    let proven = claims.chain(accepted).chain(later).max().unwrap_or(0);
    let broken = usize::from(proven) > at && mutant != Mutant::DurableThroughIgnored;
    let generations = slots.iter().flatten().map(|superblock| superblock.generation);
    let generation = generations.max().unwrap_or(0);
    Some(Found {
        slot,
        superblock,
        image,
        records,
        past,
        proven,
        complete_generations,
        generation,
        broken,
    })
}

/// The records of the history below the replay start, which end in the record that the superblock knows.
fn past(state: &State, superblock: &Superblock) -> Option<Vec<Rc<Record>>> {
    let mut records: Vec<Rc<Record>> = Vec::new();
    for at in superblock.history_from..superblock.replay_start {
        let record = state.media.log.get(usize::from(at))?.visible()?;
        if records.last().is_some_and(|last| record.previous != last.checksum()) {
            return None;
        }
        records.push(Rc::clone(record));
    }
    let ends = records.last().is_none_or(|last| last.checksum() == superblock.previous);
    ends.then_some(records)
}

/// What commits replaced, as their records have it, and the oldest commit that can be read by it.
fn undo(found: &Found, mutant: Mutant) -> (Vec<Undone>, u8) {
    let mut undo: Vec<Undone> = Vec::new();
    let mut kept_from = None;
    for record in found.past.iter().chain(&found.records) {
        let Body::Commit(commit) = &record.body else { continue };
        kept_from = Some(kept_from.unwrap_or(commit.number - 1).max(commit.kept_from));
        let replaced =
            if mutant == Mutant::UndoNotInRecord { [None; SLOTS] } else { commit.replaced };
        undo.push(Undone { number: commit.number, replaced, start: record.position });
    }
    let kept_from = kept_from.unwrap_or(found.superblock.number);
    undo.retain(|undone| undone.number > kept_from);
    (undo, kept_from)
}

/// The regions behind the last record, with its commit number and root.
struct Replayed {
    table: Table,
    regions: [Region; REGIONS],
    number: u8,
    root: Values,
}

/// Applies each record to the regions that have not seen it. `None` if a record does not fit its region.
fn replay(found: &Found, mutant: Mutant) -> Option<Replayed> {
    let mut regions = found.image.regions.clone();
    let mut table = found.image.table;
    let (mut number, mut root) = (found.superblock.number, found.superblock.root);
    let wanted = |region: &Region, record: &Record| {
        record.position >= region.applied || mutant == Mutant::RegionPositionIgnored
    };
    for record in &found.records {
        match &record.body {
            Body::Commit(commit) => {
                (number, root) = (commit.number, commit.root);
                // An older image has a trie that had left when another came over it.
                if commit.fate == Some(Fate::Added)
                    && table.dropped.is_some()
                    && regions[1..].iter().all(Region::is_bare)
                {
                    table.leave();
                }
                // The table is as of the cut, so all that follows is new to it.
                if commit.fate.is_some_and(|fate| !table.apply(fate, number)) {
                    return None;
                }
                if commit.fate == Some(Fate::Added) {
                    for (at, region) in regions.iter_mut().enumerate().skip(1) {
                        *region = Region::empty(first_positions(at), record.position + 1, number);
                        region.apply_commit(commit, record.position + 1);
                    }
                }
                if !replay_commit(&mut regions, commit, record, &wanted) {
                    return None;
                }
            }
            Body::GiveUp(at) => {
                table.dropped?;
                if wanted(&regions[*at], record) {
                    regions[*at] = regions[*at].emptied(record.position + 1, number);
                }
            }
            Body::Join => {
                let [_, left, right] = &mut regions;
                let wanted = [&*left, &*right].map(|region| wanted(region, record));
                match wanted {
                    [true, true] if !right.entries.is_empty() => {
                        left.join(right, record.position + 1);
                    }
                    [false, false] => {}
                    _ => return None,
                }
            }
            Body::Location(location) if mutant == Mutant::LocationWithoutNamespace => {
                let first = Location { region: 0, ..location.clone() };
                if !replay_location(&mut regions, &first, record, &wanted) {
                    return None;
                }
            }
            Body::Location(location) => {
                if !replay_location(&mut regions, location, record, &wanted) {
                    return None;
                }
            }
        }
    }
    for region in &mut regions {
        // An image may be cut between the publication of an index and the retirement of what it covers.
        region.retire();
        region.renew_own();
    }
    Some(Replayed { table, regions, number, root })
}

fn replay_commit(
    regions: &mut [Region; REGIONS],
    commit: &Commit,
    record: &Record,
    wanted: &impl Fn(&Region, &Record) -> bool,
) -> bool {
    let mut fits = true;
    for region in regions {
        if region.touched_by(commit) && wanted(region, record) {
            fits &= region.apply_commit(commit, record.position + 1);
        }
    }
    fits
}

fn replay_location(
    regions: &mut [Region; REGIONS],
    location: &Location,
    record: &Record,
    wanted: &impl Fn(&Region, &Record) -> bool,
) -> bool {
    let region = &mut regions[location.region];
    if !wanted(region, record) {
        return true;
    }
    let fits = region.apply_location(location);
    region.applied = record.position + 1;
    region.retire();
    fits
}

/// The pages that image and records name, whether or not another record gives them up.
fn named(found: &Found) -> impl Iterator<Item = u8> {
    let entries = found.image.regions.iter().flat_map(|region| &region.entries);
    let image = entries.filter_map(|entry| entry.page.as_ref().map(|(page_no, _)| *page_no));
    let records = found.records.iter().filter_map(|record| match &record.body {
        Body::Location(location) => Some(location.pages()),
        Body::Commit(_) | Body::GiveUp(_) | Body::Join => None,
    });
    image.chain(records.flatten())
}

/// Free runs are those that neither the newest state names nor what it has replaced, which are free later.
fn runs(undo: &[Undone], values: Values) -> ([bool; RUNS], Vec<(u8, usize)>) {
    let run_in = |undone: &Undone| Some((undone.number, run_of(undone.replaced[2]?)?));
    let replaced: Vec<(u8, usize)> = undo.iter().filter_map(run_in).collect();
    let mut free = [true; RUNS];
    for run in replaced.iter().map(|(_, run)| *run).chain(run_of(values[2])) {
        free[run] = false;
    }
    (free, replaced)
}

/// Reads everything and decides. Pure: nothing is written yet.
pub(crate) fn scan(next: &mut Next<'_>) {
    let mut state = next.from.clone();
    let outcome = match recover(&state, next.scenario) {
        Ok(recovery) => {
            let verdict = oracle::recovered(&mut state, &recovery.engine, next.scenario.history);
            state.process = Process::Recovering(Box::new(recovery));
            verdict
        }
        Err(damage) if state.ghost.rot == Some(Rot::Sealed) => {
            let _: String = damage;
            state.process = Process::Refused;
            Ok(())
        }
        Err(damage) => Err(format!("damage was reported where there is none: {damage}")),
    };
    next.out.push((Action::Scan, outcome.map(|()| state)));
}

/// Reads the medium and builds the memory of an engine behind the cut.
pub(crate) fn recover(state: &State, scenario: &Scenario) -> Result<Recovery, String> {
    let mutant = scenario.mutant;
    let found = find(state, mutant).ok_or("no complete generation")?;
    if found.broken {
        return Err("the log is broken below what was durable".into());
    }
    if named(&found).any(|page_no| usize::from(page_no) >= state.media.leaf_len) {
        return Err("a page is named that is not in the leaf file".into());
    }
    let replayed = replay(&found, mutant).ok_or("a record does not fit its region")?;
    if !oracle::nodes_match(&replayed.regions, replayed.table, replayed.root) {
        return Err("the recomputed root is not the last commit's".into());
    }
    let copies = state.media.incarnation.iter().filter_map(|unit| unit.visible());
    let incarnation = copies.max().ok_or("no incarnation")? + 1;
    let last = found.records.last();
    let tail = last.map_or(found.superblock.replay_start, |record| record.position + 1);
    let previous = last.map_or(found.superblock.previous, |record| record.checksum());
    let mut free = [true; PLACES];
    for (page_no, _) in replayed
        .regions
        .iter()
        .flat_map(|region| &region.entries)
        .filter_map(|entry| entry.page.as_ref())
    {
        free[usize::from(*page_no)] = false;
    }
    let (undo, kept_from) = if scenario.history.is_some() {
        undo(&found, mutant)
    } else {
        (Vec::new(), replayed.number)
    };
    let (free_runs, replaced_runs) = runs(&undo, replayed.root);
    let engine = Engine {
        incarnation: if mutant == Mutant::NoIncarnation { 1 } else { incarnation },
        flush_counter: 0,
        fine: replayed.regions[0].is_fine(),
        table: replayed.table,
        regions: replayed.regions,
        number: replayed.number,
        published: tail,
        publishing: 0,
        undo,
        kept_from,
        recorded: kept_from,
        finished: None,
        ticketed: replayed.number,
        values: replayed.root,
        queue: Vec::new(),
        unwritten: Vec::new(),
        tail,
        previous,
        written: tail,
        durable: tail,
        published_checksum: previous,
        published_incarnation: last
            .map_or(found.superblock.incarnation, |record| record.incarnation),
        flush: None,
        leaving: Vec::new(),
        free,
        free_runs,
        replaced_runs,
        checkpoint: None,
        slot: found.slot,
        image: found.superblock.image,
        generation: if mutant == Mutant::GenerationReused {
            found.superblock.generation
        } else {
            found.generation
        },
        reader: None,
        poisoned: false,
    };
    Ok(Recovery { step: RecoveryStep::Scanned, engine, proven: found.proven })
}

/// What was read may be in the cache only. Nothing is built on it before it is durable.
pub(crate) fn secure(next: &mut Next<'_>, recovery: &Recovery) {
    let mutant = next.scenario.mutant;
    let mut state = next.from.clone();
    let step = match recovery.step {
        RecoveryStep::Scanned => {
            confirm_superblocks(&mut state.media, mutant, recovery.engine.slot)
        }
        RecoveryStep::SuperblockWritten => {
            state.media.superblock.iter_mut().for_each(Unit::sync);
            RecoveryStep::SuperblockConfirmed
        }
        RecoveryStep::SuperblockConfirmed => {
            raise_incarnation(&mut state.media, mutant, recovery.engine.incarnation)
        }
        RecoveryStep::IncarnationWritten => {
            if mutant != Mutant::IncarnationNotSynced {
                state.media.incarnation.iter_mut().for_each(Unit::sync);
            }
            RecoveryStep::IncarnationRaised
        }
        RecoveryStep::IncarnationRaised => {
            for unit in state.media.log.iter_mut().skip(usize::from(recovery.proven)) {
                match mutant {
                    Mutant::RecoveryTrustsReads => {}
                    Mutant::RecoverySyncsOnly => unit.sync(),
                    _ => unit.replace_by_copy(),
                }
            }
            RecoveryStep::TailSecured
        }
        RecoveryStep::TailSecured => return open(next, &recovery.engine),
    };
    state.process = Process::Recovering(Box::new(Recovery { step, ..recovery.clone() }));
    next.out.push((Action::Secure, Ok(state)));
}

/// A synced copy of both slots, renamed over them: the newest may be the only one that is of use.
fn confirm_superblocks(media: &mut Media, mutant: Mutant, slot: usize) -> RecoveryStep {
    match mutant {
        Mutant::RecoveryTrustsReads => {}
        Mutant::RecoverySyncsOnly | Mutant::SuperblockNotConfirmed => {
            media.superblock.iter_mut().for_each(Unit::sync);
        }
        Mutant::SuperblockConfirmedInPlace => {
            if let Some(superblock) = media.superblock[slot].visible().cloned() {
                media.superblock[slot].write(superblock);
            }
            return RecoveryStep::SuperblockWritten;
        }
        _ => media.superblock.iter_mut().for_each(Unit::replace_by_copy),
    }
    RecoveryStep::SuperblockConfirmed
}

/// A synced copy again: old file or new one, and a number is never given out twice.
fn raise_incarnation(media: &mut Media, mutant: Mutant, incarnation: u8) -> RecoveryStep {
    let older = usize::from(media.incarnation[0].visible() > media.incarnation[1].visible());
    match mutant {
        Mutant::IncarnationNotSynced => {
            media.incarnation.iter_mut().for_each(Unit::sync);
            media.incarnation[older].write(incarnation);
            RecoveryStep::IncarnationWritten
        }
        Mutant::IncarnationInPlace => {
            media.incarnation[older].write(incarnation);
            RecoveryStep::IncarnationWritten
        }
        _ => {
            media.incarnation = [Unit::new(Some(incarnation)), Unit::new(Some(incarnation))];
            RecoveryStep::IncarnationRaised
        }
    }
}

fn open(next: &mut Next<'_>, engine: &Engine) {
    let mut state = next.from.clone();
    let again = recover(&state, next.scenario)
        .map(|again| (again.engine.number, again.engine.table, again.engine.regions));
    let same = again == Ok((engine.number, engine.table, engine.regions.clone()));
    // The user has seen this state: from here on it may not be lost.
    state.ghost.floor = engine.number;
    state.ghost.history.truncate(usize::from(engine.number) + 1);
    state.ghost.half = None;
    state.process = Process::Up(Box::new(engine.clone()));
    let outcome = if same { Ok(state) } else { Err(format!("a second recovery finds {again:?}")) };
    next.out.push((Action::Open, outcome));
}
