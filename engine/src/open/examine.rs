//! Recovery from `choose` to `check-root` of `docs/commit-and-recovery.md`: everything is opened, measured and checked,
//! and nothing is written. An open for writing goes on from here; tools that only read end here.

use std::io::ErrorKind::NotFound;

use pleach_beatree::Error as TreeError;
use pleach_beatree::page_no::page_offset;
use pleach_beatree::space::LeafSpace;
use pleach_core::{Hasher, Node};
use pleach_io::{Disk, IoError, OpenMode, Operation, PAGE};
use pleach_journal::format::creation::{self, CreationError, DirectoryState, UNFINISHED};
use pleach_journal::format::incarnation::{self, Incarnation, IncarnationError};
use pleach_journal::format::names::{
    self, IMAGES, LEAF_FILE, REQUIRED, is_ours, parse_segment_name,
};
use pleach_journal::format::position::LogPos;
use pleach_journal::format::spare::{SpareFile, SpareState};
use pleach_journal::format::superblock::{self, SlotError};
use pleach_journal::format::superblock_store::SuperblockStore;
use pleach_journal::format::table::{map_end, map_pages};
use pleach_journal::log::segment::{self, Segments};

use super::recovery::{LogBounds, LogEnd, RecoveredState, recover};
use crate::error::{Error, NoRoom, Result};
use crate::opening::{LostHistory, Note, Opening};
use crate::options::HistoryLimits;

/// The database in a folder, as recovery has read it.
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct Examination {
    /// The superblocks; recovery went from the one in use.
    pub superblocks: SuperblockStore,
    /// The number of the last writable open.
    pub incarnation: Incarnation,
    /// The database in memory.
    pub recovered: RecoveredState,
    pub(crate) space: LeafSpace,
    /// The log is kept from this position on.
    pub(crate) log_from: LogPos,
    /// The report of the examination: defects, and how recovery went on.
    pub opening: Opening,
    /// The bounds of the log according to the superblocks.
    log_bounds: LogBounds,
    pub(super) limits: HistoryLimits,
}

impl Examination {
    /// Refuses a history that is shorter than records and options promise.
    pub(crate) fn require_history(&self) -> Result<()> {
        let (oldest, newest) = (self.opening.oldest, self.opening.commit);
        let wanted =
            self.recovered.history.recorded_begin.max(newest.saturating_sub(self.limits.commits));
        if oldest <= wanted {
            return Ok(());
        }
        let cause = self.recovered.history.lost.clone().map(Box::new);
        Err(Error::HistoryShort { wanted, oldest, newest, cause })
    }

    /// Whether the older checkpoint could serve if the newest were damaged; `None` when there is none.
    pub fn can_older_serve(&self, device: &Disk) -> Option<bool> {
        let older = self.superblocks.other().ok()?;
        let known = LogBounds { clean: false, late: false, ..self.log_bounds };
        let recovered =
            recover(self.recovered.hasher, device, &older, &known, self.limits, None).ok();
        Some(recovered.is_some_and(|found| found.tip.number == self.recovered.tip.number))
    }
}

/// Opens the superblocks, the first access to a folder that holds a database.
pub fn superblocks(device: &Disk, mode: OpenMode) -> Result<SuperblockStore> {
    open_all_files(device, mode)?;
    let store = SuperblockStore::open(device.clone(), mode)?;
    store.newest().check_features(mode == OpenMode::Write)?;
    Ok(store)
}

/// Opens every existing file of the database, as `mode` says, and checks that all necessary ones exist. So wrong
/// rights, folders in the place of files, and files that are another database's, too (hard links), show before anything
/// is written. Writes nothing.
fn open_all_files(device: &Disk, mode: OpenMode) -> Result<()> {
    let open = |name: &str| match device.open(name, mode) {
        Ok(file) if mode == OpenMode::Write => device.check_unlinked(&file),
        opened => opened.map(drop),
    };
    // A listing has no folders.
    for name in names::fixed() {
        match open(name) {
            Err(error) if error.is_not_found() && !REQUIRED.contains(&name) => {}
            opened => opened.map_err(|error| name_missing_file(error.into()))?,
        }
    }
    for name in device.list()?.iter().filter(|name| parse_segment_name(name).is_some()) {
        open(name)?;
    }
    Ok(())
}

/// Examines a database. Writes nothing. May fail when another process writes the database meanwhile. `late`: the
/// regions may stay in the image until they are used.
pub fn examine(
    hasher: Option<Hasher>,
    device: &Disk,
    mut superblocks: SuperblockStore,
    limits: impl Fn(&superblock::Superblock) -> HistoryLimits,
    accept: Option<&Node>,
    log_end: LogEnd,
    late: bool,
) -> Result<Examination> {
    let newest = *superblocks.newest();
    let limits = limits(&newest);
    let found = newest.hasher.hasher(hasher);
    let hasher = found.ok_or_else(|| Error::wrong_hasher(hasher, &newest.hasher))?;
    let incarnation = match log_end {
        // Ignores the incarnation file: no record's incarnation is too high then.
        LogEnd::Salvage => Incarnation { number: u32::MAX, copies: [false; 2] },
        _ => incarnation::read(device, newest.database)?,
    };
    let older = superblocks.other().ok();
    if let Some(known) = [Some(newest), older].iter().flatten().map(|slot| slot.incarnation).max()
        && known > incarnation.number
    {
        return Err(IncarnationError::Old { found: incarnation.number, known }.into());
    }
    let mut known = LogBounds {
        incarnation: incarnation.number,
        durable_through: newest.durable_through,
        prepared_through: newest.prepared_through,
        clean: newest.clean_end == Some(newest.replay.position)
            && newest.incarnation == incarnation.number,
        log_end,
        late,
    };
    if let Some(older) = older {
        known.durable_through = known.durable_through.max(older.durable_through);
        known.prepared_through = known.prepared_through.max(older.prepared_through);
    }
    let mut opening = Opening { closed: known.clean, ..Opening::default() };
    let recover = |slot: &superblock::Superblock, known: &LogBounds, limits| {
        recover(hasher, device, slot, known, limits, accept)
    };
    let mut recovered = recover(&newest, &known, limits);
    if known.late && recovered.as_ref().is_err_and(is_image_error) {
        // What it cannot do the recovery of all regions does, or names.
        known.late = false;
        recovered = recover(&newest, &known, limits);
    }
    let recovered = match recovered {
        Ok(recovered) => recovered,
        Err(error) => match older.filter(|_| is_image_error(&error)) {
            None => return Err(name_missing_file(error)),
            Some(older) => {
                (known.clean, known.late) = (false, false);
                // With its own log unbroken the older generation leads to the same state. After a bulk load, which
                // writes no log, it leads to the empty one. Pages of its runs may be other runs' by now.
                let limits = HistoryLimits { reads_runs: true, ..limits };
                let recovered = recover(&older, &known, limits)
                    .inspect_err(|error| tracing::warn!(%error, "nor does the older checkpoint"))
                    .ok();
                let recovered = recovered.filter(|found| {
                    let same = found.tip.number == newest.commit
                        && found.tip.roots.over_all(hasher) == newest.root;
                    same || found.tip.number > newest.commit || log_end == LogEnd::Salvage
                });
                let Some(recovered) = recovered else { return Err(name_missing_file(error)) };
                superblocks.fall_back();
                opening.fell_back = Some(error);
                recovered
            }
        },
    };
    let in_use = *superblocks.newest();
    let (size, replay) = (in_use.geometry.log_segment, in_use.replay.position);
    let mut log_from = replay;
    // Each generation counts as long as its log exists, with the history or without: the one in use has a longer log
    // than it needs by now, and the next open may start from it again.
    let slots = std::iter::once(in_use).chain(superblocks.other().ok());
    for from in slots.flat_map(|slot| [slot.log_from, slot.replay.position]) {
        if from < log_from && segment::has_segments_between(device, size, log_from, from)? {
            log_from = from;
        }
    }
    let scan = &recovered.scan;
    if !matches!(log_end, LogEnd::Damage | LogEnd::Salvage) {
        Segments::check(device, size, log_from, scan.end.position, scan.prepared_through)?;
    }
    let space = leaf_space(device, &in_use, &recovered, log_end)?;
    opening.commit = recovered.tip.number;
    opening.replayed = recovered.scan.end.position - replay;
    opening.cut = recovered.scan.cut;
    opening.notes = notes(device, &superblocks, incarnation, &in_use)?;
    for namespace in &recovered.rebuilt {
        let what = format!(
            "the nodes of namespace {namespace} were wrong and are computed from its pairs"
        );
        opening.notes.push(Note { file: "image".to_owned(), what });
    }
    if let Some(error) = &recovered.history.lost {
        let (from, before) =
            (recovered.history.recorded_begin, recovered.history.undo.oldest_commit());
        let lost = LostHistory { from, before, error: error.clone() };
        opening.notes.push(lost.note());
        opening.lost = Some(lost);
    }
    opening.oldest = recovered.history.undo.oldest_commit();
    Ok(Examination {
        superblocks,
        incarnation,
        recovered,
        space,
        log_from,
        opening,
        log_bounds: known,
        limits,
    })
}

/// True when the error comes from the image, so that the older one may serve. The log is the same for both.
fn is_image_error(error: &Error) -> bool {
    match error {
        Error::Page { .. }
        | Error::StalePage { .. }
        | Error::ForeignImagePage { .. }
        | Error::Corrupt(_) => true,
        Error::Io(error) => error.file().is_some_and(|file| IMAGES.contains(&file)),
        _ => false,
    }
}

/// An error that names a missing file.
fn name_missing_file(error: Error) -> Error {
    match error {
        Error::Io(io) if io.is_not_found() && io.file().is_some_and(is_ours) => {
            Error::MissingFile { file: io.file().unwrap_or_default().to_owned() }
        }
        error => error,
    }
}

/// The used pages of the leaf file; each must be in the file.
fn leaf_space(
    device: &Disk,
    superblock: &superblock::Superblock,
    recovered: &RecoveredState,
    log_end: LogEnd,
) -> Result<LeafSpace> {
    let geometry = superblock.page_space();
    if log_end == LogEnd::Salvage {
        return Ok(LeafSpace::from_used(geometry, 0, std::iter::empty())?);
    }
    let file = device.open(LEAF_FILE, OpenMode::Read)?;
    let found = device.len(&file)?;
    let (file, page, what) = (LEAF_FILE, found / PAGE as u64, "no page number reaches it");
    let pages = u32::try_from(page).map_err(|_| TreeError::Contents { file, page, what })?;
    let in_segments = pages / geometry.segment_pages * geometry.segment_pages;
    let RecoveredState { leaf_pages, leaf_map, .. } = recovered;
    let end = leaf_pages.iter().max().map_or(0, |last| last.get() + 1).max(map_end(leaf_map));
    if end > in_segments {
        let expected = page_offset(end.into());
        return Err(Error::ShortFile { file: LEAF_FILE, found, expected });
    }
    let segments = pages / geometry.segment_pages;
    Ok(LeafSpace::from_used(
        geometry,
        segments,
        leaf_pages.iter().copied().chain(map_pages(leaf_map)),
    )?)
}

fn notes(
    device: &Disk,
    superblocks: &SuperblockStore,
    incarnation: Incarnation,
    in_use: &superblock::Superblock,
) -> Result<Vec<Note>> {
    let mut notes = Vec::new();
    let mut note = |file: &str, what: String| notes.push(Note { file: file.to_owned(), what });
    let slot = 1 - superblocks.slot();
    match superblocks.other() {
        Err(SlotError::Blank) if in_use.generation > 1 => {
            let generation = in_use.generation;
            let what =
                format!("slot {slot}: blank, and both were written by generation {generation}");
            note(superblock::FILE, what);
        }
        Ok(_) | Err(SlotError::Blank | SlotError::GivenUp) => {}
        Err(error) => note(superblock::FILE, format!("slot {slot}: {error}")),
    }
    for (copy, good) in incarnation.copies.iter().enumerate() {
        if !good {
            note(incarnation::FILE, format!("copy {copy} is damaged or cannot be read"));
        }
    }
    for spare in spares(in_use.geometry.log_segment) {
        match spare.state(device, in_use.database)? {
            SpareState::Ready => {}
            SpareState::Missing => note(spare.name, "missing".to_owned()),
            SpareState::Unmarked => {
                note(spare.name, "left by an open that failed, or was cut short".to_owned());
            }
        }
    }
    Ok(notes)
}

/// The spares of a database.
pub(crate) fn spares(log_segment: u64) -> [SpareFile; 3] {
    [superblock::SPARE, incarnation::SPARE, segment::spare(log_segment)]
}

/// Makes the spares that an earlier open has used up, where that is possible: the next open works without them.
pub(crate) fn renew_spares(device: &Disk, superblock: &superblock::Superblock) {
    for spare in spares(superblock.geometry.log_segment) {
        if let Err(error) = spare.renew(device, superblock.database) {
            tracing::warn!(%error, spare = spare.name, "a spare file could not be made");
        }
    }
}

/// Turns errors of a full device into [`Error::Full`], and those of a missing file into [`Error::MissingFile`].
pub(crate) fn clarify_error(error: Error) -> Error {
    match error.device() {
        Some(io) if io.is_full() && error.code() != 105 => NoRoom::Open(io.clone()).into(),
        _ => name_missing_file(error),
    }
}

/// The contents of the folder: files of a database, or nothing yet if one is to be created there. A database that is
/// being filled is refused, unless by what fills it.
pub fn inspect(device: &Disk, create: bool, fills: bool) -> Result<DirectoryState> {
    let folder = || device.info().folder;
    if !fills && device.list()?.iter().any(|name| name == UNFINISHED) {
        return Err(CreationError::HalfFilled.into());
    }
    match creation::inspect(device)? {
        DirectoryState::Foreign(found) => Err(Error::NotADatabase { folder: folder(), found }),
        DirectoryState::Empty | DirectoryState::HalfCreated if !create => {
            Err(Error::Missing { folder: folder() })
        }
        state => Ok(state),
    }
}

/// The error for a missing folder: there is no database in it.
pub fn missing_folder_error(error: IoError) -> Error {
    match error {
        IoError::Os { operation: Operation::OpenFolder, file: folder, kind: NotFound, .. } => {
            Error::Missing { folder }
        }
        other => other.into(),
    }
}
