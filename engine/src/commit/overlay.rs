//! Overlays: blocks that are kept in memory, and how a block or an overlay is committed with what is below.
//!
//! Made of blocks, owned by the caller. Invariants:
//! * a chain of overlays leads to one commit, its base, which stays pinned as long as the chain lives;
//! * an overlay is taken by one commit at most, its own or that of one above it, together with all overlays
//!   below it that none has taken.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_core::{Blake3, Hasher, Node, Prefix};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use super::changes::{Change, changes};
use super::{Target, commit, wait_for_publication};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Hex, Result};
use crate::finish::finish;
use crate::finish::outcome::ChunkOutcome;
use crate::handles::{Counted, Kind};
use crate::state::overlays::{Chain, Layer, TakenBy};
use crate::state::pins::Holder;
use crate::state::undo::{ChangeList, Changed};
use crate::state::view::View;

/// A finish's chunks until a commit uses them up; their memory goes back to the finisher.
pub(super) struct Chunks<H: Hasher, D: Device, R: Runtime> {
    engine: Arc<Engine<H, D, R>>,
    list: Vec<ChunkOutcome>,
}

impl<H: Hasher, D: Device, R: Runtime> Chunks<H, D, R> {
    pub(super) fn new(engine: &Arc<Engine<H, D, R>>, list: Vec<ChunkOutcome>) -> Self {
        Self { engine: Arc::clone(engine), list }
    }

    pub(super) fn list(&self) -> &[ChunkOutcome] {
        &self.list
    }

    pub(super) fn list_mut(&mut self) -> &mut Vec<ChunkOutcome> {
        &mut self.list
    }

    /// Lets go of what is not committed from here.
    fn give_back(&mut self) {
        self.engine.finisher.give_outcomes_back(std::mem::take(&mut self.list));
    }
}

impl<H: Hasher, D: Device, R: Runtime> Drop for Chunks<H, D, R> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A finished batch, and what it stands on.
pub(super) struct Parts<H: Hasher, D: Device, R: Runtime> {
    pub(super) chunks: Chunks<H, D, R>,
    pub(super) view: View,
    pub(super) parent: Option<Overlay<H, D, R>>,
    pub(super) prev_root: Node,
    pub(super) root: Node,
    pub(super) blob: Option<Vec<u8>>,
    pub(super) engine: Arc<Engine<H, D, R>>,
}

/// What an overlay's handles share.
struct OverlayInner<H: Hasher, D: Device, R: Runtime> {
    links: Mutex<Links<H, D, R>>,
    /// Held by whoever commits this overlay by itself. Empty once that was done.
    chunks: Mutex<Chunks<H, D, R>>,
    layer: Arc<Layer>,
    /// The overlays that its session read, and this one.
    chain: Chain,
    prev_root: Node,
    root: Node,
    blob: Option<Vec<u8>>,
    engine: Arc<Engine<H, D, R>>,
    /// The last field, so that it goes last.
    _counted: Counted,
}

/// What is below an overlay. A commit changes all of it at once.
struct Links<H: Hasher, D: Device, R: Runtime> {
    parent: Option<Overlay<H, D, R>>,
    /// The view that it was folded on; once committed, one that pins the state before.
    view: View,
}

/// A block that is kept in memory as a state to be read. Clones are the same overlay.
pub struct Overlay<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads>(
    Arc<OverlayInner<H, D, R>>,
);

impl<H: Hasher, D: Device, R: Runtime> Clone for Overlay<H, D, R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Overlay<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("prev_root", &Hex(self.0.prev_root.as_ref()))
            .field("root", &Hex(self.0.root.as_ref()))
            .field("changes", &self.change_count())
            .field("committed", &self.commit_number())
            .finish_non_exhaustive()
    }
}

impl<H: Hasher, D: Device, R: Runtime> Overlay<H, D, R> {
    pub(super) fn new(parts: Parts<H, D, R>, counted: Counted) -> Self {
        let Parts { chunks, view, parent, prev_root, root, blob, engine } = parts;
        let lists = chunks.list.iter().map(|chunk| Arc::clone(&chunk.changes)).collect();
        view.held_by(Holder::Overlay, None);
        let below = view.overlays();
        let layer = Layer::new(engine.state.commits.overlays(), below, lists, nodes(&chunks.list));
        Self(Arc::new(OverlayInner {
            chain: below.with(&layer),
            layer,
            links: Mutex::new(Links { parent, view }),
            chunks: Mutex::new(chunks),
            prev_root,
            root,
            blob,
            engine,
            _counted: counted.into_kind(Kind::Overlay),
        }))
    }

    /// Root of this state.
    pub fn root(&self) -> Node {
        self.0.root
    }

    /// Root of the state that it was made on.
    pub fn prev_root(&self) -> Node {
        self.0.prev_root
    }

    /// The overlay that it was made on; `None` when that was a commit, and once this overlay is
    /// committed by itself, because what is below it is let go then.
    pub fn parent(&self) -> Option<Self> {
        self.0.links.lock().parent.clone()
    }

    /// Is it committed, by itself or with one above it?
    pub fn is_committed(&self) -> bool {
        self.commit_number().is_some()
    }

    /// The number of the commit that it became part of, once there is one: its own, or that of the overlay
    /// or block above it that was committed with it. In the latter case the commit's state is that one's, and
    /// this overlay goes on to be read as it was.
    pub fn commit_number(&self) -> Option<u64> {
        let published = self.0.engine.state.commits.published();
        self.0.layer.taken().map(|taken| taken.commit).filter(|commit| *commit <= published)
    }

    /// Number of keys that it writes.
    pub fn change_count(&self) -> usize {
        self.0.layer.changes().iter().map(|list| list.len()).sum()
    }

    /// What it writes, in key order, with the values before.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_, H, D, R>> {
        changes(&self.0.engine.state, self.0.layer.changes().iter())
    }

    /// The overlays from this one down that no commit has taken, newest first; and the commit below them.
    fn untaken(&self) -> (Vec<Self>, u64) {
        let mut untaken = Vec::new();
        let mut at = self.clone();
        loop {
            let (parent, base) = {
                let links = at.0.links.lock();
                match at.0.layer.taken() {
                    Some(TakenBy { commit, own: true }) => return (untaken, commit),
                    Some(TakenBy { own: false, .. }) => return (untaken, links.view.base),
                    None => (links.parent.clone(), links.view.base),
                }
            };
            untaken.push(at);
            match parent {
                Some(parent) => at = parent,
                None => return (untaken, base),
            }
        }
    }

    /// Was it made through this open of the database?
    pub(crate) fn is_of(&self, engine: &Arc<Engine<H, D, R>>) -> bool {
        Arc::ptr_eq(&self.0.engine, engine)
    }

    /// A view of this overlay, and its root.
    pub(crate) fn view(&self) -> (View, Node) {
        let OverlayInner { links, chain, engine, root, .. } = &*self.0;
        let commits = &engine.state.commits;
        // Under this lock the base stays pinned: it is the view's, or a commit after it.
        let links = links.lock();
        let (commit, chain) = chain.above_commit(commits.published());
        (commits.view(commit.unwrap_or(links.view.base), chain), *root)
    }

    /// Commits this overlay together with the overlays below it that are not committed, merged, as one commit,
    /// and gives its number; the number of the commit that it became part of, if it was committed before.
    /// Overlays above it stay valid, siblings become stale.
    ///
    /// An overlay whose parent is the newest commit costs what [`Block::commit`](crate::Block::commit) costs:
    /// nothing is folded again. A parent that another thread is just committing counts as committed.
    ///
    /// # Errors
    /// As [`Block::commit`](crate::Block::commit); the overlay stays as it was.
    pub fn commit(&self) -> Result<u64> {
        let OverlayInner { links, chunks, layer, prev_root, root, blob, engine, .. } = &*self.0;
        let db = &engine.state;
        let mut chunks = chunks.lock();
        if let Some(taken) = layer.taken() {
            drop(chunks);
            wait_for_publication(db, taken.commit).map_err(|error| error.in_doubt())?;
            return Ok(taken.commit);
        }
        let (view, parent) = {
            let links = links.lock();
            (db.commits.view_like(&links.view), links.parent.clone())
        };
        let candidate = Candidate {
            engine,
            view: &view,
            parent: parent.as_ref(),
            prev_root,
            root,
            blob: blob.as_deref(),
            layer: Some(layer),
        };
        let (number, follows) = candidate.commit(&mut chunks.list)?;
        chunks.give_back();
        drop(chunks);
        // What was below it goes, so that a long pipeline of overlays does not pile up. The state before it
        // stays pinned, for its prior values: that keeps no more than they do.
        let pinned = db.commits.view(follows, Chain::default());
        pinned.held_by(Holder::Overlay, None);
        let mut links = links.lock();
        let before = (links.parent.take(), std::mem::replace(&mut links.view, pinned));
        drop(links);
        drop(before);
        Ok(number)
    }
}

/// Prefixes of the pages and of the regions that changed, with their nodes.
fn nodes(chunks: &[ChunkOutcome]) -> [Vec<(Prefix, Node)>; 2] {
    let pages = chunks.iter().flat_map(|chunk| &chunk.nodes).map(|page| (page.prefix, page.node));
    let regions = chunks.iter().flat_map(|chunk| &chunk.regions);
    let regions = regions.map(|region| (*region.region.prefix(), region.node));
    [pages.collect(), regions.collect()]
}

impl<H: Hasher, D: Device, R: Runtime> Drop for OverlayInner<H, D, R> {
    fn drop(&mut self) {
        // A long chain must not unwind by recursion.
        let mut parent = self.links.get_mut().parent.take();
        while let Some(overlay) = parent {
            parent = match Arc::try_unwrap(overlay.0) {
                Ok(mut inner) => inner.links.get_mut().parent.take(),
                Err(_) => None,
            };
        }
    }
}

/// A batch that is to be committed: a block's, or an overlay's.
pub(super) struct Candidate<'a, H: Hasher, D: Device, R: Runtime> {
    pub(super) engine: &'a Engine<H, D, R>,
    /// That it was folded on.
    pub(super) view: &'a View,
    pub(super) parent: Option<&'a Overlay<H, D, R>>,
    pub(super) prev_root: &'a Node,
    pub(super) root: &'a Node,
    pub(super) blob: Option<&'a [u8]>,
    /// Of the overlay.
    pub(super) layer: Option<&'a Layer>,
}

impl<H: Hasher, D: Device, R: Runtime> Candidate<'_, H, D, R> {
    /// Commits the batch, whose chunks these are, and what is below it and not committed. Gives the number
    /// and the commit whose state was pinned below it.
    pub(super) fn commit(&self, chunks: &mut Vec<ChunkOutcome>) -> Result<(u64, u64)> {
        let untaken = || self.parent.map_or_else(|| (Vec::new(), self.view.base), Overlay::untaken);
        let (mut below, mut base) = untaken();
        loop {
            let ticketed = Cell::new(false);
            let committed = match below.last() {
                None => self.commit_alone(base, chunks, &ticketed),
                Some(lowest) => self.commit_merged(base, &below, lowest, chunks, &ticketed),
            };
            // Another thread may have committed this with one above it, whatever is said of it here.
            if committed.is_err()
                && !ticketed.get()
                && let Some(taken) = self.layer.and_then(Layer::taken)
            {
                wait_for_publication(&self.engine.state, taken.commit)
                    .map_err(|error| error.in_doubt())?;
                return Ok((taken.commit, self.view.base));
            }
            if !matches!(committed, Err(Error::StaleParent { .. })) {
                let kept = if below.is_empty() { base } else { self.view.base };
                return committed.map(|number| (number, kept));
            }
            // Or what is below it.
            let now = untaken();
            if now.0.len() >= below.len() {
                return committed.map(|number| (number, base));
            }
            (below, base) = now;
        }
    }

    /// All below it is committed or about to be: what its finish has folded is what is published.
    fn commit_alone(
        &self,
        follows: u64,
        chunks: &mut Vec<ChunkOutcome>,
        ticketed: &Cell<bool>,
    ) -> Result<u64> {
        let Self { engine, view, prev_root, root, blob, layer, .. } = *self;
        let layers: Vec<(&Layer, bool)> = layer.map(|layer| (layer, true)).into_iter().collect();
        let target = Target { view, follows, prev_root, root, layers: &layers, ticketed };
        commit(engine, &target, chunks, blob)
    }

    /// Commits it together with the overlays `below` it, newest first.
    fn commit_merged(
        &self,
        follows: u64,
        below: &[Overlay<H, D, R>],
        lowest: &Overlay<H, D, R>,
        chunks: &[ChunkOutcome],
        ticketed: &Cell<bool>,
    ) -> Result<u64> {
        let (engine, prev_root) = (self.engine, &lowest.0.prev_root);
        let view = &engine.state.commits.view_like(&lowest.0.links.lock().view);
        let mut layers: Vec<(&Layer, bool)> =
            self.layer.map(|layer| (layer, true)).into_iter().collect();
        layers.extend(below.iter().map(|overlay| (&*overlay.0.layer, false)));
        let (root, layers) = (self.root, &layers);
        let target = Target { view, follows, prev_root, root, layers, ticketed };
        // Before anything is folded for it.
        super::check_parent(&engine.state, &target)?;
        let lists: Vec<&[ChangeList]> = below.iter().map(|one| one.0.layer.changes()).collect();
        let accesses = merge(chunks.iter().map(|chunk| &chunk.changes), &lists);
        // One fold over the pages as they are now; its root must be the newest one's.
        let finished = finish(&engine.state, &engine.finisher, view, prev_root, &accesses, false)?;
        let mut folded = finished.chunks;
        let committed = if finished.root == *self.root {
            let blob = || below.iter().find_map(|overlay| overlay.0.blob.as_deref());
            commit(engine, &target, &mut folded, self.blob.or_else(blob))
        } else {
            let (expected, found) = (*self.root, finished.root);
            Err(Contradiction::OverlayRoot { expected, found }.into())
        };
        engine.finisher.give_outcomes_back(folded);
        committed
    }
}

/// Changes over those of a chain (newest overlay first): the newest value of each key, as accesses.
fn merge<'a>(
    newest: impl Iterator<Item = &'a ChangeList>,
    below: &[&'a [ChangeList]],
) -> Vec<KeyAccess> {
    let each = |age: usize| move |changed: &'a Changed| (age, changed);
    let mut all: Vec<(usize, &Changed)> =
        newest.flat_map(|list| list.iter()).map(each(0)).collect();
    for (age, lists) in (1..).zip(below) {
        all.extend(lists.iter().flat_map(|list| list.iter()).map(each(age)));
    }
    all.sort_unstable_by(|a, b| a.1.key.cmp(&b.1.key).then(a.0.cmp(&b.0)));
    all.dedup_by_key(|(_, changed)| changed.key);
    all.into_iter()
        .map(|(_, changed)| KeyAccess {
            key: changed.key,
            reads: false,
            writes: Some(changed.new.clone()),
        })
        .collect()
}
