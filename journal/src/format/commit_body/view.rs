//! Reading a commit's body: views that check every length before it is used, and allocate nothing.

use pleach_core::{Key, Node, Prefix};

use super::{
    ABSENT, ENTRY_LEN, EntryKind, FLAG_ROLLBACK, FLAG_TIME, FLAG_UNDO, INLINE, LoggedValue,
    MAX_BLOB, MAX_OVERFLOW_CELL, OVERFLOW, UndoHeader,
};
use crate::format::bytes::{BodyCursor, BodyError, ascend, items};
use crate::format::trie_kind::TrieKind;

/// A commit's body with a checked head. Sections are checked as they are iterated.
#[derive(Clone, Copy, Debug)]
pub struct CommitView<'a> {
    /// The application's blob.
    pub blob: &'a [u8],
    /// Header of the undo, where the record has undo.
    pub undo_header: Option<UndoHeader<'a>>,
    table: &'a [u8],
    sections: &'a [u8],
}

impl<'a> CommitView<'a> {
    /// Checks head, table and the lengths of all sections.
    pub fn parse(body: &'a [u8]) -> Result<Self, BodyError> {
        let mut cursor = BodyCursor::new(body);
        let count = cursor.u16()?;
        let flags = cursor.u16()?;
        let blob_len = cursor.u32()?;
        let kept_from = cursor.u64()?;
        let has = |flag: u16| flags & flag != 0;
        let has_undo = has(FLAG_UNDO);
        let is_known = flags & !(FLAG_UNDO | FLAG_ROLLBACK | FLAG_TIME) == 0;
        if !is_known || (!has_undo && flags != 0) {
            return Err(BodyError::Flags(flags));
        }
        if !has_undo && kept_from != 0 {
            return Err(BodyError::Reserved);
        }
        let table = cursor.take(u64::from(count) * ENTRY_LEN as u64)?;
        let blob = take_blob(&mut cursor, blob_len)?;
        let before = if has_undo {
            let len = cursor.u32()?;
            let blob = take_blob(&mut cursor, len)?;
            let back_to = has(FLAG_ROLLBACK).then(|| cursor.u64()).transpose()?;
            let time = has(FLAG_TIME).then(|| cursor.u64()).transpose()?;
            Some(UndoHeader { kept_from, blob, back_to, time })
        } else {
            None
        };
        let sections = cursor.take(cursor.len() as u64)?;
        let view = Self { blob, undo_header: before, table, sections };
        let mut namespaces = view.namespaces();
        let mut last = None;
        for entry in namespaces.by_ref() {
            let entry = entry?;
            ascend(&mut last, entry.ns)?;
            if !has_undo && !entry.undo.is_empty() {
                return Err(BodyError::Trailing);
            }
        }
        if namespaces.sections.is_empty() { Ok(view) } else { Err(BodyError::Trailing) }
    }

    /// The entries of its namespaces, ascending. None of them is an error after [`CommitView::parse`].
    pub fn namespaces(&self) -> Namespaces<'a> {
        Namespaces { table: BodyCursor::new(self.table), sections: BodyCursor::new(self.sections) }
    }
}

/// Iterator over a commit's namespaces.
#[derive(Clone, Debug)]
pub struct Namespaces<'a> {
    table: BodyCursor<'a>,
    sections: BodyCursor<'a>,
}

impl<'a> Namespaces<'a> {
    fn entry(&mut self) -> Result<NamespaceView<'a>, BodyError> {
        let ns = self.table.u8()?;
        let kind = EntryKind::of_byte(self.table.u8()?)?;
        let byte = self.table.u8()?;
        let trie = TrieKind::of_byte(byte).ok_or(BodyError::Trie(byte))?;
        self.table.reserved::<1>()?;
        let changes = self.table.u32()?;
        let nodes = self.table.u32()?;
        self.table.reserved::<4>()?;
        let lens = [self.table.u64()?, self.table.u64()?, self.table.u64()?];
        let view = NamespaceView {
            ns,
            kind,
            trie,
            change_count: changes,
            node_count: nodes,
            previous_root: Node::ref_of(self.table.array()?),
            new_root: Node::ref_of(self.table.array()?),
            changes: self.sections.take(lens[0])?,
            nodes: self.sections.take(lens[1])?,
            undo: self.sections.take(lens[2])?,
        };
        let is_bare = changes == 0 && nodes == 0 && lens == [0; 3];
        let has_nodes = nodes > 0 || lens[1] > 0;
        let fits = kind.is_canonical(ns, trie, [view.previous_root, view.new_root], is_bare);
        if fits && !(has_nodes && trie == TrieKind::Plain) {
            Ok(view)
        } else {
            Err(BodyError::Entry { ns, kind: kind as u8 })
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
            self.table = BodyCursor::new(&[]);
        }
        Some(entry)
    }
}

/// The entry of one namespace in a commit.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceView<'a> {
    /// The namespace.
    pub ns: u8,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The kind of its trie.
    pub trie: TrieKind,
    /// Number of changes that [`NamespaceView::changes`] gives. Unchecked: reserve no memory for more than the
    /// section's length allows.
    pub change_count: u32,
    /// Number of nodes that [`NamespaceView::nodes`] gives; unchecked, too.
    pub node_count: u32,
    /// Root before the commit, or digest.
    pub previous_root: &'a Node,
    /// Root after the commit, or digest.
    pub new_root: &'a Node,
    changes: &'a [u8],
    nodes: &'a [u8],
    undo: &'a [u8],
}

impl<'a> NamespaceView<'a> {
    /// The changes, strictly ascending by key.
    pub fn changes(
        &self,
    ) -> impl Iterator<Item = Result<(&'a Key, LoggedValue<'a>), BodyError>> + use<'a> {
        let mut last = None;
        items(self.changes, self.change_count, move |rest| {
            let key: &Key = rest.array()?;
            ascend(&mut last, key)?;
            Ok((key, take_value(rest)?))
        })
    }

    /// The new nodes, strictly ascending by prefix.
    pub fn nodes(&self) -> impl Iterator<Item = Result<(Prefix, &'a Node), BodyError>> + use<'a> {
        let mut last = None;
        items(self.nodes, self.node_count, move |rest| {
            let prefix = take_prefix(rest)?;
            ascend(&mut last, prefix)?;
            Ok((prefix, Node::ref_of(rest.array()?)))
        })
    }

    /// The values and nodes that the commit replaced; empty when the record has no undo.
    pub fn undo(&self) -> UndoView<'a> {
        let kept = !self.undo.is_empty();
        UndoView {
            rest: BodyCursor::new(self.undo),
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

fn take_blob<'a>(cursor: &mut BodyCursor<'a>, len: u32) -> Result<&'a [u8], BodyError> {
    if len > MAX_BLOB { Err(BodyError::Blob(len)) } else { cursor.take(u64::from(len)) }
}

fn take_value<'a>(cursor: &mut BodyCursor<'a>) -> Result<LoggedValue<'a>, BodyError> {
    match cursor.u8()? {
        ABSENT => Ok(LoggedValue::Absent),
        INLINE => {
            let len = cursor.u32()?;
            Ok(LoggedValue::Inline(cursor.take(u64::from(len))?))
        }
        OVERFLOW => {
            let len = cursor.u32()?;
            if len > MAX_OVERFLOW_CELL {
                return Err(BodyError::Truncated);
            }
            Ok(LoggedValue::Overflow(cursor.take(u64::from(len))?))
        }
        kind => Err(BodyError::Kind(kind)),
    }
}

pub(in crate::format) fn take_prefix(cursor: &mut BodyCursor<'_>) -> Result<Prefix, BodyError> {
    let len = cursor.u16()?;
    if len > 256 {
        return Err(BodyError::Prefix);
    }
    let bytes = cursor.take(u64::from(len.div_ceil(8)))?;
    let mut bits = [0; 32];
    bits[..bytes.len()].copy_from_slice(bytes);
    Prefix::from_raw(bits, len).ok_or(BodyError::Prefix)
}

/// The items that a commit replaced: one value a change, then one node a prefix, then the regions' nodes.
#[derive(Clone, Debug)]
pub struct UndoView<'a> {
    rest: BodyCursor<'a>,
    values: u32,
    nodes: u32,
    last: Option<Prefix>,
}

/// A replaced item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplacedItem<'a> {
    /// Value before the change of the same rank.
    Value(LoggedValue<'a>),
    /// Node before the new node of the same rank.
    Node(&'a Node),
    /// Node before of a region; regions ascend strictly.
    Region(Prefix, &'a Node),
}

impl<'a> UndoView<'a> {
    fn item(&mut self) -> Result<ReplacedItem<'a>, BodyError> {
        if let Some(values) = self.values.checked_sub(1) {
            self.values = values;
            return take_value(&mut self.rest).map(ReplacedItem::Value);
        }
        if let Some(nodes) = self.nodes.checked_sub(1) {
            self.nodes = nodes;
            return Ok(ReplacedItem::Node(Node::ref_of(self.rest.array()?)));
        }
        let prefix = take_prefix(&mut self.rest)?;
        ascend(&mut self.last, prefix)?;
        Ok(ReplacedItem::Region(prefix, Node::ref_of(self.rest.array()?)))
    }
}

impl<'a> Iterator for UndoView<'a> {
    type Item = Result<ReplacedItem<'a>, BodyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.values == 0 && self.nodes == 0 && self.rest.is_empty() {
            return None;
        }
        let item = self.item();
        if item.is_err() {
            *self = Self { rest: BodyCursor::new(&[]), values: 0, nodes: 0, last: None };
        }
        Some(item)
    }
}
