//! A span of keys, both ends included: the range that a proof is about.

use super::{error::DecodeError, list::TerminalList, terminal::Terminal};
use crate::{node::Key, prefix::Prefix, range::key_after};

/// All keys from `first` to `last`; `first` is not after `last`.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeySpan {
    first: Key,
    last: Key,
}

impl KeySpan {
    pub(super) fn new(first: &Key, last: &Key) -> Result<Self, DecodeError> {
        if first > last {
            return Err(DecodeError::EmptyRange);
        }
        Ok(Self { first: *first, last: *last })
    }

    pub(super) fn first(&self) -> &Key {
        &self.first
    }

    pub(super) fn last(&self) -> &Key {
        &self.last
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.first <= *key && *key <= self.last
    }

    /// True when all keys below `prefix` are in the span.
    pub(super) fn contains_all(&self, prefix: &Prefix) -> bool {
        self.first <= *prefix.first_key() && prefix.last_key() <= self.last
    }

    /// True when one of the span's two ends is below this terminal.
    pub(super) fn has_end_in(&self, terminal: &Terminal) -> bool {
        terminal.covers(&self.first) || terminal.covers(&self.last)
    }

    /// Checks that the first terminal covers the span's first key, and the last one its last key.
    pub(super) fn check_ends(&self, list: &TerminalList<'_>) -> Result<(), DecodeError> {
        let covers = |end: Option<Terminal>, key| end.is_some_and(|end| end.covers(key));
        if covers(list.first(), &self.first) && covers(list.last(), &self.last) {
            Ok(())
        } else {
            Err(DecodeError::RangeEnds)
        }
    }

    /// Checks that the terminals cover each key of the span, and each of them one at least.
    pub(super) fn check_tiling(&self, list: &TerminalList<'_>) -> Result<(), DecodeError> {
        self.check_ends(list)?;
        let mut reached: Option<Key> = None;
        for terminal in list.iter() {
            let prefix = terminal.prefix();
            if reached.is_some_and(|last| key_after(&last) != Some(*prefix.first_key())) {
                return Err(DecodeError::RangeGap);
            }
            reached = Some(prefix.last_key());
        }
        Ok(())
    }
}
