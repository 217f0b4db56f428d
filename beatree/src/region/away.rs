//! Regions that are away: of which only a row is in memory, and the rest in an image.

use core::fmt::Debug;
use std::sync::Arc;

use pleach_core::prefix::Prefix;
use pleach_core::{Hasher, Node};

use super::{Region, RegionState};
use crate::children::{ChildRef, ChildTable};
use crate::page_no::PageNo;

/// Reads regions that are away.
pub trait RegionSource: Debug + Send + Sync {
    /// The region over `prefix` in this place, as it was when the image was made; `None` where it cannot be read.
    /// `ahead`: the regions behind it come next.
    fn load(&self, prefix: &Prefix, at: &AwayRegion, ahead: bool) -> Option<Region>;
}

/// The place of a region in an image.
#[derive(Clone, Debug)]
pub struct AwayRegion {
    /// What reads it.
    pub source: Arc<dyn RegionSource>,
    /// Its branch page.
    pub page: u64,
    /// The tag of that page.
    pub tag: u32,
    /// The node of the region; a plain trie's has none.
    pub node: Option<Node>,
    /// Where its buffered changes begin and end in their stream.
    pub buffered: [u64; 2],
}

impl Region {
    /// A region that is away, as of commit `commit`. It has no children.
    pub fn away(
        hasher: Hasher,
        namespace: u8,
        prefix: Prefix,
        commit: u64,
        at: AwayRegion,
    ) -> Self {
        let mut state =
            RegionState::new(hasher, namespace, ChildTable::none(prefix), Vec::new(), commit);
        state.own_node = at.node.unwrap_or(state.own_node);
        state.away = Some(Box::new(at));
        Self::from_state(state)
    }

    /// Loads the region, if it is away. Nobody is kept from it meanwhile. If it cannot be read, it gets one page that
    /// nobody can read.
    #[cold]
    pub fn load(&self, ahead: bool) {
        let Some(at) = self.row().away.clone() else { return };
        let loaded = at.source.load(&self.prefix, &at, ahead);
        let mut state = self.state.write();
        // Another thread may have come first.
        if state.away.is_none() {
            return;
        }
        match loaded {
            Some(loaded) => core::mem::swap(&mut *state, &mut *loaded.state.write()),
            None => state.lose(&at),
        }
    }
}

impl RegionState {
    /// Gives an away region the child that it has while it cannot be read.
    fn lose(&mut self, at: &AwayRegion) {
        let (prefix, page) = (*self.children.region(), Some(PageNo::lost(at.page)));
        self.children = ChildTable::new(prefix, &[ChildRef { prefix, page, tag: 0 }]);
        self.nodes = at.node.into_iter().collect();
        self.changes_since_write = vec![0];
        self.versions = vec![0];
    }

    /// True while only the region's row is in memory.
    #[inline]
    pub fn is_away(&self) -> bool {
        self.away.is_some()
    }
}
