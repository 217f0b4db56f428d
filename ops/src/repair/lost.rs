//! The commits that a repair loses, by superblocks and whole records of the log. "Not found" is not "not lost": where
//! the files do not show how far the commits went, the report says so.

use std::fmt;
use std::ops::Range;

use pleach::Result;
use pleach_io::{Disk, OpenMode};
use pleach_journal::format::names::segment_name;
use pleach_journal::format::position::LogPos;
use pleach_journal::format::record::{LogRecordKind, RecordHeader};
use pleach_journal::format::superblock_store::SuperblockStore;
use pleach_journal::log::{scan_headers, segments};

/// Commits that are lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostCommits {
    /// Known lost commits: numbers have no gaps, so these are all from the first lost one to the newest that a
    /// superblock or a whole record of the log names.
    pub numbers: Range<u64>,
    /// True when later commits may be lost, too: the log was longer than its whole part, or its length is unknown.
    pub maybe_more: bool,
}

impl LostCommits {
    /// True when nothing is lost, as far as the files can tell.
    pub fn is_none(&self) -> bool {
        self.numbers.is_empty() && !self.maybe_more
    }
}

impl fmt::Display for LostCommits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.numbers;
        match end.saturating_sub(start) {
            0 if self.maybe_more => {
                return write!(
                    f,
                    "those from {start} on, if there were any: the files do not tell"
                );
            }
            0 => return f.write_str("none"),
            1 => write!(f, "{start}")?,
            _ => write!(f, "{start} to {}", end - 1)?,
        }
        if self.maybe_more {
            f.write_str(", and perhaps later ones, of which the files have no trace")?;
        }
        Ok(())
    }
}

/// How far the log of a database went, by its files.
#[derive(Default)]
pub(super) struct LogReach {
    /// The newest commit that a superblock or a whole record names.
    newest: u64,
    /// The last record that was seen ends here, or the one before the replay start of a superblock.
    end: LogPos,
    /// The log was synced below this.
    durable_through: LogPos,
    /// Segments had been prepared below this.
    pub(super) prepared_through: LogPos,
    /// The incarnation of the last record: an older record behind it was cut off long ago.
    incarnation: u32,
    /// True when there was a superblock, or a record.
    known: bool,
}

impl LogReach {
    pub(super) fn new(superblocks: Option<&SuperblockStore>) -> Self {
        let slots = superblocks.into_iter().flat_map(|store| {
            std::iter::once(*store.newest()).chain(store.other().as_ref().ok().copied())
        });
        slots.fold(Self::default(), |reach, slot| Self {
            newest: reach.newest.max(slot.commit),
            end: reach.end.max(slot.replay.position),
            durable_through: reach.durable_through.max(slot.durable_through),
            prepared_through: reach.prepared_through.max(slot.prepared_through),
            known: true,
            ..reach
        })
    }

    /// Notes a whole record, in the order of the log.
    pub(super) fn record(&mut self, header: &RecordHeader) {
        if header.incarnation < self.incarnation {
            return;
        }
        self.incarnation = header.incarnation;
        if header.kind == LogRecordKind::Commit {
            self.newest = self.newest.max(header.number);
        }
        self.end = self.end.max(header.end());
        self.durable_through = self.durable_through.max(header.durable_through);
        self.prepared_through = self.prepared_through.max(header.prepared_through);
        self.known = true;
    }

    /// The lost commits when commit `kept` is the newest that is left, after all whole records.
    pub(super) fn lost(
        mut self,
        device: &Disk,
        (database, size): (u64, u64),
        kept: u64,
    ) -> Result<LostCommits> {
        let end = self.end;
        let all_read = scan_headers(device, database, size, end, |header| {
            self.durable_through = self.durable_through.max(header.durable_through);
            self.prepared_through = self.prepared_through.max(header.prepared_through);
        })?;
        // Behind the last record that was seen, a segment that is missing or cut may have had records. Before it
        // commits are known by their numbers, and retired segments, which wait as spares, have gaps between them.
        let (first, last) = (end.segment(size), self.prepared_through.get().div_ceil(size));
        let mut there = Vec::new();
        for index in segments(device, size)?.into_iter().filter(|index| *index >= first) {
            let file = device.open(&segment_name(index), OpenMode::Read)?;
            if device.len(&file)? == size {
                there.push(index);
            }
        }
        let missing = (first..last).any(|index| there.binary_search(&index).is_err());
        let durable = self.durable_through > end;
        Ok(LostCommits {
            numbers: kept.saturating_add(1)..self.newest.max(kept).saturating_add(1),
            maybe_more: !self.known || durable || missing || !all_read,
        })
    }
}
