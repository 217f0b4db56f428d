//! What a verified proof answers.

use super::terminal::Terminal;
use crate::hasher::Hasher;
use crate::node::{Key, ValueHash};

/// What a verified proof says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The key is in the set, with this value hash.
    Present(ValueHash),
    /// The key is not in the set.
    Absent,
    /// The proof says nothing about the key.
    OutOfScope,
}

impl Lookup {
    /// Whether this answer says that the key has this value (`None`: that it is absent); `None` when it says nothing
    /// about the key. A verified proof passes its own hasher, so that no caller hashes a value by another one.
    pub(super) fn proves(&self, hasher: Hasher, value: Option<&[u8]>) -> Option<bool> {
        let found = match self {
            Self::Present(found) => Some(found.to_bytes()),
            Self::Absent => None,
            Self::OutOfScope => return None,
        };
        Some(found == value.map(|value| hasher.hash(value)))
    }
}

/// What a terminal that covers `key` says about it.
pub(super) fn lookup(terminal: Option<Terminal>, key: &Key) -> Lookup {
    match terminal {
        None => Lookup::OutOfScope,
        Some(terminal) => {
            terminal.value_of(key).map_or(Lookup::Absent, |hash| Lookup::Present(*hash))
        }
    }
}
