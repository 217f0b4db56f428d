//! A ring's table of registered files.
//!
//! Registering saves the kernel two atomic operations on a shared counter for each request. Invariants:
//! * a file is registered at its [`THRESHOLD`]-th request on this ring, so that short-lived files
//!   never are, and at most [`ENTRIES`] are at a time; all others go by descriptor;
//! * a registration keeps the kernel's file (and its space, if removed) alive, so an entry is removed at the first
//!   submission after its last handle was closed;
//! * the last entry keeps a reference to the folder's lock (`lock.rs`, `last-writes`); no request names it;
//! * where registering is refused, everything goes by descriptor.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use io_uring::Submitter;

use super::files::{FileInner, OsFile, closed_files};

/// Entries for files that requests name.
const ENTRIES: u32 = 16;

/// The entry that holds the folder's lock.
const LOCK_ENTRY: u32 = ENTRIES;

/// Size of the table.
const SIZE: u32 = ENTRIES + 1;

/// Requests before a file is registered.
const THRESHOLD: u32 = 64;

/// Descriptor of an empty entry.
const EMPTY: i32 = -1;

pub(super) struct FileTable {
    entries: Vec<FileEntry>,
    state: TableState,
    /// Value of [`closed_files`] at the last sweep.
    closed: u64,
}

#[derive(PartialEq, Eq)]
enum TableState {
    Untried,
    Ready,
    Refused,
}

struct FileEntry {
    id: u64,
    uses: u32,
    registered: bool,
    file: Weak<FileInner>,
}

/// How a request names its file.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// The number of an entry, or a descriptor.
    pub(super) number: i32,
    /// True when the file has an entry.
    pub(super) registered: bool,
}

impl FileTable {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::with_capacity(ENTRIES as usize),
            state: TableState::Untried,
            closed: closed_files(),
        }
    }

    /// Lets the ring hold `lock` for as long as its last request takes. To be called before the first submission.
    pub(super) fn register_lock(&mut self, ring: &Submitter<'_>, lock: &OwnedFd) {
        if self.ensure_table(ring) {
            // Refused: `last-writes` then depends on the kernel's speed.
            let _ = ring.register_files_update(LOCK_ENTRY, &[lock.as_raw_fd()]);
        }
    }

    /// Makes the table if there is none yet.
    fn ensure_table(&mut self, ring: &Submitter<'_>) -> bool {
        if self.state == TableState::Untried {
            self.state = if make_table(ring) { TableState::Ready } else { TableState::Refused };
        }
        self.state == TableState::Ready
    }

    /// Removes entries of closed files. To be called before each submission, on the ring's thread.
    pub(super) fn remove_closed(&mut self, ring: &Submitter<'_>) {
        let closed = closed_files();
        if closed == self.closed {
            return;
        }
        self.closed = closed;
        for (index, entry) in (0..).zip(&mut self.entries) {
            if entry.file.strong_count() > 0 {
                continue;
            }
            let gone = !entry.registered || ring.register_files_update(index, &[EMPTY]).is_ok();
            if gone {
                *entry = FileEntry { id: u64::MAX, uses: 0, registered: false, file: Weak::new() };
            }
        }
    }

    /// How `file`'s next request names it.
    pub(super) fn target(&mut self, ring: &Submitter<'_>, file: &OsFile) -> Target {
        let plain = Target { number: file.raw(), registered: false };
        if self.state == TableState::Refused {
            return plain;
        }
        let Some(index) = self.entry(file) else { return plain };
        let entry = &mut self.entries[index as usize];
        if entry.registered {
            return Target { number: index.cast_signed(), registered: true };
        }
        entry.uses += 1;
        if entry.uses < THRESHOLD {
            return plain;
        }
        self.register(ring, index, file);
        plain
    }

    /// The entry of `file`, or an unused one assigned to it.
    fn entry(&mut self, file: &OsFile) -> Option<u32> {
        let found = (0..).zip(&self.entries).find(|(_, entry)| entry.id == file.id());
        if let Some((index, _)) = found {
            return Some(index);
        }
        let own = FileEntry {
            id: file.id(),
            uses: 0,
            registered: false,
            file: Arc::downgrade(file.inner()),
        };
        let unused = (0..)
            .zip(&mut self.entries)
            .find(|(_, entry)| !entry.registered && entry.file.strong_count() == 0);
        if let Some((index, entry)) = unused {
            *entry = own;
            return Some(index);
        }
        let next = u32::try_from(self.entries.len()).ok().filter(|next| *next < ENTRIES)?;
        self.entries.push(own);
        Some(next)
    }

    /// Registers `file` at `index`, for its next request on.
    fn register(&mut self, ring: &Submitter<'_>, index: u32, file: &OsFile) {
        if !self.ensure_table(ring) {
            return;
        }
        match ring.register_files_update(index, &[file.raw()]) {
            Ok(_) => self.entries[index as usize].registered = true,
            Err(_) => self.state = TableState::Refused,
        }
    }
}

/// An empty table; kernels before 5.19 take it as a list of empty entries.
fn make_table(ring: &Submitter<'_>) -> bool {
    ring.register_files_sparse(SIZE).is_ok() || ring.register_files(&[EMPTY; SIZE as usize]).is_ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::fs::{FlockOperation, flock};

    use super::*;
    use crate::os::setup;

    /// Simulates the owner's death: its descriptor closes without unlocking.
    #[test]
    fn a_ring_holds_a_dead_owners_lock_until_it_has_ended() {
        let setup = match setup::probe() {
            Ok(setup) => setup,
            Err(error) => return println!("SKIPPED: no io_uring here: {error}"),
        };
        let ring = setup::build(setup, 4).expect("probed");
        ring.submitter().register_enable_rings().expect("made disabled");
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let owner = OwnedFd::from(file.reopen().expect("open"));
        flock(&owner, FlockOperation::NonBlockingLockExclusive).expect("free");
        let mut table = FileTable::new();
        table.register_lock(&ring.submitter(), &owner);
        drop(owner);
        let next = file.reopen().expect("open");
        let lock = || flock(&next, FlockOperation::NonBlockingLockExclusive);
        if table.state == TableState::Refused {
            return println!("SKIPPED: this kernel registers no files");
        }
        assert!(lock().is_err(), "the ring is still there");
        drop(ring);
        let start = Instant::now();
        while lock().is_err() {
            assert!(start.elapsed() < Duration::from_secs(5), "the ring is gone, its lock not");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
