//! The incarnation: the number of a writable open, raised and durable before its first append.
//!
//! It has a file of its own, because only checkpoints write superblocks. The file has two copies, a page each:
//!
//! ```text
//! checksum u64 | magic 8 | copy u32 | incarnation u32 | database u64 | zeros
//! ```
//!
//! Raising writes a copy into the file's spare, syncs it, exchanges the two and syncs the folder (`spare.rs`).
//! Overwriting copy by copy would be wrong: a process whose sync failed leaves a copy that can be read and is not
//! durable, and the copy that is overwritten next may be the only durable one. When the file is replaced as a whole, it
//! is the old one or the new one, and no number is given out twice. The second copy guards against rot and unreadable
//! sectors: one good copy is enough.

use pleach_io::{Disk, IoError, OpenMode, PAGE, PageBuf};
use twox_hash::XxHash3_64;

use super::bytes::{get, get_u32, get_u64, put};
use super::names;
use super::spare::SpareFile;

/// Name of the file.
pub const FILE: &str = names::INCARNATION;
/// The spare for the next copy of the file.
pub const SPARE: SpareFile = SpareFile { name: names::INCARNATION_SPARE, len: FILE_LEN };
/// The incarnation of a new database, before its first writable open.
pub const FIRST: u32 = 0;

const MAGIC: [u8; 8] = *b"PLEACHIN";
const AT_CHECKSUM: usize = 0;
const AT_MAGIC: usize = AT_CHECKSUM + 8;
const AT_COPY: usize = AT_MAGIC + 8;
const AT_NUMBER: usize = AT_COPY + 4;
const AT_DATABASE: usize = AT_NUMBER + 4;
const AT_REST: usize = AT_DATABASE + 8;
const COPIES: usize = 2;
const FILE_LEN: u64 = (COPIES * PAGE) as u64;

const _: () = assert!(AT_REST == 32 && AT_DATABASE.is_multiple_of(8));

/// The reason why there is no usable incarnation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IncarnationError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The file has the wrong length.
    #[error("{FILE} has {found} bytes, {FILE_LEN} expected")]
    Length {
        /// Its length.
        found: u64,
    },
    /// Both copies are damaged or cannot be read.
    #[error("both copies in {FILE} are damaged or cannot be read")]
    Damaged,
    /// The file belongs to another database.
    #[error("{FILE} belongs to database {found:#x}, not {expected:#x}")]
    Foreign {
        /// The database in the file.
        found: u64,
        /// The database of the superblock.
        expected: u64,
    },
    /// A superblock was written by a later incarnation: the file is an older one.
    #[error(
        "{FILE} is an old one: it knows {found} writable opens, a superblock was written by open {known}"
    )]
    Old {
        /// The number in the file.
        found: u32,
        /// The number in a superblock.
        known: u32,
    },
    /// There have been 2^32 - 1 writable opens.
    #[error("no incarnation is left")]
    Exhausted,
}

/// Makes the file of a new database, or of a copy of one that was opened `number` times, and its spare, synced. The
/// caller syncs the folder.
pub fn create(device: &Disk, database: u64, number: u32) -> Result<(), IncarnationError> {
    SPARE.create(device, database)?;
    let file = device.open(FILE, OpenMode::CreateNew)?;
    device.write_at(&file, &encode(database, number), COPIES, 0)?;
    Ok(device.sync(&file)?)
}

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// The last incarnation.
    pub number: u32,
    /// For each copy, true when it is good.
    pub copies: [bool; COPIES],
}

/// Reads the last incarnation; writes nothing. The copies are read one by one: an unreadable or missing copy is bad,
/// and the other one is enough.
pub fn read(device: &Disk, database: u64) -> Result<Incarnation, IncarnationError> {
    let mut copies = read_copies(device)?;
    if copies.contains(&None) {
        // Another process may have replaced the file before this was read.
        copies = read_copies(device)?;
    }
    let (number, found) = copies.iter().flatten().max().ok_or(IncarnationError::Damaged)?;
    if *found != database {
        return Err(IncarnationError::Foreign { found: *found, expected: database });
    }
    Ok(Incarnation { number: *number, copies: copies.map(|copy| copy.is_some()) })
}

/// Number and database of each good copy.
fn read_copies(device: &Disk) -> Result<[Option<(u32, u64)>; COPIES], IncarnationError> {
    let file = device.open(FILE, OpenMode::Read)?;
    let found = device.len(&file)?;
    if found < PAGE as u64 || found > FILE_LEN {
        return Err(IncarnationError::Length { found });
    }
    Ok([0, 1].map(|copy: usize| {
        let mut page = PageBuf::zeroed(1);
        let read = device.read_at(&file, &mut page, (copy * PAGE) as u64);
        read.ok().and_then(|()| decode(page.page(0), copy))
    }))
}

/// Raises the incarnation for this open, durable when the call returns.
pub fn raise(device: &Disk, database: u64) -> Result<u32, IncarnationError> {
    let last = read(device, database)?.number;
    let number = last.checked_add(1).ok_or(IncarnationError::Exhausted)?;
    SPARE.replace(device, database, FILE, |copy| {
        device.write_at(copy, &encode(database, number), COPIES, 0)
    })?;
    Ok(number)
}

fn encode(database: u64, number: u32) -> PageBuf {
    let mut pages = PageBuf::zeroed(COPIES);
    for copy in 0..COPIES {
        let page = pages.page_mut(copy);
        put(page, AT_MAGIC, MAGIC);
        put(page, AT_COPY, [u8::from(copy == 1), 0, 0, 0]);
        put(page, AT_NUMBER, number.to_le_bytes());
        put(page, AT_DATABASE, database.to_le_bytes());
        let checksum = XxHash3_64::oneshot(&page[AT_MAGIC..]);
        put(page, AT_CHECKSUM, checksum.to_le_bytes());
    }
    pages
}

fn decode(page: &[u8; PAGE], copy: usize) -> Option<(u32, u64)> {
    let good = get::<8>(page, AT_MAGIC) == MAGIC
        && XxHash3_64::oneshot(&page[AT_MAGIC..]) == get_u64(page, AT_CHECKSUM)
        && get_u32(page, AT_COPY) as usize == copy
        && page[AT_REST..].iter().all(|byte| *byte == 0);
    good.then(|| (get_u32(page, AT_NUMBER), get_u64(page, AT_DATABASE)))
}
