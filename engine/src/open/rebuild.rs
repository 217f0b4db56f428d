//! Recovery of nodes: computes the nodes of a trie anew from its pairs, where the nodes in the files do not lead to its
//! root. Every leaf page is read; the nodes that pages store are not used.

use std::sync::Arc;

use pleach_beatree::leaf_fold::{KeyState, PageState, fold_parts};
use pleach_beatree::{Region, RegionIndex};
use pleach_core::fold::Folder;
use pleach_core::{Hasher, Node};
use pleach_io::{Disk, OpenMode};
use pleach_journal::format::names::LEAF_FILE;

use super::pages::{VisitedPage, parse, visit};
use super::trie::root_of;
use crate::error::{Error, Result};

/// Computes all nodes of a trie's index from its pairs, puts them into its regions, and gives the root.
///
/// # Errors
/// When a leaf page cannot be read or is not the one that the index names: then some pairs are missing.
pub(super) fn rebuild(
    hasher: Hasher,
    device: &Disk,
    database: u64,
    index: &RegionIndex,
) -> Result<Node> {
    let leaf = device.open(LEAF_FILE, OpenMode::Read)?;
    let mut folder = Folder::new(hasher);
    let mut nodes: Vec<Node> = Vec::new();
    visit(device, Ok(&leaf), index, |VisitedPage { region, child, page }| {
        nodes.push(child_node(&mut folder, database, region, child, page)?);
        if nodes.len() == region.read().children().len() {
            let mut state = region.write();
            state.replace_nodes(std::mem::take(&mut nodes));
            state.recompute_own_node(hasher);
        }
        Ok::<_, Error>(true)
    })?;
    Ok(root_of(hasher, index))
}

/// The node of a child: of its page's cells with the buffered changes over them.
fn child_node(
    folder: &mut Folder,
    database: u64,
    region: &Arc<Region>,
    child: usize,
    page: Option<core::result::Result<pleach_io::PageBuf, pleach_io::IoError>>,
) -> Result<Node> {
    let state = region.read();
    let prefix = state.children().prefix(child);
    let mut changes: Vec<KeyState> = Vec::new();
    state.copy_buffered(&prefix, &mut changes);
    let page = page.transpose()?;
    let located = page.as_ref().zip(state.children().page(child));
    let view = located.map(|(buf, number)| {
        parse(buf, database, state.namespace(), number, state.children().tag(child))
    });
    let (view, at) = (view.transpose()?, &prefix);
    let page = PageState { at, leaf: view.as_ref(), buffered: &changes, treelet: None };
    folder.clear();
    // Folded in parts: from the pairs alone, without the nodes that the page stores.
    let folded = fold_parts(folder, &page, None, &[], &mut Vec::new());
    let fold = folder.end_fold(folded.subtrie, false);
    folder.run();
    Ok(*folder.node(fold))
}
