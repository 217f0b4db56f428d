//! Reading an object back after it was written, and the heads of objects.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;

use pleach::{Node, Roots};
use pleach_ops::export::{ChangeHead, ChangeReader, StreamError, StreamHead, StreamReader};

use crate::error::{ArchiveError, Result};
use crate::names::Piece;
use crate::place::Archive;
use crate::transfer::{Download, Progress};

/// A namespace: its number, whether it is plain, and its root or digest.
type NamespaceRoot = (u8, bool, Node);

/// What is wrong with an object that has another one's name.
pub(crate) const OTHER_PIECE: &str = "its head is of another piece";

/// Heads in flight.
const IN_FLIGHT: usize = 32;

/// The head of an object.
pub(crate) struct PieceHeads {
    /// Number of the hasher.
    pub(crate) hasher: u8,
    /// The object's database, where the head names it.
    pub(crate) database: Option<u64>,
    /// Of changes, the namespaces of the commit before them.
    pub(crate) before: Vec<NamespaceRoot>,
    /// The namespaces of the commit that the piece leads to.
    pub(crate) after: Vec<NamespaceRoot>,
}

/// Refuses an object of another database than this one; returns its database.
pub(crate) fn own(piece: Piece, found: Option<u64>, database: Option<u64>) -> Result<u64> {
    let found = found.ok_or_else(|| ArchiveError::Unnamed(piece.name()))?;
    match database.filter(|database| *database != found) {
        Some(database) => Err(ArchiveError::Foreign { object: piece.name(), found, database }),
        None => Ok(found),
    }
}

/// Reads an object as a whole: all checksums, its head, that keys ascend. Returns the number of its records.
pub(crate) fn read_back(
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
    let (found, count) = found.map_err(|error| failure.or(unreadable(piece, error)))?;
    if found == piece { Ok(count) } else { Err(damaged(piece, OTHER_PIECE)) }
}

/// A finding of [`check`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The object's piece.
    pub piece: Piece,
    /// The finding.
    pub what: String,
}

/// Reads an archive as a whole, and returns the objects that are damaged, of another database, or that name other roots
/// for a commit than an object before them. Missing pieces are in [`Archive::list`]. It takes memory for the roots of
/// all commits.
///
/// # Errors
/// [`ArchiveError::TwoDatabases`]; [`ArchiveError::OtherVersion`]; [`ArchiveError::Store`].
pub fn check(archive: &Archive, progress: Option<&Progress>) -> Result<Vec<Finding>> {
    let listing = archive.list()?;
    let mut judged = HeadsCheck { database: listing.database(), ..HeadsCheck::default() };
    for (piece, bytes) in listing.pieces() {
        let read = read_back(archive, (piece, bytes), progress.cloned());
        judged.judge(piece, read.and_then(|_| heads(archive, piece, bytes)))?;
    }
    Ok(judged.findings)
}

/// The same for the heads of all objects only, which is quick: damage behind a head is not found.
///
/// # Errors
/// [`ArchiveError::TwoDatabases`]; [`ArchiveError::OtherVersion`]; [`ArchiveError::Store`].
pub fn check_heads(archive: &Archive) -> Result<Vec<Finding>> {
    let listing = archive.list()?;
    let mut judged = HeadsCheck { database: listing.database(), ..HeadsCheck::default() };
    let (mut pieces, mut ahead) = (listing.pieces(), VecDeque::new());
    loop {
        let room = IN_FLIGHT - ahead.len();
        let more = pieces.by_ref().take(room);
        ahead.extend(
            more.map(|(piece, size)| (piece, Download::of_head(archive, piece.name(), size))),
        );
        let Some((piece, from)) = ahead.pop_front() else { return Ok(judged.findings) };
        judged.judge(piece, heads_of(piece, from))?;
    }
}

/// State of a check of heads.
#[derive(Default)]
struct HeadsCheck {
    /// The archive's database, or else that of the first object.
    database: Option<u64>,
    /// The namespaces of each commit, and the object that named them.
    roots: BTreeMap<u64, (Vec<NamespaceRoot>, Piece)>,
    findings: Vec<Finding>,
}

impl HeadsCheck {
    fn judge(&mut self, piece: Piece, read: Result<PieceHeads>) -> Result<()> {
        let read = read.and_then(|heads| {
            self.database = Some(own(piece, heads.database, self.database)?);
            Ok(heads)
        });
        let PieceHeads { before, after, .. } = match read {
            Ok(heads) => heads,
            Err(ArchiveError::Damaged { why: what, .. }) => {
                self.findings.push(Finding { piece, what });
                return Ok(());
            }
            Err(error @ (ArchiveError::Foreign { .. } | ArchiveError::Unnamed(_))) => {
                // The object's name is beside the text.
                let text = error.to_string();
                let what = text.strip_prefix(&piece.to_string()).map(|rest| format!("it{rest}"));
                self.findings.push(Finding { piece, what: what.unwrap_or(text) });
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut commits = vec![(piece.to(), after)];
        if let Piece::Changes { from, .. } = piece {
            commits.push((from, before));
        }
        for (commit, found) in commits {
            let (said, other) = self.roots.entry(commit).or_insert_with(|| (found.clone(), piece));
            if *said != found {
                let what = format!("it has other roots for commit {commit} than {}", other.name());
                self.findings.push(Finding { piece, what });
            }
        }
        Ok(())
    }
}

/// The piece of an export stream, and its pairs. The roots of the pairs are not computed.
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

/// The head of an object, which must be of the piece in its name.
pub(crate) fn heads(archive: &Archive, piece: Piece, bytes: u64) -> Result<PieceHeads> {
    heads_of(piece, Download::of_head(archive, piece.name(), bytes))
}

fn heads_of(piece: Piece, from: Download) -> Result<PieceHeads> {
    let failure = from.failure();
    let wrong = |error: StreamError| failure.or(unreadable(piece, error));
    let (found, heads) = match piece {
        Piece::Full { .. } => {
            let reader = StreamReader::new(from).map_err(wrong)?;
            let StreamHead { hasher, database, commit, namespaces, .. } = reader.head();
            let of = namespaces.iter().map(|one| (one.number, one.plain, one.root));
            let (before, after) = (Vec::new(), of.collect());
            (
                Piece::Full { commit: *commit },
                PieceHeads { hasher: *hasher, database: *database, before, after },
            )
        }
        Piece::Changes { .. } => {
            let reader = ChangeReader::new(from).map_err(wrong)?;
            let ChangeHead { hasher, database, from, to, namespaces, .. } = reader.head();
            let (mut before, mut after) = (Vec::new(), Vec::new());
            for one in namespaces {
                before.extend(one.before.map(|node| (one.number, one.plain, node)));
                after.extend(one.after.map(|node| (one.number, one.plain, node)));
            }
            let piece = Piece::Changes { from: *from, to: *to };
            (piece, PieceHeads { hasher: *hasher, database: *database, before, after })
        }
    };
    if found == piece { Ok(heads) } else { Err(damaged(piece, OTHER_PIECE)) }
}

/// The namespaces of a state.
pub(crate) fn of(roots: &Roots) -> Vec<NamespaceRoot> {
    let plain = roots.digests().map(|(number, digest)| (number, true, digest.into()));
    let mut all: Vec<NamespaceRoot> =
        roots.iter().map(|(number, root)| (number, false, root)).chain(plain).collect();
    all.sort_unstable_by_key(|one| one.0);
    all
}

/// The error of an object whose stream cannot be read: damage, or a newer version's.
pub(crate) fn unreadable(piece: Piece, error: StreamError) -> ArchiveError {
    match error {
        StreamError::Version { .. } => {
            ArchiveError::OtherVersion { object: piece.name(), why: error.to_string() }
        }
        error => damaged(piece, error),
    }
}

/// The error of a damaged object, of which nothing else is known.
pub(crate) fn damaged(piece: Piece, why: impl Display) -> ArchiveError {
    let (object, why) = (piece.name(), format!("{why}"));
    ArchiveError::Damaged { object, why, before: None, without: None }
}
