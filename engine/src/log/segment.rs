//! The files that hold the log: `log-<index as 16 hex digits>`, all of one size.
//!
//! Segment `i` holds the positions from `i * size` to `(i + 1) * size`; it has no header, the
//! records in it say where they belong. Life of a segment:
//!
//! 1. *prepared*: made under a temporary name, reserved, zero-written and synced, then renamed
//!    and the folder synced; or a retired one, renamed. Only then may a record go into it, so a
//!    file named `log-*` has its full size, and its name outlives a crash;
//! 2. *live*: records are written, and no block is written twice by records;
//! 3. *retired*: nobody needs what is below its end; it waits under its old name to be renamed,
//!    or is removed when enough are waiting.
//!
//! A recycled segment still holds old records. They name positions of another segment, so they
//! are never taken for the log's.
//!
//! Preparing may go on in the background: it holds no lock that writing needs while it does I/O.
//! Failing to make a new segment leaves nothing behind and may be tried again; only a failed sync
//! of the folder poisons, because the name can no longer be trusted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pleach_io::{Device, IoError, OpenMode, PAGE, PageBuf};

use super::error::LogError;

const PREFIX: &str = "log-";
/// Name of a segment in the making.
pub const TEMPORARY: &str = "log.new";
/// Smallest segment.
pub const MIN_SEGMENT: u64 = 2 * PAGE as u64;
/// Largest run of pages in one write.
pub(super) const RUN_PAGES: usize = 512;

/// File name of segment `index`.
pub fn name(index: u64) -> String {
    format!("{PREFIX}{index:016x}")
}

/// The index in a segment's file name; `None` when it is not one.
pub fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    let plain =
        digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if plain { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// Is this a size that segments may have?
pub fn valid_size(size: u64) -> bool {
    size >= MIN_SEGMENT && size.is_multiple_of(PAGE as u64) && size <= 1 << 40
}

/// How segments are made and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOptions {
    /// Bytes of a segment, a multiple of the page size.
    pub size: u64,
    /// How many retired segments wait to be used again.
    pub spares: usize,
}

/// Figures of the log's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentStats {
    /// Segments that hold or will hold records.
    pub live: u64,
    /// Retired segments that wait to be used again.
    pub spare: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Segments made new since the open.
    pub made: u64,
    /// Segments used again since the open.
    pub recycled: u64,
}

struct State<F> {
    /// Contiguous: prepared, and not yet retired.
    live: BTreeMap<u64, F>,
    /// Index of the next segment to prepare.
    next: u64,
    /// Retired files, by the index in their present name.
    spares: Vec<u64>,
    made: u64,
    recycled: u64,
}

struct Shared<D: Device> {
    device: D,
    options: SegmentOptions,
    state: Mutex<State<D::File>>,
    /// Held while a segment is prepared or retired, over the I/O; never taken by writing.
    changing: Mutex<()>,
    /// Positions below this may be written.
    prepared: AtomicU64,
    poisoned: AtomicBool,
}

/// The log's files. Clones share them.
pub struct Segments<D: Device> {
    shared: Arc<Shared<D>>,
}

impl<D: Device> Clone for Segments<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D: Device> core::fmt::Debug for Segments<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Segments")
            .field("size", &self.shared.options.size)
            .field("prepared_through", &self.prepared_through())
            .finish_non_exhaustive()
    }
}

impl<D: Device> Segments<D> {
    /// Takes over the segments in the folder. Those that hold positions from `needed_from` to
    /// `end` must be there; older ones are retired, later ones count as prepared.
    ///
    /// # Panics
    /// When the size is not [`valid_size`].
    pub fn open(
        device: D,
        options: SegmentOptions,
        needed_from: u64,
        end: u64,
    ) -> Result<Self, LogError> {
        assert!(valid_size(options.size), "the superblock's geometry is checked before");
        let first = needed_from.min(end) / options.size;
        let needed_end = end.div_ceil(options.size);
        let mut indices: Vec<u64> =
            device.list()?.iter().filter_map(|name| parse_name(name)).collect();
        indices.sort_unstable();

        let mut live = BTreeMap::new();
        let mut old = Vec::new();
        let mut next = first;
        for index in indices {
            let file = device.open(&name(index), OpenMode::Write)?;
            let length = device.len(&file)?;
            if index == next && length == options.size {
                live.insert(index, file);
                next += 1;
            } else if index >= first && index < needed_end {
                let (index, found) =
                    if index == next { (index, Some(length)) } else { (next, None) };
                return Err(LogError::Segment { index, found, expected: options.size });
            } else {
                old.push((index, length));
            }
        }
        if next < needed_end {
            return Err(LogError::Segment { index: next, found: None, expected: options.size });
        }
        let mut spares = Vec::new();
        for (index, length) in old {
            if length == options.size && spares.len() < options.spares {
                spares.push(index);
            } else {
                device.remove(&name(index))?;
            }
        }
        device.sync_folder()?;
        let state = State { live, next, spares, made: 0, recycled: 0 };
        Ok(Self {
            shared: Arc::new(Shared {
                device,
                options,
                state: Mutex::new(state),
                changing: Mutex::new(()),
                prepared: AtomicU64::new(next * options.size),
                poisoned: AtomicBool::new(false),
            }),
        })
    }

    /// Bytes of a segment.
    pub fn size(&self) -> u64 {
        self.shared.options.size
    }

    /// Positions below this may be written without preparing anything.
    pub fn prepared_through(&self) -> u64 {
        self.shared.prepared.load(Ordering::Acquire)
    }

    /// Prepares segments until positions below `through` may be written. Without room the error
    /// is [`LogError::Full`], and what was prepared so far stays.
    pub fn ensure(&self, through: u64) -> Result<(), LogError> {
        while self.prepared_through() < through {
            let _changing = self.shared.changing.lock();
            if self.prepared_through() < through {
                self.prepare()?;
            }
        }
        Ok(())
    }

    /// Retires the segments that lie below `below` as a whole.
    pub fn retire(&self, below: u64) -> Result<(), LogError> {
        let shared = &*self.shared;
        let _changing = shared.changing.lock();
        loop {
            let index = {
                let mut state = shared.state.lock();
                let end = (state.live.first_key_value()).map(|(i, _)| (i + 1) * self.size());
                let Some((index, _)) = end.filter(|end| *end <= below).and_then(|_| {
                    // The last prepared segment stays: `next` follows it.
                    if state.live.len() > 1 { state.live.pop_first() } else { None }
                }) else {
                    return Ok(());
                };
                if state.spares.len() < shared.options.spares {
                    state.spares.push(index);
                    continue;
                }
                index
            };
            shared.device.remove(&name(index))?;
        }
    }

    /// Figures.
    pub fn stats(&self) -> SegmentStats {
        let state = self.shared.state.lock();
        let (live, spare) = (state.live.len() as u64, state.spares.len() as u64);
        SegmentStats {
            live,
            spare,
            bytes: (live + spare) * self.size(),
            made: state.made,
            recycled: state.recycled,
        }
    }

    pub(super) fn device(&self) -> &D {
        &self.shared.device
    }

    /// The file that holds a position, once it is prepared.
    pub(super) fn file(&self, position: u64) -> Option<D::File> {
        self.shared.state.lock().live.get(&(position / self.size())).cloned()
    }

    /// The caller holds `changing`.
    fn prepare(&self) -> Result<(), LogError> {
        let shared = &*self.shared;
        if shared.poisoned.load(Ordering::Acquire) {
            return Err(LogError::Poisoned);
        }
        let (index, spare) = {
            let mut state = shared.state.lock();
            (state.next, state.spares.pop())
        };
        let file = match spare {
            Some(old) => self.recycle(old, index)?,
            None => self.make(index)?,
        };
        if let Err(error) = shared.device.sync_folder() {
            // The name is visible and may not be durable: nobody may find it prepared.
            shared.poisoned.store(true, Ordering::Release);
            let _ = shared.device.remove(&name(index));
            return Err(error.into());
        }
        let mut state = shared.state.lock();
        state.live.insert(index, file);
        state.next = index + 1;
        if spare.is_some() {
            state.recycled += 1;
        } else {
            state.made += 1;
        }
        shared.prepared.store((index + 1) * self.size(), Ordering::Release);
        Ok(())
    }

    fn recycle(&self, old: u64, index: u64) -> Result<D::File, LogError> {
        let device = &self.shared.device;
        let renamed = (device.rename(&name(old), &name(index)))
            .and_then(|()| device.open(&name(index), OpenMode::Write));
        Ok(renamed?)
    }

    fn make(&self, index: u64) -> Result<D::File, LogError> {
        let device = &self.shared.device;
        let file = make_temporary(device, self.size())?;
        let zeros = PageBuf::zeroed(run_pages(self.size()));
        let made = write_zeros(device, &file, &zeros, 0, self.size())
            .and_then(|()| device.sync(&file))
            .and_then(|()| device.rename(TEMPORARY, &name(index)));
        made.map_err(|error| abandon(device, error))?;
        // Opened again, so that errors of the device name the segment.
        Ok(device.open(&name(index), OpenMode::Write)?)
    }
}

/// Pages of a run, of at most a segment.
pub(super) fn run_pages(size: u64) -> usize {
    usize::try_from(size / PAGE as u64).map_or(RUN_PAGES, |pages| pages.min(RUN_PAGES))
}

/// A file of a segment's size under the temporary name, its space reserved.
pub(super) fn make_temporary<D: Device>(device: &D, size: u64) -> Result<D::File, LogError> {
    match device.remove(TEMPORARY) {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => {}
    }
    let made = device.open(TEMPORARY, OpenMode::CreateNew).and_then(|file| {
        device.allocate(&file, 0, size)?;
        Ok(file)
    });
    made.map_err(|error| abandon(device, error))
}

/// Undoes a segment in the making, as far as the device lets us; the next attempt removes it too.
pub(super) fn abandon<D: Device>(device: &D, error: IoError) -> LogError {
    let _ = device.remove(TEMPORARY);
    if error.is_full() { LogError::Full(error) } else { LogError::Io(error) }
}

/// Zeros from `from` to `to`, both multiples of the page size.
pub(super) fn write_zeros<D: Device>(
    device: &D,
    file: &D::File,
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
