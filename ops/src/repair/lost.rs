//! The commits that a repair loses, by superblocks and whole records of the log. "Not found" is not "not lost": where
//! the files do not show how far the commits went, the report says so.

use std::ops::ControlFlow;

use pleach::Result;
use pleach_io::{Disk, OpenMode};
use pleach_journal::format::names::segment_name;
use pleach_journal::format::position::LogPos;
use pleach_journal::format::record::{LogRecordKind, RecordHeader};
use pleach_journal::format::superblock_store::SuperblockStore;
use pleach_journal::log::{ScanError, scan_headers, segments, walk_whole_records};

use crate::losses::LostCommits;
use crate::repair::originals::before_repairs;

/// How far the log went before each repair in place, the last one first, with the folder as it was then.
pub(super) fn reaches_before_repairs(
    device: &Disk,
    (database, size): (u64, u64),
) -> Result<Vec<(Disk, LogReach)>> {
    let reach = |(before, end_segment): (Disk, Option<u64>)| {
        let superblocks = SuperblockStore::open(before.clone(), OpenMode::Read).ok();
        let own = superblocks.filter(|store| store.newest().database == database);
        let mut reach = LogReach { end_segment, ..LogReach::new(own.as_ref()) };
        walk_whole_records::<ScanError>(&before, database, size, LogPos::START, |record| {
            reach.record(&record.header);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((before, reach))
    };
    before_repairs(device)?.into_iter().map(reach).collect()
}

/// How far the log of a database went, by its files.
#[derive(Default)]
pub(super) struct LogReach {
    /// The newest commit that a superblock or a whole record names.
    pub(super) newest: u64,
    /// The incarnation in that commit's record; 0 where a superblock alone names it.
    pub(super) newest_by: u32,
    /// The last record that was seen ends here, or the one before the replay start of a superblock.
    end: LogPos,
    /// The log was synced below this.
    durable_through: LogPos,
    /// Segments had been prepared below this.
    pub(super) prepared_through: LogPos,
    /// The incarnation of the last record: an older record behind it was cut off long ago.
    pub(super) incarnation: u32,
    /// The log is known to end before this segment.
    end_segment: Option<u64>,
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
        if header.kind == LogRecordKind::Commit && header.number >= self.newest {
            (self.newest, self.newest_by) = (header.number, header.incarnation);
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
        let last = self.prepared_through.get().div_ceil(size);
        let (first, last) = (end.segment(size), last.min(self.end_segment.unwrap_or(last)));
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
