//! Writes a run in memory, or the merge of several on the device, as one run on the device.

use std::sync::Arc;

use pleach_beatree::{Error, Stored};
use pleach_core::page::overflow::OverflowExtent;

use super::entry::{Contents, EntryKey, MOST_COMMITS, RunSection};
use super::read::RunWalk;
use super::write::RunWriter;
use super::{DiskRun, RunDescriptor, RunFile};
use crate::neighbours::neighbours;
use crate::run::Run;

/// Writes the part of a run in memory with the commits after one, and the records of these commits, in their order.
pub(crate) fn write_run<E: From<Error>>(
    file: &Arc<RunFile>,
    number: u64,
    run: &Run,
    after: u64,
    commits: &[(u64, Vec<u8>)],
    allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>, E>,
) -> Result<RunDescriptor, E> {
    let keys = run.values.keys().len();
    let names =
        RunDescriptor { number, after, last_commit: run.last_commit, ..RunDescriptor::default() };
    let mut writer = RunWriter::new(file, names, keys);
    let mut long = Vec::new();
    for (namespace, part) in run.values.parts() {
        for at in part {
            let key = EntryKey::of_key(namespace, &run.values.keys()[at]);
            for version in run.values.versions_within(at, after, u64::MAX) {
                let (commit, stored) = (run.values.commit(version), run.values.stored(version));
                if let Stored::Overflow(cell) = &stored {
                    writer.add_value_bytes(stored.overflow_bytes());
                    long.push((commit, Arc::clone(cell)));
                }
                let contents = match &stored {
                    Stored::Absent => Contents::Absent,
                    Stored::Inline(value) => Contents::Inline(value),
                    Stored::Long(large) => Contents::Inline(&large.bytes),
                    Stored::Overflow(cell) => Contents::Overflow(cell),
                };
                writer.put(&key, commit, &contents, allocate)?;
            }
        }
    }
    for (part, table) in [(RunSection::Pages, &run.pages), (RunSection::Regions, &run.regions)] {
        for (namespace, places) in table.parts() {
            for at in places {
                let key = EntryKey::of_prefix(part, namespace, &table.keys()[at]);
                for version in table.versions_within(at, after, u64::MAX) {
                    let node = Contents::Inline(table.bytes(version));
                    writer.put(&key, table.commit(version), &node, allocate)?;
                }
            }
        }
    }
    long.sort_by_key(|(commit, _)| *commit);
    for same in long.chunk_by(|a, b| a.0 == b.0) {
        for (count, (commit, cell)) in (0..).zip(same) {
            let key = EntryKey::of_commit(RunSection::LongValues, *commit, count);
            writer.put(&key, *commit, &Contents::Overflow(cell), allocate)?;
        }
    }
    for (commit, bytes) in commits {
        let key = EntryKey::of_commit(RunSection::Commits, *commit, 0);
        writer.put(&key, *commit, &Contents::Inline(bytes), allocate)?;
    }
    writer.finish(allocate)
}

/// A merge of neighbours on the device in progress.
pub struct DiskMerge {
    /// Oldest first.
    pub runs: Vec<Arc<DiskRun>>,
    walks: Vec<RunWalk>,
    writer: RunWriter,
}

impl DiskMerge {
    /// The merge that is due, of the shortest neighbours among all runs, the oldest first; `number` gives its number.
    /// Bad runs stay as they are, and those on both sides of one are not merged with each other.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn of<E: From<Error>>(
        all: &[Arc<DiskRun>],
        file: &Arc<RunFile>,
        number: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Option<Self>, E> {
        let merge_level =
            |run: &Arc<DiskRun>| (!run.is_bad()).then_some(run.descriptor.merge_level);
        let sizes = all.iter().map(|run| {
            (
                merge_level(run).unwrap_or(usize::MAX),
                run.descriptor.after,
                run.descriptor.last_commit,
            )
        });
        let longest = all.iter().filter_map(merge_level).max().unwrap_or(0);
        let own = (0..=longest).find_map(|merge_level| neighbours(sizes.clone(), merge_level));
        let own = own.filter(|own| {
            all[own.end - 1].descriptor.last_commit - all[own.start].descriptor.after
                <= MOST_COMMITS
        });
        own.map(|own| Ok(Self::new(file, number()?, all[own].to_vec())?)).transpose()
    }

    /// The merge of neighbours, the oldest first, into a run of this number.
    fn new(file: &Arc<RunFile>, number: u64, runs: Vec<Arc<DiskRun>>) -> Result<Self, Error> {
        let (first, last) = (&runs[0].descriptor, &runs[runs.len() - 1].descriptor);
        let (after, last_commit, merge_level) =
            (first.after, last.last_commit, first.merge_level + 1);
        let names =
            RunDescriptor { number, after, last_commit, merge_level, ..RunDescriptor::default() };
        let keys = runs.iter().map(|run| run.descriptor.keys).sum();
        let mut writer = RunWriter::new(file, names, keys);
        writer.add_value_bytes(runs.iter().map(|run| run.descriptor.value_bytes).sum());
        let walks =
            runs.iter().map(|run| RunWalk::new(Arc::clone(run))).collect::<Result<_, Error>>()?;
        Ok(Self { runs, walks, writer })
    }

    /// Merges this number of entries. True when all are merged.
    ///
    /// # Errors
    /// Errors of reading, of writing, and of `allocate`.
    pub fn step<E: From<Error>>(
        &mut self,
        entries: usize,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>, E>,
    ) -> Result<bool, E> {
        for _ in 0..entries {
            // Of equal keys the oldest run's entries come first.
            let next = self.walks.iter().enumerate();
            let next = next.filter_map(|(at, walk)| Some((walk.entry()?.key, at)));
            let Some((_, at)) = next.min() else { return Ok(true) };
            let walk = &mut self.walks[at];
            let Some(entry) = walk.entry() else { return Ok(true) };
            let commit = walk.run.descriptor.after + entry.commit;
            if commit > walk.run.descriptor.last_commit {
                return Err(walk.run.bad_commit().into());
            }
            match entry.contents {
                Contents::InPieces { .. } => {
                    let bytes = walk.run.bytes(&entry.contents)?;
                    self.writer.put(&entry.key, commit, &Contents::Inline(&bytes), allocate)?;
                }
                contents => self.writer.put(&entry.key, commit, &contents, allocate)?,
            }
            walk.advance()?;
        }
        Ok(false)
    }

    /// The merged run. Nothing is synced.
    ///
    /// # Errors
    /// Errors of writing, and of `allocate`.
    pub fn finish<E: From<Error>>(
        self,
        allocate: &mut impl FnMut(usize) -> Result<Vec<OverflowExtent>, E>,
    ) -> Result<RunDescriptor, E> {
        self.writer.finish(allocate)
    }
}
