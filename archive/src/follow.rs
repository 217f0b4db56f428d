//! Follower: a database that is restored from an archive and kept up with it; and restore, which is a follower that
//! stops at a commit.

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pleach::{Db, Hasher, Options, Roots};
use pleach_ops::export::{
    ChangeReader, ImportOptions, StreamError, StreamReader, Trust, apply_changes, import,
};
use pleach_ops::{Error, finish, open_unfinished};

use crate::cursor::FollowCursor;
use crate::error::{ArchiveError, Result};
use crate::listing::Listing;
use crate::names::Piece;
use crate::place::Archive;
use crate::transfer::{Download, Failure, Progress};
use crate::verify::{OTHER_PIECE, PieceHeads, damaged, heads, own, unreadable};

/// Changes the options of an open.
type OptionsHook = Arc<dyn Fn(Options) -> Options + Send + Sync>;

/// Options of [`restore`] and [`Follower::open`].
#[derive(Clone, Default)]
pub struct RestoreOptions {
    commit: Option<u64>,
    hasher: Option<Hasher>,
    import: ImportOptions,
    with: Option<OptionsHook>,
    progress: Option<Progress>,
    unfinished: bool,
}

impl fmt::Debug for RestoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestoreOptions")
            .field("commit", &self.commit)
            .field("hasher", &self.hasher)
            .field("import", &self.import)
            .finish_non_exhaustive()
    }
}

impl RestoreOptions {
    /// The newest commit of the archive; the database is opened with its default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// The archived commit to restore; a follower stops there. `None` is the newest, and a follower goes on.
    #[must_use]
    pub fn commit(mut self, commit: Option<u64>) -> Self {
        self.commit = commit;
        self
    }

    /// The hasher of the archived database, where an application has made it. The archive has only its number, so with
    /// another hasher of the application the roots differ. Without this a restore takes BLAKE3 or SHA-256, by the
    /// archive's number.
    #[must_use]
    pub fn hasher(mut self, hasher: Hasher) -> Self {
        self.hasher = Some(hasher);
        self
    }

    /// Memory that the import of a full may take, in MiB ([`ImportOptions::memory_mib`]).
    #[must_use]
    pub fn memory_mib(mut self, mib: u64) -> Self {
        self.import = self.import.memory_mib(mib);
        self
    }

    /// A function that changes the options with which the database is opened: cache, history and the like.
    #[must_use]
    pub fn database(mut self, with: impl Fn(Options) -> Options + Send + Sync + 'static) -> Self {
        self.with = Some(Arc::new(with));
        self
    }

    /// A function that is called with the progress of reading an object.
    #[must_use]
    pub fn progress(mut self, progress: Option<Progress>) -> Self {
        self.progress = progress;
        self
    }

    /// Whether a database that the follower creates stays unfinished ([`pleach_ops::open_unfinished`]) where the archive
    /// ends, for a caller that goes on from there and then calls [`pleach_ops::finish`] (default: false).
    #[must_use]
    pub fn unfinished(mut self, unfinished: bool) -> Self {
        self.unfinished = unfinished;
        self
    }

    /// The hasher of an archive with this number.
    fn hasher_of(&self, number: u8) -> Result<Hasher> {
        let own = Hasher::of_id(number);
        let found = self.hasher.or(own).filter(|hasher| hasher.id() == number);
        let given = self.hasher.map(Hasher::name);
        found.ok_or(ArchiveError::Hasher { archived: number, given })
    }

    fn open(&self, folder: &Path, create: bool, hasher: Option<Hasher>) -> Result<Db> {
        let mut options = Options::new(folder).create(create);
        if let Some(hasher) = hasher {
            options = options.hasher(hasher);
        }
        if let Some(with) = &self.with {
            options = with(options);
        }
        Ok(open_unfinished(options)?)
    }
}

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The archived commit that was restored.
    pub archived_commit: u64,
    /// The number of the newest commit of the restored database, which counts from its own beginning.
    pub commit: u64,
    /// Roots of the restored database. The Merkle roots are those of the archived commit; digests of plain namespaces
    /// are its own.
    pub roots: Roots,
    /// The pieces that this call imported or applied, in order, without those of an earlier, interrupted call.
    pub applied: Vec<Piece>,
}

/// Restores an archived commit into a folder, which is missing, empty, or has what a restore has left that was cut off:
/// then it goes on; until it is whole, nothing else opens it ([`pleach_ops::open_unfinished`]). Every piece is verified by
/// its checksums and roots. The database is closed when this returns.
///
/// # Errors
/// As [`Follower::open`] and [`Follower::step`].
pub fn restore(
    archive: &Archive,
    folder: &Path,
    options: &RestoreOptions,
) -> Result<RestoreReport> {
    let listing = archive.list()?;
    let goal = goal(archive, &listing, options.commit)?;
    let options = options.clone().commit(Some(goal)).unfinished(true);
    let mut follower = Follower::open(archive, folder, &options)?;
    let mut applied: Vec<Piece> = follower.imported.into_iter().collect();
    while let Some(piece) = follower.step()? {
        applied.push(piece);
    }
    let Follower { db, .. } = follower;
    let (commit, roots) = (db.commit_number(), db.roots());
    db.close()?;
    finish(folder)?;
    Ok(RestoreReport { archived_commit: goal, commit, roots, applied })
}

/// A database that follows an archive. It is at an archived commit at all times, except during a step. Only the
/// follower may commit to it.
pub struct Follower {
    archive: Archive,
    folder: PathBuf,
    db: Db,
    /// The archived database.
    database: u64,
    /// The archived commit that the database is at.
    at: u64,
    /// The commit of an interrupted step.
    cut_off: Option<u64>,
    options: RestoreOptions,
    /// Pieces that come next, as they were listed.
    planned: VecDeque<Piece>,
    listing: Listing,
    imported: Option<Piece>,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower")
            .field("archive", &self.archive)
            .field("folder", &self.folder)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl Follower {
    /// Opens a folder that was restored from the archive, or imports a full into one that is missing or empty: the
    /// newest from which there is a way to the wanted commit. An import that was cut off goes on; until it is whole,
    /// nothing else opens the folder ([`pleach_ops::open_unfinished`]).
    ///
    /// # Errors
    /// [`ArchiveError::Empty`], [`ArchiveError::NotArchived`]; [`ArchiveError::Hasher`];
    /// [`ArchiveError::OtherDatabase`] and those of [`Archive::list`]; [`ArchiveError::NotARestore`],
    /// [`ArchiveError::WrittenTo`], [`ArchiveError::Beyond`], [`ArchiveError::Cursor`] for the folder;
    /// [`ArchiveError::Damaged`], [`ArchiveError::Gone`], [`ArchiveError::Contradiction`] and [`ArchiveError::Store`]
    /// for the full; those of an open and an import.
    pub fn open(archive: &Archive, folder: &Path, options: &RestoreOptions) -> Result<Self> {
        let listing = archive.list()?;
        let cursor = FollowCursor::read(folder)?;
        if let Some(FollowCursor { database, at, .. }) = cursor {
            archive.compare(&listing, Some(database), at.unwrap_or(0))?;
            archive.saw(Some(database), at.unwrap_or(0));
        }
        let full = match cursor {
            Some(FollowCursor { at: Some(_), .. }) => None,
            Some(FollowCursor { next: Some(full), .. }) => Some(Piece::Full { commit: full }),
            _ => Some(full_for(archive, &listing, options.commit)?),
        };
        let (at, cut_off) = match cursor {
            Some(FollowCursor { at: Some(at), next, .. }) => (at, next),
            _ => (full.map_or(0, Piece::to), None),
        };
        let reached = cut_off.unwrap_or(at);
        if let Some(commit) = options.commit.filter(|commit| *commit < reached) {
            let folder = folder.display().to_string();
            return Err(ArchiveError::Beyond { folder, at: reached, commit });
        }
        let of = cursor.map(|cursor| cursor.database).or(listing.database());
        let (database, hasher) = match full {
            Some(full) => check_full(archive, &listing, full, of, options)?,
            // The cursor has the database's number.
            None => (of.unwrap_or_default(), options.hasher),
        };
        let db = options.open(folder, full.is_some(), hasher)?;
        let found = db.commit_number();
        match cursor {
            None if found > 0 => {
                return Err(ArchiveError::NotARestore(folder.display().to_string()));
            }
            Some(FollowCursor { at: Some(_), next: None, commit, .. }) if found != commit => {
                let folder = folder.display().to_string();
                return Err(ArchiveError::WrittenTo { folder, restored: commit, found });
            }
            _ => {}
        }
        let follower = Self {
            archive: archive.clone(),
            folder: folder.to_owned(),
            db,
            database,
            at,
            cut_off,
            options: options.clone(),
            planned: VecDeque::new(),
            listing,
            imported: full,
        };
        if let Some(full) = full {
            follower.write_cursor(None, Some(full.to()), 0)?;
            follower.apply(full)?;
            follower.arrive(full)?;
        } else if follower.cut_off.is_none() {
            follower.finish()?;
        }
        Ok(follower)
    }

    /// The database, for reading.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The archived commit that the database is at.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Applies the next piece of the archive, if there is one: `None` when the database is at the archive's newest
    /// commit, or at the one that was wanted. The archive is listed when what was listed before is done. After an error
    /// the database is at the commit before the piece or at the one after it; the step can be tried again, after an
    /// open, too.
    ///
    /// # Errors
    /// [`ArchiveError::NoWayOn`] when the archive goes on with a full; [`ArchiveError::NotArchived`] when the wanted
    /// commit cannot be reached; [`ArchiveError::Foreign`], [`ArchiveError::Unnamed`]; [`ArchiveError::Damaged`];
    /// [`ArchiveError::Gone`]; [`ArchiveError::Store`]; those of [`apply_changes`], of which
    /// [`NamespaceInUse`](pleach::Error::NamespaceInUse) says that the database has too long a history.
    pub fn step(&mut self) -> Result<Option<Piece>> {
        let planned = self.planned.front().copied();
        let was_cut_off = self.cut_off.is_some();
        let next = match self.cut_off {
            Some(to) => {
                self.listing = self.archive.list()?;
                Some(Piece::Changes { from: self.at, to })
            }
            None if planned.is_some() => planned,
            None => self.plan()?,
        };
        let Some(piece) = next else { return Ok(None) };
        let commit = self.db.commit_number();
        self.write_cursor(Some(self.at), Some(piece.to()), commit)?;
        self.cut_off = Some(piece.to());
        if let Err(error) = self.apply(piece) {
            if !was_cut_off && self.db.commit_number() == commit {
                // Nothing has changed, and any piece may come next.
                self.write_cursor(Some(self.at), None, commit)?;
                self.cut_off = None;
                self.planned.clear();
            }
            return Err(error);
        }
        self.arrive(piece)?;
        (self.at, self.cut_off) = (piece.to(), None);
        self.planned.pop_front();
        Ok(Some(piece))
    }

    /// Lists the archive, and returns the first of the next pieces.
    fn plan(&mut self) -> Result<Option<Piece>> {
        if self.options.commit == Some(self.at) {
            return Ok(None);
        }
        self.listing = self.archive.list()?;
        let listing = &self.listing;
        let goal = self.options.commit.unwrap_or_else(|| listing.newest_from(self.at));
        let no_way = |goal| {
            let folder = self.folder.display().to_string();
            ArchiveError::NoWayOn { folder, at: self.at, goal }
        };
        let Some(way) = listing.between(self.at, goal) else {
            let is_restorable = listing.pieces_to(goal).is_some();
            return Err(if is_restorable { no_way(goal) } else { listing.not_archived(goal) });
        };
        if way.is_empty()
            && let Some(newest) = listing.newest().filter(|newest| *newest > self.at)
        {
            return Err(no_way(newest));
        }
        self.planned = way.into();
        Ok(self.planned.front().copied())
    }

    /// Imports a full, or applies changes.
    fn apply(&self, piece: Piece) -> Result<()> {
        let bytes = self.listing.bytes(piece).ok_or_else(|| ArchiveError::Gone(piece.name()))?;
        let from = Download::new(&self.archive, piece.name(), bytes, self.options.progress.clone());
        let failure = from.failure();
        let wrong = |error| of_piece(error, piece, &failure);
        let apply = || {
            if let Piece::Full { .. } = piece {
                let reader = StreamReader::new(from).map_err(|error| wrong(error.into()))?;
                return import(&self.db, reader, &self.options.import).map(drop).map_err(wrong);
            }
            let reader = ChangeReader::new(from).map_err(|error| wrong(error.into()))?;
            let head = reader.head();
            if (Piece::Changes { from: head.from, to: head.to }) != piece {
                return Err(damaged(piece, OTHER_PIECE));
            }
            own(piece, head.database, Some(self.database))?;
            apply_changes(&self.db, reader, Trust::Sender).map(drop).map_err(wrong)
        };
        apply().map_err(|error| place_damage(error, &self.listing, piece, self.options.commit))
    }

    /// Notes that the database is at the commit of a piece. Whatever the durability, the cursor is never ahead.
    fn arrive(&self, piece: Piece) -> Result<()> {
        self.db.sync()?;
        self.archive.saw(None, piece.to());
        self.write_cursor(Some(piece.to()), None, self.db.commit_number())?;
        self.finish()
    }

    /// At an archived commit the database is whole, unless the caller wants another one.
    fn finish(&self) -> Result<()> {
        if !self.options.unfinished {
            finish(&self.folder)?;
        }
        Ok(())
    }

    fn write_cursor(&self, at: Option<u64>, next: Option<u64>, commit: u64) -> Result<()> {
        FollowCursor { database: self.database, at, next, commit }.write(&self.folder)
    }
}

/// The wanted commit, or else the newest one.
fn goal(archive: &Archive, listing: &Listing, commit: Option<u64>) -> Result<u64> {
    let newest = commit.or_else(|| listing.newest());
    newest.ok_or_else(|| ArchiveError::Empty(archive.place().to_owned()))
}

/// The full with which the pieces to a commit begin, the newest where no commit is wanted.
fn full_for(archive: &Archive, listing: &Listing, commit: Option<u64>) -> Result<Piece> {
    let commit = goal(archive, listing, commit)?;
    let first = listing.pieces_to(commit).and_then(|way| way.first().copied());
    first.ok_or_else(|| listing.not_archived(commit))
}

/// Returns the database of a full, which must be `database` where one is given, and its hasher, if its roots are those
/// that changes from or to its commit name.
fn check_full(
    archive: &Archive,
    listing: &Listing,
    full: Piece,
    database: Option<u64>,
    options: &RestoreOptions,
) -> Result<(u64, Option<Hasher>)> {
    let place = |error| place_damage(error, listing, full, options.commit);
    let bytes = listing.bytes(full).ok_or_else(|| ArchiveError::Gone(full.name()))?;
    let PieceHeads { hasher, database: found, after: roots, .. } =
        heads(archive, full, bytes).map_err(place)?;
    let database = own(full, found, database)?;
    let hasher = options.hasher_of(hasher)?;
    for (piece, bytes) in listing.pieces() {
        let Piece::Changes { from, to } = piece else { continue };
        if from != full.to() && to != full.to() {
            continue;
        }
        let PieceHeads { database: found, before, after, .. } = match heads(archive, piece, bytes) {
            Ok(heads) => heads,
            // A head that cannot be read proves nothing here, and is reported when the object is needed.
            Err(ArchiveError::Damaged { .. } | ArchiveError::OtherVersion { .. }) => continue,
            Err(error) => return Err(error),
        };
        own(piece, found, Some(database))?;
        if roots != if from == full.to() { before } else { after } {
            let (one, other) = (full.name(), piece.name());
            return Err(ArchiveError::Contradiction { one, other, commit: full.to() });
        }
    }
    Ok((database, Some(hasher)))
}

/// An error of importing or applying a piece: of the store, of the piece, or of the database.
fn of_piece(error: Error, piece: Piece, failure: &Failure) -> ArchiveError {
    let error = failure.or(error);
    match error {
        ArchiveError::Database(Error::Stream(StreamError::Hasher { .. })) => error,
        ArchiveError::Database(Error::Stream(error)) => unreadable(piece, error),
        ArchiveError::Database(why @ Error::Db(pleach::Error::OtherRoot { .. })) => {
            damaged(piece, why)
        }
        error => error,
    }
}

/// Adds to the error of a damaged piece what can be restored instead.
fn place_damage(
    error: ArchiveError,
    listing: &Listing,
    piece: Piece,
    goal: Option<u64>,
) -> ArchiveError {
    let ArchiveError::Damaged { object, why, .. } = error else { return error };
    let rest = listing.without(piece);
    let goal = goal.or_else(|| listing.newest());
    let without = goal.filter(|goal| rest.pieces_to(*goal).is_some());
    ArchiveError::Damaged { object, why, before: rest.before(piece.to()), without }
}
