//! Cutting a damaged log at the newest commit before the damage.
//!
//! 1. In memory: recovery with a log that ends at the damage. It must lead to the roots that the last commit has
//!    recorded.
//! 2. Segments are replaced, the last one first: by a blank one, and the one that has the end by one with what lies
//!    before it. So are older ones that have a page which cannot be read: the history begins behind a blank one, and a
//!    failed read of it fails an open.
//! 3. The file of superblocks is replaced: the new ones know of nothing behind the end.
//!
//! A file is replaced by an exchange of names, in one step: the file itself stays under another name, with all its
//! bytes, even those that cannot be read at the moment. Where the file system cannot exchange names, the segment has
//! none for a moment: after a power failure there, rename the replaced file back, and repair again.
//!
//! Until step 3 there is evidence of damage, or none is left and the end is an ordinary torn one: so an interrupted
//! repair leaves a log that is damaged as before, or one that is cut.

use std::ops::ControlFlow;

use pleach::errors::NoRoom;
use pleach::internals::error::full_or;
use pleach::internals::open::examine::{self, Examination};
use pleach::internals::open::recovery::LogEnd;
use pleach::{Error, Result};
use pleach_core::Hasher;
use pleach_io::{Disk, File, IoError, LockMode, OpenMode, PAGE, PageBuf};
use pleach_journal::format::creation::CreationError;
use pleach_journal::format::names::{SUPERBLOCK, parse_segment_name, segment_name};
use pleach_journal::format::position::LogPos;
use pleach_journal::format::superblock::Superblock;
use pleach_journal::log::{LogError, ScanError, copies, segments, walk_whole_records};

use crate::losses::{LostCommits, RepairLoss};
use crate::opened::limits;
use crate::repair::lost::LogReach;
use crate::repair::originals;

/// Segments of a log behind its damage, at most: four times as many as a log has.
const MOST: u64 = 1024;

/// A log that was cut where it was damaged.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CutLog {
    /// The log ends here now.
    pub position: LogPos,
    /// The error of the open before.
    pub error: Error,
    /// The lost commits, which were behind the damage.
    pub lost: LostCommits,
    /// The replaced files, under their present names.
    pub aside: Vec<String>,
}

/// Cuts the log; returns the error where that does not help. Where commits would be lost, and that is not allowed,
/// nothing is changed.
pub(super) fn cut_log(
    hasher: Hasher,
    device: &Disk,
    error: &Error,
    may_lose: bool,
) -> crate::error::Result<CutLog> {
    let _lock = device.lock(LockMode::Exclusive)?;
    let superblocks = examine::superblocks(device, OpenMode::Write)?;
    // With the positions of the newest superblock, also where its image is bad.
    let mut reach = LogReach::new(Some(&superblocks));
    // Without the history, whose damage costs only itself.
    let none = |_: &Superblock| limits(0);
    let examined =
        examine::examine(Some(hasher), device, superblocks, none, None, LogEnd::Damage, false);
    let Ok(Examination { superblocks, recovered, .. }) = examined else {
        return Err(error.clone().into());
    };
    let newest = *superblocks.newest();
    let (database, size) = (newest.database, newest.geometry.log_segment);
    let (end, tip) = (recovered.scan.end.position, recovered.tip.number);
    // From the first record of the replay on: what lies before it, in the same page, is of the past.
    let mut needed = end..end;
    walk_whole_records::<ScanError>(device, database, size, newest.replay.position, |record| {
        let header = record.header;
        reach.record(&header);
        needed.start = needed.start.min(header.position);
        Ok(ControlFlow::Continue(()))
    })?;
    let there = segments(device, size)?;
    // A file that is named like a segment of no log keeps the database closed, whatever is cut.
    if device.list()?.iter().filter(|name| parse_segment_name(name).is_some()).count() > there.len()
    {
        return Err(error.clone().into());
    }
    let mut prepared = reach.prepared_through.max(end);
    let lost = reach.lost(device, (database, size), tip)?;
    if let Some(last) = there.last() {
        prepared = prepared.max(LogPos::of_segment(last + 1, size));
    }
    let first = end.segment(size);
    // What was not written by us may name any position, and each segment up to there would be written.
    if prepared.segment(size) > first + MOST {
        return Err(error.clone().into());
    }
    let mut rewritten: Vec<(u64, u64)> = Vec::new();
    for index in there.iter().filter(|index| **index < first) {
        if !is_readable(device, *index)? {
            rewritten.push((*index, size));
        }
    }
    let history = (!rewritten.is_empty()).then_some(tip);
    if !may_lose && (!lost.is_none() || history.is_some()) {
        return Err(RepairLoss { commit: tip, error: error.clone(), lost, history }.into());
    }
    rewritten.push((first, end.in_segment(size)));
    for index in first + 1..prepared.get().div_ceil(size) {
        if !is_blank(device, index, size) {
            rewritten.push((index, 0));
        }
    }
    let names = device.list()?;
    let is_free = |prefix: &String| !names.iter().any(|name| name.starts_with(prefix));
    let mut prefixes = (1..u64::MAX).map(originals::prefix);
    let prefix = prefixes.find(is_free).ok_or(CreationError::Exists)?;
    let mut aside = Vec::new();
    for (index, kept) in rewritten.into_iter().rev() {
        let name = segment_name(index);
        aside.extend(replace::<LogError>(device, &prefix, &name, |file| {
            copies::fill(device, file, size, index, kept, &needed)
        })?);
    }
    let whole = superblocks.cut_log(end, prepared);
    aside.extend(replace::<Error>(device, &prefix, SUPERBLOCK, |file| {
        let written = device.write_at(file, &whole, whole.pages(), 0);
        written.map_err(full_or(NoRoom::LogSegment))
    })?);
    tracing::warn!(position = %end, commit = tip, "the damaged log was cut");
    Ok(CutLog { position: end, error: error.clone(), lost, aside })
}

/// True when each page of a segment can be read.
fn is_readable(device: &Disk, index: u64) -> Result<bool> {
    let file = device.open(&segment_name(index), OpenMode::Read)?;
    let mut page = PageBuf::zeroed(1);
    let pages = (0..device.len(&file)? / PAGE as u64 * PAGE as u64).step_by(PAGE);
    Ok(pages.into_iter().all(|at| device.read_at(&file, &mut page, at).is_ok()))
}

/// True when a blank segment of its size is there. An earlier repair that was cut off may have made it.
fn is_blank(device: &Disk, index: u64, size: u64) -> bool {
    let blank = || -> core::result::Result<bool, IoError> {
        let file = device.open(&segment_name(index), OpenMode::Read)?;
        let mut page = PageBuf::zeroed(1);
        for at in (0..size).step_by(PAGE) {
            device.read_at(&file, &mut page, at)?;
            if page.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        Ok(device.len(&file)? == size)
    };
    blank().unwrap_or(false)
}

/// Puts what `fill` writes in the place of a file, in one step; returns the replaced file's new name, if there was a
/// file.
fn replace<E: From<IoError>>(
    device: &Disk,
    prefix: &str,
    name: &str,
    fill: impl FnOnce(&File) -> Result<(), E>,
) -> Result<Option<String>, E> {
    let mut aside = format!("{prefix}{name}");
    let file = device.open(&aside, OpenMode::CreateNew)?;
    if let Err(error) = fill(&file).and_then(|()| Ok(device.sync(&file)?)) {
        let _ = device.remove(&aside);
        return Err(error);
    }
    let had_one = match device.exchange(&aside, name) {
        Ok(true) => true,
        Ok(false) => {
            let original = format!("{aside}.original");
            device.rename(name, &original)?;
            device.rename(&aside, name)?;
            aside = original;
            true
        }
        Err(error) if error.is_not_found() => {
            device.rename(&aside, name)?;
            false
        }
        Err(error) => {
            // The unfinished copy must not pass for an original.
            let _ = device.remove(&aside);
            return Err(error.into());
        }
    };
    device.sync_folder()?;
    Ok(had_one.then_some(aside))
}
