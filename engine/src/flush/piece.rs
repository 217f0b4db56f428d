//! A piece of a round: a range of keys whose pages get successors.

use std::sync::Arc;

use pleach_beatree::{PageNo, Region};
use pleach_core::page::overflow::PageRun;
use pleach_core::{Node, Prefix};

use super::cells::Source;
use crate::error::{Contradiction, Error};

/// A range that the round replaces: one old page, or two siblings that merge.
pub(super) struct Piece {
    pub(super) region: Arc<Region>,
    pub(super) range: Prefix,
    pub(super) sources: Vec<Source>,
    /// Last commit applied to the region when this was gathered: what the new pages contain.
    pub(super) through: u64,
    /// Shape of the region's cuts when this was gathered.
    pub(super) shape: u64,
    pub(super) new: Vec<NewLeaf>,
    pub(super) freed_runs: Vec<PageRun>,
    /// How many of the region's dropped values this piece gives up.
    pub(super) dropped: usize,
}

/// A page as it was written.
pub(super) struct NewLeaf {
    pub(super) prefix: Prefix,
    pub(super) page: WrittenPage,
    /// Node of what the page contains; of a moved page, not known when its region's nodes were
    /// not in memory.
    pub(super) node: Option<Node>,
}

/// A page and where its bytes are: a run of the round and a page in it.
pub(super) struct WrittenPage {
    pub(super) place: PageNo,
    pub(super) tag: u32,
    pub(super) run: usize,
    pub(super) at: usize,
}

impl Piece {
    /// Has one page become one page of the same prefix?
    pub(super) fn is_moved(&self) -> bool {
        self.new.len() == 1 && self.sources.len() == 1
    }
}

/// Pages and index contradict each other.
pub(super) fn disagree(prefix: &Prefix) -> Error {
    Contradiction::Fold { prefix: *prefix }.into()
}
