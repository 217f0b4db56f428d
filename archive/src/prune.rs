//! Prune: removing what is older than some fulls.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::names::Piece;
use crate::place::Archive;

/// Removes the pieces of commits before the oldest of the newest `keep_fulls` fulls (1 at least), unless a later commit that can be restored
/// needs them, and gives what was removed. Later pieces all stay, those behind a gap, too. An archive of fewer fulls stays as it is. When it
/// is cut off it is done again.
///
/// # Errors
/// [`ArchiveError::Store`](crate::ArchiveError::Store).
pub fn prune(archive: &Archive, keep_fulls: usize) -> Result<Vec<Piece>> {
    let listing = archive.list()?;
    let Some(oldest) = listing.fulls().rev().nth(keep_fulls.max(1) - 1) else {
        return Ok(Vec::new());
    };
    let kept = listing.restorable().filter(|commit| *commit >= oldest);
    let needed: BTreeSet<Piece> = kept.filter_map(|commit| listing.to(commit)).flatten().collect();
    let is_older = |piece: Piece| match piece {
        Piece::Full { commit } => commit < oldest,
        Piece::Changes { from, .. } => from < oldest,
    };
    let mut removed: Vec<Piece> = listing.pieces().map(|(piece, _)| piece).collect();
    removed.retain(|piece| is_older(*piece) && !needed.contains(piece));
    // The newest first: what is left at any time has no gap.
    removed.sort_unstable_by_key(|piece| std::cmp::Reverse(piece.to()));
    for piece in &removed {
        archive.remove(&piece.name())?;
    }
    Ok(removed)
}
