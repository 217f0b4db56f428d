//! The rounds that are under way: one on the task's own thread, or several beside each other while somebody waits.
//!
//! Several gather, write and cache their pages at once, each on a worker. The task syncs the files once for all of
//! them, and publishes one after the other.
//!
//! Invariants:
//! * rounds under way have no region in common: nobody else changes the layout of a round's regions, or releases its
//!   replaced values, between its `gather` and its `publish`;
//! * all of them are written before the files are synced (rule `sync-once`).

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::pages::{PageReader, ReadMode};
use pleach_core::Prefix;
use pleach_core::fold::Folder;
use pleach_io::{Executor, Queue};

use super::gather::{DEPTH, RoundKind};
use super::publish::RetiredBatch;
use super::round::Round;
use super::tidy::Tidy;
use crate::error::{Error, Result};
use crate::state::NamespaceDb;

/// Most rounds at once: the device has enough to do then.
const MOST: usize = 4;
/// Fewest pages of a round that is worth a thread.
pub(super) const LEAST_PAGES: usize = 32;

/// The rounds under way, and the threads for them.
pub(super) struct Rounds {
    runtime: Executor,
    /// The first is the task's own. Each of the others is of one worker: a ring has a single issuer.
    threads: Vec<Mutex<RoundThread>>,
    /// Those with a round.
    begun: Range<usize>,
}

/// A round, and what a thread needs for it.
struct RoundThread {
    round: Round,
    rings: Option<Rings>,
    folder: Folder,
}

struct Rings {
    /// Reads old pages.
    reader: PageReader<usize>,
    /// Writes new pages.
    queue: Box<dyn Queue>,
}

impl Rounds {
    pub(super) fn new(db: &NamespaceDb) -> Self {
        let workers = db.runtime.workers().min(db.budget.workers()).min(MOST);
        let spare = Arc::default();
        let thread = |_| {
            let round = Round { spare: Arc::clone(&spare), ..Round::default() };
            Mutex::new(RoundThread { round, rings: None, folder: Folder::new(db.hasher) })
        };
        Self {
            runtime: db.runtime.clone(),
            threads: (0..=workers).map(thread).collect(),
            begun: 0..1,
        }
    }

    /// Gathers the pages of these prefixes, in key order: for one round, or if somebody `waits` for as many as there are
    /// workers.
    ///
    /// # Errors
    /// Of a ring. The next call makes new ones.
    pub(super) fn gather(
        &mut self,
        db: &NamespaceDb,
        prefixes: &[Prefix],
        kind: RoundKind,
        waits: bool,
    ) -> Result<()> {
        let most = if waits { prefixes.len() / LEAST_PAGES } else { 1 };
        let pieces = split(db, prefixes, most.clamp(1, self.threads.len() - 1));
        let first = usize::from(pieces.len() > 1);
        self.begun = first..first + pieces.len();
        self.run(|index, thread| thread.gather(db, pieces[index], kind))
    }

    /// Number of rounds.
    pub(super) fn count(&self) -> usize {
        self.begun.len()
    }

    /// Number of ranges that the rounds replace.
    pub(super) fn ranges(&mut self) -> usize {
        self.iter_mut().map(|thread| thread.round.len()).sum()
    }

    /// True when they tidy, and nobody waits for them.
    pub(super) fn is_tidying(&mut self) -> bool {
        self.iter_mut().any(|thread| thread.round.tidies)
    }

    /// Writes the pages of all rounds. `flushes` are the numbers of their flushes.
    pub(super) fn write(&self, db: &NamespaceDb, flushes: &[u64]) -> Result<()> {
        self.run(|index, RoundThread { round, rings, folder }| {
            let queue = &mut rings.as_mut().expect("made when gathering").queue;
            round.write(db, queue, folder, flushes[index])
        })
    }

    /// Flush `sync-pages` (rule `pages-before-location`).
    pub(super) fn sync_pages(&mut self, db: &NamespaceDb) -> Result<()> {
        let written = self.iter_mut().map(|thread| &mut thread.round.overflow_written);
        if written.map(std::mem::take).filter(|any| *any).count() > 0 {
            db.store.device.sync(&db.space.overflow)?;
        }
        db.store.device.sync(&db.store.leaf_file)?;
        self.run(|_, thread| {
            thread.round.cache_pages(db);
            Ok(())
        })
    }

    /// Publishes one of them; `None` when a commit is in flight and the caller has to try again.
    pub(super) fn publish_next(
        &mut self,
        db: &NamespaceDb,
        tidy: &mut Tidy,
    ) -> Result<Option<RetiredBatch>> {
        let next = self.iter_mut().find(|thread| thread.round.len() > 0);
        let RoundThread { round, folder, .. } = next.expect("a round is under way");
        let retired = round.publish(db, folder)?;
        tidy.add(&mut round.small, std::mem::take(&mut round.merged));
        Ok(retired)
    }

    /// Ends rounds that could not be written.
    pub(super) fn abandon(&mut self, db: &NamespaceDb) {
        self.iter_mut().for_each(|thread| thread.round.abandon(db));
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut RoundThread> {
        self.threads[self.begun.clone()].iter_mut().map(Mutex::get_mut)
    }

    /// Runs a step of each round, beside each other where there are several.
    ///
    /// # Errors
    /// Of several ones, one that is not about room, if there is any.
    fn run(&self, step: impl Fn(usize, &mut RoundThread) -> Result<()> + Sync) -> Result<()> {
        let errors = Mutex::new(Vec::new());
        self.runtime.inline_or_fork_join(self.begun.len(), &|index| {
            let result = step(index, &mut self.threads[self.begun.start + index].lock());
            errors.lock().extend(result.err());
        });
        let first =
            errors.into_inner().into_iter().min_by_key(|error| matches!(error, Error::Full(_)));
        first.map_or(Ok(()), Err)
    }
}

impl RoundThread {
    fn gather(&mut self, db: &NamespaceDb, prefixes: &[Prefix], kind: RoundKind) -> Result<()> {
        let mut rings = match self.rings.take() {
            Some(rings) => rings,
            None => Rings {
                reader: PageReader::new(&db.store, DEPTH, ReadMode::Flush)?,
                queue: db.store.device.queue(DEPTH)?,
            },
        };
        // After an error the rings are dropped, which waits for pages in flight.
        self.round.gather(db, &mut rings.reader, prefixes, kind)?;
        self.rings = Some(rings);
        Ok(())
    }
}

/// Cuts sorted prefixes into up to `count` pieces of about as many, at borders between regions.
pub(super) fn split<'a>(
    db: &NamespaceDb,
    mut rest: &'a [Prefix],
    count: usize,
) -> Vec<&'a [Prefix]> {
    let size = rest.len().div_ceil(count);
    let mut pieces = Vec::with_capacity(count);
    while let Some(last) = rest[..size.min(rest.len())].last() {
        let region = db.tree.with_region(last.first_key(), |region, _| *region.prefix());
        let more = rest.iter().skip(size).take_while(|next| region.covers(next.first_key()));
        let (piece, behind) = rest.split_at(size.min(rest.len()) + more.count());
        pieces.push(piece);
        rest = behind;
    }
    pieces
}
