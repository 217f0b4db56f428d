//! Ranges of keys: every range is a first and a last key.

use core::ops::{Bound, RangeBounds, RangeInclusive};

use crate::node::Key;

/// The next key; `None` after the last one.
pub fn key_after(key: &Key) -> Option<Key> {
    step(key, |byte| byte.overflowing_add(1))
}

/// The key before; `None` before the first one.
pub fn key_before(key: &Key) -> Option<Key> {
    step(key, |byte| byte.overflowing_sub(1))
}

fn step(key: &Key, of_byte: impl Fn(u8) -> (u8, bool)) -> Option<Key> {
    let mut key = *key;
    for byte in key.iter_mut().rev() {
        let (stepped, carries) = of_byte(*byte);
        *byte = stepped;
        if !carries {
            return Some(key);
        }
    }
    None
}

/// First and last key of a range; `None` when it has none.
pub fn key_range(range: &impl RangeBounds<Key>) -> Option<(Key, Key)> {
    let first = match range.start_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => key_after(key)?,
        Bound::Unbounded => [0; 32],
    };
    let last = match range.end_bound() {
        Bound::Included(key) => *key,
        Bound::Excluded(key) => key_before(key)?,
        Bound::Unbounded => [0xff; 32],
    };
    (first <= last).then_some((first, last))
}

/// All keys that begin with these bytes, of which there are at most 32: more are left out.
///
/// ```
/// let keys = pleach_core::range::with_prefix(&[7, 1]);
/// assert!(keys.contains(&[[7, 1].as_slice(), &[0; 30]].concat().try_into().unwrap()));
/// assert!(!keys.contains(&[7; 32]));
/// ```
pub fn with_prefix(bytes: &[u8]) -> RangeInclusive<Key> {
    let (mut first, mut last) = ([0; 32], [0xff; 32]);
    for ((first, last), byte) in first.iter_mut().zip(&mut last).zip(bytes) {
        (*first, *last) = (*byte, *byte);
    }
    first..=last
}

#[cfg(test)]
mod tests {
    use core::ops::Bound::{Excluded, Included, Unbounded};

    use super::*;

    #[test]
    fn bounds_of_all_kinds_become_a_first_and_a_last_key() {
        let key = |bytes: [u8; 2]| {
            let mut key = [0; 32];
            key[30..].copy_from_slice(&bytes);
            key
        };
        let (zero, all) = ([0; 32], [0xff; 32]);
        let bounds = |from, to| key_range(&(from, to));
        assert_eq!(bounds(Unbounded, Unbounded), Some((zero, all)));
        assert_eq!(
            bounds(Excluded(key([0, 0xff])), Excluded(key([2, 0]))),
            Some((key([1, 0]), key([1, 0xff])))
        );
        assert_eq!(bounds(Included(zero), Included(zero)), Some((zero, zero)));
        assert_eq!(bounds(Included(all), Unbounded), Some((all, all)));
        for empty in [
            bounds(Excluded(all), Unbounded),
            bounds(Unbounded, Excluded(zero)),
            bounds(Included(key([1, 0])), Excluded(key([1, 0]))),
            bounds(Excluded(key([1, 0])), Excluded(key([1, 1]))),
            bounds(Included(key([1, 1])), Included(key([1, 0]))),
        ] {
            assert_eq!(empty, None);
        }
    }
}
