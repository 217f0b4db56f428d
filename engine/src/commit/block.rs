//! Blocks and overlays: the result of a finish, to be committed, or kept as a state for further sessions.
//!
//! Made by a session's finish, owned by the caller. Invariants: a chain of overlays leads to one commit,
//! its base, which stays pinned as long as the chain lives; an overlay is committed at most once, together
//! with all uncommitted overlays below it.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_core::{Blake3, Hasher, Node, Prefix};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use super::{Target, commit};
use crate::engine::Engine;
use crate::error::{Contradiction, Error, Hex, Result};
use crate::finish::finish;
use crate::finish::outcome::{ChunkOutcome, Finished};
use crate::finish::witness::Witness;
use crate::format::commit_body::MAX_BLOB;
use crate::given_back::speaks_as_its_reason;
use crate::handles::{Counted, Kind};
use crate::state::overlays::OverlayId;
use crate::state::pins::Holder;
use crate::state::undo::Changed;
use crate::state::view::View;

/// What a session has made: a new root, and the changes that lead to it from the parent's. Nothing of it
/// is on disk.
pub struct Block<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    engine: Arc<Engine<H, D, R>>,
    view: View,
    parent: Option<Overlay<H, D, R>>,
    prev_root: Node,
    root: Node,
    chunks: Vec<ChunkOutcome>,
    witness: Option<Witness>,
    blob: Option<Vec<u8>>,
    /// The last field, so that it goes last.
    counted: Counted,
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Block<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("base", &self.view.base)
            .field("prev_root", &Hex(self.prev_root.as_ref()))
            .field("root", &Hex(self.root.as_ref()))
            .field("changes", &self.change_count())
            .finish_non_exhaustive()
    }
}

impl<H: Hasher, D: Device, R: Runtime> Block<H, D, R> {
    /// A block on a view whose root is `prev_root`, and on the overlay that the view is of.
    pub(crate) fn new(
        engine: Arc<Engine<H, D, R>>,
        (view, prev_root): (View, Node),
        parent: Option<Overlay<H, D, R>>,
        finished: Finished,
        counted: Counted,
    ) -> Self {
        let Finished { root, chunks, witness } = finished;
        view.held_by(Holder::Block, None);
        Self { engine, view, parent, prev_root, root, chunks, witness, blob: None, counted }
    }

    /// Root of the state that this block makes.
    pub fn root(&self) -> Node {
        self.root
    }

    /// Root of the state that it was made on.
    pub fn prev_root(&self) -> Node {
        self.prev_root
    }

    /// The witness, once: `None` when none was asked for, or when it was taken before. Its bytes
    /// are what `pleach_core::witness::verify` takes.
    pub fn take_witness(&mut self) -> Option<Witness> {
        self.witness.take()
    }

    /// Number of keys that this block writes.
    pub fn change_count(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.changes.len()).sum()
    }

    /// Gives the commit a blob, bytes that mean something to the application alone; without one it has
    /// its parent's.
    ///
    /// # Errors
    /// [`Error::BlobTooLarge`].
    pub fn set_blob(&mut self, blob: Vec<u8>) -> Result<()> {
        let limit = MAX_BLOB as usize;
        if blob.len() > limit {
            return Err(Error::BlobTooLarge { bytes: blob.len(), limit });
        }
        self.blob = Some(blob);
        Ok(())
    }

    /// Commits the block, merged with the overlays below it that are not committed, and gives the
    /// commit's number. Durable when it returns, if the database's durability says so.
    ///
    /// # Errors
    /// [`Error::StaleParent`] when its parent is no longer the newest commit; [`Error::Full`] when
    /// the device has no room (nothing has happened, and the block can be tried again);
    /// [`Error::Poisoned`] after a failed write or sync; [`Error::Closed`] once the database was closed
    /// or dropped. The block comes back with each of them.
    pub fn commit(mut self) -> Result<u64, CommitError<H, D, R>> {
        let committed = if self.parent.is_some() {
            commit_on_overlays(&self)
        } else {
            let target = Target { view: &self.view, prev_root: &self.prev_root, root: &self.root };
            commit(&self.engine, &target, &mut self.chunks, self.blob.as_deref())
        };
        committed.map_err(|error| CommitError::new(self, error))
    }

    /// Keeps the block in memory, as a state that further sessions can read.
    pub fn into_overlay(self) -> Overlay<H, D, R> {
        Overlay::new(self)
    }

    /// Prefixes of the pages and regions that changed, with their nodes.
    fn nodes(&self) -> Vec<(Prefix, Node)> {
        let mut nodes: Vec<(Prefix, Node)> = Vec::new();
        for chunk in &self.chunks {
            nodes.extend(chunk.nodes.iter().map(|page| (page.prefix, page.node)));
            nodes.extend(chunk.regions.iter().map(|region| (*region.region.prefix(), region.node)));
        }
        nodes.sort_unstable_by_key(|(prefix, _)| *prefix);
        nodes.dedup_by_key(|(prefix, _)| *prefix);
        nodes
    }

    /// All changes in key order.
    fn changes(&self) -> Vec<Changed> {
        self.chunks.iter().flat_map(|chunk| chunk.changes.iter().cloned()).collect()
    }
}

/// What an overlay's handles share.
struct OverlayInner<H: Hasher, D: Device, R: Runtime> {
    engine: Arc<Engine<H, D, R>>,
    links: Mutex<Links<H, D, R>>,
    id: OverlayId,
    prev_root: Node,
    root: Node,
    changes: Vec<Changed>,
    nodes: Vec<(Prefix, Node)>,
    blob: Option<Vec<u8>>,
    /// The last field, so that it goes last.
    _counted: Counted,
}

/// What is below an overlay. A commit changes all of it at once.
struct Links<H: Hasher, D: Device, R: Runtime> {
    parent: Option<Overlay<H, D, R>>,
    /// Pins the commit that the chain leads to, or, once committed, its own.
    view: View,
    /// The commit whose state is this overlay's, too.
    committed: Option<u64>,
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
            .field("changes", &self.0.changes.len())
            .field("committed", &self.commit_number())
            .finish_non_exhaustive()
    }
}

impl<H: Hasher, D: Device, R: Runtime> Overlay<H, D, R> {
    pub(crate) fn new(mut block: Block<H, D, R>) -> Self {
        let nodes = block.nodes();
        let changes = block.changes();
        let id = block.engine.state.commits.overlays().insert(&changes, &nodes);
        block.view.held_by(Holder::Overlay, None);
        let links = Links { parent: block.parent.take(), view: block.view, committed: None };
        Self(Arc::new(OverlayInner {
            links: Mutex::new(links),
            id,
            prev_root: block.prev_root,
            root: block.root,
            changes,
            nodes,
            blob: block.blob,
            engine: block.engine,
            _counted: block.counted.into_kind(Kind::Overlay),
        }))
    }

    /// Root of this state.
    pub fn root(&self) -> Node {
        self.0.root
    }

    /// The number of its commit, once it was committed. An overlay that was merged into a later one's
    /// commit has none.
    pub fn commit_number(&self) -> Option<u64> {
        self.0.links.lock().committed
    }

    /// The uncommitted overlays from this one down, and the commit below them.
    fn chain(&self) -> (Vec<Self>, u64) {
        let mut chain = Vec::new();
        let mut at = self.clone();
        loop {
            let (parent, base) = {
                let links = at.0.links.lock();
                if let Some(number) = links.committed {
                    return (chain, number);
                }
                (links.parent.clone(), links.view.base)
            };
            chain.push(at);
            match parent {
                Some(parent) => at = parent,
                None => return (chain, base),
            }
        }
    }

    /// Was it made through this open of the database?
    pub(crate) fn is_of(&self, engine: &Arc<Engine<H, D, R>>) -> bool {
        Arc::ptr_eq(&self.0.engine, engine)
    }

    /// A view of this overlay, and its root.
    pub(crate) fn view(&self) -> (View, Node) {
        let (chain, base) = self.chain();
        let ancestry = Arc::new(chain.iter().map(|overlay| overlay.0.id).collect::<HashSet<_>>());
        // The base is pinned already: by the chain's lowest overlay, or it is a commit that this
        // overlay is part of, whose successors' undo the lowest overlay's older pin keeps.
        (self.0.engine.state.commits.view(base, ancestry), self.0.root)
    }

    /// Commits this overlay together with its uncommitted ancestors, merged, as one commit, and gives its
    /// number; the number of its commit, if it was committed before. Overlays above it stay valid,
    /// siblings become stale.
    ///
    /// # Errors
    /// As [`Block::commit`]; the overlay stays as it was.
    pub fn commit(&self) -> Result<u64> {
        let (chain, base) = self.chain();
        let Some(lowest) = chain.last() else { return Ok(base) };
        let merge = Merge {
            chain: &chain,
            base,
            prev_root: &lowest.0.prev_root,
            root: &self.0.root,
            blob: None,
        };
        let engine = &self.0.engine;
        let number = merge.commit(engine, std::iter::empty())?;
        // The commit's state is that of this overlay only: its ancestors keep theirs, and are stale.
        let view = engine.state.commits.view(number, Arc::default());
        view.held_by(Holder::Overlay, None);
        let mut links = self.0.links.lock();
        links.committed = Some(number);
        // What was below it goes, so that a long pipeline of overlays does not pile up.
        let before = (links.parent.take(), std::mem::replace(&mut links.view, view));
        drop(links);
        drop(before);
        Ok(number)
    }
}

/// Commits a block on an overlay together with its uncommitted ancestors, merged.
fn commit_on_overlays<H: Hasher, D: Device, R: Runtime>(block: &Block<H, D, R>) -> Result<u64> {
    let (chain, base) =
        block.parent.as_ref().map_or_else(|| (Vec::new(), block.view.base), Overlay::chain);
    let merge = Merge {
        chain: &chain,
        base,
        prev_root: chain.last().map_or(&block.prev_root, |lowest| &lowest.0.prev_root),
        root: &block.root,
        blob: block.blob.as_deref(),
    };
    merge.commit(&block.engine, block.chunks.iter().flat_map(|chunk| &chunk.changes))
}

/// A chain of overlays that becomes one commit.
struct Merge<'a, H: Hasher, D: Device, R: Runtime> {
    /// Newest first.
    chain: &'a [Overlay<H, D, R>],
    /// The commit below it, which is pinned by its lowest overlay or by the block above.
    base: u64,
    prev_root: &'a Node,
    root: &'a Node,
    /// Of the block above the chain.
    blob: Option<&'a [u8]>,
}

impl<H: Hasher, D: Device, R: Runtime> Merge<'_, H, D, R> {
    /// Commits the chain and these changes over it.
    fn commit<'a>(
        &self,
        engine: &Engine<H, D, R>,
        newest: impl Iterator<Item = &'a Changed>,
    ) -> Result<u64> {
        let (db, base) = (&engine.state, self.base);
        let tip = db.commits.published();
        if tip != base {
            return Err(Error::StaleParent { base, tip });
        }
        let accesses: Vec<KeyAccess> = merged(newest, self.chain);
        let view = db.commits.view(base, Arc::default());
        // One fold over the pages as they are now; its root must be the overlay's.
        let mut finished = finish(db, &engine.finisher, &view, self.prev_root, &accesses, false)?;
        if finished.root != *self.root {
            let (expected, found) = (*self.root, finished.root);
            return Err(Contradiction::OverlayRoot { expected, found }.into());
        }
        let below = || self.chain.iter().find_map(|overlay| overlay.0.blob.as_deref());
        let target = Target { view: &view, prev_root: self.prev_root, root: self.root };
        commit(engine, &target, &mut finished.chunks, self.blob.or_else(below))
    }
}

/// Changes over those of a chain (newest overlay first): the newest value of each key, as accesses.
fn merged<'a, H: Hasher, D: Device, R: Runtime>(
    newest: impl Iterator<Item = &'a Changed>,
    chain: &[Overlay<H, D, R>],
) -> Vec<KeyAccess> {
    let mut all: Vec<(usize, &Changed)> = newest.map(|changed| (0, changed)).collect();
    for (age, overlay) in (1..).zip(chain) {
        all.extend(overlay.0.changes.iter().map(|changed| (age, changed)));
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

impl<H: Hasher, D: Device, R: Runtime> Drop for OverlayInner<H, D, R> {
    fn drop(&mut self) {
        self.engine.state.commits.overlays().remove(self.id, &self.changes, &self.nodes);
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

/// A commit that failed: why, and the block, as it was before.
///
/// After [`Error::Full`] nothing has happened, and the block can be committed when there is room. A
/// block that is stale, or whose database is closed or poisoned, comes back too: its root and its
/// witness may still be of use.
pub struct CommitError<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads>(
    Box<(Block<H, D, R>, Error)>,
);

impl<H: Hasher, D: Device, R: Runtime> CommitError<H, D, R> {
    pub(crate) fn new(block: Block<H, D, R>, error: Error) -> Self {
        Self(Box::new((block, error)))
    }

    /// Why it is not committed.
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// The block.
    pub fn block(&self) -> &Block<H, D, R> {
        &self.0.0
    }

    /// The reason alone.
    pub fn into_error(self) -> Error {
        self.0.1
    }

    /// The block alone.
    pub fn into_block(self) -> Block<H, D, R> {
        self.0.0
    }

    /// Block and reason.
    pub fn into_parts(self) -> (Block<H, D, R>, Error) {
        *self.0
    }
}

speaks_as_its_reason!(CommitError, "block", block);
