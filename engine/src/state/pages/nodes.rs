//! Nodes of regions beyond memory: they are evicted, and read from a page file when they are needed.
//!
//! A region's nodes may be evicted when a page on the device has the same nodes: the branch page of the last image, or
//! one written to the spill file for this purpose. The spill file belongs to one open of the database and no recovery
//! reads it.
//!
//! Invariants:
//! * `paged_nodes` of a region names a page with exactly its present nodes; a change of the nodes clears it;
//! * no region names a page of the image file that the next checkpoint writes: each finished checkpoint moves all
//!   regions to its own file;
//! * nodes are not evicted while a finish or a commit is under way ([`NodeFiles::hold_nodes`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use pleach_beatree::leaf_fold::{KeyState, PageState, fold_page};
use pleach_beatree::lock_order::RankedGuard;
use pleach_beatree::region::{NodeFile, NodePage, Nodes, ReadState, tiling};
use pleach_beatree::{Region, RegionIndex, RegionState};
use pleach_core::fold::Folder;
use pleach_core::page::branch::{BranchBuilder, BranchEntry, BranchHeader, BranchView};
use pleach_core::page::{FileKind, Identity, header};
use pleach_core::tree::Tiling;
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::{File, OpenMode, PageBuf};
use pleach_journal::format::names::{ImageFile, SPILL_FILE, image_name};
use pleach_journal::format::position::LogPos;

use super::in_flight::PageId;
use super::index::{Index, PageRef};
use super::quarantine::{PageName, QuarantineReason, Quarantined};
use super::store::Store;
use crate::error::{Contradiction, Error, Result};
use crate::metrics::Counters;
use crate::state::lock_ranks::{MOVES, NODE_GATE};
use crate::state::pace::budget::NodeLimit;

/// Bytes of nodes for each leaf page: its line in the region's tiling.
const NODE_BYTES: u64 = Tiling::CHILD_BYTES as u64;

/// Attempts to bring nodes into memory while other threads change the region. While a batch is under way
/// ([`NodeFiles::hold_nodes`]) no nodes are evicted, and each failed attempt means the end of a flush or a checkpoint
/// meanwhile: after this many, more would not help.
const MAX_ATTEMPTS: usize = 64;

/// What the node stores of all tries share: the files for evicted nodes, and the gate.
pub(crate) struct NodeFiles {
    images: [File; 2],
    spill: File,
    pages: Mutex<SpillPages>,
    /// Read while nodes must stay in memory, written while nodes are evicted.
    gate: RwLock<()>,
    /// Held while a region's nodes move to another page on the device.
    moves: Mutex<()>,
    /// Where the next search for nodes to evict begins: a namespace, and a region of it.
    hand: Mutex<(u8, usize)>,
    /// Number of spilled pages.
    spills: AtomicU64,
    limit: NodeLimit,
    hasher: Hasher,
    pub(super) store: Arc<Store>,
}

/// The nodes of a trie's regions: in memory, or in branch pages on the device.
pub(crate) struct NodeStore {
    pub(super) files: Arc<NodeFiles>,
    namespace: u8,
    index: Arc<Index>,
}

#[derive(Default)]
struct SpillPages {
    free: Vec<u64>,
    next: u64,
}

impl NodeFiles {
    /// Opens the files. Pages that an earlier open has spilled are void.
    pub(crate) fn open(
        hasher: Hasher,
        store: Arc<Store>,
        limit: NodeLimit,
        mode: OpenMode,
    ) -> Result<Self> {
        let device = &store.device;
        let (images, spill) = if mode == OpenMode::Read {
            // Never read: without a flush no nodes are evicted. The file of the image that is not in use may be
            // missing.
            let none = || store.leaf.clone();
            ([none(), none()], none())
        } else {
            let open = |file| device.open(image_name(file), OpenMode::Read);
            let images = [open(ImageFile::A)?, open(ImageFile::B)?];
            let is_there = device.list()?.iter().any(|name| name == SPILL_FILE);
            let mode = if is_there { OpenMode::Write } else { OpenMode::CreateNew };
            let spill = device.open(SPILL_FILE, mode)?;
            device.set_len(&spill, 0)?;
            (images, spill)
        };
        Ok(Self {
            images,
            spill,
            pages: Mutex::new(SpillPages::default()),
            gate: RwLock::new(()),
            moves: Mutex::new(()),
            hand: Mutex::default(),
            spills: AtomicU64::new(0),
            limit,
            hasher,
            store,
        })
    }

    /// The file of a page of nodes.
    pub(crate) fn file(&self, at: &NodePage) -> &File {
        match at.file {
            NodeFile::ImageA => &self.images[0],
            NodeFile::ImageB => &self.images[1],
            NodeFile::Spill => &self.spill,
        }
    }

    fn allocate_page(&self) -> u64 {
        let mut pages = self.pages.lock();
        pages.free.pop().unwrap_or_else(|| {
            pages.next += 1;
            pages.next - 1
        })
    }

    fn free_page(&self, page: u64) {
        self.pages.lock().free.push(page);
    }

    /// Keeps nodes in memory while the guard lives.
    pub(crate) fn hold_nodes(&self) -> RankedGuard<RwLockReadGuard<'_, ()>> {
        RankedGuard::acquire(
            NODE_GATE,
            || self.gate.try_read_recursive(),
            || self.gate.read_recursive(),
        )
    }

    /// Keeps finishes and commits out while the guard lives; `None` when one is under way, without waiting.
    pub(crate) fn try_exclude_batches(&self) -> Option<RankedGuard<RwLockWriteGuard<'_, ()>>> {
        RankedGuard::attempt(NODE_GATE, || self.gate.try_write())
    }

    /// Frees the spill-file page of a retired region.
    pub(crate) fn free_spill_page(&self, state: &RegionState) {
        if let Some(page) = state.spill_page() {
            self.free_page(page);
        }
    }

    /// True when there may be nodes to evict. Cheap, for the flush's idle step.
    pub(crate) fn can_evict(&self) -> bool {
        self.limit.is_explicit
            || self.store.counters.leaf_pages_with_nodes.load(Ordering::Relaxed) * NODE_BYTES
                > self.limit.bytes
    }

    /// Evicts nodes while those of all `tries`, which ascend by namespace, take more than their share; one clock hand
    /// goes round over all of them. True when it did anything; it does nothing while a batch is under way.
    pub(crate) fn evict_nodes(&self, tries: &[&NodeStore]) -> Result<bool> {
        let indexes: Vec<Arc<RegionIndex>> =
            tries.iter().map(|trie| trie.index.load_full()).collect();
        let regions = || indexes.iter().flat_map(|index| index.regions());
        let mut bytes: u64 = regions().map(resident_node_bytes).sum();
        let limit = self.limit.bytes;
        if bytes <= limit {
            return Ok(false);
        }
        let mut hand = self.hand.lock();
        // A namespace that does not exist any more is passed over, and so is a region.
        let mut trie = tries.partition_point(|trie| trie.namespace < hand.0);
        let mut at =
            if tries.get(trie).is_some_and(|trie| trie.namespace == hand.0) { hand.1 } else { 0 };
        let mut left = regions().count();
        while left > 0 && bytes > limit {
            let of_trie = indexes.get(trie).map(|index| index.regions());
            let Some(region) = of_trie.and_then(|regions| regions.get(at)) else {
                // Each index has a region, so the loop comes to one.
                (trie, at) = (if of_trie.is_some() { trie + 1 } else { 0 }, 0);
                continue;
            };
            at += 1;
            left -= 1;
            *hand = (tries[trie].namespace, at);
            let size = resident_node_bytes(region);
            match tries[trie].evict(region)? {
                Some(true) => bytes = bytes.saturating_sub(size),
                Some(false) => {}
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl NodeStore {
    /// The nodes of a namespace's regions.
    pub(crate) fn new(files: Arc<NodeFiles>, namespace: u8, index: Arc<Index>) -> Self {
        Self { files, namespace, index }
    }

    /// Brings the nodes of the region over a key into memory, on the calling thread. Where their page cannot be used
    /// they are folded from the leaf pages.
    pub(crate) fn make_resident(&self, key: &Key) -> Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            let away = self
                .index
                .with_region(key, |region, state| Some((Arc::clone(region), state.paged_nodes()?)));
            let Some((region, node_page)) = away else { return Ok(()) };
            let id = PageId::Nodes(node_page);
            let mut claim = self.files.store.in_flight.claim(id);
            if claim.is_none() {
                self.files.store.in_flight.wait(id);
                claim = self.files.store.in_flight.claim(id);
            }
            // Checked again: another reader may have finished before the claim.
            if region.read().paged_nodes() != Some(node_page) {
                continue;
            }
            let installed =
                self.with_page(&node_page, |buf| self.install_nodes(&region, &node_page, buf));
            drop(claim);
            if let Err(error) = installed {
                self.fold_nodes(&region, &node_page).map_err(|also| {
                    tracing::debug!(%also, "nor can the nodes be folded from the leaf pages");
                    error
                })?;
            }
        }
        Err(Contradiction::NodesEvicted { key: *key }.into())
    }

    /// Folds the nodes of a region whose page cannot be used, from the leaf pages and their buffered changes. They must
    /// fold to the region's own node.
    fn fold_nodes(&self, region: &Region, node_page: &NodePage) -> Result<()> {
        let _guard = self.files.store.grace_guard();
        let mut folder = Folder::new(self.files.hasher);
        for _ in 0..MAX_ATTEMPTS {
            let mut children: Vec<(Prefix, Option<PageRef>, Vec<KeyState>)> = Vec::new();
            let position = {
                let state = region.read();
                if state.is_retired() || state.paged_nodes() != Some(*node_page) {
                    return Ok(());
                }
                for child in state.children().iter() {
                    let mut changes = Vec::new();
                    state.copy_buffered(&child.prefix, &mut changes);
                    let namespace = self.namespace;
                    let at = child.page.map(|page| PageRef { page, tag: child.tag, namespace });
                    children.push((child.prefix, at, changes));
                }
                state.log_position()
            };
            folder.clear();
            for (prefix, at, changes) in &children {
                let page = at.map(|at| self.files.store.leaf(at)).transpose()?;
                let view = page.as_ref().map(|page| page.view());
                let page =
                    PageState { at: prefix, leaf: view.as_ref(), buffered: changes, treelet: None };
                let folded = fold_page(&mut folder, &page, false, &[], &mut Vec::new());
                folder.end_fold(folded.subtrie, false);
            }
            folder.run();
            let nodes: Vec<Node> = (0..children.len()).map(|fold| *folder.node(fold)).collect();
            let mut state = region.write();
            if state.is_retired() || state.paged_nodes() != Some(*node_page) {
                return Ok(());
            }
            if state.log_position() != position {
                // A commit or a flush has changed the region meanwhile.
                continue;
            }
            let nodes = tiling(self.files.hasher, state.children(), &nodes);
            if nodes.own_node() != state.own_node() {
                return Err(Contradiction::Fold { prefix: *region.prefix() }.into());
            }
            tracing::warn!(prefix = ?region.prefix(), "nodes were folded from the leaf pages: their own page is bad");
            state.install_folded_nodes(nodes);
            return Ok(());
        }
        Err(Contradiction::RegionKeepsChanging { prefix: *region.prefix() }.into())
    }

    /// Puts nodes that were read into their region, unless it has changed meanwhile.
    pub(crate) fn install_nodes(
        &self,
        region: &Region,
        node_page: &NodePage,
        buf: &PageBuf,
    ) -> Result<()> {
        Counters::add(&self.files.store.counters.upper_trie_pages_read, 1);
        let mut state = region.write();
        if state.paged_nodes() != Some(*node_page) {
            return Ok(());
        }
        let mut nodes = Vec::with_capacity(state.children().len());
        self.parse_nodes(region, &state, node_page, buf, &mut nodes)?;
        let nodes = tiling(self.files.hasher, state.children(), &nodes);
        state.install_nodes(nodes);
        drop(state);
        self.files.store.note_good_read(file_name(node_page.file), node_page.page);
        Ok(())
    }

    /// Reads nodes that are not in memory, for a copy, and leaves them out. True when they are still the region's.
    pub(crate) fn read_nodes(
        &self,
        region: &Region,
        node_page: &NodePage,
        nodes: &mut Vec<Node>,
    ) -> Result<bool> {
        self.with_page(node_page, |buf| {
            Counters::add(&self.files.store.counters.upper_trie_pages_read, 1);
            let state = region.read();
            if state.is_retired() || state.paged_nodes() != Some(*node_page) {
                return Ok(false);
            }
            self.parse_nodes(region, &state, node_page, buf, nodes).map(|()| true)
        })
    }

    /// Reads a page of nodes into a pooled buffer and calls `what` with it.
    fn with_page<T>(&self, at: &NodePage, what: impl FnOnce(&PageBuf) -> Result<T>) -> Result<T> {
        let mut buf = self.files.store.buffers.take();
        let read = self.files.store.device.read_at(self.files.file(at), &mut buf, at.offset());
        let done = read.map_err(Error::from).and_then(|()| what(&buf));
        self.files.store.buffers.put_back(buf);
        done
    }

    /// The nodes in a region's branch page.
    fn parse_nodes(
        &self,
        region: &Region,
        state: &RegionState,
        node_page: &NodePage,
        buf: &PageBuf,
        nodes: &mut Vec<Node>,
    ) -> Result<()> {
        let (file, page) = (file_name(node_page.file), node_page.page);
        let view = BranchView::parse(buf.page(0), &identity(self.files.store.database, node_page))
            .map_err(|error| Error::Page { file, page, error })?;
        let found = header::tag(buf.page(0));
        if found != node_page.tag {
            return Err(Error::StalePage { file, page, expected: node_page.tag, found });
        }
        header::check_namespace(buf.page(0), state.namespace()).map_err(|error| Error::Page {
            file,
            page,
            error,
        })?;
        if view.prefix() != *region.prefix() || view.child_count() != state.children().len() {
            let what = "it belongs to another region";
            return Err(Contradiction::Page { file, page, what }.into());
        }
        nodes.clear();
        nodes.extend(view.iter().map(|(_, entry)| entry.node));
        Ok(())
    }

    /// Bytes of the nodes in memory, without treelets of regions.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.index.load().regions().iter().map(resident_node_bytes).sum()
    }

    /// Evicts one region's nodes; `None` when a batch is under way.
    fn evict(&self, region: &Region) -> Result<Option<bool>> {
        // Nodes are needed between a finish and its commit's publication.
        let Some(_gate) = self.files.try_exclude_batches() else { return Ok(None) };
        // Not while a checkpoint moves regions to its own image.
        let _moves =
            RankedGuard::acquire(MOVES, || self.files.moves.try_lock(), || self.files.moves.lock());
        let (spilled, position) = {
            let state = region.read();
            if !matches!(state.nodes(), Nodes::Resident(_)) || state.is_retired() {
                return Ok(Some(false));
            }
            let position = state.log_position();
            let away = state.saved_page().is_some();
            (if away { None } else { self.spill(region, state)? }, position)
        };
        let mut state = region.write();
        if let Some(node_page) = spilled {
            // The page is this region's from now on, whether its nodes are evicted or not.
            state.set_spill_page(node_page.page);
        }
        let node_page = state.saved_page().or(spilled);
        let Some(node_page) =
            node_page.filter(|_| state.log_position() == position && !state.is_retired())
        else {
            return Ok(Some(false));
        };
        state.evict_nodes(node_page);
        Ok(Some(true))
    }

    /// Writes a region's branch page to the spill file; `None` without room, so that the nodes stay in memory.
    fn spill(&self, region: &Region, state: ReadState<'_>) -> Result<Option<NodePage>> {
        let Nodes::Resident(nodes) = state.nodes() else { unreachable!("just checked") };
        let own = state.spill_page();
        let page = own.unwrap_or_else(|| self.files.allocate_page());
        let mut node_page = NodePage { file: NodeFile::Spill, page, tag: 0 };
        let mut buf = self.files.store.buffers.take();
        let header = BranchHeader {
            identity: identity(self.files.store.database, &node_page),
            // No flush number: the file belongs to this open, and nobody else reads it.
            flush: self.files.spills.fetch_add(1, Ordering::Relaxed),
            namespace: self.namespace,
            prefix: *region.prefix(),
            level: 1,
            log_pos: state.log_position(),
        };
        // The children fit: a region that a flush makes too large is split before anybody sees it.
        let mut builder = BranchBuilder::new(buf.page_mut(0), &header);
        for (child, node) in state.children().iter().zip(nodes.nodes()) {
            builder.push(&BranchEntry {
                depth: child.prefix.len(),
                page_no: child.page.map(u64::from),
                tag: child.tag,
                node: *node,
            });
        }
        node_page.tag = builder.seal();
        drop(state);
        let written =
            self.files.store.device.write_at(&self.files.spill, &buf, 1, node_page.offset());
        if written.as_ref().is_err_and(pleach_io::IoError::is_full) {
            if own.is_none() {
                self.files.free_page(page);
            }
            return Ok(None);
        }
        written?;
        Counters::add(&self.files.store.counters.image_bytes, 4096);
        self.files.store.buffers.put_back(buf);
        Ok(Some(node_page))
    }

    /// Names the branch page that a checkpoint has written for this region: its nodes may be evicted.
    pub(crate) fn note_checkpointed(&self, key: &Key, position: LogPos, node_page: NodePage) {
        let _moves =
            RankedGuard::acquire(MOVES, || self.files.moves.try_lock(), || self.files.moves.lock());
        let region = self.index.with_region(key, |region, _| Arc::clone(region));
        let mut state = region.write();
        if state.is_retired() || state.log_position() != position.get() {
            return;
        }
        if let Some(page) = state.note_checkpoint(node_page) {
            self.files.free_page(page);
        }
    }

    /// True when the page of a region's nodes is quarantined.
    pub(crate) fn has_quarantined_nodes(&self, state: &RegionState) -> bool {
        let Nodes::Paged(at) = state.nodes() else { return false };
        self.files.store.quarantine.is_barred(file_name(at.file), at.page, false)
    }

    /// Brings the nodes of the region over a key into memory for the flush; a failure quarantines their page.
    pub(crate) fn load_nodes_for_flush(&self, key: &Key) -> Result<()> {
        let away = self.index.with_region(key, |region, state| match state.nodes() {
            Nodes::Resident(_) | Nodes::Plain => None,
            Nodes::Paged(at) => Some(self.page_name(at, region)),
        });
        let Some(page) = away else { return Ok(()) };
        if let Some(error) = self.files.store.quarantine.error_of(page.file, page.page) {
            return Err(error);
        }
        self.make_resident(key).inspect_err(|error| {
            self.files.store.quarantine_page(page, error.clone(), QuarantineReason::Unreadable);
        })
    }

    /// Reads nodes that are not in memory, for an image. A quarantined page is tried all the same: a close waits for no
    /// trial, and an image cannot be made without any of its regions. True when they were read; otherwise they were
    /// folded and are in memory, or the region has changed.
    pub(crate) fn read_nodes_for_image(
        &self,
        region: &Region,
        at: &NodePage,
        nodes: &mut Vec<Node>,
    ) -> Result<bool> {
        let page = self.page_name(at, region);
        let read = if let Ok(read) = self.read_nodes(region, at, nodes) {
            read
        } else {
            self.make_resident(page.prefix.first_key()).inspect_err(|error| {
                self.files.store.quarantine_page(page, error.clone(), QuarantineReason::Unreadable);
            })?;
            false
        };
        self.release_node_page(page.file, page.page);
        Ok(read)
    }

    /// Tries a quarantined node page again, before an image is begun.
    pub(crate) fn retry_quarantined_nodes(&self, quarantined: &Quarantined) -> Result<()> {
        let (file, page) = (quarantined.file, quarantined.page);
        let named = self.index.with_region(quarantined.prefix.first_key(), |region, state| {
            let at = state.paged_nodes()?;
            ((file_name(at.file), at.page) == (file, page)).then(|| (Arc::clone(region), at))
        });
        match named {
            Some((region, at)) => {
                self.read_nodes_for_image(&region, &at, &mut Vec::new())?;
            }
            // The nodes are in memory, or on another page.
            None => self.release_node_page(file, page),
        }
        Ok(())
    }

    fn page_name(&self, at: &NodePage, region: &Region) -> PageName {
        let (file, page) = (file_name(at.file), at.page);
        PageName { file, page, namespace: self.namespace, prefix: *region.prefix() }
    }

    /// Releases a page of nodes from quarantine: it is readable, or nobody needs it any more.
    fn release_node_page(&self, file: &'static str, page: u64) {
        if self.files.store.quarantine.contains(file, page) {
            self.files.store.quarantine.forget(file, page);
            self.files.store.release_from_quarantine(file, self.namespace, Prefix::ROOT);
        }
    }
}

/// Bytes of a region's nodes in memory.
fn resident_node_bytes(region: &Arc<Region>) -> u64 {
    match region.read().nodes() {
        Nodes::Resident(nodes) => nodes.len() as u64 * NODE_BYTES,
        Nodes::Paged(_) | Nodes::Plain => 0,
    }
}

/// The file's name in messages.
pub(crate) fn file_name(file: NodeFile) -> &'static str {
    match file {
        NodeFile::ImageA => image_name(ImageFile::A),
        NodeFile::ImageB => image_name(ImageFile::B),
        NodeFile::Spill => SPILL_FILE,
    }
}

fn identity(database: u64, node_page: &NodePage) -> Identity {
    let kind = if node_page.file == NodeFile::Spill { FileKind::Spill } else { FileKind::Image };
    Identity { kind, page_no: node_page.page, db_id: database }
}
