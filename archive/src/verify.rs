//! Reading an object back after it was written, and the heads of objects.

use std::collections::BTreeMap;
use std::fmt::Display;

use pleach::export::{ChangeHead, ChangeReader, StreamError, StreamHead, StreamReader};
use pleach::{Node, Roots};

use crate::error::{ArchiveError, Result};
use crate::names::Piece;
use crate::place::Archive;
use crate::transfer::{Download, Progress};

/// A namespace: its number, whether it is plain, and its root or digest.
type Namespace = (u8, bool, Node);

/// What is wrong with an object that has another one's name.
pub(crate) const OTHER_PIECE: &str = "its head is of another piece";

/// What an object must have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) piece: Piece,
    pub(crate) bytes: u64,
    /// Pairs of a full, or changes.
    pub(crate) records: u64,
}

/// Reads an object from the store again: all checksums, its head, that keys ascend, and the number of its records.
pub(crate) fn verify(
    archive: &Archive,
    written: &Written,
    progress: Option<Progress>,
) -> Result<()> {
    let Written { piece, bytes, records } = *written;
    if read_back(archive, (piece, bytes), progress)? != records {
        return Err(damaged(piece, "it reads back with another number of records"));
    }
    Ok(())
}

/// Reads an object as a whole, and gives the number of its records.
fn read_back(
    archive: &Archive,
    (piece, bytes): (Piece, u64),
    progress: Option<Progress>,
) -> Result<u64> {
    let from = Download::new(archive, piece.name(), bytes, progress);
    let failure = from.failure();
    let found = match piece {
        Piece::Full { .. } => full(from),
        Piece::Changes { .. } => changes(from),
    };
    let (found, count) = found.map_err(|error| failure.or(damaged(piece, error)))?;
    if found == piece { Ok(count) } else { Err(damaged(piece, OTHER_PIECE)) }
}

/// What [`check`] has found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The object's piece.
    pub piece: Piece,
    /// What is wrong with it.
    pub what: String,
}

/// Reads an archive as a whole, and gives the objects that are damaged, or that name other roots for a commit than an object before
/// them. What is missing is in [`Archive::list`]. It takes memory for the roots of all commits.
///
/// # Errors
/// [`ArchiveError::Store`].
pub fn check(archive: &Archive, progress: Option<&Progress>) -> Result<Vec<Finding>> {
    let (mut findings, mut roots) = (Vec::new(), BTreeMap::new());
    let listing = archive.list()?;
    for (piece, bytes) in listing.pieces() {
        let read = read_back(archive, (piece, bytes), progress.cloned());
        let read = read.and_then(|_| heads(archive, piece, bytes));
        let (before, after) = match read {
            Ok(heads) => heads,
            Err(ArchiveError::Damaged { why: what, .. }) => {
                findings.push(Finding { piece, what });
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut commits = vec![(piece.to(), after)];
        if let Piece::Changes { from, .. } = piece {
            commits.push((from, before));
        }
        for (commit, found) in commits {
            let (said, other) = roots.entry(commit).or_insert_with(|| (found.clone(), piece));
            if *said != found {
                let what = format!("it has other roots for commit {commit} than {}", other.name());
                findings.push(Finding { piece, what });
            }
        }
    }
    Ok(findings)
}

/// The piece of an export stream, and its pairs. Where the engine folds pairs that come in order to a root, it can be computed
/// here and compared with the head's.
fn full(from: Download) -> Result<(Piece, u64), StreamError> {
    let mut reader = StreamReader::new(from)?;
    let (mut count, piece) = (0, Piece::Full { commit: reader.head().commit });
    for _ in 0..reader.head().namespaces.len() {
        while reader.next()?.is_some() {
            count += 1;
        }
    }
    reader.finish().map(|()| (piece, count))
}

/// The piece of a change stream, and its changes.
fn changes(from: Download) -> Result<(Piece, u64), StreamError> {
    let mut reader = ChangeReader::new(from)?;
    let ChangeHead { from, to, .. } = *reader.head();
    let (mut count, piece) = (0, Piece::Changes { from, to });
    for _ in 0..reader.head().namespaces.len() {
        while reader.next()?.is_some() {
            count += 1;
        }
    }
    reader.finish().map(|()| (piece, count))
}

/// The namespaces of the commit that a piece leads to, and, of changes, those of the commit that they go from. The piece is what
/// its name says.
pub(crate) fn heads(
    archive: &Archive,
    piece: Piece,
    bytes: u64,
) -> Result<(Vec<Namespace>, Vec<Namespace>)> {
    let from = Download::new(archive, piece.name(), bytes, None);
    let failure = from.failure();
    let wrong = |error: StreamError| failure.or(damaged(piece, error));
    let (found, before, after) = match piece {
        Piece::Full { .. } => {
            let reader = StreamReader::new(from).map_err(wrong)?;
            let StreamHead { commit, namespaces, .. } = reader.head();
            let of = namespaces.iter().map(|one| (one.number, one.plain, one.root));
            (Piece::Full { commit: *commit }, Vec::new(), of.collect())
        }
        Piece::Changes { .. } => {
            let reader = ChangeReader::new(from).map_err(wrong)?;
            let ChangeHead { from, to, namespaces, .. } = reader.head();
            let (mut before, mut after) = (Vec::new(), Vec::new());
            for one in namespaces {
                before.extend(one.before.map(|node| (one.number, one.plain, node)));
                after.extend(one.after.map(|node| (one.number, one.plain, node)));
            }
            (Piece::Changes { from: *from, to: *to }, before, after)
        }
    };
    if found == piece { Ok((before, after)) } else { Err(damaged(piece, OTHER_PIECE)) }
}

/// Number of the hasher of the archive's database ([`Hasher::ID`](pleach::Hasher::ID)), for whoever has to choose the type that a
/// restore wants: that of the newest full.
///
/// # Errors
/// [`ArchiveError::Empty`] when there is no full; [`ArchiveError::Damaged`]; [`ArchiveError::Store`].
pub fn hasher(archive: &Archive) -> Result<u8> {
    let listing = archive.list()?;
    let full = listing.fulls().next_back().map(|commit| Piece::Full { commit });
    let full = full.ok_or_else(|| ArchiveError::Empty(archive.place().to_owned()))?;
    let from = Download::new(archive, full.name(), listing.bytes(full).unwrap_or_default(), None);
    let failure = from.failure();
    let reader = StreamReader::new(from).map_err(|error| {
        let (object, why) = (full.name(), error.to_string());
        let (before, without) = (listing.before(full.to()), None);
        failure.or(ArchiveError::Damaged { object, why, before, without })
    })?;
    Ok(reader.head().hasher)
}

/// The namespaces of a state.
pub(crate) fn of(roots: &Roots) -> Vec<Namespace> {
    let plain = roots.digests().map(|(number, digest)| (number, true, digest.into()));
    let mut all: Vec<Namespace> =
        roots.iter().map(|(number, root)| (number, false, root)).chain(plain).collect();
    all.sort_unstable_by_key(|one| one.0);
    all
}

/// A damaged object, of which nothing else is known.
pub(crate) fn damaged(piece: Piece, why: impl Display) -> ArchiveError {
    let (object, why) = (piece.name(), format!("{why}"));
    ArchiveError::Damaged { object, why, before: None, without: None }
}
