//! What the engines of others have in common.

#![allow(dead_code, reason = "which of these are used is a matter of the build's features")]

use std::ops::RangeInclusive;

use super::store::Change;
use crate::error::{BenchError, Result};

/// The changes in the order of their keys: a tree touches each page once then.
pub(crate) fn in_order<'a>(changes: &[Change<'a>]) -> Vec<Change<'a>> {
    let mut ordered = changes.to_vec();
    ordered.sort_unstable_by_key(|change| change.0);
    ordered
}

/// Refuses a load into a store that has something.
pub(crate) fn for_empty(empty: bool, engine: &'static str) -> Result<()> {
    if empty {
        return Ok(());
    }
    Err(BenchError::backend(engine)("a load is for an empty store"))
}

/// A setting that is on or off.
pub(crate) fn flag(peer: &str, name: &str, value: &str) -> Result<bool> {
    value.parse().map_err(|_| {
        BenchError::Usage(format!("--peer-arg {peer}.{name}={value}: say true or false"))
    })
}

/// A setting that is a number.
pub(crate) fn whole(
    peer: &str,
    name: &str,
    value: &str,
    range: RangeInclusive<u64>,
) -> Result<u64> {
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        BenchError::Usage(format!("--peer-arg {peer}.{name}={value}: say {least} to {most}"))
    })
}

/// Settings as the trait has them.
pub(crate) fn settings<const N: usize>(of: [(&str, String); N]) -> Vec<(String, String)> {
    of.map(|(name, value)| (name.to_owned(), value)).to_vec()
}
