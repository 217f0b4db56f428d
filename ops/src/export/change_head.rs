//! The head of a change stream, as bytes and back.

use pleach::Roots;
use pleach::internals::roots::TrieRoot;
use pleach_core::{Node, TERMINATOR};
use pleach_journal::format::bytes::{BodyCursor, BodyError};
use pleach_journal::format::commit_body::MAX_BLOB;
use pleach_journal::format::trie_kind::TrieKind;

use crate::export::format::CHANGES_VERSION;

/// Bits of a namespace's presence.
const BEFORE: u8 = 1;
const AFTER: u8 = 2;

/// The head of a change stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeHead {
    /// Number of the hasher ([`Hasher::id`](pleach_core::Hasher::id)).
    pub hasher: u8,
    /// Number of the database ([`Db::id`](pleach::Db::id)); none where it names none.
    pub database: Option<u64>,
    /// Number of the commit before the changes.
    pub from: u64,
    /// Number of the commit after them.
    pub to: u64,
    /// The application's blob after them.
    pub blob: Vec<u8>,
    /// The namespaces of both commits, ascending.
    pub namespaces: Vec<ChangeNamespace>,
}

/// A namespace of a change stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeNamespace {
    /// The namespace's number.
    pub number: u8,
    /// True for a plain namespace.
    pub plain: bool,
    /// The namespace's root, or its digest where it is plain, before the changes; none when they added it.
    pub before: Option<Node>,
    /// The same after the changes; none when they dropped it.
    pub after: Option<Node>,
}

impl ChangeNamespace {
    /// True when the namespace is the same before and after.
    pub(super) fn is_unchanged(&self) -> bool {
        self.before == self.after
    }
}

/// The namespaces of two states. `None` when one number is of two kinds.
pub(super) fn namespaces(before: &Roots, after: &Roots) -> Option<Vec<ChangeNamespace>> {
    let mut numbers: Vec<u8> = before.all().chain(after.all()).map(|(number, _)| number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let of = |number| {
        let (before, after) = (before.of(number), after.of(number));
        let kinds = [before, after].into_iter().flatten().map(|root: TrieRoot| root.kind);
        let kinds: Vec<TrieKind> = kinds.collect();
        let plain = kinds.first() == Some(&TrieKind::Plain);
        let node = |root: Option<TrieRoot>| root.map(|root| root.node);
        let (before, after) = (node(before), node(after));
        (kinds.first() == kinds.last()).then_some(ChangeNamespace { number, plain, before, after })
    };
    numbers.into_iter().map(of).collect()
}

/// The payload of a head.
pub(super) fn encode(head: &ChangeHead) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend(CHANGES_VERSION.to_le_bytes());
    payload.extend([head.hasher, 0]);
    payload.extend(u16::try_from(head.namespaces.len()).expect("at most 256").to_le_bytes());
    payload.extend([0; 2]);
    payload.extend(head.database.unwrap_or_default().to_le_bytes());
    payload.extend(head.from.to_le_bytes());
    payload.extend(head.to.to_le_bytes());
    payload.extend(u32::try_from(head.blob.len()).expect("at most 64 KiB").to_le_bytes());
    payload.extend(&head.blob);
    for one in &head.namespaces {
        let presence = [(one.before, BEFORE), (one.after, AFTER)];
        let presence = presence.iter().filter(|(node, _)| node.is_some()).map(|(_, bit)| bit);
        payload.extend([one.number, u8::from(one.plain), presence.sum(), 0]);
        for node in [one.before, one.after] {
            payload.extend(node.unwrap_or(TERMINATOR).to_bytes());
        }
    }
    payload
}

/// The number of the database. 0 is none.
pub(super) fn database(cursor: &mut BodyCursor<'_>) -> Result<Option<u64>, BodyError> {
    Ok(Some(cursor.u64()?).filter(|number| *number != 0))
}

/// The head of a payload.
pub(super) fn decode(payload: &[u8]) -> Result<ChangeHead, BodyError> {
    let mut cursor = BodyCursor::new(payload);
    cursor.u16()?;
    let hasher = cursor.u8()?;
    cursor.reserved::<1>()?;
    let count = cursor.u16()?;
    cursor.reserved::<2>()?;
    let database = database(&mut cursor)?;
    let (from, to) = (cursor.u64()?, cursor.u64()?);
    if from >= to {
        return Err(BodyError::Unsorted);
    }
    let length = cursor.u32()?;
    if length > MAX_BLOB {
        return Err(BodyError::Blob(length));
    }
    let blob = cursor.take(length.into())?.to_vec();
    let mut namespaces: Vec<ChangeNamespace> = Vec::new();
    for _ in 0..count {
        let (number, kind, presence) = (cursor.u8()?, cursor.u8()?, cursor.u8()?);
        cursor.reserved::<1>()?;
        let nodes = [BEFORE, AFTER].map(|bit| {
            let node = Node::from(*cursor.array::<32>()?);
            match presence & bit {
                0 if node != TERMINATOR => Err(BodyError::Reserved),
                0 => Ok(None),
                _ => Ok(Some(node)),
            }
        });
        let [before, after] = nodes;
        let (before, after) = (before?, after?);
        if kind > 1 {
            return Err(BodyError::Trie(kind));
        }
        let is_first = namespaces.is_empty();
        let is_always = kind == 0 && presence == BEFORE | AFTER;
        if !(1..=3).contains(&presence) || is_first != (number == 0) || is_first && !is_always {
            return Err(BodyError::Entry { ns: number, kind: presence });
        }
        if namespaces.last().is_some_and(|last| last.number >= number) {
            return Err(BodyError::Unsorted);
        }
        namespaces.push(ChangeNamespace { number, plain: kind == 1, before, after });
    }
    if !cursor.is_empty() {
        return Err(BodyError::Trailing);
    }
    if namespaces.is_empty() {
        return Err(BodyError::Truncated);
    }
    Ok(ChangeHead { hasher, database, from, to, blob, namespaces })
}
