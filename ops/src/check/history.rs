//! The history: replaced values, restored over the pages, fold to the roots that were recorded.
//!
//! The pages below which a key has changed since the history began are read once more, those of one region after the
//! other. A commit's changes are undone, and the nodes above are computed again, those of its page at once, and those
//! of the trie for a commit together; so the work is that of the changes, whatever the size of the database.

use std::cmp::Reverse;
use std::collections::HashMap;

use pleach::Result;
use pleach::internals::hexadecimal::hex;
use pleach::internals::open::pages::parse;
use pleach::internals::open::recovery::{RecoveredState, RecoveredTrie};
use pleach::internals::roots::TrieRoot;
use pleach_beatree::{RegionState, Stored};
use pleach_core::node::{combine, leaf};
use pleach_core::prefix::bit;
use pleach_core::{Hasher, Key, Node, Prefix, TERMINATOR};
use pleach_io::{File, PageBuf};
use pleach_journal::format::trie_kind::TrieKind;

use super::report::of;
use crate::opened::OpenedDatabase;

/// The findings. A trie with a page that cannot be read is left out: the page is a finding of its own. `tell` is called
/// with the number of children of regions read, and as many again while commits are undone.
pub(super) fn findings(
    opened: &OpenedDatabase,
    leaves: &File,
    recovered: &RecoveredState,
    tell: &mut dyn FnMut(u64),
) -> Vec<String> {
    let mut all = Vec::new();
    for trie in &recovered.tries {
        let nodes = HashMap::new();
        let mut past = HistoryCheck {
            opened,
            leaves,
            recovered,
            trie,
            nodes,
            now: Vec::new(),
            before: Vec::new(),
        };
        match past.read_present(tell) {
            Ok(Some(children)) => all.append(&mut past.findings(children, tell)),
            Ok(None) => {}
            Err(error) => all.push(format!("{}the history: {error}", of(trie.namespace))),
        }
    }
    all
}

/// The value of a key before a commit.
type PriorValue = (u64, Key, Stored);

/// The node of a page before a commit.
type PageNode = (u64, Prefix, Node);

/// The history of a trie.
struct HistoryCheck<'a> {
    opened: &'a OpenedDatabase,
    leaves: &'a File,
    recovered: &'a RecoveredState,
    trie: &'a RecoveredTrie,
    /// The nodes of regions, or of their pages where one has a change, and all above. A plain trie has only nodes of
    /// pages with a change, so that its topmost node covers only these.
    nodes: HashMap<Prefix, Node>,
    /// The present nodes, in key order.
    now: Vec<PageNode>,
    /// The nodes of pages before commits, of each commit in key order.
    before: Vec<PageNode>,
}

impl HistoryCheck<'_> {
    /// Reads the present, and the nodes before commits; returns the number of the regions' children. `None`: a page
    /// cannot be used.
    fn read_present(&mut self, tell: &mut dyn FnMut(u64)) -> Result<Option<u64>> {
        let (tip, mut all) = (self.recovered.tip.number, 0);
        for region in self.trie.regions.regions() {
            let state = region.read();
            let replaced = self.replaced(region.prefix())?;
            if replaced.is_empty() {
                self.now.push((tip, *region.prefix(), *state.own_node()));
            } else {
                let mut left = &replaced[..];
                for child in 0..state.children().len() {
                    let prefix = state.children().prefix(child);
                    let count = left.partition_point(|(_, key, _)| prefix.covers(key));
                    let (below, rest) = left.split_at(count);
                    if below.is_empty() {
                        self.now.push((tip, prefix, *state.node(child)));
                    } else if self.page(&state, child, below).is_none() {
                        return Ok(None);
                    }
                    left = rest;
                }
            }
            tell(state.children().len() as u64);
            all += state.children().len() as u64;
        }
        Ok(Some(all))
    }

    /// The values that commits of the history replaced below a prefix, in key order.
    fn replaced(&self, prefix: &Prefix) -> Result<Vec<PriorValue>> {
        let (undo, namespace) = (&self.recovered.history.undo, self.trie.namespace);
        let (below, mut replaced) = (*prefix.first_key()..=prefix.last_key(), Vec::new());
        for (key, _) in undo.get_ranges(namespace, &[below], undo.oldest_commit())? {
            let mut before = undo.oldest_commit();
            while let Some((commit, prior)) = undo.change_after(namespace, &key, before)? {
                replaced.push((commit, key, prior));
                before = commit;
            }
        }
        Ok(replaced)
    }

    /// Adds the present node of a page, and that before each commit that changed it. `None`: the page cannot be used.
    fn page(&mut self, state: &RegionState, child: usize, replaced: &[PriorValue]) -> Option<()> {
        let (prefix, database) = (state.children().prefix(child), self.opened.newest.database);
        let mut page =
            PastPage { hasher: self.opened.hasher, prefix, pairs: vec![], nodes: HashMap::new() };
        if let Some(number) = state.children().page(child) {
            let mut buf = PageBuf::zeroed(1);
            self.opened.device.read_at(self.leaves, &mut buf, number.offset()).ok()?;
            let tag = state.children().tag(child);
            let view = parse(&buf, database, state.namespace(), number, tag).ok()?;
            if view.prefix() != prefix {
                return None;
            }
            for (key, cell) in view.iter() {
                page.put(&key, &Stored::from_cell(cell));
            }
        }
        let mut buffered = Vec::new();
        state.copy_buffered(&prefix, &mut buffered);
        for (key, stored) in &buffered {
            page.put(key, stored);
        }
        self.now.push((self.recovered.tip.number, prefix, page.node(&[])));
        // The newest first, and of each commit in key order.
        let mut replaced: Vec<&PriorValue> = replaced.iter().collect();
        replaced.sort_by_key(|(commit, ..)| Reverse(*commit));
        for same in replaced.chunk_by(|a, b| a.0 == b.0) {
            for (_, key, prior) in same {
                page.put(key, prior);
            }
            self.before.push((same[0].0, prefix, page.node(same)));
        }
        Some(())
    }

    /// Sets nodes in key order, and computes those above them up to `at`, whose node is returned.
    fn set(&mut self, at: Prefix, changed: &[PageNode]) -> Node {
        let node = match changed {
            [] => return self.nodes.get(&at).copied().unwrap_or(TERMINATOR),
            [(_, prefix, node)] if *prefix == at => *node,
            _ => {
                let right = changed.partition_point(|(_, to, _)| !bit(to.first_key(), at.len()));
                let (left, right) = changed.split_at(right);
                let [left, right] =
                    [self.set(at.child(false), left), self.set(at.child(true), right)];
                combine(self.opened.hasher, &left, &right)
            }
        };
        self.nodes.insert(at, node);
        node
    }

    /// Undoes commits from the newest on.
    fn findings(&mut self, children: u64, tell: &mut dyn FnMut(u64)) -> Vec<String> {
        let (undo, tip, namespace) =
            (&self.recovered.history.undo, &self.recovered.tip, self.trie.namespace);
        let (now, mut before) = (std::mem::take(&mut self.now), std::mem::take(&mut self.before));
        let mut found = self.set(Prefix::ROOT, &now);
        before.sort_by_key(|(commit, ..)| Reverse(*commit));
        let mut left = &before[..];
        let (mut digests, mut findings) = (HashMap::new(), Vec::new());
        let commits = tip.number - undo.oldest_commit() + 1;
        for (back, commit) in (0..).zip((undo.oldest_commit()..=tip.number).rev()) {
            tell(children * (back + 1) / commits - children * back / commits);
            let (later, rest) = left.split_at(left.partition_point(|(by, ..)| *by > commit));
            for same in later.chunk_by(|a, b| a.0 == b.0) {
                found = self.set(Prefix::ROOT, same);
            }
            left = rest;
            let roots = match undo.commit_state(commit) {
                Ok(state) => state.roots,
                Err(_) if commit == tip.number => tip.roots.clone(),
                Err(_) => continue,
            };
            let Some(TrieRoot { kind, node }) = roots.of(namespace) else { continue };
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

/// A page with a change, as of some commit.
struct PastPage {
    hasher: Hasher,
    prefix: Prefix,
    /// The page's keys in order, with their leaf nodes.
    pairs: Vec<(Key, Node)>,
    /// The nodes of prefixes with two keys or more.
    nodes: HashMap<Prefix, Node>,
}

impl PastPage {
    fn put(&mut self, key: &Key, stored: &Stored) {
        let at = self.pairs.binary_search_by(|(other, _)| other.cmp(key));
        let hash = stored.fold_value().map(|value| value.hash(self.hasher));
        match (at, hash.map(|hash| leaf(self.hasher, key, &hash))) {
            (Ok(at), Some(node)) => self.pairs[at].1 = node,
            (Ok(at), None) => drop(self.pairs.remove(at)),
            (Err(at), Some(node)) => self.pairs.insert(at, (*key, node)),
            (Err(_), None) => {}
        }
    }

    /// The page's node, after changes in key order.
    fn node(&mut self, changed: &[&PriorValue]) -> Node {
        fold(self.hasher, &mut self.nodes, self.prefix, &self.pairs, changed)
    }
}

/// The node of a prefix with these pairs. Where nothing below has changed, the known one.
fn fold(
    hasher: Hasher,
    nodes: &mut HashMap<Prefix, Node>,
    at: Prefix,
    pairs: &[(Key, Node)],
    changed: &[&PriorValue],
) -> Node {
    match pairs {
        [] => return TERMINATOR,
        [(_, leaf)] => return *leaf,
        _ => {}
    }
    if let Some(node) = nodes.get(&at).filter(|_| changed.is_empty()) {
        return *node;
    }
    let is_left = |key: &Key| !bit(key, at.len());
    let (left, right) = pairs.split_at(pairs.partition_point(|(key, _)| is_left(key)));
    let (first, second) = changed.split_at(changed.partition_point(|(_, key, _)| is_left(key)));
    let left = fold(hasher, nodes, at.child(false), left, first);
    let right = fold(hasher, nodes, at.child(true), right, second);
    let node = combine(hasher, &left, &right);
    nodes.insert(at, node);
    node
}
