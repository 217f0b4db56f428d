//! Applying a change stream to a database.
//!
//! Namespaces that the changes add are added first, then all changes are one commit, then namespaces that they drop are
//! dropped. After an interruption the same stream continues: until the commit all Merkle roots are those before, from
//! then on those after.

use std::io::Read;

use pleach::internals::roots::TrieRoot;
use pleach::{Access, AccessKind, Db, Roots, SessionOptions};
use pleach_beatree::Value;
use pleach_core::proof::roots;
use pleach_core::{Hasher, Node, TERMINATOR};
use pleach_journal::format::record::MAX_RECORD;

use super::change_head::{ChangeHead, ChangeNamespace};
use super::changes::ChangeReader;
use crate::error::StreamError;
use crate::error::{Error, Result};
use crate::replay;

/// Bytes of keys and values that a stream may have: they are in memory before any root can be compared.
const LIMIT: u64 = 4 * MAX_RECORD;

/// What the sender of a change stream is trusted with. Roots prove the pairs of Merkle namespaces: neither the blob nor
/// plain namespaces, and not that the new state is the one that was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The sender is trusted with all of it: an archive of one's own.
    Sender,
    /// The sender is a stranger, and this root over all ([`Roots::over_all`]), from a source that is trusted, is the one
    /// that the changes must lead to. A stream with plain namespaces or a blob is refused; the blob stays as it is.
    Root(Node),
}

/// The result of applying a change stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ApplyReport {
    /// Number of the commit before the changes, in the database that they come from.
    pub from: u64,
    /// Number of the commit after them there.
    pub to: u64,
    /// Number of the newest commit of this database.
    pub commit: u64,
    /// Keys that the stream changes or deletes.
    pub changes: u64,
    /// True when the changes had been applied before.
    pub already_there: bool,
}

/// Applies a change stream ([`export_changes`](super::export_changes())) to a database in the state that the stream
/// goes from: one that was imported, or has had the stream before applied. All changes are one commit; namespaces that
/// come or go are a commit each. The Merkle roots of the new state are compared with the stream's before it is
/// committed. Plain namespaces have no roots: of them it is known that they exist. A database that is in the state
/// after the changes is left as it is, and one in which they were cut off goes on. All changes are in memory until they
/// are committed. Commits are as durable as the options say ([`Db::sync`]).
///
/// # Errors
/// [`StreamError::OtherState`] when the database is in another state; [`Stream`](crate::Error::Stream);
/// [`OtherRoot`](pleach::Error::OtherRoot) when the changes do not lead to the root that the stream names;
/// [`NamespaceInUse`](pleach::Error::NamespaceInUse) when a namespace is to be added of which an older one can still be
/// read: with a shorter history ([`Options::history`](pleach::Options::history)) it is free; and those of a commit;
/// [`StreamError::TooLarge`] for more than 4 GiB; with [`Trust::Root`] [`StreamError::Unproven`], and
/// [`OtherRoot`](pleach::Error::OtherRoot) before anything is changed. The database is in the state before the changes, where namespaces may
/// have been added, or, after an error of a drop, in the one after them: applied again, the stream goes on.
pub fn apply_changes(
    db: &Db,
    mut reader: ChangeReader<impl Read>,
    trust: Trust,
) -> Result<ApplyReport> {
    let (mut head, hasher) = (reader.head().clone(), db.hasher()?);
    if head.hasher != hasher.id() {
        return Err(StreamError::Hasher { expected: hasher.id(), found: head.hasher }.into());
    }
    if let Trust::Root(root) = trust {
        check_proven(&head, hasher, root)?;
        head.blob = db.blob();
    }
    check_state(&db.roots(), &head)?;
    let (mut accesses, mut bytes) = (Vec::new(), 0_u64);
    for namespace in &head.namespaces {
        while let Some((key, value)) = reader.next()? {
            bytes += 32 + value.map_or(0, |value| value.len() as u64);
            if bytes > LIMIT {
                let (from, to) = (head.from, head.to);
                return Err(StreamError::TooLarge { from, to, limit: LIMIT }.into());
            }
            let value = value.map(Value::from);
            accesses.push(Access::write(key, value).in_namespace(namespace.number));
        }
    }
    // The whole stream is verified before the first commit.
    reader.finish()?;
    let changes = accesses.len() as u64;
    let already_there = is_after(db, &head, &accesses)?;
    if !already_there {
        let added = add_namespaces(db, &head)?;
        if let Err(error) = commit(db, &head, accesses) {
            if let Error::Db(pleach::Error::OtherRoot { .. }) = error {
                for number in added {
                    db.drop_namespace(number)?;
                }
            }
            return Err(error);
        }
    }
    let mut dropped = false;
    for namespace in head.namespaces.iter().filter(|namespace| namespace.after.is_none()) {
        if db.roots().of(namespace.number).is_some() {
            db.drop_namespace(namespace.number)?;
            dropped = true;
        }
    }
    let (from, to, commit) = (head.from, head.to, db.commit_number());
    let already_there = already_there && !dropped;
    Ok(ApplyReport { from, to, commit, changes, already_there })
}

/// Refuses what the root over all does not prove.
fn check_proven(head: &ChangeHead, hasher: Hasher, expected: Node) -> Result<()> {
    if let Some(plain) = head.namespaces.iter().find(|one| one.plain) {
        return Err(
            StreamError::Unproven { what: format!("plain namespace {}", plain.number) }.into()
        );
    }
    if !head.blob.is_empty() {
        return Err(StreamError::Unproven { what: "a blob".to_owned() }.into());
    }
    let after = head.namespaces.iter().filter_map(|one| Some((one.number, one.after.as_ref()?)));
    let found = roots::over_all(hasher, after);
    if found != expected {
        return Err(pleach::Error::OtherRoot { expected, found }.into());
    }
    Ok(())
}

/// True when a namespace has this root. Of a plain one only its existence is compared.
fn is_at(namespace: &ChangeNamespace, found: Option<TrieRoot>, node: Option<Node>) -> bool {
    match (found, node) {
        (Some(found), Some(node)) => namespace.plain || found.node == node,
        (None, None) => true,
        _ => false,
    }
}

/// Checks that each namespace is as before the changes, added and empty, or as after them, and that there is no other.
fn check_state(roots: &Roots, head: &ChangeHead) -> Result<()> {
    let other = |namespace| StreamError::OtherState { namespace, from: head.from, to: head.to };
    for (number, found) in roots.all() {
        let of = head.namespaces.iter().find(|one| one.number == number);
        if of.is_none_or(|of| of.plain != found.digest().is_some()) {
            return Err(other(number).into());
        }
    }
    for one in &head.namespaces {
        let found = roots.of(one.number);
        let is_added = one.before.is_none() && found.is_some_and(|root| root.node == TERMINATOR);
        if !is_added && !is_at(one, found, one.before) && !is_at(one, found, one.after) {
            return Err(other(one.number).into());
        }
    }
    Ok(())
}

/// True when the commit of the changes has been made.
fn is_after(db: &Db, head: &ChangeHead, accesses: &[Access]) -> Result<bool> {
    let session = db.session(SessionOptions::new())?;
    let roots = session.roots();
    let mut after = head.namespaces.iter().filter(|one| one.after.is_some());
    if session.blob() != head.blob || !after.all(|one| is_at(one, roots.of(one.number), one.after))
    {
        return Ok(false);
    }
    // Of plain namespaces the pairs tell.
    for access in accesses {
        if roots.digest(access.namespace).is_none() {
            continue;
        }
        let AccessKind::Write(value) = &access.kind else { continue };
        if session.namespace(access.namespace)?.read(&access.key)? != *value {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Adds the missing namespaces, and returns their numbers.
fn add_namespaces(db: &Db, head: &ChangeHead) -> Result<Vec<u8>> {
    let mut added = Vec::new();
    for one in &head.namespaces {
        if one.after.is_some() && db.roots().of(one.number).is_none() {
            match add(db, one) {
                // The next commit ends the reads of a dropped namespace, where an open has made the history shorter.
                Err(pleach::Error::NamespaceInUse { dropped, .. })
                    if *db.history().start() >= dropped =>
                {
                    replay::commit(db, [], db.blob(), |_| Ok::<_, pleach::Error>(()))?;
                    add(db, one)?
                }
                done => done?,
            };
            added.push(one.number);
        }
    }
    Ok(added)
}

fn add(db: &Db, one: &ChangeNamespace) -> pleach::Result<u64> {
    if one.plain { db.add_plain_namespace(one.number) } else { db.add_namespace(one.number) }
}

/// Commits the changes and the blob, if they lead to the roots of the head.
fn commit(db: &Db, head: &ChangeHead, accesses: Vec<Access>) -> Result<()> {
    replay::commit(db, accesses, head.blob.clone(), |roots| {
        for one in head.namespaces.iter().filter(|one| !one.plain) {
            if let (Some(expected), Some(found)) = (one.after, roots.get(one.number))
                && expected != found
            {
                return Err(pleach::Error::OtherRoot { expected, found }.into());
            }
        }
        Ok(())
    })
}
