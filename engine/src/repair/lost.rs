//! The commits that a repair loses, as superblocks and whole records of the log tell them. "Not found" is not "not lost": where the
//! files cannot say how far the commits went, that is said.

use std::fmt;
use std::ops::Range;

use pleach_io::Device;

use crate::format::position::LogPos;
use crate::format::record::{Header, Kind};
use crate::format::superblock_store::SuperblockStore;

/// Commits that are lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostCommits {
    /// Those that are known: commits have numbers without gaps, so these are all from the first lost one to the newest that a
    /// superblock or a whole record of the log names.
    pub numbers: Range<u64>,
    /// Commits after these may be lost, too: the log was longer than what is whole of it, or nothing says how long it was.
    pub maybe_more: bool,
}

impl LostCommits {
    /// Is nothing lost, as far as the files can tell?
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

/// How far a database had come, as its files have it.
#[derive(Default)]
pub(super) struct Reach {
    /// The newest commit that a superblock or a whole record names.
    newest: u64,
    /// The last record that was seen ends here, or the one before the replay start of a superblock.
    end: LogPos,
    /// The log was synced below this.
    durable_through: LogPos,
    /// Segments had been prepared below this.
    pub(super) prepared_through: LogPos,
    /// Was there a superblock?
    known: bool,
}

impl Reach {
    pub(super) fn new<D: Device>(superblocks: Option<&SuperblockStore<D>>) -> Self {
        let slots = superblocks.into_iter().flat_map(|store| {
            std::iter::once(*store.newest()).chain(store.other().as_ref().ok().copied())
        });
        slots.fold(Self::default(), |reach, slot| Self {
            newest: reach.newest.max(slot.commit),
            end: reach.end.max(slot.replay.position),
            durable_through: reach.durable_through.max(slot.durable_through),
            prepared_through: reach.prepared_through.max(slot.prepared_through),
            known: true,
        })
    }

    /// A whole record was seen.
    pub(super) fn record(&mut self, header: &Header) {
        if header.kind == Kind::Commit {
            self.newest = self.newest.max(header.number);
        }
        self.end = self.end.max(header.end());
        self.durable_through = self.durable_through.max(header.durable_through);
        self.prepared_through = self.prepared_through.max(header.prepared_through);
        self.known = true;
    }

    /// What is lost when commit `kept` is the newest that is left. `segments` are those of the log that are there, ascending.
    pub(super) fn lost(&self, kept: u64, segments: &[u64], size: u64) -> LostCommits {
        let last = self.prepared_through.get().div_ceil(size);
        let missing = segments.first().is_none_or(|first| {
            (*first..last).any(|index| segments.binary_search(&index).is_err())
        });
        LostCommits {
            numbers: kept + 1..self.newest.max(kept) + 1,
            maybe_more: !self.known || self.durable_through > self.end || missing,
        }
    }
}
