//! Overlays: uncommitted blocks as states to stand on.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use pleach_beatree::leaf_fold::KeyAccess;
use pleach_core::{Blake3, Hasher, Node, Prefix};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use crate::block::Block;
use crate::commit::{self, Target};
use crate::error::{Error, Hex, Result};
use crate::finish::finish;
use crate::handles::{Counted, Kind};
use crate::overlays::{Ancestry, OverlayId};
use crate::shared::Shared;
use crate::undo::Changed;
use crate::view::View;

pub(crate) struct OverlayInner<H: Hasher, D: Device, R: Runtime> {
    pub(crate) shared: Arc<Shared<H, D, R>>,
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

/// What an overlay stands on. A commit changes all of it at once.
struct Links<H: Hasher, D: Device, R: Runtime> {
    parent: Option<Overlay<H, D, R>>,
    /// Pins the commit that the chain stands on, or, once committed, its own.
    view: View,
    /// The commit whose state this overlay's is.
    committed: Option<u64>,
}

/// An uncommitted block, kept in memory. Clones are the same overlay.
pub struct Overlay<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads>(
    pub(crate) Arc<OverlayInner<H, D, R>>,
);

impl<H: Hasher, D: Device, R: Runtime> Clone for Overlay<H, D, R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Overlay<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("prev_root", &Hex(&self.0.prev_root))
            .field("root", &Hex(&self.0.root))
            .field("changes", &self.0.changes.len())
            .field("committed", &self.commit_number())
            .finish_non_exhaustive()
    }
}

impl<H: Hasher, D: Device, R: Runtime> Overlay<H, D, R> {
    pub(crate) fn new(mut block: Block<H, D, R>) -> Self {
        let nodes = block.positions();
        let changes = block.changes();
        let id = block.shared.overlays.insert(&changes, &nodes);
        let links = Links { parent: block.parent.take(), view: block.view, committed: None };
        Self(Arc::new(OverlayInner {
            links: Mutex::new(links),
            id,
            prev_root: block.prev_root,
            root: block.root,
            changes,
            nodes,
            blob: block.blob,
            shared: block.shared,
            _counted: block.counted.into_kind(Kind::Overlay),
        }))
    }

    /// Root of this state.
    pub fn root(&self) -> Node {
        self.0.root
    }

    /// The commit whose state this overlay's is, once it was committed. An overlay that was merged
    /// into a later one's commit has no commit of its own.
    pub fn commit_number(&self) -> Option<u64> {
        self.0.links.lock().committed
    }

    /// The uncommitted overlays from this one down, and the commit that they stand on.
    pub(crate) fn chain(&self) -> (Vec<Self>, u64) {
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

    /// The state of this overlay, to be read.
    pub(crate) fn view(&self) -> View {
        let shared = &self.0.shared;
        let (chain, base) = self.chain();
        let ancestry: Ancestry =
            Arc::new(chain.iter().map(|overlay| overlay.0.id).collect::<HashSet<_>>());
        // The base is pinned already: by the chain's lowest overlay, or it is a commit that this
        // overlay is part of, whose successors' undo the lowest overlay's older pin keeps.
        shared.undo.pin(base);
        View::pinned(base, ancestry, Arc::clone(&shared.undo), Arc::clone(&shared.overlays))
    }

    /// Commits this overlay together with its uncommitted ancestors, merged, as one commit.
    /// Overlays that stand on it stay valid, siblings become stale.
    ///
    /// # Errors
    /// As [`Block::commit`]; the overlay stays as it was.
    pub fn commit(&self) -> Result<u64> {
        let (chain, base) = self.chain();
        let Some(lowest) = chain.last() else { return Ok(base) };
        let shared = &self.0.shared;
        let merge = Merge {
            chain: &chain,
            base,
            prev_root: &lowest.0.prev_root,
            root: &self.0.root,
            blob: None,
        };
        let number = merge.commit(shared, std::iter::empty())?;
        // Only this overlay's state is the commit's: its ancestors keep theirs, and are stale.
        shared.undo.pin(number);
        let view = View::pinned(
            number,
            Arc::default(),
            Arc::clone(&shared.undo),
            Arc::clone(&shared.overlays),
        );
        let mut links = self.0.links.lock();
        links.committed = Some(number);
        // What it stood on goes, so that a long pipeline of overlays does not pile up.
        let before = (links.parent.take(), std::mem::replace(&mut links.view, view));
        drop(links);
        drop(before);
        Ok(number)
    }
}

/// Commits a block that stands on an overlay, together with its uncommitted ancestors, merged.
pub(crate) fn commit_block<H: Hasher, D: Device, R: Runtime>(
    block: &Block<H, D, R>,
) -> Result<u64> {
    let (chain, base) =
        block.parent.as_ref().map_or_else(|| (Vec::new(), block.view.base), Overlay::chain);
    let merge = Merge {
        chain: &chain,
        base,
        prev_root: chain.last().map_or(&block.prev_root, |lowest| &lowest.0.prev_root),
        root: &block.root,
        blob: block.blob.as_deref(),
    };
    merge.commit(&block.shared, block.chunks.iter().flat_map(|chunk| &chunk.changes))
}

/// A chain of overlays that becomes one commit.
struct Merge<'a, H: Hasher, D: Device, R: Runtime> {
    /// Newest first.
    chain: &'a [Overlay<H, D, R>],
    /// The commit that it stands on, which is pinned by its lowest overlay or by the block above.
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
        shared: &Arc<Shared<H, D, R>>,
        newest: impl Iterator<Item = &'a Changed>,
    ) -> Result<u64> {
        let base = self.base;
        let tip = shared.published.load(Ordering::Acquire);
        if tip != base {
            return Err(Error::StaleParent { base, tip });
        }
        let touches: Vec<KeyAccess> = merged(newest, self.chain);
        shared.undo.pin(base);
        let view = View::pinned(
            base,
            Arc::default(),
            Arc::clone(&shared.undo),
            Arc::clone(&shared.overlays),
        );
        // One fold over the pages as they are cut now; its root must be the one promised.
        let mut finished = finish(shared, &view, self.prev_root, &touches, false)?;
        if finished.root != *self.root {
            return Err(Error::Corrupt(
                "an overlay's root is not the root of its merged changes".to_owned(),
            ));
        }
        let below = || self.chain.iter().find_map(|overlay| overlay.0.blob.as_deref());
        let target = Target { view: &view, prev_root: self.prev_root, root: self.root };
        commit::commit(shared, &target, &mut finished.chunks, self.blob.or_else(below))
    }
}

/// Changes over those of a chain (newest overlay first), newest state of each key, as touches.
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
        self.shared.overlays.remove(self.id, &self.changes, &self.nodes);
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
