//! Creating a database in an empty folder, all of it or nothing (rule `creation-is-atomic` of
//! `docs/commit-and-recovery.md`).
//!
//! 1. write the marker, sync it and the folder;
//! 2. make all files, each synced; sync the folder; make the superblock, synced; sync the folder;
//! 3. remove the marker, sync the folder. Only now does the database exist.
//!
//! The marker names the database being created. An open that finds it may start again from nothing, but only where the
//! other files *prove* that the creation did not finish:
//!
//! | beside a marker of database `m` | what it is |
//! |---|---|
//! | nothing | half created |
//! | no whole `super`; no leaf or overflow page, no log record; `incarnation` missing, torn, or 0 of `m` | half created |
//! | a `super` whose slots are blank or torn; `incarnation` is 0 of `m` | half created |
//! | a superblock of `m`, generation 1; `incarnation` is 0 of `m` | half created: 3 was not durable |
//! | the same, or blank or torn slots, with `incarnation` missing or torn; no page, no log record | half created, and half removed since: nothing can be in it |
//! | a superblock of `m`; `incarnation` is above 0 | a database; the marker came back |
//! | anything else: another database's superblock, one that cannot be read, a rotten `incarnation` | an error |
//!
//! A removed marker can come back, when a sync of the folder fails and then the power. The incarnation tells it from a
//! half creation: the first writable open raises it, after the removal of the marker is durable. A file of that name
//! that is not a whole marker was torn while it was made, if there is no other file; else it is an error. On an error
//! nothing is removed.
//!
//! A database that an import fills has the file [`UNFINISHED`] besides, made with its other files and so before its
//! superblock, and removed when it is whole.
//!
//! A folder without marker and superblock is a database that has lost its superblock, if our files are in it; with
//! other files it is somebody else's. Nothing in either is changed.

use pleach_io::{Disk, IoError, OpenMode, PAGE, PageBuf};
use twox_hash::XxHash3_64;

use super::bytes::{get, get_u64, put};
use super::incarnation::{self, IncarnationError};
use super::names::{
    IMAGES, LEAF_FILE, MARKER_TEMPORARY, OVERFLOW_FILE, is_ours, parse_segment_name, segment_name,
};
pub use super::names::{LOCK, MARKER, UNFINISHED};
use super::superblock::{self, SlotError, Superblock, SuperblockError};
use super::superblock_store::look;

const MAGIC: [u8; 8] = *b"PLEACHMK";
const AT_CHECKSUM: usize = 0;
const AT_MAGIC: usize = AT_CHECKSUM + 8;
const AT_DATABASE: usize = AT_MAGIC + 8;
const AT_REST: usize = AT_DATABASE + 8;

const _: () = assert!(AT_REST == 24);

/// The contents of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryState {
    /// No file: a database may be created.
    Empty,
    /// A creation that did not finish: it may be started again.
    HalfCreated,
    /// A database.
    Database,
    /// Files of a database without a superblock.
    NoSuperblock,
    /// Other files, of which this is one.
    Foreign(String),
}

/// The reason why a folder cannot be used for a new database.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreationError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The folder belongs to something else.
    #[error("the folder is not a database: it holds {found}; give an empty one")]
    NotADatabase {
        /// A file in it.
        found: String,
    },
    /// The folder has files of a database, but no whole database.
    #[error(
        "the folder holds {found} and no superblock, as a backup leaves it that was cut off: empty the folder, if it is not a \
         damaged database that you want to repair, or give another one"
    )]
    Unfinished {
        /// A file in it.
        found: String,
    },
    /// The folder holds a database that is being filled, or whose import, restore, upgrade or copy has failed.
    #[error(
        "the folder holds {UNFINISHED}: an import, a restore, an upgrade or a copy into it is under way, was cut off or has failed; \
         start that again, into this folder or an empty one"
    )]
    HalfFilled,
    /// The folder holds a database.
    #[error("the folder holds a database already: give an empty one")]
    Exists,
    /// There is a creation marker, and the other files are not those of an unfinished creation.
    #[error(
        "the folder holds the marker {MARKER} of a creation, but {why}; nothing was touched. If the database is yours, move {MARKER} out of the folder and open it again"
    )]
    Marker {
        /// The file that does not fit.
        why: String,
    },
}

/// Finds out what the folder holds; writes nothing.
///
/// # Errors
/// A marker that does not belong to the other files; errors of the device.
pub fn inspect(device: &Disk) -> Result<DirectoryState, CreationError> {
    let names = device.list()?;
    let has = |name: &str| names.iter().any(|found| found == name);
    if has(MARKER) {
        return beside_marker(device, &names);
    }
    if has(superblock::FILE) {
        return Ok(DirectoryState::Database);
    }
    if has(incarnation::FILE) && has(LEAF_FILE) && IMAGES.iter().any(|image| has(image)) {
        return Ok(DirectoryState::NoSuperblock);
    }
    Ok(others(&names)
        .min()
        .map_or(DirectoryState::Empty, |name| DirectoryState::Foreign(name.clone())))
}

/// The table of the module's documentation.
fn beside_marker(device: &Disk, names: &[String]) -> Result<DirectoryState, CreationError> {
    let wrong = |why: String| Err(CreationError::Marker { why });
    if others(names).next().is_none() {
        // Torn or not: the marker is synced before anything else is made.
        return Ok(DirectoryState::HalfCreated);
    }
    let Some(marked) = read_marker(device)? else {
        return wrong("it is not one of ours".to_owned());
    };
    let raised = match incarnation::read(device, marked) {
        Ok(incarnation) => Ok(incarnation.number),
        Err(IncarnationError::Io(error)) if !error.is_not_found() => return Err(error.into()),
        Err(error) => Err(error),
    };
    let slots = look(device).or_else(|error| match error {
        SuperblockError::Io(error) => Err(CreationError::Io(error)),
        error => wrong(error.to_string()).map(|_: DirectoryState| None),
    })?;
    let Some(slots) = slots else {
        return match raised {
            _ if !is_empty(device, names)? => {
                wrong("there are pages or log records, and no superblock".to_owned())
            }
            Ok(incarnation::FIRST)
            | Err(
                IncarnationError::Io(_)
                | IncarnationError::Length { .. }
                | IncarnationError::Damaged,
            ) => Ok(DirectoryState::HalfCreated),
            Ok(number) => wrong(format!("the database was opened {number} times")),
            Err(error) => wrong(error.to_string()),
        };
    };
    let is_new = |slot: &Result<Superblock, SlotError>| match slot {
        Ok(block) => block.database == marked && block.generation == 1,
        Err(_) => is_unwritten(slot),
    };
    let raised = match raised {
        Ok(number) => number,
        Err(
            IncarnationError::Io(_) | IncarnationError::Length { .. } | IncarnationError::Damaged,
        ) if slots.iter().all(is_new) && is_empty(device, names)? => {
            return Ok(DirectoryState::HalfCreated);
        }
        Err(error) => return wrong(error.to_string()),
    };
    match slots.iter().flatten().max_by_key(|block| block.generation) {
        Some(block) if block.database != marked => {
            wrong(format!("database {:#x} lies beside the marker of {marked:#x}", block.database))
        }
        Some(_) if raised > incarnation::FIRST => Ok(DirectoryState::Database),
        Some(block) if block.generation == 1 => Ok(DirectoryState::HalfCreated),
        None if raised == incarnation::FIRST && slots.iter().all(is_unwritten) => {
            Ok(DirectoryState::HalfCreated)
        }
        Some(_) | None => wrong("the superblocks are not those of a new database".to_owned()),
    }
}

/// True for a slot that a creation may have left: not written, or torn during the write.
fn is_unwritten(slot: &Result<Superblock, SlotError>) -> bool {
    matches!(slot, Err(SlotError::Blank | SlotError::Checksum | SlotError::Foreign))
}

/// Number of pages in a file; 0 when it is missing.
fn pages(device: &Disk, name: &str) -> Result<u64, IoError> {
    match device.open(name, OpenMode::Read) {
        Ok(file) => Ok(device.len(&file)? / PAGE as u64),
        Err(error) if error.is_not_found() => Ok(0),
        Err(error) => Err(error),
    }
}

/// True when no page and no log record has been written.
fn is_empty(device: &Disk, names: &[String]) -> Result<bool, IoError> {
    let pages = pages(device, LEAF_FILE)? + pages(device, OVERFLOW_FILE)?;
    Ok(pages == 0 && !has_records(device, names)?)
}

/// True when anything has been written to the log.
fn has_records(device: &Disk, names: &[String]) -> Result<bool, IoError> {
    let segments: Vec<u64> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
    if segments.iter().any(|index| *index > 0) {
        return Ok(true);
    }
    if segments.is_empty() {
        return Ok(false);
    }
    let file = device.open(&segment_name(0), OpenMode::Read)?;
    let mut buf = PageBuf::zeroed(1);
    device.read_at(&file, &mut buf, 0)?;
    Ok(buf.page(0).iter().any(|byte| *byte != 0))
}

/// Names beside the marker and the lock.
fn others(names: &[String]) -> impl Iterator<Item = &String> {
    names.iter().filter(|name| ![MARKER, MARKER_TEMPORARY, LOCK].contains(&name.as_str()))
}

/// Creates a database. `build` makes all files, each synced, the superblock last. Files that an earlier attempt has
/// left are removed, ours only. Its id is used again: if its files come back because a sync of the folder fails, they
/// belong to the marker.
pub fn create<E>(
    device: &Disk,
    database: u64,
    build: impl FnOnce(&Disk, u64) -> Result<(), E>,
) -> Result<(), E>
where
    E: From<CreationError>,
{
    let database = start(device, database)?;
    build(device, database)?;
    end(device).map_err(|error| E::from(error.into()))
}

fn start(device: &Disk, database: u64) -> Result<u64, CreationError> {
    let half = match inspect(device)? {
        DirectoryState::Foreign(found) => return Err(CreationError::NotADatabase { found }),
        DirectoryState::Database | DirectoryState::NoSuperblock => {
            return Err(CreationError::Exists);
        }
        DirectoryState::Empty => false,
        DirectoryState::HalfCreated => true,
    };
    let marked = if half { read_marker(device)? } else { None };
    let database = marked.unwrap_or(database);
    // Always a new file under a new name: a marker that was found may be visible only.
    match device.remove(MARKER_TEMPORARY) {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => {}
    }
    let file = device.open(MARKER_TEMPORARY, OpenMode::CreateNew)?;
    device.write_at(&file, &encode_marker(database), 1, 0)?;
    device.sync(&file)?;
    device.rename(MARKER_TEMPORARY, MARKER)?;
    device.sync_folder()?;
    if half {
        clear(device)?;
    }
    Ok(database)
}

/// Removes the files of an earlier attempt, while the marker exists: the superblock first, so that the remaining files
/// still show that the creation did not finish.
fn clear(device: &Disk) -> Result<(), IoError> {
    match device.remove(superblock::FILE) {
        Err(error) if !error.is_not_found() => return Err(error),
        _ => device.sync_folder()?,
    }
    for name in device.list()? {
        if is_ours(&name) {
            device.remove(&name)?;
        }
    }
    device.sync_folder()
}

fn end(device: &Disk) -> Result<(), IoError> {
    device.sync_folder()?;
    device.remove(MARKER)?;
    device.sync_folder()
}

fn encode_marker(database: u64) -> PageBuf {
    let mut buf = PageBuf::zeroed(1);
    let page = buf.page_mut(0);
    put(page, AT_MAGIC, MAGIC);
    put(page, AT_DATABASE, database.to_le_bytes());
    let checksum = XxHash3_64::oneshot(&page[AT_MAGIC..]);
    put(page, AT_CHECKSUM, checksum.to_le_bytes());
    buf
}

/// The database that the marker names; `None` when it is torn or somebody else's.
fn read_marker(device: &Disk) -> Result<Option<u64>, IoError> {
    let file = device.open(MARKER, OpenMode::Read)?;
    if device.len(&file)? != PAGE as u64 {
        return Ok(None);
    }
    let mut buf = PageBuf::zeroed(1);
    device.read_at(&file, &mut buf, 0)?;
    let page = buf.page(0);
    let good = get::<8>(page, AT_MAGIC) == MAGIC
        && XxHash3_64::oneshot(&page[AT_MAGIC..]) == get_u64(page, AT_CHECKSUM)
        && page[AT_REST..].iter().all(|byte| *byte == 0);
    Ok(good.then(|| get_u64(page, AT_DATABASE)))
}
