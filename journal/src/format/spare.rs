//! Replacing a file as a whole, without asking the device for room.
//!
//! An open makes durable what it has read by synced copies that replace the originals (recovery `confirm-log`,
//! `confirm-superblocks`, `raise-incarnation` of `docs/commit-and-recovery.md`). The room for the copies is reserved when the
//! database is created: each file that is replaced has a *spare* of its length.
//!
//! 1. write the copy into the spare, all of it; sync it;
//! 2. exchange the two names in one step; sync the folder;
//! 3. mark the file that has become the spare, so that the next copy may go into it.
//!
//! The mark makes step 1 safe. After a failed sync of the folder, visible names need not be durable: after a power
//! failure the spare may be the file itself, and a half-written copy would replace it. The mark is written only after a
//! successful sync of the folder, so a spare with a mark is the spare on the medium, too. A spare without a mark is not
//! written to: it is removed, and a new one is made in its room. The mark is seeded with the database's id and names
//! its spare, so that bytes which an application has put into the log cannot pass for a mark.
//!
//! Where the file system cannot exchange names, the spare is renamed over the file, and the next open makes a new
//! spare.

use pleach_io::{Disk, File, IoError, OpenMode, PageBuf};
use twox_hash::XxHash3_64;

use super::bytes::put;

const MAGIC: [u8; 8] = *b"PLEACHSP";
const AT_CHECKSUM: usize = 0;
const AT_MAGIC: usize = AT_CHECKSUM + 8;
const AT_NAME: usize = AT_MAGIC + 8;

/// The spare of a file, or of any of several files of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpareFile {
    /// Its name.
    pub name: &'static str,
    /// Its length in bytes, a multiple of the page size.
    pub len: u64,
}

/// The state of a spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpareState {
    /// A spare for the next copy.
    Ready,
    /// A file of another length, or without its mark: it is made again when it is needed.
    Unmarked,
    /// No file.
    Missing,
}

impl SpareFile {
    /// Makes the spare of a new database, its room reserved, synced. The caller syncs the folder.
    pub fn create(&self, device: &Disk, database: u64) -> Result<(), IoError> {
        let file = self.make(device)?;
        self.mark(device, database, &file)
    }

    /// The spare's state; writes nothing. An unreadable mark counts as none.
    pub fn state(&self, device: &Disk, database: u64) -> Result<SpareState, IoError> {
        match self.find(device, database, OpenMode::Read)? {
            Some((_, true)) => Ok(SpareState::Ready),
            Some((_, false)) => Ok(SpareState::Unmarked),
            None => Ok(SpareState::Missing),
        }
    }

    /// Makes the spare where there is no usable one.
    pub fn renew(&self, device: &Disk, database: u64) -> Result<(), IoError> {
        if self.state(device, database)? == SpareState::Ready {
            return Ok(());
        }
        let file = self.take(device, database)?;
        // A new file: no bytes are lost.
        device.sync_folder()?;
        self.mark(device, database, &file)
    }

    /// Replaces `name`, which has the spare's length, by the complete contents that `fill` writes.
    ///
    /// # Errors
    /// Errors of the device. An error after the exchange (of the folder's sync) leaves either file under the
    /// name; both are whole.
    pub fn replace<E: From<IoError>>(
        &self,
        device: &Disk,
        database: u64,
        name: &str,
        fill: impl FnOnce(&File) -> Result<(), E>,
    ) -> Result<(), E> {
        let copy = self.take(device, database)?;
        fill(&copy)?;
        device.sync(&copy)?;
        let exchanged = device.exchange(self.name, name)?;
        if !exchanged {
            device.rename(self.name, name)?;
        }
        device.sync_folder()?;
        if exchanged {
            let marked = device
                .open(self.name, OpenMode::Write)
                .and_then(|old| self.mark(device, database, &old));
            if let Err(error) = marked {
                // The next open makes a new spare. The target is the engine's, for subscribers of its events.
                tracing::warn!(target: "pleach::format", %error, spare = self.name, "a spare file could not be marked");
            }
        }
        Ok(())
    }

    /// The spare for writing: the existing one, or a new one.
    fn take(&self, device: &Disk, database: u64) -> Result<File, IoError> {
        match self.find(device, database, OpenMode::Write)? {
            Some((file, true)) => return Ok(file),
            Some((_, false)) => device.remove(self.name)?,
            None => {}
        }
        self.make(device)
    }

    fn find(
        &self,
        device: &Disk,
        database: u64,
        mode: OpenMode,
    ) -> Result<Option<(File, bool)>, IoError> {
        let file = match device.open(self.name, mode) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut page = PageBuf::zeroed(1);
        let marked = device.len(&file)? == self.len
            && device.read_at(&file, &mut page, 0).is_ok()
            && page.page(0) == self.marked(database).page(0);
        Ok(Some((file, marked)))
    }

    fn make(&self, device: &Disk) -> Result<File, IoError> {
        let file = device.open(self.name, OpenMode::CreateNew)?;
        let reserved = device.allocate(&file, 0, self.len);
        if let Err(error) = reserved {
            // Without room there is no file; if this removal fails, the file has no mark.
            let _ = device.remove(self.name);
            return Err(error);
        }
        Ok(file)
    }

    fn mark(&self, device: &Disk, database: u64, file: &File) -> Result<(), IoError> {
        device.write_at(file, &self.marked(database), 1, 0)?;
        device.sync(file)
    }

    /// The first page of a spare that may be written.
    fn marked(&self, database: u64) -> PageBuf {
        let mut buf = PageBuf::zeroed(1);
        let page = buf.page_mut(0);
        put(page, AT_MAGIC, MAGIC);
        page[AT_NAME..AT_NAME + self.name.len()].copy_from_slice(self.name.as_bytes());
        let checksum = XxHash3_64::oneshot_with_seed(database, &page[AT_MAGIC..]);
        put(page, AT_CHECKSUM, checksum.to_le_bytes());
        buf
    }
}
