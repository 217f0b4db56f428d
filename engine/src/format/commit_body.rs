//! The body of a commit record: everything that replay needs, so that it reads no leaf page.
//!
//! ```text
//! head        namespaces u16 | flags u16 | blob length u32 | 0 u64; with flag 1: kept from u64
//! table       one entry for each namespace that the commit says something of, ascending:
//!             ns u8 | kind u8 | 0 u16 | changes u32 | nodes u32 | 0 u32
//!             | bytes of changes u64 | bytes of nodes u64 | bytes of undo u64
//!             | previous root 32 | new root 32
//! blob        the application's bytes
//! before      with flag 1: length u32 | the blob before
//! sections    for each namespace:
//!   changes   key 32 | value, ascending by key
//!   nodes     prefix | node 32, ascending by prefix
//!   undo      with flag 1: the value before each change, in the order of the changes, then the
//!             node before (32 bytes) of each prefix, in the order of the nodes, then for each
//!             region with a change: its prefix | its node before 32
//! value       0 = absent | 1, length u32, bytes | 2, length u32, cell of an overflow value
//! prefix      length in bits u16, then the bytes that hold a bit of it
//! ```
//!
//! Kinds of entries ([`EntryKind`]), which say what becomes of the namespace as such:
//!
//! | kind | | previous root | new root | changes and nodes |
//! |---|---|---|---|---|
//! | 0 | changed: it exists before and after | its root | its root | any |
//! | 1 | added: it did not exist | terminator | its root | any |
//! | 2 | dropped: it does not exist afterwards | its root | terminator | none |
//! | 3 | restored: it was dropped and exists again | terminator | its root | over those that it had when it was dropped |
//!
//! Namespace 0 is only ever changed. A record that says otherwise is refused.
//!
//! *Kept from* is the oldest commit that can still be read when this one is the newest: what the
//! undo of it and of older ones names may be written over once this record is durable.
//!
//! Sections are byte strings that concatenate: workers encode slices of a sorted batch with
//! [`ChangeSection`] and [`NodeSection`], and the pieces become parts of one record without a
//! copy. The views check every length before it is used and allocate nothing.

use pleach_core::{Key, Node, Prefix, TERMINATOR};

use super::bytes::{BodyError, Cursor};
use super::record::{Kind, RecordBuf};

/// Largest application blob.
pub const MAX_BLOB: u32 = 64 << 10;
/// Largest overflow cell: it has to fit a leaf page.
pub const MAX_OVERFLOW_CELL: u32 = 4000;

const HEAD_LEN: usize = 16;
const ENTRY_LEN: usize = 16 + 3 * 8 + 2 * 32;
const FLAG_UNDO: u16 = 1;

const ABSENT: u8 = 0;
const INLINE: u8 = 1;
const OVERFLOW: u8 = 2;

/// A value as the log keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The key has no value (deleted, or absent before).
    Absent,
    /// The value's bytes.
    Inline(&'a [u8]),
    /// The value is in overflow runs; this is the cell that names them.
    Overflow(&'a [u8]),
}

/// Appends a value: the payload of a change, or what a change replaced.
///
/// # Panics
/// When it has 4 GiB or more; limits on values are far below.
#[inline]
pub fn encode_value(out: &mut Vec<u8>, value: Value<'_>) {
    let (kind, bytes) = match value {
        Value::Absent => return out.push(ABSENT),
        Value::Inline(bytes) => (INLINE, bytes),
        Value::Overflow(cell) => (OVERFLOW, cell),
    };
    let len = u32::try_from(bytes.len()).expect("values are limited to far less than 4 GiB");
    let [a, b, c, d] = len.to_le_bytes();
    out.extend_from_slice(&[kind, a, b, c, d]);
    out.extend_from_slice(bytes);
}

/// Appends a change.
#[inline]
pub fn encode_change(out: &mut Vec<u8>, key: &Key, value: Value<'_>) {
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

/// Encoded changes of an ascending slice of keys, with what they replaced where that is kept.
#[derive(Debug, Default)]
pub struct ChangeSection {
    bytes: Vec<u8>,
    undo: Vec<u8>,
    count: u32,
}

impl ChangeSection {
    /// An empty section over buffers that may have been used before.
    pub fn over(mut bytes: Vec<u8>, mut undo: Vec<u8>) -> Self {
        bytes.clear();
        undo.clear();
        Self { bytes, undo, count: 0 }
    }

    /// Appends a change of a key above the last one.
    #[inline]
    pub fn push(&mut self, key: &Key, value: Value<'_>) {
        encode_change(&mut self.bytes, key, value);
        self.count += 1;
    }

    /// Appends a change and the value before it. Either all changes of a commit are pushed
    /// this way, or none.
    #[inline]
    pub fn push_with_undo(&mut self, key: &Key, value: Value<'_>, before: Value<'_>) {
        self.push(key, value);
        encode_value(&mut self.undo, before);
    }

    /// Number of changes.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// Encoded nodes of an ascending slice of prefixes, with what they replaced where that is kept.
#[derive(Debug, Default)]
pub struct NodeSection {
    bytes: Vec<u8>,
    undo: Vec<u8>,
    regions: Vec<u8>,
    count: u32,
}

impl NodeSection {
    /// An empty section over buffers that may have been used before.
    pub fn over(mut bytes: Vec<u8>, mut undo: Vec<u8>) -> Self {
        bytes.clear();
        undo.clear();
        Self { bytes, undo, regions: Vec::new(), count: 0 }
    }

    /// Appends the node of a prefix above the last one.
    #[inline]
    pub fn push(&mut self, prefix: &Prefix, node: &Node) {
        encode_node(&mut self.bytes, prefix, node);
        self.count += 1;
    }

    /// Appends a node and the node before it, for all nodes of a commit or for none.
    #[inline]
    pub fn push_with_undo(&mut self, prefix: &Prefix, node: &Node, before: &Node) {
        self.push(prefix, node);
        self.undo.extend_from_slice(before.as_ref());
    }

    /// Appends the node that a changed region had before, for all of them or for none.
    #[inline]
    pub fn push_region(&mut self, prefix: &Prefix, before: &Node) {
        encode_node(&mut self.regions, prefix, before);
    }

    /// Number of nodes.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// What a commit makes of a namespace as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// It exists before and after.
    Changed,
    /// It did not exist before, and nothing of an earlier one of its number is left.
    Added,
    /// It does not exist afterwards.
    Dropped,
    /// It was dropped before, and exists again with what it had.
    Restored,
}

impl EntryKind {
    fn of_byte(byte: u8) -> Result<Self, BodyError> {
        Ok(match byte {
            0 => Self::Changed,
            1 => Self::Added,
            2 => Self::Dropped,
            3 => Self::Restored,
            other => return Err(BodyError::EntryKind(other)),
        })
    }

    fn byte(self) -> u8 {
        match self {
            Self::Changed => 0,
            Self::Added => 1,
            Self::Dropped => 2,
            Self::Restored => 3,
        }
    }

    /// May a record have such an entry? Each state has one form.
    fn is_canonical(self, ns: u8, [previous, new]: [&Node; 2], is_bare: bool) -> bool {
        let from_none = *previous == TERMINATOR;
        match self {
            Self::Changed => true,
            Self::Added | Self::Restored => ns != 0 && from_none,
            Self::Dropped => ns != 0 && is_bare && *new == TERMINATOR,
        }
    }
}

/// What a commit that is to be encoded says of one namespace.
#[derive(Debug)]
pub struct NamespacePart {
    /// The namespace.
    pub ns: u8,
    /// What becomes of it as such.
    pub kind: EntryKind,
    /// Its root before the commit.
    pub previous_root: Node,
    /// Its root after the commit.
    pub new_root: Node,
    /// Its changes; the sections' keys ascend from one to the next.
    pub changes: Vec<ChangeSection>,
    /// The new nodes of the changed prefixes; they ascend from one section to the next.
    pub nodes: Vec<NodeSection>,
}

/// What a record with undo says of the commits before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before<'a> {
    /// The oldest commit that can still be read when this one is the newest.
    pub kept_from: u64,
    /// The blob before.
    pub blob: &'a [u8],
}

/// A commit record over encoded sections, without copying them.
///
/// `before` says that every change and node was pushed with what it replaced.
///
/// # Panics
/// When a blob is longer than [`MAX_BLOB`], which the engine refuses long before, or when a
/// namespace has 2^32 changes.
pub fn commit_record(
    database: u64,
    number: u64,
    blob: &[u8],
    before: Option<Before<'_>>,
    namespaces: Vec<NamespacePart>,
) -> RecordBuf {
    let blob_len = u32::try_from(blob.len()).unwrap_or(u32::MAX);
    assert!(blob_len <= MAX_BLOB, "the engine checks the blob's length");
    debug_assert!(namespaces.is_sorted_by(|a, b| a.ns < b.ns), "namespaces ascend");
    let count = u16::try_from(namespaces.len()).expect("at most 256 namespaces");

    let mut front = Vec::with_capacity(HEAD_LEN + namespaces.len() * ENTRY_LEN + blob.len());
    front.extend_from_slice(&count.to_le_bytes());
    let flags = if before.is_some() { FLAG_UNDO } else { 0 };
    front.extend_from_slice(&flags.to_le_bytes());
    front.extend_from_slice(&blob_len.to_le_bytes());
    front.extend_from_slice(&before.map_or(0, |before| before.kept_from).to_le_bytes());
    for part in &namespaces {
        encode_entry(&mut front, part);
    }
    front.extend_from_slice(blob);
    if let Some(before) = before {
        let len = u32::try_from(before.blob.len()).unwrap_or(u32::MAX);
        assert!(len <= MAX_BLOB, "it was a blob before");
        front.extend_from_slice(&len.to_le_bytes());
        front.extend_from_slice(before.blob);
    }

    let pieces: usize = namespaces.iter().map(|ns| 2 * ns.changes.len() + 3 * ns.nodes.len()).sum();
    let mut parts = Vec::with_capacity(1 + pieces);
    parts.push(front);
    for part in namespaces {
        let mut undo = Vec::new();
        for section in part.changes {
            parts.push(section.bytes);
            undo.push(section.undo);
        }
        let mut regions = Vec::new();
        for section in part.nodes {
            parts.push(section.bytes);
            undo.push(section.undo);
            regions.push(section.regions);
        }
        parts.append(&mut undo);
        parts.append(&mut regions);
    }
    RecordBuf::new(database, Kind::Commit, number, parts)
}

fn encode_entry(out: &mut Vec<u8>, part: &NamespacePart) {
    let changes: u64 = part.changes.iter().map(|s| u64::from(s.count)).sum();
    let nodes: u64 = part.nodes.iter().map(|s| u64::from(s.count)).sum();
    let change_bytes: usize = part.changes.iter().map(|s| s.bytes.len()).sum();
    let node_bytes: usize = part.nodes.iter().map(|s| s.bytes.len()).sum();
    let undo_bytes: usize = part.changes.iter().map(|s| s.undo.len()).sum::<usize>()
        + part.nodes.iter().map(|s| s.undo.len() + s.regions.len()).sum::<usize>();
    let count = |n: u64| u32::try_from(n).expect("a batch has fewer than 2^32 changes");
    let is_bare = change_bytes + node_bytes + undo_bytes == 0;
    debug_assert!(
        part.kind.is_canonical(part.ns, [&part.previous_root, &part.new_root], is_bare),
        "namespace {} is {:?}",
        part.ns,
        part.kind
    );
    out.extend_from_slice(&[part.ns, part.kind.byte(), 0, 0]);
    out.extend_from_slice(&count(changes).to_le_bytes());
    out.extend_from_slice(&count(nodes).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    for bytes in [change_bytes, node_bytes, undo_bytes] {
        out.extend_from_slice(&(bytes as u64).to_le_bytes());
    }
    out.extend_from_slice(part.previous_root.as_ref());
    out.extend_from_slice(part.new_root.as_ref());
}

/// A commit's body, its head checked. Sections are checked as they are iterated.
#[derive(Clone, Copy, Debug)]
pub struct CommitView<'a> {
    /// The application's blob.
    pub blob: &'a [u8],
    /// What it says of the commits before it, when it carries what it replaced.
    pub before: Option<Before<'a>>,
    table: &'a [u8],
    sections: &'a [u8],
}

impl<'a> CommitView<'a> {
    /// Checks head, table and the lengths of all sections.
    pub fn parse(body: &'a [u8]) -> Result<Self, BodyError> {
        let mut cursor = Cursor::new(body);
        let count = cursor.u16()?;
        let flags = cursor.u16()?;
        let blob_len = cursor.u32()?;
        let kept_from = cursor.u64()?;
        if flags & !FLAG_UNDO != 0 {
            return Err(BodyError::Flags(flags));
        }
        let has_undo = flags & FLAG_UNDO != 0;
        if !has_undo && kept_from != 0 {
            return Err(BodyError::Reserved);
        }
        let table = cursor.take(u64::from(count) * ENTRY_LEN as u64)?;
        let blob = take_blob(&mut cursor, blob_len)?;
        let before = if has_undo {
            let len = cursor.u32()?;
            Some(Before { kept_from, blob: take_blob(&mut cursor, len)? })
        } else {
            None
        };
        let sections = cursor.take(cursor.len() as u64)?;
        let view = Self { blob, before, table, sections };
        let mut namespaces = view.namespaces();
        let mut last = None;
        for entry in namespaces.by_ref() {
            let entry = entry?;
            if last.is_some_and(|last| entry.ns <= last) {
                return Err(BodyError::Unsorted);
            }
            if !has_undo && !entry.undo.is_empty() {
                return Err(BodyError::Trailing);
            }
            last = Some(entry.ns);
        }
        if namespaces.sections.is_empty() { Ok(view) } else { Err(BodyError::Trailing) }
    }

    /// The namespaces that it says something of, ascending. None of them is an error after [`CommitView::parse`].
    pub fn namespaces(&self) -> Namespaces<'a> {
        Namespaces { table: Cursor::new(self.table), sections: Cursor::new(self.sections) }
    }
}

/// Iterator over a commit's namespaces.
#[derive(Clone, Debug)]
pub struct Namespaces<'a> {
    table: Cursor<'a>,
    sections: Cursor<'a>,
}

impl<'a> Namespaces<'a> {
    fn entry(&mut self) -> Result<NamespaceView<'a>, BodyError> {
        let ns = self.table.u8()?;
        let kind = EntryKind::of_byte(self.table.u8()?)?;
        self.table.reserved::<2>()?;
        let changes = self.table.u32()?;
        let nodes = self.table.u32()?;
        self.table.reserved::<4>()?;
        let lens = [self.table.u64()?, self.table.u64()?, self.table.u64()?];
        let view = NamespaceView {
            ns,
            kind,
            change_count: changes,
            node_count: nodes,
            previous_root: Node::ref_of(self.table.array()?),
            new_root: Node::ref_of(self.table.array()?),
            changes: self.sections.take(lens[0])?,
            nodes: self.sections.take(lens[1])?,
            undo: self.sections.take(lens[2])?,
        };
        let is_bare = changes == 0 && nodes == 0 && lens == [0; 3];
        if kind.is_canonical(ns, [view.previous_root, view.new_root], is_bare) {
            Ok(view)
        } else {
            Err(BodyError::Entry { ns, kind: kind.byte() })
        }
    }
}

impl<'a> Iterator for Namespaces<'a> {
    type Item = Result<NamespaceView<'a>, BodyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.table.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.table = Cursor::new(&[]);
        }
        Some(entry)
    }
}

/// One namespace of a commit.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceView<'a> {
    /// The namespace.
    pub ns: u8,
    /// What becomes of it as such.
    pub kind: EntryKind,
    /// Number of changes that [`NamespaceView::changes`] gives. Claimed: reserve nothing from it
    /// that the section's length does not bear out.
    pub change_count: u32,
    /// Number of nodes that [`NamespaceView::nodes`] gives; claimed, too.
    pub node_count: u32,
    /// Root before the commit.
    pub previous_root: &'a Node,
    /// Root after the commit.
    pub new_root: &'a Node,
    changes: &'a [u8],
    nodes: &'a [u8],
    undo: &'a [u8],
}

impl<'a> NamespaceView<'a> {
    /// The changes, strictly ascending by key.
    pub fn changes(&self) -> Changes<'a> {
        Changes { rest: Cursor::new(self.changes), left: self.change_count, last: None }
    }

    /// The new nodes, strictly ascending by prefix.
    pub fn nodes(&self) -> Nodes<'a> {
        Nodes { rest: Cursor::new(self.nodes), left: self.node_count, last: None }
    }

    /// What the commit replaced; everything is absent from it when the record has no undo.
    pub fn undo(&self) -> Undo<'a> {
        let kept = !self.undo.is_empty();
        Undo {
            rest: Cursor::new(self.undo),
            values: if kept { self.change_count } else { 0 },
            nodes: if kept { self.node_count } else { 0 },
            last: None,
        }
    }

    /// An upper bound of the number of changes that the bytes can hold, for reservations.
    pub fn change_bound(&self) -> usize {
        (self.change_count as usize).min(self.changes.len() / 33)
    }

    /// An upper bound of the number of nodes that the bytes can hold, for reservations.
    pub fn node_bound(&self) -> usize {
        (self.node_count as usize).min(self.nodes.len() / 34)
    }
}

fn take_blob<'a>(cursor: &mut Cursor<'a>, len: u32) -> Result<&'a [u8], BodyError> {
    if len > MAX_BLOB { Err(BodyError::Blob(len)) } else { cursor.take(u64::from(len)) }
}

fn take_value<'a>(cursor: &mut Cursor<'a>) -> Result<Value<'a>, BodyError> {
    match cursor.u8()? {
        ABSENT => Ok(Value::Absent),
        INLINE => {
            let len = cursor.u32()?;
            Ok(Value::Inline(cursor.take(u64::from(len))?))
        }
        OVERFLOW => {
            let len = cursor.u32()?;
            if len > MAX_OVERFLOW_CELL {
                return Err(BodyError::Truncated);
            }
            Ok(Value::Overflow(cursor.take(u64::from(len))?))
        }
        kind => Err(BodyError::Kind(kind)),
    }
}

pub(super) fn take_prefix(cursor: &mut Cursor<'_>) -> Result<Prefix, BodyError> {
    let len = cursor.u16()?;
    if len > 256 {
        return Err(BodyError::Prefix);
    }
    let bytes = cursor.take(u64::from(len.div_ceil(8)))?;
    let mut bits = [0; 32];
    bits[..bytes.len()].copy_from_slice(bytes);
    Prefix::from_raw(bits, len).ok_or(BodyError::Prefix)
}

/// Iterator over changes; it ends after the first error.
#[derive(Clone, Debug)]
pub struct Changes<'a> {
    rest: Cursor<'a>,
    left: u32,
    last: Option<&'a Key>,
}

impl<'a> Changes<'a> {
    fn change(&mut self) -> Result<(&'a Key, Value<'a>), BodyError> {
        let key: &Key = self.rest.array()?;
        if self.last.is_some_and(|last| key <= last) {
            return Err(BodyError::Unsorted);
        }
        self.last = Some(key);
        Ok((key, take_value(&mut self.rest)?))
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = Result<(&'a Key, Value<'a>), BodyError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let item = next_item(&mut self.left, &self.rest)?.and_then(|()| self.change());
        if item.is_err() {
            (self.left, self.rest) = (0, Cursor::new(&[]));
        }
        Some(item)
    }
}

/// Iterator over nodes; it ends after the first error.
#[derive(Clone, Debug)]
pub struct Nodes<'a> {
    rest: Cursor<'a>,
    left: u32,
    last: Option<Prefix>,
}

impl<'a> Nodes<'a> {
    fn node(&mut self) -> Result<(Prefix, &'a Node), BodyError> {
        let prefix = take_prefix(&mut self.rest)?;
        if self.last.is_some_and(|last| prefix <= last) {
            return Err(BodyError::Unsorted);
        }
        self.last = Some(prefix);
        Ok((prefix, Node::ref_of(self.rest.array()?)))
    }
}

impl<'a> Iterator for Nodes<'a> {
    type Item = Result<(Prefix, &'a Node), BodyError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let item = next_item(&mut self.left, &self.rest)?.and_then(|()| self.node());
        if item.is_err() {
            (self.left, self.rest) = (0, Cursor::new(&[]));
        }
        Some(item)
    }
}

/// What a commit replaced: one value a change, then one node a prefix, then the regions' nodes.
#[derive(Clone, Debug)]
pub struct Undo<'a> {
    rest: Cursor<'a>,
    values: u32,
    nodes: u32,
    last: Option<Prefix>,
}

/// One replaced thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced<'a> {
    /// Value before the change of the same rank.
    Value(Value<'a>),
    /// Node before the new node of the same rank.
    Node(&'a Node),
    /// Node before of a region; they ascend strictly.
    Region(Prefix, &'a Node),
}

impl<'a> Undo<'a> {
    fn item(&mut self) -> Result<Replaced<'a>, BodyError> {
        if let Some(values) = self.values.checked_sub(1) {
            self.values = values;
            return take_value(&mut self.rest).map(Replaced::Value);
        }
        if let Some(nodes) = self.nodes.checked_sub(1) {
            self.nodes = nodes;
            return self.rest.array().map(|node| Replaced::Node(Node::ref_of(node)));
        }
        let prefix = take_prefix(&mut self.rest)?;
        if self.last.is_some_and(|last| prefix <= last) {
            return Err(BodyError::Unsorted);
        }
        self.last = Some(prefix);
        Ok(Replaced::Region(prefix, Node::ref_of(self.rest.array()?)))
    }
}

impl<'a> Iterator for Undo<'a> {
    type Item = Result<Replaced<'a>, BodyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.values == 0 && self.nodes == 0 && self.rest.is_empty() {
            return None;
        }
        let item = self.item();
        if item.is_err() {
            *self = Self { rest: Cursor::new(&[]), values: 0, nodes: 0, last: None };
        }
        Some(item)
    }
}

/// Counts one item down; after the last one, left-over bytes are an error.
#[inline]
fn next_item(left: &mut u32, rest: &Cursor<'_>) -> Option<Result<(), BodyError>> {
    match left.checked_sub(1) {
        Some(fewer) => {
            *left = fewer;
            Some(Ok(()))
        }
        None if rest.is_empty() => None,
        None => Some(Err(BodyError::Trailing)),
    }
}
