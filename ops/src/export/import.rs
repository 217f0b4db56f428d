//! Loading an export stream into a database.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use pleach::load::LoadOptions;
use pleach::{Db, Progress, Roots, SessionOptions};
use pleach_beatree::Value;
use pleach_core::{Key, TERMINATOR};

use super::reader::{StreamNamespace, StreamReader};
use crate::error::StreamError;
use crate::error::{Error, Result};
use crate::replay;

/// Options of [`import`].
#[derive(Clone, Default)]
pub struct ImportOptions {
    memory_mib: Option<u64>,
    progress: Option<Progress>,
}

impl fmt::Debug for ImportOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportOptions")
            .field("memory_mib", &self.memory_mib)
            .finish_non_exhaustive()
    }
}

impl ImportOptions {
    /// The memory of a load ([`LoadOptions::new`]), and no progress.
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory that a load may take, in MiB ([`LoadOptions::memory_mib`]).
    #[must_use]
    pub fn memory_mib(mut self, mib: u64) -> Self {
        self.memory_mib = Some(mib);
        self
    }

    /// A function that is called with the number of loaded pairs. Workers call it, too.
    #[must_use]
    pub fn progress(mut self, progress: Option<Progress>) -> Self {
        self.progress = progress;
        self
    }

    /// Options for the load of a namespace after `before` pairs of others.
    fn load(&self, namespace: &StreamNamespace, before: u64) -> LoadOptions {
        let number = namespace.number;
        let mut options = LoadOptions::new().namespace(number).root(namespace.root);
        if let Some(mib) = self.memory_mib {
            options = options.memory_mib(mib);
        }
        let progress = self.progress.clone();
        options.progress(
            progress.map(|tell| -> Progress { Arc::new(move |done, _| tell(before + done, None)) }),
        )
    }
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportReport {
    /// Number of the stream's commit, in the database that it comes from.
    pub exported_commit: u64,
    /// Number of the newest commit of this database.
    pub commit: u64,
    /// Namespaces of the stream.
    pub namespaces: u64,
    /// Namespaces of the stream that existed already.
    pub already_there: u64,
    /// Pairs of the stream.
    pub pairs: u64,
    /// Roots and digests.
    pub roots: Roots,
}

/// Imports an export stream ([`export`](super::export())) of a database with the same hasher: adds its namespaces,
/// loads the pairs of each as [`Db::bulk_load`] does, and sets the blob. Of the Merkle namespaces the roots are
/// compared before anything is published. The database is a new one, or has what an import of the same stream has left
/// that was cut off: then this goes on with the namespaces that are missing.
///
/// # Errors
/// [`Stream`](crate::Error::Stream); [`OtherRoot`](pleach::Error::OtherRoot) when the pairs do not lead to the root
/// that the stream names; and those of [`Db::bulk_load`], [`Db::add_namespace`] and a commit. Namespaces that were
/// loaded before stay.
pub fn import(
    db: &Db,
    mut reader: StreamReader<impl Read>,
    options: &ImportOptions,
) -> Result<ImportReport> {
    let head = reader.head().clone();
    if head.hasher != db.hasher()?.id() {
        return Err(StreamError::Hasher { expected: db.hasher()?.id(), found: head.hasher }.into());
    }
    let is_of_stream = |namespace: u8, plain: bool| {
        head.namespaces.iter().any(|one| one.number == namespace && one.plain == plain)
    };
    let roots = db.roots();
    let merkle = roots.iter().map(|(namespace, _)| (namespace, false));
    let plain = roots.digests().map(|(namespace, _)| (namespace, true));
    let other = merkle.chain(plain).find(|(number, plain)| !is_of_stream(*number, *plain));
    if let Some((other, _)) = other {
        return Err(StreamError::OtherNamespace(other).into());
    }
    let (mut already_there, mut pairs) = (0, 0);
    for namespace in &head.namespaces {
        let number = namespace.number;
        let roots = db.roots();
        let exists = roots.get(number).is_some() || roots.digest(number).is_some();
        match (exists, namespace.plain) {
            (true, _) => {}
            (false, true) => drop(db.add_plain_namespace(number)?),
            (false, false) => drop(db.add_namespace(number)?),
        }
        let is_there = if namespace.plain {
            compare_plain(db, number, &mut reader, &mut pairs)?
        } else {
            match db.roots().get(number) {
                Some(root) if root == namespace.root => {
                    while reader.next()?.is_some() {
                        pairs += 1;
                    }
                    true
                }
                Some(TERMINATOR) => false,
                _ => return Err(StreamError::OtherPairs(number).into()),
            }
        };
        if is_there {
            already_there += u64::from(exists);
            continue;
        }
        let owned = |(key, value): (Key, &[u8])| (key, Value::from(value));
        let stream = std::iter::from_fn(|| match reader.next() {
            Ok(pair) => pair.map(|pair| Ok(owned(pair))),
            Err(error) => Some(Err(error.into())),
        });
        pairs += db.try_bulk_load::<Error>(stream, &options.load(namespace, pairs))?.accounts;
    }
    reader.finish()?;
    if db.blob() != head.blob {
        replay::commit(db, [], head.blob, |_| Ok::<_, pleach::Error>(()))?;
        db.sync()?;
    }
    Ok(ImportReport {
        exported_commit: head.commit,
        commit: db.commit_number(),
        namespaces: head.namespaces.len() as u64,
        already_there,
        pairs,
        roots: db.roots(),
    })
}

/// True when a plain namespace is loaded already, pair by pair. An empty one is not: then nothing was read.
fn compare_plain(
    db: &Db,
    number: u8,
    reader: &mut StreamReader<impl Read>,
    pairs: &mut u64,
) -> Result<bool> {
    let session = db.session(SessionOptions::new())?;
    let namespace = session.namespace(number)?;
    let mut there = namespace.iter(..).peekable();
    if there.peek().is_none() {
        return Ok(false);
    }
    let other = || StreamError::OtherPairs(number);
    while let Some((key, value)) = reader.next()? {
        let same = there.next().transpose()?;
        if same.is_none_or(|(found, held)| found != key || *held != *value) {
            return Err(other().into());
        }
        *pairs += 1;
    }
    if there.next().is_some() { Err(other().into()) } else { Ok(true) }
}
