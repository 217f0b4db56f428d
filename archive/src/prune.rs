//! Prune: removing the objects before some fulls.

use std::collections::BTreeSet;

use crate::error::{ArchiveError, Result};
use crate::names::Piece;
use crate::place::Archive;
use crate::verify::{heads, own};

/// Removes the pieces of commits before the oldest of the newest `keep_fulls` fulls whose heads can be read (1 at
/// least), unless a later commit that can be restored needs them, and gives what was removed, by this call or by another one at the same time. Later pieces all stay,
/// those behind a gap, too. An archive of fewer fulls stays as it is. When it is cut off it is done again.
///
/// # Errors
/// [`ArchiveError::TwoDatabases`]; [`ArchiveError::Foreign`] or [`ArchiveError::Unnamed`] for a full that would be
/// kept, and [`ArchiveError::OtherVersion`] for one of a newer version: nothing is removed; [`ArchiveError::Store`].
pub fn prune(archive: &Archive, keep_fulls: usize) -> Result<Vec<Piece>> {
    let listing = archive.list()?;
    // A full of another database, or a damaged one, does not count: the pieces that it replaces would be removed.
    let (mut oldest, mut whole) = (None, 0);
    for commit in listing.fulls().rev() {
        let full = Piece::Full { commit };
        match heads(archive, full, listing.bytes(full).unwrap_or_default()) {
            Ok(heads) => own(full, heads.database, listing.database()).map(drop)?,
            Err(ArchiveError::Damaged { .. }) => continue,
            // Another prune has removed it.
            Err(error) if error.is_gone() => continue,
            Err(error) => return Err(error),
        }
        whole += 1;
        if whole == keep_fulls.max(1) {
            oldest = Some(commit);
            break;
        }
    }
    let Some(oldest) = oldest else { return Ok(Vec::new()) };
    let kept = listing.restorable().filter(|commit| *commit >= oldest);
    let needed: BTreeSet<Piece> =
        kept.filter_map(|commit| listing.pieces_to(commit)).flatten().collect();
    let is_older = |piece: Piece| match piece {
        Piece::Full { commit } => commit < oldest,
        Piece::Changes { from, .. } => from < oldest,
    };
    let mut removed: Vec<Piece> = listing.pieces().map(|(piece, _)| piece).collect();
    removed.retain(|piece| is_older(*piece) && !needed.contains(piece));
    // The newest first: an interruption leaves no gap.
    removed.sort_unstable_by_key(|piece| std::cmp::Reverse(piece.to()));
    for piece in &removed {
        archive.remove(&piece.name())?;
    }
    Ok(removed)
}
