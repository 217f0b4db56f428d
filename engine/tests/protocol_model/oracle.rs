//! What must hold. The oracle knows every commit that was ever ticketed; the engine's own bookkeeping is not believed.

use std::rc::Rc;

use crate::history::{Extent, NamedRun};
use crate::region::{Page, Region, region_of};
use crate::state::{
    Engine, KEYS, Process, REGIONS, Rot, State, THERE, Values, comes_and_goes, content, extent_of,
};
use crate::table::Table;

/// Checks what a recovery found against everything promised before it.
pub(crate) fn recovered(
    state: &mut State,
    engine: &Engine,
    history: Option<u8>,
) -> Result<(), String> {
    let fallen_back = state.ghost.rot == Some(Rot::Generation);
    match state.ghost.rot {
        Some(Rot::Sealed) => return Err("damage below what was durable was cut in silence".into()),
        Some(Rot::Unsealed) => {
            state.ghost.floor = state.ghost.floor.min(engine.number);
            state.ghost.rot = Some(Rot::Cut);
        }
        Some(Rot::Generation) => state.ghost.rot = None,
        Some(Rot::Cut) | None => {}
    }
    if fallen_back && history.is_some() {
        // The older generation may name runs whose extents were free by then.
        state.ghost.squeezed = state.ghost.squeezed.max(engine.kept_from);
    }
    let ghost = &state.ghost;
    if engine.number < ghost.floor {
        return Err(format!(
            "commit {} was durable, recovery found {}",
            ghost.floor, engine.number
        ));
    }
    let Some(&(values, _)) = ghost.history.get(usize::from(engine.number)) else {
        return Err(format!("commit {} is of no history", engine.number));
    };
    if ghost.half == Some(engine.number) {
        return Err(format!("commit {} is half of one", engine.number));
    }
    state_matches(state, engine, values)?;
    if let Some(history) = history {
        let from = engine.number.saturating_sub(history).max(ghost.squeezed);
        if engine.kept_from > from {
            return Err(format!("the history begins at {}, not {from}", engine.kept_from));
        }
        past_matches(state, engine)?;
    }
    // A commit that the documented case has cut may be in a page already.
    if ghost.rot == Some(Rot::Cut) { Ok(()) } else { pages_scan(state, engine) }
}

/// Checks every state in which the engine is up.
pub(crate) fn holds(state: &State) -> Result<(), String> {
    let Process::Up(engine) = &state.process else { return Ok(()) };
    for (page_no, page) in engine
        .regions
        .iter()
        .flat_map(|region| &region.entries)
        .filter_map(|entry| entry.page.as_ref())
    {
        if state.media.leaf[usize::from(*page_no)].visible() != Some(page) {
            return Err(format!("page {page_no} was written while the index names it"));
        }
    }
    if engine.publishing > 0 {
        return Ok(());
    }
    let (values, _) = state.ghost.history[usize::from(engine.number)];
    state_matches(state, engine, values)?;
    past_matches(state, engine)?;
    if engine.flush.is_some() || state.ghost.rot == Some(Rot::Cut) {
        Ok(())
    } else {
        pages_scan(state, engine)
    }
}

/// Pages and buffered changes give exactly `values`, and every node is that of page and all committed changes.
fn state_matches(state: &State, engine: &Engine, values: Values) -> Result<(), String> {
    if engine.table.exists() != (values[THERE] == 1) {
        return Err(format!("the table of namespaces is {:?}", engine.table));
    }
    if !nodes_match(&engine.regions, engine.table, values) {
        return Err("a node is not that of its page and all committed changes".into());
    }
    for (key, wanted) in values.iter().enumerate().take(KEYS) {
        // Keys of a dropped trie, too, until it is reclaimed: its pages are its own.
        let given_up = region_of(&engine.regions, key).is_bare() && engine.table.dropped.is_some();
        if given_up && comes_and_goes(key) {
            continue;
        }
        let value = present(state, engine, key)?;
        if let Some(value) = value {
            long_value_is_there(state, value)?;
        }
        if value.is_some_and(|value| value != *wanted) {
            return Err(format!("key {key} has {value:?} instead of {wanted}"));
        }
    }
    Ok(())
}

/// A long value is in the extent that it names.
fn long_value_is_there(state: &State, value: u8) -> Result<(), String> {
    let Some(extent) = extent_of(value) else { return Ok(()) };
    let found = state.media.overflow[extent].visible();
    if found == Some(&Extent::Value(content(value))) {
        return Ok(());
    }
    Err(format!("the long value {} is not in extent {extent}, which has {found:?}", content(value)))
}

/// The value of a key by its page and its buffered change, in a trie that is kept.
fn present(state: &State, engine: &Engine, key: usize) -> Result<Option<u8>, String> {
    if comes_and_goes(key) && !engine.table.kept {
        return Ok(None);
    }
    let region = region_of(&engine.regions, key);
    let paged = match &region.entry(key).page {
        None => 0,
        Some((page_no, page)) => {
            if state.media.leaf[usize::from(*page_no)].visible() != Some(page) {
                return Err(format!("the index names a page that is not at number {page_no}"));
            }
            page.position.value_in(page.values, key)
        }
    };
    Ok(Some(region.pending[key].map_or(paged, |(value, _)| value)))
}

/// Undo over the newest state gives each commit that can be read.
fn past_matches(state: &State, engine: &Engine) -> Result<(), String> {
    let history = &state.ghost.history;
    // Behind a failed sync a run may be gone, which whoever reads it is told; the next open does not go by it.
    let written =
        |named: &&NamedRun| !engine.poisoned && engine.unwritten_run.as_ref() != Some(*named);
    for named in engine.runs.iter().filter(written) {
        let found = state.media.overflow[named.extent].visible();
        if found != Some(&Extent::Run(Rc::clone(&named.run))) {
            return Err(format!("a run of the history is not in extent {}", named.extent));
        }
    }
    for commit in engine.kept_from..engine.number {
        let (then, _) = history[usize::from(commit)];
        let there = engine.undone(commit, THERE).unwrap_or(engine.table.exists().into());
        if there != then[THERE] {
            return Err(format!("the history has a namespace: {there}, as of {commit}"));
        }
        for key in (0..KEYS).filter(|key| !comes_and_goes(*key) || there == 1) {
            let found = match engine.undone(commit, key) {
                None => present(state, engine, key)?,
                undone => undone,
            };
            if found != Some(then[key]) {
                return Err(format!(
                    "the history has {found:?} instead of {} for key {key} as of {commit}",
                    then[key]
                ));
            }
            long_value_is_there(state, then[key])?;
        }
    }
    Ok(())
}

pub(crate) fn nodes_match(regions: &[Region; REGIONS], table: Table, values: Values) -> bool {
    let given_up = |region: &Region| table.dropped.is_some() && region.is_bare();
    let [first, others @ ..] = regions;
    first.is_of(values)
        && others.iter().all(|region| !table.kept || given_up(region) || region.is_of(values))
}

/// What a repair without images relies on: of all whole pages the newest with a key is right as of its `through`, which
/// is durable; and where nothing is buffered it is right now.
fn pages_scan(state: &State, engine: &Engine) -> Result<(), String> {
    // A scan alone cannot tell which pages are those of a trie that was reclaimed.
    let dropped = state.ghost.history.iter().any(|(values, _)| values[THERE] == 0);
    for key in (0..KEYS).filter(|key| !comes_and_goes(*key) || !dropped) {
        let pages = state.media.leaf.iter().filter_map(|unit| unit.visible());
        let newest =
            pages.filter(|page| page.position.keys().contains(&key)).max_by_key(|page| page.flush);
        let Some(page) = newest else {
            if state.ghost.history.iter().all(|(values, _)| values[key] == 0) {
                continue;
            }
            return Err(format!("no page has key {key}"));
        };
        let page: &Page = page;
        let value = page.position.value_in(page.values, key);
        match state.ghost.history.get(usize::from(page.through)) {
            Some((then, _)) if page.through <= engine.number && then[key] == value => {}
            _ => {
                return Err(format!(
                    "a page has a commit that the log has not: key {key}, through {}",
                    page.through
                ));
            }
        }
        let pending = region_of(&engine.regions, key).pending[key].is_some();
        if !pending && state.ghost.history[usize::from(engine.number)].0[key] != value {
            return Err(format!("a scan of the pages uncovers {value} for key {key}"));
        }
    }
    Ok(())
}
