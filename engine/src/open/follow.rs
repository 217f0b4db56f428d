//! A read-only open of a database that another process may write (`docs/readers.md`), and how it follows that process's
//! log.
//!
//! It takes no lock and writes nothing. Image and log are read as in a recovery; then each new record is applied to the
//! same regions as in a recovery, and published.

use std::sync::Arc;
use std::time::Duration;

use pleach_beatree::{Region, Tree};
use pleach_core::{Hasher, Node, Prefix};
use pleach_io::{Disk, Executor, OpenMode};
use pleach_journal::format::image::ImageReader;
use pleach_journal::format::incarnation;
use pleach_journal::format::position::{LogPoint, LogPos};
use pleach_journal::format::record::RecordView;
use pleach_journal::format::superblock::Superblock;
use pleach_journal::format::superblock_store::SuperblockStore;
use pleach_journal::format::trie_kind::TrieKind;
use pleach_journal::log::{LogWriter, ScanInput, SegmentOptions, scan};

use super::assemble::{OpenRole, OpenedEngine, assemble, start_loader};
use super::examine::{self, Examination, clarify_error, examine};
use super::recovery::{LogEnd, Replay, read_runs, read_table};
use super::trie::{Growth, RecoveredTrie, TrieReplay};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::metrics::Counters;
use crate::options::{HistoryLimits, Options};
use crate::prefetch::requests::PrefetchState;
use crate::state::Database;
use crate::state::replica::{Replica, ReplicaSource};
use crate::state::tries::Trie;
use pleach_history::{DiskRun, RunDescriptor};

/// Attempts of an open.
const TRIES: u32 = 16;
/// Attempts of an open that fails though no checkpoint was made: files are renamed for a moment.
const MAX_UNCHANGED: u32 = 3;
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Opens a database for reading alone, in the state of the newest record of its log.
pub(crate) fn open_replica(
    device: Disk,
    runtime: Executor,
    options: Options,
) -> Result<OpenedEngine> {
    let limits = |found: &Superblock| options.history_limits(found.history);
    let examined = examine_beside(options.hasher, &device, limits, true)?;
    if options.require_history {
        examined.require_history()?;
    }
    let (opening, is_late) = (examined.opening.clone(), examined.recovered.is_late);
    let follower = Follower::new(&device, &examined);
    let size = examined.superblocks.newest().geometry.log_segment;
    let segments = SegmentOptions { size, spares: 0, cached: false };
    let writer = LogWriter::new_refusing(device.clone(), segments, examined.recovered.scan.end);
    let reader = OpenRole::Reader(Replica::new(Box::new(follower)));
    let state = assemble(device, runtime, options, examined, writer, reader)?;
    // Nothing is prefetched: the prefetch task would look pages up while readers wait for it.
    let prefetch = Arc::new(PrefetchState::new(&state.runtime, 0));
    let engine = Arc::new(Engine::new(state, prefetch));
    let tasks = if is_late { vec![start_loader(&engine)?] } else { Vec::new() };
    Ok(OpenedEngine { engine, tasks, opening })
}

/// Reads image and log while another process may write them; again, where it has overwritten what is read. `late` is
/// that of `examine`.
pub fn examine_beside(
    hasher: Option<Hasher>,
    device: &Disk,
    limits: impl Fn(&Superblock) -> HistoryLimits,
    late: bool,
) -> Result<Examination> {
    let mut unchanged = 0;
    for _ in 0..TRIES {
        let before = generation_and_incarnation(device);
        let examined = examine::inspect(device, false, false)
            .and_then(|_| examine::superblocks(device, OpenMode::Read))
            .and_then(|found| examine(hasher, device, found, &limits, None, LogEnd::Live, late));
        let after = generation_and_incarnation(device);
        // An image is overwritten during the second checkpoint after it, and its log later.
        let is_whole =
            matches!((before, after), (Some((before, _)), Some((after, _))) if after <= before + 1);
        match examined {
            // Pages of the history are overwritten after the first checkpoint already.
            Ok(examined) if is_whole && (before == after || examined.opening.lost.is_none()) => {
                return Ok(examined);
            }
            Err(error) if before == after && unchanged == MAX_UNCHANGED => {
                return Err(clarify_error(error));
            }
            Err(_) if before == after => unchanged += 1,
            _ => {}
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::Overtaken { tries: TRIES })
}

/// The generation of the newest superblock and the last incarnation, if they can be read: a writer that has made a
/// checkpoint, or was opened again, may have overwritten what was read.
fn generation_and_incarnation(device: &Disk) -> Option<(u64, u32)> {
    let newest = read_newest_superblock(device).ok()?;
    let incarnation = incarnation::read(device, newest.database).ok()?;
    Some((newest.generation, incarnation.number))
}

fn read_newest_superblock(device: &Disk) -> Result<Superblock> {
    Ok(*SuperblockStore::open(device.clone(), OpenMode::Read)?.newest())
}

/// Follows the log that another process writes.
struct Follower {
    device: Disk,
    input: ScanInput,
    replay: Replay,
    /// The generation whose runs of the history are in use.
    generation: u64,
    /// The number of the image that regions may still be in.
    image: u64,
    /// True when the log cannot be followed any more.
    ended: bool,
}

impl Follower {
    fn new(device: &Disk, examined: &Examination) -> Self {
        let newest = examined.superblocks.newest();
        let input = ScanInput {
            database: newest.database,
            segment_size: newest.geometry.log_segment,
            incarnation: 0,
            from: examined.recovered.scan.end,
            durable_through: LogPos::START,
            prepared_through: LogPos::START,
            clean: false,
            live: true,
        };
        let replay = Replay::continue_from(&examined.recovered, examined.limits);
        let (generation, image) = (newest.generation, newest.image.number);
        Self { device: device.clone(), input, replay, generation, image, ended: false }
    }

    /// Applies new records to the regions; returns their number.
    fn apply_new_records(&mut self) -> Result<u64> {
        let Self { input, replay, ended, .. } = self;
        let scanned = scan(&self.device, &input.clone(), |record: &RecordView<'_>| {
            // A record that does not follow comes after a bulk load, or after another commit of the same number: this
            // state has ended. If it is damage, the next open reports it.
            replay.apply_record(record).inspect_err(|error| {
                tracing::debug!(%error, "the log does not go on from this state");
                *ended = true;
            })?;
            input.from = LogPoint { position: record.header.end(), checksum: record.checksum };
            Ok::<(), Error>(())
        });
        Ok(scanned?.records)
    }

    /// Reads to the end of the log. Sets `ended` when the log begins behind that by now, or its file was removed.
    fn read_to_end(&mut self) -> Result<()> {
        let (mut nothing, mut failed) = (0, None);
        for _ in 0..TRIES {
            let read = self.apply_new_records();
            if self.ended {
                break;
            }
            let is_left_behind = self.is_left_behind()?;
            match read {
                Ok(_) if !is_left_behind => return Ok(()),
                // The superblock was read later than the log: the log is read once more.
                Ok(records) => nothing += u32::from(records == 0),
                Err(error) => {
                    nothing += 1;
                    failed = Some(error);
                }
            }
            if nothing == 2 {
                if let Some(error) = failed.filter(|_| !is_left_behind) {
                    return Err(error);
                }
                break;
            }
        }
        self.ended = true;
        Ok(())
    }

    /// True when the next records are not in the log any more, or never were, as after a bulk load, or when the log is
    /// another one.
    fn is_left_behind(&mut self) -> Result<bool> {
        let newest = read_newest_superblock(&self.device)?;
        let (position, tip) = (self.input.from.position, &self.replay.tip);
        let kept_from = newest.log_from.min(newest.replay.position);
        let is_other = newest.database != self.input.database
            || newest.commit == tip.number && newest.root != tip.roots.over_all(self.replay.hasher);
        Ok(kept_from > position
            || newest.durable_through > position
            || newest.commit > tip.number
            || is_other)
    }

    /// Reads the runs of the newest image: runs of earlier images may be overwritten.
    fn follow_history(&mut self, db: &Database) -> Result<()> {
        let newest = read_newest_superblock(&self.device)?;
        let Some(file) =
            db.commits.undo.file.as_ref().filter(|_| newest.generation != self.generation)
        else {
            return Ok(());
        };
        let read = || -> Result<(Vec<RunDescriptor>, u64)> {
            let mut image = ImageReader::open(&self.device, &newest.image, newest.database)?;
            let table = read_table(&mut image, &newest)?;
            let runs = read_runs(&mut image, &table)?;
            // As an open finds it: the limit in bytes may have moved the begin since the newest record stated it.
            let is_in_log = table.records_from < newest.replay.position;
            let of_log = if is_in_log { table.kept_from } else { newest.commit };
            let from = runs.first().map_or(of_log, |run| run.after).max(table.kept_from);
            Ok((runs, from))
        };
        // The image is overwritten by now: there will be a newer one next time.
        let Ok((runs, from)) = read() else { return Ok(()) };
        let run = |names| Arc::new(DiskRun::new(names, file));
        db.commits.undo.replace_disk_runs(runs.into_iter().map(run).collect(), from);
        // The pages belong to the writer.
        drop(file.take_unused());
        self.generation = newest.generation;
        Ok(())
    }

    /// Publishes the state after the applied records to readers.
    fn publish(&mut self, db: &Database) -> Result<()> {
        self.replay.history.settle_window();
        let tip = self.replay.tip.clone();
        for replay in &mut self.replay.tries {
            let root = publish_trie(db, replay, tip.number);
            let RecoveredTrie { namespace, dropped, .. } = replay.trie;
            let expected = tip.roots.get(namespace).filter(|_| dropped.is_none());
            if let (Some(found), Some(expected)) = (root, expected)
                && found != expected
            {
                let commit = tip.number;
                return Err(Contradiction::Root { commit, namespace, expected, found }.into());
            }
        }
        db.store.cache.set_batch(tip.number + 1);
        {
            let _state = db.commits.sequencer.lock();
            db.commits.publish(tip);
        }
        db.measure_index();
        Ok(())
    }
}

impl ReplicaSource for Follower {
    fn catch_up(&mut self, db: &Database) -> Result<bool> {
        let before = self.input.from;
        // The writer has made other images before all regions were here.
        self.ended |= db.store.quarantine.first_lost().is_some()
            && read_newest_superblock(&self.device)?.image.number != self.image;
        // Records that were read before an error are applied, and the rest comes with the next call.
        let read = if self.ended { Ok(()) } else { self.read_to_end() };
        if !self.ended && self.input.from != before {
            self.ended = self.publish(db).inspect_err(|error| tracing::error!(%error)).is_err();
        }
        if self.ended {
            let (commit, oldest) =
                (self.replay.tip.number, read_newest_superblock(&self.device)?.commit);
            return Err(Error::SnapshotTooOld { commit, oldest });
        }
        read?;
        self.follow_history(db)?;
        tracing::debug!(commit = self.replay.tip.number, "the log was followed");
        Ok(self.input.from != before)
    }
}

/// Publishes a trie; gives the root of a Merkle trie that has changed.
fn publish_trie(db: &Database, replay: &mut TrieReplay, commit: u64) -> Option<Node> {
    let (changed, growth) = replay.take_changes();
    let RecoveredTrie { namespace, kind, dropped, ref regions } = replay.trie;
    let Growth { is_new, is_relaid: relaid, pages, bytes, entries } = growth;
    let counters = &db.counters;
    db.count_leaf_pages(kind, pages);
    Counters::change(&counters.pending_bytes, bytes);
    Counters::change(&counters.pending_entries, entries);
    if is_new {
        // The number may have been that of another trie, which was dropped and reclaimed.
        if db.tries.get(namespace).is_some_and(|before| before.dropped.is_none()) {
            db.tries.set_dropped(namespace, Some(commit));
        }
        db.tries.remove(namespace);
        let tree = Arc::new(Tree::new(&db.store, regions.clone(), |_| false));
        db.tries.add(Trie { dropped, ..Trie::new(namespace, kind, tree) });
    }
    let published = db.tries.get(namespace)?;
    if dropped.is_some() != published.dropped.is_some() {
        db.tries.set_dropped(namespace, dropped);
    }
    if relaid && !is_new {
        let _structure = published.tree.hold_structure();
        published.tree.publish(regions.clone());
    }
    if kind == TrieKind::Plain || changed.is_empty() && !is_new && !relaid {
        return None;
    }
    let node = |region: &Arc<Region>| (*region.prefix(), *region.read().own_node());
    let nodes: Vec<(Prefix, Node)> = changed.iter().map(node).collect();
    published.tree.update_root(db.hasher, commit, &nodes);
    let regions = published.tree.load_full();
    let nodes = published.tree.root_nodes(db.hasher, &regions);
    nodes.tiling_over(&regions).map(|(tiling, _)| *tiling.own_node())
}
