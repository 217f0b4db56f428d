//! The state of an open database, in parts. Each part has private fields and its own methods; those below
//! know nothing of those above.
//!
//! | part | owns |
//! |---|---|
//! | [`pace`] | who waits for whom; what tasks are at ([`beats`], [`foreground`]) |
//! | [`index`] | regions: where pages lie, nodes, pending changes; pages due for a flush |
//! | [`store`] | leaf pages: reading ([`in_flight`], [`reader`]), cache, grace periods, [`quarantine`] |
//! | [`space`] | which pages of the leaf and overflow files are taken |
//! | [`nodes`] | regions' nodes beyond memory |
//! | [`commits`] | order ([`sequencer`]), tip, [`undo`], [`overlays`]; a [`view`] is what a session reads |
//! | [`images`] | superblocks, numbers of flushes and images |
//! | [`budget`] | shares of memory, when flushes and checkpoints are due |
//!
//! [`overflow`] reads and writes long values.
//!
//! # Order of locks
//!
//! Whoever holds one takes only those below it. Each but the first three is held for a moment.
//!
//! | rank | lock | held over I/O |
//! |---|---|---|
//! | 1 | nodes: gate | yes (read by a batch from finish to publication) |
//! | 2 | index: structure | no |
//! | 3 | sequencer: writer | yes (the log) |
//! | 4 | sequencer: state | no |
//! | 5 | commits: tip | no |
//! | 6 | nodes: moves | yes (the spill file) |
//! | 7 | a region; several by the flush alone, in key order | no |
//! | 8 | index: due; a cache shard; pins, then undo; space: pages, extents, then tentative; in flight; pace; quarantine | no |
//!
//! Whoever holds a region waits for no other region, not for the sequencer, and not for the device.

pub(crate) mod beats;
pub(crate) mod budget;
pub(crate) mod commits;
pub(crate) mod foreground;
pub(crate) mod images;
pub(crate) mod in_flight;
pub(crate) mod index;
pub(crate) mod nodes;
pub(crate) mod overflow;
pub(crate) mod overlays;
pub(crate) mod pace;
pub(crate) mod quarantine;
pub(crate) mod reader;
pub(crate) mod sequencer;
pub(crate) mod space;
pub(crate) mod store;
pub(crate) mod undo;
pub(crate) mod view;

use std::sync::Arc;

use pleach_io::{Device, Runtime};

use crate::error::Error;
use crate::metrics::{Counters, Metrics};
use crate::options::Options;
use budget::Budget;
use commits::Commits;
use images::Images;
use index::Index;
use nodes::NodeStore;
use pace::Pace;
use space::PageSpace;
use store::Store;

/// The parts of an open database.
pub(crate) struct State<D: Device, R: Runtime> {
    pub(crate) options: Options,
    pub(crate) runtime: R,
    pub(crate) counters: Arc<Counters>,
    pub(crate) budget: Budget,
    pub(crate) pace: Arc<Pace<R>>,
    pub(crate) index: Arc<Index>,
    pub(crate) store: Arc<Store<D, R>>,
    pub(crate) space: PageSpace<D>,
    pub(crate) nodes: NodeStore<D, R>,
    pub(crate) commits: Commits<D>,
    pub(crate) images: Images<D>,
    /// Keeps other processes out while any handle lives.
    pub(crate) _lock: Box<dyn Send + Sync>,
}

impl<D: Device, R: Runtime> State<D, R> {
    /// Bytes of log that a replay would read.
    pub(crate) fn log_length(&self) -> u64 {
        let end = self.commits.sequencer().lock().end();
        end.saturating_since(self.images.replay_start())
    }

    /// Are all leaf pages cached and all nodes in memory?
    pub(crate) fn all_is_here(&self) -> bool {
        !self.nodes.may_evict() && self.store.all_is_cached()
    }

    /// The leaf cache gets what the index leaves of its share, as large as that is by now.
    pub(crate) fn fit_cache(&self) {
        let index = self.index.load().bytes();
        self.store.cache().set_budget(self.budget.leaf_cache_bytes(index));
    }

    /// A failed write or sync: refuses all further writes.
    pub(crate) fn poison(&self, error: &Error) {
        self.commits.sequencer().poison(error);
        self.pace.tell();
    }

    /// Counters and levels.
    pub(crate) fn metrics(&self) -> Metrics {
        let (sequencer, counters) = (self.commits.sequencer(), &self.counters);
        counters.snapshot(|metrics| {
            metrics.sequencer_nanos = sequencer.held_nanos();
            metrics.log_bytes = sequencer.log_bytes();
            metrics.quarantined_pages = self.store.quarantine().len();
            metrics.stalled_tasks = self.pace.beats().stalled(self.pace.now());
        })
    }
}

/// Held over work that must not be left half done: a panic in it (in a user's hasher, in an
/// assertion) poisons the database, so that nobody waits for what will not come.
pub(crate) struct PoisonOnPanic<'a, D: Device, R: Runtime>(pub(crate) &'a State<D, R>);

impl<D: Device, R: Runtime> Drop for PoisonOnPanic<'_, D, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.commits.sequencer().poison_by_panic();
            self.0.pace.tell();
        }
    }
}
