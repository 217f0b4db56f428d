//! Change streams: the differences between two commits, written and read.

use std::io::{Read, Write};

use pleach::Session;
use pleach_core::{Key, TERMINATOR};
use pleach_journal::format::record::MAX_RECORD;

use super::blocks::BlockReader;
use super::change_head::{self, ChangeHead, ChangeNamespace};
use super::records::{RecordReader, RecordWriter};
use crate::error::Result;
use crate::error::StreamError;
use crate::export::format::{BlockKind, CHANGES_VERSION};

/// Keys whose values are looked up ahead.
const AHEAD: usize = 1024;

/// Bytes of a change in a log record beside its key and new value, at most: the value before, of at most 1 KiB.
const REPLACED: u64 = 1088;

/// Bytes that the log record of all changes may have by an estimate. The limit of a record is twice as high.
const LIMIT: u64 = MAX_RECORD / 2;

/// The contents of a change stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeReport {
    /// Number of the commit before the changes.
    pub from: u64,
    /// Number of the commit after them.
    pub to: u64,
    /// Keys that were changed or deleted.
    pub changes: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Writes what differs between the states of two sessions of one database to a change stream: of all namespaces, in key
/// order, with the roots of both and the newer blob. Which keys differ is known from what commits have replaced, so the
/// time that it takes depends on the changes alone; pairs of a namespace that the older state does not have are all
/// read. The keys that were changed are in memory, and one value. Commits go on beside it. Give a buffered writer.
///
/// One stream becomes one commit of the database that it is applied to. More changes than fit one are refused, unless
/// they are those of one commit; where their keys alone are too many, before a byte is written.
///
/// # Errors
/// [`StreamError::Order`] when the first state is not the older one; [`StreamError::TooLarge`]; [`StreamError::Write`];
/// [`ForeignSession`](pleach::Error::ForeignSession) for sessions of two opens, and for a namespace that was dropped
/// and added again between the two commits; those of reading ([`Namespace::read`](pleach::Namespace::read)).
pub fn export_changes(older: &Session, newer: &Session, to: impl Write) -> Result<ChangeReport> {
    export(older, newer, to, false)
}

/// [`export_changes`] for strangers: of what the root over all proves, so without blob and plain namespaces
/// ([`Trust::Root`](super::Trust::Root)).
///
/// # Errors
/// As [`export_changes`].
pub fn export_proven_changes(
    older: &Session,
    newer: &Session,
    to: impl Write,
) -> Result<ChangeReport> {
    export(older, newer, to, true)
}

fn export(
    older: &Session,
    newer: &Session,
    to: impl Write,
    proven_alone: bool,
) -> Result<ChangeReport> {
    let (from, through) = (older.commit_number(), newer.commit_number());
    if from >= through {
        return Err(StreamError::Order { from, to: through }.into());
    }
    let namespaces = change_head::namespaces(older.roots(), newer.roots());
    let mut namespaces = namespaces.ok_or(pleach::Error::ForeignSession)?;
    namespaces.retain(|one| !(proven_alone && one.plain));
    let blob = if proven_alone { Vec::new() } else { newer.blob().to_vec() };
    // A session of another open is refused here, even where a namespace has no changes.
    older.check_same_trie(newer)?;
    let limit = if through - from == 1 { u64::MAX } else { LIMIT };
    let full = StreamError::TooLarge { from, to: through, limit };
    let most = limit / REPLACED;
    let (mut changed, mut count) = (Vec::new(), 0);
    for namespace in &namespaces {
        let keys = changed_keys(older, newer, namespace, most)?;
        count += keys.len() as u64;
        if count > most {
            return Err(full.into());
        }
        changed.push(keys);
    }
    let database = Some(newer.database());
    let head =
        ChangeHead { hasher: older.hasher().id(), database, from, to: through, blob, namespaces };
    let encoded = (BlockKind::ChangesHead, change_head::encode(&head));
    let mut writer = LimitedWriter {
        records: RecordWriter::new(to, encoded, BlockKind::Changes)?,
        left: limit,
        full,
    };
    for (namespace, keys) in head.namespaces.iter().zip(changed) {
        writer.records.begin(namespace.number);
        write_namespace(newer, namespace, &keys, &mut writer)?;
        writer.records.end()?;
    }
    let (changes, bytes) = writer.records.finish()?;
    Ok(ChangeReport { from, to: through, changes, bytes })
}

/// The keys of a namespace of both states that differ; one more than so many, if there are as many.
fn changed_keys(
    older: &Session,
    newer: &Session,
    namespace: &ChangeNamespace,
    most: u64,
) -> Result<Vec<Key>> {
    if namespace.before.is_none() || namespace.after.is_none() {
        return Ok(Vec::new());
    }
    let (then, now) = (older.namespace(namespace.number)?, newer.namespace(namespace.number)?);
    then.check_same_trie(now)?;
    if namespace.is_unchanged() {
        return Ok(Vec::new());
    }
    let most = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
    Ok(then.changed_keys(now, .., most)?.0)
}

fn write_namespace(
    newer: &Session,
    namespace: &ChangeNamespace,
    changed: &[Key],
    writer: &mut LimitedWriter<impl Write>,
) -> Result<()> {
    if namespace.after.is_none() {
        return Ok(());
    }
    let now = newer.namespace(namespace.number)?;
    if namespace.before.is_none() {
        for pair in now.iter(..) {
            let (key, value) = pair?;
            writer.record(&key, Some(&value))?;
        }
    }
    for keys in changed.chunks(AHEAD) {
        now.prefetch(keys);
        for key in keys {
            writer.record(key, now.read(key)?.as_deref())?;
        }
    }
    Ok(())
}

/// Writes records as long as they fit one commit.
struct LimitedWriter<W> {
    records: RecordWriter<W>,
    left: u64,
    full: StreamError,
}

impl<W: Write> LimitedWriter<W> {
    fn record(&mut self, key: &Key, value: Option<&[u8]>) -> Result<(), StreamError> {
        let bytes = REPLACED + value.map_or(0, |value| value.len() as u64);
        self.left = self.left.checked_sub(bytes).ok_or_else(|| self.full.clone())?;
        self.records.record(key, value)
    }
}

/// Reads a change stream from its beginning to its end. The changes of each namespace of the head are read in turn
/// ([`ChangeReader::next`]).
pub struct ChangeReader<R> {
    head: ChangeHead,
    records: RecordReader<R>,
}

impl<R> std::fmt::Debug for ChangeReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangeReader").field("head", &self.head).finish_non_exhaustive()
    }
}

impl<R: Read> ChangeReader<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn new(from: R) -> Result<Self, StreamError> {
        let kind = (BlockKind::ChangesHead, CHANGES_VERSION);
        let blocks = BlockReader::new(from, kind, StreamError::NoChanges)?;
        let head = change_head::decode(&blocks.payload).map_err(|_| blocks.contents("the head"))?;
        let numbers = head.namespaces.iter().map(|one| one.number).collect();
        Ok(Self { head, records: RecordReader::new(blocks, BlockKind::Changes, numbers) })
    }

    /// The head of the stream.
    pub fn head(&self) -> &ChangeHead {
        &self.head
    }

    /// The next change of the namespace that is read: a key, and its value, or none where it is deleted; `None` at the
    /// namespace's end, once. The first call begins with the first namespace of the head, and the call after the end of
    /// one with the next.
    ///
    /// # Errors
    /// [`StreamError`]; nothing is to be read after it.
    #[expect(clippy::should_implement_trait, reason = "an iterator ends once")]
    #[expect(clippy::type_complexity, reason = "a key, and its value where it has one")]
    pub fn next(&mut self) -> Result<Option<(Key, Option<&[u8]>)>, StreamError> {
        let (at, count) = self.records.position();
        let Some(&of) = self.head.namespaces.get(at) else { return Ok(None) };
        let Some((key, value)) = self.records.next()? else {
            let was_changed =
                of.after.is_some_and(|after| of.before.unwrap_or(TERMINATOR) != after);
            if !of.plain && was_changed && count == 0 {
                return Err(self.records.contents("another root and no change"));
            }
            return Ok(None);
        };
        let may_have = match (of.before, of.after) {
            (_, None) => false,
            (None, Some(after)) => value.is_some() && (of.plain || after != TERMINATOR),
            (Some(_), Some(after)) => {
                !of.is_unchanged() && (of.plain || value.is_none() || after != TERMINATOR)
            }
        };
        if !may_have {
            return Err(self.records.contents("a change that its namespace cannot have"));
        }
        Ok(Some((key, value.map(|at| self.records.value(at)))))
    }

    /// Checks, after the last namespace, that the stream is whole and nothing follows.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn finish(self) -> Result<(), StreamError> {
        self.records.finish()
    }
}
