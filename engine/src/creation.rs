//! Atomic creation of a database in an empty folder (DESIGN rule 11).
//!
//! 1. write the marker, sync it and the folder;
//! 2. make all files, each synced, the superblock last; sync the folder;
//! 3. remove the marker, sync the folder. Only now does the database exist.
//!
//! The marker names the database being created. Whoever finds it starts again from nothing, for
//! nothing was acknowledged before 3 was durable, unless the incarnation has been raised since:
//! then a writable open came after 3 (a marker that came back when a sync of the folder failed
//! and the power with it), and the marker is ignored.
//!
//! A folder that has neither marker nor superblock, but other files, is somebody else's. Nothing
//! in it is touched.

use pleach_io::{Device, IoError, OpenMode, PAGE, PageBuf};
use twox_hash::XxHash3_64;

use crate::incarnation::{self, IncarnationError};
use crate::log::layout::{get, get_u64, put};
use crate::superblock;

/// Name of the marker.
pub const MARKER: &str = "CREATING";
/// The lock's file, which the device makes before anybody looks at the folder.
pub const LOCK: &str = "LOCK";

const MAGIC: [u8; 8] = *b"PLEACHMK";
const AT_CHECKSUM: usize = 0;
const AT_MAGIC: usize = AT_CHECKSUM + 8;
const AT_DATABASE: usize = AT_MAGIC + 8;
const AT_REST: usize = AT_DATABASE + 8;

const _: () = assert!(AT_REST == 24);

/// What a folder holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Folder {
    /// Nothing of anybody's: a database may be created.
    Empty,
    /// A creation that did not come to its end: it may be started again.
    HalfCreated,
    /// A database.
    Database,
    /// Other files, of which this is one.
    Foreign(String),
}

/// Why a folder cannot be used for a new database.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreationError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The folder belongs to something else.
    #[error("the folder is not a database: it holds {found}")]
    NotADatabase {
        /// A file in it.
        found: String,
    },
    /// The folder holds a database.
    #[error("the folder holds a database already")]
    Exists,
}

/// Says what the folder holds; writes nothing.
pub fn inspect<D: Device>(device: &D) -> Result<Folder, IoError> {
    let names = device.list()?;
    let has = |name: &str| names.iter().any(|found| found == name);
    if has(MARKER) {
        let marked = read_marker(device)?;
        let stale = has(superblock::FILE)
            && match marked {
                Some(database) => is_in_use(device, database)?,
                None => true,
            };
        let foreign = (marked.is_none()).then(|| a_stranger(&names)).flatten();
        return Ok(match (stale, foreign) {
            (true, _) => Folder::Database,
            // A torn marker is followed by nothing: it was synced before anything else was made.
            (false, Some(name)) => Folder::Foreign(name),
            (false, None) => Folder::HalfCreated,
        });
    }
    if has(superblock::FILE) {
        return Ok(Folder::Database);
    }
    Ok(a_stranger(&names).map_or(Folder::Empty, Folder::Foreign))
}

/// Creates a database. `build` makes all files, each synced, the superblock last.
///
/// `ours` tells the names that `build` may use; such files of an earlier attempt are removed.
pub fn create<D, E>(
    device: &D,
    database: u64,
    ours: impl Fn(&str) -> bool,
    build: impl FnOnce(&D) -> Result<(), E>,
) -> Result<(), E>
where
    D: Device,
    E: From<CreationError>,
{
    start(device, database, ours)?;
    build(device)?;
    end(device).map_err(|error| E::from(error.into()))
}

fn start<D: Device>(
    device: &D,
    database: u64,
    ours: impl Fn(&str) -> bool,
) -> Result<(), CreationError> {
    match inspect(device)? {
        Folder::Foreign(found) => return Err(CreationError::NotADatabase { found }),
        Folder::Database => return Err(CreationError::Exists),
        Folder::Empty => {}
        Folder::HalfCreated => clear(device, ours)?,
    }
    let file = device.open(MARKER, OpenMode::CreateNew)?;
    device.write_at(&file, &encode_marker(database), 1, 0)?;
    device.sync(&file)?;
    device.sync_folder()?;
    Ok(())
}

/// Removes what an earlier attempt has left, the marker last: while it stands, anything may.
fn clear<D: Device>(device: &D, ours: impl Fn(&str) -> bool) -> Result<(), IoError> {
    for name in device.list()? {
        if name != MARKER && name != LOCK && ours(&name) {
            device.remove(&name)?;
        }
    }
    device.sync_folder()?;
    device.remove(MARKER)?;
    device.sync_folder()
}

fn end<D: Device>(device: &D) -> Result<(), IoError> {
    device.sync_folder()?;
    device.remove(MARKER)?;
    device.sync_folder()
}

fn a_stranger(names: &[String]) -> Option<String> {
    names.iter().filter(|name| *name != MARKER && *name != LOCK).min().cloned()
}

/// Has a database been opened for writing since it was created?
/// A failed read is an error here: a database must not be cleared away for it.
fn is_in_use<D: Device>(device: &D, database: u64) -> Result<bool, IoError> {
    match incarnation::read(device, database) {
        Ok(number) => Ok(number > incarnation::FIRST),
        Err(IncarnationError::Io(error)) if !error.is_not_found() => Err(error),
        Err(_) => Ok(false),
    }
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
fn read_marker<D: Device>(device: &D) -> Result<Option<u64>, IoError> {
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
