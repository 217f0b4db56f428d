//! Recovery, the mirror of commit and checkpoint: find, replay, raise the incarnation, secure what was only read, open.

use std::rc::Rc;

use crate::actions::{Action, Next};
use crate::history::{Extent, NamedRun, Past};
use crate::medium::{Media, Unit};
use crate::mutants::{Mutant, Scenario};
use crate::oracle;
use crate::region::{Region, first_positions};
use crate::state::{
    Body, Commit, EXTENTS, Engine, Image, Location, PLACES, Process, REGIONS, Record, Recovery,
    RecoveryStep, Rot, SLOTS, State, Superblock, Undone, Values, extent_of,
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
    /// From where the image's runs end to the replay start; none when they do not all follow each other.
    pub(crate) past: Option<Vec<Rc<Record>>>,
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

    let past = past(state, &superblock, image.past.records);
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
fn past(state: &State, superblock: &Superblock, from: u8) -> Option<Vec<Rc<Record>>> {
    let mut records: Vec<Rc<Record>> = Vec::new();
    for at in from..superblock.replay_start {
        let record = state.media.log.get(usize::from(at))?.visible()?;
        if records.last().is_some_and(|last| record.previous != last.checksum()) {
            return None;
        }
        records.push(Rc::clone(record));
    }
    let ends = records.last().is_none_or(|last| last.checksum() == superblock.previous);
    ends.then_some(records)
}

/// The history that a recovery finds.
struct History {
    undo: Vec<Undone>,
    runs: Vec<NamedRun>,
    /// The runs that the image names and that are there.
    named: Vec<NamedRun>,
    /// The oldest commit that can be read.
    kept_from: u8,
    free_extents: [bool; EXTENTS],
    replaced_extents: Vec<(u8, usize)>,
}

impl History {
    /// What commits replaced, as runs and records have it. The present has the extents that it names before any run has.
    fn find(state: &State, found: &Found, root: Values, mutant: Mutant) -> Self {
        let mut free_extents = free_extents(root);
        let Past { runs, kept_from, .. } = &found.image.past;
        let past = found.past.iter().flatten();
        let number_before = |record: &Rc<Record>| match &record.body {
            Body::Commit(commit) => Some(commit.number - 1),
            Body::Location(_) | Body::GiveUp(_) | Body::Join => None,
        };
        // The commit that the records go on from.
        let through = past.clone().find_map(number_before).unwrap_or(found.superblock.number);
        // Of a run that is not there, and all before it, nothing is known.
        let follows =
            found.past.is_some() && runs.last().is_none_or(|last| last.run.through == through);
        let there = |named: &&NamedRun| {
            let content = state.media.overflow[named.extent].visible();
            free_extents[named.extent] && content == Some(&Extent::Run(Rc::clone(&named.run)))
        };
        let there = if follows { runs.iter().rev().take_while(there).count() } else { 0 };
        let named = runs[runs.len() - there..].to_vec();
        for named in &named {
            free_extents[named.extent] = false;
        }
        let begin = named.first().map_or(through, |first| first.run.after);
        let mut kept_from = begin.max((*kept_from).min(through));
        let mut undo: Vec<Undone> = Vec::new();
        for record in past.chain(&found.records) {
            let Body::Commit(commit) = &record.body else { continue };
            kept_from = kept_from.max(commit.kept_from);
            let replaced =
                if mutant == Mutant::UndoNotInRecord { [None; SLOTS] } else { commit.replaced };
            undo.push(Undone { number: commit.number, replaced, start: record.position });
        }
        undo.retain(|undone| undone.number > kept_from);
        let listed = named.iter().filter(|named| named.run.through > kept_from);
        let runs: Vec<NamedRun> = listed.cloned().collect();
        let of_runs = runs.iter().flat_map(|named| &named.run.undone);
        let of_runs =
            of_runs.filter(|undone| undone.number > kept_from && mutant != Mutant::RunValuesUnread);
        let extent_in = |undone: &Undone| Some((undone.number, extent_of(undone.replaced[2]?)?));
        let replaced_extents: Vec<(u8, usize)> =
            of_runs.chain(&undo).filter_map(extent_in).collect();
        // They are free later.
        for (_, extent) in &replaced_extents {
            free_extents[*extent] = false;
        }
        Self { undo, runs, named, kept_from, free_extents, replaced_extents }
    }

    /// None is wanted.
    fn none(root: Values, number: u8) -> Self {
        let (undo, runs, named, replaced_extents) = Default::default();
        let free_extents = free_extents(root);
        Self { undo, runs, named, kept_from: number, free_extents, replaced_extents }
    }
}

/// The extents that the newest state does not name.
fn free_extents(root: Values) -> [bool; EXTENTS] {
    std::array::from_fn(|extent| extent_of(root[2]) != Some(extent))
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

/// True when a record names the extent of a run that the image names (mutant).
fn present_over_runs(found: &Found) -> bool {
    let mut values = found.records.iter().filter_map(|record| match &record.body {
        Body::Commit(commit) => extent_of(commit.changes[2]?),
        Body::Location(_) | Body::GiveUp(_) | Body::Join => None,
    });
    let runs = &found.image.past.runs;
    values.any(|extent| runs.iter().any(|named| named.extent == extent))
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
    if mutant == Mutant::RunsBeforePresent && present_over_runs(&found) {
        return Err("an extent is taken twice".into());
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
    let History { undo, runs, named, kept_from, free_extents, replaced_extents } =
        match scenario.history {
            Some(_) => History::find(state, &found, replayed.root, mutant),
            None => History::none(replayed.root, replayed.number),
        };
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
        unwritten_run: None,
        unlisted: named.iter().filter(|named| !runs.contains(named)).cloned().collect(),
        runs,
        named,
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
        free_extents,
        replaced_extents,
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
        RecoveryStep::Scanned if mutant == Mutant::EndNamedUnconfirmed => {
            confirm_superblocks(&mut state.media, mutant, &recovery.engine);
            RecoveryStep::LogConfirmed
        }
        RecoveryStep::Scanned => {
            confirm_log(&mut state.media, mutant, recovery.proven);
            RecoveryStep::LogConfirmed
        }
        RecoveryStep::LogConfirmed if mutant == Mutant::EndNamedUnconfirmed => {
            confirm_log(&mut state.media, mutant, recovery.proven);
            RecoveryStep::SuperblockConfirmed
        }
        RecoveryStep::LogConfirmed => {
            confirm_superblocks(&mut state.media, mutant, &recovery.engine)
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
        RecoveryStep::IncarnationRaised => return open(next, &recovery.engine),
    };
    state.process = Process::Recovering(Box::new(Recovery { step, ..recovery.clone() }));
    next.out.push((Action::Secure, Ok(state)));
}

/// Synced copies of the records that a power failure may still take.
fn confirm_log(media: &mut Media, mutant: Mutant, proven: u8) {
    for unit in media.log.iter_mut().skip(usize::from(proven)) {
        match mutant {
            Mutant::RecoveryTrustsReads => {}
            Mutant::RecoverySyncsOnly => unit.sync(),
            _ => unit.replace_by_copy(),
        }
    }
}

/// A synced copy of both slots, renamed over them: the newest may be the only one that is of use. It names the log's
/// end as durable.
fn confirm_superblocks(media: &mut Media, mutant: Mutant, engine: &Engine) -> RecoveryStep {
    let slot = engine.slot;
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
        _ => {
            if let Some(mut superblock) = media.superblock[slot].visible().cloned() {
                Rc::make_mut(&mut superblock).durable_through = engine.tail;
                media.superblock[slot].write(superblock);
            }
            media.superblock.iter_mut().for_each(Unit::replace_by_copy);
        }
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
