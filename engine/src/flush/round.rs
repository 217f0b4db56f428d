//! One round of the flush: its pages, what it has reserved and written, until it is published or abandoned.
//!
//! Invariants:
//! * page numbers and overflow runs reserved here belong to the round until `publish`, or until [`Round::abandon`]
//!   frees them;
//! * nothing is written before the log is durable through all that the pages will contain (rule
//!   `log-before-pages`);
//! * buffers are reused from round to round, up to the pages of a round ([`Budget::round_pages`]).
//!
//! Only the flush task has rounds ([`rounds`](super::rounds)). [`gather`](super::gather) fills it, [`build`](super::build) makes its pages,
//! [`publish`](super::publish) puts them into the index.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use pleach_beatree::cache::NO_BATCH;
use pleach_beatree::page_plan::{PageStamp, STORED_LEVELS};
use pleach_beatree::pages::{LeafName, QuarantineReason, TentativeExtents};
use pleach_beatree::stored::overflow_cell;
use pleach_beatree::{Error as TreeError, PageNo, Stored};
use pleach_core::Prefix;
use pleach_core::fold::Folder;
use pleach_core::page::leaf::{self, LeafView};
use pleach_core::page::overflow::OverflowExtent;
use pleach_io::{Completion, PAGE, PageBuf, Queue, Request, RequestKind};
use pleach_journal::format::position::LogPos;

use super::build::{MergedPages, fill};
use super::cells::{OldPage, make_nodes};
use super::rewrite::Rewrite;
use crate::error::{NoRoom, Result, full_or};
use crate::metrics::Counters;
use crate::state::NamespaceDb;
use crate::state::values;

/// Pages filled to at most this percentage may merge with a sibling: half of what two that merge may fill.
const SMALL_PERCENT: usize = super::rewrite::MERGE_PERCENT / 2;

/// The state of a round.
#[derive(Default)]
pub(super) struct Round {
    pub(super) rewrites: Vec<Rewrite>,
    /// Highest log position that the pages contain.
    pub(super) log_position: LogPos,
    /// Page numbers reserved and not yet published.
    pub(super) reserved: Vec<PageNo>,
    /// The bytes of the new pages, run by run.
    pub(super) runs: Vec<PageBuf>,
    /// Buffers of earlier rounds, for all rounds of the task.
    pub(super) spare: Arc<Mutex<Vec<PageBuf>>>,
    pub(super) overflow_written: bool,
    pub(super) tentative: Vec<OverflowExtent>,
    pub(super) flush: u64,
    /// Pages that are small after the round.
    pub(super) small: Vec<Prefix>,
    /// True when the round has merged any pages.
    pub(super) merged: bool,
    /// True for a round that tidies pages, and for which nobody waits.
    pub(super) tidies: bool,
}

impl Round {
    /// Number of ranges that the round replaces.
    pub(super) fn len(&self) -> usize {
        self.rewrites.len()
    }

    /// Flush `sync-log` (rule `log-before-pages`), `write-long-values`, `agree`, `write-pages`. `flush` is the
    /// number of this flush.
    pub(super) fn write(
        &mut self,
        db: &NamespaceDb,
        queue: &mut Box<dyn Queue>,
        folder: &mut Folder,
        flush: u64,
    ) -> Result<()> {
        self.flush = flush;
        if db.commits.sequencer.durable() < self.log_position {
            db.commits.sequencer.write_through(self.log_position, true)?;
        }
        assert!(db.commits.sequencer.durable() >= self.log_position, "the log is synced first");
        self.write_long_values(db, flush)?;
        // Three turns at most: the first finds known nodes that are wrong, which the second hashes from the cells;
        // pages wrong even then are quarantined, and the third does the rest.
        while !self.rewrites.is_empty() {
            let mut rewrites = std::mem::take(&mut self.rewrites);
            let result = self.write_pages(db, queue, folder, &mut rewrites);
            self.rewrites = rewrites;
            let bad = result?;
            if bad.is_empty() {
                break;
            }
            for index in bad.into_iter().rev() {
                self.distrust(db, index)?;
            }
        }
        Ok(())
    }

    /// After a contradiction with the index: discards a rewrite's known nodes, or else quarantines its pages.
    fn distrust(&mut self, db: &NamespaceDb, index: usize) -> Result<()> {
        let old = &mut self.rewrites[index].old;
        if old.iter().any(OldPage::has_known_nodes) {
            tracing::error!(prefix = ?old[0].prefix, "known nodes do not fold to the page's");
            for page in old {
                page.forget_nodes();
                // A finish must not fold with them either.
                page.number.iter().for_each(|number| db.store.cache.remove(*number));
            }
            return Ok(());
        }
        let rewrite = self.rewrites.remove(index);
        if rewrite.old.iter().all(|old| old.number.is_none()) {
            // The rewrite has no old page that could be wrong.
            return Err(TreeError::Fold { prefix: rewrite.range }.into());
        }
        for old in &rewrite.old {
            if let Some(number) = old.number {
                let page = LeafName { page: number, namespace: db.namespace, prefix: old.prefix };
                let error = TreeError::Fold { prefix: rewrite.range };
                db.store.quarantine_page(page, error, QuarantineReason::Contradicts);
                // No session gets the page either, see `Store::admit`.
                db.store.cache.remove(number);
            }
        }
        let written = rewrite.old.iter().flat_map(|old| &old.written);
        let runs: Vec<OverflowExtent> =
            written.flat_map(|(_, cell)| overflow_cell(cell).extents()).collect();
        self.tentative.retain(|run| !runs.contains(run));
        drop(db.space.resume_tentative(runs));
        Ok(())
    }

    /// Flush `write-long-values`: writes values too long for a page, and keeps the cells that name them.
    fn write_long_values(&mut self, db: &NamespaceDb, flush: u64) -> Result<()> {
        let mut written = db.space.tentative();
        for old in self.rewrites.iter_mut().flat_map(|rewrite| &mut rewrite.old) {
            for (index, buffered) in old.buffered.iter().enumerate() {
                if let Stored::Long(large) = &buffered.stored {
                    old.written.push((index, values::write(db, &mut written, large, flush)?));
                    self.overflow_written = true;
                }
            }
        }
        // From here on the runs belong to the round.
        assert!(self.tentative.is_empty(), "a round writes its long values once");
        self.tentative = written.into_extents();
        Ok(())
    }

    /// Builds and writes the pages; or writes nothing and returns the rewrites whose nodes contradict the index.
    fn write_pages(
        &mut self,
        db: &NamespaceDb,
        queue: &mut Box<dyn Queue>,
        folder: &mut Folder,
        rewrites: &mut [Rewrite],
    ) -> Result<Vec<usize>> {
        let alone = rewrites.iter_mut().filter(|rewrite| rewrite.old.len() == 1);
        make_nodes(folder, alone.flat_map(|rewrite| &mut rewrite.old));
        let merged = MergedPages::merge(rewrites);
        let folded = merged.fold(rewrites, folder);
        let bad = folded.contradicting(db.hasher, rewrites);
        if !bad.is_empty() {
            return Ok(bad);
        }
        // A prefix without keys gets a page without cells, which overrides any older page under it (rule
        // `deletion-covers`).
        let numbers = db.space.allocate_leaves(merged.pages())?;
        assert!(numbers.is_sorted_by(|a, b| a < b), "each page has a number of its own");
        self.reserved.clone_from(&numbers);
        let mut runs: Vec<PageBuf> =
            numbers.chunk_by(|a, b| a.is_before(*b)).map(|run| self.buffer(run.len())).collect();
        let flush = self.flush;
        let built = fill(&merged, &folded, rewrites, &numbers, &mut runs, |number, last_commit| {
            PageStamp {
                identity: db.store.leaf_identity(number),
                flush,
                namespace: db.namespace,
                last_commit,
            }
        });
        drop(folded);
        assert_eq!(built.iter().map(Vec::len).sum::<usize>(), numbers.len(), "one page a number");
        let replaced = merged.replaced_extents;
        for ((rewrite, new), replaced) in rewrites.iter_mut().zip(built).zip(replaced) {
            rewrite.new = new;
            rewrite.replaced_extents.extend(replaced);
        }
        self.runs = write_runs(db, queue, &numbers, runs)?;
        Ok(Vec::new())
    }

    /// A buffer of an earlier round, or a new one: fresh memory costs more than filling it.
    fn buffer(&mut self, pages: usize) -> PageBuf {
        let mut spare = self.spare.lock();
        let kept = spare.iter().position(|buf| buf.pages() == pages);
        kept.map_or_else(|| PageBuf::zeroed(pages), |at| spare.swap_remove(at))
    }

    /// Caches the new pages before anybody can look for them, and outside any lock.
    pub(super) fn cache_pages(&self, db: &NamespaceDb) {
        for page in self.rewrites.iter().flat_map(|rewrite| &rewrite.new).map(|new| &new.page) {
            let bytes = self.runs[page.run].page(page.at);
            db.store.cache.insert(page.number, page.tag, bytes, NO_BATCH);
        }
    }

    /// Ends a round that could not be written: frees its page numbers; its pages stay due while they are cached.
    pub(super) fn abandon(&mut self, db: &NamespaceDb) {
        db.space.free_unnamed_leaves(std::mem::take(&mut self.reserved));
        db.tree.make_due(self.rewrites.iter().map(|rewrite| rewrite.range));
        drop(self.take_tentative_runs(db));
        self.runs.clear();
        self.rewrites.clear();
    }

    /// The overflow runs that this round has written; dropping the result frees them.
    pub(super) fn take_tentative_runs<'a>(&mut self, db: &'a NamespaceDb) -> TentativeExtents<'a> {
        db.space.resume_tentative(std::mem::take(&mut self.tentative))
    }

    /// Ends a published round: its page numbers belong to the index, the old pages to nobody.
    pub(super) fn finish_published(&mut self, db: &NamespaceDb) {
        if self.tidies {
            Counters::add(&db.counters.pages_tidied, self.reserved.len() as u64);
        }
        let named: usize = self.rewrites.iter().map(|rewrite| rewrite.new.len()).sum();
        assert_eq!(named, self.reserved.len(), "each reserved page is named");
        self.reserved.clear();
        for rewrite in &self.rewrites {
            self.merged |= rewrite.old.len() > 1;
            let small = rewrite.new.iter().filter(|new| {
                let bytes = self.runs[new.page.run].page(new.page.at);
                LeafView::from_trusted(bytes).used()
                    <= leaf::capacity(STORED_LEVELS) * SMALL_PERCENT / 100
            });
            self.small.extend(small.map(|new| new.prefix));
        }
        self.keep_buffers(db);
        for mut rewrite in self.rewrites.drain(..) {
            // The last holder of a page frees its memory: that should be the cache.
            rewrite.old.iter_mut().for_each(|old| old.page = None);
            if let (true, Some(from)) = (rewrite.is_moved(), rewrite.old[0].number) {
                let page = &rewrite.new[0].page;
                db.store.cache.move_page(from, page.number, page.tag);
            }
            for number in rewrite.old.iter().filter_map(|old| old.number) {
                db.store.quarantine.forget(number);
                db.store.cache.remove(number);
            }
        }
    }

    /// Keeps the buffers for later rounds, as far as there is room.
    fn keep_buffers(&mut self, db: &NamespaceDb) {
        let mut spare = self.spare.lock();
        let kept: usize = spare.iter().map(PageBuf::pages).sum();
        let room = db.budget.round_pages().saturating_sub(kept);
        let mut pages = 0;
        spare.extend(self.runs.drain(..).take_while(|buf| {
            pages += buf.pages();
            pages <= room
        }));
        let bytes = spare.iter().map(PageBuf::pages).sum::<usize>() * PAGE;
        db.counters.flush_buffer_bytes.store(bytes as u64, Ordering::Relaxed);
    }
}

/// Flush `write-pages`: neighbouring page numbers are one write. Returns the buffers, in order.
fn write_runs(
    db: &NamespaceDb,
    queue: &mut Box<dyn Queue>,
    numbers: &[PageNo],
    runs: Vec<PageBuf>,
) -> Result<Vec<PageBuf>> {
    let count = runs.len();
    let mut written: Vec<Option<PageBuf>> = (0..count).map(|_| None).collect();
    let mut failed = None;
    let mut take = |completion: Completion| {
        failed = failed.take().or(completion.result.err());
        written[usize::try_from(completion.token).expect("an index")] = Some(completion.buf);
    };
    let starts = numbers.chunk_by(|a, b| a.is_before(*b)).map(|run| run[0]);
    assert_eq!(starts.clone().count(), count, "each run of page numbers has a buffer");
    for (index, (start, buf)) in starts.zip(runs).enumerate() {
        while queue.in_flight() == queue.depth() {
            queue.wait()?.into_iter().for_each(&mut take);
        }
        queue.push(Request {
            file: db.store.leaf_file.clone(),
            kind: RequestKind::Write,
            offset: start.offset(),
            buf,
            token: index as u64,
        });
    }
    while let Some(completion) = queue.wait()? {
        take(completion);
    }
    Counters::add(&db.counters.page_runs_written, count as u64);
    Counters::add(&db.counters.pages_written, numbers.len() as u64);
    // Without room the pages are abandoned: nothing names them yet.
    failed.map_or(Ok(()), |error| Err(full_or(NoRoom::LeafPages)(error)))?;
    Ok(written.into_iter().map(|buf| buf.expect("every run was written")).collect())
}
