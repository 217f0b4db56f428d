//! Commit `refold`: what a flush has done to regions and layouts below a commit's chunks since its finish. Their trie may
//! even be another one by now, with the same pairs.

use std::sync::Arc;

use pleach_beatree::RegionIndex;
use pleach_beatree::leaf_fold::KeyAccess;
use pleach_core::Hasher;
use pleach_io::{Device, Runtime};

use super::target::{Part, Target};
use crate::error::Result;
use crate::finish::outcome::RegionOutcome;
use crate::finish::{Finisher, check_refolded, refold};
use crate::metrics::Counters;

/// Is the region of an outcome not in the index any more?
fn is_gone(index: &RegionIndex, outcome: &RegionOutcome) -> bool {
    !Arc::ptr_eq(index.region(outcome.region.prefix().first_key()), &outcome.region)
}

/// Chunks below which regions have been joined since they were folded become one: a region is of one chunk.
/// They are stale, and folded again before they are used.
pub(super) fn join_chunks<D: Device, R: Runtime>(part: &mut Part<'_, D, R>) {
    let Part { db, chunks, .. } = part;
    let index = db.index.load();
    if !chunks.iter().flat_map(|chunk| &chunk.regions).any(|outcome| is_gone(&index, outcome)) {
        return;
    }
    chunks.retain(|chunk| !chunk.regions.is_empty());
    chunks.dedup_by(|next, chunk| {
        let last = chunk.regions.last().expect("retained").region.prefix().last_key();
        let first = next.regions[0].region.prefix().first_key();
        let joined = index.region(&last).prefix().covers(first);
        if joined {
            chunk.absorb(next);
        }
        joined
    });
}

/// Commit `refold`: folds the chunks again below which a flush has split or merged pages since they were
/// folded. It folds on the state that they were folded on, so that they stay true when another commit
/// comes first. What it gives leads to the roots of the finish, or the commit fails.
pub(super) fn refold_stale<H: Hasher, D: Device, R: Runtime>(
    finisher: &Finisher<H, D, R>,
    target: &Target<'_>,
    part: &mut Part<'_, D, R>,
) -> Result<()> {
    let Part { db, view, chunks } = part;
    let mut refolded_some = false;
    let index = db.index.load_full();
    for chunk in chunks.iter_mut() {
        let stale = chunk.regions.iter().any(|outcome| {
            is_gone(&index, outcome)
                || outcome.region.read().layout_version() != outcome.layout_version
        });
        if !stale {
            continue;
        }
        Counters::add(&db.counters.refolds, 1);
        let accesses: Vec<KeyAccess> = chunk
            .changes
            .iter()
            .map(|changed| KeyAccess {
                key: changed.key,
                reads: false,
                writes: Some(changed.new.clone()),
            })
            .collect();
        let mut refolded = refold(db, finisher, view, &accesses)?;
        refolded.changes = std::mem::take(&mut chunk.changes);
        *chunk = refolded;
        refolded_some = true;
    }
    let roots = [target.prev_roots, target.roots].map(|roots| roots.get(db.namespace));
    if let ([Some(before), Some(after)], true) = (roots, refolded_some) {
        check_refolded(db, finisher, view, (&before, &after), chunks)?;
    }
    Ok(())
}
