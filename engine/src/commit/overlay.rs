//! Overlays: blocks that are kept in memory, and how a block or an overlay is committed with what is below.
//!
//! Made of blocks, owned by the caller. Invariants:
//! * a chain of overlays leads to one commit, its base, which stays pinned as long as the chain lives;
//! * an overlay is taken by one commit at most, its own or that of one above it, together with all overlays
//!   below it that none has taken.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_beatree::recycled::Recycle;
use pleach_core::{Node, Prefix};
use pleach_journal::format::commit_body::EntryKind;
use pleach_journal::format::trie_kind::TrieKind;

use super::apply::advance_all;
use super::changes::{Change, changes};
use super::refold::access;
use super::ticket::check_parent;
use super::{CommitOptions, Target, commit, newer_view};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::finish::outcome::{ChunkOutcome, TrieOutcome};
use crate::finish::{UnderWay, finish};
use crate::handles::{Counted, Holder, Kind};
use crate::metrics::Counters;
use crate::roots::Roots;
use crate::state::commits::Tip;
use crate::state::history::undo::{ChangeList, Changed};
use crate::state::overlays::{Chain, Layer, Part, TakenBy};
use crate::state::view::View;

/// A finish's outcomes until a commit uses them up; their memory goes back to the finisher.
pub(super) struct Outcomes {
    engine: Arc<Engine>,
    /// By namespace, ascending.
    pub(super) list: Vec<TrieOutcome>,
    /// Bytes that were counted for them.
    bytes: usize,
}

impl Outcomes {
    pub(super) fn new(engine: &Arc<Engine>, list: Vec<TrieOutcome>) -> Self {
        let bytes = list.iter().flat_map(|one| &one.chunks).map(Recycle::bytes).sum();
        let mut outcomes = Self { engine: Arc::clone(engine), list, bytes: 0 };
        outcomes.count(bytes);
        outcomes
    }

    fn count(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let more = bytes.cast_signed() - before.cast_signed();
        let db = &self.engine.state;
        Counters::change(&db.counters.batch_bytes, more);
        if db.budget.has_moved(db.commits.overlays.bytes()) {
            db.fit_cache();
        }
    }

    /// They become an overlay's, which counts the changes.
    fn become_overlays(&mut self) {
        self.list.iter_mut().flat_map(|one| &mut one.chunks).for_each(ChunkOutcome::keep);
        self.count_own();
    }

    fn count_own(&mut self) {
        let chunks = self.list.iter().flat_map(|one| &one.chunks);
        self.count(chunks.map(ChunkOutcome::own_bytes).sum());
    }

    /// The treelets of the pages that they change follow them, and they keep what a commit needs.
    fn advance_treelets(&mut self, version: u64) {
        let learned = |chunk: &ChunkOutcome| !chunk.treelets.is_empty();
        if !self.list.iter().flat_map(|one| &one.chunks).any(learned) {
            return;
        }
        for TrieOutcome { namespace, chunks } in &mut self.list {
            // One that was dropped has no treelets that anybody will need.
            if let Ok(db) = self.engine.trie(*namespace) {
                advance_all(&db, version, chunks);
            }
            chunks.iter_mut().for_each(ChunkOutcome::forget_treelets);
        }
        self.count_own();
    }

    /// Lets go of what is not committed from here.
    fn give_back(&mut self) {
        give_back(&self.engine, std::mem::take(&mut self.list));
        self.count(0);
    }
}

fn give_back(engine: &Engine, outcomes: Vec<TrieOutcome>) {
    let chunks = outcomes.into_iter().flat_map(|outcome| outcome.chunks);
    engine.finisher.give_outcomes_back(chunks);
}

impl Drop for Outcomes {
    fn drop(&mut self) {
        if self.engine.state.home.is_here() {
            self.give_back();
        }
    }
}

/// A finished batch, and what it stands on.
pub(super) struct Parts {
    /// Goes first: with the outcomes the cache gets its share back, undo that this alone held included.
    pub(super) view: View,
    pub(super) outcomes: Outcomes,
    pub(super) parent: Option<Overlay>,
    /// The state that it was made on.
    pub(super) prev: Tip,
    pub(super) roots: Roots,
    pub(super) blob: Arc<[u8]>,
    /// As [`Target::layouts`].
    pub(super) layouts: u64,
    pub(super) engine: Arc<Engine>,
}

/// What an overlay's handles share.
struct OverlayInner {
    links: Mutex<Links>,
    /// The overlay that it was made on. A commit of this one lets go of it.
    parent: Weak<OverlayInner>,
    layer: Arc<Layer>,
    /// The overlays that its session read, and this one.
    chain: Chain,
    /// Held by whoever commits this overlay by itself. Empty once that was done. They go after what is above:
    /// with them the cache gets its share back.
    outcomes: Mutex<Outcomes>,
    prev: Tip,
    roots: Roots,
    blob: Arc<[u8]>,
    engine: Arc<Engine>,
    /// The last field, so that it goes last.
    _counted: Counted,
}

/// What is below an overlay. A commit changes all of it at once.
struct Links {
    parent: Option<Overlay>,
    /// The view that it was folded on; once committed, one that pins the state before.
    view: View,
}

/// A block that is kept in memory as a state to be read. Clones are the same overlay.
#[derive(Clone)]
pub struct Overlay(Arc<OverlayInner>);

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("prev_roots", &self.0.prev.roots)
            .field("roots", &self.0.roots)
            .field("changes", &self.change_count())
            .field("committed", &self.commit_number())
            .finish_non_exhaustive()
    }
}

impl Overlay {
    pub(super) fn new(parts: Parts, counted: Counted) -> Self {
        let Parts { mut outcomes, view, parent, prev, roots, blob, engine, .. } = parts;
        outcomes.become_overlays();
        let parts = outcomes.list.iter().map(|TrieOutcome { namespace, chunks }| {
            let changes = chunks.iter().map(|chunk| Arc::clone(&chunk.changes)).collect();
            Part::new(*namespace, changes, nodes(chunks))
        });
        view.held_by(Holder::Overlay, None);
        let below = view.overlays();
        let layer = Layer::new(&engine.state.commits.overlays, below, parts);
        let made_on = parent.as_ref().map_or_else(Weak::new, |parent| Arc::downgrade(&parent.0));
        Self(Arc::new(OverlayInner {
            chain: below.with(&layer),
            layer,
            links: Mutex::new(Links { parent, view }),
            parent: made_on,
            outcomes: Mutex::new(outcomes),
            prev,
            roots,
            blob,
            engine,
            _counted: counted.into_kind(Kind::Overlay),
        }))
    }

    /// Root of namespace 0 in this state.
    pub fn root(&self) -> Node {
        self.0.roots.first()
    }

    /// Root of namespace 0 in the state that it was made on.
    pub fn prev_root(&self) -> Node {
        self.0.prev.roots.first()
    }

    /// Roots of all namespaces of this state.
    pub fn roots(&self) -> &Roots {
        &self.0.roots
    }

    /// Roots of all namespaces of the state that it was made on.
    pub fn prev_roots(&self) -> &Roots {
        &self.0.prev.roots
    }

    /// The application's blob in the overlay's state.
    pub fn blob(&self) -> &[u8] {
        &self.0.blob
    }

    /// Are both the same overlay, rather than two with the same state?
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The overlay that it was made on, committed or not; `None` when that was a commit. Once this overlay is committed it keeps
    /// nothing below alive: then `None`, too, when nobody else has the parent.
    pub fn parent(&self) -> Option<Self> {
        self.0.parent.upgrade().map(Self)
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
        self.lists().map(|(_, list)| list.len()).sum()
    }

    /// Bytes of memory that it takes: its changes, what finds them, and what its commit needs. Undo that it holds is not
    /// counted, nor are overlays below: those that were not committed when it was made stay as long as it does. While another
    /// thread commits it, or finishes a batch over it, what its commit needs is not counted either.
    pub fn memory(&self) -> usize {
        let for_commit = self.0.outcomes.try_lock().map_or(0, |outcomes| outcomes.bytes);
        self.0.layer.bytes() + for_commit
    }

    /// What it writes, in the order of namespaces and keys, with the values before.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        changes(&self.0.engine.state, self.0.links.lock().view.base, self.lists())
    }

    fn lists(&self) -> impl Iterator<Item = (u8, &ChangeList)> {
        let parts = self.0.layer.parts.iter();
        parts.flat_map(|part| part.changes.iter().map(|list| (part.namespace, list)))
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

    /// A batch is about to be finished over it: the treelets of the pages that it changes follow it, once.
    pub(crate) fn advance_treelets(&self) {
        // A thread that holds them commits it, which has the same effect, or is doing this.
        if let Some(mut outcomes) = self.0.outcomes.try_lock() {
            outcomes.advance_treelets(self.0.layer.version());
        }
    }

    /// Was it made through this open of the database?
    pub(crate) fn is_of(&self, engine: &Arc<Engine>) -> bool {
        Arc::ptr_eq(&self.0.engine, engine)
    }

    /// A view of this overlay; its state, under the number of the commit below.
    pub(crate) fn view(&self) -> (View, Tip) {
        let OverlayInner { links, chain, engine, roots, blob, .. } = &*self.0;
        let commits = &engine.state.commits;
        // Under this lock the base stays pinned: it is the view's, or a commit after it.
        let links = links.lock();
        let (commit, chain) = chain.above_commit(commits.published());
        let number = commit.unwrap_or(links.view.base);
        let state = Tip { number, roots: roots.clone(), blob: Arc::clone(blob) };
        (commits.view(number, &chain), state)
    }

    /// Commits this overlay together with the overlays below it that are not committed, merged, as one commit,
    /// and gives its number; the number of the commit that it became part of, if it was committed before.
    /// Overlays above it stay valid, siblings become stale.
    ///
    /// An overlay whose parent is the newest commit costs what [`Block::commit`](crate::Block::commit) costs:
    /// nothing is folded again. A parent that another thread is just committing counts as committed.
    ///
    /// Blocks as [`Block::commit`](crate::Block::commit).
    ///
    /// # Errors
    /// As [`Block::commit`](crate::Block::commit); the overlay stays as it was.
    pub fn commit(&self) -> Result<u64> {
        self.commit_with(CommitOptions::new())
    }

    /// [`Self::commit`] with options: directly behind the parent alone, or without waiting.
    ///
    /// # Errors
    /// As [`Block::commit_with`](crate::Block::commit_with); the overlay stays as it was.
    pub fn commit_with(&self, options: CommitOptions) -> Result<u64> {
        let OverlayInner { links, outcomes, layer, prev, roots, blob, engine, .. } = &*self.0;
        let db = &engine.state;
        db.home.check()?;
        let held = if options.at_once { outcomes.try_lock() } else { Some(outcomes.lock()) };
        let mut outcomes = held.ok_or(Error::WouldWait)?;
        if let Some(taken) = layer.taken() {
            drop(outcomes);
            options.wait_for(db, taken.commit)?;
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
            prev,
            roots,
            blob,
            layer: Some(layer),
            options,
            layouts: None,
        };
        let (number, follows) = candidate.commit(&mut outcomes.list)?;
        outcomes.give_back();
        drop(outcomes);
        // What was below it goes, so that a long pipeline of overlays does not pile up. The state before it
        // stays pinned, for its prior values, as long as that can be read.
        let pinned = db.commits.view(follows, &Chain::default());
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

impl Drop for OverlayInner {
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
pub(super) struct Candidate<'a> {
    pub(super) engine: &'a Engine,
    /// That it was folded on.
    pub(super) view: &'a View,
    pub(super) parent: Option<&'a Overlay>,
    pub(super) prev: &'a Tip,
    pub(super) roots: &'a Roots,
    pub(super) blob: &'a Arc<[u8]>,
    /// Of the overlay.
    pub(super) layer: Option<&'a Layer>,
    pub(super) options: CommitOptions,
    /// As [`Target::layouts`].
    pub(super) layouts: Option<u64>,
}

impl Candidate<'_> {
    /// Commits the batch, whose outcomes these are, and what is below it and not committed. Gives the number
    /// and the commit whose state was pinned below it.
    pub(super) fn commit(&self, outcomes: &mut [TrieOutcome]) -> Result<(u64, u64)> {
        self.engine.state.home.check()?;
        let untaken = || self.parent.map_or_else(|| (Vec::new(), self.view.base), Overlay::untaken);
        let (mut below, mut base) = untaken();
        if self.options.exact && !below.is_empty() {
            return Err(Error::ParentNotCommitted);
        }
        loop {
            let ticketed = Cell::new(false);
            let committed = self.commit_over(base, &below, outcomes, &ticketed);
            // Another thread may have committed this with one above it, whatever is said of it here.
            if committed.is_err()
                && !ticketed.get()
                && let Some(taken) = self.layer.and_then(Layer::taken)
            {
                self.options.wait_for(&self.engine.state, taken.commit)?;
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

    /// Commits it together with the overlays `below` it, newest first.
    fn commit_over(
        &self,
        follows: u64,
        below: &[Overlay],
        outcomes: &mut [TrieOutcome],
        ticketed: &Cell<bool>,
    ) -> Result<u64> {
        let Self { engine, view, prev, roots, blob, layer, options, layouts, .. } = *self;
        let own = layer.map(|layer| (layer, true));
        let others = below.iter().map(|overlay| (&*overlay.0.layer, false));
        let layers: Vec<(&Layer, bool)> = own.into_iter().chain(others).collect();
        let (layers, fates) = (&layers, &[]);
        let target =
            Target { view, follows, options, prev, roots, blob, fates, layers, layouts, ticketed };
        let Some(lowest) = below.last() else {
            // All below it is committed or about to be: what its finish has folded is what is published.
            return commit(engine, &target, outcomes);
        };
        let view = &engine.state.commits.view_like(&lowest.0.links.lock().view);
        let target = Target { view, prev: &lowest.0.prev, layouts: None, ..target };
        // Before anything is folded for it.
        let parent = check_parent(&engine.state, &target)?;
        let newer = newer_view(&engine.state, &target, parent)?;
        let target = match &newer {
            Some(view) => Target { view, follows: parent, ..target },
            None => target,
        };
        let mut folded = Vec::new();
        let committed = self.fold_merged(&target, below, outcomes, &mut folded).and_then(|fates| {
            let target = Target { fates: &fates, ..target };
            commit(engine, &target, &mut folded)
        });
        give_back(engine, folded);
        committed
    }

    /// Folds what they change together: one fold for each namespace, over its pages as they are now. Its root
    /// must be the newest one's. The digest of a plain namespace is that of its changes block by block: gives those
    /// where that is another one.
    fn fold_merged(
        &self,
        target: &Target<'_>,
        below: &[Overlay],
        outcomes: &[TrieOutcome],
        folded: &mut Vec<TrieOutcome>,
    ) -> Result<Vec<(u8, EntryKind)>> {
        let of_below = below.iter().flat_map(|one| &one.0.layer.parts).map(|part| part.namespace);
        let own = outcomes.iter().map(|outcome| outcome.namespace);
        let namespaces: BTreeSet<u8> = own.chain(of_below).collect();
        let of_chunks = outcomes.iter().flat_map(|one| &one.chunks).map(|one| one.changes.len());
        let changes = below.iter().map(Overlay::change_count).chain(of_chunks).sum();
        let under_way = UnderWay::new(&self.engine.state, changes);
        let mut fates = Vec::new();
        for namespace in namespaces {
            let newest = outcomes.iter().filter(|outcome| outcome.namespace == namespace);
            let newest = newest.flat_map(|outcome| &outcome.chunks).map(|chunk| &chunk.changes);
            let below: Vec<&[ChangeList]> =
                below.iter().map(|one| one.0.layer.changes(namespace)).collect();
            let accesses = merge(newest, &below);
            let roots = [&target.prev.roots, target.roots].map(|roots| roots.of(namespace));
            let [Some(before), Some(expected)] = roots else {
                return Err(Error::Namespace(namespace));
            };
            let (db, view) = (self.engine.trie(namespace)?, target.view.of(namespace));
            let finisher = &self.engine.finisher;
            let finished = db.read(view.base, || {
                finish(&db, finisher, &under_way, (&view, &before.node), &accesses, false)
            })?;
            folded.push(TrieOutcome { namespace, chunks: finished.chunks });
            let (expected, found) = (expected.node, finished.root);
            if found != expected && db.kind == TrieKind::Merkle {
                return Err(Contradiction::OverlayRoot { expected, found }.into());
            }
            if found != expected {
                fates.push((namespace, EntryKind::Set));
            }
        }
        Ok(fates)
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
    all.into_iter().map(|(_, changed)| access(changed)).collect()
}

#[cfg(test)]
mod tests {
    use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

    use super::*;
    use crate::{Access, Db, Geometry, Options, SessionOptions, Value};

    /// An overlay is being committed when another thread commits it with one above it, and a rollback brings its parent's
    /// state back. It was committed a second time.
    #[test]
    fn an_overlay_is_committed_once_whatever_state_comes_back() {
        let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        let options = Options::new("sim").create(true).geometry(Geometry::least()).history(5);
        let db = Db::open_on(disk, runtime, options).expect("created");
        let put = |options, key| {
            let access = Access::write([key; 32], Some(Value::from([key].as_slice())));
            let session = db.session(options).expect("a session");
            session.finish(vec![access]).expect("finished").into_overlay()
        };
        let below = put(SessionOptions::new(), 1);
        let above = put(SessionOptions::new().over(&below), 2);
        assert_eq!(above.commit().expect("committed"), 1);
        assert_eq!(db.rollback(1).expect("rolled back"), 2);
        let OverlayInner { layer, prev, roots, blob, engine, .. } = &*below.0;
        let candidate = Candidate {
            engine,
            view: &engine.state.commits.view_like(&below.0.links.lock().view),
            parent: None,
            prev,
            roots,
            blob,
            layer: Some(layer),
            options: CommitOptions::new(),
            layouts: None,
        };
        let (number, _) = candidate.commit(&mut below.0.outcomes.lock().list).expect("committed");
        assert_eq!((number, db.commit_number()), (1, 2));
    }
}
