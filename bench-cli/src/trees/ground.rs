//! Which state.

use super::memory;
use crate::args::named;
use crate::error::Result;
use crate::stores::Engine;

/// A state that `--backend` of a workload of single parts can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ground {
    /// This project's engine.
    Pleach,
    /// The crate nomt.
    #[cfg(feature = "peer-nomt")]
    Nomt,
    /// The crate sp-trie over RocksDB.
    #[cfg(feature = "peer-sp-trie")]
    SpTrie,
    /// The crate jmt over RocksDB.
    #[cfg(feature = "peer-jmt")]
    Jmt,
    /// A plain store, without a root.
    Flat(Engine),
}

impl Ground {
    /// Bytes of memory that it takes with so many keys when it is open, about, and those on top while it is loaded.
    pub(crate) const fn memory(self, cache_mib: u64, keys: u64) -> (u64, u64) {
        match self {
            Self::Pleach => (memory::pleach(cache_mib), 0),
            #[cfg(feature = "peer-nomt")]
            Self::Nomt => (memory::nomt(cache_mib, keys), 0),
            #[cfg(feature = "peer-sp-trie")]
            Self::SpTrie => (memory::budgeted(cache_mib), 0),
            #[cfg(feature = "peer-jmt")]
            Self::Jmt => (memory::budgeted(cache_mib), 0),
            Self::Flat(Engine::BTreeMap) => (memory::pairs(keys), memory::pairs(keys)),
            // Pairs are sorted in memory for a load.
            Self::Flat(_) => (memory::budgeted(cache_mib), memory::pairs(keys)),
        }
    }

    /// All of this build with a root.
    pub(crate) const MERKLE: &[Self] = &[
        Self::Pleach,
        #[cfg(feature = "peer-nomt")]
        Self::Nomt,
        #[cfg(feature = "peer-sp-trie")]
        Self::SpTrie,
        #[cfg(feature = "peer-jmt")]
        Self::Jmt,
    ];

    /// Its name on the command line and in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pleach => "pleach",
            #[cfg(feature = "peer-nomt")]
            Self::Nomt => "nomt",
            #[cfg(feature = "peer-sp-trie")]
            Self::SpTrie => "sp-trie",
            #[cfg(feature = "peer-jmt")]
            Self::Jmt => "jmt",
            Self::Flat(engine) => engine.name(),
        }
    }

    /// What stands before its name in a result: a state without a root is the flat part only, whatever it is
    /// measured beside.
    pub(crate) const fn part(self) -> &'static str {
        if self.is_merkle() { "" } else { "flat, " }
    }

    /// Has it a root?
    pub(crate) const fn is_merkle(self) -> bool {
        !matches!(self, Self::Flat(_))
    }

    /// Is its root the one of the same pairs in Pleach? Others commit to the same contents in another way.
    pub(crate) const fn has_our_roots(self) -> bool {
        match self {
            Self::Pleach => true,
            #[cfg(feature = "peer-nomt")]
            Self::Nomt => true,
            _ => false,
        }
    }

    /// Does it make witnesses as a [`Tree`](super::Tree)? This project's engine has a backend that does.
    #[cfg(test)]
    pub(crate) const fn makes_witnesses(self) -> bool {
        self.is_merkle() && !matches!(self, Self::Pleach)
    }

    /// All of this build.
    pub(crate) fn all() -> impl Iterator<Item = Self> + Clone {
        let flat = Engine::ALL.iter().filter(|engine| !engine.is_ours());
        Self::MERKLE.iter().copied().chain(flat.map(|engine| Self::Flat(*engine)))
    }

    /// The states that `--backend` names, each once.
    pub(crate) fn chosen(names: &[String]) -> Result<Vec<Self>> {
        named::each_once("--backend", names, |name| named::backend(name, Self::all(), Self::name))
    }
}
