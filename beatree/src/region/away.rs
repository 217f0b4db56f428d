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
    /// A region that is away, as of commit `commit`. It has a page that nobody can read, for readers where it cannot
    /// be loaded.
    pub fn away(
        hasher: Hasher,
        namespace: u8,
        prefix: Prefix,
        commit: u64,
        at: AwayRegion,
    ) -> Self {
        let page = Some(PageNo::lost(at.page));
        let all = ChildTable::new(prefix, &[ChildRef { prefix, page, tag: 0 }]);
        let mut state =
            RegionState::new(hasher, namespace, all, at.node.into_iter().collect(), commit);
        state.away = Some(Box::new(at));
        Self::from_state(state)
    }

    /// Loads the region, if it is away and can be read. Nobody is kept from it meanwhile.
    #[cold]
    pub fn load(&self, ahead: bool) {
        let Some(at) = self.row().away.clone() else { return };
        let Some(loaded) = at.source.load(&self.prefix, &at, ahead) else { return };
        let mut state = self.state.write();
        // Another thread may have come first.
        if state.away.is_some() {
            core::mem::swap(&mut *state, &mut *loaded.state.write());
        }
    }
}

impl RegionState {
    /// True while only the region's row is in memory.
    #[inline]
    pub fn is_away(&self) -> bool {
        self.away.is_some()
    }
}
