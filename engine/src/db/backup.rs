//! Backup: a copy of an open database, made while commits go on (`docs/commit-and-recovery.md`).
//!
//! The copy is what a power failure right behind one record of the log would leave: an image of its own, the log from
//! the image to that record, and all leaf pages and overflow runs that image and log name. The superblock is written
//! last, so that an interrupted copy does not open. Crate `pleach-ops` verifies the copy.

use std::time::Duration;

use pleach_beatree::page_no::page_offset;
use pleach_io::{Disk, LockMode, OpenMode, PAGE, PageBuf};
use pleach_journal::format::creation::{self, CreationError, DirectoryState};
use pleach_journal::format::incarnation;
use pleach_journal::format::names::{IMAGES, LEAF_FILE, OVERFLOW_FILE, is_ours};
use pleach_journal::format::superblock_store::SuperblockStore;

use crate::checkpoint::{BackupImage, write_backup_image};
use crate::engine::Engine;
use crate::error::{Error, NoRoom, Result};
use crate::handles::Holder;
use crate::load::Progress;
use crate::roots::Roots;
use crate::state::NamespaceDb;
use crate::state::view::View;

/// Pages of one read and write.
const CHUNK: usize = 256;
/// Attempts to pin the oldest commit of the history, which moves on meanwhile.
const TRIES: u32 = 64;

/// What a copy contains.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyReport {
    /// The number of the newest commit in the copy.
    pub commit: u64,
    /// Roots and digests of that commit.
    pub roots: Roots,
    /// Bytes of pages and of log.
    pub bytes: u64,
    /// How long the copy took.
    pub time: Duration,
}

/// See [`Db::copy_on`](crate::Db::copy_on).
pub(crate) fn backup(
    engine: &Engine,
    target: &Disk,
    progress: Option<&Progress>,
) -> Result<CopyReport> {
    copy(engine, target, progress).map_err(|error| match error.device() {
        // An error of the database's own writes has poisoned it.
        Some(full) if full.is_full() && !engine.db.commits.sequencer.lock().is_poisoned() => {
            Error::Full(NoRoom::Backup(full.clone()))
        }
        _ => error,
    })
}

fn copy(engine: &Engine, target: &Disk, progress: Option<&Progress>) -> Result<CopyReport> {
    let db = &engine.db;
    let since = db.pace.now();
    let lock = target.lock(LockMode::Exclusive)?;
    match creation::inspect(target)? {
        DirectoryState::Empty => {}
        // Nobody but the owner can tell an interrupted backup from a damaged database, so nothing is removed.
        DirectoryState::Foreign(found) if is_ours(&found) => {
            return Err(CreationError::Unfinished { found }.into());
        }
        DirectoryState::NoSuperblock => {
            let found = LEAF_FILE.to_owned();
            return Err(CreationError::Unfinished { found }.into());
        }
        DirectoryState::Foreign(found) => return Err(CreationError::NotADatabase { found }.into()),
        _ => return Err(CreationError::Exists.into()),
    }
    for name in [LEAF_FILE, OVERFLOW_FILE].into_iter().chain(IMAGES) {
        target.open(name, OpenMode::CreateNew)?;
    }
    let (copied, bytes) = {
        // Long values that the history names stay, and no page number that is looked up from here on is used again.
        let _held = pin_oldest(db)?;
        let _guard = db.store.grace.enter();
        let copied = write_backup_image(db, target)?;
        let bytes = copy_pages(db, target, progress)?;
        (copied, bytes)
    };
    let BackupImage { superblock, newest, .. } = copied;
    incarnation::create(target, superblock.database, superblock.incarnation)?;
    // The superblock proves that all other files are there: its name must not be durable before theirs.
    target.sync_folder()?;
    SuperblockStore::create(target.clone(), &superblock)?;
    target.sync_folder()?;
    drop(lock);
    let log = superblock.durable_through.saturating_since(superblock.log_from);
    let image = page_offset(u64::from(superblock.image.pages));
    Ok(CopyReport {
        commit: newest.number,
        roots: newest.roots,
        bytes: bytes + log + image,
        time: db.pace.now().saturating_sub(since),
    })
}

/// Pins the oldest readable commit, whatever the limits say, until the result is dropped. Waits for a running load,
/// which needs a database without pins.
fn pin_oldest(db: &NamespaceDb) -> Result<View> {
    let commits = &db.commits;
    let mut open = Ok(());
    db.pace.wait(None, &mut || {
        let state = commits.sequencer.lock();
        open = state.check_open();
        open.is_err() || !state.loading
    });
    open?;
    let mut tries = 1;
    let held = loop {
        let (tip, _) = commits.tip_view();
        let from = commits.undo.oldest_commit();
        if from >= tip.base {
            break tip;
        }
        match commits.view_at(from) {
            // Without a history the window begins at the newest commit, and follows it a moment later.
            Err(Error::SnapshotTooOld { commit, oldest }) if commit == oldest => break tip,
            Err(Error::SnapshotTooOld { .. } | Error::NoSuchCommit { .. }) if tries < TRIES => {
                tries += 1;
            }
            held => break held?.0,
        }
    };
    held.set_holder(Holder::Backup, None);
    Ok(held)
}

/// Copies all pages of both files, used and free; returns the number of bytes.
fn copy_pages(db: &NamespaceDb, target: &Disk, progress: Option<&Progress>) -> Result<u64> {
    let device = &db.store.device;
    let mut files = Vec::new();
    for name in [LEAF_FILE, OVERFLOW_FILE] {
        let source = device.open(name, OpenMode::Read)?;
        let len = device.len(&source)?;
        let copy = target.open(name, OpenMode::Write)?;
        if len > 0 {
            target.allocate(&copy, 0, len)?;
        }
        files.push((source, copy, len));
    }
    let all: u64 = files.iter().map(|file| file.2).sum();
    let mut done = 0;
    for (source, copy, len) in &files {
        let mut buf = PageBuf::zeroed(CHUNK);
        let mut at = 0;
        while at < *len {
            // A checkpoint may cut off the free end meanwhile: the backup's state has no page there.
            let there = device.len(source)?.min(*len);
            if at >= there {
                break;
            }
            let pages =
                usize::try_from((there - at) / PAGE as u64).unwrap_or(usize::MAX).min(CHUNK);
            if pages != buf.pages() {
                buf = PageBuf::zeroed(pages);
            }
            match device.read_at(source, &mut buf, at) {
                Ok(()) => {}
                Err(_) if device.len(source)? < at + (pages * PAGE) as u64 => continue,
                Err(error) => return Err(error.into()),
            }
            if buf.iter().any(|byte| *byte != 0) {
                target.write_at(copy, &buf, pages, at)?;
            }
            at += (pages * PAGE) as u64;
            if let Some(progress) = progress {
                progress(done + at, Some(all));
            }
        }
        target.sync(copy)?;
        done += len;
    }
    Ok(all)
}
