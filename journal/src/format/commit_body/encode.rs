//! Writing a commit's body: sections, encoded slice by slice, and the record over them.

use pleach_core::{Key, Node, Prefix};

use super::{
    ABSENT, ENTRY_LEN, EntryKind, FLAG_ROLLBACK, FLAG_TIME, FLAG_UNDO, HEAD_LEN, INLINE,
    LoggedValue, MAX_BLOB, OVERFLOW, UndoHeader,
};
use crate::format::record::{LogRecordKind, RecordBuf};
use crate::format::trie_kind::TrieKind;

/// Appends a value: of a change, or one that a change replaced.
///
/// # Panics
/// When it has 4 GiB or more; limits on values are far below.
#[inline]
pub fn encode_value(out: &mut Vec<u8>, value: LoggedValue<'_>) {
    let (kind, bytes) = match value {
        LoggedValue::Absent => return out.push(ABSENT),
        LoggedValue::Inline(bytes) => (INLINE, bytes),
        LoggedValue::Overflow(cell) => (OVERFLOW, cell),
    };
    let len = u32::try_from(bytes.len()).expect("values are limited to far less than 4 GiB");
    let [a, b, c, d] = len.to_le_bytes();
    out.extend_from_slice(&[kind, a, b, c, d]);
    out.extend_from_slice(bytes);
}

/// Appends a change.
#[inline]
pub fn encode_change(out: &mut Vec<u8>, key: &Key, value: LoggedValue<'_>) {
    out.extend_from_slice(key);
    encode_value(out, value);
}

/// Appends a prefix.
#[inline]
pub fn encode_prefix(out: &mut Vec<u8>, prefix: &Prefix) {
    out.extend_from_slice(&prefix.len().to_le_bytes());
    out.extend_from_slice(&prefix.first_key()[..usize::from(prefix.len().div_ceil(8))]);
}

/// Appends a prefix and its node.
#[inline]
pub fn encode_node(out: &mut Vec<u8>, prefix: &Prefix, node: &Node) {
    encode_prefix(out, prefix);
    out.extend_from_slice(node.as_ref());
}

/// An ascending slice of a commit's changes and new nodes, encoded, with the replaced values and nodes where there is a
/// history.
#[derive(Debug, Default)]
pub struct Section {
    changes: Vec<u8>,
    nodes: Vec<u8>,
    values_before: Vec<u8>,
    nodes_before: Vec<u8>,
    regions_before: Vec<u8>,
    change_count: u32,
    node_count: u32,
}

impl Section {
    /// An empty section with room for these numbers of bytes of changes and of nodes.
    pub fn with_room(changes: usize, nodes: usize) -> Self {
        let (changes, nodes) = (Vec::with_capacity(changes), Vec::with_capacity(nodes));
        Self { changes, nodes, ..Self::default() }
    }

    /// Appends a change of a key above the last one.
    #[inline]
    pub fn push(&mut self, key: &Key, value: LoggedValue<'_>) {
        encode_change(&mut self.changes, key, value);
        self.change_count += 1;
    }

    /// Appends a change and the value before it. Either all changes of a commit are pushed this way, or none.
    #[inline]
    pub fn push_with_undo(&mut self, key: &Key, value: LoggedValue<'_>, before: LoggedValue<'_>) {
        self.push(key, value);
        encode_value(&mut self.values_before, before);
    }

    /// Appends the node of a prefix above the last one.
    #[inline]
    pub fn push_node(&mut self, prefix: &Prefix, node: &Node) {
        encode_node(&mut self.nodes, prefix, node);
        self.node_count += 1;
    }

    /// Appends a node and the node before it, for all nodes of a commit or for none.
    #[inline]
    pub fn push_node_with_undo(&mut self, prefix: &Prefix, node: &Node, before: &Node) {
        self.push_node(prefix, node);
        self.nodes_before.extend_from_slice(before.as_ref());
    }

    /// Appends the node that a changed region had before, for all of them or for none.
    #[inline]
    pub fn push_region(&mut self, prefix: &Prefix, before: &Node) {
        encode_node(&mut self.regions_before, prefix, before);
    }

    /// The section's parts, in the order in which those of all sections follow in the record: changes and nodes, then
    /// undo.
    fn parts(&mut self) -> [&mut Vec<u8>; 5] {
        let Self { changes, nodes, values_before, nodes_before, regions_before, .. } = self;
        [changes, nodes, values_before, nodes_before, regions_before]
    }
}

/// The entry of one namespace in a commit that is to be encoded.
#[derive(Debug)]
pub struct NamespacePart {
    /// The namespace.
    pub ns: u8,
    /// The kind of its entry.
    pub kind: EntryKind,
    /// The kind of its trie.
    pub trie: TrieKind,
    /// Its root before the commit, or its digest.
    pub previous_root: Node,
    /// Its root after the commit, or its digest.
    pub new_root: Node,
    /// Its changes and nodes, in order.
    pub sections: Vec<Section>,
}

/// A commit record over encoded sections, without copying them.
///
/// With `undo_header` every change and node was pushed with what it replaced.
///
/// # Panics
/// When a blob is longer than [`MAX_BLOB`], which the engine refuses long before, or when a namespace has 2^32 changes.
pub fn commit_record(
    database: u64,
    number: u64,
    blob: &[u8],
    undo_header: Option<UndoHeader<'_>>,
    namespaces: Vec<NamespacePart>,
) -> RecordBuf {
    let blob_len = u32::try_from(blob.len()).unwrap_or(u32::MAX);
    assert!(blob_len <= MAX_BLOB, "the engine checks the blob's length");
    assert!(namespaces.is_sorted_by(|a, b| a.ns < b.ns), "namespaces ascend");
    let count = u16::try_from(namespaces.len()).expect("at most 256 namespaces");

    let mut front = Vec::with_capacity(HEAD_LEN + namespaces.len() * ENTRY_LEN + blob.len());
    front.extend_from_slice(&count.to_le_bytes());
    let flags = undo_header.map_or(0, |UndoHeader { back_to, time, .. }| {
        FLAG_UNDO | back_to.map_or(0, |_| FLAG_ROLLBACK) | time.map_or(0, |_| FLAG_TIME)
    });
    front.extend_from_slice(&flags.to_le_bytes());
    front.extend_from_slice(&blob_len.to_le_bytes());
    front.extend_from_slice(&undo_header.map_or(0, |before| before.kept_from).to_le_bytes());
    for part in &namespaces {
        encode_entry(&mut front, part);
    }
    front.extend_from_slice(blob);
    if let Some(before) = undo_header {
        let len = u32::try_from(before.blob.len()).unwrap_or(u32::MAX);
        assert!(len <= MAX_BLOB, "it was a blob before");
        front.extend_from_slice(&len.to_le_bytes());
        front.extend_from_slice(before.blob);
        front
            .extend([before.back_to, before.time].into_iter().flatten().flat_map(u64::to_le_bytes));
    }

    let sections: usize = namespaces.iter().map(|part| part.sections.len()).sum();
    let mut parts = Vec::with_capacity(1 + 5 * sections);
    parts.push(front);
    for mut part in namespaces {
        for at in 0..5 {
            let own = part.sections.iter_mut().map(|section| std::mem::take(section.parts()[at]));
            parts.extend(own);
        }
    }
    RecordBuf::new(database, LogRecordKind::Commit, number, parts)
}

fn encode_entry(out: &mut Vec<u8>, part: &NamespacePart) {
    let sum = |of: fn(&Section) -> usize| part.sections.iter().map(of).sum::<usize>();
    let count = |n: usize| u32::try_from(n).expect("a batch has fewer than 2^32 changes");
    let changes = count(sum(|section| section.change_count as usize));
    let nodes = count(sum(|section| section.node_count as usize));
    let change_bytes = sum(|section| section.changes.len());
    let node_bytes = sum(|section| section.nodes.len());
    let undo_bytes = sum(|section| {
        section.values_before.len() + section.nodes_before.len() + section.regions_before.len()
    });
    let is_bare = change_bytes + node_bytes + undo_bytes == 0;
    assert!(
        part.kind.is_canonical(part.ns, part.trie, [&part.previous_root, &part.new_root], is_bare),
        "namespace {} is {:?}",
        part.ns,
        part.kind
    );
    out.extend_from_slice(&[part.ns, part.kind as u8, part.trie as u8, 0]);
    out.extend_from_slice(&changes.to_le_bytes());
    out.extend_from_slice(&nodes.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    for bytes in [change_bytes, node_bytes, undo_bytes] {
        out.extend_from_slice(&(bytes as u64).to_le_bytes());
    }
    out.extend_from_slice(part.previous_root.as_ref());
    out.extend_from_slice(part.new_root.as_ref());
}
