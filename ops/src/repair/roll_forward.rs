//! Bringing a database to the state of a damaged one: the commits that the log of the damaged folder has are made
//! again, each with the root that it had.
//!
//! Needed of the damaged folder are its log from the commit behind the state on, and the overflow file for values of
//! more than 64 KiB. Where the page of such a value was written over, since a later commit has replaced the value, both
//! are one commit.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use pleach::internals::error::Contradiction;
use pleach::internals::history::{root_after, root_before};
use pleach::internals::roots::TrieRoot;
use pleach::internals::state::{assemble_value, read_pieces, stored};
use pleach::{Access, Advice, Db, Error, Result, Roots};
use pleach_beatree::Stored;
use pleach_core::Key;
use pleach_io::{Disk, LockMode, OpenMode};
use pleach_journal::format::commit_body::{CommitView, EntryKind, NamespaceView};
use pleach_journal::format::names::OVERFLOW_FILE;
use pleach_journal::format::position::{LogPos, MIN_SEGMENT};
use pleach_journal::format::record::{LogRecordKind, RecordHeader, RecordView};
use pleach_journal::format::superblock_store::SuperblockStore;
use pleach_journal::format::trie_kind::TrieKind;
use pleach_journal::log::{log_identity, segments, walk_whole_records};

use crate::losses::LostCommits;
use crate::repair::lost::{LogReach, reaches_before_repairs};
use crate::replay;

/// The result of a roll forward. Numbers are those of the damaged database, except `commit`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RollForwardReport {
    /// The commit that the database was at first.
    pub from: u64,
    /// The commit that the database is at now.
    pub through: u64,
    /// The number of the database's newest commit.
    pub commit: u64,
    /// The commit's roots and digests.
    pub roots: Roots,
    /// The commits that could not be made again, since the log does not have the record of the first of them, or it is
    /// damaged: a commit of a bulk load has none.
    pub lost: LostCommits,
    /// Why no superblock could be used: then only the log shows how far the commits went.
    pub superblocks: Option<Error>,
    /// Why a commit could not be made again though its record is whole: a long value is damaged.
    pub error: Option<Error>,
}

/// Makes the commits of a damaged database again, whose folder is closed, on `db`, which has the state of its commit
/// `at`: a backup that was opened, or an export that was imported, or an empty database for commit 0. Without `at` it
/// is the number of the newest commit of `db`: right for a backup ([`backup`](crate::backup())), and for a new
/// database.
///
/// Each commit is made only when its Merkle roots, before and after, are those that its record has. Digests of plain
/// namespaces are not compared. It ends at the newest commit that follows without a gap, and that may be the first:
/// where the log does not reach back to the state, a backup of a later commit goes on from there. One that was cut off
/// is done again with a fresh backup, or goes on where it was with the number `at` that it has come to.
///
/// Where a repair in place has cut the log ([`repair`](crate::repair::repair())), it goes on in the originals in the
/// folder. Where commits were made since, these count, and those of the originals are lost
/// ([`RollForwardReport::lost`]), as long as they have later numbers.
///
/// # Errors
/// [`Contradiction::OtherState`] when `db` has another state than that of commit `at`; [`Error::Superblock`] for
/// another version of the format; [`Contradiction::Restored`] for a rollback that has brought a dropped namespace back,
/// where the history of `db` does not reach back to that; and those of commits. What was committed before stays.
pub fn roll_forward(db: &Db, damaged: &Path, at: Option<u64>) -> Result<RollForwardReport> {
    roll_forward_on(db, crate::opened::device(damaged)?, at)
}

/// The same with the damaged database on any device.
///
/// # Errors
/// As [`roll_forward`].
pub fn roll_forward_on(
    db: &Db,
    damaged: impl Into<Disk>,
    at: Option<u64>,
) -> Result<RollForwardReport> {
    let damaged = &damaged.into();
    let _lock = damaged.lock(LockMode::Shared)?;
    let superblocks = SuperblockStore::open(damaged.clone(), OpenMode::Read);
    let superblocks = superblocks.and_then(|found| {
        found.newest().check_features(false)?;
        Ok(found)
    });
    let reach = LogReach::new(superblocks.as_ref().ok());
    let (log, superblocks) = match superblocks {
        Ok(superblocks) => {
            let newest = superblocks.newest();
            let own = Some(db.hasher()?);
            let found = newest.hasher.hasher(own);
            found.ok_or_else(|| Error::wrong_hasher(own, &newest.hasher))?;
            (Some((newest.database, newest.geometry.log_segment)), None)
        }
        Err(error) => match Error::from(error) {
            error if error.advice() == Advice::OtherVersion => return Err(error),
            error => (log_identity(damaged)?, Some(error)),
        },
    };
    let from = at.unwrap_or_else(|| db.commit_number());
    let said = |number| Ok((number, db.commit_at(number)?.roots));
    let made = db.history().map(said).collect::<Result<_>>()?;
    let mut forward = RollForward {
        db,
        damaged,
        database: log.map_or(0, |(database, _)| database),
        reach,
        from,
        through: from,
        done: from,
        incarnation: 0,
        roots: db.roots(),
        blob: db.blob(),
        fates: Vec::new(),
        made,
        changes: BTreeMap::new(),
        error: None,
    };
    let mut before = Vec::new();
    if let Some(log) = log {
        forward.walk(damaged, log.1)?;
        for (folder, reach) in reaches_before_repairs(damaged, log)? {
            before.extend(forward.go_on(&folder, log.1, reach)?.map(|reach| (folder, reach)));
        }
    }
    db.sync()?;
    let RollForward { done, reach, error, .. } = forward;
    let log = log.unwrap_or((0, MIN_SEGMENT));
    let mut lost = reach.lost(damaged, log, done)?;
    for (folder, reach) in before {
        lost.add(&reach.lost(&folder, log, done)?);
    }
    Ok(RollForwardReport {
        from,
        through: done,
        commit: db.commit_number(),
        roots: db.roots(),
        lost,
        superblocks,
        error,
    })
}

struct RollForward<'a> {
    db: &'a Db,
    damaged: &'a Disk,
    database: u64,
    reach: LogReach,
    /// The commit that the database was at first, the last one read, and the last one made.
    from: u64,
    through: u64,
    done: u64,
    /// The incarnation of the last record: an older record behind it was cut off long ago.
    incarnation: u32,
    /// Roots and blob after the last commit read.
    roots: Roots,
    blob: Vec<u8>,
    /// Namespaces added or dropped by commits that are read and not made yet: the last one, and those before it that
    /// lack a long value.
    fates: Vec<(u8, Option<TrieKind>)>,
    /// Numbers here, and roots, of the commits that can be gone back to; of those made here the roots as they were
    /// recorded, since a digest may be another one now.
    made: Vec<(u64, Roots)>,
    changes: BTreeMap<(u8, Key), Stored>,
    error: Option<Error>,
}

impl RollForward<'_> {
    /// Makes the commits of a log that follow.
    fn walk(&mut self, folder: &Disk, size: u64) -> Result<()> {
        let first = segments(folder, size)?.first().copied().unwrap_or(0);
        let start = LogPos::of_segment(first, size);
        walk_whole_records(folder, self.database, size, start, |record| {
            self.record(record).map(ControlFlow::Continue)
        })
    }

    /// Goes on in the log as it was before a repair. Returns how far that went, unless the commits made since go
    /// further.
    fn go_on(&mut self, folder: &Disk, size: u64, before: LogReach) -> Result<Option<LogReach>> {
        if self.reach.newest > before.newest {
            return Ok(None);
        }
        // Commits made since the repair have the numbers of those that it cut off.
        if self.reach.newest_by > before.incarnation {
            return Ok(Some(before));
        }
        let since = std::mem::replace(&mut self.reach, before);
        self.incarnation = 0;
        let walked = self.walk(folder, size);
        let before = std::mem::replace(&mut self.reach, since);
        match walked {
            Err(Error::Corrupt(Contradiction::OtherState { .. })) | Ok(()) => Ok(Some(before)),
            Err(error) => Err(error),
        }
    }

    fn record(&mut self, record: &RecordView<'_>) -> Result<()> {
        let RecordHeader { kind, number, incarnation, position, .. } = record.header;
        if incarnation < self.incarnation {
            return Ok(());
        }
        self.incarnation = incarnation;
        self.reach.record(&record.header);
        if kind != LogRecordKind::Commit || number < self.from {
            return Ok(());
        }
        let bad = |error| Contradiction::Record { position, error };
        let view = CommitView::parse(record.body).map_err(bad)?;
        let entries: Vec<NamespaceView<'_>> =
            view.namespaces().collect::<Result<_, _>>().map_err(bad)?;
        if number == self.from {
            return self.check(number, entries.iter().map(|entry| (entry.ns, root_after(entry))));
        }
        if number != self.through + 1 {
            return Ok(());
        }
        self.check(number, entries.iter().map(|entry| (entry.ns, root_before(entry))))?;
        self.roots = self.roots.with(entries.iter().map(|entry| (entry.ns, root_after(entry))));
        self.through = number;
        self.blob = view.blob.to_vec();
        if entries.iter().any(|entry| entry.kind == EntryKind::Restored) {
            return self.roll_back();
        }
        for entry in &entries {
            match entry.kind {
                EntryKind::Added => self.fates.push((entry.ns, Some(entry.trie))),
                EntryKind::Dropped => {
                    self.fates.push((entry.ns, None));
                    self.changes.retain(|(namespace, _), _| *namespace != entry.ns);
                }
                _ => {}
            }
            for change in entry.changes() {
                let (key, value) = change.map_err(bad)?;
                self.changes.insert((entry.ns, *key), stored(self.db.hasher()?, number, value)?);
            }
        }
        self.commit()
    }

    /// Checks that these are the roots of the last commit that was applied. A digest may be another one.
    fn check(
        &self,
        commit: u64,
        roots: impl Iterator<Item = (u8, Option<TrieRoot>)>,
    ) -> Result<()> {
        let said = |root: Option<TrieRoot>| root.map(|root| (root.kind, root.merkle()));
        for (namespace, root) in roots {
            if said(self.roots.of(namespace)) != said(root) {
                return Err(Contradiction::OtherState { commit, namespace }.into());
            }
        }
        Ok(())
    }

    /// The last commit was a rollback that brought a dropped namespace back: rolls the database back to a commit that
    /// has it.
    fn roll_back(&mut self) -> Result<()> {
        let (db, commit) = (self.db, self.through);
        let none = || Contradiction::Restored { commit };
        if self.done + 1 < commit {
            return Err(none().into());
        }
        let then = self.made.iter().rev().find(|(_, roots)| *roots == self.roots);
        let (then, _) = then.ok_or_else(none)?;
        let made = db.rollback_to(*then)?;
        self.made(made);
        Ok(())
    }

    /// Notes that the last commit read was made, under this number.
    fn made(&mut self, number: u64) {
        self.done = self.through;
        self.made.push((number, self.roots.clone()));
    }

    /// Makes all commits that are read and not made yet, as one commit, when all values are there.
    fn commit(&mut self) -> Result<()> {
        let overflow = self.damaged.open(OVERFLOW_FILE, OpenMode::Read);
        self.error = None;
        for stored in self.changes.values_mut() {
            let Stored::Overflow(raw) = stored else { continue };
            let value = overflow.clone().map_err(Error::from).and_then(|file| {
                let pieces = read_pieces(self.damaged, &file, raw);
                Ok(assemble_value(self.db.hasher()?, self.database, raw, pieces)?)
            });
            match value {
                Ok(value) => *stored = Stored::from_value(self.db.hasher()?, value),
                Err(error) => self.error = Some(error),
            }
        }
        if self.error.is_some() {
            return Ok(());
        }
        let fates = std::mem::take(&mut self.fates);
        for (namespace, fate) in &fates {
            match fate {
                Some(TrieKind::Merkle) => self.db.add_namespace(*namespace)?,
                Some(TrieKind::Plain) => self.db.add_plain_namespace(*namespace)?,
                None => self.db.drop_namespace(*namespace)?,
            };
        }
        if fates.is_empty() || !self.changes.is_empty() || self.db.blob() != self.blob {
            let accesses = std::mem::take(&mut self.changes).into_iter();
            let accesses = accesses.map(|((namespace, key), stored)| {
                let value = match stored {
                    Stored::Inline(value) => Some(value),
                    Stored::Long(large) => Some(large.bytes.clone()),
                    Stored::Absent | Stored::Overflow(_) => None,
                };
                Access::write(key, value).in_namespace(namespace)
            });
            let blob = std::mem::take(&mut self.blob);
            replay::commit(self.db, accesses, blob, |roots| {
                let roots = roots.all().map(|(namespace, root)| (namespace, Some(root)));
                self.check(self.through, roots)
            })?;
        }
        self.made(self.db.commit_number());
        Ok(())
    }
}
