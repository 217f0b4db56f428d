//! Proofs of ranges: of all pairs in a range, and of the changes in a range between two states.
//!
//! Both are built from multiproofs ([`crate::finish::prove`]). A range takes the multiproof of its ends and the pairs
//! between them, as a scan gives them, with the hashes of their values: long values are not read. A change takes the
//! multiproofs of the ends and of all keys that differ, one on each state.
//!
//! The keys that differ are found without a scan. Undo and overlays have all keys in which a state differs from the
//! present; a key that neither state has there is the same in both. Of the other keys, values are compared.

use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds, RangeInclusive};

use pleach_beatree::Stored;
use pleach_beatree::leaf_fold::KeyState;
use pleach_core::prefix::common_len;
use pleach_core::proof::{BuildError, ChangeProof, RangeProof, change, range};
use pleach_core::range::{key_before, key_range};
use pleach_core::{Hasher, Key, Prefix, ValueHash};

use crate::engine::Engine;
use crate::error::{Contradiction, Error, Result};
use crate::finish::{ProofRequest, prove};
use crate::read::many::{self, FetchPurpose};
use crate::read::point;
use crate::read::scan::{Direction, Scan};
use crate::state::NamespaceDb;
use crate::state::view::{RootedView, View};

/// Proves all pairs of a range.
pub(crate) fn prove_range(
    engine: &Engine,
    db: &NamespaceDb,
    state: RootedView<'_>,
    keys: &RangeInclusive<Key>,
) -> Result<RangeProof> {
    let bounds = multiproof(engine, db, state, &[*keys.start(), *keys.end()])?;
    let mut scan = Scan::new(&engine.scanners, keys);
    let mut failed = None;
    let pairs = std::iter::from_fn(|| match scan.next(db, state.view, Direction::Forwards)? {
        Ok((key, value)) => {
            let value = value.fold_value().expect("a scan gives what is present");
            Some((key, value.hash(db.hasher)))
        }
        Err(error) => {
            failed = Some(error);
            None
        }
    });
    let built = range::build(db.hasher, &bounds, keys.start(), keys.end(), pairs);
    match failed {
        Some(error) => Err(error),
        None => Ok(built.map_err(build_failure)?.into()),
    }
}

/// Proves what changed in a range from one state to another.
pub(crate) fn prove_change(
    engine: &Engine,
    db: &NamespaceDb,
    from: RootedView<'_>,
    to: RootedView<'_>,
    keys: &RangeInclusive<Key>,
) -> Result<ChangeProof> {
    let mut opened = differing_keys(engine, db, from.view, to.view, keys)?;
    let (first, last) = (keys.start(), keys.end());
    opened.extend([first, last]);
    opened.sort_unstable();
    opened.dedup();
    let before = multiproof(engine, db, from, &opened)?;
    let after = multiproof(engine, db, to, &opened)?;
    Ok(change::build(db.hasher, &before, &after, first, last).map_err(build_failure)?.into())
}

/// The end of a range's first part with at most so many pairs (one at least): a key before the next pair, if there is
/// one.
pub(crate) fn part_end(
    engine: &Engine,
    db: &NamespaceDb,
    view: &View,
    keys: &RangeInclusive<Key>,
    pairs: usize,
) -> Result<Key> {
    let mut scan = Scan::new(&engine.scanners, keys);
    for _ in 0..pairs.max(1) {
        if scan.next(db, view, Direction::Forwards).transpose()?.is_none() {
            return Ok(*keys.end());
        }
    }
    let next = scan.next(db, view, Direction::Forwards).transpose()?;
    Ok(next.map_or(*keys.end(), |(key, _)| key_before(&key).expect("a pair comes before it")))
}

/// The keys of a range; an error when it is empty.
pub(crate) fn keys_of(range: &impl RangeBounds<Key>) -> Result<RangeInclusive<Key>> {
    let named = |bound: Bound<&Key>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => *key,
        Bound::Unbounded => [0; 32],
    };
    let (first, last) = (named(range.start_bound()), named(range.end_bound()));
    let keys = key_range(range).ok_or(Error::EmptyRange { first, last })?;
    Ok(keys.0..=keys.1)
}

/// The multiproof of ascending keys; neighbours may be equal.
fn multiproof(
    engine: &Engine,
    db: &NamespaceDb,
    of: RootedView<'_>,
    keys: &[Key],
) -> Result<Vec<u8>> {
    let mut keys = keys.to_vec();
    keys.dedup();
    let Engine { finisher, readers, .. } = engine;
    prove(db, finisher, readers, of, ProofRequest::Keys(&keys))
}

/// The keys of a range that differ between two states, in order. Long values are compared by their hashes.
pub(crate) fn differing_keys(
    engine: &Engine,
    db: &NamespaceDb,
    from: &View,
    to: &View,
    keys: &RangeInclusive<Key>,
) -> Result<Vec<Key>> {
    let within = Prefix::new(keys.start(), common_len(keys.start(), keys.end()));
    // A key that neither undo nor overlays of a state have is as in the present.
    let now = db.commits.tip_view().0.for_namespace(from.namespace);
    let over = [from.all_changes_below(&within)?, to.all_changes_below(&within)?];
    let found = over.iter().flatten().map(|(key, _)| *key).filter(|key| keys.contains(key));
    let keys: Vec<Key> = found.collect::<BTreeSet<Key>>().into_iter().collect();
    many::fetch_pages(db, &engine.readers, FetchPurpose::Proof, &keys)?;
    let hash_in = |over: &[KeyState], key: &Key| -> Result<Option<ValueHash>> {
        let stored = match over.binary_search_by_key(key, |(key, _)| *key) {
            Ok(at) => over[at].1.clone(),
            Err(_) => point::stored(db, &now, key)?,
        };
        Ok(value_hash(db.hasher, &stored))
    };
    let differs = |key: Key| -> Result<Option<Key>> {
        Ok((hash_in(&over[0], &key)? != hash_in(&over[1], &key)?).then_some(key))
    };
    let differing = keys.into_iter().map(differs).filter_map(Result::transpose).collect();
    // A dropped trie that was read may have been reclaimed by then.
    from.check_readable()?;
    to.check_readable()?;
    differing
}

/// The hash of a value; `None` when there is none.
fn value_hash(hasher: Hasher, stored: &Stored) -> Option<ValueHash> {
    stored.fold_value().map(|value| value.hash(hasher))
}

/// The error of a proof that could not be built: pairs and multiproofs are of the same states, so only its size can be
/// wrong.
fn build_failure(error: BuildError) -> Error {
    match error {
        BuildError::Encode(_) => {
            Error::BatchTooLarge { bytes: u64::MAX, limit: u64::from(u32::MAX) }
        }
        error => Contradiction::Proof(error).into(),
    }
}
