//! The commit protocol; `docs/commit-and-recovery.md` has the rules and why.
//!
//! 1. Wait while the delta or the log is full.
//! 2. Check that no flush has cut finer below what the block touched; refold where one has.
//! 3. Encode the record and make room for it in the log. A full disk shows here.
//! 4. *Ticket*, under the sequencer's lock: the parent is the newest ticketed commit, the cuts
//!    are still those of step 2, and the record gets its position.
//! 5. Write, and sync as the mode says.
//! 6. Publish, in ticket order: undo, then pending changes and nodes region by region, then the
//!    number.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use pleach_beatree::Stored;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::region::{Applied, Pending};
use pleach_beatree::stored::LargeValue;
use pleach_beatree::treelet::Treelet;
use pleach_core::{Hasher, Node};
use pleach_io::{Device, Event, Runtime};

use crate::error::{Error, Result};
use crate::finish::{ChunkOutcome, PAGES_AHEAD, PageNode, refold};
use crate::log::{
    ChangeSection, LogValue, MAX_RECORD, NamespacePart, NodeSection, RecordBuf, commit_record,
};
use crate::metrics::Counters;
use crate::options::Durability;
use crate::overflow::{self, Tentative};
use crate::sequencer::State;
use crate::shared::{PoisonOnPanic, Shared, Tip};
use crate::undo::Changes;
use crate::view::View;

/// Tries to get a ticket with current cuts before structural flushes are held off.
const TRIES: u32 = 3;

/// What a commit leads from and to.
pub(crate) struct Target<'a> {
    /// The commit that the changes were folded on, pinned, without overlays.
    pub(crate) view: &'a View,
    pub(crate) prev_root: &'a Node,
    pub(crate) root: &'a Node,
}

/// Commits the changes in these chunks. They are used up when it succeeds, and as good as before
/// when it fails.
pub(crate) fn commit<H: Hasher, D: Device, R: Runtime>(
    shared: &Arc<Shared<H, D, R>>,
    target: &Target<'_>,
    chunks: &mut Vec<ChunkOutcome>,
    blob: Option<&[u8]>,
) -> Result<u64> {
    debug_assert!(target.view.is_committed(), "overlays are merged before");
    let mut taken = Vec::new();
    let committed = attempt(shared, target, chunks, &mut taken, blob);
    if committed.is_err() {
        // Their cells name runs that are free again unless a record was queued; a second commit
        // would lead there.
        for Taken { chunk, change, value } in taken {
            chunks[chunk].changes[change].new = Stored::Large(value);
        }
    }
    committed
}

/// A long value that a cell has taken the place of.
struct Taken {
    chunk: usize,
    change: usize,
    value: Arc<LargeValue>,
}

fn attempt<H: Hasher, D: Device, R: Runtime>(
    shared: &Arc<Shared<H, D, R>>,
    target: &Target<'_>,
    chunks: &mut Vec<ChunkOutcome>,
    taken: &mut Vec<Taken>,
    blob: Option<&[u8]>,
) -> Result<u64> {
    let Target { view, prev_root, root } = *target;
    let base = view.base;
    shared.throttle()?;
    // Before anything is written for it: a block that was given back may come again and again.
    check_parent(shared, &shared.sequencer.lock(), target)?;
    let spilled = spill_large(shared, chunks, taken)?;
    let blob: Arc<[u8]> = blob.map_or_else(|| Arc::clone(&shared.tip.lock().blob), Into::into);
    let number = base + 1;
    // From here to publication the nodes of the touched regions stay in memory.
    let _nodes = shared.keep_nodes();
    for outcome in chunks.iter().flat_map(|chunk| &chunk.regions) {
        shared.make_resident(outcome.region.prefix().first_key())?;
    }
    let mut tries = 0;
    // Between ticket and publication a panic would leave everybody waiting.
    let _guard = PoisonOnPanic(&**shared);
    let end = loop {
        tries += 1;
        let hold = (tries > TRIES).then(|| shared.structure.lock());
        let shapes = {
            let state = shared.sequencer.lock();
            check_parent(shared, &state, target)?;
            state.shapes
        };
        renew(shared, view, chunks)?;
        let mut record = encode(shared.database, number, &blob, prev_root, root, chunks);
        let bytes = record.len();
        if bytes > MAX_RECORD {
            return Err(Error::BatchTooLarge { bytes, limit: MAX_RECORD });
        }
        if shared.options.durability == Durability::Commit {
            record.set_synced();
        }
        shared.sequencer.make_room(bytes)?;
        let mut state = shared.sequencer.lock();
        check_parent(shared, &state, target)?;
        if state.shapes != shapes || !state.has_room(bytes) {
            drop(state);
            drop(hold);
            continue;
        }
        let position = state.queue(record);
        spilled.named();
        state.ticketed = number;
        state.in_flight += 1;
        drop(state);
        break position + bytes;
    };
    let written =
        shared.sequencer.write_through(end, shared.options.durability == Durability::Commit);
    if let Err(error) = written {
        shared.poison(&error);
        return Err(error);
    }
    publish(shared, number, end, root, chunks, blob)?;
    Ok(number)
}

/// May a commit on this parent take the next ticket?
fn check_parent<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    state: &State,
    target: &Target<'_>,
) -> Result<()> {
    state.check_open()?;
    let base = target.view.base;
    if state.ticketed != base {
        return Err(Error::StaleParent { base, tip: state.ticketed });
    }
    // A number names one state only: a block on another state of that number is stale.
    let tip = shared.tip.lock();
    if tip.number == base && tip.root != *target.prev_root {
        return Err(Error::StaleParent { base, tip: base });
    }
    Ok(())
}

/// Refolds the chunks below which a flush has split or merged pages since they were folded: on the
/// state that they were folded on, so that they stay true when another commit comes first.
fn renew<H: Hasher, D: Device, R: Runtime>(
    shared: &Arc<Shared<H, D, R>>,
    view: &View,
    chunks: &mut [ChunkOutcome],
) -> Result<()> {
    for chunk in chunks {
        let stale = chunk.regions.iter().any(|outcome| {
            let state = outcome.region.read();
            state.is_retired() || state.layout_version() != outcome.shape
        });
        if !stale {
            continue;
        }
        Counters::add(&shared.counters.refolds, 1);
        let touches: Vec<KeyAccess> = chunk
            .changes
            .iter()
            .map(|changed| KeyAccess {
                key: changed.key,
                reads: false,
                writes: Some(changed.new.clone()),
            })
            .collect();
        let mut renewed = refold(shared, view, &touches)?;
        renewed.changes = std::mem::take(&mut chunk.changes);
        *chunk = renewed;
    }
    Ok(())
}

fn log_value(stored: &Stored) -> LogValue<'_> {
    match stored {
        Stored::Absent => LogValue::Absent,
        Stored::Inline(value) => LogValue::Inline(value),
        Stored::Large(large) => LogValue::Inline(&large.bytes),
        Stored::Overflow(cell) => LogValue::Overflow(cell),
    }
}

fn encode(
    database: u64,
    number: u64,
    blob: &[u8],
    prev_root: &Node,
    root: &Node,
    chunks: &[ChunkOutcome],
) -> RecordBuf {
    let mut changes = ChangeSection::default();
    let mut nodes = NodeSection::default();
    for chunk in chunks {
        for changed in &chunk.changes {
            changes.push(&changed.key, log_value(&changed.new));
        }
        for page in &chunk.nodes {
            nodes.push(&page.prefix, &page.node);
        }
    }
    let part = NamespacePart {
        ns: 0,
        previous_root: *prev_root,
        new_root: *root,
        changes: vec![changes],
        nodes: vec![nodes],
    };
    commit_record(database, number, blob, false, vec![part])
}

/// Makes a written commit visible. Fails only before it has taken anything.
fn publish<H: Hasher, D: Device, R: Runtime>(
    shared: &Arc<Shared<H, D, R>>,
    number: u64,
    position: u64,
    root: &Node,
    chunks: &mut Vec<ChunkOutcome>,
    blob: Arc<[u8]>,
) -> Result<()> {
    let turn = || shared.published.load(Ordering::Acquire) == number - 1;
    let mut poisoned = false;
    shared.runtime.wait(&shared.progress, None, &mut || {
        poisoned = shared.sequencer.lock().check().is_err();
        poisoned || turn()
    });
    if !turn() {
        // The parent failed after this record was queued behind it.
        shared.sequencer.lock().check()?;
    }
    let (mut chunks, mut unchanged): (Vec<_>, Vec<_>) =
        std::mem::take(chunks).into_iter().partition(|chunk| !chunk.changes.is_empty());
    unchanged.iter_mut().for_each(ChunkOutcome::clear);
    shared.workers.keep(unchanged.into_iter());
    let lists = chunks.iter_mut().map(|chunk| std::mem::take(&mut chunk.changes));
    let changes = Changes::new(lists.collect());
    shared.undo.push(number, changes.clone());
    apply_all(shared, number, position, chunks, &changes);
    Counters::add(&shared.counters.changes, changes.len() as u64);
    Counters::add(&shared.counters.commits, 1);
    {
        let mut state = shared.sequencer.lock();
        *shared.tip.lock() = Tip { number, root: *root, blob };
        shared.published.store(number, Ordering::Release);
        state.in_flight -= 1;
    }
    shared.undo.trim();
    shared.begin_batch(number + 1);
    shared.progress.notify();
    shared.work.notify();
    Ok(())
}

fn apply_all<H: Hasher, D: Device, R: Runtime>(
    shared: &Arc<Shared<H, D, R>>,
    number: u64,
    position: u64,
    chunks: Vec<ChunkOutcome>,
    changes: &Changes,
) {
    let workers = if changes.len() < 4096 { 1 } else { shared.runtime.workers() };
    let chunks: Vec<Mutex<ChunkOutcome>> = chunks.into_iter().map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let ripe = Mutex::new(Vec::new());
    let ripeness = shared.ripeness();
    let keep_inner = !shared.may_evict();
    let apply = |_: usize| {
        let mut scratch: Vec<Pending> = Vec::new();
        let mut own_ripe = Vec::new();
        let (mut bytes, mut entries) = (0, 0);
        let mut nodes = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = chunks.get(at) else { break };
            let mut chunk = chunk.lock();
            for outcome in &chunk.regions {
                let own = &changes.list(at)[outcome.changes.clone()];
                if own.is_empty() {
                    continue;
                }
                let pages = &chunk.nodes[outcome.nodes.clone()];
                nodes.clear();
                nodes.extend(pages.iter().map(|page| (page.child, page.node)));
                let mut states = own.iter().map(|changed| (changed.key, changed.new.clone()));
                let mut applied = Applied {
                    commit: number,
                    log_position: position,
                    changes: &mut states,
                    nodes: &nodes,
                    own: outcome.node,
                    inner: outcome
                        .before
                        .filter(|_| keep_inner)
                        .map(|before| (before, &chunk.inner[outcome.treelet.clone()])),
                };
                let mut state = outcome.region.write();
                let growth = state.apply(&mut applied, &mut scratch, |prefix, touches| {
                    if ripeness.is_ripe(&prefix, touches) {
                        own_ripe.push(prefix);
                    }
                });
                bytes += growth.bytes;
                entries += growth.entries;
                drop(state);
                advance_treelets(shared, number, pages, &chunk.treelets);
            }
            // Here, while its pages are near.
            chunk.clear();
        }
        Counters::change(&shared.counters.pending_bytes, bytes);
        Counters::change(&shared.counters.pending_entries, entries);
        ripe.lock().append(&mut own_ripe);
    };
    let _own_processors = (workers > 1).then(|| shared.foreground.publishing());
    if workers == 1 {
        apply(0);
    } else {
        shared.runtime.fork_join(workers, &apply);
    }
    shared.workers.keep(chunks.into_iter().map(Mutex::into_inner));
    let mut ripe = ripe.into_inner();
    ripe.sort_unstable();
    shared.ripe.lock().extend(ripe);
}

/// The treelets of changed pages follow.
fn advance_treelets<H: Hasher, D: Device, R: Runtime>(
    shared: &Shared<H, D, R>,
    number: u64,
    pages: &[PageNode],
    treelets: &[(u8, Node)],
) {
    let ahead = |at: usize| pages.get(at).and_then(|node| Some((node, &node.page.as_ref()?.1)));
    for (at, node) in pages.iter().enumerate() {
        if let Some((_, page)) = ahead(at + 2 * PAGES_AHEAD) {
            page.cpu_prefetch_head();
        }
        if let Some((node, page)) = ahead(at + PAGES_AHEAD) {
            page.cpu_prefetch_nodes(treelets[node.treelet.clone()].iter().map(|(index, _)| *index));
        }
        let Some((place, page)) = &node.page else { continue };
        let nodes = || treelets[node.treelet.clone()].iter().copied();
        let step = (node.before, number);
        if !page.advance_treelet(step, &node.node, nodes()) {
            shared.cache.give_treelet(*place, page, node.ripens, |treelet: &mut Treelet| {
                page.begin_treelet(treelet);
                treelet.advance(step.0, step.1, &node.node, nodes());
            });
        }
    }
}

/// Values beyond this are written and synced before the record that names them.
const LOG_VALUE: usize = 64 << 10;

/// Writes large values to the overflow file and names their runs instead.
fn spill_large<'a, H: Hasher, D: Device, R: Runtime>(
    shared: &'a Shared<H, D, R>,
    chunks: &mut [ChunkOutcome],
    taken: &mut Vec<Taken>,
) -> Result<Tentative<'a>> {
    let mut spilled = Tentative::new(&shared.extents, &shared.tentative);
    for (at, chunk) in chunks.iter_mut().enumerate() {
        for (change, changed) in chunk.changes.iter_mut().enumerate() {
            if let Stored::Large(large) = &changed.new
                && large.bytes.len() > LOG_VALUE
            {
                let cell = Stored::Overflow(overflow::write(shared, &mut spilled, large, 0)?);
                if let Stored::Large(value) = std::mem::replace(&mut changed.new, cell) {
                    taken.push(Taken { chunk: at, change, value });
                }
            }
        }
    }
    if !spilled.is_empty() {
        shared.device.sync(&shared.files.overflow).map_err(|error| {
            let error = Error::from(error);
            shared.poison(&error);
            error
        })?;
    }
    Ok(spilled)
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// A view of the newest published commit, and its root.
    pub(crate) fn tip_view(&self) -> (View, Node) {
        // Under the sequencer's lock, so that number, root and pin belong together.
        let state = self.sequencer.lock();
        let (base, root) = {
            let tip = self.tip.lock();
            (tip.number, tip.root)
        };
        self.undo.pin(base);
        drop(state);
        (
            View::pinned(base, Arc::default(), Arc::clone(&self.undo), Arc::clone(&self.overlays)),
            root,
        )
    }
}
