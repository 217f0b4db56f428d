//! A block: the result of a finish, to be committed or to become an overlay.

use std::fmt;
use std::sync::Arc;

use pleach_core::{Blake3, Hasher, Node, Prefix};
use pleach_io::os::OsDevice;
use pleach_io::threads::Threads;
use pleach_io::{Device, Runtime};

use crate::commit::{self, Target};
use crate::error::{Error, Hex, Result};
use crate::finish::ChunkOutcome;
use crate::given_back::CommitError;
use crate::handles::Counted;
use crate::log::MAX_BLOB;
use crate::overlay::{self, Overlay};
use crate::shared::Shared;
use crate::undo::Changed;
use crate::view::View;
use crate::witness::Witness;

/// What a session made: a root over its parent's, and the changes that lead there. Nothing of it
/// is on disk.
pub struct Block<H: Hasher = Blake3, D: Device = OsDevice, R: Runtime = Threads> {
    pub(crate) shared: Arc<Shared<H, D, R>>,
    pub(crate) view: View,
    pub(crate) parent: Option<Overlay<H, D, R>>,
    pub(crate) prev_root: Node,
    pub(crate) root: Node,
    pub(crate) chunks: Vec<ChunkOutcome>,
    pub(crate) witness: Option<Witness>,
    pub(crate) blob: Option<Vec<u8>>,
    /// The last field, so that it goes last.
    pub(crate) counted: Counted,
}

impl<H: Hasher, D: Device, R: Runtime> fmt::Debug for Block<H, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("base", &self.view.base)
            .field("prev_root", &Hex(&self.prev_root))
            .field("root", &Hex(&self.root))
            .field("changes", &self.change_count())
            .finish_non_exhaustive()
    }
}

impl<H: Hasher, D: Device, R: Runtime> Block<H, D, R> {
    /// Root of the state that this block makes.
    pub fn root(&self) -> Node {
        self.root
    }

    /// Root of the state that it was made on.
    pub fn prev_root(&self) -> Node {
        self.prev_root
    }

    /// The witness, once: `None` when none was asked for or when it was taken before. Its bytes
    /// are for `pleach_core::witness::verify`.
    pub fn take_witness(&mut self) -> Option<Witness> {
        self.witness.take()
    }

    /// Number of keys that this block writes.
    pub fn change_count(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.changes.len()).sum()
    }

    /// Gives the commit a blob of the application's; without one it keeps its parent's.
    pub fn set_blob(&mut self, blob: Vec<u8>) -> Result<()> {
        let limit = MAX_BLOB as usize;
        if blob.len() > limit {
            return Err(Error::BlobTooLarge { bytes: blob.len(), limit });
        }
        self.blob = Some(blob);
        Ok(())
    }

    /// Commits the block (and the overlays that it stands on, merged with it) and gives the
    /// commit's number. Durable when it returns, if the database's durability says so.
    ///
    /// # Errors
    /// [`Error::StaleParent`] when its parent is no longer the newest commit; [`Error::Full`] when
    /// the device has no room (nothing happened: the block comes back with the error, to be tried
    /// again); [`Error::Poisoned`] after a failed
    /// write; [`Error::Closed`] once the database was closed or dropped.
    pub fn commit(mut self) -> Result<u64, CommitError<H, D, R>> {
        let committed = if self.parent.is_some() {
            overlay::commit_block(&self)
        } else {
            let target = Target { view: &self.view, prev_root: &self.prev_root, root: &self.root };
            commit::commit(&self.shared, &target, &mut self.chunks, self.blob.as_deref())
        };
        committed.map_err(|error| CommitError::new(self, error))
    }

    /// Keeps the block in memory as a state that further sessions can stand on.
    pub fn into_overlay(self) -> Overlay<H, D, R> {
        Overlay::new(self)
    }

    /// Touched positions and their nodes, pages and regions.
    pub(crate) fn positions(&self) -> Vec<(Prefix, Node)> {
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
    pub(crate) fn changes(&self) -> Vec<Changed> {
        self.chunks.iter().flat_map(|chunk| chunk.changes.iter().cloned()).collect()
    }
}
