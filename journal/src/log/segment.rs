//! The files that hold the log: `log-<index as 16 hex digits>`, all of one size.
//!
//! Segment `i` holds the positions from `i * size` to `(i + 1) * size`; it has no header, the records in it have their
//! positions. Life of a segment:
//!
//! 1. *prepared*: made under a temporary name, reserved, zero-written and synced, then renamed and the folder synced;
//!    or a retired one, renamed. Only then may a record go into it, so a file named `log-*` has its full size, and its
//!    name outlives a crash. Segments are prepared in their order, and the first one when the database is created: from
//!    the first needed one on there is no gap, and one with another size or a missing one is damage;
//! 2. *live*: records are written, and no block is written twice by records;
//! 3. *retired*: nobody needs the log below its end; it keeps its name until it is used again, or
//!    is removed when enough others wait for that.
//!
//! A recycled segment still has old records. They name positions of another segment, so they are never taken for
//! records of the log.
//!
//! Only segments that records go into, or that wait for their sync, are kept open: a long history has hundreds of
//! others, which readers open.
//!
//! Preparing may go on in the background: it holds no lock that writing needs while it does I/O. A segment that cannot
//! be made leaves nothing, and may be tried again; only a failed sync of the folder poisons, because the name can no
//! longer be trusted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pleach_io::{Disk, File, IoError, OpenMode, PAGE, PageBuf};

use super::error::{BadSegment, LogError};
use crate::format::names::{SEGMENT_SPARE, SEGMENT_TEMPORARY, parse_segment_name, segment_name};
use crate::format::position::{LogPos, valid_segment_size};
use crate::format::spare::SpareFile;

/// Pages of the largest write.
pub(super) const RUN_PAGES: usize = 512;

/// How segments are made and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOptions {
    /// Bytes of a segment, a multiple of the page size.
    pub size: u64,
    /// How many retired segments wait to be used again.
    pub spares: usize,
    /// Records go through the page cache and share blocks: for a log that is not synced after each of them.
    pub cached: bool,
}

impl SegmentOptions {
    /// The mode in which segments are opened for records.
    fn mode(self) -> OpenMode {
        if self.cached { OpenMode::WriteCached } else { OpenMode::Write }
    }
}

struct SegmentState {
    /// Segments from this one to `next` are live: prepared, and not yet retired.
    first: u64,
    /// Files of segments that records go into, or that are not synced.
    open: BTreeMap<u64, File>,
    /// Index of the next segment to prepare.
    next: u64,
    /// Retired files, by the index in their present name.
    spares: Vec<u64>,
}

struct SegmentsInner {
    device: Disk,
    options: SegmentOptions,
    state: Mutex<SegmentState>,
    /// Held while a segment is prepared or retired, over the I/O; never taken by writers of records.
    changing: Mutex<()>,
    /// Positions below this may be written.
    prepared: AtomicU64,
    poisoned: AtomicBool,
}

/// The log's files. Clones share them.
#[derive(Clone)]
pub struct Segments {
    shared: Arc<SegmentsInner>,
}

impl core::fmt::Debug for Segments {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Segments")
            .field("size", &self.shared.options.size)
            .field("prepared_through", &self.prepared_through())
            .finish_non_exhaustive()
    }
}

impl Segments {
    /// Checks what [`Segments::open`] needs. Writes nothing.
    pub fn check(
        device: &Disk,
        size: u64,
        needed_from: LogPos,
        end: LogPos,
        prepared_through: LogPos,
    ) -> Result<(), LogError> {
        Survey::new(device, size, needed_from, end, prepared_through, OpenMode::Read).map(drop)
    }

    /// Takes over the segments in the folder. Segments that hold positions from `needed_from` to `end` must exist;
    /// older ones are retired. Later ones count as prepared up to `prepared_through`. The name of a segment behind that
    /// may never have become durable, so it waits to be used again under a new name. Files beyond the number of spares
    /// are removed.
    ///
    /// # Panics
    /// When the size is not `valid_segment_size`.
    pub fn open(
        device: Disk,
        options: SegmentOptions,
        needed_from: LogPos,
        end: LogPos,
        prepared_through: LogPos,
    ) -> Result<Self, LogError> {
        let (size, mode) = (options.size, options.mode());
        let Survey { first, open, old, next } =
            Survey::new(&device, size, needed_from, end, prepared_through, mode)?;
        let mut spares = Vec::new();
        for (index, length) in old {
            if length == options.size && spares.len() < options.spares {
                spares.push(index);
            } else {
                device.remove(&segment_name(index))?;
            }
        }
        device.sync_folder()?;
        let state = SegmentState { first, open, next, spares };
        Ok(Self::new(device, options, state, false))
    }

    /// Segments without files, of which none will be prepared.
    pub(super) fn new_refusing(device: Disk, options: SegmentOptions) -> Self {
        let (open, spares) = (BTreeMap::new(), Vec::new());
        let state = SegmentState { first: 0, open, next: 0, spares };
        Self::new(device, options, state, true)
    }

    fn new(device: Disk, options: SegmentOptions, state: SegmentState, poisoned: bool) -> Self {
        let prepared = AtomicU64::new(state.next * options.size);
        Self {
            shared: Arc::new(SegmentsInner {
                device,
                options,
                state: Mutex::new(state),
                changing: Mutex::new(()),
                prepared,
                poisoned: AtomicBool::new(poisoned),
            }),
        }
    }

    /// Most bytes of one write.
    pub fn max_write_bytes(&self) -> usize {
        run_pages(self.size()) * PAGE
    }

    /// Bytes of a segment.
    pub fn size(&self) -> u64 {
        self.shared.options.size
    }

    /// Positions below this may be written without preparing a segment.
    pub fn prepared_through(&self) -> LogPos {
        self.shared.prepared.load(Ordering::Acquire).into()
    }

    /// Bytes of retired segments that wait to be used again.
    pub fn spare_bytes(&self) -> u64 {
        self.shared.state.lock().spares.len() as u64 * self.size()
    }

    /// Prepares segments until positions below `upto` may be written. Without room the error is the device's, and
    /// segments that were prepared before stay.
    pub fn prepare_through(&self, upto: LogPos) -> Result<(), LogError> {
        if self.prepared_through() < upto {
            let _changing = self.shared.changing.lock();
            self.prepare(upto)?;
        }
        Ok(())
    }

    /// Retires the segments that lie completely below `below`.
    pub fn retire(&self, below: LogPos) -> Result<(), LogError> {
        let shared = &*self.shared;
        let _changing = shared.changing.lock();
        loop {
            let index = {
                let mut state = shared.state.lock();
                let index = state.first;
                let is_old = LogPos::of_segment(index + 1, self.size()) <= below;
                // The last prepared segment stays: `next` follows it.
                if !is_old || index + 1 >= state.next {
                    return Ok(());
                }
                state.first += 1;
                state.open.remove(&index);
                if state.spares.len() < shared.options.spares {
                    state.spares.push(index);
                    continue;
                }
                index
            };
            shared.device.remove(&segment_name(index))?;
        }
    }

    /// True when a sync of the folder has failed: no segment is prepared any more.
    pub fn is_poisoned(&self) -> bool {
        self.shared.poisoned.load(Ordering::Acquire)
    }

    /// True when records go through the page cache.
    pub(super) fn is_cached(&self) -> bool {
        self.shared.options.cached
    }

    pub(super) fn device(&self) -> &Disk {
        &self.shared.device
    }

    /// The file for records at a position, once it is prepared and until it is closed.
    pub(super) fn file(&self, position: LogPos) -> Option<File> {
        self.shared.state.lock().open.get(&position.segment(self.size())).cloned()
    }

    /// Closes the files below a position: their contents are synced, and no record goes there any more.
    pub(super) fn close_below(&self, position: LogPos) {
        let index = position.segment(self.size());
        let mut state = self.shared.state.lock();
        state.open = state.open.split_off(&index);
    }

    /// Prepares the next segments, with one sync of the folder. The caller holds `changing`.
    fn prepare(&self, upto: LogPos) -> Result<(), LogError> {
        let shared = &*self.shared;
        if shared.poisoned.load(Ordering::Acquire) {
            return Err(LogError::Poisoned);
        }
        let next = shared.state.lock().next;
        let mut made = BTreeMap::new();
        let result = (next..upto.get().div_ceil(self.size()))
            .try_for_each(|index| self.make(index).map(|file| drop(made.insert(index, file))));
        let Some((last, _)) = made.last_key_value() else { return result };
        let up_to = last + 1;
        if let Err(error) = shared.device.sync_folder() {
            // The names are visible and may not be durable: the segments must not count as prepared.
            shared.poisoned.store(true, Ordering::Release);
            for index in made.into_keys() {
                let _ = shared.device.remove(&segment_name(index));
            }
            return Err(error.into());
        }
        let mut state = shared.state.lock();
        state.open.append(&mut made);
        state.next = up_to;
        shared.prepared.store(up_to * self.size(), Ordering::Release);
        result
    }

    /// A segment under its name: a retired one, or a new one. The caller syncs the folder.
    fn make(&self, index: u64) -> Result<File, LogError> {
        let shared = &*self.shared;
        let spare = {
            let spares = &mut shared.state.lock().spares;
            // Never over another waiting file.
            let own = spares.iter().position(|spare| *spare == index);
            own.map(|at| spares.swap_remove(at)).or_else(|| spares.pop())
        };
        let recycled = match spare {
            // When recycling fails, the file goes on waiting, under its present name.
            Some(old) => self.recycle(old, index).map_err(|(error, name)| {
                shared.state.lock().spares.push(name);
                error
            })?,
            None => None,
        };
        match recycled {
            Some(file) => Ok(file),
            None => make_segment(&shared.device, index, shared.options),
        }
    }

    /// Gives a retired segment a new name; `None` when the file does not exist any more. An error has the index of its
    /// name then.
    fn recycle(&self, old: u64, index: u64) -> Result<Option<File>, (IoError, u64)> {
        let device = &self.shared.device;
        let (from, to) = (segment_name(old), segment_name(index));
        let renamed = if old == index {
            // Renamed anew: the present name may not be durable.
            device
                .rename(&from, SEGMENT_TEMPORARY)
                .and_then(|()| device.rename(SEGMENT_TEMPORARY, &to))
        } else {
            device.rename(&from, &to)
        };
        match renamed {
            Ok(()) => {}
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err((error, old)),
        }
        device.open(&to, self.shared.options.mode()).map(Some).map_err(|error| {
            // The segment is not prepared.
            let back = old != index && device.rename(&to, &from).is_ok();
            (error, if back { old } else { index })
        })
    }
}

/// Makes the first segment of a new database, and the spare for copies of segments, synced. The caller syncs the
/// folder.
pub fn create(device: &Disk, database: u64, size: u64) -> Result<(), LogError> {
    spare(size).create(device, database)?;
    make_segment(device, 0, SegmentOptions { size, spares: 0, cached: false }).map(drop)
}

/// The spare for copies of segments.
pub fn spare(size: u64) -> SpareFile {
    SpareFile { name: SEGMENT_SPARE, len: size }
}

/// True when a log that is kept from `newest` on has every segment back to `older`. Writes nothing.
pub fn has_segments_between(
    device: &Disk,
    size: u64,
    newest: LogPos,
    older: LogPos,
) -> Result<bool, IoError> {
    for index in older.segment(size)..newest.segment(size) {
        match device.open(&segment_name(index), OpenMode::Read) {
            Ok(file) if device.len(&file)? == size => {}
            Ok(_) => return Ok(false),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A new segment under its name, zero-written and synced. The caller syncs the folder.
pub(super) fn make_segment(
    device: &Disk,
    index: u64,
    options: SegmentOptions,
) -> Result<File, LogError> {
    let size = options.size;
    let file = make_temporary(device, size)?;
    let zeros = PageBuf::zeroed(run_pages(size));
    let made = write_zeros(device, &file, &zeros, 0, size)
        .and_then(|()| device.sync(&file))
        .and_then(|()| device.rename(SEGMENT_TEMPORARY, &segment_name(index)));
    made.map_err(|error| abandon(device, error))?;
    // Opened again, so that errors of the device name the segment.
    Ok(device.open(&segment_name(index), options.mode())?)
}

/// The segments in a folder.
struct Survey {
    /// The first segment that is needed or known to be prepared; those from it to `next` are contiguous, each of full
    /// size.
    first: u64,
    /// The first index after them.
    next: u64,
    /// Files of segments among them that records may go into.
    open: BTreeMap<u64, File>,
    /// Index and length of other files; those that may be used again under their own index come first.
    old: Vec<(u64, u64)>,
}

impl Survey {
    fn new(
        device: &Disk,
        size: u64,
        needed_from: LogPos,
        end: LogPos,
        prepared_through: LogPos,
        mode: OpenMode,
    ) -> Result<Self, LogError> {
        assert!(valid_segment_size(size), "the superblock's geometry is checked before");
        let known_through = end.max(prepared_through);
        let first = needed_from.min(known_through).segment(size);
        let next = known_through.get().div_ceil(size);
        let mut indices: Vec<u64> =
            device.list()?.iter().filter_map(|name| parse_segment_name(name)).collect();
        indices.sort_unstable();
        let mut survey = Self { first, next, open: BTreeMap::new(), old: Vec::new() };
        let mut missing = first;
        for index in indices {
            let file = device.open(&segment_name(index), mode)?;
            let length = device.len(&file)?;
            if index >= first && length != size {
                return Err(BadSegment { index, found: Some(length), expected: size }.into());
            }
            if !(first..next).contains(&index) {
                survey.old.push((index, length));
                continue;
            }
            missing += u64::from(index == missing);
            if index >= end.segment(size) {
                survey.open.insert(index, file);
            }
        }
        if missing < next {
            return Err(BadSegment { index: missing, found: None, expected: size }.into());
        }
        survey.old.sort_unstable_by_key(|(index, _)| *index < first);
        Ok(survey)
    }
}

/// Pages of a write, of at most a segment.
pub(super) fn run_pages(size: u64) -> usize {
    usize::try_from(size / PAGE as u64).map_or(RUN_PAGES, |pages| pages.min(RUN_PAGES))
}

/// A file of a segment's size under the temporary name, its space reserved.
fn make_temporary(device: &Disk, size: u64) -> Result<File, LogError> {
    match device.remove(SEGMENT_TEMPORARY) {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => {}
    }
    let made = device.open(SEGMENT_TEMPORARY, OpenMode::CreateNew).and_then(|file| {
        device.allocate(&file, 0, size)?;
        Ok(file)
    });
    made.map_err(|error| abandon(device, error))
}

/// Removes an unfinished segment, as far as the device permits; the next attempt removes it too.
fn abandon(device: &Disk, error: IoError) -> LogError {
    let _ = device.remove(SEGMENT_TEMPORARY);
    error.into()
}

/// Writes zeros from `from` to `to`, both multiples of the page size.
pub(super) fn write_zeros(
    device: &Disk,
    file: &File,
    zeros: &PageBuf,
    from: u64,
    to: u64,
) -> Result<(), IoError> {
    let mut at = from;
    while at < to {
        let left = usize::try_from((to - at) / PAGE as u64).unwrap_or(usize::MAX);
        let pages = left.min(zeros.pages());
        device.write_at(file, zeros, pages, at)?;
        at += (pages * PAGE) as u64;
    }
    Ok(())
}
