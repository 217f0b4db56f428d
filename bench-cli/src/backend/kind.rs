//! The engines that `--backend` can name.

use serde::{Deserialize, Serialize};

use crate::args::values::Durability;
use crate::error::{BenchError, Result};
use crate::versions;

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// This project's engine.
    Pleach,
    /// The crate nomt.
    Nomt,
    /// The crate sp-trie over RocksDB.
    #[serde(rename = "sp-trie")]
    SpTrie,
    /// The crate jmt over RocksDB.
    Jmt,
    /// Sorted map and naive root: the oracle for small sizes.
    Model,
}

/// Feature and presence of the backends that a build may lack.
const PEERS: [(Kind, &str, bool); 3] = [
    (Kind::Nomt, "peer-nomt", cfg!(feature = "peer-nomt")),
    (Kind::SpTrie, "peer-sp-trie", cfg!(feature = "peer-sp-trie")),
    (Kind::Jmt, "peer-jmt", cfg!(feature = "peer-jmt")),
];

impl Kind {
    /// The backend with this name, if this build has it.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        match name {
            "model" => return Ok(Self::Model),
            "pleach" => return Ok(Self::Pleach),
            _ => {}
        }
        match PEERS.iter().find(|(peer, ..)| peer.name() == name) {
            Some((peer, _, true)) => Ok(*peer),
            Some((peer, feature, false)) => Err(peer.missing(feature)),
            None => {
                let text = format!("no backend {name}: this build has {}", Self::built_in());
                Err(BenchError::Usage(text))
            }
        }
    }

    /// The names of the backends in this build, without the oracle.
    pub(crate) fn built_in() -> String {
        let peers = PEERS.iter().filter(|(.., present)| *present).map(|(peer, ..)| peer.name());
        std::iter::once(Self::Pleach.name()).chain(peers).collect::<Vec<_>>().join(", ")
    }

    /// Is its root the one of the same pairs in Pleach? Others commit to the same contents in another way.
    pub(crate) const fn has_our_roots(self) -> bool {
        !matches!(self, Self::SpTrie | Self::Jmt)
    }

    /// Does it sync each commit with such a `--durability`? Not each knows all of them.
    pub(crate) const fn syncs_each_commit(self, durability: Durability) -> bool {
        match self {
            Self::Nomt => true,
            Self::SpTrie | Self::Jmt => !matches!(durability, Durability::None),
            Self::Pleach | Self::Model => matches!(durability, Durability::Commit),
        }
    }

    /// Its name on the command line, in folders and in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pleach => "pleach",
            Self::Nomt => "nomt",
            Self::SpTrie => "sp-trie",
            Self::Jmt => "jmt",
            Self::Model => "model",
        }
    }

    /// Version of the engine.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Pleach | Self::Model => env!("CARGO_PKG_VERSION"),
            Self::Nomt => versions::of("nomt"),
            Self::SpTrie => versions::of("sp-trie"),
            Self::Jmt => versions::of("jmt"),
        }
    }

    /// The error when this build was made without the backend.
    pub(crate) fn missing(self, feature: &str) -> BenchError {
        let name = self.name();
        let text = format!("this build has no backend {name}: build with --features {feature}");
        BenchError::Usage(text)
    }
}
