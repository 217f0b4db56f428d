//! Backup: the pieces that an archive does not have yet.

use std::fmt;

use pleach::{Db, Error, Session};
use pleach_ops::export::{StreamError, export, export_changes};

use crate::error::{ArchiveError, Result};
use crate::listing::Listing;
use crate::names::Piece;
use crate::place::Archive;
use crate::transfer::{Progress, Upload};
use crate::verify::{damaged, heads, of, own, read_back};

/// Bytes of a part of an upload: 10,000 of them, which is what stores take, are 320 GB.
const PART: usize = 32 << 20;
/// Attempts of a backup whose objects are removed meanwhile.
const TRIES: u32 = 8;

/// Options of [`backup`].
#[derive(Clone)]
pub struct BackupOptions {
    full: bool,
    every: u64,
    part: usize,
    progress: Option<Progress>,
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self { full: false, every: u64::MAX, part: PART, progress: None }
    }
}

impl fmt::Debug for BackupOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { full, every, part, .. } = self;
        f.debug_struct("BackupOptions")
            .field("full", full)
            .field("every", every)
            .field("part", part)
            .finish_non_exhaustive()
    }
}

impl BackupOptions {
    /// Changes where possible, in one object.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a full is written even where changes would do (default: false). Changes are written too, for followers.
    #[must_use]
    pub fn full(mut self, full: bool) -> Self {
        self.full = full;
        self
    }

    /// Commits in one object of changes at most, 1 at least: each object's last commit can be restored.
    #[must_use]
    pub fn every(mut self, commits: u64) -> Self {
        self.every = commits.max(1);
        self
    }

    /// MiB of a part of an upload, 5 to 4096; three parts are in memory. The default is 32. Stores take 10,000 parts,
    /// so that a full of more than 320 GB wants larger ones.
    #[must_use]
    pub fn part_mib(mut self, mib: u64) -> Self {
        let mib = usize::try_from(mib.clamp(5, 4096)).unwrap_or(PART >> 20);
        self.part = mib << 20;
        self
    }

    /// A function that is called with the progress of writing an object and of reading it back.
    #[must_use]
    pub fn progress(mut self, progress: Option<Progress>) -> Self {
        self.progress = progress;
        self
    }
}

/// Why a backup has written a full.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FullReason {
    /// A full was requested.
    Asked,
    /// The archive had none.
    First,
    /// The newest object of the archive is damaged, and no object can follow it.
    NewestDamaged {
        /// Name of the object.
        object: String,
        /// What is wrong with it.
        why: String,
    },
    /// The newest commit of the archive is not in the history of the database any more: give
    /// [`Options::history`](pleach::Options::history) more than the commits between two backups, or back up more often.
    NotInHistory {
        /// The newest commit of the archive.
        archived: u64,
        /// The oldest commit of the history.
        oldest: u64,
    },
}

/// The result of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// The newest commit of the archive, which is that of the database when the backup began.
    pub commit: u64,
    /// The objects written, in order; none when the archive had the commit already.
    pub written: Vec<Piece>,
    /// Bytes of all objects written.
    pub bytes: u64,
    /// Pairs of a full, or changes, written.
    pub records: u64,
    /// Why a full was written.
    pub full: Option<FullReason>,
}

/// Brings an archive up to the newest commit of a database, while commits go on: writes what was changed since the
/// newest commit of the archive, where the database's history reaches back to that and that object is whole, and else a
/// full. Each object is read back after it was written. What was written before an error stays, and is whole.
///
/// # Errors
/// [`ArchiveError::OtherDatabase`], [`ArchiveError::TwoDatabases`], [`ArchiveError::Foreign`],
/// [`ArchiveError::OtherCommit`] and [`ArchiveError::Ahead`] when the archive is not of this database;
/// [`ArchiveError::Lost`] and [`ArchiveError::Older`] when what this value has seen in the archive is not there any more;
/// [`ArchiveError::OtherVersion`] when a newer version has written its newest object; [`ArchiveError::NotVerified`] when
/// what was written reads back otherwise; [`ArchiveError::Store`]; those of reading the database.
pub fn backup(archive: &Archive, db: &Db, options: &BackupOptions) -> Result<BackupReport> {
    let mut tries = 1;
    loop {
        match attempt(archive, db, options) {
            // Another backup has written a full since the archive was listed, and removed what was before it.
            Err(error) if error.is_gone() && tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

fn attempt(archive: &Archive, db: &Db, options: &BackupOptions) -> Result<BackupReport> {
    // In this order: another backup may extend the archive meanwhile.
    let listing = archive.list()?;
    db.refresh()?;
    let newest = db.snapshot()?;
    let database = db.id()?;
    listing.refuse_other(database)?;
    let commit = newest.commit_number();
    if let Some(archived) = listing.last().filter(|last| *last > commit) {
        return Err(ArchiveError::Ahead { archived, newest: commit });
    }
    let report = BackupReport { commit, written: Vec::new(), bytes: 0, records: 0, full: None };
    let is_new = listing.database().is_none();
    let mut backup = Backup { archive, options, database, is_new, report };
    let asked = options.full.then_some(FullReason::Asked);
    let mut is_there = listing.bytes(Piece::Full { commit }).is_some();
    let reason = match listing.newest() {
        None => Some(FullReason::First),
        Some(archived) => {
            let changes = backup.check(&listing, db, (archived, commit));
            match changes.and_then(|()| backup.changes(db, archived, &newest)) {
                Ok(()) => asked,
                Err(error) if is_too_old(&error) => {
                    Some(FullReason::NotInHistory { archived, oldest: *db.history().start() })
                }
                Err(ArchiveError::Damaged { object, why, .. }) => {
                    // The full of this very commit may exist.
                    is_there = false;
                    Some(FullReason::NewestDamaged { object, why })
                }
                Err(error) => return Err(error),
            }
        }
    };
    if let Some(reason) = reason.filter(|_| !is_there) {
        backup.full(&newest)?;
        backup.report.full = Some(reason);
    }
    archive.saw(Some(database), commit);
    Ok(backup.report)
}

/// True when the state cannot be read any more, or cannot be compared.
fn is_too_old(error: &ArchiveError) -> bool {
    matches!(
        error,
        ArchiveError::Database(pleach_ops::Error::Db(
            Error::SnapshotTooOld { .. } | Error::HistoryLost { .. } | Error::ForeignSession
        ))
    )
}

/// A backup in progress.
struct Backup<'a> {
    archive: &'a Archive,
    options: &'a BackupOptions,
    database: u64,
    /// True where the archive does not name the database yet.
    is_new: bool,
    report: BackupReport,
}

impl Backup<'_> {
    /// Compares the newest commit of the archive with the database's, if that is still in the history. Its object must
    /// be of this database; it is read as a whole if changes are to follow it.
    fn check(&self, listing: &Listing, db: &Db, (archived, newest): (u64, u64)) -> Result<()> {
        let way = listing.pieces_to(archived);
        let Some(piece) = way.and_then(|way| way.last().copied()) else { return Ok(()) };
        let bytes = listing.bytes(piece).unwrap_or_default();
        let heads = heads(self.archive, piece, bytes)?;
        own(piece, heads.database, Some(self.database))?;
        let there = match db.commit_at(archived) {
            Ok(there) => there,
            Err(Error::SnapshotTooOld { .. } | Error::HistoryLost { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if heads.after != of(&there.roots) {
            return Err(ArchiveError::OtherCommit { commit: archived, object: piece.name() });
        }
        if archived < newest {
            read_back(self.archive, (piece, bytes), self.options.progress.clone())?;
        }
        Ok(())
    }

    /// Writes changes from an archived commit to the newest one.
    fn changes(&mut self, db: &Db, archived: u64, newest: &Session) -> Result<()> {
        let (mut at, last) = (archived, newest.commit_number());
        let mut most = self.options.every;
        let mut older = if at < last { Some(db.at(at)?) } else { None };
        while let Some(session) = older.take() {
            let to = at.saturating_add(most).min(last);
            let between = if to < last { Some(db.at(to)?) } else { None };
            let newer = between.as_ref().unwrap_or(newest);
            match self.write(Piece::Changes { from: at, to }, |upload| {
                export_changes(&session, newer, upload).map(|report| (report.changes, report.bytes))
            }) {
                Ok(()) => (at, older) = (to, between),
                // Half as many commits are tried, down to one commit, which always fits.
                Err(ArchiveError::Database(pleach_ops::Error::Stream(StreamError::TooLarge {
                    ..
                }))) => {
                    (most, older) = (((to - at) / 2).max(1), Some(session));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all pairs of a commit.
    fn full(&mut self, session: &Session) -> Result<()> {
        self.write(Piece::Full { commit: session.commit_number() }, |upload| {
            export(session, upload).map(|report| (report.pairs, report.bytes))
        })
    }

    /// Writes an object, reads it back, and counts it. `stream` returns its records and bytes.
    fn write(
        &mut self,
        piece: Piece,
        stream: impl FnOnce(&mut Upload<'_>) -> pleach_ops::Result<(u64, u64)>,
    ) -> Result<()> {
        if std::mem::take(&mut self.is_new) {
            self.archive.put_owner(self.database)?;
        }
        self.archive.require_owner(self.database)?;
        let progress = || self.options.progress.clone();
        let mut upload = Upload::new(self.archive, piece.name(), self.options.part, progress())?;
        let failure = upload.failure();
        let (records, bytes) = match stream(&mut upload) {
            Ok(written) => written,
            Err(error) => {
                upload.abort();
                return Err(failure.or(error));
            }
        };
        upload.finish()?;
        let read = read_back(self.archive, (piece, bytes), progress());
        let other = || damaged(piece, "it reads back with another number of records");
        match read.and_then(|found| if found == records { Ok(()) } else { Err(other()) }) {
            Ok(()) => {}
            Err(ArchiveError::Damaged { object, why, .. }) => {
                self.archive.remove(&object)?;
                return Err(ArchiveError::NotVerified { object, why });
            }
            Err(error) => return Err(error),
        }
        self.report.written.push(piece);
        self.report.bytes += bytes;
        self.report.records += records;
        Ok(())
    }
}
