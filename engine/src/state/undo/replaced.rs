//! A commit's undo: as it is pushed, and as its record has it.

use pleach_beatree::{Stored, Value};
use pleach_core::page::overflow::OverflowCell;
use pleach_core::{Hasher, Node, Prefix};
use pleach_journal::format::bytes::BodyError;
use pleach_journal::format::commit_body::{LoggedValue, NamespaceView, ReplacedItem};
use pleach_journal::format::record::RecordHeader;

use super::changes::{Changes, KeyUpdate};
use crate::error::{Contradiction, Result};
use pleach_history::{CommitRun, NodeScope, ReplacedNode, Runs};

/// The nodes that a commit replaced, each list in order.
#[derive(Debug, Default)]
pub(crate) struct ReplacedNodes {
    /// Of the pages with a change.
    pub(crate) pages: Vec<(Prefix, Node)>,
    /// Of the regions with a change.
    pub(crate) regions: Vec<(Prefix, Node)>,
}

impl ReplacedNodes {
    /// The replaced nodes in and around `prefix`, with the number of this commit.
    pub(super) fn nodes_around(
        &self,
        of: NodeScope,
        number: u64,
        prefix: &Prefix,
    ) -> Vec<ReplacedNode> {
        let list = match of {
            NodeScope::Pages => &self.pages,
            NodeScope::Regions => &self.regions,
        };
        let above = (0..prefix.len()).filter_map(|len| {
            let above = Prefix::new(prefix.first_key(), len);
            list.binary_search_by(|one| one.0.cmp(&above)).ok().map(|at| &list[at])
        });
        let from = list.partition_point(|one| one.0 < *prefix);
        let below = list[from..].iter().take_while(|one| prefix.contains(&one.0));
        let replaced =
            |(prefix, node): &(Prefix, Node)| ReplacedNode { prefix: *prefix, number, node: *node };
        above.chain(below).map(replaced).collect()
    }
}

/// A commit's changes in one namespace, and the nodes that it replaces there, if there is a history.
pub(crate) struct NamespaceUndo {
    pub(crate) namespace: u8,
    pub(crate) changes: Changes,
    pub(crate) nodes: ReplacedNodes,
}

impl NamespaceUndo {
    /// Bytes of the changes and nodes.
    pub(super) fn bytes(&self) -> u64 {
        let ReplacedNodes { pages, regions } = &self.nodes;
        let nodes = pages.capacity() + regions.capacity();
        self.changes.bytes() + (nodes * size_of::<(Prefix, Node)>()) as u64
    }
}

/// Parses a commit's undo in one namespace from its record.
pub(crate) fn record_undo(
    hasher: Hasher,
    namespace: &NamespaceView<'_>,
    header: &RecordHeader,
) -> Result<NamespaceUndo> {
    let bad = |error| Contradiction::Record { position: header.position, error };
    let mut undo = namespace.undo();
    let mut list = Vec::with_capacity(namespace.change_bound());
    let mut nodes = ReplacedNodes::default();
    for change in namespace.changes() {
        let (key, _) = change.map_err(bad)?;
        let Some(ReplacedItem::Value(value)) = undo.next().transpose().map_err(bad)? else {
            return Err(bad(BodyError::Truncated).into());
        };
        let prior = stored(hasher, header.number, value)?;
        list.push(KeyUpdate { key: *key, new: Stored::Absent, prior });
    }
    for node in namespace.nodes() {
        let (prefix, _) = node.map_err(bad)?;
        let Some(ReplacedItem::Node(before)) = undo.next().transpose().map_err(bad)? else {
            return Err(bad(BodyError::Truncated).into());
        };
        nodes.pages.push((prefix, *before));
    }
    for region in undo {
        let ReplacedItem::Region(prefix, before) = region.map_err(bad)? else {
            return Err(bad(BodyError::Trailing).into());
        };
        nodes.regions.push((prefix, *before));
    }
    // What it was changed to is asked of the present.
    let changes = Changes::new((!list.is_empty()).then(|| list.into()));
    Ok(NamespaceUndo { namespace: namespace.ns, changes, nodes })
}

/// The undo of commit `number` as a run to be inserted, and the bytes of the overflow file that its values occupy.
pub(super) fn commit_run(runs: &Runs, number: u64, undo: &[NamespaceUndo]) -> (CommitRun, u64) {
    let keys = undo.iter().map(|one| one.changes.len()).sum();
    let (mut run, mut overflow) = (runs.commit_run(number, keys), 0);
    for NamespaceUndo { namespace, changes, nodes } in undo {
        run.begin(*namespace, &nodes.pages, &nodes.regions);
        for (key, prior) in changes.priors() {
            run.put(key, prior);
            overflow += prior.overflow_bytes();
        }
    }
    (run, overflow)
}

/// The state of a value as the log has it.
pub fn stored(hasher: Hasher, commit: u64, value: LoggedValue<'_>) -> Result<Stored> {
    Ok(match value {
        LoggedValue::Absent => Stored::Absent,
        LoggedValue::Inline(bytes) => Stored::from_value(hasher, Value::from(bytes)),
        LoggedValue::Overflow(cell) => {
            OverflowCell::parse(cell)
                .map_err(|error| Contradiction::OverflowCell { commit, error })?;
            Stored::Overflow(cell.into())
        }
    })
}
