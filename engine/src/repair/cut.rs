//! Cutting a damaged log at the newest commit before the damage.
//!
//! 1. In memory: recovery with a log that ends at the damage. It must lead to the roots that the last commit has recorded.
//! 2. Copies of the segments that are replaced, and of the superblocks, in a folder of their own, synced.
//! 3. Segments are replaced, the last one first, each in one step: blank, and the one that has the end with what lies before it. So
//!    are older ones that have a page which cannot be read: the history begins behind a blank one, and a failed read of it
//!    fails an open.
//! 4. The file of superblocks is replaced in one step: they know of nothing behind the end.
//!
//! Until 4 there is evidence of damage, or all that gave evidence is gone, and the end is an ordinary torn one: so a repair
//! that was cut off leaves a log that is damaged as before, or one that is cut.

use std::ops::ControlFlow;

use pleach_core::Hasher;
use pleach_io::{Device, LockMode, OpenMode, PAGE, PageBuf};

use crate::error::NoRoom;
use crate::error::{Error, Result, full_or};
use crate::format::names::{SUPERBLOCK, segment_name};
use crate::format::position::LogPos;
use crate::format::superblock::Superblock;
use crate::log::{ScanError, copies, segments, whole_records};
use crate::open::examine::{self, Examined};
use crate::open::recovery::LogEnd;
use crate::repair::lost::{LostCommits, Reach};
use crate::tools::limits;

/// Segments of a log behind its damage, at most: four times as many as it may have.
const MOST: u64 = 1024;

/// A log that was cut where it was damaged.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CutLog {
    /// The log ends here now.
    pub position: LogPos,
    /// What the open said before.
    pub error: Error,
    /// The commits that were behind the damage: these are lost.
    pub lost: LostCommits,
    /// Files of which copies were put aside.
    pub copied: Vec<String>,
}

/// Cuts the log; gives the error back where that does not help.
pub(super) fn cut_log<H: Hasher, D: Device>(
    device: &D,
    error: &Error,
    aside: impl FnOnce() -> Result<D>,
) -> Result<CutLog> {
    let _lock = device.lock(LockMode::Exclusive)?;
    let superblocks = examine::superblocks(device, OpenMode::Write)?;
    // Without its history, of which damage costs no more than itself.
    let none = |_: &Superblock| limits(0, 0);
    let examined = examine::examine::<H, D>(device, superblocks, none, None, LogEnd::Damage);
    let Ok(Examined { mut superblocks, recovered, .. }) = examined else {
        return Err(error.clone());
    };
    let newest = *superblocks.newest();
    let (database, size) = (newest.database, newest.geometry.log_segment);
    let (end, tip) = (recovered.scan.end.position, recovered.tip.number);
    let mut reach = Reach::new(Some(&superblocks));
    // From the first record of the replay on: what lies before it, in the same page, is of the past.
    let mut needed = end..end;
    whole_records::<D, ScanError>(device, database, size, newest.replay.position, |record| {
        let header = record.header;
        reach.record(&header);
        needed.start = needed.start.min(header.position);
        Ok(ControlFlow::Continue(()))
    })?;
    let there = segments(device, size)?;
    let lost = reach.lost(tip, &there, size);
    let mut prepared = reach.prepared_through.max(end);
    if let Some(last) = there.last() {
        prepared = prepared.max(LogPos::of_segment(last + 1, size));
    }
    let first = end.segment(size);
    // What was not written by us may name any position, and each segment up to there would be written.
    if prepared.segment(size) > first + MOST {
        return Err(error.clone());
    }
    let mut rewritten: Vec<(u64, u64)> = Vec::new();
    for index in there.iter().filter(|index| **index < first) {
        if !is_readable(device, *index)? {
            rewritten.push((*index, size));
        }
    }
    rewritten.push((first, end.in_segment(size)));
    rewritten.extend((first + 1..prepared.get().div_ceil(size)).map(|index| (index, 0)));
    let aside = aside()?;
    let indices = rewritten
        .iter()
        .map(|(index, _)| *index)
        .filter(|index| there.binary_search(index).is_ok());
    let copied: Vec<String> = indices.map(segment_name).chain([SUPERBLOCK.to_owned()]).collect();
    let made = copied.iter().try_for_each(|name| copy(device, &aside, name));
    if let Err(error) = made.and_then(|()| Ok(aside.sync_folder()?)) {
        // Nothing was replaced yet. On a full device the next try wants the room.
        for name in &copied {
            let _ = aside.remove(name);
        }
        return Err(error);
    }
    for segment in rewritten.into_iter().rev() {
        copies::rewrite(device, size, segment, &needed)?;
    }
    superblocks.cut_log(end, prepared)?;
    tracing::warn!(position = %end, commit = tip, "the damaged log was cut");
    Ok(CutLog { position: end, error: error.clone(), lost, copied })
}

/// Can each page of a segment be read?
fn is_readable<D: Device>(device: &D, index: u64) -> Result<bool> {
    let file = device.open(&segment_name(index), OpenMode::Read)?;
    let mut page = PageBuf::zeroed(1);
    let pages = (0..device.len(&file)? / PAGE as u64 * PAGE as u64).step_by(PAGE);
    Ok(pages.into_iter().all(|at| device.read_at(&file, &mut page, at).is_ok()))
}

/// Copies the whole pages of a file; those that cannot be read are blank.
fn copy<D: Device>(from: &D, to: &D, name: &str) -> Result<()> {
    let source = from.open(name, OpenMode::Read)?;
    let copy = to.open(name, OpenMode::CreateNew)?;
    let len = from.len(&source)?;
    let mut page = PageBuf::zeroed(1);
    for at in (0..len / PAGE as u64 * PAGE as u64).step_by(PAGE) {
        if from.read_at(&source, &mut page, at).is_ok() {
            to.write_at(&copy, &page, 1, at).map_err(full_or(NoRoom::LogSegment))?;
        }
    }
    to.set_len(&copy, len)?;
    Ok(to.sync(&copy)?)
}
