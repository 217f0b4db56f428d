//! Regions that are away, in the image that the database was opened from: what reads them.
//!
//! Whoever needs such a region reads it at once, on its own thread, without a lock of the index. A task reads the rest in
//! order ([`RegionLoader`]). Until a region is here, the image's file is not written: a checkpoint writes the other one,
//! and loads all regions before it begins (rule `image-until-loaded`).
//!
//! A region that cannot be read has one page, with a number that no file has ([`PageNo::lost`]), so that only its own
//! keys fail. Each use tries again; the next open reads the whole image, or the older one. No checkpoint is made meanwhile.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pleach_beatree::pages::Quarantine;
use pleach_beatree::region::{AwayRegion, RegionSource};
use pleach_beatree::{ChildRef, ChildTable, Error, PageNo, Region};
use pleach_core::page::stream::StreamId;
use pleach_core::{Hasher, Key, Prefix};
use pleach_io::Step;
use pleach_journal::format::buffered;
use pleach_journal::format::image::ImageReader;
use pleach_journal::format::names::LEAF_FILE;
use pleach_journal::format::table::TrieRef;
use pleach_journal::format::trie_kind::TrieKind;

use crate::error::Result;
use crate::state::Database;

/// Regions that the task loads in a step, and the time that a writer's leaves to others first. A reader's begins at once:
/// another process may write the image over.
const LOADED: usize = 256;
const FIRST: Duration = Duration::from_millis(50);

/// The regions of one trie in an image.
#[derive(Debug)]
pub(crate) struct ImageRegions {
    pub(crate) hasher: Hasher,
    pub(crate) commit: u64,
    pub(crate) named: TrieRef,
    /// Name of the image's file.
    pub(crate) file: &'static str,
    /// For single regions.
    pub(crate) image: ImageReader,
    /// For regions one after the other: of branch pages, and of buffered changes.
    pub(crate) ahead: Mutex<[ImageReader; 2]>,
    pub(crate) quarantine: Arc<Quarantine>,
}

impl ImageRegions {
    fn read(
        &self,
        [branches, changes]: &mut [ImageReader; 2],
        prefix: &Prefix,
        at: &AwayRegion,
    ) -> Result<Region, Error> {
        let TrieRef { namespace, kind, buffered: stream, .. } = &self.named;
        let branch = branches.read_branch(*namespace, at.page, at.tag, prefix, 1)?;
        let mut children = Vec::with_capacity(branch.entries.len());
        for (prefix, entry) in &branch.entries {
            let page = entry.page_no.map(leaf_number).transpose()?;
            children.push(ChildRef { prefix: *prefix, page, tag: entry.tag });
        }
        let nodes = match kind {
            TrieKind::Merkle => branch.entries.iter().map(|(_, entry)| entry.node).collect(),
            TrieKind::Plain => Vec::new(),
        };
        let children = ChildTable::new(*prefix, &children);
        let region = Region::new(self.hasher, *namespace, children, nodes, self.commit);
        let mut state = region.write();
        state.set_log_position(branch.log_pos);
        let [from, to] = at.buffered;
        if from < to {
            let part = changes.read_part(*namespace, StreamId::Buffered, stream, at.buffered)?;
            let (buffered, replaced) = buffered::decode(self.hasher, prefix, &part)?;
            state.restore_buffered(buffered, replaced);
        }
        drop(state);
        Ok(region)
    }
}

impl RegionSource for ImageRegions {
    fn load(&self, prefix: &Prefix, at: &AwayRegion, ahead: bool) -> Option<Region> {
        let (file, page, namespace) = (self.file, at.page, self.named.namespace);
        let read = if ahead {
            self.read(&mut self.ahead.lock(), prefix, at)
        } else {
            self.read(&mut [1, 1].map(|run| self.image.reopen(run)), prefix, at)
        };
        let checked = read.and_then(|region| {
            let is_other = at.node.is_some_and(|node| *region.row().own_node() != node);
            let what = "it is another branch than its parent says";
            if is_other { Err(Error::Contents { file, page, what }) } else { Ok(region) }
        });
        checked
            .inspect(|_| self.quarantine.note_region(page))
            .inspect_err(|error| {
                self.quarantine.lose(file, page, namespace, *prefix, error.clone());
            })
            .ok()
    }
}

/// A leaf page's number as read from a file; an error when it is too large.
pub(crate) fn leaf_number(page: u64) -> Result<PageNo, Error> {
    let what = "it is beyond the largest page number";
    PageNo::try_from(page).map_err(|_| Error::Contents { file: LEAF_FILE, page, what })
}

/// Loads all regions, some at each step, and finds the pages in them that are due.
#[derive(Default)]
pub(crate) struct RegionLoader {
    /// True in the task, which has begun.
    is_task: bool,
    /// Namespaces before this one are done, and of this one the keys before that.
    next: (u8, Key),
}

impl RegionLoader {
    /// One step of the task.
    pub(crate) fn step(&mut self, db: &Database) -> Step {
        if db.pace.is_closing() {
            return Step::Done;
        }
        if !std::mem::replace(&mut self.is_task, true) && db.replica.is_none() {
            return Step::IdleFor(FIRST);
        }
        if self.load(db, LOADED) {
            return Step::Continue;
        }
        db.measure_index();
        db.pace.wake();
        Step::Done
    }

    /// Loads up to `count` regions. False when none was left.
    fn load(&mut self, db: &Database, mut count: usize) -> bool {
        let _held = db.hold_replica();
        for trie in db.tries.list().iter().filter(|trie| trie.namespace >= self.next.0) {
            let mut key = Some(self.next.1).filter(|_| trie.namespace == self.next.0);
            key = key.or(Some([0; 32]));
            while let Some(at) = key {
                if count == 0 {
                    self.next = (trie.namespace, at);
                    return true;
                }
                count -= 1;
                let regions = trie.tree.load();
                let region = regions.region(&at);
                region.load(true);
                // A reader flushes nothing, and where it has ended, retired regions stay in its trees.
                let makes_due = self.is_task && db.replica.is_none();
                if makes_due && !trie.tree.make_due_in(region, db.options.tuning.flush_at) {
                    continue;
                }
                key = region.prefix().next().map(|next| *next.first_key());
            }
        }
        false
    }
}

impl Database {
    /// Loads all regions that are away.
    ///
    /// # Errors
    /// When one cannot be read, or could not be before.
    pub(crate) fn load_regions(&self) -> Result<()> {
        RegionLoader::default().load(self, usize::MAX);
        self.store.quarantine.first_lost().map_or(Ok(()), |error| Err(error.into()))
    }
}
