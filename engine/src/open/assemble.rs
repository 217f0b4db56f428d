//! Assembles the state of an open database from a recovery, for a writer and for readers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pleach_beatree::Tree;
use pleach_beatree::cache::{Buffers, Cache};
use pleach_beatree::grace::Grace;
use pleach_beatree::pages::{InFlight, LongValues, PageCounters, PageSpace, SpaceParts, Store};
use pleach_io::{Disk, Executor, OpenMode, ProcessTag, TaskHandle};
use pleach_journal::format::names::{LEAF_FILE, OVERFLOW_FILE};
use pleach_journal::log::LogWriter;

use super::examine::Examination;
use crate::engine::Engine;
use crate::error::Result;
use crate::metrics::{Counters, Origin};
use crate::opening::Opening;
use crate::options::Options;
use crate::state::away::RegionLoader;
use crate::state::commits::Commits;
use crate::state::order::images::Images;
use crate::state::order::sequencer::Sequencer;
use crate::state::pace::Pace;
use crate::state::pace::budget::Budget;
use crate::state::replica::Replica;
use crate::state::tries::{Trie, Tries};
use crate::state::{Database, NamespaceDb, PanicGuard};
use crate::timings::Timings;

/// An open database.
pub(crate) struct OpenedEngine {
    pub(crate) engine: Arc<Engine>,
    /// The background tasks.
    pub(crate) tasks: Vec<TaskHandle>,
    /// The report of the open.
    pub(crate) opening: Opening,
}

/// The role of the process that opens.
pub(super) enum OpenRole {
    /// The only process that writes, with the folder's lock.
    Writer { lock: Box<dyn Send + Sync>, log_limit: u64, incarnation: u32 },
    /// A process that only reads, while another may write.
    Reader(Replica),
}

/// Assembles the state of an open database.
pub(super) fn assemble(
    device: Disk,
    runtime: Executor,
    options: Options,
    examined: Examination,
    writer: LogWriter,
    role: OpenRole,
) -> Result<Arc<NamespaceDb>> {
    let Examination { superblocks, recovered, space, .. } = examined;
    let newest = *superblocks.newest();
    let geometry = newest.page_space();
    let (mode, log_limit, incarnation) = match role {
        OpenRole::Writer { log_limit, incarnation, .. } => {
            (OpenMode::Write, log_limit, incarnation)
        }
        OpenRole::Reader(_) => (OpenMode::Read, newest.geometry.log_limit, 0),
    };
    let leaf = device.open(LEAF_FILE, mode)?;
    let overflow = device.open(OVERFLOW_FILE, mode)?;
    let counters = Arc::new(Counters {
        leaf_pages: AtomicU64::new(recovered.leaf_page_count),
        leaf_pages_with_nodes: AtomicU64::new(recovered.leaf_pages_with_nodes),
        pending_bytes: AtomicU64::new(recovered.buffered_bytes as u64),
        pending_entries: AtomicU64::new(recovered.buffered_entries as u64),
        origin: Arc::new(Origin { folder: device.info().folder.into(), ..Origin::default() }),
        ..Counters::default()
    });
    let index_bytes = recovered.tries.iter().map(|trie| trie.regions.bytes()).sum();
    let budget = Budget::new(&options, log_limit, index_bytes, Arc::clone(&counters));
    let pace = Pace::new(runtime.clone(), options.tuning.stall_after);
    let flush_at = options.tuning.flush_at;
    let store = Arc::new(Store {
        device: device.clone(),
        database: newest.database,
        leaf_file: leaf.clone(),
        cache: Cache::new(budget.leaf_cache_bytes()),
        buffers: Buffers::new(budget.buffer_bytes()),
        grace: Grace::new(),
        in_flight: InFlight::new(runtime.clone()),
        quarantine: recovered.quarantine,
        waiters: Arc::<Pace>::clone(&pace),
        counters: PageCounters::default(),
    });
    store.cache.set_batch(recovered.tip.number + 1);
    let tries = recovered.tries.into_iter().map(|found| {
        let tree = Tree::new(&store, found.regions, |changes| changes >= flush_at);
        Trie { dropped: found.dropped, ..Trie::new(found.namespace, found.kind, Arc::new(tree)) }
    });
    let tries = tries.collect();
    let clock = || {
        let runtime = runtime.clone();
        Box::new(move || runtime.now())
    };
    let timings = Timings::new(clock(), Arc::clone(&counters));
    let sequencer = Sequencer::new(writer, recovered.tip.clone());
    let (lock, replica): (Box<dyn Send + Sync>, _) = match role {
        OpenRole::Writer { lock, .. } => (lock, None),
        OpenRole::Reader(replica) => {
            sequencer.refuse_writes();
            (Box::new(()), Some(replica))
        }
    };
    if let (Some(file), OpenMode::Write) = (&recovered.history.undo.file, mode) {
        file.write_to(overflow.clone());
        file.forget_pages();
        // Runs of the history that the recovery has not found whole have no pages of their own.
        drop(file.take_unused());
    }
    let runs = recovered.history.disk.iter().flat_map(|run| &run.descriptor.pages);
    let shared = Database {
        hasher: recovered.hasher,
        commits: Commits::new(sequencer, recovered.tip, recovered.history.undo, clock()),
        space: PageSpace::new(SpaceParts {
            device,
            leaf,
            overflow,
            geometry,
            log_segment: newest.geometry.log_segment,
            leaf_map: space,
            overflow_map: recovered.extents,
            history: runs.map(|run| (run.start, run.pages)).collect(),
            image_leaf_end: recovered.image_leaf_end,
            retired_extents: recovered.history.retired_extents,
        }),
        credit: AtomicU64::new(0),
        long_values: LongValues::new(budget.long_value_bytes()),
        images: Images::new(superblocks, incarnation, recovered.history.disk),
        tries: Tries::new(tries),
        store,
        pace,
        budget,
        counters,
        timings,
        runtime,
        options,
        home: ProcessTag::current(),
        replica,
        _lock: lock,
    };
    let first = shared.tries.get(0).expect("every database has namespace 0");
    Ok(Arc::new(NamespaceDb::new(Arc::new(shared), first)))
}

/// Starts the task that loads the regions which the open has left in the image.
pub(super) fn start_loader(engine: &Engine) -> Result<TaskHandle> {
    let (db, mut loader) = (Arc::clone(&engine.db), RegionLoader::default());
    let step: pleach_io::Task = Box::new(move || {
        let _guard = PanicGuard(&db);
        loader.step(&db)
    });
    let event = &engine.db.pace.work;
    let started = engine.db.runtime.spawn("pleach-load", event, step);
    Ok(started.inspect_err(|_| engine.end_tasks(None))?)
}
