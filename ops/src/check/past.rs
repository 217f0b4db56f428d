//! The past: what commits replaced, put back over the pages, folds to the roots that were recorded.
//!
//! The pages below which a key has changed since the history began are read once more, those of one region after the
//! other. A page is folded as often as commits have changed it, and each time with the nodes above it; so the
//! work is that of the history, whatever the size of the database.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use pleach::Result;
use pleach::internals::error::hex;
use pleach::internals::format::trie_kind::TrieKind;
use pleach::internals::open::pages::parse;
use pleach::internals::open::recovery::{Recovered, RecoveredTrie};
use pleach::internals::roots::TrieRoot;
use pleach::internals::state::{LastSeen, put_over};
use pleach_beatree::leaf_fold::PendingChange;
use pleach_beatree::{RegionState, Stored};
use pleach_core::fold::Folder;
use pleach_core::{Hasher, Key, Node, Prefix, TERMINATOR, node::combine};
use pleach_io::{File, PageBuf};

use super::report::of;
use crate::opened::Opened;

/// What does not fit. A trie with a page that cannot be read is left out: the page is a finding of its own.
pub(super) fn findings(opened: &Opened, leaf: &File, recovered: &Recovered) -> Vec<String> {
    let of_trie = |trie| {
        let nodes = HashMap::new();
        let mut past = Past { opened, leaf, recovered, trie, nodes, before: Vec::new() };
        past.gather().map_or_else(|_| Vec::new(), |()| past.findings())
    };
    recovered.tries.iter().flat_map(of_trie).collect()
}

/// What a key had before a commit.
type Replaced = (u64, Key, Stored);

/// The past of a trie.
struct Past<'a> {
    opened: &'a Opened,
    leaf: &'a File,
    recovered: &'a Recovered,
    trie: &'a RecoveredTrie,
    /// The nodes of regions, of the pages of those with a change instead, and all above them. A plain trie has none but
    /// of pages with a change, so that its topmost node says nothing of the others.
    nodes: HashMap<Prefix, Node>,
    /// The nodes of pages before commits.
    before: Vec<(u64, Prefix, Node)>,
}

impl Past<'_> {
    /// The present, and what nodes were before commits.
    fn gather(&mut self) -> Result<()> {
        for region in self.trie.regions.regions() {
            let state = region.read();
            let mut replaced = self.replaced(region.prefix());
            if replaced.is_empty() {
                self.set(*region.prefix(), *state.own());
                continue;
            }
            // The newest first.
            replaced.sort_by_key(|(commit, ..)| Reverse(*commit));
            for child in 0..state.children().len() {
                let prefix = state.children().prefix(child);
                let below: Vec<&Replaced> =
                    replaced.iter().filter(|(_, key, _)| prefix.covers(key)).collect();
                match state.node(child) {
                    Some(node) if below.is_empty() => self.set(prefix, *node),
                    _ => self.page(&state, child, &below)?,
                }
            }
        }
        Ok(())
    }

    /// What commits of the history replaced below a prefix.
    fn replaced(&self, prefix: &Prefix) -> Vec<Replaced> {
        let (undo, namespace, seen) =
            (&self.recovered.history.undo, self.trie.namespace, LastSeen::default());
        let (below, mut replaced) = (*prefix.first_key()..=prefix.last_key(), Vec::new());
        for (key, _) in undo.within(namespace, &[below], undo.from()) {
            let mut before = undo.from();
            while let Some((commit, prior)) = undo.change_after(namespace, &key, before, &seen) {
                replaced.push((commit, key, prior));
                before = commit;
            }
        }
        replaced
    }

    /// The node of a page as it is, and before each commit that changed it.
    fn page(&mut self, state: &RegionState, child: usize, replaced: &[&Replaced]) -> Result<()> {
        let (prefix, database) = (state.children().prefix(child), self.opened.newest.database);
        let mut pairs: Vec<PendingChange> = Vec::new();
        if let Some(number) = state.children().page(child) {
            let mut buf = PageBuf::zeroed(1);
            self.opened.device.read_at(self.leaf, &mut buf, number.offset())?;
            let tag = state.children().tag(child);
            let view = parse(&buf, database, state.namespace(), number, tag)?;
            pairs.extend(view.iter().map(|(key, cell)| (key, Stored::from_cell(cell))));
        }
        let mut pending = Vec::new();
        state.copy_pending(&prefix, &mut pending);
        put_over(&mut pairs, 0, pending.into_iter());
        self.set(prefix, node_of(self.opened.hasher, &prefix, &pairs));
        for same in replaced.chunk_by(|a, b| a.0 == b.0) {
            let then: BTreeMap<Key, Stored> =
                same.iter().map(|(_, key, prior)| (*key, prior.clone())).collect();
            put_over(&mut pairs, 0, then.into_iter());
            self.before.push((same[0].0, prefix, node_of(self.opened.hasher, &prefix, &pairs)));
        }
        Ok(())
    }

    /// Puts a node in, and those above it as far as their other children are there.
    fn set(&mut self, mut at: Prefix, mut node: Node) {
        self.nodes.insert(at, node);
        while let (Some(parent), Some(sibling)) = (at.parent(), at.sibling()) {
            let Some(other) = self.nodes.get(&sibling) else { return };
            let (left, right) = if at.is_right() { (other, &node) } else { (&node, other) };
            node = combine(self.opened.hasher, left, right);
            at = parent;
            self.nodes.insert(at, node);
        }
    }

    /// Goes back from the newest commit.
    fn findings(&mut self) -> Vec<String> {
        let (undo, tip, namespace) =
            (&self.recovered.history.undo, &self.recovered.tip, self.trie.namespace);
        let mut before = std::mem::take(&mut self.before);
        before.sort_by_key(|(commit, ..)| Reverse(*commit));
        let mut before = before.into_iter().peekable();
        let (mut digests, mut findings) = (HashMap::new(), Vec::new());
        for commit in (undo.from()..=tip.number).rev() {
            while let Some((_, prefix, node)) = before.next_if(|(by, ..)| *by > commit) {
                self.set(prefix, node);
            }
            let roots = match undo.past(commit) {
                Ok((roots, _)) => roots,
                Err(_) if commit == tip.number => tip.roots.clone(),
                Err(_) => continue,
            };
            let Some(TrieRoot { kind, node }) = roots.of(namespace) else { continue };
            let found = self.nodes.get(&Prefix::ROOT).copied().unwrap_or(TERMINATOR);
            let at = of(namespace);
            if kind == TrieKind::Merkle && found != node {
                let (found, node) = (hex(found), hex(node));
                findings.push(format!(
                    "{at}the pairs as of commit {commit} fold to {found}, its root is {node}"
                ));
            }
            if kind == TrieKind::Plain {
                let (other, same) = *digests.entry(node).or_insert((commit, found));
                if same != found {
                    findings.push(format!(
                        "{at}commits {commit} and {other} have the same digest and other pairs"
                    ));
                }
            }
        }
        findings
    }
}

/// The node of a page of these pairs.
fn node_of(hasher: Hasher, prefix: &Prefix, pairs: &[PendingChange]) -> Node {
    let mut folder = Folder::new(hasher);
    let mut span = folder.below(prefix.len());
    for (key, stored) in pairs {
        if let Some(value) = stored.fold_value() {
            span.unaccessed(key, value);
        }
    }
    let fold = span.end().expect("no terminal is placed here");
    folder.run();
    *folder.node(fold)
}
