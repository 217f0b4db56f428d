//! What a verified proof answers.

use super::terminal::Terminal;
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

/// What a terminal that covers `key` says about it.
pub(super) fn lookup(terminal: Option<Terminal>, key: &Key) -> Lookup {
    match terminal {
        None => Lookup::OutOfScope,
        Some(terminal) => {
            terminal.value_of(key).map_or(Lookup::Absent, |hash| Lookup::Present(*hash))
        }
    }
}
