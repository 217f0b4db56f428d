//! The file of the superblocks, with its two slots.
//!
//! A write goes to the slot that does not hold the newest generation, so that the older stays complete
//! until the newer is durable.

use pleach_io::{Disk, File, OpenMode, PAGE, PageBuf};

use super::position::LogPos;
use super::superblock::{
    FILE, FILE_LEN, SLOT_DISTANCE, SPARE, SlotError, Superblock, SuperblockError,
};

/// The file with its two slots.
#[derive(Debug)]
pub struct SuperblockStore {
    device: Disk,
    file: File,
    /// The superblock in use: the newest, or, after [`SuperblockStore::fall_back`], the older one.
    newest: Superblock,
    newest_slot: u32,
    other: Result<Superblock, SlotError>,
    /// Highest generation of the two slots.
    highest: u64,
    poisoned: bool,
}

impl SuperblockStore {
    /// Makes the file with the first superblock in slot 0, and its spare, synced. The caller syncs the folder.
    pub fn create(device: Disk, first: &Superblock) -> Result<Self, SuperblockError> {
        SPARE.create(&device, first.database)?;
        let file = device.open(FILE, OpenMode::CreateNew)?;
        device.allocate(&file, 0, FILE_LEN)?;
        let zeros = zeros();
        device.write_at(&file, &zeros, zeros.pages(), 0)?;
        // The slot is not written before the blank file is durable, so that only that can be found.
        device.sync(&file)?;
        let newest = Superblock { generation: 1, ..*first };
        let other = Err(SlotError::Blank);
        let mut store =
            Self { device, file, newest, newest_slot: 0, other, highest: 1, poisoned: false };
        store.put(0, &newest)?;
        Ok(store)
    }

    /// Reads both slots, each by itself: an unreadable slot is a bad one. Nothing is written.
    pub fn open(device: Disk, mode: OpenMode) -> Result<Self, SuperblockError> {
        let mut file = device.open(FILE, mode)?;
        let mut slots = read_slots(&device, &file)?;
        let is_bad = |slot: &Result<Superblock, SlotError>| matches!(slot, Err(error) if !matches!(error, SlotError::Blank | SlotError::GivenUp));
        // Another process may have replaced the file before the slots were read, and reused the old one.
        if mode == OpenMode::Read && slots.iter().any(is_bad) {
            file = device.open(FILE, mode)?;
            slots = read_slots(&device, &file)?;
        }
        let (newest_slot, newest, other) = match slots {
            [Err(SlotError::Newer(found)), _] | [_, Err(SlotError::Newer(found))] => {
                return Err(SuperblockError::NewerVersion { found });
            }
            [Err(SlotError::Older(found)), Err(_)] | [Err(_), Err(SlotError::Older(found))] => {
                return Err(SuperblockError::OlderVersion { found });
            }
            [Err(first), Err(second)] => return Err(SuperblockError::Damaged { first, second }),
            [Ok(a), Ok(b)] if a.database != b.database || a.generation == b.generation => {
                return Err(SuperblockError::Contradiction);
            }
            [Ok(a), Ok(b)] if a.generation > b.generation => (0, a, Ok(b)),
            [Ok(a), Err(error)] => (0, a, Err(error)),
            [a, Ok(b)] => (1, b, a),
        };
        let highest = newest.generation;
        Ok(Self { device, file, newest, newest_slot, other, highest, poisoned: false })
    }

    /// The superblock in use: the newest, or the older one after a fallback.
    pub fn newest(&self) -> &Superblock {
        &self.newest
    }

    /// The other slot: the older superblock, or the reason why there is none.
    pub fn other(&self) -> &Result<Superblock, SlotError> {
        &self.other
    }

    /// The number of the slot in use: 0 or 1.
    pub fn slot(&self) -> u32 {
        self.newest_slot
    }

    /// Puts the older superblock in use, if there is one, because the newest leads to damage. The log must be unbroken
    /// from the older one's replay start (rules `generations-once` and `superblock-elsewhere` of
    /// `docs/commit-and-recovery.md`). The newest is abandoned: it is removed from the file when
    /// [`SuperblockStore::confirm`] replaces the file. Nothing is written here.
    pub fn fall_back(&mut self) -> bool {
        let Ok(older) = self.other else { return false };
        self.newest = older;
        self.newest_slot = 1 - self.newest_slot;
        self.other = Err(SlotError::GivenUp);
        true
    }

    /// Makes the superblock in use durable, before anything else is written at a writable open, with the open's
    /// knowledge of the log's files.
    ///
    /// It may have been read from a cache whose sync failed. If it were lost later, while the next checkpoint
    /// overwrites the older slot, neither would be left. Nor may it be overwritten where it is: it may be durable, and
    /// an unfinished checkpoint may have overwritten the older one's image. So the file is replaced as a whole by a
    /// synced copy.
    ///
    /// An older superblock that does not lead to the newest is removed: a bulk load writes no log, so the superblock
    /// before it would lead back to the empty database.
    pub fn confirm(
        &mut self,
        durable_through: LogPos,
        prepared_through: LogPos,
    ) -> Result<(), SuperblockError> {
        if self.poisoned {
            return Err(SuperblockError::Poisoned);
        }
        let newest = &mut self.newest;
        // The abandoned superblock may know of a later position.
        newest.durable_through = newest.durable_through.max(durable_through);
        newest.prepared_through = newest.prepared_through.max(prepared_through);
        if self.other.is_ok_and(|other| {
            other.replay.position == newest.replay.position && other.commit != newest.commit
        }) {
            self.other = Err(SlotError::GivenUp);
        }
        let (whole, device) = (self.whole(), &self.device);
        let replaced = SPARE.replace(device, self.newest.database, FILE, |copy| {
            device.write_at(copy, &whole, whole.pages(), 0)
        });
        self.poisoned = replaced.is_err();
        replaced?;
        self.file = self.device.open(FILE, OpenMode::Write)?;
        Ok(())
    }

    /// The file of a database whose log a repair has cut here: no superblock knows of positions behind that.
    pub fn cut_log(mut self, end: LogPos, prepared_through: LogPos) -> PageBuf {
        for superblock in std::iter::once(&mut self.newest).chain(self.other.as_mut().ok()) {
            superblock.durable_through = superblock.durable_through.min(end);
            superblock.prepared_through = prepared_through;
        }
        self.whole()
    }

    /// The file with both superblocks.
    fn whole(&self) -> PageBuf {
        let mut whole = zeros();
        let slots = [(self.newest_slot, Ok(self.newest)), (1 - self.newest_slot, self.other)];
        for (slot, superblock) in slots {
            let page = match superblock {
                Ok(superblock) => superblock.encode(slot),
                Err(SlotError::Blank) if self.newest.generation == 1 => continue,
                Err(_) => Superblock::given_up(slot),
            };
            let at = usize::try_from(u64::from(slot) * SLOT_DISTANCE).unwrap_or(0) / PAGE;
            whole.page_mut(at).copy_from_slice(page.page(0));
        }
        whole
    }

    /// Writes the next generation to the slot that is not in use, and syncs. After a failure the store refuses further
    /// writes; the next open shows which superblock counts.
    pub fn write(&mut self, superblock: &Superblock) -> Result<(), SuperblockError> {
        let next = Superblock { generation: self.highest + 1, ..*superblock };
        let slot = 1 - self.newest_slot;
        self.put(slot, &next)?;
        self.other = Ok(self.newest);
        (self.newest, self.newest_slot, self.highest) = (next, slot, next.generation);
        Ok(())
    }

    fn put(&mut self, slot: u32, superblock: &Superblock) -> Result<(), SuperblockError> {
        if self.poisoned {
            return Err(SuperblockError::Poisoned);
        }
        let page = superblock.encode(slot);
        let written = (self.device)
            .write_at(&self.file, &page, 1, u64::from(slot) * SLOT_DISTANCE)
            .and_then(|()| self.device.sync(&self.file));
        self.poisoned = written.is_err();
        Ok(written?)
    }
}

/// Both slots of a file of the right length.
fn read_slots(
    device: &Disk,
    file: &File,
) -> Result<[Result<Superblock, SlotError>; 2], SuperblockError> {
    let found = device.len(file)?;
    if found != FILE_LEN {
        return Err(SuperblockError::Length { found });
    }
    Ok([0, 1].map(|slot| {
        let mut page = PageBuf::zeroed(1);
        match device.read_at(file, &mut page, u64::from(slot) * SLOT_DISTANCE) {
            Ok(()) => Superblock::decode(page.page(0), slot),
            Err(_) => Err(SlotError::Unreadable),
        }
    }))
}

/// The contents of the slots, to tell a database from an unfinished creation; `None` when the file is missing or
/// shorter than a superblock's. Writes nothing.
pub(crate) fn look(
    device: &Disk,
) -> Result<Option<[Result<Superblock, SlotError>; 2]>, SuperblockError> {
    let file = match device.open(FILE, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match read_slots(device, &file) {
        Ok(slots) => Ok(Some(slots)),
        Err(SuperblockError::Length { found }) if found < FILE_LEN => Ok(None),
        Err(error) => Err(error),
    }
}

fn zeros() -> PageBuf {
    PageBuf::zeroed(usize::try_from(FILE_LEN).unwrap_or(0) / PAGE)
}
